//! hot path
//!
//! Scans a target's raw bytes: its end, its form, and whether it is already in normal form.

use super::bytes::{BAD, CLASS, CODED, PERCENT, QUERY, SEMICOLON, SLASH, encode_query};
use super::path::{Form, write_path};
use super::{Doubtful, PathRules};
use crate::fields::Span;
use crate::h1::Refusal;
use crate::h1::decode::span;
use crate::h1::scan::Stop;
use crate::head::RequestHead;
use crate::method::Method;

/// A target's parts, as offsets into the input; created by [`scan`].
#[derive(Debug)]
pub(crate) struct Scanned {
    start: usize,
    /// Offset of the space after the target.
    pub(crate) end: usize,
    pub(crate) authority: Option<Span>,
    path: usize,
    path_end: usize,
    /// Path and query contain only bytes and sequences that are already in normal form.
    path_plain: bool,
    query_plain: bool,
    semicolon: bool,
}

/// Finds the end of the target at `start`, checks its bytes and splits its form.
#[inline(always)]
pub(crate) fn scan(input: &[u8], start: usize, method: Method, limit: usize) -> Result<Scanned, Stop> {
    let window = &input[..input.len().min(start.saturating_add(limit).saturating_add(1))];
    let cut = |stop| match stop {
        Stop::More if window.len().saturating_sub(start) > limit => Stop::Refused(Refusal::TargetTooLong),
        stop => stop,
    };
    if input.get(start) == Some(&b'/') && method != Method::Connect {
        scan_path(window, start, start, None).map_err(cut)
    } else {
        scan_other(window, start, method).map_err(cut)
    }
}

#[inline(always)]
fn scan_path(input: &[u8], start: usize, path: usize, authority: Option<Span>) -> Result<Scanned, Stop> {
    let rest = input.get(path..).unwrap_or_default();
    let mut seen = 0u8;
    let mut before = 0u8;
    let mut length = rest.len();
    for (at, &byte) in rest.iter().enumerate() {
        let class = CLASS[byte as usize];
        if class & (BAD | QUERY) != 0 {
            length = at;
            break;
        }
        // AFTER_SLASH counts only right after SLASH.
        seen |= class & (CODED | PERCENT | SEMICOLON | (before << 1));
        before = class & SLASH;
    }
    let path_end = path + length;
    let mut end = path_end;
    let mut query = 0u8;
    if input.get(end) == Some(&b'?') {
        // The question mark itself is an allowed byte.
        let rest = &input[end..];
        let mut length = rest.len();
        for (at, &byte) in rest.iter().enumerate() {
            let class = CLASS[byte as usize];
            if class & BAD != 0 {
                length = at;
                break;
            }
            query |= class & CODED;
        }
        end += length;
    }
    match input.get(end) {
        Some(b' ') => {}
        Some(&byte) => return Err(bad_byte(byte).into()),
        None => return Err(Stop::More),
    }
    let semicolon = seen & SEMICOLON != 0;
    let path_plain = seen & !SEMICOLON == 0;
    Ok(Scanned { start, end, authority, path, path_end, path_plain, query_plain: query == 0, semicolon })
}

#[cold]
fn bad_byte(byte: u8) -> Refusal {
    match byte {
        b'\r' | b'\n' => Refusal::RequestLine,
        _ => Refusal::Target,
    }
}

