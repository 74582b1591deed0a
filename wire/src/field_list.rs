//! hot path
//!
//! The fields of one decoded field block (HTTP/2) or field section (HTTP/3).

use crate::fields::{Field, Span, check_value, is_token};
use crate::names::Name;

/// Why a block of fields is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// It cannot be decoded, or refers to a missing entry. The connection cannot continue.
    Coding,
    /// It exceeds the size limit.
    TooLarge,
    /// It has more fields than the limit.
    TooMany,
}

/// A decoded list of fields. Reused for the next one.
///
/// Every field is a line of HTTP/1 in the text, so that forwarding it to an HTTP/1 server copies it
/// in one piece, and an entry of a table is appended in one piece.
#[derive(Debug, Default)]
pub struct List {
    pub(crate) text: Vec<u8>,
    fields: Vec<Field>,
    has_unclean: bool,
}

/// Bytes of a line beside its name and value.
pub(crate) const LINE: usize = BETWEEN.len() + BEHIND.len();
/// Separates name and value in a line.
pub(crate) const BETWEEN: &[u8; 2] = b": ";
/// Ends a line.
pub(crate) const BEHIND: &[u8; 2] = b"\r\n";

/// A refused block may have this many times the text of a valid one, or of `LEAST_WORK` bytes.
const WORK: usize = 16;
const LEAST_WORK: usize = 64 << 10;

/// The capacity a list keeps for the next one, in bytes of text and in fields.
const KEPT_TEXT: usize = 8 << 10;
const KEPT_FIELDS: usize = 256;

impl List {
    /// Name, value and id of each field, in order. Names are as received, not checked.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], Name)> + Clone + '_ {
        self.fields.iter().map(|field| (self.bytes(field.name), self.bytes(field.value), field.id))
    }

    /// The fields, in order; their spans are of [`List::lines`].
    #[inline]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// All fields as lines of HTTP/1.
    #[inline]
    pub fn lines(&self) -> &[u8] {
        &self.text
    }

    /// Whether every name is a token in lower case, or one behind a colon, and no value has control
    /// characters or surrounding white space. Entries of tables are checked only once.
    #[inline]
    pub fn is_clean(&self) -> bool {
        !self.has_unclean
    }

    /// The number of fields.
    #[inline]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Removes all fields; keeps at most a usual list's capacity.
    pub fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        self.has_unclean = false;
        if self.text.capacity() > KEPT_TEXT {
            self.text.shrink_to(KEPT_TEXT);
        }
        if self.fields.capacity() > KEPT_FIELDS {
            self.fields.shrink_to(KEPT_FIELDS);
        }
    }

    #[inline]
    fn bytes(&self, span: Span) -> &[u8] {
        &self.text[span.start as usize..][..span.len as usize]
    }
}

/// A list that is decoded, and its limits. Fields that exceed them are not kept.
pub(crate) struct Limited<'a> {
    pub(crate) list: &'a mut List,
    most_bytes: usize,
    most_fields: usize,
    bytes: usize,
    refused: Option<Bad>,
}

