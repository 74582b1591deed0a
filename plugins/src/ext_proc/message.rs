//! Messages of `envoy.service.ext_proc.v3`, as far as they are used.

use super::mode::{BodyMode, Mode};
use crate::envoy::headers::{Header, MOST_HEADERS};
use crate::protobuf::{Field, Fields, Malformed, Writer, number, text};

/// A part of an exchange, by the number of its field in `ProcessingRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    RequestHeaders = 2,
    ResponseHeaders = 3,
    RequestBody = 4,
    ResponseBody = 5,
    RequestTrailers = 6,
    ResponseTrailers = 7,
}

/// The direction of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

impl Part {
    const ALL: [Part; 6] = [
        Part::RequestHeaders,
        Part::ResponseHeaders,
        Part::RequestBody,
        Part::ResponseBody,
        Part::RequestTrailers,
        Part::ResponseTrailers,
    ];

    /// The part that an answer is about, by the number of its field in `ProcessingResponse`.
    fn of_answer(field: u64) -> Option<Part> {
        Part::ALL.into_iter().find(|part| *part as u64 == field + 1)
    }

    pub fn side(self) -> Side {
        match self {
            Part::RequestHeaders | Part::RequestBody | Part::RequestTrailers => Side::Request,
            Part::ResponseHeaders | Part::ResponseBody | Part::ResponseTrailers => Side::Response,
        }
    }
}

/// `HeaderMap`, with the values as bytes.
#[derive(Default)]
pub(super) struct Headers(Writer);

impl Headers {
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let mut header = Writer::default();
        header.bytes(1, name).bytes(3, value);
        self.0.message(1, &header);
    }
}

/// `ProcessingRequest` with headers or trailers.
pub(super) fn of_headers(part: Part, headers: &Headers, ends: bool) -> Writer {
    let mut inner = Writer::default();
    inner.message(1, &headers.0).truth(3, ends);
    let mut request = Writer::default();
    request.message(part as u32, &inner);
    request
}

/// `ProcessingRequest` with a body, or a piece of it.
pub(super) fn of_body(part: Part, body: &[u8], ends: bool) -> Writer {
    let mut inner = Writer::default();
    inner.bytes(1, body).truth(2, ends);
    let mut request = Writer::default();
    request.message(part as u32, &inner);
    request
}

/// `HeaderMutation`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes<'m> {
    pub set: Vec<Header<'m>>,
    pub removed: Vec<&'m str>,
}

/// `CommonResponse`, or the answer about trailers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Continue<'m> {
    /// The body takes the place of the client's or the upstream's, which the server does not see.
    pub replaces: bool,
    pub headers: Changes<'m>,
    /// The new body; empty if it is removed.
    pub body: Option<&'m [u8]>,
}

/// `ImmediateResponse`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Immediate<'m> {
    pub status: u64,
    pub headers: Changes<'m>,
    pub body: &'m [u8],
    /// The status of gRPC.
    pub grpc: Option<u64>,
}

/// The verdict of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<'m> {
    Continue(Part, Continue<'m>),
    Immediate(Immediate<'m>),
}

/// `ProcessingResponse`. One that only asks for more time has no verdict.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer<'m> {
    pub verdict: Option<Verdict<'m>>,
    /// `ProcessingMode`; it is read where it is allowed.
    mode: Option<&'m [u8]>,
}

/// `ImmediateResponse` in `ProcessingResponse`, and `override_message_timeout`.
const IMMEDIATE: u64 = 7;
const MORE_TIME: u64 = 10;

/// The subject of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Part(Part),
    Immediate,
    MoreTime,
}

impl Subject {
    pub fn of(message: &[u8]) -> Result<Subject, Malformed> {
        let (mut subject, mut more_time) = (None, None);
        for field in Fields::of(message) {
            match field?.0 {
                IMMEDIATE => subject = Some(Subject::Immediate),
                field @ 1..IMMEDIATE => subject = Part::of_answer(field).map(Subject::Part),
                MORE_TIME => more_time = Some(Subject::MoreTime),
                _ => {}
            }
        }
        subject.or(more_time).ok_or(Malformed)
    }
}

