//! hot path
//!
//! A cache of lookups in a long query, form or list of cookies while conditions are evaluated: many
//! rules may read the same name, and each would scan the whole text again.

use std::borrow::Cow;
use std::cell::OnceCell;

use wire::Name;

use super::read::{self, Arg};
use crate::exchange::Exchange;

/// Shorter texts are scanned each time: that costs as little as caching.
const LONG: usize = 1 << 10;
/// Maximum names in the cache. Conditions that share a path seldom read more.
const NAMES: usize = 16;

/// A note on the exchange, which does not change meanwhile.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    /// Filled from the start.
    lookups: [OnceCell<Lookup>; NAMES],
}

#[derive(Debug)]
struct Lookup {
    origin: Origin,
    name: Box<[u8]>,
    found: Option<CachedValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Query,
    Form,
    Cookies,
}

/// A value. Values of different names do not overlap in the request, so together they are at most
/// as long.
#[derive(Debug)]
enum CachedValue {
    Bare,
    /// Start and length in the text.
    Part(usize, usize),
    /// A value that is decoded or not contiguous in the text.
    Copy(Box<[u8]>),
}

/// Whether the request has a text long enough for the cache.
pub(super) fn is_worthwhile(x: &Exchange<'_>) -> bool {
    let fields = &x.request().fields;
    let cookies = || fields.list().iter().filter(|field| field.id == Name::Cookie);
    x.query().len() >= LONG
        || x.body().len() >= LONG
        || cookies().map(|field| field.value.len as usize).sum::<usize>() >= LONG
}

/// The first value of an argument of the query.
pub(super) fn arg<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Option<Arg<'a>> {
    lookup(x, Origin::Query, x.query(), name, |query| read::arg(query, name))
}

/// The first value of an argument of the body, which is a form.
pub(super) fn form<'a>(x: &'a Exchange<'_>, body: &'a [u8], name: &[u8]) -> Option<Arg<'a>> {
    lookup(x, Origin::Form, body, name, |body| read::arg(body, name))
}

/// The value of a cookie.
pub(super) fn cookie<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let fields = &x.request().fields;
    // Cookies may be in several fields, so there is no single text.
    let found = lookup(x, Origin::Cookies, b"", name, |_| {
        read::cookie(fields, name).map(|value| Arg::Text(Cow::Borrowed(value)))
    });
    match found {
        Some(Arg::Text(value)) => Some(value),
        Some(Arg::Bare) | None => None,
    }
}

fn lookup<'a>(
    x: &'a Exchange<'_>,
    origin: Origin,
    text: &'a [u8],
    name: &[u8],
    find: impl FnOnce(&'a [u8]) -> Option<Arg<'a>>,
) -> Option<Arg<'a>> {
    let find = || {
        count_scan();
        find(text)
    };
    let Some(cache) = x.note::<Lookups>() else { return find() };
    for slot in &cache.lookups {
        match slot.get() {
            Some(lookup) if lookup.origin == origin && *lookup.name == *name => return lookup.value(text),
            Some(_) => {}
            None => {
                let found = find().map(|value| CachedValue::of(value, text));
                return slot.get_or_init(|| Lookup { origin, name: name.into(), found }).value(text);
            }
        }
    }
    find()
}

/// Counts the scans of texts in tests.
#[inline]
pub(super) fn count_scan() {
    #[cfg(any(test, feature = "testing"))]
    crate::testing::SCANS.set(crate::testing::SCANS.get() + 1);
}

impl Lookup {
    fn value<'a>(&'a self, text: &'a [u8]) -> Option<Arg<'a>> {
        Some(match self.found.as_ref()? {
            CachedValue::Bare => Arg::Bare,
            CachedValue::Part(start, len) => Arg::Text(Cow::Borrowed(&text[*start..start + len])),
            CachedValue::Copy(value) => Arg::Text(Cow::Borrowed(value)),
        })
    }
}

impl CachedValue {
    fn of(value: Arg<'_>, text: &[u8]) -> CachedValue {
        match value {
            Arg::Bare => CachedValue::Bare,
            Arg::Text(Cow::Borrowed(part)) => match part.as_ptr().addr().checked_sub(text.as_ptr().addr()) {
                Some(start) if start + part.len() <= text.len() => CachedValue::Part(start, part.len()),
                _ => CachedValue::Copy(part.into()),
            },
            Arg::Text(Cow::Owned(value)) => CachedValue::Copy(value.into()),
        }
    }
}
