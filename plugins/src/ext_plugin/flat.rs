//! FlatBuffers, as far as the runner protocol uses them: tables of numbers, texts, lists of tables, and unions.
//!
//! Not a crate: code that the crate `flatbuffers` generates is unsafe, which this room forbids, and the protocol has
//! ten small tables. Reading trusts no offset; every one is checked against the message, and a message that points to
//! the same bytes many times yields at most its own length again.

/// A field of a table to be written. The order is that of the schema.
pub(super) enum Field<'a> {
    Absent,
    U8(u8),
    U16(u16),
    U32(u32),
    /// A text or a list of bytes.
    Bytes(&'a [u8]),
    /// A list of tables, each with these fields.
    Tables(Vec<Vec<Field<'a>>>),
    /// Only runners send tables within tables.
    #[cfg(test)]
    Table(Vec<Field<'a>>),
}

/// Writes a message whose root is a table with these fields.
pub(super) fn message(fields: &[Field<'_>]) -> Vec<u8> {
    let mut out = vec![0; 4];
    let root = table(&mut out, fields);
    out[..4].copy_from_slice(&offset(root).to_le_bytes());
    out
}

/// Messages are bounded by their frame, so an offset always fits.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn align(out: &mut Vec<u8>) {
    while !out.len().is_multiple_of(4) {
        out.push(0);
    }
}

/// Writes a table: its list of offsets, its fields of four bytes each, and everything they refer to behind it.
fn table(out: &mut Vec<u8>, fields: &[Field<'_>]) -> usize {
    let list = out.len();
    let list_len = 4 + 2 * fields.len();
    let present = fields.iter().filter(|field| !matches!(field, Field::Absent)).count();
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    out.extend(short(list_len));
    out.extend(short(4 + 4 * present));
    let mut at = 4;
    for field in fields {
        match field {
            Field::Absent => out.extend(short(0)),
            _ => {
                out.extend(short(at));
                at += 4;
            }
        }
    }
    align(out);
    let start = out.len();
    out.extend(offset(start - list).to_le_bytes());
    out.resize(start + 4 + 4 * present, 0);
    let mut at = start + 4;
    for field in fields {
        let number = match field {
            Field::Absent => continue,
            Field::U8(number) => u32::from(*number),
            Field::U16(number) => u32::from(*number),
            Field::U32(number) => *number,
            Field::Bytes(bytes) => offset(text(out, bytes) - at),
            Field::Tables(tables) => offset(self::tables(out, tables) - at),
            #[cfg(test)]
            Field::Table(fields) => offset(table(out, fields) - at),
        };
        out[at..at + 4].copy_from_slice(&number.to_le_bytes());
        at += 4;
    }
    align(out);
    start
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) -> usize {
    align(out);
    let start = out.len();
    out.extend(offset(bytes.len()).to_le_bytes());
    out.extend_from_slice(bytes);
    // Texts end with a zero byte.
    out.push(0);
    align(out);
    start
}

fn tables(out: &mut Vec<u8>, tables: &[Vec<Field<'_>>]) -> usize {
    align(out);
    let start = out.len();
    out.extend(offset(tables.len()).to_le_bytes());
    out.resize(start + 4 + 4 * tables.len(), 0);
    for (index, fields) in tables.iter().enumerate() {
        let at = start + 4 + 4 * index;
        align(out);
        let made = offset(table(out, fields) - at);
        out[at..at + 4].copy_from_slice(&made.to_le_bytes());
    }
    start
}

/// A table of a message that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'m> {
    message: &'m [u8],
    start: usize,
    /// The offsets of its fields, two bytes each.
    fields: &'m [u8],
}

impl<'m> Table<'m> {
    /// The root of a message; `None` if it has none.
    pub(super) fn root(message: &'m [u8]) -> Option<Table<'m>> {
        Table::at(message, follow(message, 0)?)
    }

    fn at(message: &'m [u8], start: usize) -> Option<Table<'m>> {
        let back = i64::from(i32::from_le_bytes(bytes(message, start)?));
        let list = usize::try_from(i64::try_from(start).ok()? - back).ok()?;
        let length = usize::from(u16::from_le_bytes(bytes(message, list)?));
        let fields = message.get(list..)?.get(4..length)?;
        Some(Table { message, start, fields })
    }

    /// The place of a field in the message; `None` if the table lacks it.
    fn field(&self, index: usize) -> Option<usize> {
        let at = usize::from(u16::from_le_bytes(bytes(self.fields, 2 * index)?));
        (at != 0).then(|| self.start.checked_add(at))?
    }

    pub(super) fn u8(&self, index: usize) -> u8 {
        self.field(index).and_then(|at| self.message.get(at)).copied().unwrap_or(0)
    }

    pub(super) fn u16(&self, index: usize) -> u16 {
        self.field(index).and_then(|at| bytes(self.message, at)).map_or(0, u16::from_le_bytes)
    }

    pub(super) fn u32(&self, index: usize) -> u32 {
        self.field(index).and_then(|at| bytes(self.message, at)).map_or(0, u32::from_le_bytes)
    }

    /// A text or a list of bytes; `None` if it is absent or lies beyond the message.
    pub(super) fn bytes(&self, index: usize) -> Option<&'m [u8]> {
        let start = follow(self.message, self.field(index)?)?;
        let length = usize::try_from(u32::from_le_bytes(bytes(self.message, start)?)).ok()?;
        self.message.get(start.checked_add(4)?..)?.get(..length)
    }

    pub(super) fn table(&self, index: usize) -> Option<Table<'m>> {
        Table::at(self.message, follow(self.message, self.field(index)?)?)
    }

    /// A list of tables, empty if it is absent; `None` if it lies beyond the message or has more than `most`.
    pub(super) fn tables(&self, index: usize, most: usize) -> Option<Vec<Table<'m>>> {
        let Some(field) = self.field(index) else { return Some(Vec::new()) };
        let start = follow(self.message, field)?;
        let count = usize::try_from(u32::from_le_bytes(bytes(self.message, start)?)).ok()?;
        let first = start.checked_add(4)?;
        // Before memory is taken for them: all may be the same table.
        if count > most {
            return None;
        }
        (0..count).map(|at| Table::at(self.message, follow(self.message, first + 4 * at)?)).collect()
    }
}

/// The place that the offset at `at` leads to.
fn follow(message: &[u8], at: usize) -> Option<usize> {
    let by = usize::try_from(u32::from_le_bytes(bytes(message, at)?)).ok()?;
    at.checked_add(by)
}

fn bytes<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..)?.get(..N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let entry = |name: &'static [u8], value: Option<&'static [u8]>| {
            vec![Field::Bytes(name), value.map_or(Field::Absent, Field::Bytes)]
        };
        message(&[
            Field::U32(7),
            Field::Absent,
            Field::Tables(vec![entry(b"a", Some(b"1")), entry(b"bcd", None), entry(b"", Some(b""))]),
            Field::Table(vec![Field::U16(404), Field::Bytes(b"body")]),
            Field::U8(255),
        ])
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let written = sample();
        let root = Table::root(&written).unwrap();
        assert_eq!((root.u32(0), root.u32(1), root.u8(4), root.u8(5)), (7, 0, 255, 0));
        let entries = root.tables(2, 3).unwrap();
        let pairs: Vec<_> = entries.iter().map(|entry| (entry.bytes(0), entry.bytes(1))).collect();
        assert_eq!(pairs, [(Some(&b"a"[..]), Some(&b"1"[..])), (Some(b"bcd"), None), (Some(b""), Some(b""))]);
        assert!(root.tables(2, 2).is_none(), "more than the most");
        let inner = root.table(3).unwrap();
        assert_eq!((inner.u16(0), inner.bytes(1)), (404, Some(&b"body"[..])));
        assert!(root.table(1).is_none() && root.tables(1, 0).unwrap().is_empty() && root.bytes(9).is_none());
    }

    /// Reads everything that a message may have.
    fn walk(table: &Table<'_>, depth: usize) -> usize {
        let mut seen = 0;
        for index in 0..8 {
            seen += usize::from(table.u8(index)) + usize::from(table.u16(index));
            seen = seen.wrapping_add(table.u32(index) as usize);
            seen += table.bytes(index).map_or(0, <[u8]>::len);
            if depth < 3 {
                seen = seen.wrapping_add(table.table(index).map_or(0, |inner| walk(&inner, depth + 1)));
                let all = table.tables(index, 100).unwrap_or_default();
                seen = all.iter().take(5).fold(seen, |sum, one| sum.wrapping_add(walk(one, depth + 1)));
            }
        }
        seen
    }

    #[test]
    fn wrong_offsets_lead_nowhere() {
        let sample = sample();
        for end in 0..sample.len() {
            if let Some(root) = Table::root(&sample[..end]) {
                walk(&root, 0);
            }
        }
        for at in 0..sample.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut message = sample.clone();
                message[at] = value;
                if let Some(root) = Table::root(&message) {
                    walk(&root, 0);
                }
            }
        }
        for message in [&[][..], &[4, 0, 0, 0], &[0xff; 64], &[0; 64], &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert!(Table::root(message).is_none_or(|root| walk(&root, 0) < 1 << 30));
        }
    }
}
