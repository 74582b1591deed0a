//! Taps: requests shown to an operator while they happen.
//!
//! The control side compiles a [`Filter`] and publishes it with the others to all workers by one swap.
//! Without a tap a request costs one relaxed load. With one, a worker compares each finished request
//! with the filters and puts those that match into a bounded ring of its own. Requests that find no
//! room are counted; a worker never waits.

mod event;
mod filter;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
#[expect(
    clippy::disallowed_types,
    reason = "taken when a tap opens and by the control side, never by a worker"
)]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

pub use event::{Event, Times, is_secret};
pub use filter::Filter;

use crate::exchange::Exchange;

/// Taps at the same time.
pub const MOST: usize = 8;

/// Events of a worker that wait to be collected.
const RING: usize = 256;

#[derive(Debug)]
struct Tap {
    filter: Filter,
    /// Events lost because a ring was full.
    dropped: AtomicU64,
}

/// The published taps, each at its place.
type Places = [Option<Arc<Tap>>; MOST];

/// All taps of the gateway.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "taken by the control side, never by a worker")]
pub struct Taps {
    on: AtomicBool,
    places: ArcSwap<Places>,
    rings: Mutex<Vec<Receiver<Box<Event>>>>,
}

/// A worker's end.
#[derive(Debug)]
pub struct Outlet {
    taps: Arc<Taps>,
    ring: SyncSender<Box<Event>>,
}

impl Taps {
    /// Makes the end of one worker.
    pub fn outlet(self: &Arc<Taps>) -> Outlet {
        let (ring, collected) = sync_channel(RING);
        self.rings().push(collected);
        Outlet { taps: self.clone(), ring }
    }

    /// Publishes a filter and returns its place; `None` if [`MOST`] taps are open.
    pub fn open(&self, filter: Filter) -> Option<usize> {
        let rings = self.rings();
        let mut places = Places::clone(&self.places.load());
        let place = places.iter().position(Option::is_none)?;
        if places.iter().all(Option::is_none) {
            // Events of earlier taps.
            rings.iter().for_each(|ring| ring.try_iter().for_each(drop));
        }
        places[place] = Some(Arc::new(Tap { filter, dropped: AtomicU64::new(0) }));
        self.places.store(Arc::new(places));
        self.on.store(true, Relaxed);
        Some(place)
    }

    /// Removes the filter at a place.
    pub fn close(&self, place: usize) {
        let _rings = self.rings();
        let mut places = Places::clone(&self.places.load());
        if let Some(tap) = places.get_mut(place) {
            *tap = None;
        }
        self.on.store(places.iter().any(Option::is_some), Relaxed);
        self.places.store(Arc::new(places));
    }

    /// Passes on the events that workers have put into their rings.
    pub fn collect(&self, take: impl FnMut(Box<Event>)) {
        self.rings().iter().flat_map(Receiver::try_iter).for_each(take);
    }

    /// Events that a tap lost because a ring was full.
    pub fn dropped(&self, place: usize) -> u64 {
        let places = self.places.load();
        places.get(place).and_then(Option::as_ref).map_or(0, |tap| tap.dropped.load(Relaxed))
    }

    /// Open taps.
    pub fn count(&self) -> usize {
        self.places.load().iter().flatten().count()
    }

    fn rings(&self) -> MutexGuard<'_, Vec<Receiver<Box<Event>>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet {
    /// Whether a tap is open: one relaxed load.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.taps.on.load(Relaxed)
    }

    /// Offers a finished request to the taps.
    #[cold]
    pub fn offer(&self, x: &Exchange<'_>, times: &Times) {
        let places = self.taps.places.load();
        let mut taken_by = 0u8;
        let mut shows_headers = false;
        for (place, tap) in places.iter().enumerate() {
            if let Some(tap) = tap.as_ref().filter(|tap| tap.filter.takes(x, times)) {
                taken_by |= 1 << place;
                shows_headers |= tap.filter.headers;
            }
        }
        if taken_by == 0 {
            return;
        }
        let event = Box::new(Event::new(x, times, taken_by, shows_headers));
        if self.ring.try_send(event).is_err() {
            for (place, tap) in places.iter().enumerate() {
                if let Some(tap) = tap.as_ref().filter(|_| taken_by & (1 << place) != 0) {
                    tap.dropped.fetch_add(1, Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
