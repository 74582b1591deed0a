//! `cargo x dashboard`: the types of answers are made, the page is checked, its units are tested and its bundle built.
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
    for script in ["types", "check", "lint", "test", "build"] {
        run(Command::new("npm").args(["run", "--silent", script]).current_dir(root().join("dashboard")))?;
    }
    Ok(())
}

/// Fails if the committed bundle is not that of the sources. The new one is left in place.
pub fn check() -> Result<()> {
    let (dist, types) = (root().join("dashboard/dist"), root().join("dashboard/src/lib/answers.d.ts"));
    let now = || anyhow::Ok((contents(&dist)?, std::fs::read_to_string(&types)?));
    let committed = now()?;
    build()?;
    if now()? != committed {
        bail!("dashboard/dist or the types of answers were stale and have been built again: commit them");
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
