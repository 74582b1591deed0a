//! The keyring: AES-CBC with the key as IV, then base64 (APISIX 3.18,
//! `core/data_encryption.lua`).
//!
//! The format is deterministic and not authenticated: equal secrets look equal,
//! and changes are not noticed. It keeps secrets out of sight in stores and
//! answers, no more. The embedded store has authenticated encryption beneath.

use std::fmt;

use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::iv::FixedLength;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Invalid;

/// Keys in order: the first encrypts, all decrypt.
pub struct Ring(Vec<Cipher>);

struct Cipher {
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
    iv: [u8; BLOCK],
}

const BLOCK: usize = 16;

impl Ring {
    /// # Errors
    /// A key that is neither 16 bytes long (AES-128) nor 32 (AES-256).
    pub fn new<K: AsRef<[u8]>>(keys: &[K]) -> Result<Ring, Invalid> {
        let ciphers = keys.iter().map(|key| Cipher::new(key.as_ref())).collect::<Option<_>>();
        let wrong = || Invalid::new("a key of the keyring has a wrong length").expected("16 or 32 bytes");
        Ok(Ring(ciphers.ok_or_else(wrong)?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Encrypts with the first key; `None` if there is no key.
    pub fn seal(&self, text: &str) -> Option<String> {
        self.0.first()?.seal(text).ok()
    }

    /// The text encrypted with each of the keys.
    pub fn seals(&self, text: &str) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|cipher| cipher.seal(text).ok())
    }

    /// Decrypts with the first key that fits. `None` if no key fits or the result is not UTF-8, so that a
    /// secret in the clear is practically never mistaken for an encrypted one.
    pub fn open(&self, sealed: &str) -> Option<String> {
        // Rules out most secrets in the clear without decoding.
        if sealed.is_empty() || !sealed.len().is_multiple_of(4) {
            return None;
        }
        let bytes = BASE64_STANDARD.decode(sealed).ok()?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(BLOCK) {
            return None;
        }
        self.0.iter().find_map(|cipher| cipher.open(bytes.clone()))
    }
}

/// Whether a text has the form of an encrypted one, by any key. One of hexadecimal digits alone is a secret in the
/// clear of a common form, and practically never an encrypted one.
pub(super) fn may_be_sealed(text: &str) -> bool {
    text.len().is_multiple_of(4)
        && !text.bytes().all(|byte| byte.is_ascii_hexdigit())
        && BASE64_STANDARD
            .decode(text)
            .is_ok_and(|bytes| !bytes.is_empty() && bytes.len().is_multiple_of(BLOCK))
}

impl Cipher {
    /// `None` if the key has a wrong length.
    fn new(key: &[u8]) -> Option<Cipher> {
        let algorithm = match key.len() {
            16 => &AES_128,
            32 => &AES_256,
            _ => return None,
        };
        let unbound = || UnboundCipherKey::new(algorithm, key);
        Some(Cipher {
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(unbound().ok()?).ok()?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(unbound().ok()?).ok()?,
            iv: *key.first_chunk()?,
        })
    }

    fn seal(&self, text: &str) -> Result<String, Unspecified> {
        let mut bytes = text.as_bytes().to_vec();
        let context = EncryptionContext::Iv128(FixedLength::from(self.iv));
        self.encrypting.less_safe_encrypt(&mut bytes, context)?;
        Ok(BASE64_STANDARD.encode(bytes))
    }

    fn open(&self, mut bytes: Vec<u8>) -> Option<String> {
        let context = DecryptionContext::Iv128(FixedLength::from(self.iv));
        let text = self.decrypting.decrypt(&mut bytes, context).ok()?;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring of {}", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "edd1c9f0985e76a2";
    const NEW: &str = "qeddd145sfvddff3";

    #[test]
    fn seals_are_apisix_s_own() {
        let ring = Ring::new(&[OLD]).unwrap();
        for (text, sealed) in [("bar", "77+NmbYqNfN+oLm0aX5akg=="), ("auth-two", "vU/ZHVJw7b0XscDJ1Fhtig==")]
        {
            assert_eq!(ring.seal(text).as_deref(), Some(sealed));
            assert_eq!(ring.open(sealed).as_deref(), Some(text));
        }
        let ring = Ring::new(&[NEW, OLD]).unwrap();
        assert_eq!(ring.seal("auth-one").as_deref(), Some("4y+JvURBE6ZwRbbgaryrhg=="));
        assert_eq!(ring.seal("the-key").as_deref(), Some("JCX7x1qN5e9kHt0GuJfWpw=="));
        assert_eq!(ring.open("vU/ZHVJw7b0XscDJ1Fhtig==").as_deref(), Some("auth-two"), "by the second key");
        assert_eq!(ring.seals("bar").nth(1).as_deref(), Some("77+NmbYqNfN+oLm0aX5akg=="));
    }

    #[test]
    fn any_text_comes_back() {
        let long = "ä".repeat(10_000);
        for key in [NEW, "qeddd145sfvddff3qeddd145sfvddff3"] {
            let ring = Ring::new(&[key]).unwrap();
            for text in ["", "a", "0123456789abcdef", &long] {
                let sealed = ring.seal(text).unwrap();
                assert_ne!(sealed, text);
                assert_eq!(ring.open(&sealed).as_deref(), Some(text));
            }
        }
    }

    #[test]
    fn what_is_not_sealed_does_not_open() {
        let ring = Ring::new(&[NEW, OLD]).unwrap();
        let other = Ring::new(&["0123456789abcdef"]).unwrap();
        let foreign = other.seal("a secret of another key").unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let random: Vec<String> = (0..2_000)
            .map(|_| BASE64_STANDARD.encode((0..32).map(|_| rng.u8(..)).collect::<Vec<_>>()))
            .collect();
        let clear = ["", "bar", "auth-one", "YWJj", "$env://KEY", "AAAAAAAAAAAAAAAAAAAAAA==", &foreign];
        for text in clear.into_iter().chain(random.iter().map(String::as_str)) {
            assert_eq!(ring.open(text), None, "{text}");
        }
    }

    #[test]
    fn keys_have_a_length_and_are_not_shown() {
        assert!(Ring::new(&["short"]).is_err());
        assert!(Ring::new::<&str>(&[]).unwrap().seal("a").is_none());
        assert_eq!(format!("{:?}", Ring::new(&[OLD]).unwrap()), "Ring of 1");
    }
}
