//! Encryption of rows at rest.
//!
//! Values hold passwords, keys and tokens, and files end up in backups and on
//! disks that are thrown away. Each value is sealed with XChaCha20-Poly1305
//! under a random nonce, bound to its path so that rows cannot be exchanged;
//! the key is in `store.key` beside the store, readable for its owner alone.
//! This protects a copy of the store, not a machine somebody has broken into.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use chacha20poly1305::aead::{Aead, Generate, Key, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

const NONCE: usize = 24;

pub(super) struct Seal(XChaCha20Poly1305);

impl Seal {
    /// Reads the key at `path`, or makes one there if nothing is sealed yet (`new`).
    ///
    /// # Errors
    /// In words; a key that is gone cannot be made again.
    pub fn load_or_make(path: &Path, new: bool) -> io::Result<Seal> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && new => make(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other(format!(
                    "{} is missing, and without it the store cannot be read: restore it from a copy, \
                     or move store.redb away to start empty",
                    path.display()
                )));
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        };
        let key = from_hex(text.trim()).ok_or_else(|| {
            io::Error::other(format!("{} does not hold a key of 64 hexadecimal digits", path.display()))
        })?;
        Ok(Seal(XChaCha20Poly1305::new(&key.into())))
    }

    /// Seals a value that will be stored under `path`; `None` if it is too large (256 GiB).
    pub fn seal(&self, path: &str, value: &[u8]) -> Option<Vec<u8>> {
        let nonce = XNonce::generate();
        let sealed = self.0.encrypt(&nonce, Payload { msg: value, aad: path.as_bytes() }).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    /// The value sealed under `path`; `None` if the key, the path or the bytes are not those.
    pub fn open(&self, path: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE)?;
        let nonce = XNonce::try_from(nonce).ok()?;
        self.0.decrypt(&nonce, Payload { msg: sealed, aad: path.as_bytes() }).ok()
    }
}

/// Writes a new key so that after a crash there is all of it or nothing.
fn make(path: &Path) -> io::Result<String> {
    let key = Key::<XChaCha20Poly1305>::generate();
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let partial = path.with_extension("key.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(text)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_sealed_opens_only_where_it_belongs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.key");
        let seal = Seal::load_or_make(&path, true).unwrap();
        let sealed = seal.seal("/routes/1", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        let again = Seal::load_or_make(&path, false).unwrap();
        assert_eq!(again.open("/routes/1", &sealed).unwrap(), b"secret");
        assert!(again.open("/routes/2", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert!(again.open("/routes/1", &bent).is_none());
            assert!(again.open("/routes/1", &sealed[..at]).is_none());
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_is_gone_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.key");
        let error = Seal::load_or_make(&path, false).err().unwrap();
        assert!(error.to_string().contains("is missing"), "{error}");
        fs::write(&path, "0".repeat(63)).unwrap();
        let error = Seal::load_or_make(&path, true).err().unwrap();
        assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
    }
}
