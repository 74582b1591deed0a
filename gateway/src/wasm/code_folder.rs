//! The folder of machine code that was compiled from modules: `wasm-code` in the data folder.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use scripting::wasm::{CodeStore, MOST_CODE};

/// Keeps the code of the modules of this start, one file each.
pub(super) struct CodeFolder {
    path: PathBuf,
    /// The files of modules of this start.
    used: RefCell<BTreeSet<String>>,
}

impl CodeFolder {
    pub(super) fn new(data: &Path) -> CodeFolder {
        CodeFolder { path: data.join("wasm-code"), used: RefCell::default() }
    }

    /// Removes the code of modules that are no longer configured, and what an interrupted start left.
    pub(super) fn remove_unused(&self) {
        let used = self.used.borrow();
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_unused = name.to_str().is_some_and(|name| is_of_code(name) && !used.contains(name));
            if is_unused && self.check().is_ok() {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn read_own(&self, name: &str) -> Result<Vec<u8>> {
        let mut file = File::open(self.path.join(name))?;
        check(&file.metadata()?)?;
        self.check()?;
        let mut bytes = Vec::new();
        (&mut file).take(MOST_CODE * 2).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write_own(&self, name: &str, bytes: &[u8]) -> Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        self.check()?;
        let partial = self.path.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&partial);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        let written = file.write_all(bytes).and_then(|()| fs::rename(&partial, self.path.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn check(&self) -> Result<()> {
        check(&fs::symlink_metadata(&self.path)?)
    }
}

/// Code is executed: another user must not be able to write it.
fn check(found: &Metadata) -> Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Error::other("it is not owned by the gateway's user, or others may write to it"))
}

/// Whether a file has the name of a module's code: 64 hexadecimal digits, and the process that writes it.
fn is_of_code(name: &str) -> bool {
    let (sum, process) = name.split_once('.').unwrap_or((name, "0"));
    let is_hex = sum.len() == 64 && sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex && process.parse::<u32>().is_ok()
}

impl CodeStore for CodeFolder {
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.used.borrow_mut().insert(name.to_owned());
        match self.read_own(name) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    let file = self.path.join(name);
                    tracing::warn!(
                        "cannot read compiled code, the module is compiled file={} error={error}",
                        file.display()
                    );
                }
                None
            }
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        if let Err(error) = self.write_own(name, bytes) {
            let folder = self.path.display();
            tracing::warn!(
                "cannot store compiled code, the next start compiles again folder={folder} error={error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const ONE: &str = "0011223344556677889900112233445566778899001122334455667788990011";
    const OTHER: &str = "ff11223344556677889900112233445566778899001122334455667788990011";

    #[test]
    fn only_own_files_are_read_and_written() {
        let data = tempfile::tempdir().unwrap();
        let folder = CodeFolder::new(data.path());
        assert_eq!(folder.read(ONE), None);
        folder.write(ONE, b"code");
        folder.write(ONE, b"newer");
        assert_eq!(folder.read(ONE).as_deref(), Some(&b"newer"[..]));
        let (place, file) = (folder.path.clone(), folder.path.join(ONE));
        let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        for path in [&file, &place] {
            mode(path, 0o722);
            assert_eq!(folder.read(ONE), None);
            mode(path, 0o700);
            assert!(folder.read(ONE).is_some());
        }
        mode(&place, 0o777);
        folder.write(OTHER, b"code");
        mode(&place, 0o700);
        assert!(!folder.path.join(OTHER).exists());
        // A link in the place of the file is not followed.
        let outside = data.path().join("outside");
        fs::write(&outside, b"kept").unwrap();
        symlink(&outside, folder.path.join(format!("{OTHER}.{}", std::process::id()))).unwrap();
        folder.write(OTHER, b"code");
        assert_eq!(
            (fs::read(&outside).unwrap(), folder.read(OTHER)),
            (b"kept".to_vec(), Some(b"code".to_vec()))
        );
    }

    #[test]
    fn only_code_of_other_starts_is_removed() {
        let data = tempfile::tempdir().unwrap();
        let folder = CodeFolder::new(data.path());
        folder.remove_unused();
        folder.write(ONE, b"code");
        folder.write(OTHER, b"code");
        for name in ["greeter.wasm".to_owned(), format!("{OTHER}.17"), format!("{OTHER}.wasm")] {
            fs::write(folder.path.join(name), b"").unwrap();
        }
        assert!(folder.read(ONE).is_some());
        folder.remove_unused();
        let left = fs::read_dir(&folder.path).unwrap().flatten().map(|entry| entry.file_name());
        let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, [ONE.to_owned(), format!("{OTHER}.wasm"), "greeter.wasm".to_owned()]);
    }
}
