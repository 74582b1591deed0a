//! RESP, the protocol of Redis (versions 2 and 3): commands of clients and replies of servers,
//! parsed incrementally.
//!
//! Nothing is buffered: regardless of announced lengths, a parser keeps a few numbers and the first
//! bytes of short texts, and passes on everything else in pieces of its input. Ambiguous input is
//! refused: line ends other than CR LF, and numbers in unusual notation.

mod commands;
mod reply;
mod request;

pub use commands::Keys;
pub use reply::{Kind, Replies, Reply, Short};
pub use request::{Part, Requests};

/// Why bytes are invalid RESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A command that is not an array, such as an inline command.
    NotAnArray,
    /// An argument of a command that is not a bulk string.
    NotABulk,
    /// A command without a name.
    NoName,
    /// A null argument of a command.
    NullArgument,
    /// A count or length that is not a plain decimal number.
    BadNumber,
    /// A count or length above 4294967295.
    TooLarge,
    /// A line or bulk string that does not end with CR LF.
    BadEnd,
    /// A reply with an unknown type byte.
    UnknownType,
    /// Replies nested deeper than 32.
    TooDeep,
    /// A line of a reply with more than 65536 bytes.
    LongLine,
}

impl Refusal {
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::NotAnArray => "failed to read request: a Redis command is no array of bulk strings",
            Refusal::NotABulk => "failed to read request: an argument of a Redis command is no bulk string",
            Refusal::NoName => "failed to read request: invalid argument number of a Redis command",
            Refusal::NullArgument => "failed to read request: invalid bulk length in a Redis command",
            Refusal::BadNumber => {
                "invalid len string: a length of the Redis protocol is no plain decimal number"
            }
            Refusal::TooLarge => "invalid len string: a length of the Redis protocol is beyond 4294967295",
            Refusal::BadEnd => "a line or a bulk string of the Redis protocol does not end with CR LF",
            Refusal::UnknownType => "failed to handle upstream: unknown prefix of a Redis reply",
            Refusal::TooDeep => "failed to handle upstream: a Redis reply is nested deeper than 32",
            Refusal::LongLine => {
                "failed to handle upstream: a line of a Redis reply has more than 65536 bytes"
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for Refusal {}

/// The largest count and the largest length.
const MOST: u64 = u32::MAX as u64;

/// Parses a count or length byte by byte, up to the end of its line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Number {
    value: u64,
    digits: u8,
    negative: bool,
    ending: bool,
}

/// A complete number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parsed {
    Count(u64),
    /// `-1`.
    Null,
}

impl Number {
    /// Takes the next byte.
    fn push(&mut self, byte: u8) -> Result<Option<Parsed>, Refusal> {
        match byte {
            _ if self.ending => {
                return match (byte, self.negative, self.value) {
                    (b'\n', false, value) => Ok(Some(Parsed::Count(value))),
                    (b'\n', true, 1) => Ok(Some(Parsed::Null)),
                    (b'\n', true, _) => Err(Refusal::BadNumber),
                    _ => Err(Refusal::BadEnd),
                };
            }
            b'\r' if self.digits > 0 => self.ending = true,
            b'-' if self.digits == 0 && !self.negative => self.negative = true,
            b'0'..=b'9' if self.digits == 0 || self.value > 0 => {
                self.value = self.value * 10 + u64::from(byte - b'0');
                self.digits += 1;
                if self.value > MOST {
                    return Err(Refusal::TooLarge);
                }
            }
            _ => return Err(Refusal::BadNumber),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<Option<Parsed>, Refusal> {
        let mut number = Number::default();
        for byte in text.bytes() {
            if let Some(read) = number.push(byte)? {
                return Ok(Some(read));
            }
        }
        Ok(None)
    }

    #[test]
    fn numbers_are_plain_decimals() {
        for (text, value) in [("0\r\n", 0), ("7\r\n", 7), ("10\r\n", 10), ("4294967295\r\n", MOST)] {
            assert_eq!(number(text), Ok(Some(Parsed::Count(value))), "{text:?}");
        }
        assert_eq!(number("-1\r\n"), Ok(Some(Parsed::Null)));
        for (text, refusal) in [
            ("\r\n", Refusal::BadNumber),
            ("1e9\r\n", Refusal::BadNumber),
            ("+1\r\n", Refusal::BadNumber),
            (" 1\r\n", Refusal::BadNumber),
            ("01\r\n", Refusal::BadNumber),
            ("-\r\n", Refusal::BadNumber),
            ("-0\r\n", Refusal::BadNumber),
            ("-2\r\n", Refusal::BadNumber),
            ("1-\r\n", Refusal::BadNumber),
            ("1\n", Refusal::BadNumber),
            ("1\r\r", Refusal::BadEnd),
            ("4294967296\r\n", Refusal::TooLarge),
            ("99999999999999999999999\r\n", Refusal::TooLarge),
        ] {
            assert_eq!(number(text), Err(refusal), "{text:?}");
        }
        let message = Refusal::TooLarge.to_string();
        assert_eq!(message, "invalid len string: a length of the Redis protocol is beyond 4294967295");
    }
}
