//! hot path
//!
//! Request and response heads from bytes (RFC 9112 sections 2 to 6).
//!
//! A head is parsed in one pass and its bytes are copied once. If the input ends inside the head,
//! each call only scans the new bytes until the head is complete, so a peer that sends byte by byte
//! causes linear work.
//!
//! Only this module interprets the target's form, Host, Connection, Content-Length,
//! Transfer-Encoding, Expect and Upgrade. Content-Length is rewritten without leading zeros; Host
//! is rewritten when an absolute-form target overrides it (RFC 9112 section 3.2.2); Expect from
//! HTTP/1.0 is removed (RFC 9110 section 10.1.1); so the forwarded message has only one reading.

use crate::fields::{Field, Fields, Span, is_token};
use crate::head::{Framing, RequestHead, ResponseHead, Version};
use crate::method::Method;
use crate::names::Name;
use crate::target::{self, PathRules};

use super::Refusal;
use super::scan::{Stop, end_of_line, field_line, token_end, value_end};
use super::{hop, host};

/// Limits of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Length of a whole head in bytes, including its empty line.
    pub head: usize,
    /// Field lines.
    pub fields: usize,
    /// Length of a request target in bytes.
    pub target: usize,
    pub underscores: Underscores,
    pub path: PathRules,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: 64 << 10,
            fields: 100,
            target: 32 << 10,
            underscores: Underscores::Keep,
            path: PathRules::default(),
        }
    }
}

/// Handling of field names with an underscore, which CGI-like origins cannot distinguish from a
/// hyphen. `Content_Length` and `Transfer_Encoding` are always refused; look-alikes of hop-by-hop
/// fields and of fields that a proxy sets itself (`X_Forwarded_For`) are always removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Underscores {
    /// They are forwarded, as in APISIX (`underscores_in_headers on`).
    #[default]
    Keep,
    /// They are removed.
    Drop,
    /// The message is refused.
    Refuse,
}

/// The longest accepted method in bytes; the longest registered one has 17.
pub(crate) const LONGEST_METHOD: usize = 64;

/// How far an incomplete head was scanned. One per connection; it resets itself when a head is
/// complete or refused.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    scanned: usize,
}

impl Progress {
    /// Scans the new bytes since the last call for the empty line.
    fn is_complete(&mut self, input: &[u8]) -> Result<bool, Refusal> {
        let from = self.scanned.saturating_sub(3).min(input.len());
        for offset in memchr::memchr_iter(b'\n', &input[from..]) {
            let at = from + offset;
            if at == 0 || input[at - 1] != b'\r' {
                return Err(Refusal::BareLf);
            }
            if let Some([b'\r', b'\n', ..]) = input.get(at + 1..) {
                return Ok(true);
            }
        }
        self.scanned = input.len();
        Ok(false)
    }
}

/// Parses the request head at the start of `input`, which must start with the same bytes on each
/// call until the head is complete. `Ok(Some(n))`: the head took `n` bytes; `Ok(None)`: more input
/// is needed and `head` is empty. One empty line before the request line is skipped (RFC 9112
/// section 2.2).
pub fn request(
    input: &[u8],
    progress: &mut Progress,
    head: &mut RequestHead,
    limits: &Limits,
) -> Result<Option<usize>, Refusal> {
    advance(input, progress, limits, |window| {
        head.clear();
        read_request(window, head, limits).inspect_err(|_| head.clear())
    })
}

/// Parses the response head at the start of `input`: the response to a request with
/// `request_method`, which together with the status decides whether a body follows. 1xx responses
/// are returned as separate heads without a body. Otherwise as [`request`].
pub fn response(
    input: &[u8],
    progress: &mut Progress,
    head: &mut ResponseHead,
    request_method: Method,
    limits: &Limits,
) -> Result<Option<usize>, Refusal> {
    advance(input, progress, limits, |window| {
        head.clear();
        read_response(window, head, request_method, limits).inspect_err(|_| head.clear())
    })
}

/// Calls `read` if the head may be complete, and enforces `progress` and the head limit.
#[inline(always)]
fn advance(
    input: &[u8],
    progress: &mut Progress,
    limits: &Limits,
    mut read: impl FnMut(&[u8]) -> Result<usize, Stop>,
) -> Result<Option<usize>, Refusal> {
    let limit = limits.head.min(u32::MAX as usize / 8);
    let window = &input[..input.len().min(limit)];
    if progress.scanned > 0 {
        match progress.is_complete(window) {
            Ok(true) => {}
            Ok(false) if input.len() < limit => return Ok(None),
            Ok(false) => {}
            Err(refusal) => {
                *progress = Progress::default();
                return Err(refusal);
            }
        }
    }
    match read(window) {
        Ok(consumed) => {
            *progress = Progress::default();
            Ok(Some(consumed))
        }
        Err(Stop::More) if input.len() < limit => {
            progress.scanned = input.len();
            Ok(None)
        }
        Err(stop) => {
            *progress = Progress::default();
            Err(match stop {
                Stop::Refused(refusal) => refusal,
                Stop::More => Refusal::HeadTooLarge,
            })
        }
    }
}

