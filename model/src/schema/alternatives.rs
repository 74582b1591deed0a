//! Messages for values that fit none of several alternatives.

use serde_json::Value;

use super::check::has;
use super::compile::Subschema;
use super::lua;
use crate::Invalid;

/// A refusal by every alternative: what they asked for, or how the closest failed.
pub fn none_fits(invalid: Invalid, alternatives: &[Subschema], value: &mut Value) -> Invalid {
    if let Some(names) = completing(alternatives, value) {
        return invalid.expected(format!("one of these fields as well: {}", names.join(", ")));
    }
    if let Some(names) = names_of_alternatives(alternatives) {
        return invalid.expected(format!("one of {names}"));
    }
    // The alternative that the value names by a field of fixed values is the one that was meant, else the one
    // that got furthest into the value, of those the one that knows the field by its name and not by a pattern,
    // and one for another type is the last that was.
    let refusals = alternatives.iter().filter_map(|node| {
        let named = is_named(node, value);
        let refusal = node.try_walk::<Invalid>(value).err()?;
        let depth = refusal.pointer.matches('/').count();
        let far = (named, depth, knows_place(node, &refusal), !refusal.reason.starts_with("wrong type"));
        Some((far, refusal))
    });
    match refusals.reduce(|best, next| if next.0 > best.0 { next } else { best }) {
        Some((_, closest)) => explained(invalid, closest),
        None => invalid,
    }
}

/// The fields of which any one would make a value fit, where alternatives ask for nothing but fields and the value
/// has all others of one. `script` is not suggested: plugins serve most needs better.
fn completing<'n>(alternatives: &'n [Subschema], value: &Value) -> Option<Vec<&'n str>> {
    let map = value.as_object()?;
    let mut names = Vec::new();
    for node in alternatives {
        let (there, absent): (Vec<_>, Vec<_>) =
            node.asks_only.as_ref()?.iter().partition(|name| has(map, name));
        if let ([_, ..], [name]) = (&there[..], &absent[..])
            && *name != "script"
            && !names.contains(&name.as_str())
        {
            names.push(name.as_str());
        }
    }
    Some(names).filter(|names| !names.is_empty())
}

/// Whether this alternative has a rule of its own for the field within which it refused a value.
fn knows_place(node: &Subschema, refusal: &Invalid) -> bool {
    let field = refusal.pointer.split('/').nth(1);
    let Some((rules, field)) = node.object.as_ref().zip(field) else { return false };
    rules.properties.iter().any(|property| property.name == field)
}

/// Whether a value has fields for which this alternative fixes the values, and all of them fit.
fn is_named(node: &Subschema, value: &Value) -> bool {
    let Some(rules) = &node.object else { return false };
    let mut fixed = rules.properties.iter().filter_map(|property| {
        let Subschema { one_of_values, constant, .. } = &property.node;
        let there = value.get(&property.name)?;
        let values = one_of_values.as_deref().or(constant.as_ref().map(std::slice::from_ref))?;
        Some(values.iter().any(|known| lua::equal(known, there)))
    });
    fixed.next().is_some_and(|first| first && fixed.all(|fits| fits))
}

/// Carries what an inner refusal knows, its place too, over to the message APISIX gives.
pub fn explained(invalid: Invalid, inner: Invalid) -> Invalid {
    // People read it, and many of them in JSON, where quotes would come with backslashes.
    let hint = inner.hint.unwrap_or_else(|| inner.reason.replace('"', "`"));
    Invalid { pointer: inner.pointer, expected: inner.expected, got: inner.got, ..invalid }.hint(hint)
}

/// `uri, uris` where each alternative asks for nothing but certain properties, or has a title.
pub fn names_of_alternatives(alternatives: &[Subschema]) -> Option<String> {
    let name = |node: &Subschema| node.title.clone().or(node.asks_only.as_ref().map(|names| names.join("+")));
    let names: Option<Vec<String>> = alternatives.iter().map(name).collect();
    names.map(|names| names.join(", "))
}
