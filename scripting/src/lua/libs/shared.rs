//! `ngx.shared`: dictionaries that all workers share.

mod api;
mod dictionary;
mod entries;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use api::add;
pub use api::share;
use dictionary::Dictionary;

/// The shared dictionaries of the gateway, by name. One is made for all workers and lives as long as they do.
#[derive(Debug, Default)]
pub struct Dictionaries(BTreeMap<String, Arc<Dictionary>>);

impl Dictionaries {
    /// Makes dictionaries of the given names and capacities in bytes.
    pub fn new<N: Into<String>>(sizes: impl IntoIterator<Item = (N, usize)>) -> Dictionaries {
        let made = sizes.into_iter().map(|(name, size)| (name.into(), Arc::new(Dictionary::new(size))));
        Dictionaries(made.collect())
    }
}

/// Reads a size such as `10m`, `64k` or `1048576`, as `lua_shared_dict` has it.
pub fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 1 << 10),
        b'm' => (&text[..text.len() - 1], 1 << 20),
        b'g' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.trim().parse::<usize>().ok()?.checked_mul(unit)
}
