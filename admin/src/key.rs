//! The admin key that is made when none is configured.
//!
//! There is no built-in key: one that everybody knows is none (CVE-2020-13945).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Keys that APISIX's old manuals print, so that everybody knows them. They work only where
/// somebody wrote them into config.yaml, and deserve a warning there.
pub const WELL_KNOWN: [&str; 2] = ["edd1c9f034335f136f87ad84b625c8f1", "4054f7cf07e344346cd3f287985e76a2"];

/// A key that was made, now or at an earlier start.
#[derive(Debug)]
pub struct Generated {
    pub key: String,
    /// Where it is written.
    pub path: PathBuf,
    /// Made just now: worth telling, once.
    pub new: bool,
}

/// Reads `folder/admin.key`, or makes a key and writes it there (mode 0600).
///
/// # Errors
/// A file that cannot be read or written, or holds something too short to be a key.
pub fn load_or_make(folder: &Path) -> io::Result<Generated> {
    let path = folder.join("admin.key");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let key = text.trim().to_owned();
            if key.len() < 16 {
                return Err(io::Error::other(format!(
                    "{} holds no key of at least 16 characters: delete it to have one made",
                    path.display()
                )));
            }
            Ok(Generated { key, path, new: false })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // 122 random bits.
            let key = Uuid::new_v4().simple().to_string();
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            writeln!(file, "{key}")?;
            file.sync_all()?;
            Ok(Generated { key, path, new: true })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let made = load_or_make(folder.path()).unwrap();
        assert!(made.new && made.key.len() == 32);
        let mode = fs::metadata(&made.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = load_or_make(folder.path()).unwrap();
        assert!(!again.new && again.key == made.key);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(load_or_make(other.path()).unwrap().key, made.key);
        assert!(!WELL_KNOWN.contains(&made.key.as_str()));
    }

    #[test]
    fn an_empty_file_is_no_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("admin.key"), "\n").unwrap();
        assert!(load_or_make(folder.path()).unwrap_err().to_string().contains("delete it"));
    }
}
