//! hot path
//!
//! Huffman-coded text (RFC 7541 section 5.2, which QPACK uses unchanged).
//!
//! The code is canonical: codes of one length are consecutive numbers in the order of their bytes,
//! and follow those of the next shorter length. So the lengths define the code.

/// Bits of each byte's code (RFC 7541 appendix B).
const BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// The codes of one length.
#[derive(Clone, Copy)]
struct Row {
    /// The first code of the length.
    first: u32,
    /// One above the last code of the length, aligned to the top of 32 bits.
    end: u64,
    /// Index of their first byte in [`Codes::bytes`].
    at: usize,
}

struct Codes {
    rows: [Row; LONGEST + 1],
    /// All bytes in the order of their codes.
    bytes: [u8; 256],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut codes = Codes { rows: [Row { first: 0, end: 0, at: 0 }; LONGEST + 1], bytes: [0; 256] };
    let (mut bits, mut code, mut at) = (1, 0u32, 0);
    while bits <= LONGEST {
        code <<= 1;
        codes.rows[bits].first = code;
        codes.rows[bits].at = at;
        let mut byte = 0;
        while byte < 256 {
            if BITS[byte] as usize == bits {
                codes.bytes[at] = byte as u8;
                at += 1;
                code += 1;
            }
            byte += 1;
        }
        codes.rows[bits].end = (code as u64) << (32 - bits);
        bits += 1;
    }
    codes
}

/// Appends the decoded text; returns `false` if the coding is invalid.
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> bool {
    let mut word = 0u64;
    let mut have = 0usize;
    let mut rest = coded.iter();
    loop {
        while have <= 56 {
            let Some(byte) = rest.next() else { break };
            word |= u64::from(*byte) << (56 - have);
            have += 8;
        }
        // Missing bits read as ones; only the end-of-string code consists of ones.
        let window = (word >> 32) | (u64::from(u32::MAX) >> have.min(32));
        let mut bits = SHORTEST;
        while bits <= LONGEST && window >= CODES.rows[bits].end {
            bits += 1;
        }
        if bits > LONGEST || bits > have {
            // The rest is less than a byte of ones, or invalid.
            return have < 8 && window == u64::from(u32::MAX);
        }
        let row = CODES.rows[bits];
        let code = (window >> (32 - bits)) as u32;
        out.push(CODES.bytes[row.at + (code - row.first) as usize]);
        word <<= bits;
        have -= bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, &mut out).then_some(out)
    }

    /// The code of each byte, put together bit by bit.
    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for byte in text {
            let length = BITS[*byte as usize] as usize;
            let row = CODES.rows[length];
            let place = CODES.bytes[row.at..].iter().position(|other| other == byte).unwrap();
            let code = row.first + place as u32;
            bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    #[test]
    fn the_examples_of_the_rfc() {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..][..2], 16).unwrap()).collect()
        };
        for (coded, plain) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ] {
            assert_eq!(text(&hex(coded)).as_deref(), Some(plain.as_bytes()));
            assert_eq!(encode(plain.as_bytes()), hex(coded));
        }
    }

    #[test]
    fn every_byte_round_trips() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(text(&encode(&all)), Some(all));
        assert_eq!(text(b""), Some(Vec::new()));
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        // `&` is 11111000.
        assert_eq!(text(&[0b1111_1000]), Some(b"&".to_vec()), "without padding");
        // `a` is 00011.
        assert_eq!(text(&[0b0001_1111]), Some(b"a".to_vec()));
        assert_eq!(text(&[0b0001_1110]), None, "a zero in the padding");
        assert_eq!(text(&[0b0001_1111, 0xff]), None, "too much padding");
        assert_eq!(text(&[0xff]), None);
        assert_eq!(text(&[0xff, 0xff, 0xff, 0xff]), None, "the end-of-string code is not allowed");
        assert_eq!(text(&[0xff, 0xff, 0xff, 0xfc]), None);
    }
}
