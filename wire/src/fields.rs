//! hot path
//!
//! The header fields of one message, kept as spans into one reused text buffer.
//!
//! A head's bytes are copied once into `text` (a few hundred bytes, one memcpy),
//! so the connection's read buffer is free for the body at once. Later edits
//! append to the same text. Between messages the buffers are cleared, not freed:
//! a connection in steady state allocates nothing.

mod lines;

use crate::names::{Name, NameSet, same_in_any_case, short};

pub use lines::FieldLines;

/// A piece of the text a [`Fields`] owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

/// One field line: name and value without surrounding white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub id: Name,
    /// Name and value lie in the text as a line, `name: value CRLF`.
    pub is_line: bool,
    pub name: Span,
    pub value: Span,
}

impl Field {
    /// The same field where its text has been copied behind `start` bytes.
    #[inline]
    pub fn behind(self, start: u32) -> Field {
        let moved = |span: Span| Span { start: start + span.start, len: span.len };
        Field { name: moved(self.name), value: moved(self.value), ..self }
    }
}

/// Bytes of text that a message's fields may have, those that are replaced included: heads have much tighter limits, and
/// changes add to the text.
pub const MOST_TEXT: usize = 16 << 20;

/// An invalid name or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadField {
    /// The name is empty or not a token (RFC 9110 section 5.6.2).
    Name,
    /// The value holds CR, LF, NUL or another control character (RFC 9110 section 5.5).
    Value,
    /// The text is full; see [`MOST_TEXT`].
    Room,
}

impl std::fmt::Display for BadField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BadField::Name => "a header name must be a token of letters, digits and !#$%&'*+-.^_`|~",
            BadField::Value => "a header value must not hold CR, LF, NUL or other control characters",
            BadField::Room => "the headers of a message must not exceed 16 MiB",
        })
    }
}

impl std::error::Error for BadField {}

/// An ordered list of fields over one text.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    text: Vec<u8>,
    list: Vec<Field>,
    /// At least the names of the list; a name stays when its fields are removed. Most look-ups are for fields that a
    /// head does not have, and end here.
    names: NameSet,
}

impl Fields {
    pub fn new() -> Fields {
        Fields::default()
    }

    /// Removes all fields; keeps at most `keep` bytes of capacity, so that one huge head does not
    /// stay with an idle connection.
    pub fn clear(&mut self, keep: usize) {
        self.list.clear();
        self.names = NameSet::default();
        self.text.clear();
        if self.text.capacity() > keep {
            self.text.shrink_to(keep);
        }
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.list.capacity() * size_of::<Field>()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The bytes of a span of this list.
    #[inline]
    pub fn bytes(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        &self.text[start..start + span.len as usize]
    }

    /// The raw list, in order.
    #[inline]
    pub fn list(&self) -> &[Field] {
        &self.list
    }

    /// Name, value and id of each field, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], Name)> + '_ {
        self.list.iter().map(|field| (self.bytes(field.name), self.bytes(field.value), field.id))
    }

    /// The first value of a known name.
    #[inline]
    pub fn get(&self, id: Name) -> Option<&[u8]> {
        debug_assert_ne!(id, Name::Other);
        if !self.names.may_have(id) {
            return None;
        }
        self.list.iter().find(|field| field.id == id).map(|field| self.bytes(field.value))
    }

