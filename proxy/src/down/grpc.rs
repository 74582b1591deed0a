//! Answers of the gateway's own as gRPC has them.

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
    fn a_message_for_grpc_is_ascii() {
        assert_eq!(message("{\"a\":\"100% é\"}\n".as_bytes(), 400), b"{\"a\":\"100%25 %C3%A9\"}");
    }

    #[test]
    fn a_refusal_without_a_text_has_a_message() {
        assert_eq!(message(b"", 429), b"429 Too Many Requests");
        assert_eq!(message(b"\n", 503), b"503 Service Temporarily Unavailable");
    }
}
