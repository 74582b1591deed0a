//! hot path
//!
//! Commands of clients: arrays of bulk strings.

use super::{Number, Parsed, Refusal};

/// Parses commands, one after another.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    state: State,
    /// Arguments of the command still to come, including its name.
    left: u64,
}

#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Array,
    Count(Number),
    Bulk,
    Length(Number),
    Bytes(u64),
    Cr,
    Lf,
}

/// A part of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The start of a command with this many arguments; its name is the first.
    Command(u64),
    /// The start of an argument of this many bytes.
    Argument(u64),
    /// The next bytes of the argument.
    Bytes(&'a [u8]),
    /// The end of an argument; with the last one, the end of the command.
    ArgumentEnd { last: bool },
}

impl Requests {
    /// Parses on: returns the number of bytes used, and the next part; `None` if more bytes are
    /// needed.
    ///
    /// # Errors
    /// The command is invalid; no further calls are allowed.
    #[inline]
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Option<Part<'a>>), Refusal> {
        if let State::Bytes(left) = &mut self.state
            && !bytes.is_empty()
        {
            let here = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
            *left -= here as u64;
            if *left == 0 {
                self.state = State::Cr;
            }
            return Ok((here, Some(Part::Bytes(&bytes[..here]))));
        }
        for (at, &byte) in bytes.iter().enumerate() {
            if let Some(part) = self.push(byte)? {
                return Ok((at + 1, Some(part)));
            }
        }
        Ok((bytes.len(), None))
    }

    /// Parses a byte outside of arguments.
    #[inline]
    fn push(&mut self, byte: u8) -> Result<Option<Part<'static>>, Refusal> {
        match &mut self.state {
            State::Array if byte == b'*' => self.state = State::Count(Number::default()),
            State::Array => return Err(Refusal::NotAnArray),
            State::Count(number) => match number.push(byte)? {
                None => {}
                Some(Parsed::Count(0) | Parsed::Null) => return Err(Refusal::NoName),
                Some(Parsed::Count(count)) => {
                    self.left = count;
                    self.state = State::Bulk;
                    return Ok(Some(Part::Command(count)));
                }
            },
            State::Bulk if byte == b'$' => self.state = State::Length(Number::default()),
            State::Bulk => return Err(Refusal::NotABulk),
            State::Length(number) => match number.push(byte)? {
                None => {}
                Some(Parsed::Null) => return Err(Refusal::NullArgument),
                Some(Parsed::Count(len)) => {
                    self.state = if len == 0 { State::Cr } else { State::Bytes(len) };
                    return Ok(Some(Part::Argument(len)));
                }
            },
            State::Cr if byte == b'\r' => self.state = State::Lf,
            State::Lf if byte == b'\n' => {
                self.left -= 1;
                let last = self.left == 0;
                self.state = if last { State::Array } else { State::Bulk };
                return Ok(Some(Part::ArgumentEnd { last }));
            }
            State::Cr | State::Lf | State::Bytes(_) => return Err(Refusal::BadEnd),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a text, in words.
    fn read(text: &[u8]) -> Result<Vec<String>, Refusal> {
        let (mut requests, mut rest, mut words) = (Requests::default(), text, Vec::new());
        while !rest.is_empty() {
            let (used, part) = requests.next(rest)?;
            rest = &rest[used..];
            words.extend(part.map(|part| match part {
                Part::Command(count) => format!("command {count}"),
                Part::Argument(len) => format!("argument {len}"),
                Part::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Part::ArgumentEnd { last: false } => "end".to_owned(),
                Part::ArgumentEnd { last: true } => "command end".to_owned(),
            }));
        }
        Ok(words)
    }

    #[test]
    fn commands_come_in_parts() {
        let text = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$0\r\n\r\n";
        let parts = [
            "command 2",
            "argument 3",
            "GET",
            "end",
            "argument 1",
            "k",
            "command end",
            "command 1",
            "argument 0",
            "command end",
        ];
        assert_eq!(read(text).unwrap(), parts);
        assert_eq!(read(b"*1\r\n$4000000000\r\nab").unwrap(), ["command 1", "argument 4000000000", "ab"]);
    }

    #[test]
    fn invalid_input_is_refused() {
        for (text, refusal) in [
            ("PING\r\n", Refusal::NotAnArray),
            ("\r\n", Refusal::NotAnArray),
            ("$4\r\nPING\r\n", Refusal::NotAnArray),
            ("*0\r\n", Refusal::NoName),
            ("*-1\r\n", Refusal::NoName),
            ("*1\r\n:1\r\n", Refusal::NotABulk),
            ("*1\r\n$-1\r\n", Refusal::NullArgument),
            ("*1\r\n$1e9\r\n", Refusal::BadNumber),
            ("*1\r\n$4\r\nPINGS\r\n", Refusal::BadEnd),
            ("*1\r\n$4\r\nPING\n", Refusal::BadEnd),
            ("*1\r\n$4\r\nPING\r\r", Refusal::BadEnd),
        ] {
            assert_eq!(read(text.as_bytes()), Err(refusal), "{text:?}");
        }
    }
}
