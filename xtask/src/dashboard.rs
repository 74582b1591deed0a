//! `cargo x dashboard`: the page is checked, its units are tested and its bundle is built.
//!
//! The bundle under `dashboard/dist` is committed, so that the gateway builds without npm; the tests
//! build it again and compare.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::shell::{output, root, run};
use crate::tools;
use anyhow::{Result, bail};

pub fn build() -> Result<()> {
    tools::npm()?;
    for script in ["check", "lint", "test", "build"] {
        run(Command::new("npm").args(["run", "--silent", script]).current_dir(root().join("dashboard")))?;
    }
    Ok(())
}

/// Fails if the committed bundle is not that of the sources. The new one is left in place.
pub fn check() -> Result<()> {
    let dist = root().join("dashboard/dist");
    let committed = contents(&dist)?;
    build()?;
    let built = contents(&dist)?;
    if built != committed {
        bail!("dashboard/dist was stale and has been built again: commit it");
    }
    Ok(())
}

fn contents(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Versions of zlib compress differently.
        all.insert(name, output(Command::new("gzip").arg("-dc").arg(&path))?);
    }
    Ok(all)
}
