//! hot path
//!
//! Replies of servers, of both protocol versions: where each ends, and a summary of its content.
//! Streamed strings and aggregates of version 3, which no server sends, are not supported.

use super::{Number, Parsed, Refusal};

/// The deepest nesting of replies.
const DEPTH: usize = 32;

/// The longest line in bytes.
const LINE: u32 = 64 << 10;

/// Parses replies, one after another.
#[derive(Debug, Clone, Default)]
pub struct Replies {
    state: State,
    /// Elements still to come, for each level of nesting.
    left: [u64; DEPTH],
    /// The levels that are attributes, which precede a reply.
    attributes: u32,
    depth: usize,
    /// The summary so far.
    reply: Reply,
    /// The first element of the reply is still to come.
    fresh: bool,
    /// The start of the current line or string.
    text: Short,
}

#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Type,
    Line {
        of: u8,
        len: u32,
        ending: bool,
    },
    Length(u8, Number),
    Bytes(u64),
    Cr,
    Lf,
}

/// The first bytes of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Short {
    bytes: [u8; 24],
    len: u8,
}

impl Short {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn push(&mut self, more: &[u8]) {
        let room = &mut self.bytes[usize::from(self.len)..];
        let here = room.len().min(more.len());
        room[..here].copy_from_slice(&more[..here]);
        self.len += here as u8;
    }

    fn number(&self) -> Option<u64> {
        std::str::from_utf8(self.as_bytes()).ok()?.parse().ok()
    }
}

/// The summary of a complete reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reply {
    pub kind: Kind,
    /// The start of an error, or of an aggregate's first element if that is a string.
    pub text: Short,
    /// The last number among its elements.
    pub number: Option<u64>,
}

/// The kind of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Plain,
    Error,
    /// An array, a map or a set.
    Aggregate,
    /// A push message of version 3, which answers no command.
    Push,
}

