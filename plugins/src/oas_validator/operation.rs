//! Operations: their parameters and their bodies.

use std::collections::HashSet;
use std::sync::Arc;

use model::{Invalid, Schema};
use sdk::{Exchange, vars};
use serde_json::Value;

use super::document::Place;
use super::schemas::Compiled;
use super::values::{Shape, Style};
use crate::tree;

/// A compiled operation.
#[derive(Debug)]
pub(super) struct Operation {
    parameters: Vec<Parameter>,
    body: Option<Content>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    place: In,
    required: bool,
    may_be_empty: bool,
    style: Style,
    shape: Arc<Shape>,
    schema: Option<Arc<Schema>>,
    /// The value is a text of JSON.
    is_json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum In {
    Path,
    Query,
    Header,
    Cookie,
}

/// The description of a body.
#[derive(Debug)]
struct Content {
    required: bool,
    /// By media type, in lower case.
    kinds: Vec<(String, Option<Described>)>,
}

type Described = (Arc<Schema>, Arc<Shape>);

/// The operation of a request, and the parameters in its path.
pub(super) struct Found<'d> {
    pub index: usize,
    pub operation: &'d Operation,
    pub parameters: Vec<(String, String)>,
}

/// Parts of a request that are not checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skipped {
    pub path: bool,
    pub query: bool,
    pub header: bool,
    pub body: bool,
}

/// Parameters of an operation, at most.
const PARAMETERS: usize = 1000;

/// Headers that OpenAPI describes elsewhere.
const OTHER_HEADERS: [&str; 3] = ["accept", "content-type", "authorization"];

impl Operation {
    pub fn compile(
        item: &Place<'_>,
        operation: &Place<'_>,
        compiled: &Compiled<'_>,
    ) -> Result<Operation, Invalid> {
        compiled.count(operation)?;
        let (mut parameters, mut known) = (Vec::new(), HashSet::new());
        // Those of the operation take the place of those of the path.
        for list in [operation, item] {
            for written in list.member("parameters").into_iter().flat_map(|list| list.items()) {
                compiled.count(&written)?;
                let parameter = Parameter::compile(&written.followed()?, compiled)?;
                parameters.extend(parameter.filter(|own| known.insert((own.place, own.name.clone()))));
                if parameters.len() > PARAMETERS {
                    return Err(Invalid::new("there are too many parameters").at(written.pointer));
                }
            }
        }
        let body = match operation.member("requestBody") {
            Some(body) => Some(Content::compile(&body.followed()?, compiled)?),
            None => None,
        };
        Ok(Operation { parameters, body })
    }

    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// # Errors
    /// The body does not fit, in words.
    pub fn check_body(&self, kind: Option<&str>, body: &[u8]) -> Result<(), String> {
        let Some(content) = &self.body else { return Ok(()) };
        if body.is_empty() && kind.is_none_or(|kind| kind != FORM) {
            return if content.required { Err("body is required".to_owned()) } else { Ok(()) };
        }
        let Some((kind, is_own, schema)) = content.of(kind) else {
            let kind = kind.unwrap_or("none");
            return Err(format!("content type {kind} is not defined for the body"));
        };
        let Some((schema, shape)) = schema else { return Ok(()) };
        let value = if is_json(kind) {
            tree::read(body).map_err(|words| format!("body is not JSON: {words}"))?
        } else if kind == FORM {
            shape.form_body(&pairs(body))
        } else if kind.starts_with("text/") || !is_own {
            // A kind that only a range describes, which may be written in any way, is a text.
            Value::String(String::from_utf8_lossy(body).into_owned())
        } else {
            // Other kinds are not read.
            return Ok(());
        };
        schema.parse(value).map(drop).map_err(|invalid| format!("body: {}", words(&invalid)))
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

fn is_json(kind: &str) -> bool {
    kind == "application/json" || kind.ends_with("+json")
}

/// The reason, and where it applies.
fn words(invalid: &Invalid) -> String {
    match &invalid.pointer[..] {
        "" => invalid.reason.clone(),
        pointer => format!("{} at {pointer}", invalid.reason),
    }
}

impl Parameter {
    /// `None` for a header that is described elsewhere.
    fn compile(written: &Place<'_>, compiled: &Compiled<'_>) -> Result<Option<Parameter>, Invalid> {
        let wrong = |why: &str| Invalid::new(why).at(written.pointer.clone());
        let name = written.text("name").ok_or_else(|| wrong("a parameter has no name"))?;
        let place = match written.text("in") {
            Some("path") => In::Path,
            Some("query") => In::Query,
            Some("header") => In::Header,
            Some("cookie") => In::Cookie,
            _ => return Err(wrong("`in` of a parameter must be path, query, header or cookie")),
        };
        if place == In::Header && OTHER_HEADERS.iter().any(|other| name.eq_ignore_ascii_case(other)) {
            return Ok(None);
        }
        let default = if matches!(place, In::Path | In::Header) { "simple" } else { "form" };
        let style = written.text("style").unwrap_or(default).to_owned();
        let explode = written.value.get("explode").and_then(Value::as_bool).unwrap_or(style == "form");
        let content = written.member("content").and_then(|content| content.members().into_iter().next());
        let (schema, is_json) = match content {
            Some((kind, content)) => (content.member("schema"), is_json(kind)),
            None => (written.member("schema"), false),
        };
        Ok(Some(Parameter {
            name: name.to_owned(),
            place,
            required: place == In::Path || written.is("required"),
            may_be_empty: written.is("allowEmptyValue"),
            style: Style { name: style, explode },
            shape: schema.as_ref().map(|schema| compiled.shape(schema)).transpose()?.unwrap_or_default(),
            schema: schema.as_ref().map(|schema| compiled.schema(schema)).transpose()?,
            is_json,
        }))
    }

    fn check(&self, value: Option<Value>) -> Result<(), String> {
        let place = match self.place {
            In::Path => "path",
            In::Query => "query",
            In::Header => "header",
            In::Cookie => "cookie",
        };
        let value = match value {
            None if self.required => return Err(format!("{place} parameter {} is required", self.name)),
            None => return Ok(()),
            Some(Value::String(text)) if text.is_empty() && self.may_be_empty => return Ok(()),
            Some(Value::String(text)) if self.is_json => tree::read(text.as_bytes())
                .map_err(|words| format!("{place} parameter {} is not JSON: {words}", self.name))?,
            Some(value) => value,
        };
        let Some(schema) = &self.schema else { return Ok(()) };
        let fits = schema.parse(value).map(drop);
        fits.map_err(|invalid| format!("{place} parameter {}: {}", self.name, words(&invalid)))
    }

    /// The value, as the text of JSON if it is one.
    fn of_form(&self, pairs: &[(String, String)]) -> Result<Option<Value>, String> {
        if !self.is_json {
            return self.shape.form(&self.style, &self.name, pairs);
        }
        let mut found = pairs.iter().filter(|(name, _)| *name == self.name);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(format!("{} has several values", self.name)),
            (found, _) => Ok(found.map(|(_, text)| Value::String(text.clone()))),
        }
    }

    fn of_text(&self, text: &str) -> Value {
        if self.is_json {
            return Value::String(text.to_owned());
        }
        self.shape.simple(&self.style, &self.name, text)
    }
}

impl Content {
    fn compile(written: &Place<'_>, compiled: &Compiled<'_>) -> Result<Content, Invalid> {
        let mut kinds = Vec::new();
        for (kind, content) in written.member("content").into_iter().flat_map(|content| content.members()) {
            compiled.count(&content)?;
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            let schema = match content.member("schema") {
                Some(schema) if [FORM, "application/*", "*/*"].contains(&&kind[..]) => {
                    Some((compiled.schema(&schema)?, compiled.shape(&schema)?))
                }
                Some(schema) => Some((compiled.schema(&schema)?, Arc::default())),
                None => None,
            };
            kinds.push((kind, schema));
        }
        Ok(Content { required: written.is("required"), kinds })
    }

