//! Trailers that a client has sent and nobody has read yet.
//!
//! The `h2` crate keeps them decoded until what comes before them is read. A byte on the line may become a field of
//! a hundred bytes in memory, so they count for that much.

use std::cell::RefCell;

use sdk::budget::{Budget, Held};

use crate::exchange::fault::Flood;

/// What a byte of coded trailers may become in memory: an entry of the library's map.
const FIELD: usize = 100;

/// A stream with a body, or one that is not yet known to have one.
#[derive(Debug)]
struct Entry {
    stream: u32,
    bytes: usize,
    served: bool,
}

/// Those of one connection.
#[derive(Debug)]
pub(crate) struct Trailers {
    /// What there may be on the connection, …
    most: usize,
    /// … on one stream, as a list that is larger is not kept, …
    most_of_one: usize,
    /// … and on all connections of the worker.
    budget: Budget,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    /// The newest stream that has begun to be served.
    newest: u32,
    sum: usize,
    held: Held,
    flood: Option<Flood>,
}

impl Trailers {
    pub(crate) fn new(most: usize, list: usize, budget: &Budget) -> Trailers {
        // The least field counts for 34 bytes in the list's size (RFC 7541 section 4.1).
        let most_of_one = list / 34 * FIELD;
        Trailers { most, most_of_one, budget: budget.clone(), state: RefCell::default() }
    }

    /// A part of a block of fields came that is not a stream's first.
    pub(super) fn came(&self, stream: u32, length: usize) {
        let mut state = self.state.borrow_mut();
        let State { entries, newest, sum, held, flood } = &mut *state;
        let index = match entries.iter().position(|entry| entry.stream == stream) {
            Some(index) => index,
            // Its stream is over.
            None if stream <= *newest => return,
            None => {
                entries.push(Entry { stream, bytes: 0, served: false });
                entries.len() - 1
            }
        };
        let entry = &mut entries[index];
        let bytes = entry.bytes.saturating_add(length.saturating_mul(FIELD)).min(self.most_of_one);
        *sum += bytes - entry.bytes;
        entry.bytes = bytes;
        if *sum > self.most {
            *flood = Some(Flood::Trailers);
        } else if held.resize(&self.budget, *sum).is_err() {
            *flood = Some(Flood::AllTrailers);
        }
    }

    /// A stream with a body is being served.
    pub(crate) fn begin(&self, stream: u32) {
        let mut state = self.state.borrow_mut();
        let State { entries, newest, sum, held, .. } = &mut *state;
        *newest = stream;
        let (mut known, before) = (false, *sum);
        // Streams are served in their order: one before this that is not was refused.
        entries.retain_mut(|entry| {
            known |= entry.stream == stream;
            entry.served |= entry.stream == stream;
            let stays = entry.served || entry.stream > stream;
            *sum -= if stays { 0 } else { entry.bytes };
            stays
        });
        if !known {
            entries.push(Entry { stream, bytes: 0, served: true });
        }
        if *sum < before {
            // Less always fits.
            let _ = held.resize(&self.budget, *sum);
        }
    }

    /// A stream's trailers were read, or it is over.
    pub(crate) fn end(&self, stream: u32) {
        let mut state = self.state.borrow_mut();
        let State { entries, sum, held, .. } = &mut *state;
        if let Some(index) = entries.iter().position(|entry| entry.stream == stream) {
            let entry = entries.swap_remove(index);
            if entry.bytes > 0 {
                *sum -= entry.bytes;
                // Less always fits.
                let _ = held.resize(&self.budget, *sum);
            }
        }
    }

    /// There are too many.
    pub(super) fn flood(&self) -> Option<Flood> {
        self.state.borrow().flood
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_count_until_they_are_read() {
        let budget = Budget::new(1 << 20);
        let trailers = Trailers::new(50_000, 3400, &budget);
        trailers.begin(1);
        trailers.came(1, 20);
        assert_eq!(budget.taken(), 2000);
        trailers.came(1, 1000);
        assert_eq!(budget.taken(), 10_000, "a list has a bound of its own");
        // They come before their stream is served.
        trailers.came(5, 10);
        trailers.came(3, 10);
        trailers.begin(3);
        trailers.begin(5);
        assert_eq!(budget.taken(), 12_000);
        trailers.end(3);
        trailers.end(1);
        assert_eq!(budget.taken(), 1000);
        // Of a stream that is over.
        trailers.came(3, 10);
        assert_eq!((budget.taken(), trailers.flood()), (1000, None));
        trailers.end(5);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn streams_that_were_never_served_are_forgotten() {
        let budget = Budget::new(1 << 20);
        let trailers = Trailers::new(50_000, 34_000, &budget);
        for stream in (1..1000).step_by(4) {
            trailers.came(stream, 100);
            trailers.begin(stream + 2);
            trailers.end(stream + 2);
            assert_eq!(trailers.flood(), None);
        }
        assert!(trailers.state.borrow().entries.len() <= 1);
    }

    #[test]
    fn too_many_are_a_flood_of_a_connection_or_of_all() {
        let budget = Budget::new(60_000);
        let (one, other) = (Trailers::new(50_000, 34_000, &budget), Trailers::new(50_000, 34_000, &budget));
        one.came(1, 400);
        assert_eq!(one.flood(), None);
        other.came(1, 300);
        assert_eq!(other.flood(), Some(Flood::AllTrailers));
        one.came(3, 200);
        assert_eq!(one.flood(), Some(Flood::Trailers));
        drop((one, other));
        assert_eq!(budget.taken(), 0);
    }
}