impl Replies {
    /// Parses on: returns the number of bytes used, and the reply that ends with them; `None` if
    /// more bytes are needed.
    ///
    /// # Errors
    /// The reply is invalid; no further calls are allowed.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), Refusal> {
        let mut at = 0;
        while at < bytes.len() {
            if let State::Bytes(left) = &mut self.state {
                let rest = &bytes[at..];
                let here = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
                *left -= here as u64;
                if *left == 0 {
                    self.state = State::Cr;
                }
                self.text.push(&rest[..here]);
                at += here;
                continue;
            }
            at += 1;
            if self.push(bytes[at - 1])? {
                self.fresh = false;
                return Ok((at, Some(std::mem::take(&mut self.reply))));
            }
        }
        Ok((at, None))
    }

    /// Parses a byte outside of strings; returns whether it ends the reply.
    fn push(&mut self, byte: u8) -> Result<bool, Refusal> {
        match &mut self.state {
            State::Type => {
                self.text = Short::default();
                if self.depth == 0 {
                    self.reply.kind = match byte {
                        b'-' | b'!' => Kind::Error,
                        b'*' | b'%' | b'~' => Kind::Aggregate,
                        b'>' => Kind::Push,
                        _ => Kind::Plain,
                    };
                }
                self.state = match byte {
                    b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => {
                        State::Line { of: byte, len: 0, ending: false }
                    }
                    b'$' | b'!' | b'=' | b'*' | b'%' | b'~' | b'>' | b'|' => {
                        State::Length(byte, Number::default())
                    }
                    _ => return Err(Refusal::UnknownType),
                };
            }
            State::Line { of, ending: true, .. } if byte == b'\n' => {
                let of = *of;
                return Ok(self.scalar(of));
            }
            State::Line { ending: true, .. } => return Err(Refusal::BadEnd),
            State::Line { ending, .. } if byte == b'\r' => *ending = true,
            State::Line { .. } if byte == b'\n' => return Err(Refusal::BadEnd),
            State::Line { len, .. } => {
                *len += 1;
                if *len > LINE {
                    return Err(Refusal::LongLine);
                }
                self.text.push(&[byte]);
            }
            State::Length(of, number) => {
                let of = *of;
                if let Some(read) = number.push(byte)? {
                    return self.length(of, read);
                }
            }
            State::Cr if byte == b'\r' => self.state = State::Lf,
            State::Lf if byte == b'\n' => return Ok(self.scalar(b'$')),
            State::Cr | State::Lf | State::Bytes(_) => return Err(Refusal::BadEnd),
        }
        Ok(false)
    }

    /// Handles a complete length or count.
    fn length(&mut self, of: u8, read: Parsed) -> Result<bool, Refusal> {
        self.state = State::Type;
        let count = match (of, read) {
            (b'$' | b'*', Parsed::Null) => return Ok(self.scalar(b'_')),
            (_, Parsed::Null) => return Err(Refusal::BadNumber),
            (b'$' | b'!' | b'=', Parsed::Count(len)) => {
                self.state = if len == 0 { State::Cr } else { State::Bytes(len) };
                return Ok(false);
            }
            (b'%' | b'|', Parsed::Count(pairs)) => pairs * 2,
            (_, Parsed::Count(count)) => count,
        };
        let is_attribute = of == b'|';
        if count == 0 {
            // An empty attribute still precedes a reply.
            return Ok(!is_attribute && self.scalar(b'_'));
        }
        let left = self.left.get_mut(self.depth).ok_or(Refusal::TooDeep)?;
        *left = count;
        let bit = 1u32 << self.depth;
        self.attributes = if is_attribute { self.attributes | bit } else { self.attributes & !bit };
        match self.depth {
            0 => self.fresh = !is_attribute,
            // An attribute is not an element itself.
            1 if !is_attribute => self.fresh = false,
            _ => {}
        }
        self.depth += 1;
        Ok(false)
    }

    /// Ends a scalar, or an empty aggregate.
    fn scalar(&mut self, of: u8) -> bool {
        self.state = State::Type;
        let in_reply = self.depth == 1 && self.attributes & 1 == 0;
        match of {
            b'+' | b'$' if in_reply && self.fresh => self.reply.text = self.text,
            b':' if in_reply => self.reply.number = self.text.number(),
            _ if self.depth == 0 && self.reply.kind == Kind::Error => self.reply.text = self.text,
            _ => {}
        }
        if in_reply {
            self.fresh = false;
        }
        // An element of the enclosing aggregate, which may end with it.
        while let Some(above) = self.depth.checked_sub(1) {
            self.left[above] -= 1;
            if self.left[above] > 0 {
                return false;
            }
            self.depth = above;
            if self.attributes & (1 << above) != 0 {
                // The reply itself is still to come.
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(Kind, String, Option<u64>)>, Refusal> {
        let (mut replies, mut rest, mut found) = (Replies::default(), text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let (used, reply) = replies.next(rest)?;
            rest = &rest[used..];
            found.extend(reply.map(|reply| {
                (reply.kind, String::from_utf8_lossy(reply.text.as_bytes()).into_owned(), reply.number)
            }));
        }
        Ok(found)
    }

    fn one(text: &str) -> (Kind, String, Option<u64>) {
        let found = read(text).unwrap();
        assert_eq!(found.len(), 1, "{text:?}: {found:?}");
        found[0].clone()
    }

    #[test]
    fn every_type_is_parsed_to_its_end() {
        for text in [
            "+OK\r\n",
            ":-12\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "$3\r\na\r\n\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "(12345678901234567890\r\n",
            "=5\r\ntxt:a\r\n",
        ] {
            assert_eq!(one(text), (Kind::Plain, String::new(), None), "{text:?}");
        }
        for text in
            ["*0\r\n", "~0\r\n", "%0\r\n", "*2\r\n*0\r\n*1\r\n$1\r\na\r\n", "%1\r\n*1\r\n:1\r\n#f\r\n"]
        {
            assert_eq!(one(text).0, Kind::Aggregate, "{text:?}");
        }
        assert_eq!(one("*-1\r\n").0, Kind::Aggregate);
        assert_eq!(read("+a\r\n*1\r\n*1\r\n*1\r\n:1\r\n+b\r\n").unwrap().len(), 3);
    }

    #[test]
    fn summaries_of_messages_and_errors_are_kept() {
        let error = one("-ERR unknown command 'foo', with args beginning with: \r\n");
        assert_eq!(error, (Kind::Error, "ERR unknown command 'foo".into(), None));
        assert_eq!(one("!5\r\nERR a\r\n"), (Kind::Error, "ERR a".into(), None));
        let subscribed = "*3\r\n$9\r\nsubscribe\r\n$3\r\ndog\r\n:2\r\n";
        assert_eq!(one(subscribed), (Kind::Aggregate, "subscribe".into(), Some(2)));
        let pushed = ">4\r\n+pmessage\r\n$1\r\n*\r\n$1\r\na\r\n$30\r\n123456789012345678901234567890\r\n";
        assert_eq!(one(pushed), (Kind::Push, "pmessage".into(), None));
        // Only direct elements of the reply.
        let nested = "*3\r\n*2\r\n$1\r\na\r\n:7\r\n$1\r\nb\r\n*1\r\n:8\r\n";
        assert_eq!(one(nested), (Kind::Aggregate, String::new(), None));
    }

    #[test]
    fn attributes_precede_a_reply() {
        let text = "|1\r\n+key\r\n*2\r\n:1\r\n:2\r\n*2\r\n$1\r\na\r\n|1\r\n+x\r\n:3\r\n:9\r\n";
        assert_eq!(one(text), (Kind::Aggregate, "a".into(), Some(9)));
        let first = ">2\r\n|1\r\n+x\r\n*1\r\n+y\r\n$7\r\nmessage\r\n$1\r\na\r\n";
        assert_eq!(
            one(first),
            (Kind::Push, "message".into(), None),
            "attributes before the first element are skipped"
        );
        assert_eq!(one("|0\r\n-ERR\r\n"), (Kind::Error, "ERR".into(), None));
    }

    #[test]
    fn invalid_input_is_refused() {
        let deep = "*1\r\n".repeat(DEPTH) + ":1\r\n";
        assert_eq!(read(&deep).unwrap().len(), 1);
        let longest = format!("+{}\r\n", "a".repeat(LINE as usize));
        assert_eq!(read(&longest).unwrap().len(), 1);
        let long = format!("+{}\r\n", "a".repeat(LINE as usize + 1));
        for (text, refusal) in [
            ("OK\r\n", Refusal::UnknownType),
            ("+OK\n", Refusal::BadEnd),
            ("+OK\rx", Refusal::BadEnd),
            ("$1\r\nab", Refusal::BadEnd),
            ("$1\r\na\rb", Refusal::BadEnd),
            ("%-1\r\n", Refusal::BadNumber),
            ("$?\r\n", Refusal::BadNumber),
            ("*1e9\r\n", Refusal::BadNumber),
            (&("*1\r\n".repeat(DEPTH + 1)), Refusal::TooDeep),
            (&long, Refusal::LongLine),
        ] {
            assert_eq!(read(text), Err(refusal), "{text:.20}");
        }
    }
}
