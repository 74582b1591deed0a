//! The first message of a TLS handshake, read without decrypting anything (RFC 8446 section 4.1.2).
//!
//! Only the server name is extracted. The message may come in any number of records and pieces; an
//! ambiguous message is refused.

use std::borrow::Cow;
use std::fmt;

/// The longest first message that is parsed, including its record headers.
pub const MOST: usize = 16 << 10;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The longest plaintext of a record.
const MOST_RECORD: usize = 1 << 14;

/// The result of parsing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// The connection does not start with TLS.
    NotTls,
    /// The requested server name, in lower case, if the client sent one.
    Server(Option<Box<str>>),
}

/// Why the start of a TLS connection is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    TooLong,
    /// A record that cannot start a handshake.
    BadRecord,
    /// Inconsistent lengths, or data after the end.
    BadLength,
    /// A message other than a ClientHello.
    NotAHello,
    /// A repeated extension, so that each side could use a different one.
    Twice,
    /// An invalid server name.
    BadName,
}

impl Refusal {
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::TooLong => "the TLS ClientHello is too long",
            Refusal::BadRecord => "the TLS handshake begins with a malformed record",
            Refusal::BadLength => "the TLS ClientHello has lengths that do not fit",
            Refusal::NotAHello => "the TLS handshake does not begin with a ClientHello",
            Refusal::Twice => "the TLS ClientHello has an extension twice",
            Refusal::BadName => "the TLS ClientHello has a malformed server name",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}

/// Parses the start of a connection; `None` if more bytes are needed.
///
/// # Errors
/// Why the handshake is invalid.
pub fn parse(bytes: &[u8]) -> Result<Option<Hello>, Refusal> {
    match bytes {
        [] | [HANDSHAKE] => return Ok(None),
        [HANDSHAKE, 3, ..] => {}
        _ => return Ok(Some(Hello::NotTls)),
    }
    // No later byte is read, so a longer prefix never gives a different result.
    let Some(message) = message(&bytes[..bytes.len().min(MOST)])? else {
        return if bytes.len() >= MOST { Err(Refusal::TooLong) } else { Ok(None) };
    };
    server_name(&message).map(|name| Some(Hello::Server(name)))
}

/// Parses the server name of a handshake without records, as in QUIC (RFC 9001 section 4.1.3), from
/// its first byte; `None` if more bytes are needed.
///
/// # Errors
/// Why the handshake is invalid.
pub fn parse_bare(bytes: &[u8]) -> Result<Option<Option<Box<str>>>, Refusal> {
    if bytes.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
        return Err(Refusal::NotAHello);
    }
    let Some(&[_, a, b, c]) = bytes.first_chunk::<4>() else { return Ok(None) };
    let end = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
    match bytes.len() {
        _ if end > MOST => Err(Refusal::TooLong),
        more if more > end => Err(Refusal::BadLength),
        same if same == end => server_name(&bytes[4..]).map(Some),
        _ => Ok(None),
    }
}

/// The body of the ClientHello, assembled from its records; `None` if it is incomplete.
fn message(mut bytes: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Refusal> {
    let mut gathered: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    loop {
        let Some(head) = bytes.first_chunk::<5>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != HANDSHAKE || head[1] != 3 || len == 0 || len > MOST_RECORD {
            return Err(Refusal::BadRecord);
        }
        let rest = &bytes[5..];
        let piece = &rest[..len.min(rest.len())];
        if gathered.is_empty() {
            gathered = Cow::Borrowed(piece);
        } else {
            gathered.to_mut().extend_from_slice(piece);
        }
        if gathered.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Err(Refusal::NotAHello);
        }
        if let Some(&[_, a, b, c]) = gathered.first_chunk::<4>() {
            let end = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if end > MOST {
                return Err(Refusal::TooLong);
            }
            match gathered.len() {
                // Nothing may follow in the same record: the server speaks next.
                more if more > end => return Err(Refusal::BadLength),
                same if same == end && piece.len() == len => {
                    return Ok(Some(match gathered {
                        Cow::Borrowed(message) => Cow::Borrowed(&message[4..]),
                        Cow::Owned(mut message) => {
                            message.drain(..4);
                            Cow::Owned(message)
                        }
                    }));
                }
                _ => {}
            }
        }
        match rest.get(len..) {
            Some(next) => bytes = next,
            None => return Ok(None),
        }
    }
}

