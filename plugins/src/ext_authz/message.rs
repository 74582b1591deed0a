//! Messages of `envoy.service.auth.v3` in the wire format of Protocol Buffers, as far as they are used; those of v2 have
//! the same fields. Unknown fields are skipped.

use crate::envoy::headers::{Header, MOST_HEADERS};
use crate::protobuf::{Field, Fields, Malformed, number, text};

/// `CheckResponse`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer<'m> {
    /// The code of gRPC; 0 accepts the request.
    pub code: u64,
    /// The status for the client; 0 if it is missing.
    pub status: u64,
    pub body: &'m [u8],
    /// For the client if the request is refused, else for the upstream.
    pub headers: Vec<Header<'m>>,
    pub removed: Vec<&'m str>,
    /// For the client if the request is accepted.
    pub response_headers: Vec<Header<'m>>,
    /// The answer changes the query, which is not supported.
    pub changes_query: bool,
}

impl<'m> Answer<'m> {
    pub fn read(message: &'m [u8]) -> Result<Answer<'m>, Malformed> {
        let mut answer = Answer::default();
        let mut of = None;
        for field in Fields::of(message) {
            match field? {
                // A second message adds to the first.
                (1, Field::Bytes(status)) => answer.code = number(status, 1)?.unwrap_or(answer.code),
                // Members of a `oneof`: the last one counts.
                (number @ (2 | 3), Field::Bytes(part)) => of = Some((number, part)),
                // Without its status, an answer would accept.
                (1..=3, _) => return Err(Malformed),
                _ => {}
            }
        }
        match of {
            Some((2, denied)) if answer.code != 0 => answer.denied(denied)?,
            Some((3, ok)) if answer.code == 0 => answer.ok(ok)?,
            _ => {}
        }
        let changes = answer.headers.len() + answer.response_headers.len() + answer.removed.len();
        if changes > MOST_HEADERS {
            return Err(Malformed);
        }
        Ok(answer)
    }

    fn denied(&mut self, message: &'m [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(status)) => self.status = number(status, 1)?.unwrap_or(self.status),
                (2, Field::Bytes(option)) => self.headers.extend(Header::read(option)?),
                (3, Field::Bytes(body)) => self.body = body,
                _ => {}
            }
        }
        Ok(())
    }

    fn ok(&mut self, message: &'m [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            match field? {
                (2, Field::Bytes(option)) => self.headers.extend(Header::read(option)?),
                (5, Field::Bytes(name)) => self.removed.push(text(name)?),
                (6, Field::Bytes(option)) => self.response_headers.extend(Header::read(option)?),
                (7 | 8, _) => self.changes_query = true,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::grpc::unframed;

    use crate::envoy::headers::Action;
    use crate::protobuf::Writer;

    #[test]
    fn messages_are_written_and_read() {
        let mut value = Writer::default();
        value.bytes(1, b"x-user").bytes(2, b"rose");
        let mut option = Writer::default();
        let mut append = Writer::default();
        append.number(1, 1);
        option.message(1, &value).message(2, &append);
        let mut ok = Writer::default();
        ok.message(2, &option).bytes(5, b"cookie").message(6, &option);
        let mut answer = Writer::default();
        answer.message(1, &Writer::default()).message(3, &ok);
        let framed = answer.framed();
        let read = Answer::read(unframed(&framed).unwrap()).unwrap();
        let header = || Header { name: "x-user", value: b"rose", action: Action::Append };
        let expected = Answer {
            headers: vec![header()],
            removed: vec!["cookie"],
            response_headers: vec![header()],
            ..Answer::default()
        };
        assert_eq!(read, expected);
        assert_eq!(Answer::read(b"").unwrap(), Answer::default(), "an answer without a status accepts");
    }

    #[test]
    fn an_answer_accepts_only_by_its_status() {
        // A status of two parts, of which the second has only a text.
        assert_eq!(Answer::read(b"\x0a\x02\x08\x07\x0a\x03\x12\x01a").unwrap().code, 7);
        // A status that is a number, and a code that is a text.
        for wrong in [&b"\x08\x07"[..], b"\x0a\x03\x0a\x01a", b"\x18\x01"] {
            assert!(Answer::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_has_a_number_of_headers() {
        let answer = |headers: usize| {
            let mut ok = Writer::default();
            for _ in 0..headers {
                ok.bytes(5, b"a");
            }
            let mut answer = Writer::default();
            answer.message(3, &ok);
            Answer::read(answer.as_bytes()).is_ok()
        };
        assert_eq!((answer(MOST_HEADERS), answer(MOST_HEADERS + 1)), (true, false));
    }

    #[test]
    fn malformed_messages_are_errors() {
        for wrong in [
            &b"\x0a"[..],
            b"\x0a\x05a",
            b"\x0b\x01",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x09a",
        ] {
            assert!(Answer::read(wrong).is_err(), "{wrong:?}");
        }
    }
}
