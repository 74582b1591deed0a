//! Values in the request's body: forms, JSON, multipart. An unreadable body never counts as a body
//! without the value: requests whose handling depends on it are rejected.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};
use wire::Name;

use super::charset::reads_as_ascii;
use super::json::{self, Budget};
use super::lookups;
use super::multipart;
use super::read::{self, Arg};
use super::value::Value;
use crate::exchange::{Body, Exchange};
use crate::verdict::{ReadError, Undecidable};

/// Maximum values that a path with wildcards visits in one body.
const VISIT_LIMIT: usize = 100_000;

/// `post_arg.<path>`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Path {
    /// `a.b.c`: members of objects.
    Members(Vec<Box<str>>),
    /// A JSONPath with brackets, `*` or `..`; its value is the list of all matches.
    Query(Vec<Step>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// `..`: this value and all values below it.
    deep: bool,
    pick: Pick,
}

#[derive(Debug, Clone, PartialEq)]
enum Pick {
    Member(Box<str>),
    Element(usize),
    All,
}

/// The whole body; `None` if the request has none.
pub(super) fn held<'a>(x: &'a Exchange<'_>) -> Result<Option<&'a [u8]>, ReadError> {
    match x.body_state() {
        Body::None => Ok(None),
        Body::Streaming => Err(ReadError::NeedsBody),
        Body::TooLarge => Err(Undecidable::TooLarge.into()),
        Body::Whole => Ok(Some(x.body()).filter(|body| !body.is_empty())),
    }
}

/// The media type that determines how to read the body; empty without one. Servers disagree about
/// repeated fields, so a repeated one is an error; a compressed body is an error, too.
pub(super) fn media_type<'a>(x: &'a Exchange<'_>) -> Result<&'a [u8], ReadError> {
    let fields = &x.request().fields;
    let mut types = fields.list().iter().filter(|field| {
        field.id == Name::ContentType
            || field.id == Name::Other && fields.bytes(field.name).eq_ignore_ascii_case(b"content_type")
    });
    let Some(first) = types.next() else { return Ok(b"") };
    let coded = fields.list().iter().any(|field| {
        let is_coding = field.id == Name::ContentEncoding
            || field.id == Name::Other && fields.bytes(field.name).eq_ignore_ascii_case(b"content_encoding");
        let coding = fields.bytes(field.value);
        is_coding && !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    });
    if types.next().is_some() || first.id == Name::Other || coded {
        return Err(Undecidable::Unreadable.into());
    }
    let kind = fields.bytes(first.value);
    // A second of these types in a parameter: servers disagree about which one applies.
    if [JSON, FORM, MULTIPART].into_iter().filter(|name| is(kind, name)).count() > 1 {
        return Err(Undecidable::Unreadable.into());
    }
    Ok(kind)
}

/// Fails if a server may decode the body's bytes to other characters.
pub(super) fn legible(kind: &[u8]) -> Result<(), ReadError> {
    if reads_as_ascii(kind, is(kind, FORM)) { Ok(()) } else { Err(Undecidable::Unreadable.into()) }
}

/// Whether a media type contains this name, in any case and, as in APISIX, at any position.
pub(super) fn is(kind: &[u8], name: &[u8]) -> bool {
    kind.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name))
}

pub(super) const JSON: &[u8] = b"application/json";
const FORM: &[u8] = b"application/x-www-form-urlencoded";
const MULTIPART: &[u8] = b"multipart/form-data";

/// The value of a field of an urlencoded form.
pub(super) fn post_arg<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Result<Option<Arg<'a>>, ReadError> {
    if x.body_state() == Body::None {
        return Ok(None);
    }
    let kind = media_type(x)?;
    if !kind.get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM)) {
        return Ok(None);
    }
    legible(kind)?;
    Ok(held(x)?.and_then(|body| lookups::form(x, body, name)))
}

