//! Passwords as files of htpasswd store them: SHA-1 (RFC 2307), MD5 in a thousand rounds, as Apache's and the crypt of
//! Unix have it, SHA-2 in rounds (the crypt of glibc), and bcrypt. Those of SHA-1 and MD5 are weak by the standards of
//! today; the others take milliseconds by design and run on background threads.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY as SHA1, SHA1_OUTPUT_LEN, digest};
use base64::Engine;
use base64::alphabet::BCRYPT;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use md5::{Digest, Md5};
use sha_crypt::{Params, sha256_crypt, sha512_crypt};

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
    Sha256 {
        rounds: Params,
        salt: String,
        hash: [u8; 43],
    },
    Sha512 {
        rounds: Params,
        salt: String,
        hash: [u8; 86],
    },
    Bcrypt {
        cost: u32,
        salt: [u8; 16],
        /// The digest but its last byte, which no implementation stores.
        hash: [u8; 23],
    },
}

/// Rounds of SHA-2 and the cost of bcrypt at most: a password takes about a quarter of a second with them.
const MOST_ROUNDS: u32 = 200_000;
const HIGHEST_COST: u32 = 12;

/// The longest password that bcrypt looks at, with the zero byte that ends it.
const BCRYPT_LONGEST: usize = 72;

impl Hash {
    /// Reads `{SHA}…`, `{SSHA}…`, `$apr1$SALT$…`, `$1$SALT$…`, `$5$[rounds=N$]SALT$…`, `$6$…` or `$2y$COST$…`.
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
        if let Some(rest) = text.strip_prefix("$5$") {
            let (rounds, salt, hash) = rounds_salt_hash(rest)?;
            return Some(Hash::Sha256 { rounds, salt, hash: hash.try_into().ok()? });
        }
        if let Some(rest) = text.strip_prefix("$6$") {
            let (rounds, salt, hash) = rounds_salt_hash(rest)?;
            return Some(Hash::Sha512 { rounds, salt, hash: hash.try_into().ok()? });
        }
        ["$2y$", "$2b$", "$2a$"].iter().find_map(|start| bcrypt(text.strip_prefix(start)?))
    }

    /// Whether comparing takes more than a millisecond.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self, Hash::Sha256 { .. } | Hash::Sha512 { .. } | Hash::Bcrypt { .. })
    }

    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        match self {
            Hash::Sha1 { hash, salt } => {
                let text = [password, salt].concat();
                auth::same(hash, digest(&SHA1, &text).as_ref())
            }
            Hash::Md5 { magic, salt, hash } => auth::same(hash, &md5_crypt(password, magic, salt)),
            Hash::Sha256 { rounds, salt, hash } => auth::same(
                hash,
                &letters::<43>(&sha256_crypt(password, salt.as_bytes(), *rounds), SHA256_ORDER),
            ),
            Hash::Sha512 { rounds, salt, hash } => auth::same(
                hash,
                &letters::<86>(&sha512_crypt(password, salt.as_bytes(), *rounds), SHA512_ORDER),
            ),
            Hash::Bcrypt { cost, salt, hash } => {
                // A zero byte ends the password, in C as here; one within it would end it early.
                if password.contains(&0) {
                    return false;
                }
                let mut ended = [password, &[0]].concat();
                ended.truncate(BCRYPT_LONGEST);
                auth::same(hash, &bcrypt::bcrypt(*cost, *salt, &ended)[..hash.len()])
            }
        }
    }
}

/// Reads the rest of a hash of SHA-2: `[rounds=N$]SALT$HASH`.
fn rounds_salt_hash(text: &str) -> Option<(Params, String, &[u8])> {
    let (rounds, rest) = match text.strip_prefix("rounds=") {
        None => (Params::RECOMMENDED_ROUNDS, text),
        Some(rest) => {
            let (rounds, rest) = rest.split_once('$')?;
            (rounds.parse().ok()?, rest)
        }
    };
    let (salt, hash) = rest.split_once('$')?;
    if rounds > MOST_ROUNDS || salt.len() > 16 || !hash.bytes().all(|byte| LETTERS.contains(&byte)) {
        return None;
    }
    Some((Params::new(rounds).ok()?, salt.to_owned(), hash.as_bytes()))
}

/// Reads the rest of a hash of bcrypt: `COST$`, 22 letters of salt, 31 of the digest.
fn bcrypt(text: &str) -> Option<Hash> {
    const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    const ENGINE: GeneralPurpose = GeneralPurpose::new(&BCRYPT, LENIENT);
    let (cost, rest) = text.split_once('$')?;
    let is_cost = cost.len() == 2 && cost.bytes().all(|byte| byte.is_ascii_digit());
    let cost = cost.parse().ok().filter(|cost| is_cost && (4..=HIGHEST_COST).contains(cost))?;
    let (salt, hash) = rest.split_at_checked(22)?;
    let salt = ENGINE.decode(salt).ok()?.try_into().ok()?;
    let hash = ENGINE.decode(hash).ok()?.try_into().ok()?;
    Some(Hash::Bcrypt { cost, salt, hash })
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
    letters(&hash, MD5_ORDER)
}

/// The digits of crypt, from 0 to 63.
const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// In which order crypt writes the bytes of a digest: three at a time, the last ones alone.
type Order = &'static [&'static [usize]];

const MD5_ORDER: Order = &[&[0, 6, 12], &[1, 7, 13], &[2, 8, 14], &[3, 9, 15], &[4, 10, 5], &[11]];

