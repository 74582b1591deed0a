//! Values in the request's body: forms, JSON, multipart.

use std::borrow::Cow;

use memchr::memmem;
use serde_json::{Map, Value as Json};

use super::read::{self, Arg, content_type};
use super::value::Value;
use crate::exchange::Exchange;

/// A body longer than this is not parsed into a tree, since a tree takes many times its text.
/// (APISIX: `max_post_args_readable_size`, 64 MiB.)
const TREE_LIMIT: usize = 4 << 20;
/// Values a path with wildcards may visit in one body.
const VISIT_LIMIT: usize = 100_000;

/// `post_arg.<path>`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Path {
    /// `a.b.c`: members of objects.
    Members(Vec<Box<str>>),
    /// A JSONPath with brackets, `*` or `..`; gives the list of all it finds.
    Query(Vec<Step>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// `..`: here and anywhere below.
    deep: bool,
    pick: Pick,
}

#[derive(Debug, Clone, PartialEq)]
enum Pick {
    Member(Box<str>),
    Element(usize),
    All,
}

/// The value of a field of an urlencoded form.
pub(super) fn post_arg<'a>(x: &'a Exchange<'_>, name: &[u8]) -> Option<Arg<'a>> {
    if !content_type(x).starts_with(b"application/x-www-form-urlencoded") {
        return None;
    }
    read::arg(x.body(), name)
}

impl Path {
    /// Parses members, `[0]`, `['name']`, `[*]`, `*` and `..`; filters and slices are not
    /// understood, and such a path is no variable.
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

    /// What it leads to in a body.
    pub(super) fn find<'a>(&self, tree: &'a Json) -> Option<Value<'a>> {
        match self {
            Path::Members(members) => {
                let mut at = tree;
                for member in members {
                    at = at.as_object()?.get(&**member)?;
                }
                Some(typed(at))
            }
            Path::Query(steps) => {
                let found = query(tree, steps)?;
                if found.is_empty() {
                    return None;
                }
                Some(Value::Json(Cow::Owned(Json::Array(found.into_iter().cloned().collect()))))
            }
        }
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

/// All values the steps lead to; `None` if that visits too many.
fn query<'a>(tree: &'a Json, steps: &[Step]) -> Option<Vec<&'a Json>> {
    let mut here = vec![tree];
    let mut visits = 0;
    for step in steps {
        let mut next = Vec::new();
        let mut todo = here;
        todo.reverse();
        while let Some(value) = todo.pop() {
            visits += 1;
            if visits + next.len() + todo.len() > VISIT_LIMIT {
                return None;
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
    Some(here)
}

fn typed(value: &Json) -> Value<'_> {
    match value {
        Json::String(text) => Value::Text(Cow::Borrowed(text.as_bytes())),
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        other => Value::Json(Cow::Borrowed(other)),
    }
}

/// The body as a tree, by its content type.
pub(super) fn tree(x: &Exchange<'_>) -> Option<Json> {
    let (kind, body) = (content_type(x), x.body());
    if body.is_empty() || body.len() > TREE_LIMIT {
        return None;
    }
    let is = |name: &str| memmem::find(kind, name.as_bytes()).is_some();
    if is("application/json") {
        serde_json::from_slice(body).ok()
    } else if is("application/x-www-form-urlencoded") {
        Some(form(body))
    } else if is("multipart/form-data") {
        multipart(kind, body)
    } else {
        None
    }
}

/// A form; a name that comes again becomes a list.
fn form(body: &[u8]) -> Json {
    let mut map = Map::new();
    for (name, value) in read::args(body) {
        let value = match value {
            Arg::Bare => Json::Bool(true),
            Arg::Text(text) => text_of(&text),
        };
        let entry = map.entry(String::from_utf8_lossy(&name).into_owned()).or_insert(Json::Null);
        match entry {
            Json::Null => *entry = value,
            Json::Array(list) => list.push(value),
            single => *single = Json::Array(vec![single.take(), value]),
        }
    }
    Json::Object(map)
}

/// The named parts of a multipart body (RFC 7578).
fn multipart(kind: &[u8], body: &[u8]) -> Option<Json> {
    let boundary = parameter(kind, b"boundary=")?;
    let delimiter = [b"--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    let mut marks = finder.find_iter(body).filter(|&at| at == 0 || body[..at].ends_with(b"\n"));
    let mut map = Map::new();
    let mut from = marks.next()? + delimiter.len();
    for mark in marks {
        let part = &body[from..mark];
        from = mark + delimiter.len();
        if let Some((name, value)) = named_part(part) {
            map.insert(name, value);
        }
    }
    Some(Json::Object(map))
}

fn named_part(part: &[u8]) -> Option<(String, Json)> {
    let blank = memmem::find(part, b"\r\n\r\n")?;
    let (head, value) = (&part[..blank], &part[blank + 4..]);
    let disposition = head
        .split(|&byte| byte == b'\n')
        .find(|line| line.get(..20).is_some_and(|name| name.eq_ignore_ascii_case(b"content-disposition:")))?;
    let name = parameter(disposition, b" name=").or_else(|| parameter(disposition, b";name="))?;
    let value = value.strip_suffix(b"\r\n").unwrap_or(value);
    Some((String::from_utf8_lossy(name).into_owned(), text_of(value)))
}

/// A parameter's value, quoted or not.
fn parameter<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = &text[memmem::find(text, name)? + name.len()..];
    let value = match value.strip_prefix(b"\"") {
        Some(quoted) => quoted.split(|&byte| byte == b'"').next()?,
        None => value.split(|byte| matches!(byte, b';' | b' ' | b'\r')).next()?,
    };
    Some(value).filter(|value| !value.is_empty())
}

fn text_of(bytes: &[u8]) -> Json {
    Json::String(String::from_utf8_lossy(bytes).into_owned())
}
