//! Shares equal parts of upstreams, so that each is stored once.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use hashbrown::DefaultHashBuilder;

use crate::upstream::{Servers, Settings};

/// Recently used parts of upstreams.
#[derive(Debug, Default)]
pub(super) struct Interner {
    /// The most recent first.
    settings: Vec<Arc<Settings>>,
    /// By the hash of the servers' addresses; empty until there are some.
    servers: Vec<[Weak<Servers>; WAYS]>,
    hasher: DefaultHashBuilder,
}

/// Most configurations use a handful of different settings; any others are not shared.
const KEPT: usize = 16;

/// The number of known server lists is `SETS * WAYS`; beyond it, some are stored more than once.
const SETS: usize = 512;
const WAYS: usize = 4;

impl Interner {
    /// Replaces servers and their settings by equal ones of another upstream, if known.
    pub fn share(&mut self, servers: &mut Arc<Servers>) {
        // Shared servers need nothing.
        if let Some(own) = Arc::get_mut(servers) {
            self.share_settings(&mut own.settings);
        }
        if self.servers.is_empty() {
            self.servers.resize_with(SETS, Default::default);
        }
        let at = self.hash(servers) as usize % SETS;
        let set = &mut self.servers[at];
        for (way, known) in set.iter().enumerate() {
            let Some(known) = known.upgrade() else { continue };
            if Arc::ptr_eq(&known, servers) {
                return;
            }
            if *known == **servers {
                *servers = known;
                set[..=way].rotate_right(1);
                return;
            }
        }
        set.rotate_right(1);
        set[0] = Arc::downgrade(servers);
    }

    fn share_settings(&mut self, settings: &mut Arc<Settings>) {
        match self.settings.iter().position(|known| **known == **settings) {
            Some(at) => {
                self.settings[..=at].rotate_right(1);
                *settings = self.settings[0].clone();
            }
            None => {
                self.settings.truncate(KEPT - 1);
                self.settings.insert(0, settings.clone());
            }
        }
    }

    fn hash(&self, servers: &Servers) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for endpoint in &servers.endpoints {
            (endpoint.addr, endpoint.weight).hash(&mut hasher);
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Endpoint, Policy, Upstream};

    fn upstream(port: u16, retries: u32) -> Upstream {
        let addr = ([127, 0, 0, 1], port).into();
        let endpoint = Endpoint { addr, authority: format!("a:{port}").into(), weight: 1, priority: 0 };
        let mut upstream = Upstream::new("1", 0, vec![endpoint], Policy::RoundRobin);
        upstream.settings_mut().retries = retries;
        upstream
    }

    #[test]
    fn equal_settings_are_shared_and_the_cache_is_bounded() {
        let mut interner = Interner::default();
        let mut kept = Vec::new();
        let mut shared = |retries: u32| {
            let mut upstream = upstream(retries as u16, retries);
            interner.share(&mut upstream.servers);
            assert_eq!(upstream.retries, retries);
            kept.push(upstream.clone());
            upstream.settings.clone()
        };
        let (one, two) = (shared(1), shared(2));
        assert!(Arc::ptr_eq(&one, &shared(1)) && Arc::ptr_eq(&two, &shared(2)));
        for other in 10..10 + KEPT as u32 {
            shared(other);
            assert!(Arc::ptr_eq(&one, &shared(1)), "what is in use stays");
        }
        assert_eq!(interner.settings.len(), KEPT);
    }

    #[test]
    fn equal_servers_are_shared_while_in_use() {
        let mut interner = Interner::default();
        let mut shared = |port: u16, retries: u32| {
            let mut upstream = upstream(port, retries);
            let made = upstream.clone();
            interner.share(&mut upstream.servers);
            assert_eq!(upstream, made);
            upstream.servers
        };
        let one = shared(1, 1);
        assert!(Arc::ptr_eq(&one, &shared(1, 1)));
        for other in [shared(2, 1), shared(1, 2)] {
            assert!(!Arc::ptr_eq(&one, &other));
        }
        assert!(Arc::ptr_eq(&one, &shared(1, 1)));
        let gone = Arc::downgrade(&one);
        drop(one);
        assert!(gone.upgrade().is_none(), "the cache does not keep servers alive");
        // More lists than the cache holds.
        let all: Vec<_> = (0..10_000).map(|port| shared(port, 1)).collect();
        assert!(all.iter().enumerate().all(|(port, own)| usize::from(own.endpoints[0].addr.port()) == port));
        assert_eq!(interner.servers.len(), SETS);
    }
}
