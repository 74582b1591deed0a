//! hot path
//!
//! Decoding of field blocks.

use super::fixed::FIELDS;
use super::table::Table;
use crate::field_list::{About, BEHIND, BETWEEN, Bad, Limited, List};
use crate::prefixed::Reader;

/// The largest block; a connection limits its blocks to far less.
const LARGEST: usize = 1 << 30;

/// Decodes the blocks of one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The announced limit of the table's size.
    announced: usize,
}

impl Decoder {
    /// `max_table_size` is the announced SETTINGS_HEADER_TABLE_SIZE. A peer starts with 4096 until
    /// it has received the settings, so a smaller value only fits if its blocks come later.
    pub fn new(max_table_size: usize) -> Decoder {
        let announced = max_table_size.min(LARGEST);
        Decoder { table: Table::new(announced), announced }
    }

    /// Decodes a whole block into `list`, up to `most_fields`, whose names and values have at most
    /// `most_bytes`. A block that exceeds these limits is decoded nevertheless, for the sake of the
    /// dynamic table, without keeping its fields: the connection can continue.
    ///
    /// # Errors
    /// Why the block is invalid; the list is empty then. After [`Bad::Coding`] the connection must
    /// end with COMPRESSION_ERROR.
    pub fn decode(
        &mut self,
        block: &[u8],
        list: &mut List,
        most_bytes: usize,
        most_fields: usize,
    ) -> Result<(), Bad> {
        let mut limited = Limited::new(list, most_bytes, most_fields);
        let done = self.read(block, &mut limited);
        let within = limited.finish();
        if done.is_err() {
            list.clear();
        }
        done.and(within)
    }

    /// The size of the dynamic table (RFC 7541 section 4.1).
    #[cfg(test)]
    pub(super) fn table_size(&self) -> usize {
        self.table.size()
    }

    fn read(&mut self, block: &[u8], to: &mut Limited<'_>) -> Result<(), Bad> {
        if block.len() > LARGEST {
            return Err(Bad::Coding);
        }
        let mut from = Reader(block);
        while let Some(0x20..0x40) = from.0.first() {
            let limit = from.integer(5)?;
            if limit > self.announced {
                return Err(Bad::Coding);
            }
            self.table.set_limit(limit);
        }
        while let Some(&first) = from.0.first() {
            match first {
                0x80.. => self.indexed(from.integer(7)?, to)?,
                0x40.. => self.literal(6, true, &mut from, to)?,
                // A change of the table's size comes before all fields.
                0x20.. => return Err(Bad::Coding),
                // "Never indexed" differs from "without indexing" only for those that forward it.
                _ => self.literal(4, false, &mut from, to)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn indexed(&self, index: usize, to: &mut Limited<'_>) -> Result<(), Bad> {
        let at = index.checked_sub(1).ok_or(Bad::Coding)?;
        match FIELDS.get(at) {
            Some(field) => to.line((field.line, b""), field.about),
            None => {
                let entry = self.table.get(at - FIELDS.len()).ok_or(Bad::Coding)?;
                to.line(self.table.line(entry), entry.about);
            }
        }
        Ok(())
    }

    /// Decodes a literal, whose index has `bits` and refers to a name.
    #[inline]
    fn literal(
        &mut self,
        bits: u32,
        inserts: bool,
        from: &mut Reader<'_>,
        to: &mut Limited<'_>,
    ) -> Result<(), Bad> {
        let index = from.integer(bits)?;
        let text = &mut to.list.text;
        let start = text.len();
        let about = if index == 0 {
            from.text(7, text)?;
            About::name(&text[start..])
        } else if let Some(field) = FIELDS.get(index - 1) {
            text.extend_from_slice(field.name());
            field.about
        } else {
            let entry = self.table.get(index - 1 - FIELDS.len()).ok_or(Bad::Coding)?;
            let (first, second) = self.table.name(entry);
            text.extend_from_slice(first);
            text.extend_from_slice(second);
            entry.about
        };
        text.extend_from_slice(BETWEEN);
        let length = from.text(7, text)?;
        // A name of the table may have had a value that is not clean; at worst this one is checked
        // again by those that read the list.
        let about = about.with(&text[text.len() - length..]);
        text.extend_from_slice(BEHIND);
        if inserts {
            self.table.insert(&text[start..], about);
        }
        to.end(start, about)
    }
}
