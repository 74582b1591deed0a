//! Walking a value along a compiled schema.
//!
//! One walk checks, fills defaults and settles shapes, in the order api7's
//! `jsonschema` does: type, properties, items, strings, numbers, `enum`, then
//! the combining keywords. Alternatives are first tried without words for what
//! does not fit ([`Unsaid`]), since most values fit one of them.

use serde_json::{Map, Value};

use super::alternatives::{explained, names_of_alternatives, none_fits};
use super::compile::{Additional, ArrayRules, Branch, Dependency, ObjectRules, Subschema, Type};
use super::lua;
use super::misfit::{Misfit, Unsaid};
use super::pattern::one_fits;
use super::plain::{check_enum, check_format, check_number, check_string, check_unique};
use super::work::{self, Level, Trial};
use crate::Invalid;
use crate::invalid::nearest;

impl Subschema {
    /// Checks `value` and fills it in; stops at the first thing wrong.
    pub fn walk<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        let to_read = match &*value {
            Value::String(text) => text.len() / work::TEXT,
            Value::Object(map) => map.len() / work::NAMES,
            _ => 0,
        };
        if !work::pay(1 + self.steps + to_read) {
            return Err(given_up());
        }
        if let Some(shared) = &self.shared {
            // The schema keeps it.
            let shared = shared.upgrade();
            let level = Level::enter();
            let (Some(node), Some(_level)) = (shared.as_ref().and_then(|shared| shared.get()), level) else {
                work::give_up();
                return Err(R::of(|| Invalid::new("it is nested too deeply for its schema")));
            };
            return node.walk(value);
        }
        if self.is_reference(value) {
            return Ok(());
        }
        if self.never {
            return Err(R::of(|| Invalid::new("expect false always").got(lua::json_name(value))));
        }
        self.check_type(value)?;
        if let Some(rules) = &self.object {
            walk_object(rules, value)?;
        }
        if let Some(rules) = &self.array {
            walk_array(rules, value)?;
        }
        if let (Some(rules), Value::String(text)) = (&self.string, &*value) {
            check_string(rules, text)?;
        }
        if let (Some(rules), Value::Number(number)) = (&self.number, &*value) {
            check_number(rules, number)?;
        }
        if let Some(values) = &self.one_of_values {
            check_enum(values, value)?;
        }
        self.check_compounds(value)?;
        self.check_rest(value)
    }

    /// Whether this is a reference to a secret, to be checked when it is resolved.
    fn is_reference(&self, value: &Value) -> bool {
        let Value::String(text) = value else { return false };
        text.starts_with('$')
            && !work::is_of_client()
            && matches!(self.types[..], [] | [Type::String])
            && (text.starts_with("$secret://")
                || text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("$env://")))
    }

    /// Checks `type`, and settles the shape where JSON tells apart what Lua does not.
    fn check_type<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        if !self.has_type(value) {
            return Err(R::of(|| self.wrong_type(value)));
        }
        if let [only] = self.types[..]
            && !work::check_only()
        {
            only.settle(value);
        }
        Ok(())
    }

    fn has_type(&self, value: &Value) -> bool {
        self.types.is_empty() || self.types.iter().any(|kind| kind.fits(value))
    }

    fn wrong_type(&self, value: &Value) -> Invalid {
        let names: Vec<&str> = self.types.iter().map(|kind| kind.name()).collect();
        let (names, some) = (names.join(", "), if names.len() > 1 { "one of " } else { "" });
        let invalid =
            Invalid::new(format!("wrong type: expected {some}{names}, got {}", lua::type_name(value)))
                .expected(format!("{some}{names}"))
                .got(lua::json_name(value));
        match self.pair_hint(value).or_else(|| self.type_hint(value).map(str::to_owned)) {
            Some(hint) => invalid.hint(hint),
            None => invalid,
        }
    }

    /// A map where a list of texts such as `name: value` is wanted.
    fn pair_hint(&self, value: &Value) -> Option<String> {
        let items = self.array.as_ref()?.items.as_ref()?;
        let (_, pattern) = items.string.as_ref()?.pattern.as_ref()?;
        let name = value.as_object()?.keys().next()?;
        // The value may be a secret.
        let pair = format!("{name}: value");
        (self.types[..] == [Type::Array] && !pattern.is_match(name) && pattern.is_match(&pair))
            .then(|| format!("write a list of texts, even of one: `[\"{pair}\"]`"))
    }

    fn type_hint(&self, value: &Value) -> Option<&'static str> {
        let wants = |kind| self.types.contains(&kind);
        match value {
            Value::String(text) if wants(Type::Integer) || wants(Type::Number) => {
                text.parse::<f64>().is_ok().then_some("remove the quotes around the number")
            }
            Value::String(text) if wants(Type::Boolean) => {
                matches!(text.as_str(), "true" | "false").then_some("remove the quotes around the boolean")
            }
            Value::Number(_) | Value::Bool(_) if wants(Type::String) => Some("put the value in quotes"),
            Value::Null => Some("leave the field out instead of giving null"),
            Value::Array(_) if wants(Type::Object) => Some("write a map of names to values, not a list"),
            Value::Array(_) => None,
            _ if self.types[..] == [Type::Array] => Some("write a list, even of one item"),
            _ => None,
        }
    }

    fn check_compounds<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        let is_simple = self.all_of.is_empty() && self.any_of.is_none() && self.one_of.is_empty();
        if is_simple && self.branch.is_none() && self.not.is_none() {
            return Ok(());
        }
        let Some(_level) = Level::enter() else {
            return Err(R::of(|| Invalid::new("it is nested too deeply for its schema")));
        };
        for (at, node) in self.all_of.iter().enumerate() {
            node.walk(value).map_err(|refusal: R| {
                refusal.explained(|invalid| invalid.said(&format!("allOf {} failed: ", at + 1)))
            })?;
        }
        if let Some(any) = &self.any_of
            && presences(&any.alternatives, value).is_none_or(|fit| fit == 0)
            && !one_fits(&any.alternatives, |node| node.try_walk::<Unsaid>(value).is_ok())
        {
            return Err(R::of(|| none_fits(Invalid::new(&any.message), &any.alternatives, value)));
        }
        self.check_one_of(value)?;
        if let Some(branch) = &self.branch {
            check_branch(branch, value)?;
        }
        match &self.not {
            Some(node) if node.fits(value) => Err(R::of(|| {
                let invalid = Invalid::new("value wasn't supposed to match schema");
                match names_of_alternatives(std::slice::from_ref(node.as_ref())) {
                    Some(names) => invalid.expected(format!("without {names}")),
                    None => invalid,
                }
            })),
            _ => Ok(()),
        }
    }

    fn check_one_of<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        if self.one_of.is_empty() || presences(&self.one_of, value) == Some(1) {
            return Ok(());
        }
        let mut fitting = None;
        for (at, node) in (1..).zip(&self.one_of) {
            match (node.try_walk::<Unsaid>(value), fitting) {
                (Err(Unsaid), _) => {}
                (Ok(()), None) => fitting = Some(at),
                (Ok(()), Some(first)) => return Err(R::of(|| self.fits_two(first, at))),
            }
        }
        match fitting {
            Some(_) => Ok(()),
            None => Err(R::of(|| {
                let invalid = Invalid::new("value should match only one schema, but matches none");
                none_fits(invalid, &self.one_of, value)
            })),
        }
    }

    /// A value that fits two alternatives of `oneOf`, counted from 1.
    fn fits_two(&self, first: usize, second: usize) -> Invalid {
        let invalid = Invalid::new(format!(
            "value should match only one schema, but matches both schemas {first} and {second}"
        ));
        match names_of_alternatives(&self.one_of) {
            Some(names) => invalid.expected(format!("only one of {names}")),
            None => invalid,
        }
    }

    fn check_rest<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        if let (Some(format), Value::String(text)) = (&self.format, &*value) {
            check_format(format, text)?;
        }
        if let Some(constant) = &self.constant
            && !lua::equal(constant, value)
        {
            return Err(R::of(|| Invalid::new("failed to check const value").expected(constant.to_string())));
        }
        if let (Some(node), Value::Array(items)) = (&self.contains, value) {
            if items.is_empty() {
                return Err(R::of(|| Invalid::new("check contains: empty array is invalid")));
            }
            if !one_fits(items, |item| node.fits(item)) {
                return Err(R::of(|| Invalid::new("failed to check contains")));
            }
        }
        Ok(())
    }

    /// Whether `value` fits; it stays as it was either way.
    fn fits(&self, value: &mut Value) -> bool {
        if let Some(fit) = presences(std::slice::from_ref(self), value) {
            return fit == 1;
        }
        if !self.writes || work::check_only() {
            return self.walk::<Unsaid>(value).is_ok();
        }
        Trial::of(value).is_some_and(|mut trial| self.walk::<Unsaid>(&mut trial.value).is_ok())
    }

    /// Walks `value`, leaving it as it was if it does not fit.
    pub fn try_walk<R: Misfit>(&self, value: &mut Value) -> Result<(), R> {
        // A value of another type is refused before anything is written.
        if !self.writes || work::check_only() || !self.has_type(value) {
            return self.walk(value);
        }
        let mut trial = Trial::of(value).ok_or_else(given_up)?;
        self.walk(&mut trial.value)?;
        std::mem::swap(value, &mut trial.value);
        Ok(())
    }
}

