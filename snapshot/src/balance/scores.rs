//! hot path
//!
//! What is known of each server, kept over changes of the upstream.
//!
//! For a while after a change, exchanges that began before it still run on the old upstream and
//! tell of its servers, while new ones choose among those of the new. Both share one list: a
//! server is known by its address, its index is only where to look first, and a server that only
//! one of both upstreams has is not forgotten as long as it is of interest.

use std::net::SocketAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::upstream::Endpoint;

/// What is remembered of one server.
pub(super) trait Score: Default {
    /// Whether it is to be kept though the upstream has no such server now.
    fn matters(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct Scores<T> {
    /// The servers of the upstream that was chosen from last, in its order, then others.
    all: Vec<(SocketAddr, T)>,
}

impl<T: Score> Scores<T> {
    pub fn new(endpoints: &[Endpoint]) -> Scores<T> {
        Scores { all: endpoints.iter().map(|endpoint| (endpoint.addr, T::default())).collect() }
    }

    /// Of a server of the upstream that is being chosen from.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.all.get(index).map(|(_, score)| score)
    }

    /// Of the server with this address, which has this index unless the upstream has changed.
    /// Of several with this address it is the first that will do.
    #[inline]
    pub fn find(&mut self, index: usize, addr: SocketAddr, will_do: impl Fn(&T) -> bool) -> Option<&mut T> {
        let here = |(known, score): &(SocketAddr, T)| *known == addr && will_do(score);
        let place = match self.all.get(index) {
            Some(entry) if here(entry) => index,
            _ => self.all.iter().position(here)?,
        };
        Some(&mut self.all[place].1)
    }

    /// The same, made if there is none.
    #[inline]
    pub fn find_or_add(&mut self, index: usize, addr: SocketAddr) -> &mut T {
        let place = match self.all.get(index) {
            Some((known, _)) if *known == addr => index,
            _ => self.place(addr),
        };
        &mut self.all[place].1
    }

    #[cold]
    fn place(&mut self, addr: SocketAddr) -> usize {
        if let Some(place) = self.all.iter().position(|(known, _)| *known == addr) {
            return place;
        }
        self.all.push((addr, T::default()));
        self.all.len() - 1
    }

    /// Forgets what does not matter behind so many servers.
    pub fn trim(&mut self, servers: usize) {
        let mut index = 0;
        self.all.retain(|(_, score)| {
            index += 1;
            index <= servers || score.matters()
        });
    }

    /// Takes over what was known before. Each score goes to one server, though several may have
    /// one address.
    pub fn carry(&mut self, before: Scores<T>) {
        let mut places: HashMap<SocketAddr, Vec<usize>, FixedState> = HashMap::default();
        for (place, (addr, _)) in self.all.iter().enumerate().rev() {
            places.entry(*addr).or_default().push(place);
        }
        for (addr, score) in before.all {
            match places.get_mut(&addr).and_then(Vec::pop) {
                Some(place) => self.all[place].1 = score,
                None if score.matters() => self.all.push((addr, score)),
                None => {}
            }
        }
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().map(|(_, score)| score)
    }
}