fn read_request(input: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<usize, Stop> {
    let skipped = match input.first() {
        Some(b'\r' | b'\n') => end_of_line(input, 0)?,
        _ => 0,
    };
    let input = &input[skipped..];

    let method_end = token_end(input, 0);
    match input.get(method_end) {
        Some(b' ') if method_end > 0 && method_end <= LONGEST_METHOD => {}
        Some(b'\r' | b'\n') => return Err(Refusal::RequestLine.into()),
        Some(_) => return Err(Refusal::Method.into()),
        None => return Err(Stop::More),
    }
    head.method = Method::from_bytes(&input[..method_end]);
    let start = method_end + 1;
    let target = target::scan(input, start, head.method, limits.target)?;
    let (version, at) = version_line(input, target.end + 1)?;
    head.version = version;

    let mut seen = Seen::default();
    let end = read_fields(input, at, &mut head.fields, &mut seen, limits)?;
    head.fields.load(&input[..end]);
    head.method_span = span(0, method_end);

    if seen.chunked && version == Version::Http10 {
        return Err(Refusal::CodingInHttp10.into());
    }
    head.framing = seen.framing(&mut head.fields)?.unwrap_or_default();
    head.keep_alive = seen.keep_alive(version);
    head.upgrade = seen.upgrade && seen.upgrade_field && version == Version::Http11;
    match seen.expect {
        Expect::None => {}
        _ if version == Version::Http10 => {
            head.fields.remove_id(Name::Expect);
        }
        // Without a body there is nothing to continue with.
        Expect::Continue => {
            head.expect_continue = !matches!(head.framing, Framing::None | Framing::Length(0))
        }
        Expect::Other => return Err(Refusal::Expectation.into()),
    }
    target::resolve(input, &target, head, &limits.path)?;
    resolve_host(input, &target, &seen, head)?;
    Ok(skipped + end)
}

/// Host and authority, from the target if it has one (RFC 9112 section 3.2.2), else from Host.
#[inline]
pub(crate) fn resolve_host(
    input: &[u8],
    target: &target::Scanned,
    seen: &Seen,
    head: &mut RequestHead,
) -> Result<(), Refusal> {
    if seen.hosts > 1 {
        return Err(Refusal::RepeatedHost);
    }
    let authority = match (seen.host, target.authority) {
        (None, _) if head.version == Version::Http11 => return Err(Refusal::NoHost),
        (None, None) => return Ok(()),
        (Some(host), None) => host,
        (host, Some(authority)) => {
            let text = &input[range(authority)];
            if let Some(host) = host {
                host::authority(&input[range(host)])?;
            }
            if host.is_none_or(|host| &input[range(host)] != text) && head.method != Method::Connect {
                // The authority contains no byte that values may not: host::authority checks it
                // below.
                head.fields.set_id(Name::Host, text).map_err(|_| Refusal::Host)?;
            }
            authority
        }
    };
    let text = &input[range(authority)];
    let parts = host::authority(text)?;
    if head.method == Method::Connect && !parts.port {
        return Err(Refusal::Target);
    }
    head.authority_span = authority;
    head.host_span = if parts.upper {
        head.fields.intern_with(|out| {
            out.extend(text[..parts.host].iter().map(u8::to_ascii_lowercase));
        })
    } else {
        Span { start: authority.start, len: parts.host as u32 }
    };
    Ok(())
}

fn read_response(
    input: &[u8],
    head: &mut ResponseHead,
    request_method: Method,
    limits: &Limits,
) -> Result<usize, Stop> {
    let (status, reason, at) = status_line(input, head)?;
    let mut seen = Seen::default();
    let end = read_fields(input, at, &mut head.fields, &mut seen, limits)?;
    head.fields.load(&input[..end]);
    head.status = status;
    head.reason_span = reason;

    if seen.chunked && head.version == Version::Http10 {
        return Err(Refusal::CodingInHttp10.into());
    }
    let framing = seen.framing(&mut head.fields)?;
    let informational = status < 200;
    let bodiless = informational
        || matches!(status, 204 | 304)
        || request_method == Method::Head
        || request_method == Method::Connect && status < 300;
    head.framing = if bodiless { Framing::None } else { framing.unwrap_or(Framing::UntilClose) };
    head.keep_alive = seen.keep_alive(head.version) && head.framing != Framing::UntilClose;
    // These end with their head, even if they announce a length (RFC 9112 section 6.3). A server
    // that announces one may still send a body, so its connection is not reused.
    if informational || status == 204 {
        head.fields.remove_id(Name::ContentLength);
        head.keep_alive &= matches!(framing, None | Some(Framing::Length(0)));
    } else if status == 304 {
        head.keep_alive &= framing != Some(Framing::Chunked);
    }
    head.upgrade = seen.upgrade && seen.upgrade_field && head.version == Version::Http11;
    Ok(end)
}

/// Status, reason and the offset of the fields. The reason may be missing with or without the space
/// before it: many servers omit the space, and no parser reads three digits before CRLF
/// differently.
#[inline]
fn status_line(input: &[u8], head: &mut ResponseHead) -> Result<(u16, Span, usize), Stop> {
    let Some(&[v0, v1, v2, v3, v4, v5, v6, v7, space, d0, d1, d2]) = input.first_chunk::<12>() else {
        let known = input.len().min(5);
        let line_end = memchr::memchr(b'\n', input).is_some();
        let possible = !line_end && input[..known] == b"HTTP/"[..known];
        return Err(if possible { Stop::More } else { Refusal::StatusLine.into() });
    };
    head.version = match &[v0, v1, v2, v3, v4, v5, v6, v7] {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(Refusal::UnsupportedVersion.into());
        }
        [b'H', b'T', b'T', b'P', b'/', ..] => return Err(Refusal::Version.into()),
        _ => return Err(Refusal::StatusLine.into()),
    };
    if space != b' ' || !(d0.is_ascii_digit() && d1.is_ascii_digit() && d2.is_ascii_digit()) {
        return Err(Refusal::StatusLine.into());
    }
    let digit = |byte: u8| u16::from(byte - b'0');
    let status = digit(d0) * 100 + digit(d1) * 10 + digit(d2);
    if status < 100 {
        return Err(Refusal::Status.into());
    }
    let reason = match input.get(12) {
        Some(b' ') => 13,
        Some(b'\r' | b'\n') => 12,
        Some(_) => return Err(Refusal::StatusLine.into()),
        None => return Err(Stop::More),
    };
    let line_end = value_end(input, reason);
    let at = end_of_line(input, line_end)?;
    Ok((status, span(reason, line_end), at))
}