    /// The first value of a name given as text, in any case.
    #[inline]
    pub fn get_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.get_checked(Name::from_bytes(name), name)
    }

    /// Whether there is a field of a name whose id was looked up before.
    #[inline]
    pub fn contains_checked(&self, id: Name, name: &[u8]) -> bool {
        self.place(0, id, name).is_some()
    }

    /// The first value of a name whose id was looked up before.
    #[inline]
    pub fn get_checked(&self, id: Name, name: &[u8]) -> Option<&[u8]> {
        self.place(0, id, name).map(|at| self.bytes(self.list[at].value))
    }

    /// Every value of a name given as text, in order.
    #[inline]
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl DoubleEndedIterator<Item = &'a [u8]> + 'a {
        self.all_checked(Name::from_bytes(name), name)
    }

    /// As [`Fields::all`], for a name whose id was looked up before.
    #[inline]
    pub fn all_checked<'a>(
        &'a self,
        id: Name,
        name: &'a [u8],
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> + 'a {
        self.list.iter().filter(move |field| self.is(field, id, name)).map(|field| self.bytes(field.value))
    }

    #[inline]
    pub fn contains(&self, id: Name) -> bool {
        self.names.may_have(id) && self.list.iter().any(|field| field.id == id)
    }

    /// Refuses bytes that would exceed the limit of all text. To be checked by all that add text on behalf of code that
    /// may do so again and again.
    #[inline]
    pub fn check_room(&self, bytes: usize) -> Result<(), BadField> {
        let has_room = bytes <= MOST_TEXT.saturating_sub(self.text.len());
        has_room.then_some(()).ok_or(BadField::Room)
    }

    /// Appends text to the buffer and returns its span. For callers that keep more than fields
    /// (targets, normal forms).
    #[inline]
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        let span = Span { start: self.text.len() as u32, len: bytes.len() as u32 };
        self.text.extend_from_slice(bytes);
        span
    }

    /// Makes `head` the text. For decoders, whose spans count from the start of a head and which
    /// push fields before its end is known: one copy per head.
    #[inline]
    pub(crate) fn load(&mut self, head: &[u8]) {
        self.text.clear();
        self.text.extend_from_slice(head);
    }

    /// As [`Fields::intern`], for text generated by `write`.
    #[inline]
    pub(crate) fn intern_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Span {
        let start = self.text.len() as u32;
        write(&mut self.text);
        Span { start, len: self.text.len() as u32 - start }
    }

    /// As [`Fields::intern`], for text generated by a function that may fail.
    #[inline]
    pub(crate) fn try_intern_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Span, E> {
        let start = self.text.len() as u32;
        write(&mut self.text)?;
        Ok(Span { start, len: self.text.len() as u32 - start })
    }

    /// Adds a field whose name and value are spans of this text and already checked.
    #[inline]
    pub fn push(&mut self, field: Field) {
        self.names.insert(field.id);
        self.list.push(field);
    }

    /// Adds a field at the end.
    pub fn append(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        check_name(name)?;
        check_value(value)?;
        self.check_room(name.len() + value.len())?;
        self.append_checked(Name::from_bytes(name), name, value);
        Ok(())
    }

    /// Adds a field of a known name at the end.
    #[inline]
    pub fn append_id(&mut self, id: Name, value: &[u8]) -> Result<(), BadField> {
        check_value(value)?;
        self.check_room(id.as_str().len() + value.len())?;
        self.append_checked(id, id.as_str().as_bytes(), value);
        Ok(())
    }

    /// Gives the name exactly this one value: the first field of the name is changed in place
    /// (keeping its spelling), further ones are removed.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        check_name(name)?;
        check_value(value)?;
        self.check_room(name.len() + value.len())?;
        self.set_checked(Name::from_bytes(name), name, value);
        Ok(())
    }

    /// As [`Fields::set`] for a known name.
    #[inline]
    pub fn set_id(&mut self, id: Name, value: &[u8]) -> Result<(), BadField> {
        check_value(value)?;
        self.check_room(id.as_str().len() + value.len())?;
        self.set_checked(id, id.as_str().as_bytes(), value);
        Ok(())
    }

    /// Removes every field of the name; returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.remove_checked(Name::from_bytes(name), name)
    }

    /// As [`Fields::remove`], for a name whose id was looked up before.
    pub fn remove_checked(&mut self, id: Name, name: &[u8]) -> bool {
        if !self.names.may_have(id) {
            return false;
        }
        let before = self.list.len();
        let text = &self.text;
        self.list.retain(|field| !same(text, field, id, name));
        self.list.len() != before
    }

    /// Removes every field of a known name; returns whether there was one.
    #[inline]
    pub fn remove_id(&mut self, id: Name) -> bool {
        debug_assert_ne!(id, Name::Other);
        if !self.names.may_have(id) {
            return false;
        }
        let before = self.list.len();
        self.list.retain(|field| field.id != id);
        self.list.len() != before
    }

    /// Removes fields whose names differ from this one only in case and in `-` and `_`, except the
    /// name itself. Servers that turn names into variables (CGI, WSGI) do not distinguish them.
    pub fn remove_lookalikes(&mut self, name: &[u8]) {
        let text = &self.text;
        self.list.retain(|field| {
            let start = field.name.start as usize;
            let own = &text[start..start + field.name.len as usize];
            own.len() != name.len() || same_in_any_case(own, name) || !is_alike(own, name)
        });
    }

    /// Removes fields of the name and of those that [`Fields::remove_lookalikes`] removes.
    pub fn remove_alike(&mut self, name: &[u8]) {
        let text = &self.text;
        self.list.retain(|field| {
            let start = field.name.start as usize;
            !is_alike(&text[start..start + field.name.len as usize], name)
        });
    }

    /// Copies other fields, reusing its own memory.
    pub fn copy_from(&mut self, others: &Fields) {
        self.text.clone_from(&others.text);
        self.list.clone_from(&others.list);
        self.names = others.names;
    }

    /// Whether there is a field of the name, or one that servers do not distinguish from it.
    pub fn contains_alike(&self, name: &[u8]) -> bool {
        self.list.iter().any(|field| is_alike(self.bytes(field.name), name))
    }

    /// The number of fields of the name, and of those that servers do not distinguish from it.
    pub fn count_alike(&self, name: &[u8]) -> usize {
        self.list.iter().filter(|field| is_alike(self.bytes(field.name), name)).count()
    }

    /// Keeps the fields whose names satisfy `keep`.
    #[inline]
    pub fn retain_ids(&mut self, keep: impl Fn(Name) -> bool) {
        self.list.retain(|field| keep(field.id));
    }

    /// Removes the fields with unknown names that satisfy `goes`.
    pub fn remove_others(&mut self, goes: impl Fn(&[u8]) -> bool) {
        let text = &self.text;
        let name = |field: &Field| &text[field.name.start as usize..][..field.name.len as usize];
        self.list.retain(|field| field.id != Name::Other || !goes(name(field)));
    }

    /// As [`Fields::append`], for a name and a value that were already checked.
    #[inline]
    pub fn append_checked(&mut self, id: Name, name: &[u8], value: &[u8]) {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        let field = self.intern_line(id, name, value);
        self.push(field);
    }

    /// As [`Fields::append_checked`], for a value generated by `write`.
    #[inline]
    pub fn append_written(&mut self, id: Name, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let name = self.intern(name);
        let value = self.intern_with(write);
        self.push(Field { id, is_line: false, name, value });
    }

    /// As [`Fields::set`], for a name and a value that were already checked.
    #[inline]
    pub fn set_checked(&mut self, id: Name, name: &[u8], value: &[u8]) {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        let Some(first) = self.place(0, id, name) else {
            return self.append_checked(id, name, value);
        };
        let value = self.intern(value);
        self.list[first] = Field { value, is_line: false, ..self.list[first] };
        if self.place(first + 1, id, name).is_some() {
            let text = &self.text;
            let mut index = 0;
            self.list.retain(|field| {
                index += 1;
                index - 1 <= first || !same(text, field, id, name)
            });
        }
    }

    #[inline]
    fn is(&self, field: &Field, id: Name, name: &[u8]) -> bool {
        same(&self.text, field, id, name)
    }

    /// The index of the first field of this name from `start` on. Known names are found by their id
    /// alone.
    #[inline]
    fn place(&self, start: usize, id: Name, name: &[u8]) -> Option<usize> {
        if !self.names.may_have(id) {
            return None;
        }
        let rest = self.list.get(start..)?;
        let found = match id {
            Name::Other => rest.iter().position(|field| self.is(field, id, name)),
            id => rest.iter().position(|field| field.id == id),
        };
        found.map(|at| start + at)
    }
}

