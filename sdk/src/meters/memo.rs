//! hot path
//!
//! The label sets of recent requests, found by addresses in the snapshot instead of by their texts.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use super::shard::Labelled;
use crate::exchange::Source;

/// Places of a [`SeriesMemo`]; a power of two.
const PLACES: usize = 64;

/// Addresses of a request's label values in its snapshot, and the values that are not part of it. Equal addresses mean
/// equal labels as long as the snapshot is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The plugin instance, whose settings choose the labels.
    pub instance: usize,
    pub route: usize,
    pub matched_uri: usize,
    pub matched_host: usize,
    pub consumer: usize,
    pub code: u16,
    pub source: Source,
    pub node: Option<IpAddr>,
}

/// Label sets by the addresses of one snapshot. Valid as long as that snapshot is held.
#[derive(Debug)]
pub struct SeriesMemo(RefCell<[Place; PLACES]>);

type Place = Option<(Addresses, Arc<Labelled>)>;

impl Default for SeriesMemo {
    fn default() -> SeriesMemo {
        SeriesMemo(RefCell::new([const { None }; PLACES]))
    }
}

impl SeriesMemo {
    /// Calls `count` with the label set of these addresses. Returns false if it is unknown.
    #[inline]
    pub(super) fn with(&self, addresses: &Addresses, count: impl FnOnce(&Labelled)) -> bool {
        match &self.0.borrow()[addresses.place()] {
            Some((known, labelled)) if known == addresses && !labelled.retired() => {
                count(labelled);
                true
            }
            _ => false,
        }
    }

    #[cold]
    pub(super) fn keep(&self, addresses: &Addresses, labelled: Arc<Labelled>) {
        self.0.borrow_mut()[addresses.place()] = Some((*addresses, labelled));
    }
}

impl Addresses {
    #[inline]
    fn place(&self) -> usize {
        let node = match self.node {
            Some(IpAddr::V4(ip)) => ip.to_bits() as usize,
            Some(IpAddr::V6(ip)) => ip.to_bits() as usize,
            None => 0,
        };
        // A plan, and most consumers, are apart by 64 bytes or more.
        let parts = [self.route >> 6, self.consumer >> 6, usize::from(self.code), node];
        parts.into_iter().fold(0, usize::wrapping_add) % PLACES
    }
}
