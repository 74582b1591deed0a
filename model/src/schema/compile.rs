//! From a JSON schema document to a tree that can be walked.
//!
//! Everything that can be decided once is decided here: patterns are compiled,
//! references followed, messages that do not depend on the value are written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use serde_json::{Map, Value};

use super::circle;
use super::pattern::Pattern;
use crate::Invalid;
use crate::invalid::push_pointer;

/// Schemas within schemas, and references that lead to references.
const MAX_DEPTH: usize = 64;
/// The most subschemas of a document, each counted wherever a `$ref` leads to it: it is compiled again there, so a
/// few definitions that name each other several times would become billions.
const MAX_SUBSCHEMAS: usize = 20_000;
/// The most subschemas of a document whose schemas are shared.
const MAX_SHARED: usize = 100_000;

/// One compiled schema. An absent keyword is `None` or empty.
#[derive(Debug, Default)]
pub struct Subschema {
    /// The schema is `false`: nothing fits.
    pub never: bool,
    pub types: Vec<Type>,
    pub object: Option<Box<ObjectRules>>,
    pub array: Option<Box<ArrayRules>>,
    pub string: Option<Box<StringRules>>,
    pub number: Option<Box<NumberRules>>,
    pub one_of_values: Option<Vec<Value>>,
    pub all_of: Vec<Subschema>,
    pub any_of: Option<AnyOf>,
    pub one_of: Vec<Subschema>,
    pub branch: Option<Box<Branch>>,
    pub not: Option<Box<Subschema>>,
    pub format: Option<Format>,
    pub constant: Option<Value>,
    pub contains: Option<Box<Subschema>>,
    /// The properties a bare `{"required": […]}` alternative asks for.
    pub asks_only: Option<Vec<String>>,
    /// The title of the schema, the usual name of a value that fits.
    pub title: Option<String>,
    /// Walking may change the value: a default below, or a shape to normalise.
    pub writes: bool,
    /// In the place of all others: a schema that contains this one, or one that is shared.
    pub shared: Option<Weak<Shared>>,
    /// Steps of walking it, beside the first and those of the schemas in it.
    pub steps: usize,
}

/// A schema that contains itself or is shared, once it is compiled.
pub type Shared = OnceLock<Subschema>;

/// The types that `type` may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    Table,
    Integer,
    Number,
    String,
    Boolean,
    Null,
    /// Lua's; nothing in JSON is one.
    Function,
}

#[derive(Debug, Default)]
pub struct ObjectRules {
    pub properties: Vec<Property>,
    /// Required names that are not among `properties`.
    pub required: Vec<String>,
    /// Dependencies of names that are not among `properties`.
    pub dependencies: Vec<(String, Dependency)>,
    pub patterns: Vec<PatternRule>,
    pub additional: Additional,
    pub min: Option<usize>,
    pub max: Option<usize>,
}

#[derive(Debug)]
pub struct Property {
    pub name: String,
    pub node: Subschema,
    pub default: Option<Value>,
    pub required: bool,
    pub dependency: Option<Dependency>,
}

#[derive(Debug)]
pub enum Dependency {
    Names(Vec<String>),
    Schema(Box<Subschema>),
}

#[derive(Debug)]
pub struct PatternRule {
    pub source: String,
    pub regex: Pattern,
    pub node: Subschema,
}

#[derive(Debug, Default)]
pub enum Additional {
    #[default]
    Allowed,
    Forbidden,
    Fits(Box<Subschema>),
}

#[derive(Debug, Default)]
pub struct ArrayRules {
    pub min: Option<usize>,
    pub max: Option<usize>,
    pub items: Option<Subschema>,
    pub tuple: Vec<Subschema>,
    /// The rule for items behind a tuple.
    pub rest: Additional,
    pub unique: bool,
}

#[derive(Debug, Default)]
pub struct StringRules {
    pub min: Option<usize>,
    pub max: Option<usize>,
    pub pattern: Option<(String, Pattern)>,
}

#[derive(Debug, Default)]
pub struct NumberRules {
    pub minimum: Option<f64>,
    pub above: Option<f64>,
    pub maximum: Option<f64>,
    pub below: Option<f64>,
    pub multiple_of: Option<f64>,
}

#[derive(Debug)]
pub struct AnyOf {
    pub alternatives: Vec<Subschema>,
    /// `object matches none of the required` and what they were.
    pub message: String,
}

