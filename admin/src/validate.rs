//! Checks without writing: one object, or a whole declarative document.

use std::collections::HashSet;

use http::request::Parts;
use http::{StatusCode, header};
use model::yaml::Variables;
use model::{Invalid, Key, Kind};
use serde_json::{Value, json};

use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::{Admin, MAX_BODY, read_body, too_large};

/// `/schema/validate/{collection}`: the object's fields alone, not its plugins.
pub(crate) fn one(collection: &str, body: &[u8]) -> Answer {
    let kind = Kind::from_collection(collection).filter(|kind| *kind != Kind::Secret).ok_or_else(|| {
        ErrorAnswer::new(StatusCode::NOT_FOUND, format!("Unsupported resource type: {collection}"))
    })?;
    let value = read_body(body)?.unwrap_or(Value::Null);
    model::schema::of_kind(kind).check(&value)?;
    Ok(answer::empty(StatusCode::OK))
}

impl Admin {
    /// `/configs/validate`: checks every object of a declarative document and its plugins, but not whether the
    /// resources they refer to exist.
    pub(crate) async fn validate_all(&self, head: &Parts, body: &[u8]) -> Answer {
        let mut document = read_document(head, body)?;
        self.prepare(&mut document).await?;
        let errors = self.of_document(&document).errors(&document);
        if errors.is_empty() {
            return Ok(answer::json(StatusCode::OK, &json!({})));
        }
        let errors: Vec<Value> = errors.iter().map(Mistake::listed).collect();
        let body = json!({ "error_msg": "Configuration validation failed", "errors": errors });
        Err(ErrorAnswer::response(answer::json(StatusCode::BAD_REQUEST, &body)))
    }

    /// Removes the fields that only APISIX's standalone mode has, and adds the private keys that a GET leaves out.
    pub(crate) async fn prepare(&self, document: &mut Value) -> Result<(), ErrorAnswer> {
        without_indexes(document);
        for kind in sections() {
            let items = document.get_mut(kind.collection()).and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                if let Some(id) = id_of(kind, item) {
                    self.put_keys_back(&Key::new(kind, id).or_owned(), item).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns this API with the scripts of a document, to check its resources with.
    pub(crate) fn of_document(&self, document: &Value) -> Admin {
        let items = document.get(Kind::Script.collection()).and_then(Value::as_array);
        let scripts = items.into_iter().flatten();
        self.with_scripts(
            scripts.filter_map(|item| Some((Key::new(Kind::Script, id_of(Kind::Script, item)?), item))),
        )
    }

    /// Returns all mistakes of a document, in APISIX's order.
    pub(crate) fn errors(&self, document: &Value) -> Vec<Mistake> {
        errors(|key, item| self.check_alone(key, item), document)
    }
}

/// A mistake in a document.
#[derive(Debug)]
pub(crate) struct Mistake {
    collection: &'static str,
    /// The index of the item in its section, and its id; `None` for a mistake outside items.
    item: Option<(usize, Option<String>)>,
    /// The error, with a pointer within the item.
    invalid: Invalid,
}

impl Mistake {
    /// Returns the entry of APISIX's list of errors.
    fn listed(&self) -> Value {
        let mut listed = json!({ "resource_type": self.collection });
        if let Some((index, id)) = &self.item {
            listed["resource_id"] = id.as_deref().unwrap_or_default().into();
            listed["index"] = (*index).into();
        }
        listed["error"] = self.invalid.reason.as_str().into();
        listed
    }

    /// Returns the error with a pointer into the whole document, and the id of the item in its hint.
    pub(crate) fn into_invalid(self) -> Invalid {
        let Some((index, id)) = self.item else { return self.invalid };
        let collection = self.collection;
        let mut invalid = self.invalid.under(&format!("/{collection}/{index}"));
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            let item = format!("is the item of {collection} with the id {id}");
            invalid.hint = Some(match invalid.hint {
                None => format!("this {item}"),
                Some(help) if help.ends_with(['?', '.']) => format!("{help} This {item}"),
                Some(help) => format!("{help}; this {item}"),
            });
        }
        invalid
    }
}

/// Returns the sections of a document; owned resources, such as credentials, are in those of their owners.
pub(crate) fn sections() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.owner().is_none())
}