impl<'a> Limited<'a> {
    /// Clears the list. `most_bytes` limits the sum of all names and values.
    pub(crate) fn new(list: &'a mut List, most_bytes: usize, most_fields: usize) -> Limited<'a> {
        list.clear();
        Limited { list, most_bytes: most_bytes.min(1 << 24), most_fields, bytes: 0, refused: None }
    }

    /// Appends a line in up to two pieces.
    #[inline]
    pub(crate) fn line(&mut self, (first, second): (&[u8], &[u8]), about: About) {
        let length = first.len() + second.len();
        if self.admits(length) {
            let start = self.list.text.len();
            self.list.text.extend_from_slice(first);
            if !second.is_empty() {
                self.list.text.extend_from_slice(second);
            }
            self.push(start, length, about);
        }
    }

    /// Ends a line that was appended to the text from `start` on.
    ///
    /// # Errors
    /// [`Bad::Coding`] if far more text than the limit was decoded. A name of the dynamic table has
    /// kilobytes and is repeated by two bytes, so decoding a refused block is bounded as well.
    #[inline]
    pub(crate) fn end(&mut self, start: usize, about: About) -> Result<(), Bad> {
        let length = self.list.text.len() - start;
        if self.admits(length) {
            self.push(start, length, about);
            return Ok(());
        }
        self.list.text.truncate(start);
        self.bytes += length;
        if self.bytes > self.most_bytes.max(LEAST_WORK) * WORK { Err(Bad::Coding) } else { Ok(()) }
    }

    /// The error of the first limit that was exceeded. Its list is empty.
    pub(crate) fn finish(self) -> Result<(), Bad> {
        match self.refused {
            None => Ok(()),
            Some(bad) => {
                self.list.clear();
                Err(bad)
            }
        }
    }

    /// Whether a limit was exceeded.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    #[inline]
    fn admits(&mut self, length: usize) -> bool {
        if self.refused.is_some() {
            return false;
        }
        self.bytes += length - LINE;
        if self.bytes > self.most_bytes {
            self.refused = Some(Bad::TooLarge);
        } else if self.list.fields.len() >= self.most_fields {
            self.refused = Some(Bad::TooMany);
        }
        self.refused.is_none()
    }

    #[inline]
    fn push(&mut self, start: usize, length: usize, about: About) {
        let About { name, id, is_clean } = about;
        self.list.has_unclean |= !is_clean;
        let len = length - name as usize - LINE;
        let value = Span { start: (start + name as usize + BETWEEN.len()) as u32, len: len as u32 };
        let name = Span { start: start as u32, len: name };
        self.list.fields.push(Field { id, is_line: true, name, value });
    }
}

/// Properties of a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About {
    /// The length of the name.
    pub(crate) name: u32,
    pub(crate) id: Name,
    /// See [`List::is_clean`].
    pub(crate) is_clean: bool,
}

impl About {
    /// The properties of a name.
    #[inline]
    pub(crate) fn name(name: &[u8]) -> About {
        let token = name.strip_prefix(b":").unwrap_or(name);
        let is_clean = !token.is_empty() && token.iter().all(|&byte| LOWER_TOKEN[byte as usize]);
        About { name: name.len() as u32, id: Name::from_bytes(name), is_clean }
    }

    /// The same with a value.
    #[inline]
    pub(crate) fn with(self, value: &[u8]) -> About {
        let is_spaced =
            matches!(value.first(), Some(b' ' | b'\t')) || matches!(value.last(), Some(b' ' | b'\t'));
        About { is_clean: self.is_clean && !is_spaced && check_value(value).is_ok(), ..self }
    }
}

static LOWER_TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token(byte as u8) && !(byte as u8).is_ascii_uppercase();
        byte += 1;
    }
    table
};

/// An entry of a static table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// The field as a line.
    pub(crate) line: &'static [u8],
    pub(crate) about: About,
}

impl Known {
    pub(crate) const fn new(line: &'static str, name: &'static str) -> Known {
        let id = Name::of_lower(name.as_bytes());
        Known { line: line.as_bytes(), about: About { name: name.len() as u32, id, is_clean: true } }
    }

    #[inline]
    pub(crate) fn name(&self) -> &'static [u8] {
        &self.line[..self.about.name as usize]
    }

    #[inline]
    pub(crate) fn value(&self) -> &'static [u8] {
        &self.line[self.about.name as usize + BETWEEN.len()..self.line.len() - BEHIND.len()]
    }
}

/// Entries of a static table from names and values.
macro_rules! known {
    ($(($name:literal, $value:literal),)*) => {
        [$($crate::field_list::Known::new(concat!($name, ": ", $value, "\r\n"), $name),)*]
    };
}
pub(crate) use known;