fn server_name(body: &[u8]) -> Result<Option<Box<str>>, Refusal> {
    let mut body = Reader(body);
    // Version and random.
    body.take(2 + 32)?;
    if body.vec8()?.len() > 32 {
        return Err(Refusal::BadLength);
    }
    let suites = body.vec16()?;
    if suites.is_empty() || suites.len() % 2 != 0 || body.vec8()?.is_empty() {
        return Err(Refusal::BadLength);
    }
    if body.0.is_empty() {
        // Before TLS 1.2, extensions may be absent.
        return Ok(None);
    }
    let mut extensions = Reader(body.vec16()?);
    body.end()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let (kind, value) = (extensions.u16()?, extensions.vec16()?);
        if kind == SERVER_NAME && name.replace(host_name(value)?).is_some() {
            return Err(Refusal::Twice);
        }
    }
    Ok(name)
}

/// The one name of the list (RFC 6066 section 3).
fn host_name(value: &[u8]) -> Result<Box<str>, Refusal> {
    let mut value = Reader(value);
    let mut list = Reader(value.vec16()?);
    value.end()?;
    let [kind] = *list.take(1)? else { return Err(Refusal::BadLength) };
    let name = list.vec16()?;
    if kind != HOST_NAME || !list.0.is_empty() || name.is_empty() || name.len() > 255 {
        return Err(Refusal::BadName);
    }
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.iter().all(plain) || name.starts_with(b".") || name.ends_with(b".") {
        return Err(Refusal::BadName);
    }
    let name = std::str::from_utf8(name).map_err(|_| Refusal::BadName)?;
    Ok(name.to_ascii_lowercase().into())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Refusal::BadLength)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        let taken = self.take(2)?;
        Ok(u16::from_be_bytes([taken[0], taken[1]]))
    }

    fn vec8(&mut self) -> Result<&'a [u8], Refusal> {
        let len = usize::from(self.take(1)?[0]);
        self.take(len)
    }

    fn vec16(&mut self) -> Result<&'a [u8], Refusal> {
        let len = usize::from(self.u16()?);
        self.take(len)
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { Err(Refusal::BadLength) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vec16(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
    }

    fn named(name: &[u8]) -> Vec<u8> {
        let entry = [&[HOST_NAME][..], &vec16(name)].concat();
        [&SERVER_NAME.to_be_bytes()[..], &vec16(&vec16(&entry))].concat()
    }

    /// The message with its header.
    fn hello(extensions: Option<&[u8]>) -> Vec<u8> {
        let extensions = extensions.map(vec16).unwrap_or_default();
        message(&[&[0, 0, 2, 0x13, 1, 1, 0][..], &extensions].concat())
    }

    /// A message with `rest` after version and random: session, suites, compression, extensions.
    fn message(rest: &[u8]) -> Vec<u8> {
        let body = [&[3, 3][..], &[7; 32], rest].concat();
        [&[CLIENT_HELLO, 0][..], &vec16(&body)].concat()
    }

    /// Splits a message into records of `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|piece| [&[HANDSHAKE, 3, 1][..], &vec16(piece)].concat()).collect()
    }

    fn name(of: &str) -> Result<Option<Hello>, Refusal> {
        Ok(Some(Hello::Server(Some(of.into()))))
    }

    #[test]
    fn the_name_is_found_in_any_segmentation() {
        let extensions = [&[0, 10, 0, 2, 0, 0][..], &named(b"WWW.Example.com"), &[0, 23, 0, 0]].concat();
        let message = hello(Some(&extensions));
        for size in [1, 2, 3, 4, 5, 7, 40, message.len() - 1, message.len()] {
            let bytes = records(&message, size);
            (0..bytes.len()).for_each(|at| assert_eq!(parse(&bytes[..at]), Ok(None), "{at} of {size}"));
            assert_eq!(parse(&bytes), name("www.example.com"), "{size}");
            // Data that a client sends without waiting (TLS 1.3 early data) has its own records.
            assert_eq!(parse(&[&bytes[..], &[23, 3, 3, 0, 1, 0]].concat()), name("www.example.com"));
        }
    }

    #[test]
    fn without_records() {
        let message = hello(Some(&named(b"WWW.example.com")));
        (0..message.len()).for_each(|at| assert_eq!(parse_bare(&message[..at]), Ok(None), "{at}"));
        assert_eq!(parse_bare(&message), Ok(Some(Some("www.example.com".into()))));
        assert_eq!(parse_bare(&hello(None)), Ok(Some(None)));
        assert_eq!(parse_bare(&[&message[..], &[0]].concat()), Err(Refusal::BadLength));
        assert_eq!(parse_bare(&[2]), Err(Refusal::NotAHello));
        assert_eq!(parse_bare(&[1, 0xff, 0, 0]), Err(Refusal::TooLong));
    }

    #[test]
    fn the_longest_allowed_message_is_read() {
        let body = (MOST - 4) as u16;
        let [high, low] = body.to_be_bytes();
        for (high, low, expected) in [(high, low, None), (high, low + 1, Some(Refusal::TooLong))] {
            assert_eq!(parse_bare(&[CLIENT_HELLO, 0, high, low]).err(), expected);
            assert_eq!(parse(&records(&[CLIENT_HELLO, 0, high, low], 4)).err(), expected);
        }
        assert_eq!(parse(b"\x16\x03\x01\x40\0"), Ok(None), "a record of 16384 bytes");
        let longest = "a".repeat(255);
        assert_eq!(parse(&records(&hello(Some(&named(longest.as_bytes()))), 999)), name(&longest));
        let session = [&[32][..], &[9; 32], &[0, 2, 0x13, 1, 1, 0]].concat();
        assert_eq!(parse(&records(&message(&session), 999)), Ok(Some(Hello::Server(None))));
    }

    #[test]
    fn without_a_name() {
        for message in [hello(None), hello(Some(&[])), hello(Some(&[0, 23, 0, 0]))] {
            assert_eq!(parse(&records(&message, 999)), Ok(Some(Hello::Server(None))));
        }
        for bytes in [&b"GET / HTTP/1.1"[..], b"\x80\x2e\x01\x03", b"\x16\x02", b"\x10\x0c\0\x04MQTT"] {
            assert_eq!(parse(bytes), Ok(Some(Hello::NotTls)));
        }
        assert_eq!(parse(b""), Ok(None));
        assert_eq!(parse(b"\x16"), Ok(None));
    }

    #[test]
    fn inconsistent_lengths_are_refused() {
        let refused = |bytes: &[u8]| parse(bytes).unwrap_err();
        let one = |message: &[u8]| refused(&records(message, 9999));
        let twice = [named(b"a"), named(b"b")].concat();
        assert_eq!(one(&hello(Some(&twice))), Refusal::Twice);
        for bad in [&b""[..], b"a b", b"a\0", b".a", b"a.", b"\xc3\xa4", &[b'a'; 256]] {
            assert_eq!(one(&hello(Some(&named(bad)))), Refusal::BadName, "{bad:?}");
        }
        let mut two_names = [&[HOST_NAME][..], &vec16(b"a")].concat();
        two_names = two_names.repeat(2);
        let two_names = [&[0, 0][..], &vec16(&vec16(&two_names))].concat();
        assert_eq!(one(&hello(Some(&two_names))), Refusal::BadName);
        assert_eq!(one(&hello(Some(&[0, 23, 0]))), Refusal::BadLength);
        let behind_the_list = [&[0, 0][..], &vec16(&[0, 4, HOST_NAME, 0, 1, b'a', 0])].concat();
        for bad in [
            hello(Some(&behind_the_list)),
            message(&[&[33][..], &[9; 33], &[0, 2, 0x13, 1, 1, 0]].concat()),
            // No suites, half a suite, no compression, something behind the extensions.
            message(&[0, 0, 0, 1, 0]),
            message(&[0, 0, 3, 0x13, 1, 0x13, 1, 0]),
            message(&[0, 0, 2, 0x13, 1, 0]),
            message(&[0, 0, 2, 0x13, 1, 1, 0, 0, 0, 0]),
        ] {
            assert_eq!(one(&bad), Refusal::BadLength, "{bad:?}");
        }
        assert_eq!(Refusal::Twice.to_string(), "the TLS ClientHello has an extension twice");
        assert_eq!(one(&[hello(None), vec![0]].concat()), Refusal::BadLength);
        assert_eq!(one(&[2, 0, 0, 0]), Refusal::NotAHello);
        assert_eq!(one(&[1, 0, 0, 0]), Refusal::BadLength);
        assert_eq!(one(&[1, 0xff, 0xff, 0xff]), Refusal::TooLong);
        assert_eq!(refused(b"\x16\x03\x01\0\0"), Refusal::BadRecord);
        assert_eq!(refused(b"\x16\x03\x01\x40\x01"), Refusal::BadRecord);
        // Another kind of record within the message.
        let mut mixed = records(&hello(None)[..10], 99);
        mixed.extend_from_slice(b"\x15\x03\x01\0\x02");
        assert_eq!(refused(&mixed), Refusal::BadRecord);
        // An endless sequence of one-byte records.
        let crumbs = records(&[&[CLIENT_HELLO, 0, 0x3f, 0][..], &[0; MOST / 6]].concat(), 1);
        assert_eq!(refused(&crumbs), Refusal::TooLong);
    }
}
