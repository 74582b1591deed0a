//! The copy of the repository in which code is broken, beside a build folder of its own. Both stay,
//! so that only what changed is built again.

use crate::shell::{output, root};
use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Tree {
    folder: PathBuf,
    room: String,
}

impl Tree {
    /// For the breaks of a room: what is built of another one stays as it is.
    pub fn new(folder: PathBuf, room: &str) -> Tree {
        Tree { folder, room: room.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the copy is.
    pub fn root(&self) -> PathBuf {
        self.folder.join("trees").join(&self.room)
    }

    /// Where it is built.
    pub fn build(&self) -> PathBuf {
        self.folder.join("build")
    }

    /// Makes the copy what the repository's files are, but for these. A file that has its text
    /// already is not written, so that cargo sees what changed.
    pub fn write(&self, instead: &HashMap<String, String>) -> Result<()> {
        let mut git = Command::new("git");
        git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = output(&mut git)?;
        let mut kept = HashSet::new();
        for file in listed.split('\0').filter(|file| !file.is_empty()) {
            let text = match instead.get(file) {
                Some(text) => text.as_bytes().to_vec(),
                None => match std::fs::read(root().join(file)) {
                    Ok(text) => text,
                    // Deleted, but not yet in the index.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error).with_context(|| format!("cannot read {file}")),
                },
            };
            let path = self.root().join(file);
            if std::fs::read(&path).ok().as_ref() != Some(&text) {
                write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
            }
            kept.insert(path);
        }
        remove_others(&self.root(), &kept)
    }
}

fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, text)
}

fn remove_others(folder: &Path, kept: &HashSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}
