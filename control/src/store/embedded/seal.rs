//! Encryption of rows at rest.
//!
//! Values hold passwords, keys and tokens, and files end up in backups and on
//! disks that are thrown away. Each value is sealed with XChaCha20-Poly1305
//! under a random nonce, bound to its path so that rows cannot be exchanged;
//! the key is in `store.key` beside the store, readable for its owner alone.
//! This protects a copy of the store, not a compromised machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::rand;
use chacha20::{R20, hchacha};

const NONCE: usize = 24;

pub(super) struct Seal([u8; 32]);

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
        Ok(Seal(key))
    }

    /// Seals a value that will be stored under `path`; `None` if it is too large (256 GiB).
    pub fn seal(&self, path: &str, value: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE];
        rand::fill(&mut nonce).ok()?;
        let (key, short) = self.derive(&nonce)?;
        let mut sealed = Vec::with_capacity(NONCE + value.len() + CHACHA20_POLY1305.tag_len());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(value);
        let path = Aad::from(path.as_bytes());
        let tag = key.seal_in_place_separate_tag(short, path, &mut sealed[NONCE..]).ok()?;
        sealed.extend_from_slice(tag.as_ref());
        Some(sealed)
    }

    /// The value sealed under `path`; `None` if the key, the path or the bytes are not those. It is opened
    /// where it lies.
    pub fn open<'s>(&self, path: &str, sealed: &'s mut [u8]) -> Option<&'s [u8]> {
        let (nonce, sealed) = sealed.split_first_chunk_mut::<NONCE>()?;
        let (key, short) = self.derive(nonce)?;
        key.open_in_place(short, Aad::from(path.as_bytes()), sealed).ok().map(|value| &*value)
    }

    /// The key and the nonce of ChaCha20-Poly1305 that stand for a nonce of this length
    /// (draft-irtf-cfrg-xchacha-03, section 2.3). The bulk of the work is done by the library that also serves
    /// TLS: where a store is opened with 100,000 rows, it takes a quarter of the time.
    fn derive(&self, nonce: &[u8; NONCE]) -> Option<(LessSafeKey, Nonce)> {
        let (first, last) = nonce.split_first_chunk::<16>()?;
        let key = hchacha::<R20>(&self.0.into(), &(*first).into());
        let mut short = [0; 12];
        short[4..].copy_from_slice(last);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).ok()?;
        Some((LessSafeKey::new(key), Nonce::assume_unique_for_key(short)))
    }
}

/// Writes a new key so that after a crash there is all of it or nothing.
fn make(path: &Path) -> io::Result<String> {
    let mut key = [0; 32];
    rand::fill(&mut key).map_err(|_| io::Error::other("the system gives no random numbers"))?;
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
        let mut sealed = seal.seal("/routes/1", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        let again = Seal::load_or_make(&path, false).unwrap();
        assert!(again.open("/routes/2", &mut sealed.clone()).is_none());
        for at in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[at] ^= 1;
            assert!(again.open("/routes/1", &mut bent).is_none());
            assert!(again.open("/routes/1", &mut sealed.clone()[..at]).is_none());
        }
        assert_eq!(again.open("/routes/1", &mut sealed).unwrap(), b"secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Sealed by an earlier release, which had the whole of XChaCha20-Poly1305 from another library.
    #[test]
    fn what_earlier_releases_sealed_opens() {
        let key = std::array::from_fn(|at| 0x80 + at as u8);
        let sealed = "404142434445464748494a4b4c4d4e4f50515253545556578a2e068632d2ce78 \
            d47355ffd4dbed264635170f6866a697e8d49a6827262ff27b1e214f1c43af53 \
            01fdd07356a37c60f06cd769ca3dc42df5b6ad1c470256c4abd6535c";
        let digits = sealed.replace(' ', "");
        let mut sealed: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        let text = Seal(key).open("/apisix/routes/1", &mut sealed).unwrap();
        assert_eq!(text, br#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:80":1}}}"#);
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
