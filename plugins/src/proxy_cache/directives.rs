//! Directives of Cache-Control (RFC 9111 section 5.2) and of targeted fields (RFC 9213).

use sdk::Fields;

/// RFC 9111 section 1.2.2: larger numbers mean forever.
pub(super) const MAX_SECONDS: u64 = 1 << 31;

/// The directives of all Cache-Control fields of a message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheControl {
    pub no_store: bool,
    pub no_cache: bool,
    pub private: bool,
    /// `no-cache` or `private` that names fields ([`named_fields`]).
    pub names_fields: bool,
    pub public: bool,
    pub must_revalidate: bool,
    pub must_understand: bool,
    pub only_if_cached: bool,
    pub max_age: Option<u64>,
    pub s_maxage: Option<u64>,
    pub min_fresh: Option<u64>,
    pub max_stale: Option<u64>,
    pub stale_while_revalidate: Option<u64>,
    pub stale_if_error: Option<u64>,
}

impl CacheControl {
    /// Unknown directives are ignored. An invalid number is 0, and of two numbers the smaller holds: both
    /// err towards asking the origin.
    pub(super) fn of(fields: &Fields) -> CacheControl {
        let mut all = CacheControl::default();
        for line in fields.all(b"cache-control") {
            for (name, value) in directives(line) {
                all.add(name, value);
            }
        }
        all
    }

    fn add(&mut self, name: &[u8], value: Option<&[u8]>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") || is("private") {
            match value {
                Some(list) if names_of(list).next().is_some() => self.names_fields = true,
                _ if is("private") => self.private = true,
                _ => self.no_cache = true,
            }
        } else if is("public") {
            self.public = true;
        } else if is("must-revalidate") || is("proxy-revalidate") {
            self.must_revalidate = true;
        } else if is("must-understand") {
            self.must_understand = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        } else if is("max-age") {
            lower(&mut self.max_age, seconds(value));
        } else if is("s-maxage") {
            lower(&mut self.s_maxage, seconds(value));
        } else if is("min-fresh") {
            self.min_fresh = Some(self.min_fresh.unwrap_or(0).max(seconds(value)));
        } else if is("max-stale") {
            lower(&mut self.max_stale, value.map_or(MAX_SECONDS, |value| seconds(Some(value))));
        } else if is("stale-while-revalidate") {
            lower(&mut self.stale_while_revalidate, seconds(value));
        } else if is("stale-if-error") {
            lower(&mut self.stale_if_error, seconds(value));
        }
    }

    /// The response must not be stored by a shared cache, or must not be used without validation, which
    /// is the same for a cache that does not validate.
    pub(super) fn forbids_storing(&self) -> bool {
        self.no_store || self.no_cache || self.private || self.names_fields
    }

    /// Reads a targeted field, such as CDN-Cache-Control: a dictionary (RFC 8941). `None` if it is absent,
    /// empty or invalid; then Cache-Control holds.
    pub(super) fn targeted(fields: &Fields, name: &[u8]) -> Option<CacheControl> {
        let mut all = CacheControl::default();
        let mut found = false;
        for line in fields.all(name) {
            for member in list(line) {
                let (key, value) = dictionary_member(member)?;
                found = true;
                let takes_number =
                    [&b"max-age"[..], b"s-maxage", b"stale-while-revalidate", b"stale-if-error"]
                        .contains(&key);
                match value {
                    _ if takes_number => {
                        let digits = value.filter(|value| value.iter().all(u8::is_ascii_digit))?;
                        all.add(key, Some(digits));
                    }
                    Some(b"?0") => {}
                    None | Some(b"?1") => all.add(key, None),
                    Some(text) if text.starts_with(b"\"") => all.add(key, Some(text)),
                    Some(_) => {}
                }
            }
        }
        found.then_some(all)
    }
}

/// The fields that `no-cache` and `private` name: a shared cache must not use them again unvalidated.
pub(super) fn named_fields(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    fields
        .all(b"cache-control")
        .flat_map(directives)
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"no-cache") || name.eq_ignore_ascii_case(b"private"))
        .filter_map(|(_, value)| value)
        .flat_map(names_of)
}

fn names_of(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    unquoted(value).split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
}

/// A key and the text of its value. Parameters are ignored.
fn dictionary_member(member: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let is_key = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
    let end = member.iter().position(|byte| !is_key(byte)).unwrap_or(member.len());
    let (key, rest) = member.split_at(end);
    key.first().filter(|first| first.is_ascii_lowercase() || **first == b'*')?;
    let (value, parameters) = match rest.strip_prefix(b"=") {
        None => (None, rest),
        Some(rest) => {
            let end = value_end(rest)?;
            (Some(&rest[..end]), &rest[end..])
        }
    };
    matches!(parameters, [] | [b';', ..]).then_some((key, value))
}

