//! hot path
//!
//! Conditions on an exchange: `[["arg_name", "==", "json"], ["OR", …]]`.
//!
//! The language is lua-resty-expr 1.3's, which APISIX uses for a route's `vars`
//! and a plugin's `_meta.filter`; messages are its own. Everything that can be
//! decided beforehand is: numbers and addresses are parsed, patterns compiled,
//! lists sorted. Stricter than APISIX in one point: a regular expression that
//! does not compile is refused, where APISIX takes it and never matches.

mod compile;

use std::net::IpAddr;

use ipnet::IpNet;
use model::Invalid;
use serde_json::Value as Json;

use crate::exchange::Exchange;
use crate::pattern::Pattern;
use crate::vars::{Value, Var};

/// A compiled condition.
#[derive(Debug, Clone)]
pub struct Expr {
    root: Node,
    needs_body: bool,
}

#[derive(Debug, Clone)]
enum Node {
    /// All of them, or with `negate` not all.
    All {
        nodes: Vec<Node>,
        negate: bool,
    },
    /// Any of them, or with `negate` none.
    Any {
        nodes: Vec<Node>,
        negate: bool,
    },
    Test {
        var: Var,
        test: Test,
        negate: bool,
    },
}

#[derive(Debug, Clone)]
enum Test {
    Equal(Operand),
    NotEqual(Operand),
    Greater(f64),
    GreaterOrEqual(f64),
    Less(f64),
    LessOrEqual(f64),
    Matches(Pattern),
    In(List),
    Has(Operand),
    IpMatch(Vec<IpNet>),
    /// What Lua would compare with something no value can equal.
    Never,
}

/// The right side of a comparison.
#[derive(Debug, Clone, PartialEq)]
enum Operand {
    /// null: the variable is absent.
    Absent,
    Text(Box<[u8]>),
    Number(f64),
    Bool(bool),
    /// A list or an object, which equals nothing.
    Other,
}

/// The right side of `in`.
#[derive(Debug, Clone, Default)]
struct List {
    /// Sorted.
    texts: Vec<Box<[u8]>>,
    numbers: Vec<f64>,
    bools: Vec<bool>,
}

impl Expr {
    /// Compiles an expression. A refusal points to the faulty element.
    pub fn compile(value: &Json) -> Result<Expr, Invalid> {
        let root = compile::expression(value)?;
        let needs_body = root.needs_body();
        Ok(Expr { root, needs_body })
    }

    /// Whether it holds. Where it looks into the body, call [`crate::vars::prepare_body`] before.
    #[inline]
    pub fn matches(&self, x: &Exchange<'_>) -> bool {
        self.root.matches(x)
    }

    /// Whether the request's body must be in memory before.
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.needs_body
    }
}

impl Node {
    fn matches(&self, x: &Exchange<'_>) -> bool {
        match self {
            Node::All { nodes, negate } => nodes.iter().all(|node| node.matches(x)) != *negate,
            Node::Any { nodes, negate } => nodes.iter().any(|node| node.matches(x)) != *negate,
            Node::Test { var, test, negate } => test.holds(var.value(x).as_ref()) != *negate,
        }
    }

    fn needs_body(&self) -> bool {
        match self {
            Node::All { nodes, .. } | Node::Any { nodes, .. } => nodes.iter().any(Node::needs_body),
            Node::Test { var, .. } => var.needs_body(),
        }
    }
}

impl Test {
    fn holds(&self, left: Option<&Value<'_>>) -> bool {
        let number = || left.and_then(as_number);
        match self {
            Test::Equal(right) => right.equals(left),
            Test::NotEqual(right) => !right.equals(left),
            Test::Greater(right) => number().is_some_and(|left| left > *right),
            Test::GreaterOrEqual(right) => number().is_some_and(|left| left >= *right),
            Test::Less(right) => number().is_some_and(|left| left < *right),
            Test::LessOrEqual(right) => number().is_some_and(|left| left <= *right),
            Test::Matches(pattern) => match left {
                Some(Value::Text(text)) => pattern.is_match(text),
                Some(Value::Number(number)) => pattern.is_match(number.to_string().as_bytes()),
                Some(Value::Bool(truth)) => pattern.is_match(truth.to_string().as_bytes()),
                Some(Value::Json(_)) | None => false,
            },
            Test::In(list) => left.is_some_and(|left| list.contains(left)),
            Test::Has(right) => match left {
                Some(Value::Json(json)) => {
                    json.as_array().is_some_and(|list| list.iter().any(|element| right.is(element)))
                }
                _ => false,
            },
            Test::IpMatch(nets) => match left {
                Some(Value::Text(text)) => {
                    address(text).is_some_and(|ip| nets.iter().any(|net| net.contains(&ip)))
                }
                _ => false,
            },
            Test::Never => false,
        }
    }
}

impl Operand {
    /// `==`: a number on the right turns the left into one; otherwise type and value must be equal.
    fn equals(&self, left: Option<&Value<'_>>) -> bool {
        match (self, left) {
            (Operand::Absent, left) => left.is_none(),
            (Operand::Number(right), Some(left)) => as_number(left) == Some(*right),
            (Operand::Text(right), Some(Value::Text(left))) => **right == **left,
            (Operand::Bool(right), Some(Value::Bool(left))) => right == left,
            _ => false,
        }
    }

    /// Equal to an element of a list, types and all.
    fn is(&self, element: &Json) -> bool {
        match (self, element) {
            (Operand::Text(right), Json::String(left)) => **right == *left.as_bytes(),
            (Operand::Number(right), Json::Number(left)) => left.as_f64() == Some(*right),
            (Operand::Bool(right), Json::Bool(left)) => right == left,
            _ => false,
        }
    }
}

impl List {
    fn contains(&self, left: &Value<'_>) -> bool {
        match left {
            Value::Text(text) => self.texts.binary_search_by(|known| known[..].cmp(text)).is_ok(),
            Value::Number(number) => self.numbers.contains(number),
            Value::Bool(truth) => self.bools.contains(truth),
            Value::Json(_) => false,
        }
    }
}

fn as_number(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Text(text) => number(text),
        Value::Number(number) => Some(*number),
        Value::Bool(_) | Value::Json(_) => None,
    }
}

/// A number as Lua reads it from text: decimal or hexadecimal, with spaces around it.
fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_ascii();
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        let valid = !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        return valid.then(|| {
            sign * hex.chars().filter_map(|c| c.to_digit(16)).fold(0.0, |n, d| n * 16.0 + f64::from(d))
        });
    }
    // Rust reads `inf` and `nan`, too, as LuaJIT does, but a second sign would be no number.
    if digits.starts_with(['-', '+']) { None } else { digits.parse::<f64>().ok().map(|n| sign * n) }
}

fn address(text: &[u8]) -> Option<IpAddr> {
    let ip: IpAddr = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests;
