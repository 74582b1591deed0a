//! Machine code that was compiled before, so that a start does not compile modules again.
//!
//! The compiler looks up the code of each function by a hash of its instructions, the settings and the processor, and
//! uses only code of its own version. Code of a module is stored whole, under the SHA-256 of the module.

use std::borrow::Cow;
use std::collections::BTreeMap;
#[expect(clippy::disallowed_types, reason = "modules are compiled off the workers")]
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use wasmtime::CacheStore;

/// Stores machine code. It runs as it is stored: only the gateway itself may be able to write there.
pub trait CodeStore {
    /// The bytes stored under a name of letters and digits, if there are any.
    fn read(&self, name: &str) -> Option<Vec<u8>>;
    /// Stores bytes, which may fail: then they are compiled again.
    fn write(&self, name: &str, bytes: &[u8]);
}

/// Stores nothing.
impl CodeStore for () {
    fn read(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn write(&self, _: &str, _: &[u8]) {}
}

/// The most bytes of machine code of one module.
pub const MOST_CODE: u64 = 256 << 20;

/// The first bytes of stored code.
const MAGIC: &[u8] = concat!("machine code of sluice ", env!("CARGO_PKG_VERSION"), "\n").as_bytes();

type Functions = BTreeMap<Box<[u8]>, Vec<u8>>;

/// The code of the module that is being compiled.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "see above")]
pub(super) struct Compiled {
    state: Mutex<State>,
    /// Held while a module is compiled.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// As it was stored.
    stored: Functions,
    /// The functions that the module has.
    used: Functions,
    /// Bytes of `used`.
    bytes: u64,
    /// Functions were compiled.
    is_new: bool,
}

impl Compiled {
    /// Compiles a module with the code that is stored for it, and stores what was compiled.
    pub(super) fn with<T, E>(
        &self,
        module: &[u8],
        store: &dyn CodeStore,
        compile: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut name = [0; 2 * SHA256_OUTPUT_LEN];
        sdk::trace::hex(digest(&SHA256, module).as_ref(), &mut name);
        let name = String::from_utf8_lossy(&name);
        let stored = store.read(&name).and_then(|bytes| decode(&bytes)).unwrap_or_default();
        *self.lock() = State { stored, ..State::default() };
        let compiled = compile();
        let State { used, is_new, .. } = std::mem::take(&mut *self.lock());
        if compiled.is_ok() && is_new {
            store.write(&name, &encode(&used));
        }
        compiled
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, key: Box<[u8]>, value: Vec<u8>) -> bool {
        let size = (key.len() + value.len()) as u64;
        let fits = size <= MOST_CODE - self.bytes;
        if fits && self.used.insert(key, value).is_none() {
            self.bytes += size;
        }
        fits
    }
}

impl CacheStore for Compiled {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let mut state = self.lock();
        if let Some((key, value)) = state.stored.remove_entry(key) {
            state.keep(key, value);
        }
        state.used.get(key).map(|value| Cow::Owned(value.clone()))
    }

    fn insert(&self, key: &[u8], value: Vec<u8>) -> bool {
        let mut state = self.lock();
        let is_kept = state.keep(key.into(), value);
        state.is_new |= is_kept;
        is_kept
    }
}

/// The functions, each with the lengths of its parts before it, between [`MAGIC`] and the SHA-256 of all before it.
fn encode(functions: &Functions) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (key, value) in functions {
        for part in [&key[..], value] {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(part);
        }
    }
    let sum = digest(&SHA256, &out);
    out.extend_from_slice(sum.as_ref());
    out
}

