//! How long a response may be used, and how, by RFC 9111 and RFC 5861.
//!
//! This is for `cache_control: true`; otherwise the settings decide.

use cache::Terms;
use sdk::Fields;

use super::Rfc;
use super::date::date;
use super::directives::{CacheControl, MAX_SECONDS};
use super::rules;

/// A response as it was received.
pub(super) struct Received<'a> {
    pub(super) status: u16,
    pub(super) fields: &'a Fields,
    /// The request had Authorization, and requests with others share this response.
    pub(super) shares_authorized: bool,
    /// Unix milliseconds.
    pub(super) now_ms: u64,
    /// Milliseconds between request and response.
    pub(super) delay_ms: u64,
}

/// How a response may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    /// Seconds from now on in which it is fresh.
    pub(super) fresh: u64,
    /// Seconds since the origin generated it.
    pub(super) age: u32,
    pub(super) terms: Terms,
}

impl Received<'_> {
    /// `None` if the response must not be stored, or storing it would be of no use.
    pub(super) fn life(&self, rfc: &Rfc) -> Option<Life> {
        let targeted =
            rfc.targeted.iter().find_map(|name| CacheControl::targeted(self.fields, name.as_bytes()));
        let is_targeted = targeted.is_some();
        let control = targeted.unwrap_or_else(|| CacheControl::of(self.fields));
        let may_store = match control.must_understand {
            true => is_understood(self.status),
            false => !control.no_store,
        };
        let is_open = control.public || control.s_maxage.is_some() || control.must_revalidate;
        if !may_store || control.private || self.shares_authorized && !is_open {
            return None;
        }
        let age = self.age();
        let lifetime = match control.s_maxage.or(control.max_age) {
            Some(seconds) => seconds,
            None if is_targeted && !control.no_cache => return None,
            None => match self.expires() {
                Some(seconds) => seconds,
                None if control.no_cache => 0,
                None => self.heuristic(rfc, &control)?,
            },
        };
        let fresh = if control.no_cache { 0 } else { lifetime.saturating_sub(u64::from(age)) };
        let no_stale = control.no_cache || control.must_revalidate || control.s_maxage.is_some();
        let within = |declared: Option<u64>, default: u32| match declared {
            _ if no_stale => 0,
            Some(seconds) => seconds.min(MAX_SECONDS) as u32,
            None => default,
        };
        let terms = Terms {
            validate: control.no_cache,
            no_stale,
            while_revalidate: within(control.stale_while_revalidate, rfc.stale_while_revalidate),
            if_error: within(control.stale_if_error, rfc.stale_if_error),
        };
        let is_of_use = fresh > 0
            || terms.while_revalidate > 0
            || terms.if_error > 0
            || rules::has_validator(self.fields);
        is_of_use.then_some(Life { fresh, age, terms })
    }

    /// Section 4.2.3. Without a valid Date the response was generated now.
    fn age(&self) -> u32 {
        let date = self.fields.get_named(b"date").and_then(date);
        let apparent = date.map_or(0, |date| (self.now_ms / 1000).saturating_sub(date));
        let corrected = u64::from(rules::age(self.fields)) + self.delay_ms / 1000;
        apparent.max(corrected).min(MAX_SECONDS) as u32
    }

    /// Expires less Date (section 4.2.1). An invalid date, such as `0`, has expired (section 5.3), and of
    /// several the earliest counts.
    fn expires(&self) -> Option<u64> {
        let earliest = self.fields.all(b"expires").map(|value| date(value).unwrap_or(0)).min()?;
        let from = self.fields.get_named(b"date").and_then(date).unwrap_or(self.now_ms / 1000);
        Some(earliest.saturating_sub(from).min(MAX_SECONDS))
    }

    /// A share of the time since the last modification (section 4.2.2), if the setting allows it.
    fn heuristic(&self, rfc: &Rfc, control: &CacheControl) -> Option<u64> {
        if rfc.heuristic_percent == 0 || !(control.public || is_heuristically_cacheable(self.status)) {
            return None;
        }
        let modified = self.fields.get_named(b"last-modified").and_then(date)?;
        let from = self.fields.get_named(b"date").and_then(date).unwrap_or(self.now_ms / 1000);
        let share = from.saturating_sub(modified).saturating_mul(rfc.heuristic_percent) / 100;
        Some(share.min(rfc.heuristic_max))
    }
}

