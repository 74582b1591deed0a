//! hot path
//!
//! Escaping of texts in log lines and entries.

/// Appends bytes as a JSON string. Invalid UTF-8 becomes U+FFFD.
#[inline]
pub fn json_text(value: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escape_json(value, out);
    out.push(b'"');
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Whether no escape changes the byte.
#[inline]
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// Whether no escape changes the text. Checks eight bytes at a time, since texts hardly ever need
/// escaping.
#[inline]
pub(crate) fn is_plain_text(value: &[u8]) -> bool {
    let (words, rest) = value.as_chunks::<8>();
    let odd = words.iter().fold(0, |odd, word| odd | odd_bytes(u64::from_ne_bytes(*word)));
    // The remaining bytes are checked together with bytes before them, rather than one by one.
    let left = match (rest, value.last_chunk::<8>()) {
        ([], _) => 0,
        (_, Some(last)) => odd_bytes(u64::from_ne_bytes(*last)),
        (_, None) => return is_plain_short(value),
    };
    odd | left == 0
}

/// As [`is_plain_text`], for less than eight bytes.
#[inline]
fn is_plain_short(value: &[u8]) -> bool {
    match (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let [first, last] = [first, last].map(|word| u64::from(u32::from_ne_bytes(*word)));
            odd_bytes(first | last << 32) == 0
        }
        _ => value.iter().all(|&byte| is_plain(byte)),
    }
}

/// Not 0 if one of the bytes is not plain: each such byte sets the highest bit of itself or of a
/// higher byte.
#[inline]
fn odd_bytes(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let is_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    let below_space = word.wrapping_sub(0x20 * ONES) & !word & HIGH;
    let others = is_zero(word ^ (u64::from(b'"') * ONES)) | is_zero(word ^ (u64::from(b'\\') * ONES));
    // Bytes above `~`: DEL, and all with the highest bit.
    let above = (word & !HIGH).wrapping_add(ONES) | word;
    (below_space | others | above) & HIGH
}

/// Appends `value` as NGINX's `escape=default` does.
pub(crate) fn escape_default(value: &[u8], out: &mut Vec<u8>) {
    if is_plain_text(value) {
        out.extend_from_slice(value);
        return;
    }
    for &byte in value {
        if is_plain(byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Appends `value` as NGINX's `escape=json` does, and escapes all other control characters, too.
pub(crate) fn escape_json(value: &[u8], out: &mut Vec<u8>) {
    if is_plain_text(value) {
        out.extend_from_slice(value);
        return;
    }
    for chunk in value.utf8_chunks() {
        let mut bytes = chunk.valid().bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                8 => out.extend_from_slice(b"\\b"),
                12 => out.extend_from_slice(b"\\f"),
                0..=31 | 127 => escape_code(byte, out),
                // U+0080 to U+009F, which terminals interpret, are this byte and the code itself;
                // in valid text one follows.
                0xC2 => match bytes.next() {
                    Some(code @ ..=0x9F) => escape_code(code, out),
                    after => out.extend(std::iter::once(byte).chain(after)),
                },
                _ => out.push(byte),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{FFFD}".as_bytes());
        }
    }
}

/// Appends a code below U+0100 as a JSON escape.
fn escape_code(code: u8, out: &mut Vec<u8>) {
    let [high, low] = [code >> 4, code & 15].map(|digit| HEX[usize::from(digit)]);
    out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checking_eight_bytes_at_a_time_equals_checking_each_byte() {
        for (one, other) in (0..=255u8).flat_map(|one| (0..=255u8).map(move |other| (one, other))) {
            // Twice the same word: an escaped byte in one must not hide one in the other.
            let text = [[b'a', one, other, b'b', b'c', b'd', other, one]; 2].concat();
            assert_eq!(is_plain_text(&text), is_plain(one) && is_plain(other), "{one} {other}");
        }
        assert!(is_plain_text(b"12345678abc") && !is_plain_text(b"12345678ab\n") && is_plain_text(b""));
        // An escaped byte in the remainder must not hide one at the same position before it.
        assert!(!is_plain_text(&[b'\n'; 9]));
    }

    #[test]
    fn is_plain_text_recognises_plain_text() {
        // Each byte at each position of texts of these lengths.
        let places = (1..=18).chain([25]).flat_map(|length| (0..length).map(move |place| (length, place)));
        for ((length, place), byte) in places.flat_map(|at| (0..=255u8).map(move |byte| (at, byte))) {
            for around in [b'a', b' ', b'~', b'!', b'#', b'[', b']'] {
                let mut text = vec![around; length];
                text[place] = byte;
                assert_eq!(is_plain_text(&text), is_plain(byte), "{text:?}");
            }
        }
    }

    #[test]
    fn escapes_of_json_include_all_control_characters() {
        let mut out = Vec::new();
        escape_json(b"\n\r\t\x08\x0c\x01\x7f\xff|", &mut out);
        assert_eq!(out, "\\n\\r\\t\\b\\f\\u0001\\u007F\u{FFFD}|".as_bytes());
        for code in '\u{80}'..='\u{ff}' {
            out.clear();
            escape_json(format!("a{code}b").as_bytes(), &mut out);
            let expected = match code {
                ..='\u{9f}' => format!("a\\u00{:02X}b", u32::from(code)),
                _ => format!("a{code}b"),
            };
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
        out.clear();
        escape_json("\u{9b}2J \u{85}\u{a0}\u{c2}\u{49b}\u{209b}".as_bytes(), &mut out);
        out.extend_from_slice(b"|");
        escape_json(b"\xc2", &mut out);
        escape_json(b"\xc2\x9b\xc2", &mut out);
        let expected = "\\u009B2J \\u0085\u{a0}\u{c2}\u{49b}\u{209b}|\u{FFFD}\\u009B\u{FFFD}";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
