//! Files that several artefacts share, made once: completions and the licence.

use super::Dist;
use crate::shell::{output, root};
use anyhow::Result;
use std::process::Command;

/// Shells, and the name of the completion script in the shell's own folder.
const SHELLS: [(&str, &str); 3] = [("bash", "sluice"), ("zsh", "_sluice"), ("fish", "sluice.fish")];

/// Writes `completions/SHELL/NAME` and `LICENSE` below [`Dist::parts`].
pub fn write(dist: &Dist) -> Result<()> {
    for (shell, name) in SHELLS {
        let folder = dist.parts.join("completions").join(shell);
        std::fs::create_dir_all(&folder)?;
        let script = output(Command::new(&dist.binary).args(["completions", shell]))?;
        std::fs::write(folder.join(name), script)?;
    }
    std::fs::copy(root().join("LICENSE"), dist.parts.join("LICENSE"))?;
    Ok(())
}