/// `None` if the bytes are not whole, or of another version.
fn decode(bytes: &[u8]) -> Option<Functions> {
    let (content, sum) = bytes.split_at_checked(bytes.len().checked_sub(SHA256_OUTPUT_LEN)?)?;
    let mut rest = content.strip_prefix(MAGIC)?;
    if digest(&SHA256, content).as_ref() != sum {
        return None;
    }
    let mut functions = Functions::new();
    let mut part = || {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (part, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        Some(part)
    };
    while let Some(key) = part() {
        functions.insert(key.into(), part()?.into());
    }
    Some(functions)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Stores in memory; counts reads that found something, and writes.
    #[derive(Default)]
    struct Memory {
        stored: RefCell<BTreeMap<String, Vec<u8>>>,
        found: RefCell<usize>,
        written: RefCell<usize>,
    }

    impl CodeStore for Memory {
        fn read(&self, name: &str) -> Option<Vec<u8>> {
            let found = self.stored.borrow().get(name).cloned();
            *self.found.borrow_mut() += usize::from(found.is_some());
            found
        }

        fn write(&self, name: &str, bytes: &[u8]) {
            *self.written.borrow_mut() += 1;
            self.stored.borrow_mut().insert(name.to_owned(), bytes.to_vec());
        }
    }

    /// A module whose function returns a number.
    fn module(number: u8) -> Vec<u8> {
        let mut bytes = b"\0asm\x01\0\0\0".to_vec();
        bytes.extend([1, 5, 1, 0x60, 0, 1, 0x7f]);
        bytes.extend([3, 2, 1, 0]);
        bytes.extend([7, 5, 1, 1, b'f', 0, 0]);
        bytes.extend([10, 6, 1, 4, 0, 0x41, number, 0x0b]);
        bytes
    }

    /// The number that the function returns when a new engine compiles the module.
    fn returned(number: u8, store: &Memory) -> i32 {
        let compiled = std::sync::Arc::new(Compiled::default());
        let mut config = wasmtime::Config::new();
        config.enable_incremental_compilation(compiled.clone()).unwrap();
        let engine = wasmtime::Engine::new(&config).unwrap();
        let bytes = module(number);
        let module = compiled.with(&bytes, store, || wasmtime::Module::from_binary(&engine, &bytes)).unwrap();
        let mut store = wasmtime::Store::new(&engine, ());
        let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
        instance.get_typed_func::<(), i32>(&mut store, "f").unwrap().call(&mut store, ()).unwrap()
    }

    #[test]
    fn code_that_is_stored_is_not_compiled_again() {
        let store = Memory::default();
        assert_eq!((returned(1, &store), *store.found.borrow(), *store.written.borrow()), (1, 0, 1));
        assert_eq!((returned(1, &store), *store.found.borrow(), *store.written.borrow()), (1, 1, 1));
        assert_eq!((returned(2, &store), *store.found.borrow(), *store.written.borrow()), (2, 1, 2));
    }

    #[test]
    fn code_that_was_damaged_is_compiled_again() {
        let store = Memory::default();
        returned(1, &store);
        let (name, whole) = store.stored.borrow().clone().pop_first().unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let damaged =
            [vec![], whole[..whole.len() - 1].to_vec(), flipped(0), flipped(40), flipped(whole.len() - 1)];
        for (times, bytes) in damaged.into_iter().enumerate() {
            store.stored.borrow_mut().insert(name.clone(), bytes);
            assert_eq!((returned(1, &store), *store.written.borrow()), (1, times + 2));
            assert_eq!(store.stored.borrow()[&name], whole);
        }
    }

    #[test]
    fn functions_that_the_module_no_longer_has_are_not_kept() {
        let compiled = Compiled::default();
        let store = Memory::default();
        let with = |inserted: &[u8], asked: &[u8]| {
            compiled.with::<_, ()>(b"a", &store, || {
                compiled.insert(inserted, vec![7]);
                Ok(compiled.get(asked).is_some())
            })
        };
        assert_eq!(with(b"one", b"two"), Ok(false));
        assert_eq!(with(b"two", b"three"), Ok(false));
        assert_eq!(with(b"four", b"one"), Ok(false), "it was not asked for");
        assert_eq!(with(b"five", b"four"), Ok(true));
        assert!(decode(&encode(&Functions::new())).is_some_and(|functions| functions.is_empty()));
    }
}
