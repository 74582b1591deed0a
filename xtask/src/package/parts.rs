//! Files that several artefacts share, made once: completions, manual pages, licences and the systemd unit.

use super::{Dist, crates};
use crate::shell::{output, root, run};
use anyhow::Result;
use std::process::Command;

/// Shells, and the name of the completion script in the shell's own folder.
const SHELLS: [(&str, &str); 3] = [("bash", "sluice"), ("zsh", "_sluice"), ("fish", "sluice.fish")];

/// The program's own licence, and those of the crates in it.
pub const LICENCES: [&str; 2] = ["LICENSE", "THIRD-PARTY-LICENSES"];

/// Writes `completions/SHELL/NAME`, `man/*.1.gz`, `LICENSE`, `THIRD-PARTY-LICENSES` and `systemd/sluice.service` below
/// [`Dist::parts`].
pub fn write(dist: &Dist) -> Result<()> {
    for (shell, name) in SHELLS {
        let folder = dist.parts.join("completions").join(shell);
        std::fs::create_dir_all(&folder)?;
        let script = output(Command::new(&dist.binary).args(["completions", shell]))?;
        std::fs::write(folder.join(name), script)?;
    }
    let man = dist.parts.join("man");
    std::fs::create_dir(&man)?;
    output(Command::new(&dist.binary).args(["man", "--out"]).arg(&man))?;
    // Without the time, so that the same pages give the same files.
    run(Command::new("sh").current_dir(&man).args(["-ec", "gzip -9 --no-name *.1"]))?;
    std::fs::copy(root().join("LICENSE"), dist.parts.join("LICENSE"))?;
    std::fs::create_dir(dist.parts.join("systemd"))?;
    let unit = "systemd/sluice.service";
    std::fs::copy(root().join("packaging").join(unit), dist.parts.join(unit))?;
    let crates = crates::linked()?.crates;
    std::fs::write(dist.parts.join("THIRD-PARTY-LICENSES"), crates::licences(&crates)?)?;
    println!("licences of {} crates", crates.len());
    Ok(())
}
