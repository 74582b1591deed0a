//! hot path
//!
//! Fields as lines, `name: value CRLF` (RFC 9112 section 5): a line that is in this form in the text is copied in one
//! piece, and lines that lie side by side, as those of a received head do, are one piece.

use super::{BadField, Field, Fields, Span, check_name, check_value};
use crate::names::{Name, NameSet};

const BETWEEN: &[u8] = b": ";
const END: &[u8] = b"\r\n";

/// Field lines that were checked and formatted once, to be set in many heads together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldLines {
    text: Box<[u8]>,
    /// Their spans are of `text`.
    list: Box<[Field]>,
    names: NameSet,
}

impl FieldLines {
    /// The last of several lines with the same name is used.
    ///
    /// # Errors
    /// A name is not a token, or a value holds control characters.
    pub fn new<'a>(lines: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<FieldLines, BadField> {
        let (mut given, mut laid) = (Fields::new(), Fields::new());
        lines.into_iter().try_for_each(|(name, value)| given.set(name, value))?;
        given.iter().for_each(|(name, value, id)| laid.append_checked(id, name, value));
        let Fields { text, list, names } = laid;
        Ok(FieldLines { text: text.into(), list: list.into(), names })
    }

    #[inline]
    fn bytes(&self, span: Span) -> &[u8] {
        &self.text[span.start as usize..][..span.len as usize]
    }

    /// Name, value and id of each line, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], Name)> + '_ {
        self.list.iter().map(|field| (self.bytes(field.name), self.bytes(field.value), field.id))
    }
}

impl Fields {
    /// Writes all fields.
    #[inline]
    pub fn write_to(&self, out: &mut Vec<u8>) {
        self.write_lines(&self.list, out);
    }

    /// Writes fields of this list.
    #[inline]
    pub fn write_lines<'a>(&self, fields: impl IntoIterator<Item = &'a Field>, out: &mut Vec<u8>) {
        // A piece of the text that lies in `out` next.
        let (mut from, mut to) = (0, 0);
        for field in fields {
            let (start, end) = (field.name.start as usize, (field.value.start + field.value.len) as usize);
            if !field.is_line || start != to {
                out.extend_from_slice(&self.text[from..to]);
                (from, to) = (start, start);
            }
            if field.is_line {
                debug_assert!(self.is_in_line_form(field));
                to = end + END.len();
            } else {
                self.write_parts(field, out);
            }
        }
        out.extend_from_slice(&self.text[from..to]);
    }

    fn write_parts(&self, field: &Field, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes(field.name));
        out.extend_from_slice(BETWEEN);
        out.extend_from_slice(self.bytes(field.value));
        out.extend_from_slice(END);
    }

    /// Whether the field lies in the text as a line.
    pub(super) fn is_in_line_form(&self, field: &Field) -> bool {
        let Field { name, value, .. } = field;
        let (between, end) = ((name.start + name.len) as usize, (value.start + value.len) as usize);
        value.start as usize == between + BETWEEN.len()
            && self.text.get(between..between + BETWEEN.len()) == Some(BETWEEN)
            && self.text.get(end..end + END.len()) == Some(END)
    }

    /// Adds a checked field's line to the text, but no field to the list.
    #[inline]
    pub fn intern_line(&mut self, id: Name, name: &[u8], value: &[u8]) -> Field {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        self.text.reserve(name.len() + value.len() + BETWEEN.len() + END.len());
        let name = self.intern(name);
        self.text.extend_from_slice(BETWEEN);
        let value = self.intern(value);
        self.text.extend_from_slice(END);
        Field { id, is_line: true, name, value }
    }

    /// Adds the text of lines that were made before, and returns the fields to push.
    #[inline]
    pub fn intern_lines<'l>(&mut self, lines: &'l FieldLines) -> impl Iterator<Item = Field> + use<'l> {
        let Span { start, .. } = self.intern(&lines.text);
        lines.list.iter().map(move |field| field.behind(start))
    }

    /// Adds all text of other fields, and returns where it begins: their fields can be added here with
    /// [`Field::behind`] it.
    #[inline]
    pub fn intern_text(&mut self, others: &Fields) -> u32 {
        self.intern(&others.text).start
    }

    /// As [`Fields::set`], with each of these lines.
    #[inline]
    pub fn set_lines(&mut self, lines: &FieldLines) {
        if self.names.may_meet(lines.names) {
            return lines.iter().for_each(|(name, value, id)| self.set_checked(id, name, value));
        }
        let fields = self.intern_lines(lines);
        self.list.extend(fields);
        self.names.insert_all(lines.names);
    }
}