    /// The description for a media type, and whether it is its own, else that of its range, or that of any. A request
    /// without a type is taken for JSON.
    fn of<'c>(&'c self, kind: Option<&'c str>) -> Option<(&'c str, bool, Option<&'c Described>)> {
        let kind = kind.unwrap_or("application/json");
        let range = kind.split('/').next().unwrap_or_default();
        let matches = |own: &str, level: usize| match level {
            0 => own == kind,
            1 => own.strip_suffix("/*").is_some_and(|own| own == range),
            _ => own == "*/*",
        };
        let found = (0..3).find_map(|level| {
            self.kinds.iter().find(|(own, _)| matches(own, level)).map(|(_, schema)| (level == 0, schema))
        });
        found.map(|(is_own, schema)| (kind, is_own, schema.as_ref()))
    }
}

impl Found<'_> {
    /// # Errors
    /// A parameter does not fit, in words.
    pub fn check_parameters(&self, x: &Exchange<'_>, skipped: Skipped) -> Result<(), String> {
        let query = pairs(x.query());
        let mut cookies = None;
        for parameter in &self.operation.parameters {
            let value = match parameter.place {
                In::Path if skipped.path => continue,
                In::Query if skipped.query => continue,
                In::Header | In::Cookie if skipped.header => continue,
                In::Path => {
                    let found = self.parameters.iter().find(|(name, _)| *name == parameter.name);
                    found.map(|(_, text)| parameter.of_text(text))
                }
                In::Query => parameter.of_form(&query)?,
                In::Header => {
                    let all: Vec<_> = x.request().fields.all(parameter.name.as_bytes()).collect();
                    (!all.is_empty())
                        .then(|| parameter.of_text(&String::from_utf8_lossy(&all.join(&b", "[..]))))
                }
                In::Cookie => parameter.of_form(cookies.get_or_insert_with(|| cookie_pairs(x)))?,
            };
            parameter.check(value)?;
        }
        Ok(())
    }
}

/// Names and values of a query or a form, decoded.
fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pairs = vars::args(text).filter(|(name, _)| !name.is_empty());
    pairs.map(|(name, value)| (text_of(&name), text_of(&value.unwrap_or_default()))).collect()
}

fn cookie_pairs(x: &Exchange<'_>) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for line in x.request().fields.all(b"Cookie") {
        for pair in String::from_utf8_lossy(line).split(';') {
            if let Some((name, value)) = pair.split_once('=') {
                pairs.push((name.trim().to_owned(), value.trim().to_owned()));
            }
        }
    }
    pairs
}
