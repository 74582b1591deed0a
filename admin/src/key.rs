//! The admin key and the instance's id, which are generated and stored if they are not configured.
//!
//! There is no built-in key, since a published key protects nothing (CVE-2020-13945).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// The published keys of APISIX's old manuals, which are accepted only if config.yaml contains them.
pub const WELL_KNOWN: [&str; 2] = ["edd1c9f034335f136f87ad84b625c8f1", "4054f7cf07e344346cd3f287985e76a2"];

/// The least length of a key, in characters.
const SHORTEST: usize = 16;

/// A generated key, from this start or an earlier one.
#[derive(Debug)]
pub struct Generated {
    pub key: String,
    /// The file that holds it.
    pub path: PathBuf,
    /// Whether it was generated at this start, so that its path is to be reported once.
    pub new: bool,
}

/// Reads `folder/admin.key`, or makes a key and writes it there (mode 0600).
///
/// # Errors
/// A file that cannot be read or written, or holds something too short to be a key.
pub fn load_or_make(folder: &Path) -> io::Result<Generated> {
    // 122 random bits.
    let made = kept(folder.join("admin.key"), || Uuid::new_v4().simple().to_string())?;
    if made.key.len() < SHORTEST {
        return Err(io::Error::other(format!(
            "{} holds no key of at least {SHORTEST} characters: delete it to have one made",
            made.path.display()
        )));
    }
    Ok(made)
}

/// Reads `folder/instance.id`, or makes an id and writes it there; the folder, too, is made.
///
/// # Errors
/// A file that cannot be read or written, or holds nothing.
pub fn instance_id(folder: &Path) -> io::Result<String> {
    fs::create_dir_all(folder)?;
    let made = kept(folder.join("instance.id"), || Uuid::new_v4().to_string())?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=64).contains(&made.key.len()) || !made.key.bytes().all(fits) {
        return Err(io::Error::other(format!(
            "{} holds no id of up to 64 letters, digits and `-_.`: delete it to have one made",
            made.path.display()
        )));
    }
    Ok(made.key)
}

fn kept(path: PathBuf, make: impl FnOnce() -> String) -> io::Result<Generated> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Generated { key: text.trim().to_owned(), path, new: false }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = make();
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

    #[test]
    fn an_id_is_made_once_and_fits_a_key_of_etcd() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let id = instance_id(&data).unwrap();
        assert_eq!((id.len(), instance_id(&data).unwrap()), (36, id));
        for wrong in ["", "a/b", &"a".repeat(65)] {
            fs::write(data.join("instance.id"), wrong).unwrap();
            assert!(instance_id(&data).unwrap_err().to_string().contains("holds no id"), "{wrong}");
        }
    }
}
