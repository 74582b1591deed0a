//! hot path
//!
//! Entries of loggers: JSON objects of constants and variables, as described by `log_format`.
//!
//! A format is parsed when the configuration is read, down to the text between two values; writing
//! an entry then just iterates over its parts. The rules are those of APISIX 3.18
//! (`apisix/utils/log-util.lua`): a text that begins with `$` is a variable, an absent variable
//! omits its key, objects may be nested five levels deep, and deeper ones become empty objects.

use serde_json::Value;

pub use crate::escape::json_text;
use crate::exchange::Exchange;
use crate::vars::Var;

/// Maximum nesting depth of objects.
const MAX_DEPTH: usize = 5;

/// A parsed format, ready to write entries.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryFormat {
    fields: Vec<Field>,
}

/// The bodies of an exchange, as far as a logger has them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bodies<'a> {
    pub request: Option<&'a [u8]>,
    pub response: Option<&'a [u8]>,
}

#[derive(Debug, Clone, PartialEq)]
struct Field {
    name: Box<str>,
    /// The name as JSON, with its colon.
    key: Box<[u8]>,
    part: Part,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    /// Literal JSON.
    Text(Box<[u8]>),
    Var(Var),
    RequestBody,
    ResponseBody,
    Object(Vec<Field>),
    List(Vec<Part>),
}

impl EntryFormat {
    /// Parses a `log_format`; a value that is not an object has no fields.
    pub fn new(written: &Value) -> EntryFormat {
        EntryFormat { fields: fields(written, 1) }
    }

    /// Names of its own fields, without those of nested objects.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| &*field.name)
    }

    /// Whether it needs the request's body.
    pub fn needs_body(&self) -> bool {
        self.fields.iter().any(|field| field.part.needs_body())
    }

    /// Appends its fields, separated by commas, except those for which `skip` is true. With
    /// `comma`, other fields precede them. Returns whether there are any fields in the end.
    pub fn write(
        &self,
        x: &Exchange<'_>,
        bodies: Bodies<'_>,
        skip: impl Fn(&str) -> bool,
        comma: bool,
        out: &mut Vec<u8>,
    ) -> bool {
        write_fields(self.fields.iter().filter(|field| !skip(&field.name)), x, bodies, comma, out)
    }
}

fn fields(written: &Value, depth: usize) -> Vec<Field> {
    let Some(written) = written.as_object() else { return Vec::new() };
    let field = |(name, value): (&String, &Value)| {
        let mut key = Vec::new();
        json_text(name.as_bytes(), &mut key);
        key.push(b':');
        Field { name: name.as_str().into(), key: key.into(), part: Part::new(value, depth) }
    };
    written.iter().map(field).collect()
}

impl Part {
    fn new(value: &Value, depth: usize) -> Part {
        match value {
            Value::String(text) => match text.strip_prefix('$') {
                Some("request_body") => Part::RequestBody,
                Some("resp_body") => Part::ResponseBody,
                Some(name) => Part::Var(Var::parse(name)),
                None => Part::Text(value.to_string().into_bytes().into()),
            },
            Value::Object(_) | Value::Array(_) if depth >= MAX_DEPTH => Part::Text(b"{}".as_slice().into()),
            Value::Object(_) => Part::Object(fields(value, depth + 1)),
            Value::Array(list) => Part::List(list.iter().map(|one| Part::new(one, depth + 1)).collect()),
            _ => Part::Text(value.to_string().into_bytes().into()),
        }
    }

    fn needs_body(&self) -> bool {
        match self {
            Part::RequestBody => true,
            Part::Var(var) => var.needs_body(),
            Part::Object(fields) => fields.iter().any(|field| field.part.needs_body()),
            Part::List(parts) => parts.iter().any(Part::needs_body),
            Part::Text(_) | Part::ResponseBody => false,
        }
    }

    /// Returns whether there is a value.
    fn write(&self, x: &Exchange<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) -> bool {
        match self {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Var(var) => return var.write_json(x, out),
            Part::RequestBody => match bodies.request {
                Some(body) => json_text(body, out),
                None => return false,
            },
            Part::ResponseBody => json_text(bodies.response.unwrap_or_default(), out),
            Part::Object(fields) => {
                out.push(b'{');
                write_fields(fields.iter(), x, bodies, false, out);
                out.push(b'}');
            }
            Part::List(parts) => {
                out.push(b'[');
                for (at, part) in parts.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    if !part.write(x, bodies, out) {
                        out.extend_from_slice(b"null");
                    }
                }
                out.push(b']');
            }
        }
        true
    }
}

fn write_fields<'f>(
    fields: impl Iterator<Item = &'f Field>,
    x: &Exchange<'_>,
    bodies: Bodies<'_>,
    mut comma: bool,
    out: &mut Vec<u8>,
) -> bool {
    for field in fields {
        let start = out.len();
        if comma {
            out.push(b',');
        }
        out.extend_from_slice(&field.key);
        if field.part.write(x, bodies, out) {
            comma = true;
        } else {
            out.truncate(start);
        }
    }
    comma
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Probe, respond};

    fn entry(format: Value, bodies: Bodies<'_>) -> Value {
        let mut probe = Probe::request("GET", "/a?b=c", &[("Host", "h\u{e9}"), ("X-A", "a\"b\\c\t")]);
        let mut x = probe.exchange();
        x.engine_mut().timing.sent = 77;
        respond(&mut x, 404, &[]);
        let mut out = b"{".to_vec();
        EntryFormat::new(&format).write(&x, bodies, |name| name == "skipped", false, &mut out);
        out.push(b'}');
        serde_json::from_slice(&out)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn constants_variables_and_objects() {
        let format = json!({
            "skipped": "$uri", "none": "$http_none", "a \"b\"": "$http_x_a", "status": "$status", "sent": "$bytes_sent",
            "body_sent": "$body_bytes_sent", "text": "a $uri", "number": 1.5, "truth": true, "null": null,
            "in": {"none": "$nothing", "uri": "$request_uri", "deep": {}}, "list": ["$uri", "$nothing", 1],
        });
        assert_eq!(
            entry(format, Bodies::default()),
            json!({
                "a \"b\"": "a\"b\\c\t", "status": 404, "sent": 77, "body_sent": "0", "text": "a $uri",
                "number": 1.5, "truth": true, "null": null, "in": {"uri": "/a?b=c", "deep": {}},
                "list": ["/a", null, 1],
            })
        );
        assert_eq!(entry(json!({"none": "$nothing"}), Bodies::default()), json!({}));
        assert_eq!(entry(json!([1]), Bodies::default()), json!({}));
    }

    #[test]
    fn objects_are_nested_up_to_five_levels() {
        let format = json!({"a": {"b": {"c": {"d": {"e": {"f": {"g": "$host"}}}}}}});
        assert_eq!(entry(format, Bodies::default()), json!({"a": {"b": {"c": {"d": {"e": {}}}}}}));
    }

    #[test]
    fn bodies_are_taken_from_the_logger() {
        let format = json!({"request": "$request_body", "response": "$resp_body"});
        assert!(EntryFormat::new(&format).needs_body());
        assert!(EntryFormat::new(&json!({"a": {"b": ["$post_arg_c"]}})).needs_body());
        assert!(!EntryFormat::new(&json!({"a": "$resp_body"})).needs_body());
        assert_eq!(entry(format.clone(), Bodies::default()), json!({"response": ""}));
        let bodies = Bodies { request: Some(b"a\xffb"), response: Some(b"\"") };
        assert_eq!(entry(format, bodies), json!({"request": "a\u{fffd}b", "response": "\""}));
    }
}
