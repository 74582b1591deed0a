//! A parsed file: its value, and where in the text each part of it stands.
//!
//! Both [`yaml`](crate::yaml) and [`json`](crate::json) make it, so that readers of configuration need not
//! distinguish the two.

use std::fmt;

use serde_json::Value;

/// A place in a text. Both count from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// A value with the places of its parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub value: Value,
    pub(crate) spots: Spot,
}

/// Why a text is not a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    pub message: String,
    pub position: Position,
    pub hint: Option<String>,
}

/// How a variable named in a file is looked up; the environment, as a rule.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where one value stands, and where its parts do, in their order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spot {
    /// Of its name, if it is the member of an object.
    pub key: Option<Position>,
    pub value: Position,
    pub children: Vec<Spot>,
}

/// An empty document: nothing, at the start.
impl Default for Document {
    fn default() -> Document {
        let spots = Spot { key: None, value: Position::START, children: Vec::new() };
        Document { value: Value::Null, spots }
    }
}

impl Document {
    /// A document of sections that a program made, each a list of items; `place` returns the place of an item by
    /// section and index.
    pub fn of_sections(
        sections: serde_json::Map<String, Value>,
        place: impl Fn(&str, usize) -> Position,
    ) -> Document {
        let leaf = |value| Spot { key: None, value, children: Vec::new() };
        let section = |(name, items): (&String, &Value)| {
            let count = items.as_array().map_or(0, Vec::len);
            let children = (0..count).map(|index| leaf(place(name, index))).collect();
            Spot { children, ..leaf(Position::START) }
        };
        let children = sections.iter().map(section).collect();
        Document { spots: Spot { children, ..leaf(Position::START) }, value: Value::Object(sections) }
    }

    /// Where the value at an RFC 6901 pointer stands: a plain value itself, the
    /// name of an object's or list's member. `None` if nothing is there.
    pub fn position(&self, pointer: &str) -> Option<Position> {
        let (value, spot) = self.find(pointer)?;
        let plain = !value.is_object() && !value.is_array();
        Some(if plain { spot.value } else { spot.key.unwrap_or(spot.value) })
    }

    /// Where the name of the member at `pointer` stands; for an item of a list, the item.
    pub fn key_position(&self, pointer: &str) -> Option<Position> {
        let (_, spot) = self.find(pointer)?;
        Some(spot.key.unwrap_or(spot.value))
    }

    /// Like [`position`](Document::position) for the closest part that is there.
    pub fn nearest_position(&self, pointer: &str) -> Position {
        let mut pointer = pointer;
        loop {
            if let Some(position) = self.position(pointer) {
                return position;
            }
            match pointer.rsplit_once('/') {
                Some((parent, _)) => pointer = parent,
                None => return self.spots.value,
            }
        }
    }

    fn find(&self, pointer: &str) -> Option<(&Value, &Spot)> {
        let (mut value, mut spot) = (&self.value, &self.spots);
        if pointer.is_empty() {
            return Some((value, spot));
        }
        for segment in pointer.strip_prefix('/')?.split('/') {
            let name = segment.replace("~1", "/").replace("~0", "~");
            let at = match value {
                Value::Object(map) => map.keys().position(|key| *key == name)?,
                Value::Array(_) => name.parse().ok()?,
                _ => return None,
            };
            value = match value {
                Value::Array(items) => items.get(at)?,
                other => other.get(name.as_str())?,
            };
            spot = spot.children.get(at)?;
        }
        Some((value, spot))
    }
}

impl Position {
    /// The first character.
    pub const START: Position = Position { line: 1, column: 1 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Where the lines of a text begin, to turn offsets into positions and back.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str) -> Lines<'a> {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Lines { text, starts: std::iter::once(0).chain(breaks).collect() }
    }

    /// The position of a byte offset; past the end is the end.
    pub fn position(&self, offset: usize) -> Position {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.starts.partition_point(|start| *start <= offset);
        let column = self.text[self.starts[line - 1]..offset].chars().count() + 1;
        Position { line: count(line), column: count(column) }
    }

    /// The byte offset of a position.
    pub fn offset(&self, position: Position) -> usize {
        let line = (position.line as usize).clamp(1, self.starts.len());
        let start = self.starts[line - 1];
        let skip = (position.column as usize).saturating_sub(1);
        self.text[start..].char_indices().nth(skip).map_or(self.text.len(), |(at, _)| start + at)
    }
}

pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_positions_lead_to_each_other() {
        let lines = Lines::new("ab\né c\n");
        for (offset, line, column) in [(0, 1, 1), (2, 1, 3), (3, 2, 1), (5, 2, 2), (6, 2, 3), (8, 3, 1)] {
            let position = Position { line, column };
            assert_eq!(lines.position(offset), position);
            assert_eq!(lines.offset(position), offset);
        }
        assert_eq!(lines.position(4), Position { line: 2, column: 1 });
        assert_eq!(lines.position(99), Position { line: 3, column: 1 });
    }
}
