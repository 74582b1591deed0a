//! hot path
//!
//! Per-server scores, kept across changes of the upstream.
//!
//! For a while after a change, exchanges that began before it still run on the old version and
//! report on its servers, while new ones choose among those of the new version. Both share one
//! list: a server is identified by its address, its index is only a hint, and a server in only one
//! of the versions is kept as long as its score matters.

use std::net::SocketAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::upstream::Endpoint;

/// The score of one server.
pub(super) trait Score: Default {
    /// Whether to keep the score after the upstream lost this server.
    fn matters(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct Scores<T> {
    /// The servers of the upstream version used last, in its order, then others.
    all: Vec<(SocketAddr, T)>,
}

impl<T: Score> Scores<T> {
    pub fn new(endpoints: &[Endpoint]) -> Scores<T> {
        Scores { all: endpoints.iter().map(|endpoint| (endpoint.addr, T::default())).collect() }
    }

    /// The score of a server of the current version.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.all.get(index).map(|(_, score)| score)
    }

    /// The score of the server with this address, at this index unless the upstream has changed;
    /// the first of several with this address.
    #[inline]
    pub fn find(&mut self, index: usize, addr: SocketAddr, will_do: impl Fn(&T) -> bool) -> Option<&mut T> {
        let here = |(known, score): &(SocketAddr, T)| *known == addr && will_do(score);
        let position = match self.all.get(index) {
            Some(entry) if here(entry) => index,
            _ => self.all.iter().position(here)?,
        };
        Some(&mut self.all[position].1)
    }

    /// The same, created if missing.
    #[inline]
    pub fn find_or_add(&mut self, index: usize, addr: SocketAddr) -> &mut T {
        let position = match self.all.get(index) {
            Some((known, _)) if *known == addr => index,
            _ => self.position(addr),
        };
        &mut self.all[position].1
    }

    #[cold]
    fn position(&mut self, addr: SocketAddr) -> usize {
        if let Some(position) = self.all.iter().position(|(known, _)| *known == addr) {
            return position;
        }
        self.all.push((addr, T::default()));
        self.all.len() - 1
    }

    /// Drops the scores behind the current servers that no longer matter.
    pub fn trim(&mut self, servers: usize) {
        let mut index = 0;
        self.all.retain(|(_, score)| {
            index += 1;
            index <= servers || score.matters()
        });
    }

    /// Takes over earlier scores. Each score goes to one server, even if several share an address.
    pub fn carry(&mut self, before: Scores<T>) {
        let mut positions: HashMap<SocketAddr, Vec<usize>, FixedState> = HashMap::default();
        for (position, (addr, _)) in self.all.iter().enumerate().rev() {
            positions.entry(*addr).or_default().push(position);
        }
        for (addr, score) in before.all {
            match positions.get_mut(&addr).and_then(Vec::pop) {
                Some(position) => self.all[position].1 = score,
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