impl Type {
    fn fits(self, value: &Value) -> bool {
        match (self, value) {
            (Type::Object, Value::Array(items)) => items.is_empty(),
            (Type::Array, Value::Object(map)) => map.is_empty(),
            (Type::Integer, Value::Number(number)) => {
                number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n % 1.0 == 0.0)
            }
            (Type::Table, value) => value.is_object() || value.is_array(),
            (Type::Object, value) => value.is_object(),
            (Type::Array, value) => value.is_array(),
            (Type::Number, value) => value.is_number(),
            (Type::String, value) => value.is_string(),
            (Type::Boolean, value) => value.is_boolean(),
            (Type::Null, value) => value.is_null(),
            (Type::Integer | Type::Function, _) => false,
        }
    }

    /// Gives a value that fits the JSON shape this type has.
    fn settle(self, value: &mut Value) {
        match (self, &*value) {
            (Type::Object, Value::Array(_)) => *value = Value::Object(Map::new()),
            (Type::Array, Value::Object(_)) => *value = Value::Array(Vec::new()),
            (Type::Integer, Value::Number(number)) if number.is_f64() => {
                // Beyond 2^53 a float is no exact integer; it is left for the reader to refuse.
                if let Some(n) = number.as_f64().filter(|n| n.abs() <= 9_007_199_254_740_992.0) {
                    *value = Value::from(n as i64);
                }
            }
            _ => {}
        }
    }

    fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::Table => "table",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::String => "string",
            Type::Boolean => "boolean",
            Type::Null => "null",
            Type::Function => "function",
        }
    }
}

