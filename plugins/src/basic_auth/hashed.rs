//! Passwords as files of htpasswd store them: SHA-1 (RFC 2307), and MD5 in a thousand rounds, as Apache's and the
//! crypt of Unix have it. These hashes are weak by the standards of today.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY as SHA1, SHA1_OUTPUT_LEN, digest};
use md5::{Digest, Md5};

use crate::auth;

/// The longest password that is hashed: its rounds take well below a millisecond.
pub(super) const LONGEST: usize = 96;

/// The hash of a password.
pub(super) enum Hash {
    /// Of the password and the salt.
    Sha1 {
        hash: [u8; SHA1_OUTPUT_LEN],
        salt: Vec<u8>,
    },
    Md5 {
        magic: &'static str,
        salt: String,
        hash: [u8; 22],
    },
}

impl Hash {
    /// Reads `{SHA}…`, `{SSHA}…`, `$apr1$SALT$…` or `$1$SALT$…`.
    pub(super) fn parse(text: &str) -> Option<Hash> {
        for (start, is_salted) in [("{SHA}", false), ("{SSHA}", true)] {
            let Some(rest) = text.strip_prefix(start) else { continue };
            let bytes = auth::base64(rest.as_bytes())?;
            let (hash, salt) = bytes.split_first_chunk()?;
            return (salt.is_empty() != is_salted).then(|| Hash::Sha1 { hash: *hash, salt: salt.to_vec() });
        }
        for magic in ["$apr1$", "$1$"] {
            let Some(rest) = text.strip_prefix(magic) else { continue };
            let (salt, hash) = rest.split_once('$')?;
            let hash = hash.as_bytes().try_into().ok()?;
            return (salt.len() <= 8).then(|| Hash::Md5 { magic, salt: salt.to_owned(), hash });
        }
        None
    }

    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Sha1 { hash, salt } => {
                let text = [password, salt].concat();
                auth::same(hash, digest(&SHA1, &text).as_ref())
            }
            Hash::Md5 { magic, salt, hash } => auth::same(hash, &md5_crypt(password, magic, salt)),
        }
    }
}

/// The hash of MD5 in a thousand rounds, in the letters of crypt.
fn md5_crypt(password: &[u8], magic: &str, salt: &str) -> [u8; 22] {
    let salt = salt.as_bytes();
    let both: [u8; 16] =
        Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize().into();
    let mut first = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    let mut left = password.len();
    while left > 0 {
        let part = left.min(both.len());
        first.update(&both[..part]);
        left -= part;
    }
    let mut bits = password.len();
    while bits > 0 {
        // By the published algorithm, odd bits count as a zero byte.
        first.update(if bits & 1 == 1 { &[0] } else { &password[..1] });
        bits >>= 1;
    }
    let mut hash: [u8; 16] = first.finalize().into();
    for round in 0..1000 {
        let mut next = Md5::new();
        let is_odd = round % 2 == 1;
        next.update(if is_odd { password } else { &hash });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if is_odd { &hash[..] } else { password });
        hash = next.finalize().into();
    }
    letters(&hash)
}

/// The bytes as crypt writes them: three at a time in its own order, six bits a letter, the lowest first.
fn letters(hash: &[u8; 16]) -> [u8; 22] {
    const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
    let mut out = [0; 22];
    let (groups, last) = out.split_at_mut(20);
    let write = |mut bits: u32, out: &mut [u8]| {
        for letter in out {
            *letter = LETTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    };
    for (group, places) in groups.chunks_exact_mut(4).zip(ORDER) {
        let [high, middle, low] = places.map(|at| u32::from(hash[at]));
        write(high << 16 | middle << 8 | low, group);
    }
    write(u32::from(hash[11]), last);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl passwd` and the definition of SSHA.
    const KNOWN: [(&str, &str); 8] = [
        ("password", "$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0"),
        ("password", "$1$ab$oKsM6dtDD2L1bKowOBX.7."),
        ("", "$apr1$xxxxxxxx$AL/DOdqyMUurcg0cPNW/P1"),
        ("a", "$1$ab$NM4FR4Dl/CzoTSJTd3YJ3."),
        ("aVeryLongPasswordOfMoreThanSixteenBytes", "$apr1$xxxxxxxx$D99ExJYDzgSt99VDnUVPD."),
        ("aVeryLongPasswordOfMoreThanSixteenBytes", "$1$ab$u5PD843JZRoEnB3VeANnv."),
        ("password", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="),
        ("password", "{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0"),
    ];

    #[test]
    fn hashes_are_those_of_other_programs() {
        for (password, text) in KNOWN {
            let hash = Hash::parse(text).unwrap();
            assert!(hash.is_of(password.as_bytes()), "{text}");
            for other in
                ["passwore", "Password", "aVeryLongPasswordOfMoreThanSixteenByteS", "b", "password\n"]
            {
                assert!(!hash.is_of(other.as_bytes()), "{text}: {other}");
            }
        }
    }

    #[test]
    fn other_texts_are_no_hashes() {
        for text in [
            "",
            "password",
            "{PLAIN}password",
            "{SHA}",
            "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9",
            "{SHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0",
            "{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
            "$apr1$xxxxxxxx",
            "$apr1$xxxxxxxxx$dxHfLAsjHkDRmG83UXe8K0",
            "$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K",
            "$2y$05$abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVABCDEFGHIJ",
        ] {
            assert!(Hash::parse(text).is_none(), "{text}");
        }
    }
}