#[derive(Debug)]
pub struct Branch {
    pub condition: Subschema,
    pub then: Option<Subschema>,
    pub otherwise: Option<Subschema>,
}

/// The formats api7's `jsonschema` checks; others are taken as a note.
#[derive(Debug)]
pub enum Format {
    Ipv4,
    Ipv6,
    Pattern(&'static str, Pattern),
}

/// Compiles schemas of one document.
pub struct Compiler<'a> {
    document: &'a Value,
    subschemas: Cell<usize>,
    most: usize,
    /// Each schema that a reference leads to is compiled once. Otherwise it is compiled wherever one does, since messages
    /// of alternatives look into it.
    shares: bool,
    /// The schemas that are being compiled, by their pointers, each within the one before.
    open: RefCell<Vec<String>>,
    /// The schemas that contain themselves, and those that are shared.
    shared: RefCell<BTreeMap<String, Arc<Shared>>>,
    /// Those of them that are not compiled yet.
    left: RefCell<Vec<String>>,
}

impl<'a> Compiler<'a> {
    pub fn new(document: &'a Value) -> Compiler<'a> {
        Compiler {
            document,
            subschemas: Cell::new(0),
            most: MAX_SUBSCHEMAS,
            shares: false,
            open: RefCell::default(),
            shared: RefCell::default(),
            left: RefCell::default(),
        }
    }

    /// Shares the schemas that references lead to.
    pub fn sharing(document: &'a Value) -> Compiler<'a> {
        Compiler { most: MAX_SHARED, shares: true, ..Compiler::new(document) }
    }

    /// Compiles the schema at a pointer, apart from those that contain themselves or are shared.
    pub fn root(&self, pointer: &str) -> Result<Subschema, Invalid> {
        *self.open.borrow_mut() = vec![pointer.to_owned()];
        self.node(self.target(pointer)?, 0)
    }

    fn node(&self, schema: &Value, depth: usize) -> Result<Subschema, Invalid> {
        if depth > MAX_DEPTH {
            return Err(Invalid::new("schema is nested too deeply"));
        }
        self.subschemas.set(self.subschemas.get() + 1);
        if self.subschemas.get() > self.most {
            return Err(Invalid::new("schema is too large")
                .expected(format!("at most {} subschemas", self.most))
                .hint("a subschema counts again for each reference that leads to it"));
        }
        let map = match schema {
            Value::Bool(fits) => return Ok(Subschema { never: !fits, ..Subschema::default() }),
            Value::Object(map) => map,
            _ => return Err(Invalid::new("a schema must be an object or a boolean")),
        };
        if let Some(reference) = map.get("$ref") {
            let pointer = reference.as_str().and_then(|reference| reference.strip_prefix('#')).unwrap_or("?");
            return self.follow(pointer, depth).map_err(|invalid| invalid.at("/$ref"));
        }

        let mut node = Subschema {
            types: types(map)?,
            object: self.object_rules(map, depth)?.map(Box::new),
            array: self.array_rules(map, depth)?.map(Box::new),
            string: string_rules(map)?.map(Box::new),
            number: number_rules(map)?.map(Box::new),
            one_of_values: values(map, "enum")?,
            all_of: self.nodes(map, "allOf", depth)?,
            any_of: self.any_of(map, depth)?,
            one_of: self.nodes(map, "oneOf", depth)?,
            branch: self.branch(map, depth)?.map(Box::new),
            not: self.child(map, "not", depth)?.map(Box::new),
            format: format(map)?,
            constant: map.get("const").cloned(),
            contains: self.child(map, "contains", depth)?.map(Box::new),
            asks_only: (map.len() == 1).then(|| strings(map, "required")).transpose()?.flatten(),
            title: map.get("title").and_then(Value::as_str).map(str::to_owned),
            never: false,
            writes: false,
            shared: None,
            steps: 0,
        };
        node.writes = writes(&node);
        node.steps = steps(&node);
        Ok(node)
    }

    fn target(&self, pointer: &str) -> Result<&Value, Invalid> {
        let found = self.document.pointer(pointer);
        found.ok_or_else(|| Invalid::new("the reference leads nowhere in this schema"))
    }

    /// Compiles the schema that a reference leads to. One that is being compiled is compiled once more, by itself.
    fn follow(&self, pointer: &str, depth: usize) -> Result<Subschema, Invalid> {
        let target = self.target(pointer)?;
        if self.shares || self.open.borrow().iter().any(|open| open == pointer) {
            let mut all = self.shared.borrow_mut();
            if !all.contains_key(pointer) {
                self.left.borrow_mut().push(pointer.to_owned());
            }
            let shared = Some(Arc::downgrade(all.entry(pointer.to_owned()).or_default()));
            return Ok(Subschema { shared, writes: true, ..Subschema::default() });
        }
        self.open.borrow_mut().push(pointer.to_owned());
        let made = self.node(target, depth + 1)?;
        self.open.borrow_mut().pop();
        Ok(made)
    }

    /// Compiles the schemas that contain themselves or are shared; each root needs them.
    pub fn complete(self) -> Result<Vec<Arc<Shared>>, Invalid> {
        while let Some(pointer) = self.next() {
            let node = self.root(&pointer);
            let node = node.map_err(|invalid| if self.shares { invalid.under(&pointer) } else { invalid })?;
            if let Some(shared) = self.shared.borrow().get(&pointer) {
                // It was empty.
                let _ = shared.set(node);
            }
        }
        let shared = self.shared.into_inner();
        if circle::leads_round(shared.values()) {
            return Err(Invalid::new("the reference leads round in a circle").at("/$ref"));
        }
        Ok(shared.into_values().collect())
    }

    fn next(&self) -> Option<String> {
        self.left.borrow_mut().pop()
    }

    fn object_rules(&self, map: &Map<String, Value>, depth: usize) -> Result<Option<ObjectRules>, Invalid> {
        const KEYWORDS: [&str; 7] = [
            "properties",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
            "dependencies",
            "required",
        ];
        if !KEYWORDS.iter().any(|keyword| map.contains_key(*keyword)) {
            return Ok(None);
        }
        let mut required = strings(map, "required")?.unwrap_or_default();
        let mut dependencies = Vec::new();
        for (name, value) in object(map, "dependencies")?.into_iter().flatten() {
            let dependency = match value {
                Value::Array(_) => strings_of(value)
                    .map(Dependency::Names)
                    .ok_or_else(|| Invalid::new("expected a list of names")),
                _ => self.node(value, depth + 1).map(|node| Dependency::Schema(Box::new(node))),
            };
            dependencies.push((
                name.clone(),
                dependency.map_err(|invalid| invalid.within(name).under("/dependencies"))?,
            ));
        }
        let mut properties = Vec::new();
        for (name, value) in object(map, "properties")?.into_iter().flatten() {
            let place = |invalid: Invalid| invalid.within(name).under("/properties");
            let dependency = dependencies.iter().position(|(owner, _)| owner == name);
            let count = required.len();
            required.retain(|asked| asked != name);
            properties.push(Property {
                name: name.clone(),
                node: self.node(value, depth + 1).map_err(place)?,
                default: value.get("default").filter(|default| !default.is_null()).cloned(),
                required: required.len() < count,
                dependency: dependency.map(|at| dependencies.remove(at).1),
            });
        }
        let mut patterns = Vec::new();
        for (source, value) in object(map, "patternProperties")?.into_iter().flatten() {
            let place = |invalid: Invalid| invalid.within(source).under("/patternProperties");
            patterns.push(PatternRule {
                source: source.clone(),
                regex: Pattern::new(source).map_err(place)?,
                node: self.node(value, depth + 1).map_err(place)?,
            });
        }
        Ok(Some(ObjectRules {
            properties,
            required,
            dependencies,
            patterns,
            additional: self.additional(map, "additionalProperties", depth)?,
            min: count(map, "minProperties")?,
            max: count(map, "maxProperties")?,
        }))
    }

    fn array_rules(&self, map: &Map<String, Value>, depth: usize) -> Result<Option<ArrayRules>, Invalid> {
        const KEYWORDS: [&str; 4] = ["items", "minItems", "maxItems", "uniqueItems"];
        if !KEYWORDS.iter().any(|keyword| map.contains_key(*keyword)) {
            return Ok(None);
        }
        let tuple = matches!(map.get("items"), Some(Value::Array(_)));
        Ok(Some(ArrayRules {
            min: count(map, "minItems")?,
            max: count(map, "maxItems")?,
            items: if tuple { None } else { self.child(map, "items", depth)? },
            tuple: if tuple { self.nodes(map, "items", depth)? } else { Vec::new() },
            rest: self.additional(map, "additionalItems", depth)?,
            unique: map.get("uniqueItems") == Some(&Value::Bool(true)),
        }))
    }

    fn additional(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
        depth: usize,
    ) -> Result<Additional, Invalid> {
        Ok(match map.get(keyword) {
            None | Some(Value::Bool(true)) => Additional::Allowed,
            Some(Value::Bool(false)) => Additional::Forbidden,
            Some(schema) => Additional::Fits(Box::new(
                self.node(schema, depth + 1).map_err(|invalid| invalid.within(keyword))?,
            )),
        })
    }

    fn any_of(&self, map: &Map<String, Value>, depth: usize) -> Result<Option<AnyOf>, Invalid> {
        let alternatives = self.nodes(map, "anyOf", depth)?;
        if alternatives.is_empty() {
            return Ok(None);
        }
        let asked: Vec<String> = map["anyOf"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|alternative| alternative.get("required"))
            // lua-cjson escapes slashes.
            .map(|names| names.to_string().replace('/', "\\/"))
            .collect();
        let mut message = "object matches none of the required".to_owned();
        if !asked.is_empty() {
            message.push_str(": ");
            message.push_str(&asked.join(" or "));
        }
        Ok(Some(AnyOf { alternatives, message }))
    }

    fn branch(&self, map: &Map<String, Value>, depth: usize) -> Result<Option<Branch>, Invalid> {
        let Some(condition) = self.child(map, "if", depth)? else { return Ok(None) };
        let (then, otherwise) = (self.child(map, "then", depth)?, self.child(map, "else", depth)?);
        Ok(Some(Branch { condition, then, otherwise }))
    }

    fn child(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
        depth: usize,
    ) -> Result<Option<Subschema>, Invalid> {
        map.get(keyword)
            .map(|schema| self.node(schema, depth + 1).map_err(|invalid| invalid.within(keyword)))
            .transpose()
    }

    fn nodes(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
        depth: usize,
    ) -> Result<Vec<Subschema>, Invalid> {
        match map.get(keyword) {
            None => Ok(Vec::new()),
            Some(Value::Array(schemas)) => schemas
                .iter()
                .enumerate()
                .map(|(at, schema)| {
                    self.node(schema, depth + 1).map_err(|invalid| invalid.within(at).within(keyword))
                })
                .collect(),
            Some(_) => Err(wrong(keyword, "a list of schemas")),
        }
    }
}

/// Whether walking `node` may change a value.
fn writes(node: &Subschema) -> bool {
    let below = |nodes: &[Subschema]| nodes.iter().any(|node| node.writes);
    let fits = |additional: &Additional| matches!(additional, Additional::Fits(node) if node.writes);
    node.types.iter().any(|kind| matches!(kind, Type::Object | Type::Array | Type::Integer))
        || node.object.as_deref().is_some_and(|rules| {
            rules.properties.iter().any(|property| property.default.is_some() || property.node.writes)
                || rules.patterns.iter().any(|pattern| pattern.node.writes)
                || fits(&rules.additional)
        })
        || node.array.as_deref().is_some_and(|rules| {
            rules.items.as_ref().is_some_and(|node| node.writes) || below(&rules.tuple) || fits(&rules.rest)
        })
        || below(&node.all_of)
        || below(&node.one_of)
        || node.any_of.as_ref().is_some_and(|any| below(&any.alternatives))
        || node.branch.as_deref().is_some_and(|branch| {
            branch.condition.writes || branch.then.iter().chain(&branch.otherwise).any(|node| node.writes)
        })
}

/// The steps of looking up names and comparing values.
fn steps(node: &Subschema) -> usize {
    const OF_ONE: usize = 16;
    let names = node.object.as_deref().map_or(0, |rules| rules.properties.len() + rules.required.len());
    (names + node.one_of_values.as_ref().map_or(0, Vec::len)) / OF_ONE
}

fn types(map: &Map<String, Value>) -> Result<Vec<Type>, Invalid> {
    let names = match map.get("type") {
        None => return Ok(Vec::new()),
        Some(Value::String(name)) => vec![name.clone()],
        Some(value) => strings_of(value).ok_or_else(|| wrong("type", "a type or a list of types"))?,
    };
    names
        .iter()
        .map(|name| match name.as_str() {
            "object" => Ok(Type::Object),
            "array" => Ok(Type::Array),
            "table" => Ok(Type::Table),
            "integer" => Ok(Type::Integer),
            "number" => Ok(Type::Number),
            "string" => Ok(Type::String),
            "boolean" => Ok(Type::Boolean),
            "null" => Ok(Type::Null),
            "function" => Ok(Type::Function),
            other => Err(Invalid::new(format!("invalid JSON type: {other}")).at("/type")),
        })
        .collect()
}

fn string_rules(map: &Map<String, Value>) -> Result<Option<StringRules>, Invalid> {
    let pattern = match map.get("pattern") {
        None => None,
        Some(Value::String(source)) => {
            Some((source.clone(), Pattern::new(source).map_err(|invalid| invalid.at("/pattern"))?))
        }
        Some(_) => return Err(wrong("pattern", "a string")),
    };
    let rules = StringRules { min: count(map, "minLength")?, max: count(map, "maxLength")?, pattern };
    let empty = rules.min.is_none() && rules.max.is_none() && rules.pattern.is_none();
    Ok((!empty).then_some(rules))
}

fn number_rules(map: &Map<String, Value>) -> Result<Option<NumberRules>, Invalid> {
    let bound = |keyword: &str| match map.get(keyword) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| wrong(keyword, "a number")),
    };
    let rules = NumberRules {
        minimum: bound("minimum")?,
        above: bound("exclusiveMinimum")?,
        maximum: bound("maximum")?,
        below: bound("exclusiveMaximum")?,
        multiple_of: bound("multipleOf")?.filter(|of| *of > 0.0),
    };
    let bounds = [rules.minimum, rules.above, rules.maximum, rules.below, rules.multiple_of];
    Ok(bounds.iter().any(Option::is_some).then_some(rules))
}

