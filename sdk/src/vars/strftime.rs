//! hot path
//!
//! Times by a format of `strftime`, as Lua's `os.date` has them, in UTC.

use std::io::Write;

use super::time::{MONTHS, moment};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The full names of [`MONTHS`], without those three letters.
const REST_OF_MONTHS: [&str; 12] =
    ["uary", "ruary", "ch", "il", "", "e", "y", "ust", "tember", "ober", "ember", "ember"];

/// A format of `strftime`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeFormat {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Conversion(u8),
}

impl TimeFormat {
    /// Parses a format.
    ///
    /// # Errors
    /// The conversion that is not known, such as `%Q`.
    pub fn parse(format: &str) -> Result<TimeFormat, String> {
        let mut parts = Vec::new();
        let mut pieces = format.split('%');
        let mut text = |text: &str| {
            if !text.is_empty() {
                parts.push(Part::Text(text.into()));
            }
        };
        text(pieces.next().unwrap_or_default());
        while let Some(piece) = pieces.next() {
            match piece.chars().next() {
                // A percent sign and the text up to the next one.
                None => match pieces.next() {
                    Some(after) => parts.extend([Part::Text("%".into()), Part::Text(after.into())]),
                    None => return Err("%".to_owned()),
                },
                Some(letter) => {
                    let expanded = match letter {
                        'D' | 'x' => "m/d/y",
                        'F' => "Y-m-d",
                        'R' => "H:M",
                        'T' | 'X' => "H:M:S",
                        'c' => "a b e H:M:S Y",
                        'r' => "I:M:S p",
                        'a' | 'A' | 'b' | 'B' | 'C' | 'd' | 'e' | 'h' | 'H' | 'I' | 'j' | 'm' | 'M' | 'n'
                        | 'p' | 's' | 'S' | 't' | 'u' | 'w' | 'y' | 'Y' | 'z' | 'Z' => &piece[..1],
                        other => return Err(format!("%{other}")),
                    };
                    parts.extend(expanded.bytes().map(|byte| match byte {
                        byte if byte.is_ascii_alphabetic() => Part::Conversion(byte),
                        byte => Part::Text(char::from(byte).to_string().into()),
                    }));
                    if piece.len() > 1 {
                        parts.push(Part::Text(piece[1..].into()));
                    }
                }
            }
        }
        Ok(TimeFormat { parts })
    }

    /// Appends the time.
    pub fn write(&self, unix_ms: u64, out: &mut Vec<u8>) {
        let seconds = unix_ms / 1000;
        let at = moment(seconds);
        let days = seconds / 86_400;
        let weekday = (days + 4) % 7;
        let hour12 = (at.hour + 11) % 12 + 1;
        for part in &self.parts {
            let conversion = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text.as_bytes());
                    continue;
                }
                Part::Conversion(letter) => letter,
            };
            let (day, month) = (DAYS[weekday as usize], at.month as usize - 1);
            // Writing to a Vec cannot fail.
            let _ = match conversion {
                b'a' => out.write_all(&day.as_bytes()[..3]),
                b'A' => out.write_all(day.as_bytes()),
                b'b' | b'h' => out.write_all(MONTHS[month].as_bytes()),
                b'B' => write!(out, "{}{}", MONTHS[month], REST_OF_MONTHS[month]),
                b'C' => write!(out, "{:02}", at.year / 100),
                b'd' => write!(out, "{:02}", at.day),
                b'e' => write!(out, "{:2}", at.day),
                b'H' => write!(out, "{:02}", at.hour),
                b'I' => write!(out, "{hour12:02}"),
                b'j' => write!(out, "{:03}", day_of_year(at.year, at.month, at.day)),
                b'm' => write!(out, "{:02}", at.month),
                b'M' => write!(out, "{:02}", at.minute),
                b'n' => out.write_all(b"\n"),
                b'p' => out.write_all(if at.hour < 12 { b"AM" } else { b"PM" }),
                b's' => write!(out, "{seconds}"),
                b'S' => write!(out, "{:02}", at.second),
                b't' => out.write_all(b"\t"),
                b'u' => write!(out, "{}", (weekday + 6) % 7 + 1),
                b'w' => write!(out, "{weekday}"),
                b'y' => write!(out, "{:02}", at.year % 100),
                b'Y' => write!(out, "{}", at.year),
                b'z' => out.write_all(b"+0000"),
                _ => out.write_all(b"UTC"),
            };
        }
    }
}

fn day_of_year(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    BEFORE[month as usize - 1] + day + u64::from(is_leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_those_of_the_c_library() {
        // 2024-03-07 was a Thursday, the 67th day of a leap year.
        let time = 1_709_775_845_000;
        for (format, expected) in [
            ("", ""),
            ("%Y.%m.%d", "2024.03.07"),
            ("a%%b %H:%M:%S%%", "a%b 01:44:05%"),
            ("%a %A %b %B %h", "Thu Thursday Mar March Mar"),
            ("%C %y %j %u %w", "20 24 067 4 4"),
            ("%I %p %r", "01 AM 01:44:05 AM"),
            ("%D|%F|%R|%T|%x|%X", "03/07/24|2024-03-07|01:44|01:44:05|03/07/24|01:44:05"),
            ("[%e]%n%t%s", "[ 7]\n\t1709775845"),
            ("%z %Z", "+0000 UTC"),
            ("%c", "Thu Mar  7 01:44:05 2024"),
            ("ä%dö", "ä07ö"),
        ] {
            let mut out = Vec::new();
            TimeFormat::parse(format).unwrap().write(time, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{format}");
        }
        for (format, unknown) in [("%Q", "%Q"), ("%Y%", "%"), ("%ä", "%ä"), ("%E", "%E")] {
            assert_eq!(TimeFormat::parse(format), Err(unknown.to_owned()));
        }
    }

    #[test]
    fn sundays_noons_and_midnights() {
        for (seconds, expected) in [
            (1_709_424_000, "7 0 12 AM 063"),
            (1_709_467_200, "7 0 12 PM 063"),
            (1_709_510_399, "7 0 11 PM 063"),
        ] {
            let mut out = Vec::new();
            TimeFormat::parse("%u %w %I %p %j").unwrap().write(seconds * 1000, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
