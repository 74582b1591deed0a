//! hot path
//!
//! Finds the ends of tokens, targets and values: byte classes and field lines.

use crate::fields::{is_token, is_value_byte};
use crate::names::Name;

use super::Refusal;

/// Why parsing stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The input ends here, without an error so far.
    More,
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    #[inline]
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

/// One field line, as offsets into the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub id: Name,
    pub name_end: usize,
    pub value_start: usize,
    pub value_end: usize,
    /// Offset of the next line.
    pub next: usize,
}

/// Parses the field line at `at`; `None` is the empty line, two bytes long, that ends the section
/// (RFC 9112 section 5).
#[inline(always)]
pub(crate) fn field_line(input: &[u8], at: usize) -> Result<Option<Line>, Stop> {
    let (name_end, id) = name(input, at);
    match input.get(name_end) {
        Some(b':') if name_end > at => {}
        Some(b'\r') if name_end == at => return end_of_line(input, at).map(|_| None),
        Some(&byte) => return Err(Stop::Refused(bad_name(byte, name_end == at))),
        None => return Err(Stop::More),
    }
    let mut value_start = name_end + 1;
    while let Some(b' ' | b'\t') = input.get(value_start) {
        value_start += 1;
    }
    let line_end = value_end(input, value_start);
    let next = end_of_line(input, line_end)?;
    let mut value_end = line_end;
    while value_end > value_start && matches!(input[value_end - 1], b' ' | b'\t') {
        value_end -= 1;
    }
    Ok(Some(Line { id, name_end, value_start, value_end, next }))
}

/// The end of the name at `at`, and its id. A known name contains only token bytes, so it is not
/// checked byte by byte.
#[inline(always)]
fn name(input: &[u8], at: usize) -> (usize, Name) {
    let mut end = at;
    while end - at < LONGEST_KNOWN
        && let Some(word) = input.get(end..).and_then(<[u8]>::first_chunk::<8>)
    {
        let colons = zero_bytes(u64::from_le_bytes(*word) ^ COLONS);
        if colons == 0 {
            end += 8;
            continue;
        }
        end += (colons.trailing_zeros() / 8) as usize;
        return match Name::from_bytes(&input[at..end]) {
            // An unknown name may end before the colon, and is then refused.
            Name::Other => (token_end(input, at), Name::Other),
            known => (end, known),
        };
    }
    let end = token_end(input, at);
    (end, Name::from_bytes(&input[at..end]))
}

/// How far the colon after a known name is searched for, in bytes (whole words).
const LONGEST_KNOWN: usize = crate::names::LONGEST.next_multiple_of(8) + 8;
const COLONS: u64 = u64::from_le_bytes([b':'; 8]);

/// The offset after the CRLF required at `at`.
#[inline(always)]
pub(crate) fn end_of_line(input: &[u8], at: usize) -> Result<usize, Stop> {
    match (input.get(at), input.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(at + 2),
        (None, _) | (Some(b'\r'), None) => Err(Stop::More),
        (Some(b'\r'), Some(_)) => Err(Stop::Refused(Refusal::BareCr)),
        (Some(b'\n'), _) => Err(Stop::Refused(Refusal::BareLf)),
        (Some(0), _) => Err(Stop::Refused(Refusal::Nul)),
        (Some(_), _) => Err(Stop::Refused(Refusal::Control)),
    }
}

/// The offset of the first byte at or after `at` that is not a token byte.
#[inline(always)]
pub(crate) fn token_end(input: &[u8], at: usize) -> usize {
    let rest = input.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !is_token(byte)).unwrap_or(rest.len())
}

/// The offset of the first byte at or after `at` that is not allowed in a value.
#[inline(always)]
pub(crate) fn value_end(input: &[u8], mut at: usize) -> usize {
    while let Some(word) = input.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let hits = value_breaks(u64::from_le_bytes(*word));
        if hits == 0 {
            at += 8;
            continue;
        }
        at += (hits.trailing_zeros() / 8) as usize;
        if input[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    let rest = input.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !is_value_byte(byte)).unwrap_or(rest.len())
}

/// The high bit of each byte below 0x20 or equal to 0x7f. A subtraction's borrow can
/// only set bits above a true hit, so the lowest set bit is always a true one.
#[inline(always)]
const fn value_breaks(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    control | zero_bytes(word ^ (ONES * 0x7f))
}

/// The high bit of each byte that is 0, and perhaps of some above the lowest such byte.
#[inline(always)]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

const ONES: u64 = u64::from_le_bytes([0x01; 8]);
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

#[cold]
fn bad_name(byte: u8, at_start: bool) -> Refusal {
    match byte {
        b' ' | b'\t' if at_start => Refusal::LeadingSpace,
        b' ' | b'\t' => Refusal::SpaceBeforeColon,
        b'\n' => Refusal::BareLf,
        0 => Refusal::Nul,
        _ => Refusal::FieldName,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_end_agrees_with_the_naive_scan() {
        let names = [&b""[..], b"a", b"Host", b"Content-Length", b"X-Unheard-Of", &[b'x'; 70]];
        let known = Name::KNOWN.iter().map(|(_, text)| text.as_bytes());
        for text in names.into_iter().chain(known) {
            for behind in [&b""[..], b":", b": v\r\n", b":::::::::", b" : value\r\n", b"\r\nA: value"] {
                for place in 0..=text.len() {
                    for odd in [None, Some(b' '), Some(b':'), Some(b'\r'), Some(0), Some(0xba), Some(b'_')] {
                        let mut input = [b"A:", text, behind].concat();
                        if let Some(odd) = odd {
                            input.insert(2 + place, odd);
                        }
                        let end = token_end(&input, 2);
                        let expected = (end, Name::from_bytes(&input[2..end]));
                        let found = name(&input, 2);
                        // A name without a colon after it is refused, known or not.
                        if input.get(end) == Some(&b':') {
                            assert_eq!(found, expected, "{input:?}");
                        } else {
                            assert_eq!(found.0, end, "{input:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn value_end_agrees_with_the_naive_scan() {
        let plain = |input: &[u8], at: usize| {
            (at..input.len()).find(|&i| !is_value_byte(input[i])).unwrap_or(input.len())
        };
        for byte in 0..=255u8 {
            for place in 0..20 {
                for filler in [b'a', b'\t', 0x80, 0xff, b' ', 0x7e] {
                    let mut input = [filler; 20];
                    input[place] = byte;
                    for at in 0..=20 {
                        assert_eq!(
                            value_end(&input, at),
                            plain(&input, at),
                            "{byte:#x} at {place} from {at}"
                        );
                    }
                }
            }
        }
    }
}
