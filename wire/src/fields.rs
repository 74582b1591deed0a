//! hot path
//!
//! The header fields of one message, kept as spans into one reused text buffer.
//!
//! A head's bytes are copied once into `text` (a few hundred bytes, one memcpy),
//! so the connection's read buffer is free for the body at once. Later edits
//! append to the same text. Between messages the buffers are cleared, not freed:
//! a connection in steady state allocates nothing.

use crate::names::{Name, same_in_any_case};

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
    pub name: Span,
    pub value: Span,
}

/// A name or value that must not stand in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadField {
    /// The name is empty or not a token (RFC 9110 section 5.6.2).
    Name,
    /// The value holds CR, LF, NUL or another control character (RFC 9110 section 5.5).
    Value,
}

impl std::fmt::Display for BadField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BadField::Name => "a header name must be a token of letters, digits and !#$%&'*+-.^_`|~",
            BadField::Value => "a header value must not hold CR, LF, NUL or other control characters",
        })
    }
}

impl std::error::Error for BadField {}

/// An ordered list of fields over one text.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    text: Vec<u8>,
    list: Vec<Field>,
}

impl Fields {
    pub fn new() -> Fields {
        Fields::default()
    }

    /// Forgets all fields; keeps at most `keep` bytes of capacity so that one
    /// huge head does not stay with an idle connection.
    pub fn clear(&mut self, keep: usize) {
        self.list.clear();
        self.text.clear();
        if self.text.capacity() > keep {
            self.text.shrink_to(keep);
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The bytes behind a span of this list.
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
        self.list.iter().find(|field| field.id == id).map(|field| self.bytes(field.value))
    }

    /// The first value of a name given as text, in any case.
    #[inline]
    pub fn get_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.get_checked(Name::from_bytes(name), name)
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
        self.list.iter().any(|field| field.id == id)
    }

