//! hot path
//!
//! Writing HTTP/1: start lines, chunk headers and dates.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

use crate::fields::Fields;

/// A target with a byte that is not allowed in a request line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadTarget;

impl std::fmt::Display for BadTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a request target must hold no spaces, control characters or bytes beyond ASCII")
    }
}

impl std::error::Error for BadTarget {}

/// Appends the size line of a chunk of `len` bytes. A `len` of 0 would end the body.
#[inline]
pub fn chunk_header(len: usize, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(DIGITS[len >> (place * 4) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body: the last chunk and the trailers (RFC 9112 section 7.1.2).
#[inline]
pub fn last_chunk(trailers: Option<&Fields>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        trailers.write_to(out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends `METHOD SP TARGET SP HTTP/1.1 CRLF` (RFC 9112 section 3), where `target` appends the
/// target. The target cannot end the line (CVE-2023-25690): bytes outside `!` to `~` are an error,
/// and leave `out` unchanged.
#[inline]
pub fn request_line(
    method: &[u8],
    target: impl FnOnce(&mut Vec<u8>) -> Result<(), BadTarget>,
    out: &mut Vec<u8>,
) -> Result<(), BadTarget> {
    let start = out.len();
    out.extend_from_slice(method);
    out.push(b' ');
    let from = out.len();
    if let Err(bad) = target(out).and_then(|()| check_target(&out[from..])) {
        out.truncate(start);
        return Err(bad);
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    Ok(())
}

/// Checks that a request target is visible ASCII only.
#[inline]
pub fn check_target(target: &[u8]) -> Result<(), BadTarget> {
    // Without an early exit the loop is vectorised.
    let bad = target.iter().fold(target.is_empty(), |bad, &byte| bad | !(0x21..=0x7e).contains(&byte));
    if bad { Err(BadTarget) } else { Ok(()) }
}

/// Appends `HTTP/1.1 STATUS REASON CRLF` (RFC 9112 section 4).
#[inline]
pub fn status_line(status: u16, out: &mut Vec<u8>) {
    match line(status) {
        Some(line) => out.extend_from_slice(line.as_bytes()),
        None => {
            let digit = |number: u16| b'0' + (number % 10) as u8;
            out.extend_from_slice(b"HTTP/1.1 ");
            out.extend_from_slice(&[digit(status / 100), digit(status / 10), digit(status), b' ']);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The reason phrase: NGINX's if it has one, since tools that watch APISIX look for its text, else
/// that of the IANA registry (RFC 9110 section 15); empty if unknown.
pub fn reason(status: u16) -> &'static str {
    line(status).map_or("", |line| &line[START..line.len() - 2])
}

/// Formats seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate, RFC 9110 section
/// 5.6.7). Years have four digits: later seconds give the last one of 9999.
pub fn date(unix_secs: u64) -> [u8; 29] {
    const LAST: u64 = 253_402_300_799;
    let at = UNIX_EPOCH + Duration::from_secs(unix_secs.min(LAST));
    let mut text = [0; 29];
    // Up to the year 9999 the text has exactly this length, so writing cannot fail.
    let _ = write!(&mut text[..], "{}", HttpDate::from(at));
    text
}

/// Bytes before the reason in a status line.
const START: usize = "HTTP/1.1 200 ".len();

macro_rules! lines {
    ($($status:literal $reason:literal,)*) => {
        #[inline]
        fn line(status: u16) -> Option<&'static str> {
            match status {
                $($status => Some(concat!("HTTP/1.1 ", $status, " ", $reason, "\r\n")),)*
                _ => None,
            }
        }
    };
}

lines! {
    100 "Continue",
    101 "Switching Protocols",
    102 "Processing",
    103 "Early Hints",
    200 "OK",
    201 "Created",
    202 "Accepted",
    203 "Non-Authoritative Information",
    204 "No Content",
    205 "Reset Content",
    206 "Partial Content",
    207 "Multi-Status",
    208 "Already Reported",
    226 "IM Used",
    300 "Multiple Choices",
    301 "Moved Permanently",
    302 "Moved Temporarily",
    303 "See Other",
    304 "Not Modified",
    305 "Use Proxy",
    307 "Temporary Redirect",
    308 "Permanent Redirect",
    400 "Bad Request",
    401 "Unauthorized",
    402 "Payment Required",
    403 "Forbidden",
    404 "Not Found",
    405 "Not Allowed",
    406 "Not Acceptable",
    407 "Proxy Authentication Required",
    408 "Request Time-out",
    409 "Conflict",
    410 "Gone",
    411 "Length Required",
    412 "Precondition Failed",
    413 "Request Entity Too Large",
    414 "Request-URI Too Large",
    415 "Unsupported Media Type",
    416 "Requested Range Not Satisfiable",
    417 "Expectation Failed",
    421 "Misdirected Request",
    422 "Unprocessable Content",
    423 "Locked",
    424 "Failed Dependency",
    425 "Too Early",
    426 "Upgrade Required",
    428 "Precondition Required",
    429 "Too Many Requests",
    431 "Request Header Fields Too Large",
    451 "Unavailable For Legal Reasons",
    500 "Internal Server Error",
    501 "Not Implemented",
    502 "Bad Gateway",
    503 "Service Temporarily Unavailable",
    504 "Gateway Time-out",
    505 "HTTP Version Not Supported",
    506 "Variant Also Negotiates",
    507 "Insufficient Storage",
    508 "Loop Detected",
    510 "Not Extended",
    511 "Network Authentication Required",
}

/// Appends a number in decimal digits, without the formatting machinery.
#[inline]
pub fn decimal(value: u64, out: &mut Vec<u8>) {
    let Some(short) = u16::try_from(value).ok().filter(|&value| value < 10_000) else {
        return long_decimal(value, out);
    };
    // Writing four digits at once and shifting out leading zeros costs less than digit by digit:
    // most numbers in heads and log lines are short.
    let digits =
        [short / 1000, short / 100 % 10, short / 10 % 10, short % 10].map(|digit| b'0' + digit as u8);
    let zeros = usize::from(short < 1000) + usize::from(short < 100) + usize::from(short < 10);
    let end = out.len() + digits.len() - zeros;
    out.extend_from_slice(&(u32::from_le_bytes(digits) >> (8 * zeros)).to_le_bytes());
    out.truncate(end);
}

fn long_decimal(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(digits(value, &mut [0; 20]));
}

/// Writes a number in decimal digits to the end of `room`; returns the digits.
#[inline]
pub fn digits(mut value: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &room[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn chunk_headers() {
        for len in (0..70_000).chain([usize::MAX, usize::MAX >> 1, 1 << 32]) {
            assert_eq!(text(|out| chunk_header(len, out)), format!("{len:x}\r\n"));
        }
    }

    #[test]
    fn a_chunked_body_ends_with_its_trailers() {
        assert_eq!(text(|out| last_chunk(None, out)), "0\r\n\r\n");
        let mut trailers = Fields::new();
        trailers.append(b"X-Sum", b"1").unwrap();
        assert_eq!(text(|out| last_chunk(Some(&trailers), out)), "0\r\nX-Sum: 1\r\n\r\n");
    }

    #[test]
    fn status_lines() {
        assert_eq!(text(|out| status_line(200, out)), "HTTP/1.1 200 OK\r\n");
        assert_eq!(text(|out| status_line(299, out)), "HTTP/1.1 299 \r\n");
        assert_eq!(reason(404), "Not Found");
        assert_eq!(reason(999), "");
        for status in 100..1000 {
            assert_eq!(
                text(|out| status_line(status, out)),
                format!("HTTP/1.1 {status} {}\r\n", reason(status))
            );
        }
    }

    #[test]
    fn decimals_are_exact() {
        for value in (0..=10_100).chain([65_535, 65_536, 75_536, u64::MAX]) {
            let mut out = b"x".to_vec();
            decimal(value, &mut out);
            assert_eq!(out, format!("x{value}").into_bytes());
            assert_eq!(digits(value, &mut [0; 20]), &out[1..]);
        }
    }

    #[test]
    fn request_lines_cannot_be_split() {
        let line = |target: &[u8], out: &mut Vec<u8>| {
            let write = |out: &mut Vec<u8>| {
                out.extend_from_slice(target);
                Ok(())
            };
            request_line(b"GET", write, out)
        };
        let mut out = b"x".to_vec();
        line(b"/a?b=c", &mut out).unwrap();
        assert_eq!(out, b"xGET /a?b=c HTTP/1.1\r\n");
        for byte in 0..=255u8 {
            let mut out = b"x".to_vec();
            let result = line(&[b'/', byte], &mut out);
            assert_eq!(result.is_ok(), byte.is_ascii_graphic(), "{byte:#x}");
            assert!(result.is_ok() || out == b"x");
            let twice = line(&[b'/', byte, byte], &mut out);
            assert_eq!(twice.is_ok(), byte.is_ascii_graphic(), "{byte:#x} twice");
        }
        assert_eq!(line(b"", &mut Vec::new()), Err(BadTarget));
        let mut out = b"x".to_vec();
        assert_eq!(request_line(b"GET", |_| Err(BadTarget), &mut out), Err(BadTarget));
        assert_eq!(out, b"x");
        assert!(BadTarget.to_string().contains("no spaces, control characters"));
    }

    #[test]
    fn dates_have_a_fixed_length() {
        let text = |seconds| String::from_utf8(date(seconds).to_vec()).unwrap();
        assert_eq!(text(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(text(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(text(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
