//! Digests and HMAC, whole or piece by piece.

use md5::Md5;
use mlua::{Error, Lua, LuaString, Result, Table, UserData, UserDataMethods};
use sha1::Sha1;
use sha2::digest::{Digest, DynDigest};
use sha2::{Sha224, Sha256, Sha384, Sha512};

use super::super::small;
use super::call::function;

/// A digest algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    /// Finds an algorithm by its name in OpenSSL; the case and a dash do not matter.
    pub(super) fn named(name: &str) -> Option<Algorithm> {
        match name.replace('-', "").to_ascii_lowercase().as_str() {
            "md5" => Some(Algorithm::Md5),
            "sha1" => Some(Algorithm::Sha1),
            "sha224" => Some(Algorithm::Sha224),
            "sha256" => Some(Algorithm::Sha256),
            "sha384" => Some(Algorithm::Sha384),
            "sha512" => Some(Algorithm::Sha512),
            _ => None,
        }
    }

    fn start(self) -> Box<dyn DynDigest> {
        match self {
            Algorithm::Md5 => Box::new(Md5::new()),
            Algorithm::Sha1 => Box::new(Sha1::new()),
            Algorithm::Sha224 => Box::new(Sha224::new()),
            Algorithm::Sha256 => Box::new(Sha256::new()),
            Algorithm::Sha384 => Box::new(Sha384::new()),
            Algorithm::Sha512 => Box::new(Sha512::new()),
        }
    }

    fn block(self) -> usize {
        match self {
            Algorithm::Sha384 | Algorithm::Sha512 => 128,
            _ => 64,
        }
    }

    pub(super) fn digest(self, text: &[u8]) -> Vec<u8> {
        let mut digest = self.start();
        digest.update(text);
        digest.finalize().into()
    }

    pub(super) fn hmac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        let mut running = Running::keyed(self, key);
        running.digest.update(text);
        running.finish()
    }
}

/// A digest that takes its text piece by piece; with a key it is an HMAC (RFC 2104).
struct Running {
    algorithm: Algorithm,
    digest: Box<dyn DynDigest>,
    /// The key, as long as a block.
    key: Option<Vec<u8>>,
}

impl Running {
    fn plain(algorithm: Algorithm) -> Running {
        Running { algorithm, digest: algorithm.start(), key: None }
    }

    fn keyed(algorithm: Algorithm, key: &[u8]) -> Running {
        let mut block = if key.len() > algorithm.block() { algorithm.digest(key) } else { key.to_vec() };
        block.resize(algorithm.block(), 0);
        let mut running = Running { algorithm, digest: algorithm.start(), key: Some(block) };
        running.reset();
        running
    }

    fn reset(&mut self) {
        self.digest = self.algorithm.start();
        if let Some(key) = &self.key {
            self.digest.update(&xored(key, 0x36));
        }
    }

    /// Returns the digest and starts again.
    fn finish(&mut self) -> Vec<u8> {
        let mut done = std::mem::replace(&mut self.digest, self.algorithm.start()).finalize();
        if let Some(key) = &self.key {
            let mut outer = self.algorithm.start();
            outer.update(&xored(key, 0x5c));
            outer.update(&done);
            done = outer.finalize();
        }
        self.reset();
        done.into()
    }
}

impl UserData for Running {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method_mut("update", |_, running, text: LuaString| {
            running.digest.update(&text.as_bytes());
            Ok(true)
        });
        methods.add_method_mut("final", |lua, running, ()| small::string(lua, running.finish()));
        methods.add_method_mut("reset", |_, running, ()| {
            running.reset();
            Ok(true)
        });
    }
}

fn xored(key: &[u8], pad: u8) -> Vec<u8> {
    key.iter().map(|byte| byte ^ pad).collect()
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|n| char::from_digit(n.into(), 16))
        .collect()
}

fn algorithm(name: &str) -> Result<Algorithm> {
    Algorithm::named(name).ok_or_else(|| Error::runtime(format!("invalid digest type \"{name}\"")))
}

/// The longest random text at once.
const LONGEST_RANDOM: usize = 1 << 20;

/// The native group: digests, HMAC and random bytes.
pub(super) fn add_native(lua: &Lua, group: &Table) -> Result<()> {
    group.raw_set(
        "new",
        function(lua, "new", |_, (name, key): (String, Option<LuaString>)| {
            let algorithm = algorithm(&name)?;
            Ok(match key {
                Some(key) => Running::keyed(algorithm, &key.as_bytes()),
                None => Running::plain(algorithm),
            })
        })?,
    )?;
    group.raw_set(
        "digest",
        function(lua, "digest", |lua, (name, text): (String, LuaString)| {
            small::string(lua, algorithm(&name)?.digest(&text.as_bytes()))
        })?,
    )?;
    group.raw_set(
        "hmac",
        function(lua, "hmac", |lua, (name, key, text): (String, LuaString, LuaString)| {
            small::string(lua, algorithm(&name)?.hmac(&key.as_bytes(), &text.as_bytes()))
        })?,
    )?;
    group.raw_set(
        "random",
        function(lua, "random", |lua, length: f64| {
            if !(0.0..=LONGEST_RANDOM as f64).contains(&length) {
                return Err(Error::runtime(format!("length is not 0 to {LONGEST_RANDOM}")));
            }
            let mut bytes = vec![0; length as usize];
            aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::runtime("no random bytes available"))?;
            small::string(lua, bytes)
        })?,
    )?;
    // Compares secrets in constant time.
    group.raw_set(
        "equal",
        function(lua, "equal", |_, (one, two): (LuaString, LuaString)| {
            Ok(aws_lc_rs::constant_time::verify_slices_are_equal(&one.as_bytes(), &two.as_bytes()).is_ok())
        })?,
    )
}
