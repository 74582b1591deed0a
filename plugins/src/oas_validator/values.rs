//! Values of parameters: texts in one of OpenAPI's styles become JSON.

use model::Invalid;
use serde_json::{Map, Value};

use super::document::Place;

/// The types that a schema allows, as far as texts are read by them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Shape {
    scalars: Scalars,
    /// Of the items of a list.
    items: Option<Box<Shape>>,
    /// Of the members of an object.
    members: Option<Vec<(String, Shape)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Scalars {
    text: bool,
    number: bool,
    boolean: bool,
    null: bool,
}

/// How a parameter is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Style {
    pub name: String,
    pub explode: bool,
}

/// Schemas beside schemas, as in `allOf`, that are looked into.
const DEPTH: usize = 12;

/// Levels of values that texts have: an object of a form, its members, and their items.
const LEVELS: usize = 2;

impl Scalars {
    /// Allows the type of a value.
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.text = true,
            Value::Number(_) => self.number = true,
            Value::Bool(_) => self.boolean = true,
            Value::Null => self.null = true,
            Value::Array(_) | Value::Object(_) => {}
        }
    }
}

impl Shape {
    /// The shape of a schema. `count` counts the schemas that are looked into.
    ///
    /// # Errors
    /// Those of `count`.
    pub fn of(schema: &Place<'_>, count: &dyn Fn() -> Result<(), Invalid>) -> Result<Shape, Invalid> {
        let mut shape = Shape::default();
        shape.add(schema, (0, 0), count)?;
        Ok(shape)
    }

    fn add(
        &mut self,
        schema: &Place<'_>,
        (level, depth): (usize, usize),
        count: &dyn Fn() -> Result<(), Invalid>,
    ) -> Result<(), Invalid> {
        count()?;
        let schema = schema.followed()?;
        if depth > DEPTH {
            return Ok(());
        }
        let kinds = match schema.value.get("type") {
            Some(Value::String(kind)) => vec![kind.as_str()],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if kinds.is_empty() {
            let listed = schema.value.get("enum").and_then(Value::as_array).into_iter().flatten();
            listed.chain(schema.value.get("const")).for_each(|value| self.scalars.add(value));
        }
        for kind in kinds {
            match kind {
                "string" => self.scalars.text = true,
                "integer" | "number" => self.scalars.number = true,
                "boolean" => self.scalars.boolean = true,
                "null" => self.scalars.null = true,
                "array" => {
                    let mut items = self.items.take().map_or_else(Shape::default, |items| *items);
                    if let Some(schema) = schema.member("items").filter(|_| level < LEVELS) {
                        items.add(&schema, (level + 1, 0), count)?;
                    }
                    self.items = Some(Box::new(items));
                }
                "object" => self.members = Some(self.members.take().unwrap_or_default()),
                _ => {}
            }
        }
        if let Some(properties) = schema.member("properties") {
            let members = self.members.get_or_insert_default();
            let properties = if level < LEVELS { properties.members() } else { Vec::new() };
            for (name, schema) in properties {
                let mut shape = Shape::default();
                shape.add(&schema, (level + 1, 0), count)?;
                members.push((name.to_owned(), shape));
            }
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for part in schema.member(keyword).into_iter().flat_map(|parts| parts.items()) {
                self.add(&part, (level, depth + 1), count)?;
            }
        }
        Ok(())
    }

    /// The value of one text. A text stays one where the schema allows texts, or no other type fits.
    pub fn scalar(&self, text: &str) -> Value {
        let is_number = || text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        if !self.scalars.text {
            if self.scalars.number
                && is_number()
                && let Ok(number @ Value::Number(_)) = serde_json::from_str(text)
            {
                return number;
            }
            match text {
                "true" if self.scalars.boolean => return Value::Bool(true),
                "false" if self.scalars.boolean => return Value::Bool(false),
                "" | "null" if self.scalars.null => return Value::Null,
                _ => {}
            }
        }
        Value::String(text.to_owned())
    }

    fn is_object(&self) -> bool {
        self.members.is_some() && self.items.is_none()
    }

    fn member(&self, name: &str, text: &str) -> Value {
        let own = self.members.iter().flatten().find(|(own, _)| own == name);
        own.map_or_else(|| Value::String(text.to_owned()), |(_, shape)| shape.scalar(text))
    }

    fn list<'t>(&self, parts: impl Iterator<Item = &'t str>) -> Value {
        let any = Shape::default();
        let items = self.items.as_deref().unwrap_or(&any);
        Value::Array(parts.map(|part| items.scalar(part)).collect())
    }