fn given_up<R: Misfit>() -> R {
    R::of(|| Invalid::new("the check was given up"))
}

fn walk_object<R: Misfit>(rules: &ObjectRules, value: &mut Value) -> Result<(), R> {
    let is_empty_list = matches!(value, Value::Array(items) if items.is_empty());
    if is_empty_list && !rules.properties.is_empty() && !work::check_only() {
        *value = Value::Object(Map::new());
    }
    if !is_object_like(value) {
        return Ok(());
    }
    let mut names = value.as_object().map(Names::of).unwrap_or_default();
    let mut known = 0;
    for property in &rules.properties {
        let name = &property.name;
        let member = if names.may_have(name) { member_mut(value, name) } else { None };
        match member {
            Some(child) => {
                known += 1;
                property.node.walk(child).map_err(|refusal: R| {
                    refusal.explained(|invalid| {
                        invalid.within(name).said(&format!("property \"{name}\" validation failed: "))
                    })
                })?;
                if let Some(dependency) = &property.dependency {
                    check_dependency(name, dependency, value)?;
                }
            }
            None if property.required => return Err(R::of(|| Invalid::missing(name))),
            None => {
                if let (Some(default), Value::Object(map)) = (&property.default, &mut *value)
                    && !work::check_only()
                {
                    map.insert(name.clone(), default.clone());
                    names.add(name);
                    known += 1;
                }
            }
        }
    }
    for name in &rules.required {
        if value.get(name).is_none() {
            return Err(R::of(|| Invalid::missing(name)));
        }
    }
    for (name, dependency) in &rules.dependencies {
        if value.get(name).is_some() {
            check_dependency(name, dependency, value)?;
        }
    }
    let count = value.as_object().map_or(0, Map::len);
    if known < count || !rules.patterns.is_empty() {
        walk_unnamed(rules, value)?;
    }
    if let Some(min) = rules.min.filter(|min| count < *min) {
        return Err(R::of(|| {
            Invalid::new(format!("expect object to have at least {min} properties"))
                .expected(format!("at least {min} properties"))
                .got(count.to_string())
        }));
    }
    if let Some(max) = rules.max.filter(|max| count > *max) {
        return Err(R::of(|| {
            Invalid::new(format!("expect object to have at most {max} properties"))
                .expected(format!("at most {max} properties"))
                .got(count.to_string())
        }));
    }
    Ok(())
}