/// The version at `at`, and the offset after its CRLF.
#[inline(always)]
fn version_line(input: &[u8], at: usize) -> Result<(Version, usize), Stop> {
    let rest = input.get(at..).unwrap_or_default();
    match rest.first_chunk::<10>() {
        Some(b"HTTP/1.1\r\n") => Ok((Version::Http11, at + 10)),
        Some(b"HTTP/1.0\r\n") => Ok((Version::Http10, at + 10)),
        _ => Err(bad_version(rest)),
    }
}

#[cold]
fn bad_version(rest: &[u8]) -> Stop {
    let Some(end) = memchr::memchr(b'\n', rest) else {
        return if rest.len() < 10 { Stop::More } else { Refusal::Version.into() };
    };
    match rest[..end].split_last() {
        Some((b'\r', [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]))
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Refusal::UnsupportedVersion.into()
        }
        Some((b'\r', version)) if memchr::memchr(b'\r', version).is_some() => Refusal::BareCr.into(),
        Some((b'\r', version)) if memchr::memchr(b' ', version).is_some() => Refusal::RequestLine.into(),
        Some((b'\r', _)) => Refusal::Version.into(),
        _ => Refusal::BareLf.into(),
    }
}

/// The effect of the fields on framing and connection.
#[derive(Default)]
pub(crate) struct Seen {
    length: Option<u64>,
    /// The length has leading zeros.
    padded: bool,
    chunked: bool,
    host: Option<Span>,
    pub(crate) hosts: usize,
    close: bool,
    keep: bool,
    upgrade: bool,
    upgrade_field: bool,
    /// The number of Connection options, over all its lines.
    options: usize,
    pub(crate) expect: Expect,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    #[default]
    None,
    Continue,
    Other,
}

/// Parses the fields at `at`; returns the offset after the empty line. Spans count from the start
/// of `input`.
#[inline(always)]
fn read_fields(
    input: &[u8],
    mut at: usize,
    fields: &mut Fields,
    seen: &mut Seen,
    limits: &Limits,
) -> Result<usize, Stop> {
    let mut count = 0;
    while let Some(line) = field_line(input, at)? {
        count += 1;
        if count > limits.fields {
            return Err(Refusal::TooManyFields.into());
        }
        let name = &input[at..line.name_end];
        let is_line = line.value_start == line.name_end + 2
            && input[line.name_end + 1] == b' '
            && line.next == line.value_end + 2;
        let field = Field {
            id: line.id,
            is_line,
            name: span(at, line.name_end),
            value: span(line.value_start, line.value_end),
        };
        at = line.next;
        if seen.note(field, name, &input[line.value_start..line.value_end], limits)? {
            fields.push(field);
        }
    }
    Ok(at + 2)
}

