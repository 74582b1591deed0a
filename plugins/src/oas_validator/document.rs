//! OpenAPI documents: their paths and operations.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use model::Invalid;
use sdk::Exchange;
use serde_json::Value;

use super::operation::{Found, Operation};
use super::schemas::Compiled;
use super::translate;
use crate::tree;

/// A compiled document.
#[derive(Debug)]
pub(super) struct Document {
    operations: Vec<Operation>,
    /// The bases of paths, of its servers.
    bases: Vec<String>,
    /// Paths by their number of segments; those with fewer parameters first.
    templates: HashMap<usize, Vec<Template>>,
}

#[derive(Debug)]
struct Template {
    segments: Vec<Segment>,
    /// Operations by method.
    methods: BTreeMap<String, usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Fixed(String),
    /// A parameter between two texts.
    Parameter {
        before: String,
        name: String,
        after: String,
    },
}

/// A place in a document.
#[derive(Debug, Clone)]
pub(super) struct Place<'d> {
    pub root: &'d Value,
    pub pointer: String,
    pub value: &'d Value,
}

/// References that lead to references.
const REFERENCES: usize = 16;

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// Reads the text of a document. As with cjson, texts in it may have control characters: escapes of a document that
/// stands in another JSON text are easily resolved once too often.
///
/// # Errors
/// It is not JSON, in cjson's words.
pub(super) fn read(text: &[u8]) -> Result<Value, String> {
    let (mut out, mut in_text, mut is_escaped) = (Vec::with_capacity(text.len()), false, false);
    for &byte in text {
        if in_text && byte < 0x20 {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            is_escaped = false;
            continue;
        }
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ => {}
        }
        out.push(byte);
    }
    tree::read(&out)
}

impl Document {
    /// # Errors
    /// The document is not of OpenAPI 3.0 or 3.1, or a schema in it is not valid; the pointer leads into the document.
    pub fn compile(mut written: Value) -> Result<Document, Invalid> {
        let version = written.get("openapi").and_then(Value::as_str).unwrap_or_default();
        let is_3_0 = version.starts_with("3.0");
        if !is_3_0 && !version.starts_with("3.1") {
            return Err(Invalid::new("the document is not of OpenAPI 3.0 or 3.1").at("/openapi"));
        }
        translate::document(&mut written, is_3_0);
        let root = Place { root: &written, pointer: String::new(), value: &written };
        let mut document =
            Document { operations: Vec::new(), bases: bases(&written), templates: HashMap::new() };
        let compiled = Compiled::of(&written);
        for (path, item) in root.member("paths").into_iter().flat_map(|paths| paths.members()) {
            document.add_path(path, &item.followed()?, &compiled)?;
        }
        compiled.finish()?;
        for templates in document.templates.values_mut() {
            // Stable: of paths that are alike, the first one counts.
            templates.sort_by_key(Template::order);
        }
        Ok(document)
    }

    fn add_path(&mut self, path: &str, item: &Place<'_>, compiled: &Compiled<'_>) -> Result<(), Invalid> {
        let mut methods = BTreeMap::new();
        for method in METHODS {
            if let Some(operation) = item.member(method) {
                methods.insert(method.to_ascii_uppercase(), self.operations.len());
                self.operations.push(Operation::compile(item, &operation, compiled)?);
            }
        }
        let segments: Vec<Segment> = path.trim_start_matches('/').split('/').map(Segment::parse).collect();
        self.templates.entry(segments.len()).or_default().push(Template { segments, methods });
        Ok(())
    }

    pub fn operation(&self, index: usize) -> &Operation {
        &self.operations[index]
    }

    /// The operation of a request.
    ///
    /// # Errors
    /// It has no operation, in words.
    pub fn find(&self, x: &Exchange<'_>) -> Result<Found<'_>, String> {
        let path = String::from_utf8_lossy(x.path());
        let method = String::from_utf8_lossy(x.request().method_bytes());
        let mut is_known = false;
        for base in &self.bases {
            let Some(rest) = path.strip_prefix(base.as_str()).filter(|rest| rest.starts_with('/')) else {
                continue;
            };
            let segments: Vec<&str> = rest[1..].split('/').collect();
            for template in self.templates.get(&segments.len()).into_iter().flatten() {
                let Some(parameters) = template.matches(&segments) else { continue };
                is_known = true;
                if let Some(&index) = template.methods.get(&*method) {
                    return Ok(Found { index, operation: &self.operations[index], parameters });
                }
            }
        }
        Err(match is_known {
            true => format!("method {method} is not defined for path {path}"),
            false => format!("no matching operation found for path {path}"),
        })
    }
}

impl Template {
    /// Parameters come last, wherever the first one is (OpenAPI 3.1, section 4.8.8.2).
    fn order(&self) -> Vec<bool> {
        self.segments.iter().map(|segment| matches!(segment, Segment::Parameter { .. })).collect()
    }

