//! The parsed resources behind the rows of a store.
//!
//! A store that makes rows from a file has read and checked each value already, which costs as much as all the rest of
//! taking it over. The values are handed on here, once: none stays in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::Resource;

/// A resource, and the text that says the same.
type Read = (Arc<str>, Resource);

/// The parsed values of rows; the first caller takes them.
#[derive(Debug, Clone, Default)]
pub struct Parsed(Arc<Mutex<Vec<Read>>>);

/// The parsed values by the address of their text: a text is that of one row, and one that was changed on the way
/// is another.
#[derive(Debug, Default)]
pub struct Taken(HashMap<usize, Read>);

impl Parsed {
    pub fn new(resources: Vec<Read>) -> Parsed {
        Parsed(Arc::new(Mutex::new(resources)))
    }

    /// Takes everything; later calls return nothing.
    pub fn take(&self) -> Taken {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Taken(all.into_iter().map(|(text, resource)| (address(&text), (text, resource))).collect())
    }
}

impl Taken {
    /// Takes the parsed value of a row with this very text.
    pub fn of(&mut self, text: &Arc<str>) -> Option<Resource> {
        self.0.remove(&address(text)).map(|(_, resource)| resource)
    }
}

fn address(text: &Arc<str>) -> usize {
    text.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use model::Kind;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resource_is_handed_on_once_and_only_for_its_text() {
        let resource = Resource::parse(Kind::Service, "1", &json!({})).unwrap();
        let (text, other): (Arc<str>, Arc<str>) = ("{}".into(), "{}".into());
        let parsed = Parsed::new(vec![(text.clone(), resource.clone())]);
        let mut taken = parsed.clone().take();
        assert!(taken.of(&other).is_none() && parsed.take().of(&text).is_none());
        assert_eq!((taken.of(&text), taken.of(&text)), (Some(resource), None));
    }
}
