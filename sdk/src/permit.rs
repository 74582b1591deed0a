//! hot path
//!
//! A request's place in a limit of concurrent requests.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::counters::{CounterKey, Gauges};

/// A place that a request takes until it ends. Dropping it frees the place.
pub struct Permit {
    _inside: Inside,
}

enum Inside {
    Local(Entry),
    Shared(Box<dyn Any>),
}

/// A place in the gauges of this node.
struct Entry {
    gauges: Arc<Gauges>,
    key: CounterKey,
}

impl Permit {
    /// Wraps a value that frees the place when it is dropped.
    pub fn new<T: 'static>(inside: T) -> Permit {
        Permit { _inside: Inside::Shared(Box::new(inside)) }
    }

    /// For a request that has entered these gauges.
    pub(crate) fn local(gauges: Arc<Gauges>, key: CounterKey) -> Permit {
        Permit { _inside: Inside::Local(Entry { gauges, key }) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.gauges.leave(self.key);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self._inside {
            Inside::Local(entry) => f.debug_tuple("Permit").field(&entry.key).finish(),
            Inside::Shared(inside) => f.debug_tuple("Permit").field(inside).finish(),
        }
    }
}
