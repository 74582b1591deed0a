//! hot path
//!
//! Normalises paths: dot segments, slashes, percent-encodings.

use super::bytes::{BAD, CLASS, CODED, hex_pair, is_unreserved, push_encoded};
use super::{Doubtful, PathRules};
use crate::h1::Refusal;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Decoded,
    Encoded,
}

/// Appends one form of a path; leaves `out` unchanged on an error.
pub(super) fn write_path(
    raw: &[u8],
    rules: &PathRules,
    form: Form,
    out: &mut Vec<u8>,
) -> Result<Doubtful, Refusal> {
    let base = out.len();
    write_segments(raw, rules, form, out).inspect_err(|_| out.truncate(base))
}

fn write_segments(raw: &[u8], rules: &PathRules, form: Form, out: &mut Vec<u8>) -> Result<Doubtful, Refusal> {
    let Some((b'/', mut rest)) = raw.split_first() else {
        return Err(Refusal::Target);
    };
    let base = out.len();
    let mut found = Doubtful::NONE;
    // Always ends with the slash that precedes the segment being read.
    out.push(b'/');
    loop {
        let (segment, after) = match memchr::memchr(b'/', rest) {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        let kind = if rules.resolve_dots { dots(segment)? } else { Dots::No };
        match kind {
            Dots::No => {
                found = found.with(write_segment(segment, rules, form, out)?);
                if after.is_some() && !(segment.is_empty() && rules.merge_slashes) {
                    out.push(b'/');
                }
            }
            Dots::One => {}
            Dots::Two => {
                out.pop();
                let Some(slash) = memchr::memrchr(b'/', &out[base..]) else {
                    return Err(Refusal::AboveRoot);
                };
                out.truncate(base + slash + 1);
            }
        }
        match after {
            Some(after) => rest = after,
            None => return Ok(found),
        }
    }
}

/// Resolves the dot segments of an encoded path; nothing else changes.
pub(super) fn resolve_dots(path: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut found = false;
    for segment in path.split(|&byte| byte == b'/') {
        found |= !matches!(dots(segment)?, Dots::No);
    }
    if !found {
        return Ok(());
    }
    let mut out = Vec::with_capacity(path.len());
    let mut segments = path.split(|&byte| byte == b'/').skip(1).peekable();
    out.push(b'/');
    while let Some(segment) = segments.next() {
        match dots(segment)? {
            Dots::No => {
                out.extend_from_slice(segment);
                if segments.peek().is_some() {
                    out.push(b'/');
                }
            }
            Dots::One => {}
            Dots::Two => {
                out.pop();
                let slash = memchr::memrchr(b'/', &out).ok_or(Refusal::AboveRoot)?;
                out.truncate(slash + 1);
            }
        }
    }
    *path = out;
    Ok(())
}

fn write_segment(
    segment: &[u8],
    rules: &PathRules,
    form: Form,
    out: &mut Vec<u8>,
) -> Result<Doubtful, Refusal> {
    let mut found = Doubtful::NONE;
    let mut at = 0;
    while let Some(&byte) = segment.get(at) {
        let coded = byte == b'%';
        let value = match coded {
            true => hex_pair(segment, at).ok_or(Refusal::PercentEncoding)?,
            false => byte,
        };
        at += if coded { 3 } else { 1 };
        found = found.with(match value {
            0..=0x1f | 0x7f if coded => Doubtful::CONTROL,
            0..=0x1f | 0x7f => return Err(Refusal::BadPath),
            b' ' | b'#' | b'?' if !coded => return Err(Refusal::BadPath),
            b'/' => Doubtful::ENCODED_SLASH,
            b'\\' => Doubtful::BACKSLASH,
            b';' => Doubtful::SEMICOLON,
            _ => Doubtful::NONE,
        });
        let stays_encoded = coded
            && match form {
                Form::Decoded => stays_coded(value, rules),
                Form::Encoded => !is_unreserved(value) || is_kept(value, rules),
            };
        let must_encode = form == Form::Encoded && CLASS[value as usize] & (BAD | CODED) != 0;
        if stays_encoded || must_encode {
            push_encoded(value, out);
        } else {
            out.push(value);
        }
    }
    if found.meets(rules.refused) { Err(Refusal::BadPath) } else { Ok(found) }
}

/// Whether a byte stays encoded in the decoded form: see the module's documentation.
pub(super) fn stays_coded(value: u8, rules: &PathRules) -> bool {
    matches!(value, b'/' | b'%' | 0..=0x1f | 0x7f) || is_kept(value, rules)
}

/// Whether an encoded unreserved character stays encoded; dots would become dot segments.
fn is_kept(value: u8, rules: &PathRules) -> bool {
    is_unreserved(value) && !rules.decode_unreserved || value == b'.' && !rules.resolve_dots
}

enum Dots {
    No,
    One,
    Two,
}

/// Whether a segment is `.` or `..`; an error if only some servers would treat it so: those that
/// cut parameters off (`..;x`) or decode `%2F` and `\` first (`..%2Fx`).
fn dots(segment: &[u8]) -> Result<Dots, Refusal> {
    let mut rest = segment;
    let mut count = 0;
    let mut first = true;
    loop {
        let (value, length) = match rest {
            [] => break,
            [b'%', ..] => (hex_pair(rest, 0).unwrap_or(b'%'), 3.min(rest.len())),
            [byte, ..] => (*byte, 1),
        };
        match value {
            b'.' => count += 1,
            b'/' | b'\\' | b';' if matches!(count, 1 | 2) => return Err(Refusal::BadPath),
            b'/' | b'\\' => {
                count = 0;
                first = false;
            }
            // Not a dot: counts as three of them until the next separator.
            _ => count = 3,
        }
        rest = &rest[length..];
    }
    match (count, first) {
        (1, true) => Ok(Dots::One),
        (2, true) => Ok(Dots::Two),
        (1 | 2, false) => Err(Refusal::BadPath),
        _ => Ok(Dots::No),
    }
}