/// Finds the value at a path in the body, which is read by its media type. A body of another type
/// has no values.
pub(super) fn find<'a>(x: &'a Exchange<'_>, path: &Path) -> Result<Option<Value<'a>>, ReadError> {
    if x.body_state() == Body::None {
        return Ok(None);
    }
    let kind = media_type(x)?;
    lookups::count_scan();
    if [JSON, FORM, MULTIPART].into_iter().any(|name| is(kind, name)) {
        legible(kind)?;
    }
    let found = if is(kind, JSON) {
        let Some(body) = held(x)? else { return Ok(None) };
        match path {
            Path::Members(members) => json::at(body, members)?,
            Path::Query(steps) => query(&json::tree(body)?, steps)?,
        }
    } else if is(kind, FORM) {
        let Some(body) = held(x)? else { return Ok(None) };
        in_form(body, path)?
    } else if is(kind, MULTIPART) {
        let Some(body) = held(x)? else { return Ok(None) };
        in_parts(kind, body, path)?
    } else {
        None
    };
    Ok(found)
}

impl Path {
    /// Parses members, `[0]`, `['name']`, `[*]`, `*` and `..`. `None` for an invalid path, and for
    /// filters and slices, which are not supported.
    pub(super) fn parse(text: &str) -> Option<Path> {
        if !text.contains(['[', '*']) && !text.contains("..") {
            let members = text.split('.').filter(|part| !part.is_empty()).map(Into::into).collect();
            return Some(Path::Members(members));
        }
        let mut steps = Vec::new();
        let mut rest = text;
        let mut first = true;
        while !rest.is_empty() {
            let deep = rest.starts_with("..");
            rest = rest.strip_prefix("..").or_else(|| rest.strip_prefix('.')).unwrap_or(rest);
            let bracket = rest.strip_prefix('[');
            if rest.is_empty()
                || (!first && !deep && bracket.is_none() && !text[..text.len() - rest.len()].ends_with('.'))
            {
                return None;
            }
            let pick = if let Some(inside) = bracket {
                let (inside, after) = inside.split_once(']')?;
                rest = after;
                Pick::in_brackets(inside)?
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                rest = after;
                match name {
                    "" => return None,
                    "*" => Pick::All,
                    name => Pick::Member(name.into()),
                }
            };
            steps.push(Step { deep, pick });
            first = false;
        }
        Some(Path::Query(steps))
    }
}

impl Pick {
    fn in_brackets(text: &str) -> Option<Pick> {
        let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
        match (text, quoted('\'').or_else(|| quoted('"'))) {
            (_, Some(name)) => Some(Pick::Member(name.into())),
            ("*", _) => Some(Pick::All),
            (number, _) => number.parse().ok().map(Pick::Element),
        }
    }

    fn apply<'a>(&self, value: &'a Json, found: &mut Vec<&'a Json>) {
        match (self, value) {
            (Pick::Member(name), Json::Object(map)) => found.extend(map.get(&**name)),
            (Pick::Element(index), Json::Array(list)) => found.extend(list.get(*index)),
            (Pick::All, Json::Array(list)) => found.extend(list),
            (Pick::All, Json::Object(map)) => found.extend(map.values()),
            _ => {}
        }
    }
}

/// All values that match the steps.
fn query<'a>(tree: &Json, steps: &[Step]) -> Result<Option<Value<'a>>, Undecidable> {
    let mut here = vec![tree];
    let mut visits = 0;
    for step in steps {
        let mut next = Vec::new();
        let mut todo = here;
        todo.reverse();
        while let Some(value) = todo.pop() {
            visits += 1;
            if visits + next.len() + todo.len() > VISIT_LIMIT {
                return Err(Undecidable::TooLarge);
            }
            step.pick.apply(value, &mut next);
            if step.deep {
                let at = todo.len();
                Pick::All.apply(value, &mut todo);
                todo[at..].reverse();
            }
        }
        here = next;
    }
    if here.is_empty() {
        return Ok(None);
    }
    // Matches may be nested in one another.
    let budget = Budget::new();
    let list = here.into_iter().map(|value| copy(value, &budget)).collect::<Result<_, _>>()?;
    Ok(Some(Value::Json(Cow::Owned(Json::Array(list)))))
}

