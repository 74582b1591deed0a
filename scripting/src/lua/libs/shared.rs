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
