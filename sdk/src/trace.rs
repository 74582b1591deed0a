//! hot path
//!
//! Positions in a distributed trace: identifiers of W3C Trace Context, and how they are written and made.

/// A span, as other programs know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    /// Not all zero.
    pub trace_id: [u8; 16],
    /// Not all zero.
    pub span_id: [u8; 8],
    /// The trace is recorded.
    pub sampled: bool,
}

/// The plugins whose spans are values of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracer {
    OpenTelemetry,
    Zipkin,
}

/// The length of a `traceparent` of version 00.
pub const TRACEPARENT: usize = 55;

impl SpanContext {
    /// Reads a `traceparent` (W3C Trace Context, section 3.2). Of a version above 00, the part of version 00 counts.
    pub fn parse(text: &[u8]) -> Option<SpanContext> {
        let version: [u8; 1] = unhex(text.get(..2)?)?;
        match (version, text.get(TRACEPARENT)) {
            ([0xff], _) | ([0], Some(_)) => return None,
            (_, None | Some(b'-')) => {}
            _ => return None,
        }
        let parts = text.get(..TRACEPARENT)?;
        if [2, 35, 52].iter().any(|&at| parts[at] != b'-') {
            return None;
        }
        let (trace_id, span_id): ([u8; 16], [u8; 8]) = (unhex(&parts[3..35])?, unhex(&parts[36..52])?);
        let flags: [u8; 1] = unhex(&parts[53..])?;
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(SpanContext { trace_id, span_id, sampled: flags[0] & 1 == 1 })
    }

    /// The `traceparent` of version 00.
    pub fn traceparent(&self) -> [u8; TRACEPARENT] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        hex(&self.trace_id, &mut text[3..35]);
        hex(&self.span_id, &mut text[36..52]);
        text[54] = b'0' + u8::from(self.sampled);
        text
    }
}

/// Makes the identifiers of a new span from the bits of an exchange ([`unique`](crate::Exchange::unique)). Spans of
/// one exchange differ by their `salt`.
pub fn new_ids(unique: [u64; 2], salt: u64) -> ([u8; 16], [u8; 8]) {
    let [high, low] = unique;
    // Never zero, and the lowest bits stay as random as they were.
    let trace_id = (u128::from(high | 1 << 63) << 64 | u128::from(low)).to_be_bytes();
    (trace_id, (mixed(high ^ low.rotate_left(32) ^ salt) | 1 << 63).to_be_bytes())
}

/// A permutation that spreads each bit over all (the finalizer of SplitMix64).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A number as eight lower-case hexadecimal digits, computed together.
#[inline]
pub fn hex_digits(value: u32) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // One byte per four bits, the highest first.
    let mut spread = u64::from(value);
    spread = (spread | (spread << 16)) & 0x0000_FFFF_0000_FFFF;
    spread = (spread | (spread << 8)) & 0x00FF_00FF_00FF_00FF;
    spread = (spread | (spread << 4)) & 0x0F0F_0F0F_0F0F_0F0F;
    // 1 for digits from `a` on, which are 39 code points above the decimal digits.
    let letters = ((spread + 6 * ONES) >> 4) & ONES;
    (spread + u64::from(b'0') * ONES + letters * 39).to_be_bytes()
}

/// Writes bytes in lower-case hexadecimal; `out` has two digits for each.
pub fn hex(bytes: &[u8], out: &mut [u8]) {
    let (words, rest) = bytes.as_chunks::<4>();
    let (long, short) = out.split_at_mut(8 * words.len());
    for (word, digits) in words.iter().zip(long.as_chunks_mut::<8>().0) {
        *digits = hex_digits(u32::from_be_bytes(*word));
    }
    for (&byte, digits) in rest.iter().zip(short.as_chunks_mut::<2>().0) {
        let [.., high, low] = hex_digits(byte.into());
        *digits = [high, low];
    }
}

/// Reads lower-case hexadecimal of exactly this many bytes.
pub fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_written() {
        let text = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = SpanContext::parse(text).unwrap();
        assert!(context.sampled);
        assert_eq!(&context.traceparent(), text);
        let unsampled = SpanContext { sampled: false, ..context };
        assert_eq!(SpanContext::parse(&unsampled.traceparent()), Some(unsampled));
    }

    #[test]
    fn malformed_ones_are_ignored() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        for later in [format!("01-{trace}-{span}-01"), format!("cc-{trace}-{span}-03-more")] {
            assert!(SpanContext::parse(later.as_bytes()).is_some_and(|context| context.sampled), "{later}");
        }
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}-01-more"),
            format!("01-{trace}-{span}-01more"),
            format!("00-{trace}-{span}-1"),
            format!("00-{trace}-{span}-0x"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00_{trace}-{span}-01"),
            format!("00-{trace}x{span}-01"),
            format!("00-{trace}-{span}.01"),
            format!("0g-{trace}-{span}-01"),
            "é".repeat(30),
        ] {
            assert_eq!(SpanContext::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        let bytes = [0x00, 0x9a, 0xbf, 0xf0, 0x12, 0x07, 0xff];
        for count in 0..=bytes.len() {
            let mut out = vec![b'-'; 2 * count + 1];
            hex(&bytes[..count], &mut out);
            assert_eq!(out, [&b"009abff01207ff"[..2 * count], b"-"].concat());
        }
    }

    #[test]
    fn identifiers_differ() {
        let one = new_ids([1, 2], 0);
        let (two, three) = (new_ids([3, 4], 0), new_ids([3, 4], 1));
        assert_ne!(one.0, two.0);
        assert!(two.0 == three.0 && two.1 != three.1 && one.1 != two.1);
    }
}
