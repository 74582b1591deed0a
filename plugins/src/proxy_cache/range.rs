//! Parts of a stored answer (RFC 9110 section 14).

use sdk::Fields;

use super::rules;

/// The part of an answer of some length that a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Whole,
    /// The bytes from the first to before the second.
    Part(usize, usize),
    /// It has no such bytes.
    Nothing,
}

/// Reads Range and If-Range. Several parts at once, other units and what cannot be read are
/// answered with the whole, as section 14.2 allows.
pub(crate) fn wanted(request: &Fields, answer: &Fields, length: usize) -> Wanted {
    let mut lines = request.all(b"range");
    let (Some(line), None) = (lines.next(), lines.next()) else { return Wanted::Whole };
    let none = |value: &[u8]| value.trim_ascii().eq_ignore_ascii_case(b"none");
    if answer.get_named(b"accept-ranges").is_some_and(none) || !holds_still(request, answer) {
        return Wanted::Whole;
    }
    part(line, length).unwrap_or(Wanted::Whole)
}

/// If-Range (section 13.1.5): the client has parts of this very answer, as far as it names one.
fn holds_still(request: &Fields, answer: &Fields) -> bool {
    let Some(said) = request.get_named(b"if-range").map(<[u8]>::trim_ascii) else { return true };
    let same = |name: &[u8]| answer.get_named(name).map(<[u8]>::trim_ascii) == Some(said);
    match said {
        [b'"', ..] => same(b"etag"),
        // A weak tag names no bytes.
        [b'W', b'/', ..] => false,
        date => rules::date(date).is_some() && same(b"last-modified"),
    }
}

fn part(line: &[u8], length: usize) -> Option<Wanted> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let (unit, set) = text.split_once('=')?;
    let (first, last) = set.split_once('-').filter(|_| unit.trim_end().eq_ignore_ascii_case("bytes"))?;
    let (first, last) = (first.trim(), last.trim());
    let wanted = match (first, last) {
        ("", last) => {
            let from_end = position(last)?;
            if from_end == 0 || length == 0 {
                Wanted::Nothing
            } else {
                Wanted::Part(length.saturating_sub(from_end), length)
            }
        }
        (first, last) => {
            let first = position(first)?;
            let last = if last.is_empty() { usize::MAX } else { position(last)? };
            if last < first {
                return None;
            }
            if first >= length {
                Wanted::Nothing
            } else {
                Wanted::Part(first, length.min(last.saturating_add(1)))
            }
        }
    };
    Some(wanted)
}

/// Digits alone; a number beyond all answers is as good as the greatest.
fn position(digits: &str) -> Option<usize> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::testing::fields;

    #[test]
    fn one_part_is_cut_out() {
        for (range, expected) in [
            ("bytes=0-0", Wanted::Part(0, 1)),
            ("bytes=2-5", Wanted::Part(2, 6)),
            ("Bytes = 2 - 5", Wanted::Part(2, 6)),
            ("bytes=2-", Wanted::Part(2, 10)),
            ("bytes=9-100", Wanted::Part(9, 10)),
            ("bytes=-3", Wanted::Part(7, 10)),
            ("bytes=-30", Wanted::Part(0, 10)),
            ("bytes=0-99999999999999999999999", Wanted::Part(0, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=99999999999999999999999-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=0-1,4-5", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
            ("2-5", Wanted::Whole),
        ] {
            assert_eq!(wanted(&fields(&[("Range", range)]), &fields(&[]), 10), expected, "{range}");
        }
        assert_eq!(wanted(&fields(&[]), &fields(&[]), 10), Wanted::Whole);
        assert_eq!(wanted(&fields(&[("Range", "bytes=-5")]), &fields(&[]), 0), Wanted::Nothing);
        let twice = fields(&[("Range", "bytes=0-0"), ("range", "bytes=1-1")]);
        assert_eq!(wanted(&twice, &fields(&[]), 10), Wanted::Whole);
        let without = fields(&[("Accept-Ranges", "none")]);
        assert_eq!(wanted(&fields(&[("Range", "bytes=0-0")]), &without, 10), Wanted::Whole);
    }

    #[test]
    fn only_of_the_answer_the_client_knows() {
        let date = "Sat, 29 Oct 1994 19:43:31 GMT";
        let answer = fields(&[("ETag", "\"a\""), ("Last-Modified", date)]);
        for (if_range, cut) in [
            ("\"a\"", true),
            (date, true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            ("Sat, 29 Oct 1994 19:43:32 GMT", false),
            ("soon", false),
        ] {
            let request = fields(&[("Range", "bytes=1-2"), ("If-Range", if_range)]);
            let expected = if cut { Wanted::Part(1, 3) } else { Wanted::Whole };
            assert_eq!(wanted(&request, &answer, 10), expected, "{if_range}");
        }
    }
}
