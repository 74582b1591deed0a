//! HTTP dates (RFC 9110 section 5.6.7): the preferred form and the two obsolete ones.

/// Reads a date as Unix seconds; 0 before 1970. The case of letters does not matter and the day of the
/// week is not compared with the date: senders err there, and the rest is unambiguous.
pub(crate) fn date(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let (day, month, year, time) = fixed(value).or_else(|| rfc850(value)).or_else(|| asctime(value))?;
    let [hour, minute, second] = clock(time)?;
    let days = days(year, month, day)?;
    let in_day = u64::from(hour * 3600 + minute * 60 + second);
    Some(u64::try_from(days * 86_400).map_or(0, |midnight| midnight + in_day))
}

type Parts<'a> = (u32, u32, i64, &'a [u8]);

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn fixed(value: &[u8]) -> Option<Parts<'_>> {
    let rest = value.get(3..).filter(|_| value.len() == 29 && is_weekday(value))?.strip_prefix(b", ")?;
    (rest[2] == b' ' && rest[6] == b' ' && rest[11] == b' ').then_some(())?;
    Some((number(&rest[..2])?, month(&rest[3..6])?, number(&rest[7..11])?.into(), gmt(&rest[12..])?))
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`
fn rfc850(value: &[u8]) -> Option<Parts<'_>> {
    let comma = value.iter().position(|&byte| byte == b',')?;
    let rest = value[comma..].strip_prefix(b", ").filter(|rest| rest.len() == 22 && is_weekday(value))?;
    let long = value[..comma].to_ascii_lowercase().ends_with(b"day");
    (long && rest[2] == b'-' && rest[6] == b'-' && rest[9] == b' ').then_some(())?;
    let short = i64::from(number(&rest[7..9])?);
    let year = short + if short < 70 { 2000 } else { 1900 };
    Some((number(&rest[..2])?, month(&rest[3..6])?, year, gmt(&rest[10..])?))
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(value: &[u8]) -> Option<Parts<'_>> {
    let rest = value.get(3..).filter(|_| value.len() == 24 && is_weekday(value))?.strip_prefix(b" ")?;
    (rest[3] == b' ' && rest[6] == b' ' && rest[15] == b' ').then_some(())?;
    let day = number(rest[4..6].strip_prefix(b" ").unwrap_or(&rest[4..6]))?;
    Some((day, month(&rest[..3])?, number(&rest[16..])?.into(), &rest[7..15]))
}

fn gmt(time: &[u8]) -> Option<&[u8]> {
    let (time, zone) = time.split_at_checked(9)?;
    zone.eq_ignore_ascii_case(b"GMT").then(|| time.strip_suffix(b" "))?
}

fn clock(time: &[u8]) -> Option<[u32; 3]> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = time else { return None };
    let parts = [number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?];
    // 60 is a leap second.
    (parts[0] < 24 && parts[1] < 60 && parts[2] <= 60).then_some(parts)
}

fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, digit| {
        Some(sum * 10 + u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?))
    })
}

fn month(name: &[u8]) -> Option<u32> {
    const NAMES: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)).map(|at| at as u32 + 1)
}

fn is_weekday(value: &[u8]) -> bool {
    const NAMES: [&[u8]; 7] = [b"mon", b"tue", b"wed", b"thu", b"fri", b"sat", b"sun"];
    value.get(..3).is_some_and(|name| NAMES.iter().any(|known| known.eq_ignore_ascii_case(name)))
}

/// Days since 1970 of a date of the Gregorian calendar; `None` if the month has no such day.
fn days(year: i64, month: u32, day: u32) -> Option<i64> {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let long = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (1..=long).contains(&day).then_some(())?;
    let past = year - 1;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 477;
    let in_year = BEFORE[month as usize - 1] + i64::from(leap && month > 2) + i64::from(day) - 1;
    Some((year - 1970) * 365 + leaps + in_year)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn all_three_forms_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            " sUN, 06 NOV 1994 08:49:37 gMT ",
            "Mon, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(date(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(date(b"Fri, 31 Dec 1969 23:59:59 GMT"), Some(0));
        assert_eq!(date(b"Thu Aug 18 02:01:18 2050"), date(b"Thu, 18 Aug 2050 02:01:18 GMT"));
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "0",
            "-1",
            "now",
            "Thu, 18 Aug 2050 02:01:18 UTC",
            "Thu, 18 Aug 2050 02:01:18 AEST",
            "Thu, 18 Aug 50 02:01:18 GMT",
            "Thu 18 Aug 2050 02:01:18 GMT",
            "Thu, 18  Aug  2050 02:01:18 GMT",
            "Thu, 18-Aug-2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02.01.18 GMT",
            "Thu, 18 Aug 2050 2:01:18 GMT",
            "Thu, 32 Aug 2050 02:01:18 GMT",
            "Thu, 00 Aug 2050 02:01:18 GMT",
            "Tue, 29 Feb 2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 24:01:18 GMT",
            "Thu, 18 Foo 2050 02:01:18 GMT",
            "Foo, 18 Aug 2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02:01:18 GMTx",
            "Thu, 18 Aug 2050 \u{664}2:01:18 GM",
        ] {
            assert_eq!(date(text.as_bytes()), None, "{text}");
        }
        for length in 0..40 {
            assert_eq!(date(&vec![b','; length]), None);
            assert_eq!(date(&[b"Sun, ", &vec![b' '; length][..]].concat()), None);
        }
    }

    #[test]
    fn dates_agree_with_another_reader() {
        for seconds in (0..8_000_000_000u64).step_by(86_400 * 13 + 4_321) {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(date(text.as_bytes()), Some(seconds), "{text}");
        }
    }
}