fn copy(value: &Json, budget: &Budget) -> Result<Json, Undecidable> {
    budget.node(value.as_str().map_or(0, str::len))?;
    Ok(match value {
        Json::Array(list) => Json::Array(list.iter().map(|one| copy(one, budget)).collect::<Result<_, _>>()?),
        Json::Object(map) => {
            let mut members = Map::new();
            for (name, value) in map {
                budget.member(name.len())?;
                members.insert(name.clone(), copy(value, budget)?);
            }
            Json::Object(members)
        }
        plain => plain.clone(),
    })
}

/// Finds a value in a form; the value of a repeated name is a list.
fn in_form<'a>(body: &'a [u8], path: &Path) -> Result<Option<Value<'a>>, Undecidable> {
    let budget = Budget::new();
    match path {
        Path::Members(members) if members.len() == 1 => {
            let wanted = members[0].as_bytes();
            let mut values = read::args(body).filter(|(name, _)| **name == *wanted).map(|(_, value)| value);
            let Some(first) = values.next() else { return Ok(None) };
            let Some(second) = values.next() else {
                return Ok(Some(match first {
                    Arg::Bare => Value::Bool(true),
                    Arg::Text(text) => Value::Text(text),
                }));
            };
            let mut list = Vec::new();
            for value in [first, second].into_iter().chain(values) {
                list.push(argument(value, &budget)?);
            }
            Ok(Some(Value::Json(Cow::Owned(Json::Array(list)))))
        }
        // Texts and lists have no members.
        Path::Members(members) if !members.is_empty() => Ok(None),
        path => {
            let mut map = Map::new();
            for (name, value) in read::args(body) {
                let value = argument(value, &budget)?;
                match map.entry(text(&name, &budget)?).or_insert(Json::Null) {
                    entry @ Json::Null => *entry = value,
                    Json::Array(list) => list.push(value),
                    single => *single = Json::Array(vec![single.take(), value]),
                }
            }
            whole(Json::Object(map), path)
        }
    }
}

/// Finds a value in a multipart body. Of several parts with one name, some servers use the first,
/// others the last, so the value is unreadable then.
fn in_parts<'a>(kind: &[u8], body: &'a [u8], path: &Path) -> Result<Option<Value<'a>>, Undecidable> {
    let budget = Budget::new();
    let (mut found, mut map) = (None, Map::new());
    multipart::parts(kind, body, |name, value| {
        match path {
            Path::Members(members) if !members.is_empty() => {
                if members.len() == 1
                    && members[0].as_bytes() == name
                    && found.replace(Value::Text(Cow::Borrowed(value))).is_some()
                {
                    return Err(Undecidable::Unreadable);
                }
            }
            _ => {
                let value = Json::String(text(value, &budget)?);
                if map.insert(text(name, &budget)?, value).is_some() {
                    return Err(Undecidable::Unreadable);
                }
            }
        }
        Ok(())
    })?;
    match path {
        Path::Members(members) if !members.is_empty() => Ok(found),
        path => whole(Json::Object(map), path),
    }
}

fn whole<'a>(tree: Json, path: &Path) -> Result<Option<Value<'a>>, Undecidable> {
    match path {
        Path::Members(_) => Ok(Some(Value::Json(Cow::Owned(tree)))),
        Path::Query(steps) => query(&tree, steps),
    }
}

fn argument(value: Arg<'_>, budget: &Budget) -> Result<Json, Undecidable> {
    match value {
        Arg::Bare => budget.node(0).map(|()| Json::Bool(true)),
        Arg::Text(bytes) => text(&bytes, budget).map(Json::String),
    }
}

fn text(bytes: &[u8], budget: &Budget) -> Result<String, Undecidable> {
    budget.node(bytes.len())?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
