//! Chunked bodies: RFC 9112 section 7.1.

use super::{Parsed, find, lines, lossy, token};

/// A decoded chunked body.
#[derive(Debug, PartialEq, Eq)]
pub struct ChunkedBody {
    pub consumed: usize,
    pub chunks: Vec<Vec<u8>>,
    /// Name, value, and whether white space was between colon and value.
    pub trailers: Vec<(String, Vec<u8>, bool)>,
}

/// Reads a whole chunked body, without limits.
pub fn chunked(input: &[u8]) -> Parsed<ChunkedBody> {
    let mut chunks = Vec::new();
    let mut at = 0;
    loop {
        let Some(length) = find(&input[at..], b"\r\n") else {
            return Parsed::More;
        };
        let line = &input[at..at + length];
        at += length + 2;
        let digits = line.iter().position(|&b| b == b';').unwrap_or(line.len());
        let (size, extensions) = line.split_at(digits);
        let significant = lossy(size).trim_start_matches('0').to_string();
        if size.is_empty() || !size.iter().all(u8::is_ascii_hexdigit) || significant.len() > 16 {
            return Parsed::No;
        }
        let size = if significant.is_empty() { Ok(0) } else { u64::from_str_radix(&significant, 16) };
        let Ok(size) = size else { return Parsed::No };
        if size >= 1 << 63 || !extensions_ok(extensions) {
            return Parsed::No;
        }
        if size == 0 {
            break;
        }
        let rest = &input[at..];
        let Some(after) = usize::try_from(size).ok().filter(|&size| size <= rest.len()) else {
            return Parsed::More;
        };
        let end = &rest[after..];
        if !b"\r\n".starts_with(&end[..end.len().min(2)]) {
            return Parsed::No;
        }
        if end.len() < 2 {
            return Parsed::More;
        }
        chunks.push(rest[..after].to_vec());
        at += after + 2;
    }
    // trailer-section CRLF: look for the empty line from the last CRLF on.
    let Some(length) = find(&input[at - 2..], b"\r\n\r\n") else {
        return Parsed::More;
    };
    let section = &input[at - 2..at - 2 + length];
    let consumed = at - 2 + length + 4;
    let trailers = match section.strip_prefix(b"\r\n") {
        None => Some(vec![]),
        Some(section) => lines(section).and_then(|lines| plain_fields(&lines)),
    };
    match trailers {
        Some(trailers) => Parsed::Read(ChunkedBody { consumed, chunks, trailers }),
        None => Parsed::No,
    }
}

/// Trailer fields: as header fields, without the rules about framing.
fn plain_fields(lines: &[&[u8]]) -> Option<Vec<(String, Vec<u8>, bool)>> {
    let mut fields = Vec::new();
    for line in lines {
        let colon = line.iter().position(|&b| b == b':')?;
        let name = token(&line[..colon])?;
        let value = &line[colon + 1..];
        let first = value.iter().position(|b| !b" \t".contains(b)).unwrap_or(value.len());
        let last = value.iter().rposition(|b| !b" \t".contains(b)).map_or(first, |at| at + 1);
        fields.push((name, value[first..last].to_vec(), first > 0));
    }
    Some(fields)
}

/// chunk-ext of RFC 9112 section 7.1.1, as a small machine over the bytes; white space is
/// allowed where the grammar has BWS, but not before the first `;` and not at the end.
fn extensions_ok(text: &[u8]) -> bool {
    #[derive(PartialEq, Clone, Copy)]
    enum At {
        Start,
        BeforeName,
        Name,
        AfterName,
        BeforeValue,
        Value,
        Quoted,
        Escaped,
        AfterValue,
    }
    let is_token = |b: u8| token(&[b]).is_some();
    let mut at = At::Start;
    for &b in text {
        if b < 32 && b != 9 || b == 127 {
            return false;
        }
        let blank = b == b' ' || b == b'\t';
        at = match (at, b) {
            (At::Start, b';') => At::BeforeName,
            (At::BeforeName, _) if blank => At::BeforeName,
            (At::BeforeName | At::Name, b) if is_token(b) => At::Name,
            (At::Name | At::AfterName, _) if blank => At::AfterName,
            (At::Name | At::AfterName, b'=') => At::BeforeValue,
            (At::Name | At::AfterName | At::Value | At::AfterValue, b';') => At::BeforeName,
            (At::BeforeValue, _) if blank => At::BeforeValue,
            (At::BeforeValue, b'"') => At::Quoted,
            (At::BeforeValue | At::Value, b) if is_token(b) => At::Value,
            (At::Quoted, b'"') => At::AfterValue,
            (At::Quoted, b'\\') => At::Escaped,
            (At::Quoted | At::Escaped, _) => At::Quoted,
            (At::Value | At::AfterValue, _) if blank => At::AfterValue,
            _ => return false,
        };
    }
    let blank_end = matches!(text.last(), Some(b' ' | b'\t'));
    matches!(at, At::Start | At::Name | At::Value | At::AfterValue) && !blank_end
}