#[cold]
fn keep_underscores(name: &[u8], rule: Underscores) -> Result<bool, Refusal> {
    match Name::from_lookalike(name) {
        Name::ContentLength | Name::TransferEncoding => return Err(Refusal::DisguisedName),
        looks_like if rule != Underscores::Refuse && hop::is_ours(looks_like) => return Ok(false),
        _ => {}
    }
    match rule {
        Underscores::Keep => Ok(true),
        Underscores::Drop => Ok(false),
        Underscores::Refuse => Err(Refusal::Underscore),
    }
}

impl Seen {
    /// Processes a field; returns whether it is kept.
    #[inline(always)]
    pub(crate) fn note(
        &mut self,
        field: Field,
        name: &[u8],
        value: &[u8],
        limits: &Limits,
    ) -> Result<bool, Refusal> {
        match field.id {
            Name::Other if memchr::memchr(b'_', name).is_none() => {}
            Name::Other => return keep_underscores(name, limits.underscores),
            Name::ContentLength => self.content_length(value)?,
            Name::TransferEncoding => self.transfer_encoding(value)?,
            Name::Host => {
                self.host = Some(field.value);
                self.hosts += 1;
            }
            Name::Connection => self.connection(value, limits.fields)?,
            Name::Upgrade => self.upgrade_field = true,
            Name::Expect => self.expectation(value),
            _ => {}
        }
        Ok(true)
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::RepeatedContentLength);
        }
        if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
            return Err(Refusal::ContentLength);
        }
        let length = value.iter().fold(0u64, |length, digit| length * 10 + u64::from(digit - b'0'));
        if length > i64::MAX as u64 {
            return Err(Refusal::ContentLength);
        }
        self.padded = value.len() > 1 && value[0] == b'0';
        self.length = Some(length);
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Refusal::TransferEncoding);
        }
        self.chunked = true;
        Ok(())
    }

    fn connection(&mut self, value: &[u8], most: usize) -> Result<(), Refusal> {
        // The most frequent value; other spellings are parsed below.
        if value == b"keep-alive" && self.options < most {
            self.options += 1;
            self.keep = true;
            return Ok(());
        }
        for option in options(value) {
            self.options += 1;
            match option.len() {
                5 if option.eq_ignore_ascii_case(b"close") => self.close = true,
                7 if option.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
                10 if option.eq_ignore_ascii_case(b"keep-alive") => self.keep = true,
                _ => {}
            }
        }
        if self.options > most { Err(Refusal::Connection) } else { Ok(()) }
    }

    fn expectation(&mut self, value: &[u8]) {
        let known = value.eq_ignore_ascii_case(b"100-continue") && self.expect != Expect::Other;
        self.expect = if known { Expect::Continue } else { Expect::Other };
    }

    /// `None` if neither length nor coding is given.
    #[inline]
    pub(crate) fn framing(&self, fields: &mut Fields) -> Result<Option<Framing>, Refusal> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Refusal::LengthAndCoding),
            (None, true) => Ok(Some(Framing::Chunked)),
            (None, false) => Ok(None),
            (Some(length), false) => {
                if self.padded {
                    let digits = length.to_string();
                    fields
                        .set_id(Name::ContentLength, digits.as_bytes())
                        .map_err(|_| Refusal::ContentLength)?;
                }
                Ok(Some(Framing::Length(length)))
            }
        }
    }

    #[inline]
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep)
    }
}

/// The options of a Connection value, without white space and empty elements.
pub(super) fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty() && option.iter().all(|&byte| is_token(byte)))
}

#[inline(always)]
pub(crate) fn span(start: usize, end: usize) -> Span {
    Span { start: start as u32, len: (end - start) as u32 }
}

#[inline(always)]
pub(crate) fn range(span: Span) -> std::ops::Range<usize> {
    span.start as usize..(span.start + span.len) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_head_is_reported_as_incomplete() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\nrest";
        let whole = head.len() - 4;
        let mut progress = Progress { scanned: 1 };
        for end in 2..=head.len() {
            assert_eq!(progress.is_complete(&head[..end]), Ok(end >= whole), "{end}");
        }
        // Bytes that were scanned before are not scanned again.
        let mut progress = Progress { scanned: 30 };
        assert_eq!(progress.is_complete(b"GET /\nHTTP/1.1\r\nHost: aaaaaaaaaaaa\r\nX"), Ok(false));
    }
}
