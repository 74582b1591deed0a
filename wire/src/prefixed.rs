//! hot path
//!
//! Integers and texts of header compression (RFC 7541 section 5, which QPACK uses unchanged).

use crate::field_list::Bad;
use crate::huffman;
use crate::names::{lower, short};

/// The rest of a coded block.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    /// Decodes an integer in the last `bits` of the next byte and in the bytes after it (RFC 7541
    /// section 5.1). Those of more than 28 bits and more than five further bytes are refused: no
    /// valid length or index is that large.
    #[inline]
    pub(crate) fn integer(&mut self, bits: u32) -> Result<usize, Bad> {
        let (&first, rest) = self.0.split_first().ok_or(Bad::Coding)?;
        self.0 = rest;
        let most = (1usize << bits) - 1;
        let value = usize::from(first) & most;
        if value < most { Ok(value) } else { self.long_integer(most) }
    }

    #[inline(never)]
    fn long_integer(&mut self, most: usize) -> Result<usize, Bad> {
        let (mut value, mut shift) = (most as u64, 0);
        loop {
            let (&byte, rest) = self.0.split_first().ok_or(Bad::Coding)?;
            self.0 = rest;
            if shift > 28 {
                return Err(Bad::Coding);
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return usize::try_from(value).map_err(|_| Bad::Coding);
            }
        }
    }

    /// Appends a text, whose length is in the last `bits` of the next byte; the bit above them
    /// marks Huffman coding (RFC 7541 section 5.2). Returns its decoded length.
    #[inline]
    pub(crate) fn text(&mut self, bits: u32, out: &mut Vec<u8>) -> Result<usize, Bad> {
        let is_coded = self.0.first().is_some_and(|first| first >> bits & 1 == 1);
        let length = self.integer(bits)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Bad::Coding)?;
        let start = out.len();
        if !is_coded {
            out.extend_from_slice(text);
        } else if !huffman::decode(text, out) {
            return Err(Bad::Coding);
        }
        self.0 = rest;
        Ok(out.len() - start)
    }
}

/// Appends an integer in the last `bits` of a byte with the flags above them, and in further bytes.
#[inline]
pub(crate) fn put_integer(flags: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1usize << bits) - 1;
    if value < most {
        return out.push(flags | value as u8);
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a text without Huffman coding.
#[inline]
pub(crate) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    put_integer(0, 7, text.len(), out);
    out.extend_from_slice(text);
}

/// Appends a name in lower case.
#[inline]
pub(crate) fn put_lower(name: &[u8], out: &mut Vec<u8>) {
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        out.extend_from_slice(&lower(u64::from_le_bytes(*word)).to_le_bytes());
    }
    let word = lower(short(rest)).to_le_bytes();
    out.extend_from_slice(&word[..rest.len()]);
}