#[inline]
fn same(text: &[u8], field: &Field, id: Name, name: &[u8]) -> bool {
    if id != Name::Other || field.id != Name::Other {
        return field.id == id;
    }
    field.name.len as usize == name.len() && is_named(text, field, name)
}

fn is_named(text: &[u8], field: &Field, name: &[u8]) -> bool {
    let start = field.name.start as usize;
    same_in_any_case(&text[start..start + field.name.len as usize], name)
}

/// Checks a token (RFC 9110 section 5.6.2).
#[inline]
pub fn check_name(name: &[u8]) -> Result<(), BadField> {
    if !name.is_empty() && name.iter().all(|&byte| is_token(byte)) { Ok(()) } else { Err(BadField::Name) }
}

/// Checks that there are no control characters but the tab (RFC 9110 section 5.5).
#[inline]
pub fn check_value(value: &[u8]) -> Result<(), BadField> {
    let has_controls = match value.last_chunk::<8>() {
        Some(last) => {
            // Without an early exit the loop is vectorised.
            let words = value.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            controls(u64::from_le_bytes(*last)) | words.fold(0, |found, word| found | controls(word)) != 0
        }
        // The bytes of the word that are not of the value are made blanks.
        None => controls(short(value) | BLANKS.checked_shl(8 * value.len() as u32).unwrap_or(0)) != 0,
    };
    // Tabs are control characters too, but rare.
    if has_controls && !value.iter().copied().all(is_value_byte) { Err(BadField::Value) } else { Ok(()) }
}

const ONES: u64 = u64::from_le_bytes([0x01; 8]);
const BLANKS: u64 = 0x20 * ONES;

/// Not 0 if a byte of the word is a control character. Other bits than those of that byte may be set then.
#[inline(always)]
const fn controls(word: u64) -> u64 {
    let delete = word ^ (0x7f * ONES);
    (word.wrapping_sub(BLANKS) & !word | delete.wrapping_sub(ONES) & !delete) & (0x80 * ONES)
}

/// tchar of RFC 9110 section 5.6.2.
#[inline]
pub const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// field-vchar, SP or HTAB, obs-text included (RFC 9110 section 5.5).
#[inline]
pub const fn is_value_byte(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7f || byte == b'\t'
}

static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = matches!(byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*'
            | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

/// Whether names are equal but for case, `-` and `_`.
fn is_alike(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| folded(*one) == folded(*other))
}

#[cfg(test)]
mod tests;