/// Maps so small are searched from their beginning, which is done before a name is hashed.
const SMALL: usize = 12;

fn member_mut<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let map = value.as_object_mut()?;
    match map.len() {
        ..=SMALL => map.iter_mut().find(|(own, _)| *own == name).map(|(_, member)| member),
        _ => map.get_mut(name),
    }
}

/// Whether a map has a member of this name.
pub fn has(map: &Map<String, Value>, name: &str) -> bool {
    match map.len() {
        ..=SMALL => map.keys().any(|own| own == name),
        _ => map.contains_key(name),
    }
}

/// Which names a map has, for a quick no: a schema knows many more than are written, and asking
/// the map means to hash each. A bit says that a name of some length and first letter is there.
#[derive(Default)]
struct Names(u64);

impl Names {
    fn of(map: &Map<String, Value>) -> Names {
        let mut names = Names::default();
        map.keys().for_each(|name| names.add(name));
        names
    }

    fn add(&mut self, name: &str) {
        self.0 |= Names::bit(name);
    }

    /// `false` is certain.
    fn may_have(&self, name: &str) -> bool {
        self.0 & Names::bit(name) != 0
    }

    fn bit(name: &str) -> u64 {
        let first = name.bytes().next().unwrap_or_default();
        1 << ((usize::from(first) ^ name.len() << 2) % 64)
    }
}

/// An object, or the empty list that Lua takes for one.
fn is_object_like(value: &Value) -> bool {
    matches!(value, Value::Object(_)) || matches!(value, Value::Array(items) if items.is_empty())
}

fn check_dependency<R: Misfit>(name: &str, dependency: &Dependency, value: &mut Value) -> Result<(), R> {
    match dependency {
        Dependency::Names(needed) => {
            match needed.iter().find(|needed| value.get(needed.as_str()).is_none()) {
                Some(needed) => Err(R::of(|| {
                    Invalid::new(format!("property \"{needed}\" is required when \"{name}\" is set"))
                        .expected(format!("a property `{needed}`"))
                        .got("no such property")
                })),
                None => Ok(()),
            }
        }
        Dependency::Schema(node) => {
            let _level = Level::enter();
            node.walk(value).map_err(|refusal: R| {
                refusal.explained(|invalid| {
                    invalid.said(&format!("failed to validate dependent schema for \"{name}\": "))
                })
            })
        }
    }
}

