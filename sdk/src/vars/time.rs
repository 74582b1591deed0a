//! hot path
//!
//! Times as in nginx's log variables, in UTC.

use std::io::Write;
use std::net::SocketAddr;

pub(super) const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

pub(super) struct Moment {
    pub year: u64,
    /// Starts at 1.
    pub month: u64,
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
}

/// `$time_iso8601`: `2026-11-21T10:00:00+00:00`.
pub(super) fn iso8601(unix_ms: u64, out: &mut Vec<u8>) {
    let Moment { year, month, day, hour, minute, second } = moment(unix_ms / 1000);
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00");
}

/// RFC 3339 with milliseconds: `2026-11-21T10:00:00.042Z`.
pub fn rfc3339(unix_ms: u64, out: &mut Vec<u8>) {
    let Moment { year, month, day, hour, minute, second } = moment(unix_ms / 1000);
    let thousandths = unix_ms % 1000;
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z");
}

/// `$time_local`: `21/Nov/2026:10:00:00 +0000`.
pub(super) fn local(unix_ms: u64, out: &mut Vec<u8>) {
    let Moment { year, month, day, hour, minute, second } = moment(unix_ms / 1000);
    let month = MONTHS[month as usize - 1];
    let _ = write!(out, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000");
}

/// Seconds with three decimals.
pub(super) fn seconds(milliseconds: u64, out: &mut Vec<u8>) {
    let digit = |by: u64| b'0' + (milliseconds / by % 10) as u8;
    let rest = [digit(1000), b'.', digit(100), digit(10), digit(1)];
    if milliseconds < 10_000 {
        out.extend_from_slice(&rest);
        return;
    }
    wire::h1::encode::decimal(milliseconds / 10_000, out);
    out.extend_from_slice(&rest);
}

/// Values that consecutive log lines share: their time, formatted once per second, and mostly the
/// upstream server.
#[derive(Debug, Clone, Default)]
pub struct Stamp {
    unix_ms: u64,
    local: Vec<u8>,
    iso8601: Vec<u8>,
    addr: Option<SocketAddr>,
    server: Vec<u8>,
}

impl Stamp {
    /// Sets the time in Unix milliseconds.
    #[inline]
    pub fn set(&mut self, unix_ms: u64) {
        let same_second = self.unix_ms / 1000 == unix_ms / 1000 && !self.local.is_empty();
        self.unix_ms = unix_ms;
        if !same_second {
            self.local.clear();
            local(unix_ms, &mut self.local);
            self.iso8601.clear();
            iso8601(unix_ms, &mut self.iso8601);
        }
    }

    /// Sets the contacted server.
    #[inline]
    pub fn set_server(&mut self, addr: Option<SocketAddr>) {
        if self.addr != addr {
            self.addr = addr;
            self.server.clear();
            if let Some(addr) = addr {
                // Writing to a Vec cannot fail.
                let _ = write!(self.server, "{addr}");
            }
        }
    }

    /// The server as text; empty if none was contacted.
    pub(super) fn server(&self) -> &[u8] {
        &self.server
    }

    pub(super) fn unix_ms(&self) -> u64 {
        self.unix_ms
    }

    pub(super) fn local(&self) -> &[u8] {
        &self.local
    }

    pub(super) fn iso8601(&self) -> &[u8] {
        &self.iso8601
    }
}

/// Splits Unix seconds by the Gregorian calendar, with years that start in March, so that a leap
/// day is the last day of its year.
pub(super) fn moment(seconds: u64) -> Moment {
    let days = seconds / 86_400 + 719_468;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    Moment {
        year: days / 146_097 * 400 + year_of_era + u64::from(month <= 2),
        month,
        day: of_year - (153 * from_march + 2) / 5 + 1,
        hour: seconds / 3600 % 24,
        minute: seconds / 60 % 60,
        second: seconds % 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00+00:00"),
            (951_782_399, "2000-02-28T23:59:59+00:00"),
            (951_782_400, "2000-02-29T00:00:00+00:00"),
            (1_700_000_000, "2023-11-14T22:13:20+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00+00:00"),
        ] {
            let mut out = Vec::new();
            iso8601(seconds * 1000, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
        let mut out = Vec::new();
        local(1_700_000_000_000, &mut out);
        out.push(b' ');
        super::seconds(1_700_000_000_042, &mut out);
        assert_eq!(out, b"14/Nov/2023:22:13:20 +0000 1700000000.042");
        for (milliseconds, expected) in
            [(0, "0.000"), (7, "0.007"), (9_999, "9.999"), (10_000, "10.000"), (123_456, "123.456")]
        {
            out.clear();
            super::seconds(milliseconds, &mut out);
            assert_eq!(out, expected.as_bytes());
        }
    }

    #[test]
    fn a_stamp_is_updated_every_second() {
        let mut stamp = Stamp::default();
        for (ms, expected) in
            [(0, "00:00:00"), (1_999, "00:00:01"), (1_000, "00:00:01"), (61_000, "00:01:01")]
        {
            stamp.set(ms);
            let local = String::from_utf8(stamp.local().to_vec()).unwrap();
            assert_eq!(local, format!("01/Jan/1970:{expected} +0000"));
            assert_eq!(stamp.iso8601(), format!("1970-01-01T{expected}+00:00").as_bytes());
        }
    }
}
