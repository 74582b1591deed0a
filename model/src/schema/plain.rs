//! Rules about one value that need no other schema.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Number, Value};

use super::compile::{Format, NumberRules, StringRules};
use super::lua;
use super::misfit::Misfit;
use crate::Invalid;
use crate::invalid::nearest;

/// Lists so short are compared item by item.
const SHORT: usize = 16;

pub fn check_unique<R: Misfit>(items: &[Value]) -> Result<(), R> {
    // As most lists are, and no printing of them is needed.
    let differ = |(at, item): (usize, &Value)| item.is_string() && !items[..at].contains(item);
    if items.len() <= SHORT && items.iter().enumerate().all(differ) {
        return Ok(());
    }
    let is_table = |item: &Value| item.is_array() || item.is_object();
    for tables in [false, true] {
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (at, item) in items.iter().enumerate().filter(|(_, item)| is_table(item) == tables) {
            let mut print = String::new();
            lua::fingerprint(item, &mut print);
            if let Some(first) = seen.insert(print, at) {
                return Err(R::of(|| {
                    let (first, second) = (first + 1, at + 1);
                    Invalid::new(format!("expected unique items but items {first} and {second} are equal"))
                        .within(at)
                        .expected("items that differ")
                        .hint("remove one of the two")
                }));
            }
        }
    }
    Ok(())
}

pub fn check_string<R: Misfit>(rules: &StringRules, text: &str) -> Result<(), R> {
    let length = if rules.min.is_some() || rules.max.is_some() { text.chars().count() } else { 0 };
    if let Some(min) = rules.min.filter(|min| length < *min) {
        return Err(R::of(|| {
            Invalid::new(format!("string too short, expected at least {min}, got {length}"))
                .expected(format!("at least {min} characters"))
                .got(length.to_string())
        }));
    }
    if let Some(max) = rules.max.filter(|max| length > *max) {
        return Err(R::of(|| {
            Invalid::new(format!("string too long, expected at most {max}, got {length}"))
                .expected(format!("at most {max} characters"))
                .got(length.to_string())
        }));
    }
    match &rules.pattern {
        Some((source, regex)) if !regex.is_match(text) => Err(R::of(|| {
            let (pattern, got) = (lua::quoted(source), lua::quoted(text));
            Invalid::new(format!("failed to match pattern {pattern} with {got}"))
                .expected(format!("a string that matches {source}"))
        })),
        _ => Ok(()),
    }
}

pub fn check_number<R: Misfit>(rules: &NumberRules, written: &Number) -> Result<(), R> {
    let number = written.as_f64().unwrap_or(f64::NAN);
    let bounds = [
        (rules.minimum.filter(|bound| number < *bound), "at least"),
        (rules.above.filter(|bound| number <= *bound), "greater than"),
        (rules.maximum.filter(|bound| number > *bound), "at most"),
        (rules.below.filter(|bound| number >= *bound), "smaller than"),
    ];
    for (broken, words) in bounds {
        if let Some(bound) = broken {
            return Err(R::of(|| {
                let (text, bound) = (lua::number(written), lua::general(bound));
                Invalid::new(format!("expected {text} to be {words} {bound}"))
                    .expected(format!("{words} {bound}"))
                    .got(text)
            }));
        }
    }
    match rules.multiple_of {
        Some(of) if !is_multiple(number, of) => Err(R::of(|| {
            let (text, of) = (lua::number(written), lua::general(of));
            Invalid::new(format!("expected {text} to be a multiple of {of}"))
                .expected(format!("a multiple of {of}"))
                .got(text)
        })),
        _ => Ok(()),
    }
}

/// Exact for whole divisors; for others within what rounding to doubles costs.
fn is_multiple(number: f64, of: f64) -> bool {
    if of % 1.0 == 0.0 {
        return number % of == 0.0;
    }
    let quotient = number / of;
    let rounded = (quotient + 0.5).floor();
    (quotient - rounded).abs() <= 1e-12 * if rounded == 0.0 { 1.0 } else { rounded.abs() }
}

pub fn check_enum<R: Misfit>(values: &[Value], value: &Value) -> Result<(), R> {
    if values.iter().any(|allowed| lua::equal(allowed, value)) {
        return Ok(());
    }
    Err(R::of(|| none_of(values, value)))
}

fn none_of(values: &[Value], value: &Value) -> Invalid {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let invalid = Invalid::new("matches none of the enum values")
        .expected(format!("one of {}", values.iter().map(plain).collect::<Vec<_>>().join(", ")));
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) => return invalid.got(number.to_string()),
        other => return invalid.got(lua::json_name(other)),
    };
    let got = if text.len() <= 40 { format!("`{text}`") } else { "a longer string".to_owned() };
    let known = values.iter().filter_map(Value::as_str);
    let same = known.clone().find(|known| known.eq_ignore_ascii_case(text));
    match same.or_else(|| nearest(text, known)) {
        Some(close) => invalid.got(got).hint(format!("did you mean `{close}`?")),
        None => invalid.got(got),
    }
}

pub fn check_format<R: Misfit>(format: &Format, text: &str) -> Result<(), R> {
    let (name, fits) = match format {
        Format::Ipv4 => ("ipv4", text.parse::<Ipv4Addr>().is_ok()),
        Format::Ipv6 => ("ipv6", text.parse::<Ipv6Addr>().is_ok()),
        Format::Pattern(name, regex) => (*name, regex.is_match(text)),
    };
    if fits {
        return Ok(());
    }
    Err(R::of(|| {
        Invalid::new(format!("expect valid {name} format but got: {text}"))
            .expected(format!("a valid {name}"))
    }))
}
