//! Answers of the gateway's own as gRPC has them.

/// Returns the code that a client would derive from a status (gRPC's "HTTP to gRPC Status Code Mapping").
pub(super) fn status(status: u16) -> u16 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// A text as `grpc-message` has it: percent-encoded, and not too long for a head. Where an answer has no text, its
/// status in words: clients show nothing else.
pub(super) fn message(text: &[u8], status: u16) -> Vec<u8> {
    const LONGEST: usize = 512;
    if text.trim_ascii().is_empty() {
        return format!("{status} {}", wire::h1::encode::reason(status)).into_bytes();
    }
    let mut message = Vec::new();
    for &byte in text.trim_ascii().iter().take(LONGEST) {
        match byte {
            b' '..=b'~' if byte != b'%' => message.push(byte),
            _ => message.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_grpcs_own_table() {
        let table = [
            (400, 13),
            (401, 16),
            (403, 7),
            (404, 12),
            (429, 14),
            (502, 14),
            (503, 14),
            (504, 14),
            (500, 2),
            (418, 2),
        ];
        for (http, grpc) in table {
            assert_eq!(status(http), grpc, "{http}");
        }
    }

    #[test]
    fn a_message_for_grpc_is_ascii() {
        assert_eq!(message("{\"a\":\"100% é\"}\n".as_bytes(), 400), b"{\"a\":\"100%25 %C3%A9\"}");
    }

    #[test]
    fn a_refusal_without_a_text_has_a_message() {
        assert_eq!(message(b"", 429), b"429 Too Many Requests");
        assert_eq!(message(b"\n", 503), b"503 Service Temporarily Unavailable");
    }
}
