//! The outcome of a call: `grpc-status`, `grpc-message` and `grpc-status-details-bin`.

use super::decode::{self, Large, Limits, Options};
use super::read::{Fault, Reader};
use super::types::{Types, Wire};
use crate::auth::base64;

/// The JSON of all details: a head is short, but fields without a value may be many.
const LIMITS: Limits = Limits { message: 64 << 10, json: 256 << 10, room: 256 << 10 };

/// Details of errors as JSON, as APISIX writes them.
const OPTIONS: Options = Options { enum_names: true, large: Large::Number, defaults: Some(0) };

/// The HTTP status of a gRPC status, as in APISIX; 599 for an unknown one.
pub(super) fn http(status: &[u8]) -> u16 {
    const ALL: [u16; 17] =
        [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
    let known =
        std::str::from_utf8(status).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    known.and_then(|text| ALL.get(text.parse::<usize>().ok()?)).copied().unwrap_or(599)
}

/// The outcome as JSON: `{"error": {"code": …, "message": …, "details": […]}}`. A detail is decoded as `detail`, a
/// message of the proto; an invalid one gives the sentence that APISIX sends instead. Without details in the
/// response, code and message are those of `grpc-status` and `grpc-message`.
pub(super) fn body(
    types: &Types,
    detail: &Detail,
    status: &[u8],
    message: &[u8],
    details: Option<&[u8]>,
) -> Vec<u8> {
    let read = match details {
        Some(details) => from_details(types, detail, details),
        None => {
            let code =
                std::str::from_utf8(status).ok().and_then(|code| code.parse().ok()).unwrap_or_default();
            let message = percent_encoding::percent_decode(message).decode_utf8_lossy();
            let mut out = start(code, &message);
            out.extend_from_slice(b"]}}");
            Ok(out)
        }
    };
    read.unwrap_or_else(|sentence| sentence.as_bytes().to_vec())
}

/// The type of an error's details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// They are not decoded.
    Unset,
    /// The proto has no such message.
    Unknown,
    /// Index of the message.
    Message(usize),
}

fn start(code: i32, message: &str) -> Vec<u8> {
    let mut out = format!("{{\"error\":{{\"code\":{code},\"message\":").into_bytes();
    decode::text(message, &mut out);
    out.extend_from_slice(b",\"details\":[");
    out
}

fn from_details(types: &Types, detail: &Detail, details: &[u8]) -> Result<Vec<u8>, &'static str> {
    const STATUS: &str = "failed to call pb.decode to decode grpc-status-details-bin";
    const DETAILS: &str = "failed to call pb.decode to decode details in grpc-status-details-bin";
    // With padding or without; several values may be one field, with commas between them (gRPC over HTTP/2).
    let first = details.split(|&byte| byte == b',').next().unwrap_or_default().trim_ascii();
    let bytes = base64(first).ok_or("grpc-status-details-bin is not base64 format")?;
    let (mut code, mut message, mut found) = (0, String::new(), Vec::new());
    let mut reader = Reader::new(&bytes);
    while let Some((number, wire)) = reader.tag().map_err(|_| STATUS)? {
        match (number, wire) {
            (1, Wire::Varint) => code = reader.varint().map_err(|_| STATUS)? as i32,
            (2, Wire::Bytes) => {
                message = String::from_utf8_lossy(reader.prefixed().map_err(|_| STATUS)?).into_owned();
            }
            (3, Wire::Bytes) => found.push(any(reader.prefixed().map_err(|_| STATUS)?).map_err(|_| STATUS)?),
            (1..=3, _) => return Err(STATUS),
            _ => reader.skip(wire).map_err(|_| STATUS)?,
        }
    }
    let mut out = start(code, &message);
    for (at, (url, value)) in found.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match detail {
            Detail::Unset => {
                out.extend_from_slice(b"{\"type_url\":");
                decode::text(&String::from_utf8_lossy(url), &mut out);
                out.extend_from_slice(b",\"value\":");
                decode::bytes(value, &mut out);
                out.push(b'}');
            }
            Detail::Unknown => return Err(DETAILS),
            Detail::Message(index) => {
                decode::to_json(types, *index, value, OPTIONS, LIMITS, &mut out).map_err(|_| DETAILS)?;
            }
        }
    }
    out.extend_from_slice(b"]}}");
    Ok(out)
}

/// The type and the value of a `google.protobuf.Any`.
fn any(bytes: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let (mut url, mut value) = (&[][..], &[][..]);
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.tag()? {
        match (number, wire) {
            (1, Wire::Bytes) => url = reader.prefixed()?,
            (2, Wire::Bytes) => value = reader.prefixed()?,
            (1 | 2, _) => return Err(Fault::Malformed),
            _ => reader.skip(wire)?,
        }
    }
    Ok((url, value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn statuses_are_those_of_apisix() {
        for (status, code) in [
            ("1", 499),
            ("2", 500),
            ("3", 400),
            ("4", 504),
            ("5", 404),
            ("6", 409),
            ("7", 403),
            ("8", 429),
            ("9", 400),
            ("10", 409),
            ("11", 400),
            ("12", 501),
            ("13", 500),
            ("14", 503),
            ("15", 500),
            ("16", 401),
            ("17", 599),
            ("-1", 599),
            ("+1", 599),
            ("", 599),
            ("x", 599),
            ("99999999999999999999999", 599),
        ] {
            assert_eq!(http(status.as_bytes()), code, "{status}");
        }
    }

    fn shown(details: Option<&[u8]>) -> Value {
        let body = body(&Types::default(), &Detail::Unset, b"5", b"a%20%C3%A4%", details);
        serde_json::from_slice(&body).unwrap_or_else(|_| Value::from(String::from_utf8(body).unwrap()))
    }

    #[test]
    fn an_error_is_shown_with_its_details_or_without() {
        assert_eq!(shown(None), json!({"error": {"code": 5, "message": "a ä%", "details": []}}));
        // Code 14, a message, and an unknown field.
        assert_eq!(
            shown(Some(b"CA4SAm5vIAE")),
            json!({"error": {"code": 14, "message": "no", "details": []}})
        );
        for same in ["CA4SAm5vIAE=", "CA4SAm5vIAF", "CA4SAm5vIAE,CAU=", "CA4SAm5vIAE= , CAU="] {
            assert_eq!(shown(Some(same.as_bytes())), shown(Some(b"CA4SAm5vIAE")), "{same}");
        }
        assert_eq!(shown(Some(b"")), json!({"error": {"code": 0, "message": "", "details": []}}));
        assert_eq!(shown(Some(b"!")), json!("grpc-status-details-bin is not base64 format"));
        for broken in [&b"CA"[..], b"CgE=", b"GgMKBQ=="] {
            assert_eq!(
                shown(Some(broken)),
                json!("failed to call pb.decode to decode grpc-status-details-bin")
            );
        }
    }
}
