//! How long a text a pattern with look-around may search.
//!
//! Such a pattern runs on an engine that tries it at one place after another, and what it looks ahead to may be all
//! that is left of the text each time: the time grows with the square of the text. One that can only match at the
//! beginning is tried there alone.

/// Bytes of a text that is searched at every place: a tenth of a second at worst. One of 64 KiB took seconds.
pub const ANYWHERE: usize = 8 << 10;
/// Bytes of a text that is searched at its beginning only.
pub const AT_BEGIN: usize = 64 << 10;

/// The bytes of a text that this pattern may search.
pub fn longest_text(pattern: &str) -> usize {
    if is_anchored(pattern) { AT_BEGIN } else { ANYWHERE }
}

/// Whether it begins with `^`, for all that it may match; not if that may be the beginning of a line.
fn is_anchored(pattern: &str) -> bool {
    let Some(rest) = pattern.strip_prefix('^') else { return false };
    if rest.starts_with(['*', '?', '+', '{']) {
        return false;
    }
    let (mut depth, mut in_class) = (0usize, false);
    let mut bytes = rest.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b']' => in_class = false,
            b'[' => in_class = true,
            b'(' if !in_class => depth += 1,
            b')' if !in_class => depth = depth.saturating_sub(1),
            b'|' if !in_class && depth == 0 => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_at_the_beginning_searches_a_long_text() {
        for (pattern, anchored) in [
            ("^(?!tag=)[ -~]*", true),
            ("^(?=.*[A-Z])(?=.*\\d).{8,}$", true),
            ("^(?!a|b)[|)]x\\|y", true),
            ("(?=.*\\d).{8,}", false),
            ("(?!a)b", false),
            ("^(?!a)b|c", false),
            ("^(?!a)b(c)|^d", false),
            ("^*(?=a)b", false),
            ("(?m)^(?!a)", false),
            ("\\^(?=a)", false),
            ("", false),
        ] {
            assert_eq!(is_anchored(pattern), anchored, "{pattern}");
            assert_eq!(longest_text(pattern) == AT_BEGIN, anchored, "{pattern}");
        }
    }
}