impl<'m> Answer<'m> {
    pub fn read(message: &'m [u8]) -> Result<Answer<'m>, Malformed> {
        let (mut of, mut mode, mut more_time) = (None, None, false);
        for field in Fields::of(message) {
            match field? {
                // Members of a `oneof`: the last one counts.
                (field @ 1..=IMMEDIATE, Field::Bytes(answer)) => of = Some((field, answer)),
                (1..=IMMEDIATE, _) => return Err(Malformed),
                (9, Field::Bytes(message)) => mode = Some(message),
                (MORE_TIME, _) => more_time = true,
                _ => {}
            }
        }
        let verdict = match of {
            None if more_time => None,
            None => return Err(Malformed),
            Some((IMMEDIATE, answer)) => Some(Verdict::Immediate(immediate(answer))),
            Some((field, answer)) => {
                let part = Part::of_answer(field).ok_or(Malformed)?;
                Some(Verdict::Continue(
                    part,
                    match part {
                        Part::RequestTrailers | Part::ResponseTrailers => of_trailers(answer)?,
                        _ => of_common(answer)?,
                    },
                ))
            }
        };
        Ok(Answer { verdict, mode })
    }

    /// The mode for the rest of the exchange, if it changes.
    ///
    /// # Errors
    /// It is not supported.
    pub fn mode(&self) -> Result<Option<Mode>, Malformed> {
        self.mode.map(mode).transpose()
    }
}

/// `ProcessingMode`.
fn mode(message: &[u8]) -> Result<Mode, Malformed> {
    // Absent fields are those of Envoy: headers are sent, bodies and trailers are not.
    let mut mode = Mode::HEADERS;
    for field in Fields::of(message) {
        match field? {
            (2, Field::Number(value)) => mode.response_headers = value != 2,
            (3, Field::Number(value)) => mode.request_body = BodyMode::of_number(value).ok_or(Malformed)?,
            (4, Field::Number(value)) => mode.response_body = BodyMode::of_number(value).ok_or(Malformed)?,
            (5, Field::Number(value)) => mode.request_trailers = value == 1,
            (6, Field::Number(value)) => mode.response_trailers = value == 1,
            _ => {}
        }
    }
    Ok(mode)
}

/// `HeadersResponse` and `BodyResponse`.
fn of_common(message: &[u8]) -> Result<Continue<'_>, Malformed> {
    let mut answer = Continue::default();
    for field in Fields::of(message) {
        let (1, Field::Bytes(common)) = field? else { continue };
        for field in Fields::of(common) {
            match field? {
                (1, Field::Number(status)) => answer.replaces = status == 1,
                (2, Field::Bytes(message)) => answer.headers.add(message)?,
                (3, Field::Bytes(message)) => answer.body = body(message)?.or(answer.body),
                (1..=3, _) => return Err(Malformed),
                _ => {}
            }
        }
    }
    Ok(answer)
}

/// `BodyMutation`. That of `FULL_DUPLEX_STREAMED` is refused.
fn body(message: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut body: Option<&[u8]> = None;
    for field in Fields::of(message) {
        match field? {
            (1, Field::Bytes(bytes)) => body = Some(bytes),
            (2, Field::Number(clears)) => body = (clears != 0).then_some(&[][..]),
            (1..=3, _) => return Err(Malformed),
            _ => {}
        }
    }
    Ok(body)
}

/// `TrailersResponse`.
fn of_trailers(message: &[u8]) -> Result<Continue<'_>, Malformed> {
    let mut answer = Continue::default();
    for field in Fields::of(message) {
        if let (1, Field::Bytes(message)) = field? {
            answer.headers.add(message)?;
        }
    }
    Ok(answer)
}

/// `ImmediateResponse`. It ends the exchange in any case, so parts that are malformed, and headers beyond the limit, are
/// left out.
fn immediate(message: &[u8]) -> Immediate<'_> {
    // No status is like this one.
    const MALFORMED: u64 = u64::MAX;
    let mut answer = Immediate::default();
    for field in Fields::of(message).map_while(Result::ok) {
        match field {
            (1, Field::Bytes(status)) => {
                answer.status = number(status, 1).map_or(MALFORMED, |status| status.unwrap_or(answer.status));
            }
            (2, Field::Bytes(message)) => answer.headers.add_readable(message),
            (3, Field::Bytes(body)) => answer.body = body,
            (4, Field::Bytes(status)) => {
                answer.grpc = number(status, 1).map_or(answer.grpc, |code| code.or(Some(0)))
            }
            _ => {}
        }
    }
    answer
}

impl<'m> Changes<'m> {
    fn add(&mut self, message: &'m [u8]) -> Result<(), Malformed> {
        for field in Fields::of(message) {
            match field? {
                (1, Field::Bytes(option)) => self.set.extend(Header::read(option)?),
                (2, Field::Bytes(name)) => self.removed.push(text(name)?),
                _ => {}
            }
            if self.set.len() + self.removed.len() > MOST_HEADERS {
                return Err(Malformed);
            }
        }
        Ok(())
    }