/// Checks `patternProperties` and `additionalProperties`.
fn walk_unnamed<R: Misfit>(rules: &ObjectRules, value: &mut Value) -> Result<(), R> {
    if rules.patterns.is_empty() && matches!(rules.additional, Additional::Allowed) {
        return Ok(());
    }
    let Value::Object(map) = value else { return Ok(()) };
    let names: usize = map.keys().map(|name| 1 + name.len() / work::TEXT).sum();
    if !work::pay(map.len() * (rules.properties.len() / work::NAMES) + names * rules.patterns.len()) {
        return Err(given_up());
    }
    for (name, child) in map.iter_mut() {
        let mut known = rules.properties.iter().any(|property| property.name == *name);
        for pattern in &rules.patterns {
            if pattern.regex.is_match(name) {
                known = true;
                pattern.node.walk(child).map_err(|refusal: R| {
                    refusal.explained(|invalid| {
                        let source = &pattern.source;
                        invalid
                            .within(name)
                            .said(&format!("failed to validate {name} (matching \"{source}\"): "))
                    })
                })?;
            }
        }
        match &rules.additional {
            _ if known => {}
            Additional::Allowed => {}
            Additional::Forbidden => {
                return Err(R::of(|| {
                    let invalid = Invalid::new(format!("additional properties forbidden, found {name}"))
                        .within(name)
                        .expected("a known property");
                    match nearest(name, rules.properties.iter().map(|known| known.name.as_str())) {
                        Some(close) => invalid.hint(format!("did you mean `{close}`?")),
                        None => invalid,
                    }
                }));
            }
            Additional::Fits(node) => node.walk(child).map_err(|refusal: R| {
                refusal.explained(|invalid| {
                    invalid.within(name).said(&format!("failed to validate additional property {name}: "))
                })
            })?,
        }
    }
    Ok(())
}

fn walk_array<R: Misfit>(rules: &ArrayRules, value: &mut Value) -> Result<(), R> {
    let none = &mut Vec::new();
    let items = match value {
        Value::Array(items) => items,
        Value::Object(map) if map.is_empty() => none,
        _ => return Ok(()),
    };
    if let Some(min) = rules.min.filter(|min| items.len() < *min) {
        return Err(R::of(|| {
            Invalid::new(format!("expect array to have at least {min} items"))
                .expected(format!("at least {min} items"))
                .got(items.len().to_string())
        }));
    }
    if let Some(max) = rules.max.filter(|max| items.len() > *max) {
        return Err(R::of(|| {
            Invalid::new(format!("expect array to have at most {max} items"))
                .expected(format!("at most {max} items"))
                .got(items.len().to_string())
        }));
    }
    let tuple = rules.tuple.len();
    for (at, item) in items.iter_mut().enumerate() {
        let (node, words) = match (rules.tuple.get(at), &rules.rest) {
            (Some(node), _) => (Some(node), "item"),
            (None, _) if tuple == 0 => (rules.items.as_ref(), "item"),
            (None, Additional::Forbidden) => {
                return Err(R::of(|| Invalid::new("found unexpected extra items in array").within(at)));
            }
            (None, Additional::Fits(node)) => (Some(&**node), "additional item"),
            (None, Additional::Allowed) => (None, "item"),
        };
        if let Some(node) = node {
            node.walk(item).map_err(|refusal: R| {
                refusal.explained(|invalid| {
                    invalid.within(at).said(&format!("failed to validate {words} {}: ", at + 1))
                })
            })?;
        }
    }
    if rules.unique && work::pay(items.iter().map(work::size).sum()) { check_unique(items) } else { Ok(()) }
}

fn check_branch<R: Misfit>(branch: &Branch, value: &mut Value) -> Result<(), R> {
    let (node, words) = if branch.condition.try_walk::<Unsaid>(value).is_ok() {
        (&branch.then, "then clause did not match")
    } else {
        (&branch.otherwise, "else clause did not match")
    };
    let Some(node) = node else { return Ok(()) };
    node.try_walk(value)
        .map_err(|refusal: R| refusal.explained(|inner| explained(Invalid::new(words), inner)))
}

/// How many of these fit, if all they ask is that properties are there. Most values are checked
/// against such alternatives.
fn presences(alternatives: &[Subschema], value: &Value) -> Option<usize> {
    let map = value.as_object()?;
    let is_known = alternatives.iter().all(|node| node.asks_only.is_some());
    if !is_known || !work::pay(1 + map.len() / work::NAMES) {
        return None;
    }
    let names = Names::of(map);
    let mut fit = 0;
    for node in alternatives {
        let asked = node.asks_only.as_ref()?;
        fit += usize::from(asked.iter().all(|name| names.may_have(name) && has(map, name)));
    }
    Some(fit)
}
