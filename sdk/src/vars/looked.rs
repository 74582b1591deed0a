//! hot path
//!
//! What was found under a name in a long query, form or list of cookies, kept while conditions are
//! judged: many rules may ask for the same, and each would go through the whole text again.

use std::borrow::Cow;
use std::cell::OnceCell;

use wire::Name;

use super::read::{self, Arg};
use crate::exchange::Exchange;

/// Shorter texts are gone through each time: that costs as little as remembering.
const LONG: usize = 1 << 10;
/// So many names are remembered. Conditions that share a path seldom ask for more.
const NAMES: usize = 16;

/// A note on the exchange, which nothing changes meanwhile.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Filled from the first on.
    looks: [OnceCell<Look>; NAMES],
}

#[derive(Debug)]
struct Look {
    place: Place,
    name: Box<[u8]>,
    found: Option<Kept>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Query,
    Form,
    Cookies,
}

/// A value. Those of several names are apart in the request: together they are no longer than it.
#[derive(Debug)]
enum Kept {
    Bare,
    /// From here on in the text, so many bytes.
    Part(usize, usize),
    /// What stands otherwise in the text, or not in it.
    Copy(Box<[u8]>),
}

/// Whether the request has a text of which it is worth remembering what was found.
pub(super) fn is_worthwhile(x: &Exchange<'_>) -> bool {
    let fields = &x.request().fields;
    let cookies = || fields.list().iter().filter(|field| field.id == Name::Cookie);
    x.query().len() >= LONG
        || x.body().len() >= LONG
        || cookies().map(|field| field.value.len as usize).sum::<usize>() >= LONG
}

/// The first value of an argument of the query.
pub(super) fn arg<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Option<Arg<'a>> {
    look(x, Place::Query, x.query(), name, |query| read::arg(query, name))
}

/// The same of the body, which is a form.
pub(super) fn form<'a>(x: &'a Exchange<'_>, body: &'a [u8], name: &[u8]) -> Option<Arg<'a>> {
    look(x, Place::Form, body, name, |body| read::arg(body, name))
}

/// The value of a cookie.
pub(super) fn cookie<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Option<Cow<'a, [u8]>> {
    let fields = &x.request().fields;
    // They may stand in several fields, so that there is no one text.
    let found = look(x, Place::Cookies, b"", name, |_| {
        read::cookie(fields, name).map(|value| Arg::Text(Cow::Borrowed(value)))
    });
    match found {
        Some(Arg::Text(value)) => Some(value),
        Some(Arg::Bare) | None => None,
    }
}

fn look<'a>(
    x: &'a Exchange<'_>,
    place: Place,
    text: &'a [u8],
    name: &[u8],
    find: impl FnOnce(&'a [u8]) -> Option<Arg<'a>>,
) -> Option<Arg<'a>> {
    let find = || {
        gone_through();
        find(text)
    };
    let Some(looked) = x.note::<Looked>() else { return find() };
    for slot in &looked.looks {
        match slot.get() {
            Some(look) if look.place == place && *look.name == *name => return look.value(text),
            Some(_) => {}
            None => {
                let found = find().map(|value| Kept::of(value, text));
                return slot.get_or_init(|| Look { place, name: name.into(), found }).value(text);
            }
        }
    }
    find()
}

/// Tests count how often a text is gone through.
#[inline]
pub(super) fn gone_through() {
    #[cfg(any(test, feature = "testing"))]
    crate::testing::LOOKS.set(crate::testing::LOOKS.get() + 1);
}

impl Look {
    fn value<'a>(&'a self, text: &'a [u8]) -> Option<Arg<'a>> {
        Some(match self.found.as_ref()? {
            Kept::Bare => Arg::Bare,
            Kept::Part(start, len) => Arg::Text(Cow::Borrowed(&text[*start..start + len])),
            Kept::Copy(value) => Arg::Text(Cow::Borrowed(value)),
        })
    }
}

impl Kept {
    fn of(value: Arg<'_>, text: &[u8]) -> Kept {
        match value {
            Arg::Bare => Kept::Bare,
            Arg::Text(Cow::Borrowed(part)) => match part.as_ptr().addr().checked_sub(text.as_ptr().addr()) {
                Some(start) if start + part.len() <= text.len() => Kept::Part(start, part.len()),
                _ => Kept::Copy(part.into()),
            },
            Arg::Text(Cow::Owned(value)) => Kept::Copy(value.into()),
        }
    }
}
