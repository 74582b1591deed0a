//! hot path
//!
//! Huffman-coded text (RFC 7541 section 5.2, which QPACK uses unchanged).
//!
//! The code is canonical: codes of one length are consecutive numbers in the order of their bytes,
//! and follow those of the next shorter length. So the lengths define the code.

use crate::names::short;

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

/// Bits that select a table entry. Most pairs of frequent characters have codes of 5 and 6 bits, so
/// an entry holds up to two. One bit more saves few steps and doubles the 8 KiB.
const WINDOW: u32 = 11;

/// The characters whose codes begin a window: up to two of them, of which the second is meaningless
/// if there is only one, the bits of their codes, and how many there are. Packed from the lowest
/// byte up, as one load takes fewer instructions than four.
type Step = u32;

/// A code that is longer than the window.
const LONG: Step = 0;

static STEPS: [Step; 1 << WINDOW] = steps();

const fn steps() -> [Step; 1 << WINDOW] {
    let codes = codes();
    let mut steps = [LONG; 1 << WINDOW];
    let mut window = 0;
    while window < steps.len() {
        let (mut bytes, mut all, mut count) = ([0; 2], 0, 0);
        while count < 2 {
            let rest = (window << all) & (steps.len() - 1);
            let Some((byte, bits)) = first(&codes, (rest as u64) << (32 - WINDOW)) else { break };
            if all + bits > WINDOW as u8 {
                break;
            }
            bytes[count] = byte;
            all += bits;
            count += 1;
        }
        if count > 0 {
            steps[window] = u32::from_le_bytes([bytes[0], bytes[1], all, count as u8]);
        }
        window += 1;
    }
    steps
}

/// The character whose code begins 32 bits, and the length of the code; `None` for the
/// end-of-string code.
const fn first(codes: &Codes, window: u64) -> Option<(u8, u8)> {
    let mut bits = SHORTEST;
    while bits <= LONGEST {
        let row = codes.rows[bits];
        if window < row.end {
            let code = (window >> (32 - bits)) as u32;
            return Some((codes.bytes[row.at + (code - row.first) as usize], bits as u8));
        }
        bits += 1;
    }
    None
}

/// Bits at hand after a refill, unless the text ends, and the steps they suffice for.
const REFILLED: u32 = 56;
const STEPS_AT_ONCE: u32 = REFILLED / WINDOW;

/// Bytes that the steps of a refill may write.
const ROOM: usize = 16;

/// Appends the decoded text; returns `false` if the coding is invalid.
pub(crate) fn decode(coded: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + coded.len() * 8 / SHORTEST + ROOM, 0);
    let written = decode_to(coded, &mut out[start..]);
    out.truncate(start + written.unwrap_or(0));
    written.is_some()
}

/// Returns the length of the text, or `None` if the coding is invalid.
fn decode_to(coded: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut word, mut have) = (0u64, 0u32);
    let (mut rest, mut at) = (coded, 0);
    loop {
        let next = match rest.first_chunk::<8>() {
            Some(next) => u64::from_be_bytes(*next),
            None => short(rest).swap_bytes(),
        };
        word |= next >> have;
        let taken = rest.len().min(((63 - have) / 8) as usize);
        rest = &rest[taken..];
        have += 8 * taken as u32;
        if have < REFILLED {
            return finish(word, have, out, at);
        }
        let room = out.get_mut(at..)?.first_chunk_mut::<ROOM>()?;
        let (mut count, mut bits, mut step) = (0, 0, LONG);
        // A long code takes no bits here, so the steps behind it have no effect.
        for _ in 0..STEPS_AT_ONCE {
            step = STEPS[((word << bits) >> (64 - WINDOW)) as usize];
            room[count % ROOM] = step as u8;
            room[(count + 1) % ROOM] = (step >> 8) as u8;
            bits += step >> 16 & 0xff;
            count += (step >> 24) as usize;
        }
        at += count;
        word <<= bits;
        have -= bits;
        if step == LONG && have >= LONGEST as u32 {
            let (byte, bits) = first(&CODES, word >> 32)?;
            *out.get_mut(at)? = byte;
            at += 1;
            word <<= bits;
            have -= u32::from(bits);
        }
    }
}

/// Decodes the last `have` bits of a word behind the text of `at` bytes.
fn finish(mut word: u64, mut have: u32, out: &mut [u8], mut at: usize) -> Option<usize> {
    loop {
        let step = STEPS[(word >> (64 - WINDOW)) as usize];
        let bits = step >> 16 & 0xff;
        if step == LONG || bits > have {
            // A long code, or the last bits. Missing bits read as ones.
            let filled = word | u64::MAX >> have;
            if have < 8 && filled == u64::MAX {
                // Less than a byte of ones (RFC 7541 section 5.2).
                return Some(at);
            }
            let (byte, bits) = first(&CODES, filled >> 32).filter(|(_, bits)| u32::from(*bits) <= have)?;
            *out.get_mut(at)? = byte;
            at += 1;
            word <<= bits;
            have -= u32::from(bits);
        } else {
            out.get_mut(at..)?.first_chunk_mut::<2>()?.copy_from_slice(&(step as u16).to_le_bytes());
            at += (step >> 24) as usize;
            word <<= bits;
            have -= bits;
        }
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

    /// Decodes bit by bit.
    fn slow(coded: &[u8]) -> Option<Vec<u8>> {
        let bits: Vec<u64> =
            coded.iter().flat_map(|byte| (0..8).rev().map(move |bit| u64::from(byte >> bit & 1))).collect();
        let (mut out, mut rest) = (Vec::new(), &bits[..]);
        loop {
            let window = (0..32).fold(0, |window, at| window << 1 | rest.get(at).copied().unwrap_or(1));
            match first(&CODES, window) {
                Some((byte, bits)) if usize::from(bits) <= rest.len() => {
                    out.push(byte);
                    rest = &rest[bits.into()..];
                }
                _ => return (rest.len() < 8 && rest.iter().all(|bit| *bit == 1)).then_some(out),
            }
        }
    }

    #[test]
    fn steps_decode_as_single_bits_do() {
        for coded in 0..=u16::MAX {
            let coded = coded.to_be_bytes();
            assert_eq!(text(&coded), slow(&coded), "{coded:x?}");
        }
        // Texts with codes of all lengths, of which a byte was changed.
        let mut state = 1u64;
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        for _ in 0..20_000 {
            let plain: Vec<u8> =
                (0..random(60))
                    .map(|_| {
                        if random(8) == 0 {
                            random(256) as u8
                        } else {
                            b"aeiou01/-xyz:,&"[random(15) as usize]
                        }
                    })
                    .collect();
            let mut coded = encode(&plain);
            assert_eq!(text(&coded), Some(plain));
            let at = random(coded.len() as u64 + 1) as usize;
            if let Some(byte) = coded.get_mut(at) {
                *byte = random(256) as u8;
            }
            assert_eq!(text(&coded), slow(&coded), "{coded:x?}");
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