fn without_indexes(document: &mut Value) {
    let sections = document.as_object_mut().into_iter().flat_map(|sections| sections.values_mut());
    for item in sections.filter_map(Value::as_array_mut).flatten() {
        if let Some(fields) = item.as_object_mut() {
            fields.shift_remove("modifiedIndex");
        }
    }
}

/// Returns all mistakes of a document, in APISIX's order; `check` checks one resource.
fn errors(check: impl Fn(&Key, &Value) -> Result<(), Invalid>, document: &Value) -> Vec<Mistake> {
    let mut errors = Vec::new();
    for kind in sections() {
        let collection = kind.collection();
        let version = format!("{collection}_conf_version");
        if let Some(other) = document.get(&version).filter(|version| !version.is_number()) {
            let got = model::schema::lua_type(other);
            let invalid = Invalid::new(format!("{version} must be a number, got {got}"));
            errors.push(Mistake { collection, item: None, invalid });
        }
        let items = document.get(collection).and_then(Value::as_array);
        let mut seen = HashSet::new();
        for (index, item) in items.into_iter().flatten().enumerate() {
            let id = id_of(kind, item);
            let mut tell = |invalid: Invalid| {
                errors.push(Mistake { collection, item: Some((index, id.clone())), invalid });
            };
            // An object without an id is fine here: it gets one when it is written.
            let key = Key::new(kind, id.clone().unwrap_or_else(|| "0".to_owned()));
            let (key, item) = or_owned(key, item);
            if let Err(invalid) = check(&key, &item) {
                tell(invalid);
            }
            if let Some(id) = &id
                && !seen.insert(id.clone())
            {
                let name = match (kind, item.get("id")) {
                    (Kind::Consumer, None) => "username",
                    (Kind::Consumer, Some(_)) => "credential id",
                    _ => "id",
                };
                tell(Invalid::new(format!("found duplicate {name} {id} in {collection}")));
            }
        }
    }
    errors
}

pub(crate) fn read_document(head: &Parts, body: &[u8]) -> Result<Value, ErrorAnswer> {
    if body.is_empty() {
        return Err(said("invalid request body: empty request body"));
    }
    if body.len() > MAX_BODY {
        return Err(ErrorAnswer::response(too_large(body.len() as u64, MAX_BODY)));
    }
    let media = head.headers.get(header::CONTENT_TYPE).map(|media| media.as_bytes()).unwrap_or_default();
    let document =
        if media.starts_with(b"application/yaml") { Some(read_yaml(body)?) } else { read_body(body)? };
    match document {
        Some(document @ Value::Object(_)) => Ok(document),
        Some(other) if media.starts_with(b"application/yaml") => {
            let got = model::schema::lua_type(&other);
            Err(Invalid::new(NO_YAML).expected("a map of sections").got(got).into())
        }
        _ => Err(said("invalid request body: expected an object")),
    }
}

/// APISIX's message for a body that is not YAML, or not a map.
const NO_YAML: &str = "invalid request body: invalid yaml request body";

fn read_yaml(body: &[u8]) -> Result<Value, ErrorAnswer> {
    let text = std::str::from_utf8(body).map_err(|_| Invalid::new(NO_YAML).hint("write it in UTF-8"))?;
    let read = model::yaml::parse(text, Variables::Keep).map_err(|error| {
        let model::Position { line, column } = error.position;
        let place = format!("{} at line {line} column {column}", error.message);
        Invalid::new(NO_YAML).hint(match error.hint {
            Some(help) => format!("{place}: {help}"),
            None => place,
        })
    })?;
    Ok(read.value)
}

fn id_of(kind: Kind, item: &Value) -> Option<String> {
    let id = match (kind, item.get("id")) {
        (Kind::Consumer, None) => item.get("username"),
        (_, id) => id,
    };
    match id? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the owned resource for an id such as `jack/credentials/a` among consumers, which is a credential with
/// the id `a`; other items are returned unchanged.
fn or_owned(key: Key, item: &Value) -> (Key, Value) {
    let key = key.or_owned();
    if key.kind.owner().is_none() {
        return (key, item.clone());
    }
    let mut item = item.clone();
    item["id"] = Value::from(key.leaf());
    (key, item)
}
