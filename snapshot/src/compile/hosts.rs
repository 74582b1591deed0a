//! Which host names matter to which resources.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use model::Key;
use sdk::build::Names;

/// Hosts by resource and the other way round.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    by_key: HashMap<Key, BTreeSet<String>>,
    by_host: BTreeMap<String, BTreeSet<Key>>,
    wanted: Arc<BTreeSet<String>>,
    stale: bool,
}

impl Hosts {
    /// The resources that asked for this host.
    pub fn users(&self, host: &str) -> impl Iterator<Item = &Key> {
        self.by_host.get(host).into_iter().flatten()
    }

    /// Replaces the hosts a resource asks for.
    pub fn set(&mut self, key: &Key, hosts: BTreeSet<String>) {
        let before = match hosts.is_empty() {
            true => self.by_key.remove(key),
            false => self.by_key.insert(key.clone(), hosts.clone()),
        };
        let before = before.unwrap_or_default();
        for host in before.difference(&hosts) {
            if let Some(users) = self.by_host.get_mut(host) {
                users.remove(key);
                if users.is_empty() {
                    self.by_host.remove(host);
                    self.stale = true;
                }
            }
        }
        for host in hosts.difference(&before) {
            let users = self.by_host.entry(host.clone()).or_default();
            self.stale |= users.is_empty();
            users.insert(key.clone());
        }
    }

    /// All hosts that are asked for.
    pub fn wanted(&mut self) -> Arc<BTreeSet<String>> {
        if std::mem::take(&mut self.stale) {
            self.wanted = Arc::new(self.by_host.keys().cloned().collect());
        }
        self.wanted.clone()
    }
}

/// Passes questions on and notes the hosts.
pub(super) struct Recorder<'a> {
    names: &'a dyn Names,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Recorder<'a> {
    pub fn new(names: &'a dyn Names) -> Recorder<'a> {
        Recorder { names, asked: RefCell::default() }
    }

    pub fn asked(self) -> BTreeSet<String> {
        self.asked.into_inner()
    }
}

impl Names for Recorder<'_> {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        // Names are the same in any case (RFC 4343).
        let host = host.to_ascii_lowercase();
        let addresses = self.names.addresses(&host);
        self.asked.borrow_mut().insert(host);
        addresses
    }
}