    /// As [`Changes::add`], without headers that are malformed or beyond the limit.
    fn add_readable(&mut self, message: &'m [u8]) {
        let set = Fields::of(message).map_while(Result::ok).filter_map(|field| match field {
            (1, Field::Bytes(option)) => Header::read(option).ok().flatten(),
            _ => None,
        });
        self.set.extend(set.take(MOST_HEADERS.saturating_sub(self.set.len())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::headers::Action;

    fn nested(path: &[u32], inner: &Writer) -> Vec<u8> {
        let mut bytes = inner.as_bytes().to_vec();
        for field in path.iter().rev() {
            let mut outer = Writer::default();
            outer.all_bytes(*field, &bytes);
            bytes = outer.as_bytes().to_vec();
        }
        bytes
    }

    #[test]
    fn answers_are_read() {
        let mut value = Writer::default();
        value.bytes(1, b"x-a").bytes(3, b"b");
        let mut option = Writer::default();
        option.message(1, &value).number(3, 1);
        let mut changes = Writer::default();
        changes.message(1, &option).bytes(2, b"x-c");
        let mut new = Writer::default();
        new.all_bytes(1, b"");
        let mut common = Writer::default();
        common.number(1, 1).message(2, &changes).message(3, &new);
        let message = nested(&[3, 1], &common);
        assert_eq!(Subject::of(&message).unwrap(), Subject::Part(Part::RequestBody));
        let headers = Changes {
            set: vec![Header { name: "x-a", value: b"b", action: Action::AddIfAbsent }],
            removed: vec!["x-c"],
        };
        let verdict =
            Verdict::Continue(Part::RequestBody, Continue { replaces: true, headers, body: Some(b"") });
        assert_eq!(Answer::read(&message).unwrap(), Answer { verdict: Some(verdict), mode: None });
    }

    #[test]
    fn immediate_responses_and_modes_are_read() {
        let mut status = Writer::default();
        status.number(1, 429);
        let mut immediate = Writer::default();
        immediate.message(1, &status).bytes(3, b"no");
        let mut mode = Writer::default();
        mode.number(2, 2).number(4, 2).number(6, 1);
        let mut answer = Writer::default();
        answer.message(7, &immediate).message(9, &mode);
        let read = Answer::read(answer.as_bytes()).unwrap();
        let Some(Verdict::Immediate(immediate)) = &read.verdict else { panic!("{read:?}") };
        assert_eq!((immediate.status, immediate.body), (429, &b"no"[..]));
        let expected = Mode {
            response_headers: false,
            response_body: BodyMode::Buffered,
            response_trailers: true,
            ..Mode::HEADERS
        };
        assert_eq!(read.mode().unwrap(), Some(expected));
    }

    #[test]
    fn readable_parts_of_immediate_responses_count() {
        // A malformed status, a malformed header, and too many.
        let mut headers = Writer::default();
        headers.all_bytes(1, b"\x0a\x05\x0a");
        for _ in 0..2 * MOST_HEADERS {
            headers.all_bytes(1, b"\x0a\x03\x0a\x01a");
        }
        let mut message = Writer::default();
        message.all_bytes(1, b"\x0a").message(2, &headers).bytes(3, b"no").number(4, 1);
        let read = nested(&[7], &message);
        let Some(Verdict::Immediate(read)) = Answer::read(&read).unwrap().verdict else { panic!("{read:?}") };
        assert_eq!((read.status, read.headers.set.len(), read.body), (u64::MAX, MOST_HEADERS, &b"no"[..]));
        assert_eq!(
            Answer::read(b"\x3a\x01\xff").unwrap().verdict,
            Some(Verdict::Immediate(Immediate::default()))
        );
    }

    #[test]
    fn malformed_answers_are_errors() {
        // Nothing, a number for a message, a streamed answer, an unknown action, a broken message.
        for wrong in [
            &b""[..],
            b"\x08\x01",
            b"\x1a\x06\x0a\x04\x1a\x02\x1a\x00",
            b"\x0a\x08\x0a\x06\x12\x04\x0a\x02\x18\x07",
            b"\x0a\x05\x0a",
        ] {
            assert!(Answer::read(wrong).is_err(), "{wrong:?}");
        }
        // Another mode is one where it is allowed.
        assert!(Answer::read(b"\x0a\x00\x4a\x02\x18\x04").unwrap().mode().is_err());
        assert_eq!(Answer::read(b"\x52\x00").unwrap(), Answer { verdict: None, mode: None }, "more time");
    }
}
