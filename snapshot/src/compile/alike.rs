//! Settings that many upstreams have alike, kept once.

use std::sync::Arc;

use crate::upstream::Settings;

/// The settings that upstreams were given last, the latest first.
#[derive(Debug, Default)]
pub(super) struct Alike(Vec<Arc<Settings>>);

/// Most sites write a handful of kinds of upstreams; one that differs from all of these keeps its own.
const KEPT: usize = 16;

impl Alike {
    /// Replaces settings by the same ones of another upstream, if there are such.
    pub fn share(&mut self, settings: &mut Arc<Settings>) {
        match self.0.iter().position(|known| **known == **settings) {
            Some(at) => {
                self.0[..=at].rotate_right(1);
                *settings = self.0[0].clone();
            }
            None => {
                self.0.truncate(KEPT - 1);
                self.0.insert(0, settings.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Policy, Upstream};

    #[test]
    fn the_same_is_shared_and_what_is_kept_is_bounded() {
        let mut alike = Alike::default();
        let mut shared = |retries: u32| {
            let mut upstream = Upstream::new("1", 0, Vec::new(), Policy::RoundRobin);
            upstream.settings_mut().retries = retries;
            alike.share(&mut upstream.settings);
            assert_eq!(upstream.retries, retries);
            upstream.settings
        };
        let (one, two) = (shared(1), shared(2));
        assert!(Arc::ptr_eq(&one, &shared(1)) && Arc::ptr_eq(&two, &shared(2)));
        for other in 10..10 + KEPT as u32 {
            shared(other);
            assert!(Arc::ptr_eq(&one, &shared(1)), "what is in use stays");
        }
        assert!(!Arc::ptr_eq(&two, &shared(2)));
        assert_eq!(alike.0.len(), KEPT);
    }
}