/// The length of the value at the start: a number, a string, a token, a boolean or bytes.
fn value_end(text: &[u8]) -> Option<usize> {
    let until = |keep: &dyn Fn(u8) -> bool, from: usize| {
        text[from..].iter().position(|&byte| !keep(byte)).map_or(text.len(), |at| from + at)
    };
    match *text.first()? {
        b'0'..=b'9' | b'-' => Some(until(&|byte| byte.is_ascii_digit() || byte == b'.', 1)),
        b'"' => {
            let mut escaped = false;
            let end = text[1..].iter().position(|&byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })?;
            Some(end + 2)
        }
        b'?' => matches!(text.get(1)?, b'0' | b'1').then_some(2),
        b':' => text[1..].iter().position(|&byte| byte == b':').map(|at| at + 2),
        b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
            Some(until(&|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte), 1))
        }
        _ => None,
    }
}

/// The parts of a comma-separated list with quoted strings in it, as name and value.
fn directives(line: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    list(line).map(|part| match part.iter().position(|&byte| byte == b'=') {
        Some(at) => (part[..at].trim_ascii(), Some(part[at + 1..].trim_ascii())),
        None => (part, None),
    })
}

pub(super) fn list(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    cache::members(line).filter(|part| !part.is_empty())
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

fn seconds(value: Option<&[u8]>) -> u64 {
    number(unquoted(value.unwrap_or_default())).unwrap_or(0)
}

/// Digits alone, at most [`MAX_SECONDS`].
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, add).min(MAX_SECONDS))
}

fn lower(kept: &mut Option<u64>, value: u64) {
    *kept = Some(kept.map_or(value, |kept| kept.min(value)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdk::testing::fields;

    fn control(value: &str) -> CacheControl {
        CacheControl::of(&fields(&[("Cache-Control", value)]))
    }

    #[test]
    fn directives_are_read_in_any_form() {
        assert_eq!(control("max-age=60").max_age, Some(60));
        assert_eq!(control(" public , MAX-AGE=\"60\" ").max_age, Some(60));
        assert_eq!(control("max-age=60, max-age=5").max_age, Some(5));
        assert_eq!(control("max-age=x").max_age, Some(0));
        assert_eq!(control("max-age").max_age, Some(0));
        assert_eq!(control("max-age=-1").max_age, Some(0));
        assert_eq!(control("max-age=99999999999999999999999").max_age, Some(MAX_SECONDS));
        assert_eq!(control("private=\"set-cookie, max-age=3\"").max_age, None);
        assert!(control("No-Cache").no_cache && control("x,no-store").no_store);
        assert!(control("proxy-revalidate").must_revalidate && control("must-revalidate").must_revalidate);
        assert_eq!(control("max-stale").max_stale, Some(MAX_SECONDS));
        assert_eq!(control("max-stale=3").max_stale, Some(3));
        let two = fields(&[("Cache-Control", "max-age=3"), ("cache-control", "no-store")]);
        assert!(CacheControl::of(&two).no_store);
        assert_eq!(control("x-private, no-storex, \"no-store\""), CacheControl::default());
    }

    #[test]
    fn directives_may_name_fields() {
        for (value, names, whole) in [
            ("no-cache=\"a, b\", private=c", &["a", "b", "c"][..], false),
            ("no-cache=\"\"", &[], true),
            ("no-cache=", &[], true),
            ("no-cache=\",,\"", &[], true),
            ("no-cache, no-cache=\"a\"", &["a"], true),
        ] {
            let all = fields(&[("Cache-Control", value)]);
            let named: Vec<_> = named_fields(&all).collect();
            let expected: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
            assert_eq!((named, control(value).no_cache), (expected, whole), "{value}");
            assert!(control(value).forbids_storing(), "{value}");
        }
    }

    #[test]
    fn targeted_fields_are_dictionaries() {
        let of = |value: &str| {
            CacheControl::targeted(&fields(&[("CDN-Cache-Control", value)]), b"cdn-cache-control")
        };
        for value in [
            "max-age=60",
            "foobar, max-age=60;x=1",
            "a=\"x,\\\"y\", max-age=60, b=:aa=:",
            "max-age=60, c=*t/x, d=?1",
        ] {
            assert_eq!(of(value).and_then(|control| control.max_age), Some(60), "{value}");
        }
        assert!(of("no-store").is_some_and(|control| control.no_store));
        assert!(of("no-store=?0").is_some_and(|control| !control.no_store));
        for value in [
            "",
            "max-age=\"60\"",
            "max-age",
            "max-age=60, &&&",
            "max-age =60",
            "max-age= 60",
            "MaX-aGe=60",
            "max-age=60 x",
            "max-age=1.5",
            "max-age=-1",
            "a=\"x",
            "a=?2",
            "a=:x",
            "a=",
            "=a",
            "9=a",
        ] {
            assert_eq!(of(value), None, "{value}");
        }
    }
}
