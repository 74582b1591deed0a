//! Times as `After`, `Before` and `Between` have them: ISO 8601 with an offset, and perhaps a zone.

/// Seconds since 1970, with milliseconds. A number is milliseconds since 1970.
pub fn seconds(text: &str) -> Option<f64> {
    if let Ok(milliseconds) = text.parse::<i64>() {
        return Some(milliseconds as f64 / 1000.0);
    }
    // The zone in brackets names what the offset already says.
    let text = text.split_once('[').map_or(text, |(text, _)| text);
    let (date, time) = text.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, offset) = match time.find(['Z', '+', '-']) {
        Some(at) => (&time[..at], offset(&time[at..])?),
        None => return None,
    };
    let mut parts = clock.split(':');
    let hour: i64 = parts.next()?.parse().ok()?;
    let minute: i64 = parts.next()?.parse().ok()?;
    let second: f64 = parts.next().unwrap_or("0").parse().ok()?;
    let valid = (0..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..=24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..=60.0).contains(&second);
    let minutes = days(year, month, day) * 1440 + hour * 60 + minute;
    valid.then(|| (minutes * 60 - offset) as f64 + (second * 1000.0).round() / 1000.0)
}

/// Seconds of `Z`, `+01:00` or `-0700`.
fn offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    let number: i64 = digits.parse().ok()?;
    let seconds = match digits.len() {
        2 => number * 3600,
        4 => number / 100 * 3600 + number % 100 * 60,
        _ => return None,
    };
    Some(sign * seconds)
}

/// Days from 1970 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0.0)),
            ("2017-01-20T17:42:47.789-07:00[America/Denver]", Some(1_484_959_367.789)),
            ("2000-02-29T12:00+01:00", Some(951_822_000.0)),
            ("2030-01-20T17:42:47+0100", Some(1_895_157_767.0)),
            ("1700000000123", Some(1_700_000_000.123)),
            ("2017-01-20T17:42:47", None),
            ("2017-13-20T17:42:47Z", None),
            ("tomorrow", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