    fn matches(&self, segments: &[&str]) -> Option<Vec<(String, String)>> {
        let mut parameters = Vec::new();
        for (own, segment) in self.segments.iter().zip(segments) {
            match own {
                Segment::Fixed(text) if text == segment => {}
                Segment::Fixed(_) => return None,
                Segment::Parameter { before, name, after } => {
                    let value = segment.strip_prefix(before.as_str())?.strip_suffix(after.as_str())?;
                    if value.is_empty() {
                        return None;
                    }
                    parameters.push((name.clone(), value.to_owned()));
                }
            }
        }
        Some(parameters)
    }
}

impl Segment {
    fn parse(text: &str) -> Segment {
        let parts = text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
        match parts {
            Some((before, (name, after))) => Segment::Parameter {
                before: before.to_owned(),
                name: name.to_owned(),
                after: after.to_owned(),
            },
            None => Segment::Fixed(text.to_owned()),
        }
    }
}

/// The paths of the servers, with the defaults of their variables; without a server, an empty one.
fn bases(document: &Value) -> Vec<String> {
    let base = |server: &Value| {
        let mut url = server.get("url")?.as_str()?.to_owned();
        for (name, variable) in server.get("variables").and_then(Value::as_object).into_iter().flatten() {
            let default = variable.get("default").and_then(Value::as_str).unwrap_or_default();
            url = url.replace(&format!("{{{name}}}"), default);
        }
        let path = match url.split_once("://") {
            Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
            None => &url,
        };
        Some(path.trim_end_matches('/').to_owned())
    };
    let servers = document.get("servers").and_then(Value::as_array);
    let mut bases: Vec<String> = servers.into_iter().flatten().filter_map(base).collect();
    // The longest first.
    bases.sort_by_key(|base| std::cmp::Reverse(base.len()));
    bases.dedup();
    if bases.is_empty() {
        bases.push(String::new());
    }
    bases
}

impl<'d> Place<'d> {
    pub fn member(&self, name: &str) -> Option<Place<'d>> {
        let value = self.value.get(name)?;
        Some(Place { root: self.root, pointer: format!("{}/{}", self.pointer, escaped(name)), value })
    }

    pub fn members(&self) -> Vec<(&'d str, Place<'d>)> {
        let members = self.value.as_object().into_iter().flatten();
        let place = |(name, value): (&'d String, &'d Value)| {
            let pointer = format!("{}/{}", self.pointer, escaped(name));
            (name.as_str(), Place { root: self.root, pointer, value })
        };
        members.map(place).collect()
    }

    pub fn items(&self) -> Vec<Place<'d>> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items
            .map(|(at, value)| Place { root: self.root, pointer: format!("{}/{at}", self.pointer), value })
            .collect()
    }

    pub fn text(&self, name: &str) -> Option<&'d str> {
        self.value.get(name)?.as_str()
    }

    pub fn is(&self, name: &str) -> bool {
        self.value.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The place that a reference leads to, or this one.
    ///
    /// # Errors
    /// It leads nowhere in this document, or in a circle.
    pub fn followed(&self) -> Result<Place<'d>, Invalid> {
        let mut place = self.clone();
        for _ in 0..REFERENCES {
            let Some(reference) = place.text("$ref") else { return Ok(place) };
            let pointer = reference.strip_prefix('#');
            let found = pointer.and_then(|pointer| Some((pointer, self.root.pointer(pointer)?)));
            let Some((pointer, value)) = found else {
                return Err(Invalid::new("the reference leads nowhere in this document").at(place.pointer));
            };
            place = Place { root: self.root, pointer: pointer.to_owned(), value };
        }
        Err(Invalid::new("the reference leads round in a circle").at(self.pointer.clone()))
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
