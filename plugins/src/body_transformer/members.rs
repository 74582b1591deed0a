//! The named values of a table, in the order in which they were written.
//!
//! A removed value leaves an empty place, and the places are closed up once half of them are empty. Closed up at once,
//! each removal would move all that follows, and a template that removes many values of a long body would hold its
//! worker for minutes.

use std::rc::Rc;

use indexmap::IndexMap;

use super::value::Value;

/// A name may be as long as a body, so tables that are copies of each other share it.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// An empty place is [`Value::Nil`], which no table holds.
    map: IndexMap<Rc<[u8]>, Value>,
    empty: usize,
}

impl Members {
    pub fn get(&self, name: &[u8]) -> Option<&Value> {
        self.map.get(name).filter(|value| is_there(value))
    }

    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Value> {
        self.map.get_mut(name).filter(|value| is_there(value))
    }

    /// Replaces a value in its place. A new one is put at the end, or where one of this name was, if that is empty still.
    pub fn insert(&mut self, name: Rc<[u8]>, value: Value) {
        if !is_there(&value) {
            return self.remove(&name);
        }
        if let Some(Value::Nil) = self.map.insert(name, value) {
            self.empty -= 1;
        }
    }

    pub fn remove(&mut self, name: &[u8]) {
        let Some(value) = self.get_mut(name) else { return };
        *value = Value::Nil;
        self.empty += 1;
        if self.empty * 2 > self.map.len() {
            self.map.retain(|_, value| is_there(value));
            self.empty = 0;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Rc<[u8]>, &Value)> {
        self.map.iter().filter(|(_, value)| is_there(value))
    }

    pub fn into_values(self) -> impl Iterator<Item = Value> {
        self.map.into_values()
    }

    pub fn is_empty(&self) -> bool {
        self.places() == self.empty
    }

    /// Values and empty places: what going through them costs.
    pub fn places(&self) -> usize {
        self.map.len()
    }

    /// The empty places, which may all stand before the first value.
    pub fn empty_places(&self) -> usize {
        self.empty
    }
}

impl FromIterator<(Rc<[u8]>, Value)> for Members {
    fn from_iter<I: IntoIterator<Item = (Rc<[u8]>, Value)>>(members: I) -> Members {
        Members { map: members.into_iter().collect(), empty: 0 }
    }
}

fn is_there(value: &Value) -> bool {
    !matches!(value, Value::Nil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_places_are_closed_up_once_they_are_more_than_half() {
        let mut members = Members::default();
        let name = |index: u8| Rc::from([index]);
        for index in 0..8 {
            members.insert(name(index), Value::Bool(true));
        }
        for index in 0..4 {
            members.remove(&[index]);
            // Removing an absent value leaves no place.
            members.remove(&[index]);
        }
        assert_eq!((members.places(), members.empty_places()), (8, 4));
        // An empty place is taken by the same name.
        members.insert(name(0), Value::Bool(false));
        assert_eq!((members.places(), members.empty_places()), (8, 3));
        members.remove(&[0]);
        members.remove(&[7]);
        assert_eq!((members.places(), members.empty_places()), (3, 0));
        assert!(members.iter().map(|(name, _)| name[0]).eq([4, 5, 6]));
        for index in 4..7 {
            assert!(!members.is_empty());
            members.insert(name(index), Value::Nil);
        }
        assert!(members.is_empty());
    }
}