fn format(map: &Map<String, Value>) -> Result<Option<Format>, Invalid> {
    let pattern = match map.get("format").and_then(Value::as_str) {
        Some("ipv4") => return Ok(Some(Format::Ipv4)),
        Some("ipv6") => return Ok(Some(Format::Ipv6)),
        Some("email") => ("email", r"^[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+\.[A-Za-z]{2,4}$"),
        Some("hostname") => ("hostname", r"^[a-zA-Z0-9.-]+$"),
        Some("uuid") => ("uuid", r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"),
        Some("date") => ("date", r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"),
        Some("date-time") => (
            "date-time",
            r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$",
        ),
        Some("uri") => ("uri", r"^[a-zA-Z][a-zA-Z0-9+.-]*:\S*$"),
        _ => return Ok(None),
    };
    Ok(Some(Format::Pattern(pattern.0, Pattern::new(pattern.1)?)))
}

fn object<'a>(map: &'a Map<String, Value>, keyword: &str) -> Result<Option<&'a Map<String, Value>>, Invalid> {
    match map.get(keyword) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        // A schema written in Lua encodes an empty table as a list.
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(_) => Err(wrong(keyword, "an object")),
    }
}

fn values(map: &Map<String, Value>, keyword: &str) -> Result<Option<Vec<Value>>, Invalid> {
    match map.get(keyword) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list.clone())),
        Some(value) => Err(no_table(keyword, "a list", value)),
    }
}

fn strings(map: &Map<String, Value>, keyword: &str) -> Result<Option<Vec<String>>, Invalid> {
    map.get(keyword)
        .map(|value| strings_of(value).ok_or_else(|| no_table(keyword, "a list of names", value)))
        .transpose()
}

fn strings_of(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

fn count(map: &Map<String, Value>, keyword: &str) -> Result<Option<usize>, Invalid> {
    map.get(keyword)
        .map(|value| {
            value
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .ok_or_else(|| wrong(keyword, "a count"))
        })
        .transpose()
}

/// As [`wrong`]; with Lua's words, which tools look for, where it walks through what is no table.
fn no_table(keyword: &str, expected: &str, value: &Value) -> Invalid {
    if value.is_object() || value.is_array() {
        return wrong(keyword, expected);
    }
    let found = super::lua::type_name(value);
    wrong(keyword, &format!("{expected} (table expected, got {found})"))
}

fn wrong(keyword: &str, expected: &str) -> Invalid {
    let mut pointer = String::new();
    push_pointer(&mut pointer, keyword);
    Invalid::new(format!("invalid schema: \"{keyword}\" must be {expected}")).at(pointer).expected(expected)
}