    /// Puts text into the buffer and returns where it lies. For callers that
    /// keep more than fields beside them (targets, normal forms).
    #[inline]
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        let span = Span { start: self.text.len() as u32, len: bytes.len() as u32 };
        self.text.extend_from_slice(bytes);
        span
    }

    /// Makes `head` the text. For decoders, whose spans count from the start of a
    /// head and which push fields before its end is known: one copy a head.
    #[inline]
    pub(crate) fn load(&mut self, head: &[u8]) {
        self.text.clear();
        self.text.extend_from_slice(head);
    }

    /// As [`Fields::intern`], for text that is made on the way.
    #[inline]
    pub(crate) fn intern_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Span {
        let start = self.text.len() as u32;
        write(&mut self.text);
        Span { start, len: self.text.len() as u32 - start }
    }

    /// As [`Fields::intern`], for text that is made on the way and may fail.
    #[inline]
    pub(crate) fn try_intern_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Span, E> {
        let start = self.text.len() as u32;
        write(&mut self.text)?;
        Ok(Span { start, len: self.text.len() as u32 - start })
    }

    /// Adds a field whose name and value are already checked spans of this text.
    #[inline]
    pub fn push(&mut self, field: Field) {
        self.list.push(field);
    }

    /// Adds a field at the end.
    pub fn append(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        check_name(name)?;
        check_value(value)?;
        self.append_checked(Name::from_bytes(name), name, value);
        Ok(())
    }

    /// Adds a field of a known name at the end.
    #[inline]
    pub fn append_id(&mut self, id: Name, value: &[u8]) -> Result<(), BadField> {
        check_value(value)?;
        self.append_checked(id, id.as_str().as_bytes(), value);
        Ok(())
    }

    /// Gives the name exactly this one value: the first field of the name is
    /// changed in place (with its spelling kept), further ones go.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadField> {
        check_name(name)?;
        check_value(value)?;
        self.set_checked(Name::from_bytes(name), name, value);
        Ok(())
    }

    /// As [`Fields::set`] for a known name.
    #[inline]
    pub fn set_id(&mut self, id: Name, value: &[u8]) -> Result<(), BadField> {
        check_value(value)?;
        self.set_checked(id, id.as_str().as_bytes(), value);
        Ok(())
    }

    /// Removes every field of the name; says whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        self.remove_checked(Name::from_bytes(name), name)
    }

    /// As [`Fields::remove`], for a name whose id was looked up before.
    pub fn remove_checked(&mut self, id: Name, name: &[u8]) -> bool {
        let before = self.list.len();
        let text = &self.text;
        self.list.retain(|field| !same(text, field, id, name));
        self.list.len() != before
    }

    /// Removes every field of a known name; says whether there was one.
    #[inline]
    pub fn remove_id(&mut self, id: Name) -> bool {
        debug_assert_ne!(id, Name::Other);
        let before = self.list.len();
        self.list.retain(|field| field.id != id);
        self.list.len() != before
    }

    /// Removes fields whose names differ from this one in case and in `-` and `_` alone, but not those of the
    /// name itself. Servers that make variables of names (CGI, WSGI) take them for the same.
    pub fn remove_lookalikes(&mut self, name: &[u8]) {
        let text = &self.text;
        self.list.retain(|field| {
            let start = field.name.start as usize;
            let own = &text[start..start + field.name.len as usize];
            same_in_any_case(own, name) || !is_alike(own, name)
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

    /// Becomes a copy of others, in the memory that it has.
    pub fn copy_from(&mut self, others: &Fields) {
        self.text.clone_from(&others.text);
        self.list.clone_from(&others.list);
    }

    /// Whether there is a field of the name, or of one that servers take for the same.
    pub fn contains_alike(&self, name: &[u8]) -> bool {
        self.list.iter().any(|field| is_alike(self.bytes(field.name), name))
    }

    /// Keeps the fields of the names for which `keep` says so.
    #[inline]
    pub fn retain_ids(&mut self, keep: impl Fn(Name) -> bool) {
        self.list.retain(|field| keep(field.id));
    }

    /// Removes the fields whose names have no number of their own and are told to go.
    pub fn remove_others(&mut self, goes: impl Fn(&[u8]) -> bool) {
        let text = &self.text;
        let name = |field: &Field| &text[field.name.start as usize..][..field.name.len as usize];
        self.list.retain(|field| field.id != Name::Other || !goes(name(field)));
    }

    /// Writes all fields as `name: value CRLF` lines (RFC 9112 section 5), made anew.
    #[inline]
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for field in &self.list {
            self.write_line(field, out);
        }
    }

    /// Writes one field of this list as a line. A field that lies in the text in just that form, as most do
    /// that came in a head, is copied in one piece.
    #[inline]
    pub fn write_line(&self, field: &Field, out: &mut Vec<u8>) {
        let Field { name, value, .. } = field;
        let (start, between) = (name.start as usize, (name.start + name.len) as usize);
        let end = (value.start + value.len) as usize;
        if value.start as usize == between + 2
            && self.text.get(between..between + 2) == Some(b": ")
            && self.text.get(end..end + 2) == Some(b"\r\n")
        {
            out.extend_from_slice(&self.text[start..end + 2]);
            return;
        }
        out.extend_from_slice(self.bytes(*name));
        out.extend_from_slice(b": ");
        out.extend_from_slice(self.bytes(*value));
        out.extend_from_slice(b"\r\n");
    }

    /// As [`Fields::append`], for a name and a value that were checked before.
    #[inline]
    pub fn append_checked(&mut self, id: Name, name: &[u8], value: &[u8]) {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        let name = self.intern(name);
        let value = self.intern(value);
        self.list.push(Field { id, name, value });
    }

    /// As [`Fields::set`], for a name and a value that were checked before.
    #[inline]
    pub fn set_checked(&mut self, id: Name, name: &[u8], value: &[u8]) {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        let Some(first) = self.place(0, id, name) else {
            self.append_checked(id, name, value);
            return;
        };
        self.list[first].value = self.intern(value);
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

    /// The place of the first field of this name from `start` on. Known names are found by their id alone.
    #[inline]
    fn place(&self, start: usize, id: Name, name: &[u8]) -> Option<usize> {
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
    if field.name.len as usize != name.len() {
        return false;
    }
    let start = field.name.start as usize;
    same_in_any_case(&text[start..start + field.name.len as usize], name)
}

/// A token (RFC 9110 section 5.6.2).
#[inline]
pub fn check_name(name: &[u8]) -> Result<(), BadField> {
    if !name.is_empty() && name.iter().all(|&byte| is_token(byte)) { Ok(()) } else { Err(BadField::Name) }
}

/// No control characters but the tab (RFC 9110 section 5.5).
#[inline]
pub fn check_value(value: &[u8]) -> Result<(), BadField> {
    // Without an early end the loop is done in vectors.
    let bad = value.iter().fold(false, |bad, &byte| bad | !is_value_byte(byte));
    if bad { Err(BadField::Value) } else { Ok(()) }
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

/// Whether names are the same but for case, `-` and `_`.
fn is_alike(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| folded(*one) == folded(*other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fields: &Fields) -> String {
        let mut out = Vec::new();
        fields.write_to(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn set_replaces_the_first_and_drops_the_rest() {
        let mut fields = Fields::new();
        for value in ["1", "2", "3"] {
            fields.append(b"X-A", value.as_bytes()).unwrap();
            fields.append(b"X-B", value.as_bytes()).unwrap();
        }
        fields.set(b"x-a", b"9").unwrap();
        assert_eq!(text(&fields), "X-A: 9\r\nX-B: 1\r\nX-B: 2\r\nX-B: 3\r\n");
        assert!(fields.remove(b"x-b"));
        assert!(!fields.remove(b"x-b"));
        assert_eq!(text(&fields), "X-A: 9\r\n");
    }

    #[test]
    fn lookalikes_are_other_spellings_and_nothing_else() {
        let mut fields = Fields::new();
        for name in
            ["X-User-Id", "x_user_id", "X_User-ID", "X-User-Ids", "XxUser-Id", "X-User.Id", "x-user-id"]
        {
            fields.append(name.as_bytes(), b"1").unwrap();
        }
        fields.remove_lookalikes(b"X-User-Id");
        let names: Vec<_> =
            fields.iter().map(|(name, _, _)| String::from_utf8_lossy(name).into_owned()).collect();
        assert_eq!(names, ["X-User-Id", "X-User-Ids", "XxUser-Id", "X-User.Id", "x-user-id"]);
        assert!(fields.contains_alike(b"x_USER_id") && fields.contains_alike(b"X-User-Id"));
        assert!(!fields.contains_alike(b"X-User-I") && !fields.contains_alike(b"X-User_Idx"));
        fields.remove_alike(b"X_User-ID");
        assert!(!fields.contains_alike(b"X-User-Id"));
        assert_eq!(text(&fields), "X-User-Ids: 1\r\nXxUser-Id: 1\r\nX-User.Id: 1\r\n");
        let mut fields = Fields::new();
        for name in ["User-Agent", "Content-Type"] {
            fields.append(name.as_bytes(), b"1").unwrap();
        }
        fields.remove_lookalikes(b"user_agent");
        assert_eq!(text(&fields), "Content-Type: 1\r\n");
    }

    /// Whatever spacing the fields came with, and whatever was changed since, the lines are those of names and values.
    #[test]
    fn lines_are_the_same_however_a_field_lies_in_the_text() {
        let mut fields = Fields::new();
        let head = b"A: 1\r\nB:2\r\nC:\t3 \r\nD: 4 \r\nE: \r\n\r\n";
        fields.load(head);
        let at = |text: &[u8]| head.windows(text.len()).position(|window| window == text).unwrap() as u32;
        for (name, value, len) in
            [(b"A", at(b"1"), 1), (b"B", at(b"2"), 1), (b"C", at(b"3"), 1), (b"D", at(b"4"), 1)]
        {
            let name = Span { start: at(name), len: 1 };
            fields.push(Field { id: Name::Other, name, value: Span { start: value, len } });
        }
        let value = Span { start: at(b"E: ") + 3, len: 0 };
        fields.push(Field { id: Name::Other, name: Span { start: at(b"E"), len: 1 }, value });
        assert_eq!(text(&fields), "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: \r\n");
        fields.set(b"a", b"9").unwrap();
        fields.append(b"F", b": \t").unwrap();
        assert_eq!(text(&fields), "A: 9\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: \r\nF: : \t\r\n");
    }

    /// Of whatever length the lines are, and with whatever white space: none is taken for longer or shorter than it is.
    #[test]
    fn lines_end_where_they_end() {
        for (before, spaces, length) in
            (0..12).flat_map(|a| (0..12).flat_map(move |b| (0..24).map(move |c| (a, b, c))))
        {
            let (before, value) = ("b".repeat(before), "v".repeat(length));
            let mut fields = Fields::new();
            let space = [" ", "\t"][length % 2].repeat(spaces);
            let head = format!("A: {before}\r\nB:{space}{value}\r\nC: 1\r\nD: 2\r\n\r\n");
            fields.load(head.as_bytes());
            let start = before.len() + 5;
            let mut push = |name: usize, value: usize, len: usize| {
                let span = |start: usize, len: usize| Span { start: start as u32, len: len as u32 };
                fields.push(Field { id: Name::Other, name: span(name, 1), value: span(value, len) });
            };
            push(0, 3, before.len());
            push(start, start + 2 + spaces, length);
            let end = start + 2 + spaces + length + 2;
            push(end, end + 3, 1);
            assert_eq!(text(&fields), format!("A: {before}\r\nB: {value}\r\nC: 1\r\n"), "{head:?}");
        }
    }

    #[test]
    fn a_known_name_is_one_name_in_every_spelling() {
        let mut fields = Fields::new();
        assert!(fields.is_empty() && !fields.contains(Name::Host));
        fields.append(b"HOST", b"a").unwrap();
        fields.append_id(Name::Cookie, b"b").unwrap();
        fields.append(b"host", b"c").unwrap();
        assert!(!fields.is_empty() && fields.len() == 3);
        assert!(fields.contains(Name::Host) && !fields.contains(Name::Authorization));
        assert_eq!((fields.get(Name::Host), fields.get_named(b"hOSt")), (Some(&b"a"[..]), Some(&b"a"[..])));
        assert_eq!(fields.all(b"Host").collect::<Vec<_>>(), [b"a", b"c"]);
        assert!(fields.remove_id(Name::Host), "it says that there was one");
        assert!(!fields.remove_id(Name::Host), "and that there is none");
        assert_eq!(text(&fields), "Cookie: b\r\n");
    }

    #[test]
    fn a_huge_head_does_not_stay_in_memory() {
        let mut fields = Fields::new();
        fields.append(b"X-Huge", &[b'x'; 100_000]).unwrap();
        fields.clear(1000);
        assert!(fields.is_empty() && fields.text.capacity() <= 1000);
        fields.append(b"X-Small", &[b'x'; 500]).unwrap();
        let kept = fields.text.capacity();
        fields.clear(10_000);
        assert_eq!(fields.text.capacity(), kept, "a small one does, for the next head");
    }

    #[test]
    fn heads_forget_the_last_message_and_keep_a_small_buffer() {
        let mut request = crate::RequestHead::default();
        let mut response = crate::ResponseHead { status: 200, ..Default::default() };
        for (bytes, kept) in [(4000, true), (100_000, false)] {
            let value = vec![b'x'; bytes];
            request.fields.append(b"X", &value).unwrap();
            response.fields.append(b"X", &value).unwrap();
            request.clear();
            response.clear();
            assert!(request.fields.is_empty() && response.fields.is_empty());
            assert_eq!((response.status, response.fields.bytes(Span::default())), (0, &b""[..]));
            for fields in [&request.fields, &response.fields] {
                assert_eq!(fields.text.capacity() >= 4000, kept || fields.text.capacity() <= 8192, "{bytes}");
                assert!(fields.text.capacity() <= 8192, "{bytes}");
            }
        }
    }

    #[test]
    fn a_refusal_says_whether_the_name_or_the_value_is_wrong() {
        assert!(BadField::Name.to_string().contains("name must be a token"));
        assert!(BadField::Value.to_string().contains("value must not hold CR, LF"));
    }

    #[test]
    fn nothing_that_splits_a_head_gets_in() {
        let mut fields = Fields::new();
        assert_eq!(fields.set(b"a", b"b\r\nc: d"), Err(BadField::Value));
        assert_eq!(fields.append(b"a", b"b\0"), Err(BadField::Value));
        assert_eq!(fields.append(b"a b", b"c"), Err(BadField::Name));
        assert_eq!(fields.append(b"", b"c"), Err(BadField::Name));
        assert_eq!(fields.append_id(Name::Host, b"a\n"), Err(BadField::Value));
        assert!(fields.is_empty());
    }
}
