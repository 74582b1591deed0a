//! hot path
//!
//! Fields as lines, `name: value CRLF` (RFC 9112 section 5): a line that is in this form in the text is copied in one
//! piece, and lines that lie side by side, as those of a received head do, are one piece.

use std::ops::Range;

use super::{BadField, Field, Fields, Span, check_name, check_value};
use crate::names::Name;

const BETWEEN: &[u8] = b": ";
const END: &[u8] = b"\r\n";

/// A field line that was checked and formatted once, to be added to many heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldLine {
    /// The spans are of `text`.
    field: Field,
    text: Box<[u8]>,
}

impl FieldLine {
    /// # Errors
    /// The name is not a token, or the value holds control characters.
    pub fn new(name: &[u8], value: &[u8]) -> Result<FieldLine, BadField> {
        check_name(name)?;
        check_value(value)?;
        let mut fields = Fields::new();
        let field = fields.intern_line(Name::from_bytes(name), name, value);
        Ok(FieldLine { field, text: fields.text.into() })
    }

    #[inline]
    pub fn id(&self) -> Name {
        self.field.id
    }

    #[inline]
    pub fn name(&self) -> &[u8] {
        &self.text[..self.field.name.len as usize]
    }

    #[inline]
    pub fn value(&self) -> &[u8] {
        &self.text[self.field.value.start as usize..self.text.len() - END.len()]
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
        let mut piece = 0..0;
        for field in fields {
            match self.line(field) {
                Some(line) if line.start == piece.end => piece.end = line.end,
                line => {
                    out.extend_from_slice(&self.text[piece]);
                    piece = line.unwrap_or_else(|| {
                        self.write_parts(field, out);
                        0..0
                    });
                }
            }
        }
        out.extend_from_slice(&self.text[piece]);
    }

    fn write_parts(&self, field: &Field, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes(field.name));
        out.extend_from_slice(BETWEEN);
        out.extend_from_slice(self.bytes(field.value));
        out.extend_from_slice(END);
    }

    /// Where the field lies in the text as a line, if it does.
    #[inline]
    fn line(&self, field: &Field) -> Option<Range<usize>> {
        let Field { name, value, .. } = field;
        let (start, between) = (name.start as usize, (name.start + name.len) as usize);
        let end = (value.start + value.len) as usize;
        let is_line = value.start as usize == between + BETWEEN.len()
            && self.text.get(between..between + BETWEEN.len()) == Some(BETWEEN)
            && self.text.get(end..end + END.len()) == Some(END);
        is_line.then_some(start..end + END.len())
    }

    /// Adds a checked field's line to the text, but no field to the list.
    #[inline]
    pub fn intern_line(&mut self, id: Name, name: &[u8], value: &[u8]) -> Field {
        debug_assert!(check_name(name).is_ok() && check_value(value).is_ok());
        let name = self.intern(name);
        self.text.extend_from_slice(BETWEEN);
        let value = self.intern(value);
        self.text.extend_from_slice(END);
        Field { id, name, value }
    }

    /// As [`Fields::intern_line`], for a line that was made before.
    #[inline]
    pub fn intern_made(&mut self, line: &FieldLine) -> Field {
        let Span { start, .. } = self.intern(&line.text);
        line.field.behind(start)
    }

    /// Adds all text of other fields, and returns where it begins: their fields can be added here with
    /// [`Field::behind`] it.
    #[inline]
    pub fn intern_text(&mut self, others: &Fields) -> u32 {
        self.intern(&others.text).start
    }

    /// Adds a line at the end.
    #[inline]
    pub fn append_line(&mut self, line: &FieldLine) {
        let field = self.intern_made(line);
        self.list.push(field);
    }

    /// As [`Fields::set`], with a line.
    #[inline]
    pub fn set_line(&mut self, line: &FieldLine) {
        if self.contains_checked(line.id(), line.name()) {
            self.set_checked(line.id(), line.name(), line.value());
        } else {
            self.append_line(line);
        }
    }
}