/// Statuses that a cache may keep without an explicit lifetime (RFC 9110 section 15.1), without 206.
fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Statuses whose meaning for a cache this one knows (RFC 9111 section 5.2.2.3).
fn is_understood(status: u16) -> bool {
    is_heuristically_cacheable(status) || matches!(status, 302 | 303 | 307 | 400 | 403 | 500 | 502..=504)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::testing::fields;

    /// Tue, 14 Nov 2023 22:13:20 GMT
    const NOW: u64 = 1_700_000_000_000;
    const DATE: (&str, &str) = ("Date", "Tue, 14 Nov 2023 22:13:20 GMT");

    fn life_with(rfc: &Rfc, status: u16, list: &[(&str, &str)]) -> Option<Life> {
        let fields = fields(list);
        Received { status, fields: &fields, shares_authorized: false, now_ms: NOW, delay_ms: 0 }.life(rfc)
    }

    fn life(list: &[(&str, &str)]) -> Option<Life> {
        life_with(&Rfc::default(), 200, list)
    }

    fn fresh(list: &[(&str, &str)]) -> Option<u64> {
        life(list).map(|life| life.fresh)
    }

    #[test]
    fn lifetimes_and_ages_follow_the_rfc() {
        let etag = ("ETag", "\"a\"");
        for (list, expected) in [
            (&[][..], None),
            (&[("Cache-Control", "max-age=5, s-maxage=9")], Some(9)),
            (&[("Cache-Control", "max-age=5"), ("Age", "3")], Some(2)),
            (&[("Cache-Control", "max-age=5"), ("Age", "-3")], Some(5)),
            (&[("Cache-Control", "max-age=5"), ("Age", "2147483648")], None),
            (&[("Cache-Control", "max-age=60"), ("Date", "Tue, 14 Nov 2023 22:13:00 GMT")], Some(40)),
            (&[("Cache-Control", "max-age=60"), ("Date", "soon")], Some(60)),
            (&[("Expires", "Tue, 14 Nov 2023 22:13:30 GMT"), DATE], Some(10)),
            // The origin's clock is ahead: its Expires is relative to its Date.
            (
                &[("Expires", "Tue, 14 Nov 2023 22:18:20 GMT"), ("Date", "Tue, 14 Nov 2023 22:20:00 GMT")],
                None,
            ),
            (
                &[("Expires", "Tue, 14 Nov 2023 22:13:40 GMT"), ("Expires", "Tue, 14 Nov 2023 22:13:25 GMT")],
                Some(5),
            ),
            (&[("Expires", "Tue, 14 Nov 2023 22:13:40 GMT"), ("Expires", "0")], None),
            (&[("Expires", "Tue, 14 Nov 2023 22:13:40 GMT"), ("Cache-Control", "max-age=5")], Some(5)),
            // Stored for its validator, and validated at each use.
            (&[("Cache-Control", "max-age=0"), etag], Some(0)),
            (&[("Cache-Control", "no-cache"), etag], Some(0)),
            (&[("Cache-Control", "no-cache, max-age=60"), etag], Some(0)),
            (&[("Cache-Control", "no-cache")], None),
            (&[etag], None),
            (&[("Cache-Control", "no-store, max-age=60"), etag], None),
            (&[("Cache-Control", "private, max-age=60"), etag], None),
            (&[("Cache-Control", "no-store, must-understand, max-age=60")], Some(60)),
            (&[("Cache-Control", "private=\"a\", max-age=60")], Some(60)),
            // Contradictions: the strictest holds.
            (&[("Cache-Control", "public, private, max-age=60")], None),
            (&[("Cache-Control", "max-age=60, no-store, max-age=1")], None),
        ] {
            assert_eq!(fresh(list), expected, "{list:?}");
        }
        for value in ["no-store, must-understand, max-age=9", "must-understand, max-age=9"] {
            assert_eq!(life_with(&Rfc::default(), 599, &[("Cache-Control", value)]), None, "{value}");
        }
    }

    #[test]
    fn a_slow_response_is_older() {
        let fields = fields(&[("Cache-Control", "max-age=60"), ("Age", "10")]);
        let slow =
            Received { status: 200, fields: &fields, shares_authorized: false, now_ms: NOW, delay_ms: 7_900 };
        let life = slow.life(&Rfc::default()).unwrap();
        assert_eq!((life.age, life.fresh), (17, 43));
    }

    #[test]
    fn authorized_responses_are_shared_only_if_they_allow_it() {
        for (value, stored) in [
            ("max-age=60", false),
            ("max-age=60, public", true),
            ("max-age=60, must-revalidate", true),
            ("s-maxage=60", true),
            ("s-maxage=60, private", false),
        ] {
            let fields = fields(&[("Cache-Control", value)]);
            let got =
                Received { status: 200, fields: &fields, shares_authorized: true, now_ms: NOW, delay_ms: 0 };
            assert_eq!(got.life(&Rfc::default()).is_some(), stored, "{value}");
        }
    }

    #[test]
    fn stale_windows_are_declared_or_set_unless_forbidden() {
        let rfc = Rfc { stale_while_revalidate: 3, stale_if_error: 4, ..Rfc::default() };
        for (value, expected) in [
            ("max-age=9", (3, 4)),
            ("max-age=9, stale-while-revalidate=7, stale-if-error=8", (7, 8)),
            ("max-age=9, stale-while-revalidate=0, stale-if-error=0", (0, 0)),
            ("max-age=9, stale-while-revalidate=99999999999999999999", (MAX_SECONDS as u32, 4)),
            ("max-age=9, must-revalidate, stale-if-error=8", (0, 0)),
            ("max-age=9, proxy-revalidate", (0, 0)),
            ("s-maxage=9", (0, 0)),
        ] {
            let terms = life_with(&rfc, 200, &[("Cache-Control", value)]).unwrap().terms;
            assert_eq!((terms.while_revalidate, terms.if_error), expected, "{value}");
        }
    }

    #[test]
    fn heuristics_are_a_setting() {
        let list = [("Last-Modified", "Tue, 14 Nov 2023 22:11:40 GMT"), DATE];
        let rfc = Rfc { heuristic_percent: 10, heuristic_max: 1000, ..Rfc::default() };
        let fresh = |rfc: &Rfc, status| life_with(rfc, status, &list).map(|life| life.fresh);
        assert_eq!(fresh(&Rfc::default(), 200), None);
        assert_eq!(fresh(&rfc, 200), Some(10));
        assert_eq!(fresh(&Rfc { heuristic_max: 7, ..rfc.clone() }, 200), Some(7));
        for status in [201, 302, 403, 500, 503, 599] {
            assert_eq!(fresh(&rfc, status), None, "{status}");
        }
        let public = [list[0], list[1], ("Cache-Control", "public")];
        assert_eq!(life_with(&rfc, 599, &public).map(|life| life.fresh), Some(10));
        let later = [("Last-Modified", "Tue, 14 Nov 2023 23:11:40 GMT"), DATE];
        assert_eq!(life_with(&rfc, 200, &later).map(|life| life.fresh), Some(0), "it has a validator");
    }

    #[test]
    fn targeted_fields_go_before_cache_control() {
        let rfc = Rfc { targeted: vec!["cdn-cache-control".into()], ..Rfc::default() };
        for (cdn, control, expected) in [
            ("max-age=60", "no-store", Some(60)),
            ("max-age=1", "max-age=60", Some(1)),
            ("no-store", "max-age=60", None),
            ("private", "max-age=60", None),
            ("foo", "max-age=60", None),
            ("&&&", "max-age=60", Some(60)),
        ] {
            let list = [("CDN-Cache-Control", cdn), ("Cache-Control", control)];
            assert_eq!(life_with(&rfc, 200, &list).map(|life| life.fresh), expected, "{list:?}");
        }
        let list = [("CDN-Cache-Control", "max-age=60"), ("Expires", "0")];
        assert_eq!(life_with(&rfc, 200, &list).map(|life| life.fresh), Some(60));
        assert_eq!(life_with(&Rfc::default(), 200, &list), None);
    }
}
