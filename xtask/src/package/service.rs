//! The systemd unit, as systemd itself reads it.

use crate::shell::{run, show};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// Ten times the exposure that `systemd-analyze security` may find at most, from 0 to 100.
const EXPOSURE: u32 = 20;

/// Verifies the unit that is installed below a folder. A warning is an error.
pub fn check(root: &Path) -> Result<()> {
    tools::debian(&[("systemd-analyze", "systemd")])?;
    // The units that ours refers to, which the folder of a container lacks.
    let unit = root.join("usr/lib/systemd/system/sluice.service");
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--recursive-errors=no", "--man=no"])
        .arg("--root")
        .arg(root)
        .arg("sluice.service");
    println!("$ {}", show(&verify));
    let done = verify.output().context("cannot start systemd-analyze")?;
    let said = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() || !said.trim().is_empty() {
        bail!("systemd-analyze verify: {}\n{said}", done.status);
    }
    let threshold = format!("--threshold={EXPOSURE}");
    run(Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--no-pager", &threshold])
        .arg(&unit)
        .stdout(Stdio::null()))?;
    Ok(())
}
