//! Which resources need the addresses of which host names.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use model::Key;
use sdk::build::Names;
use smallvec::SmallVec;

use super::chosen::RequestedUpstreams;
use super::memo::Memo;

/// The parts of a resource that depend on resolved addresses; rebuilt alone when only addresses change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Plugins,
    Upstream,
}

/// Host names by resource, and resources by host name.
#[derive(Debug, Default)]
pub(super) struct WantedHosts {
    /// The hosts of its plugins and of its upstream.
    by_key: HashMap<Key, [BTreeSet<String>; 2]>,
    by_host: BTreeMap<String, BTreeSet<(Key, Part)>>,
    wanted: Memo<BTreeSet<String>>,
}

impl WantedHosts {
    /// The resources that need this host.
    pub fn users(&self, host: &str) -> impl Iterator<Item = &(Key, Part)> {
        self.by_host.get(host).into_iter().flatten()
    }

    /// Replaces the hosts that a part of a resource needs.
    pub fn set(&mut self, key: &Key, part: Part, hosts: BTreeSet<String>) {
        if hosts.is_empty() && !self.by_key.contains_key(key) {
            return;
        }
        let user = (key.clone(), part);
        let parts = self.by_key.entry(key.clone()).or_default();
        let before = std::mem::replace(&mut parts[part as usize], hosts);
        let now = &parts[part as usize];
        for host in before.difference(now) {
            if let Some(users) = self.by_host.get_mut(host) {
                users.remove(&user);
                if users.is_empty() {
                    self.by_host.remove(host);
                    self.wanted.reset();
                }
            }
        }
        for host in now.difference(&before) {
            let users = self.by_host.entry(host.clone()).or_default();
            if users.is_empty() {
                self.wanted.reset();
            }
            users.insert(user.clone());
        }
        if parts.iter().all(BTreeSet::is_empty) {
            self.by_key.remove(key);
        }
    }

    /// Removes a resource that no longer needs any host.
    pub fn forget(&mut self, key: &Key) {
        for part in [Part::Plugins, Part::Upstream] {
            self.set(key, part, BTreeSet::new());
        }
    }

    /// All hosts that are needed.
    pub fn wanted(&mut self) -> Arc<BTreeSet<String>> {
        self.wanted.get(|| Arc::new(self.by_host.keys().cloned().collect()))
    }
}

/// Forwards look-ups and records the hosts, the upstreams that plugins request, and the plugins
/// that read their metadata.
pub(super) struct Recorder<'a> {
    names: &'a dyn Names,
    hosts: RefCell<BTreeSet<String>>,
    pub chosen: RefCell<RequestedUpstreams>,
    pub read: RefCell<SmallVec<[&'static str; 4]>>,
}

impl<'a> Recorder<'a> {
    pub fn new(names: &'a dyn Names) -> Recorder<'a> {
        Recorder { names, hosts: RefCell::default(), chosen: RefCell::default(), read: RefCell::default() }
    }

    pub fn into_hosts(self) -> BTreeSet<String> {
        self.hosts.into_inner()
    }
}

impl Names for Recorder<'_> {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        // Names are case-insensitive (RFC 4343).
        let host = host.to_ascii_lowercase();
        let addresses = self.names.addresses(&host);
        self.hosts.borrow_mut().insert(host);
        addresses
    }

    fn nodes(&self, discovery: &model::upstream::Discovery) -> Vec<model::Node> {
        self.hosts.borrow_mut().insert(discovery.key());
        self.names.nodes(discovery)
    }

    // References to secrets are read from the resources themselves.
    fn secret(&self, reference: &str) -> Result<String, String> {
        self.names.secret(reference)
    }
}
