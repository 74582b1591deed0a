//! What many upstreams have alike, kept once.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use hashbrown::DefaultHashBuilder;

use crate::upstream::{Servers, Settings};

/// What upstreams were given last.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// The latest first.
    settings: Vec<Arc<Settings>>,
    /// By the hash of the servers' addresses; nothing until there are some.
    servers: Vec<[Weak<Servers>; WAYS]>,
    hasher: DefaultHashBuilder,
}

/// Most sites write a handful of kinds of upstreams; one that differs from all of these keeps its own.
const KEPT: usize = 16;

/// Lists of servers that are known: `SETS * WAYS`. Of more, some are kept more than once.
const SETS: usize = 512;
const WAYS: usize = 4;

impl Alike {
    /// Replaces servers and their settings by the same ones of another upstream, if there are such.
    pub fn share(&mut self, servers: &mut Arc<Servers>) {
        // Whoever has them already needs nothing.
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
    fn the_same_settings_are_shared_and_what_is_kept_is_bounded() {
        let mut alike = Alike::default();
        let mut kept = Vec::new();
        let mut shared = |retries: u32| {
            let mut upstream = upstream(retries as u16, retries);
            alike.share(&mut upstream.servers);
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
        assert_eq!(alike.settings.len(), KEPT);
    }

    #[test]
    fn the_same_servers_are_shared_while_somebody_has_them() {
        let mut alike = Alike::default();
        let mut shared = |port: u16, retries: u32| {
            let mut upstream = upstream(port, retries);
            let made = upstream.clone();
            alike.share(&mut upstream.servers);
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
        assert!(gone.upgrade().is_none(), "nothing is kept for its own sake");
        // More than are known at a time.
        let all: Vec<_> = (0..10_000).map(|port| shared(port, 1)).collect();
        assert!(all.iter().enumerate().all(|(port, own)| usize::from(own.endpoints[0].addr.port()) == port));
        assert_eq!(alike.servers.len(), SETS);
    }
}