/// Asterisk, authority and absolute form.
#[cold]
fn scan_other(input: &[u8], start: usize, method: Method) -> Result<Scanned, Stop> {
    let rest = input.get(start..).unwrap_or_default();
    let form = |path: usize, end: usize, authority| Scanned {
        start,
        end,
        authority,
        path,
        path_end: end,
        path_plain: true,
        query_plain: true,
        semicolon: false,
    };
    if rest.first() == Some(&b' ') {
        return Err(Refusal::RequestLine.into());
    }
    if method == Method::Connect || rest.first() == Some(&b'*') {
        let Some(length) = rest.iter().position(|&byte| CLASS[byte as usize] & BAD != 0) else {
            return Err(Stop::More);
        };
        return match rest[length] {
            b' ' if method == Method::Connect => {
                let end = start + length;
                Ok(form(end, end, Some(span(start, end))))
            }
            b' ' => Ok(form(start, start + length, None)),
            byte => Err(bad_byte(byte).into()),
        };
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        let known = rest.len().min(scheme.len());
        rest[..known].eq_ignore_ascii_case(&scheme[..known])
    });
    let Some(scheme) = scheme else {
        return Err(Refusal::Target.into());
    };
    if rest.len() <= scheme.len() {
        return Err(Stop::More);
    }
    let host = start + scheme.len();
    let ends = |byte: &u8| matches!(byte, b'/' | b'?') || CLASS[*byte as usize] & BAD != 0;
    let Some(length) = input[host..].iter().position(ends) else {
        return Err(Stop::More);
    };
    scan_path(input, start, host + length, Some(span(host, host + length)))
}

/// Sets the target's spans of a head whose text starts with `input`. The form is checked here,
/// after the version.
#[inline(always)]
pub(crate) fn resolve(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    if target.path_end < target.end {
        head.has_query = true;
        head.query_span = if target.query_plain {
            span(target.path_end + 1, target.end)
        } else {
            head.fields.intern_with(|out| encode_query(&input[target.path_end + 1..target.end], out))
        };
    }
    if target.authority.is_some() || input[target.path] != b'/' {
        return resolve_other(input, target, head, rules);
    }
    head.target_span = span(target.start, target.end);
    resolve_path(input, target, head, rules)
}

#[inline(always)]
fn resolve_path(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    let raw = &input[target.path..target.path_end];
    head.path_rules = *rules;
    if target.path_plain {
        head.path_span = span(target.path, target.path_end);
        head.encoded_path_span = head.path_span;
        if target.semicolon {
            head.doubtful = Doubtful::SEMICOLON;
            if rules.refused.meets(Doubtful::SEMICOLON) {
                return Err(Refusal::BadPath);
            }
        }
        return Ok(());
    }
    let mut found = Doubtful::NONE;
    head.path_span = head
        .fields
        .try_intern_with(|out| write_path(raw, rules, Form::Decoded, out).map(|doubtful| found = doubtful))?;
    head.encoded_path_span =
        head.fields.try_intern_with(|out| write_path(raw, rules, Form::Encoded, out).map(drop))?;
    head.doubtful = found;
    Ok(())
}

#[cold]
fn resolve_other(
    input: &[u8],
    target: &Scanned,
    head: &mut RequestHead,
    rules: &PathRules,
) -> Result<(), Refusal> {
    let empty = target.path == target.path_end;
    if head.method == Method::Connect {
        head.target_span = span(target.start, target.end);
        return Ok(());
    }
    if target.authority.is_none() {
        if head.method != Method::Options || &input[target.start..target.end] != b"*" {
            return Err(Refusal::Target);
        }
        head.target_span = span(target.start, target.end);
        head.path_span = head.target_span;
        head.encoded_path_span = head.target_span;
        return Ok(());
    }
    if !empty {
        head.target_span = span(target.path, target.end);
        return resolve_path(input, target, head, rules);
    }
    // An absolute form without a path means `/`, or `*` with OPTIONS (RFC 9112 sections 3.2.1 and
    // 3.2.4).
    let path: &[u8] = if head.method == Method::Options && !head.has_query { b"*" } else { b"/" };
    head.target_span = head.fields.intern_with(|out| {
        out.extend_from_slice(path);
        out.extend_from_slice(&input[target.path_end..target.end]);
    });
    head.path_span = Span { start: head.target_span.start, len: 1 };
    head.encoded_path_span = head.path_span;
    Ok(())
}