    /// Members as `a,1,b,2`, or as `a=1,b=2`.
    fn object<'t>(&self, mut parts: impl Iterator<Item = &'t str>, has_names: bool) -> Value {
        let mut members = Map::new();
        while let Some(part) = parts.next() {
            let (name, value) = match has_names {
                true => part.split_once('=').unwrap_or((part, "")),
                false => (part, parts.next().unwrap_or("")),
            };
            members.insert(name.to_owned(), self.member(name, value));
        }
        Value::Object(members)
    }

    /// The value of a parameter in a path or a header.
    pub fn simple(&self, style: &Style, name: &str, text: &str) -> Value {
        let (text, separator) = match &style.name[..] {
            "label" => (text.strip_prefix('.').unwrap_or(text), if style.explode { '.' } else { ',' }),
            "matrix" => {
                let text = text.strip_prefix(';').unwrap_or(text);
                // `;a=1;a=2` of a list, `;x=1;y=2` of an object.
                if style.explode && !self.is_object() && self.items.is_some() {
                    let parts =
                        text.split(';').map(|part| part.split_once('=').map_or("", |(_, value)| value));
                    return self.list(parts);
                }
                if style.explode && self.is_object() {
                    return self.object(text.split(';'), true);
                }
                let text = text.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).unwrap_or(text);
                (text, ',')
            }
            _ => (text, ','),
        };
        if self.items.is_some() {
            self.list(text.split(separator).map(str::trim))
        } else if self.is_object() {
            self.object(text.split(separator).map(str::trim), style.explode)
        } else {
            self.scalar(text)
        }
    }

    /// The value of a parameter in a query, a form or cookies; `None` if it is absent.
    ///
    /// # Errors
    /// A part that has one value has several: servers disagree about which one counts.
    pub fn form(
        &self,
        style: &Style,
        name: &str,
        pairs: &[(String, String)],
    ) -> Result<Option<Value>, String> {
        let own: Vec<&str> =
            pairs.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect();
        let is_deep = self.is_object() && style.name == "deepObject";
        if is_deep || self.is_object() && style.explode && style.name == "form" {
            let mut members = Map::new();
            for (key, value) in pairs {
                let inner = key.strip_prefix(name).and_then(|rest| rest.strip_prefix('['));
                let member = match is_deep {
                    true => inner.and_then(|rest| rest.strip_suffix(']')),
                    false => {
                        Some(&key[..]).filter(|key| self.members.iter().flatten().any(|(own, _)| own == key))
                    }
                };
                let Some(member) = member else { continue };
                if members.insert(member.to_owned(), self.member(member, value)).is_some() {
                    return Err(format!("{key} has several values"));
                }
            }
            return Ok((!members.is_empty()).then_some(Value::Object(members)));
        }
        let Some(first) = own.first() else { return Ok(None) };
        if own.len() > 1 && !style.explode {
            return Err(format!("{name} has several values"));
        }
        if self.items.is_some() {
            let separator = match &style.name[..] {
                "spaceDelimited" => ' ',
                "pipeDelimited" => '|',
                _ => ',',
            };
            return Ok(Some(match style.explode {
                true => self.list(own.iter().copied()),
                false => self.list(first.split(separator)),
            }));
        }
        if self.is_object() {
            return Ok(Some(self.object(first.split(','), false)));
        }
        Ok(Some(match own.len() {
            1 => self.scalar(first),
            // A list where the schema wants none.
            _ => Value::Array(own.iter().map(|one| self.scalar(one)).collect()),
        }))
    }

    /// A form as an object.
    pub fn form_body(&self, pairs: &[(String, String)]) -> Value {
        let mut members = Map::new();
        for (name, value) in pairs {
            let shape = self.members.iter().flatten().find(|(own, _)| own == name).map(|(_, shape)| shape);
            let is_list = shape.is_some_and(|shape| shape.items.is_some());
            let items = shape.and_then(|shape| shape.items.as_deref());
            let new = match (items, shape) {
                (Some(items), _) => items.scalar(value),
                (None, Some(shape)) => shape.scalar(value),
                (None, None) => Value::String(value.clone()),
            };
            match members.get_mut(name) {
                Some(Value::Array(list)) => list.push(new),
                Some(first) => *first = Value::Array(vec![first.take(), new]),
                None if is_list => _ = members.insert(name.clone(), Value::Array(vec![new])),
                None => _ = members.insert(name.clone(), new),
            }
        }
        Value::Object(members)
    }
}
