//! Lists: which entries, in which order, which page.

use control::store::Stored;
use http::StatusCode;
use model::Kind;
use model::key::DEFAULT_PREFIX;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};

use crate::answer::{self, Answer, Envelope, ErrorAnswer, said};
use crate::request::{Call, pairs};

/// One resource with its revisions, as GET shows it.
pub(crate) fn entry(stored: &Stored) -> Value {
    json!({
        "key": answer::path(&stored.key),
        "value": &*stored.value,
        "createdIndex": stored.created,
        "modifiedIndex": stored.modified,
    })
}

/// `{"list":[…],"total":n}` of those that the query asks for; `collection` is their path
/// below the prefix.
pub(crate) fn answer(
    mut items: Vec<Stored>,
    call: &Call<'_>,
    collection: &str,
    envelope: Envelope,
) -> Answer {
    // APISIX 2 knew neither filters nor pages.
    if !envelope.v2 {
        let filter = Filter::read(call);
        items.retain(|stored| filter.takes(stored));
    }
    let total = items.len();
    let page = page(call)?.filter(|_| !envelope.v2);
    match call.query("sort").filter(|_| !envelope.v2) {
        Some(by) => sort(&mut items, by)?,
        None if page.is_some() => sort(&mut items, "created")?,
        None => {}
    }
    if let Some(page) = page {
        items = items.into_iter().skip(page.skip).take(page.size).collect();
    }
    let list = items.iter().map(entry).collect();
    Ok(envelope.list(format!("{DEFAULT_PREFIX}/{collection}"), list, total))
}

/// Sorts a list by `sort=` (ours): `id`, `name`, `created` or `updated`, from high to low with a `-` before it. Pages
/// without it are by creation, as in APISIX.
fn sort(items: &mut [Stored], by: &str) -> Result<(), ErrorAnswer> {
    let (by, falls) = by.strip_prefix('-').map_or((by, false), |by| (by, true));
    let name = |stored: &Stored| {
        stored.value.get("name").and_then(Value::as_str).map(str::to_lowercase).unwrap_or_default()
    };
    match by {
        "id" => items.sort_by(|one, other| one.key.id.cmp(&other.key.id)),
        "name" => items.sort_by_cached_key(name),
        "created" => items.sort_by_key(|stored| stored.created),
        "updated" => items.sort_by_key(|stored| stored.modified),
        _ => return Err(said("`sort` must be id, name, created or updated, with a - before it to reverse")),
    }
    if falls {
        items.reverse();
    }
    Ok(())
}

struct Page {
    skip: usize,
    size: usize,
}

/// Both `page` and `page_size`, or no pages.
fn page(call: &Call<'_>) -> Result<Option<Page>, ErrorAnswer> {
    let number = |name| call.query(name).and_then(|text| text.trim().parse::<f64>().ok());
    let (Some(page), Some(size)) = (number("page"), number("page_size")) else { return Ok(None) };
    if !(10.0..=500.0).contains(&size) {
        let response = answer::text(StatusCode::BAD_REQUEST, "page_size must be between 10 and 500");
        return Err(ErrorAnswer::response(response));
    }
    let size = size as usize;
    let before = if page >= 1.0 { page as usize - 1 } else { 0 };
    Ok(Some(Page { skip: before.saturating_mul(size), size }))
}

struct Filter<'a> {
    name: Option<Option<Regex>>,
    label: Option<&'a str>,
    uri: Option<Option<Regex>>,
    /// `search=` (ours): a part of an id, name, host, path or the like; lower case.
    search: Option<String>,
    /// `status=` (ours): of routes, 1 if they serve, 0 if they are switched off.
    status: Option<&'a str>,
    /// Of `filter=`, those that routes have.
    fields: Vec<(String, String)>,
}

impl<'a> Filter<'a> {
    fn read(call: &'a Call<'_>) -> Filter<'a> {
        let fields = call.query("filter").and_then(pairs).unwrap_or_default();
        Filter {
            name: call.query("name").map(pattern),
            label: call.query("label"),
            uri: call.query("uri").map(pattern),
            search: call.query("search").filter(|text| !text.is_empty()).map(str::to_lowercase),
            status: call.query("status").filter(|text| !text.is_empty()),
            fields: fields
                .into_iter()
                .filter(|(name, _)| matches!(&**name, "service_id" | "upstream_id"))
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        }
    }

    fn takes(&self, stored: &Stored) -> bool {
        let value = &stored.value;
        let text_of = |name: &str| value.get(name).and_then(Value::as_str);
        if let Some(pattern) = &self.name
            && !text_of("name").is_some_and(|name| finds(pattern, name))
        {
            return false;
        }
        if let Some(search) = &self.search
            && !is_found(stored, search)
        {
            return false;
        }
        if let Some(label) = self.label
            && value.get("labels").and_then(|labels| labels.get(label)).is_none()
        {
            return false;
        }
        if let Some(status) = self.status
            && value.get("status").map_or_else(|| "1".to_owned(), Value::to_string) != status
        {
            return false;
        }
        if let Some(pattern) = &self.uri {
            let uris = value.get("uris").and_then(Value::as_array).into_iter().flatten();
            let mut uris = uris.filter_map(Value::as_str).chain(text_of("uri"));
            if !uris.any(|uri| finds(pattern, uri)) {
                return false;
            }
        }
        let filtered = matches!(stored.key.kind, Kind::Route | Kind::StreamRoute);
        !filtered || self.fields.iter().all(|(name, wanted)| is(value.get(name), wanted))
    }
}

/// Whether a text that people search for, in lower case, is part of what identifies a resource.
fn is_found(stored: &Stored, text: &str) -> bool {
    const FIELDS: [&str; 10] =
        ["name", "desc", "uri", "uris", "host", "hosts", "username", "sni", "snis", "labels"];
    fn holds(value: &Value, text: &str) -> bool {
        match value {
            Value::String(own) => own.to_lowercase().contains(text),
            Value::Array(all) => all.iter().any(|one| holds(one, text)),
            Value::Object(all) => {
                all.iter().any(|(name, one)| name.to_lowercase().contains(text) || holds(one, text))
            }
            _ => false,
        }
    }
    let fields = FIELDS.iter().filter_map(|name| stored.value.get(*name));
    stored.key.id.to_lowercase().contains(text) || fields.into_iter().any(|value| holds(value, text))
}

/// A pattern from a query; one that cannot be compiled finds nothing, as in APISIX.
fn pattern(text: &str) -> Option<Regex> {
    RegexBuilder::new(text).size_limit(1 << 20).build().ok()
}

fn finds(pattern: &Option<Regex>, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

fn is(id: Option<&Value>, wanted: &str) -> bool {
    match id {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Number(number)) => number.to_string() == wanted,
        _ => false,
    }
}