#[rustfmt::skip]
const SHA256_ORDER: Order = &[
    &[0, 10, 20], &[21, 1, 11], &[12, 22, 2], &[3, 13, 23], &[24, 4, 14], &[15, 25, 5],
    &[6, 16, 26], &[27, 7, 17], &[18, 28, 8], &[9, 19, 29], &[31, 30],
];

#[rustfmt::skip]
const SHA512_ORDER: Order = &[
    &[0, 21, 42], &[22, 43, 1], &[44, 2, 23], &[3, 24, 45], &[25, 46, 4], &[47, 5, 26], &[6, 27, 48],
    &[28, 49, 7], &[50, 8, 29], &[9, 30, 51], &[31, 52, 10], &[53, 11, 32], &[12, 33, 54], &[34, 55, 13],
    &[56, 14, 35], &[15, 36, 57], &[37, 58, 16], &[59, 17, 38], &[18, 39, 60], &[40, 61, 19], &[62, 20, 41], &[63],
];

/// The digest as crypt writes it: six bits a letter, the lowest first. `N` is the number of letters.
fn letters<const N: usize>(digest: &[u8], order: Order) -> [u8; N] {
    let mut out = [0; N];
    let mut places = out.iter_mut();
    for group in order {
        let mut bits = group.iter().fold(0, |bits, &at| bits << 8 | u32::from(digest[at]));
        for letter in places.by_ref().take(group.len() + 1) {
            *letter = LETTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `openssl passwd`, `htpasswd`, the crypt of Debian, and the definition of SSHA.
    const KNOWN: [(&str, &str); 19] = [
        ("password", "$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0"),
        ("password", "$1$ab$oKsM6dtDD2L1bKowOBX.7."),
        ("", "$apr1$xxxxxxxx$AL/DOdqyMUurcg0cPNW/P1"),
        ("a", "$1$ab$NM4FR4Dl/CzoTSJTd3YJ3."),
        ("aVeryLongPasswordOfMoreThanSixteenBytes", "$apr1$xxxxxxxx$D99ExJYDzgSt99VDnUVPD."),
        ("aVeryLongPasswordOfMoreThanSixteenBytes", "$1$ab$u5PD843JZRoEnB3VeANnv."),
        ("password", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g="),
        ("password", "{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0"),
        ("password", "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5"),
        ("", "$5$rounds=1000$abcdefghijklmnop$XPI9divaDz2UXR4L48noVEQhGh1MV.xPSC/a9G2Nit7"),
        (
            "aVeryLongPasswordOfMoreThanSixteenBytes",
            "$5$rounds=1000$abcdefghijklmnop$NQtbbicFZr5q/l.jgJXzZI5IB294CBB5EjSZBGG9lhB",
        ),
        (
            "password",
            "$6$ab$WfYjcVtm04.lEYV07CdYGA5G9xet7/eU/m3ApNyi7sD.pE7qFDG1ek7dRQpI2KCf9ESl1WoIH04x.DMDvmIed1",
        ),
        (
            "",
            "$6$rounds=1234$x$etR/edFdZLRgu2BZqh87KX3jghNKa7l4t.Isy2FIF9CEt3b7TyFTvO5wZK09YzoHL8.7VYL7I4rczLX3RMb4a0",
        ),
        (
            "aVeryLongPasswordOfMoreThanSixteenBytes",
            "$6$rounds=1234$x$QCazQrXjJk9ADvQUVRQFm7JOl/2GMoiq/nef/KjNzYc622r4Ex/ASBl5zrJI0psgQ7IluG0v0xFVLGGlgC.TY/",
        ),
        ("password", "$2y$04$YFSBCOSfNgjJaArvoXjN2.lKoVp5mC8H8mFpUr5FXGvJpE4q8cK2m"),
        ("", "$2b$04$abcdefghijklmnopqrstuubyCG3zY1GIXMyxfivm.ClDiInHzxjiq"),
        (
            "aVeryLongPasswordOfMoreThanSixteenBytes",
            "$2y$04$rD8VChcJeezi6sB5BBSQXeJZzREh/IeFoGwKgyLT11/XEvdzZjbKC",
        ),
        ("password", "$2a$04$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm"),
        // Of 80 bytes, of which bcrypt looks at 72.
        (
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "$2y$04$z8ZhG8B0f/IzMrjOEs3eiOuTbasT.H1U3M.jpyelgyrCcFqJGxaCG",
        ),
    ];

    #[test]
    fn hashes_are_those_of_other_programs() {
        for (password, text) in KNOWN {
            let hash = Hash::parse(text).unwrap();
            assert!(hash.is_of(password.as_bytes()), "{text}");
            assert_eq!(
                hash.is_slow(),
                ["$2", "$5", "$6"].iter().any(|start| text.starts_with(start)),
                "{text}"
            );
            for other in [
                "passwore",
                "Password",
                "aVeryLongPasswordOfMoreThanSixteenByteS",
                "b",
                "password\n",
                "password\0",
                "\0",
            ] {
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
            // A digit too few, a cost too low, too high, and of three digits; a letter outside of the alphabet.
            "$2y$05$abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVABCDEFGHIJ",
            "$2y$03$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2y$13$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2y$004$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2y$+4$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2y$04$abcdefghijklmnopqrst-ughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2y$04$abcdefghijklmnopqrstéughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$2x$04$abcdefghijklmnopqrstuughE8Ev8uGFaUgY2cNEySvxngrb/Jzdm",
            "$5$",
            "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ",
            "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4-dQ5",
            "$5$aSaltOfSeventeen_$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
            "$5$rounds=999$a$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
            "$5$rounds=200001$a$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
            "$5$rounds=5000",
            "$6$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
            "rl.3StKT.4T8M",
        ] {
            assert!(Hash::parse(text).is_none(), "{text}");
        }
    }
}
