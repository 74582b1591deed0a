//! Compiles JSON to terms by the rules of lua-resty-expr.

use ipnet::IpNet;
use model::Invalid;
use serde_json::Value as Json;

use super::{List, Operand, Term, Test, number};
use crate::pattern::Pattern;
use crate::vars::Var;

/// The maximum depth of nested lists.
const MAX_DEPTH: usize = 128;

/// A whole expression: a list of conditions, or one list that begins with a logical operator.
/// An empty list always holds.
pub(super) fn expression(value: &Json) -> Result<Term, Invalid> {
    let Json::Array(rules) = value else {
        return Err(Invalid::new("rule should be an array").expected("an array").got(type_of(value)));
    };
    match rules.first() {
        None => Ok(Term::All { nodes: Vec::new(), negate: false }),
        Some(Json::Array(_)) => node(value, 0),
        Some(Json::String(word)) if Logic::named(word).is_some() => node(value, 0),
        Some(_) => Err(Invalid::new("rule should be wrapped inside brackets")
            .hint("write a list of lists: [[arg_name, ==, value]], in JSON with quotes")),
    }
}

#[derive(Clone, Copy)]
struct Logic {
    any: bool,
    negate: bool,
}

impl Logic {
    fn named(word: &str) -> Option<Logic> {
        let (any, negate) = match word.to_ascii_uppercase().as_str() {
            "AND" => (false, false),
            "!AND" => (false, true),
            "OR" => (true, false),
            "!OR" => (true, true),
            _ => return None,
        };
        Some(Logic { any, negate })
    }

    fn node(self, nodes: Vec<Term>) -> Term {
        let negate = self.negate;
        if self.any { Term::Any { nodes, negate } } else { Term::All { nodes, negate } }
    }
}

fn node(value: &Json, depth: usize) -> Result<Term, Invalid> {
    if depth >= MAX_DEPTH {
        return Err(Invalid::new(format!("rule is nested deeper than {MAX_DEPTH} levels")));
    }
    let list = match value {
        Json::Array(list) if list.is_empty() => return Err(Invalid::new("rule too short")),
        Json::Array(list) => list,
        other => return Err(Invalid::new("invalid expression").expected("an array").got(type_of(other))),
    };
    let nodes = |from: usize| {
        let inner = list.iter().enumerate().skip(from);
        inner.map(|(i, rule)| node(rule, depth + 1).map_err(|e| e.within(i))).collect::<Result<Vec<_>, _>>()
    };
    match &list[0] {
        Json::Array(_) => Ok(Term::All { nodes: nodes(0)?, negate: false }),
        Json::String(word) => match Logic::named(word) {
            Some(_) if list.len() <= 2 => Err(Invalid::new("rule too short")
                .expected("at least two expressions after the logical operator")
                .got(format!("{}", list.len() - 1))),
            Some(logic) => Ok(logic.node(nodes(1)?)),
            None => condition(word, list),
        },
        other => Err(Invalid::new("invalid expression").at("/0").expected("a variable").got(type_of(other))),
    }
}

/// `[var, op, value]`, `[var, "!", op, value]` or `[var, value]`.
fn condition(name: &str, list: &[Json]) -> Result<Term, Invalid> {
    let var = Var::parse(name);
    let (negate, at) = if list.len() == 4 {
        if list[1] != "!" {
            return Err(Invalid::new("bad 'not' expression").at("/1").expected("\"!\""));
        }
        (true, 2)
    } else {
        (false, 1)
    };
    let right = list.get(at + 1);
    // As in lua-resty-expr, operators are case-insensitive, and a lone number is text.
    let word = match list.get(at) {
        Some(Json::String(word)) => word.to_ascii_lowercase(),
        Some(Json::Number(number)) => number.to_string(),
        _ => return Err(Invalid::new("invalid expression").at(format!("/{at}")).expected("an operator")),
    };
    let test = match (test(&word, right), right) {
        (Some(test), _) => test.map_err(|invalid| invalid.within(at + 1))?,
        // `[var, value]`. The value was parsed as an operator above and lost its capitals, as in
        // lua-resty-expr; existing configurations account for that.
        (None, None) => Test::Equal(Operand::Text(word.into_bytes().into())),
        (None, Some(_)) => {
            return Err(Invalid::new(format!("invalid operator '{word}'"))
                .at(format!("/{at}"))
                .expected("one of ==, ~=, >, >=, <, <=, ~~, ~*, in, has, ipmatch, !"));
        }
    };
    Ok(Term::Test { var, test, negate })
}

/// The test of an operator with its right side; `None` if there is no such operator.
fn test(operator: &str, right: Option<&Json>) -> Option<Result<Test, Invalid>> {
    let ordered = |make: fn(f64) -> Test| {
        let right = match right {
            Some(Json::Number(number)) => number.as_f64(),
            Some(Json::String(text)) => number(text.as_bytes()),
            _ => None,
        };
        Ok(right.map_or(Test::Never, make))
    };
    Some(match operator {
        "==" => Ok(Test::Equal(operand(right))),
        "~=" => Ok(Test::NotEqual(operand(right))),
        ">" => ordered(Test::Greater),
        ">=" => ordered(Test::GreaterOrEqual),
        "<" => ordered(Test::Less),
        "<=" => ordered(Test::LessOrEqual),
        "~~" => pattern(right, false),
        "~*" => pattern(right, true),
        "in" => Ok(match right {
            Some(Json::Array(list)) => Test::In(listed(list)),
            _ => Test::Never,
        }),
        "has" => Ok(Test::Has(operand(right))),
        "ipmatch" => networks(right).map(Test::IpMatch),
        _ => return None,
    })
}

fn operand(right: Option<&Json>) -> Operand {
    match right {
        None | Some(Json::Null) => Operand::Absent,
        Some(Json::String(text)) => Operand::Text(text.as_bytes().into()),
        Some(Json::Number(number)) => number.as_f64().map_or(Operand::Other, Operand::Number),
        Some(Json::Bool(truth)) => Operand::Bool(*truth),
        Some(Json::Array(_) | Json::Object(_)) => Operand::Other,
    }
}

fn pattern(right: Option<&Json>, case_insensitive: bool) -> Result<Test, Invalid> {
    let text = match right {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Number(number)) => number.to_string(),
        Some(other) => {
            return Err(Invalid::new("invalid expression")
                .expected("a regular expression")
                .got(type_of(other)));
        }
        None => return Err(Invalid::new("invalid expression").expected("a regular expression")),
    };
    Pattern::new(&text, case_insensitive).map(Test::Matches)
}

fn listed(elements: &[Json]) -> List {
    let mut list = List::default();
    for element in elements {
        match operand(Some(element)) {
            Operand::Text(text) => list.texts.push(text),
            Operand::Number(number) => list.numbers.push(number),
            Operand::Bool(truth) => list.bools.push(truth),
            Operand::Absent | Operand::Other => {}
        }
    }
    list.texts.sort_unstable();
    list
}

fn networks(right: Option<&Json>) -> Result<Vec<IpNet>, Invalid> {
    let single;
    let list: &[Json] = match right {
        Some(Json::Array(list)) if !list.is_empty() => list,
        Some(text @ Json::String(address)) if !address.is_empty() => {
            single = [text.clone()];
            &single
        }
        _ => return Err(Invalid::new("invalid ip address").expected("an address, a CIDR or a list of them")),
    };
    list.iter()
        .enumerate()
        .map(|(i, element)| {
            let network = element.as_str().and_then(model::network::parse);
            network.ok_or_else(|| {
                let place =
                    if matches!(right, Some(Json::Array(_))) { format!("/{i}") } else { String::new() };
                Invalid::new(format!("invalid ip address: {}", plain(element)))
                    .at(place)
                    .expected("an address or a CIDR, such as 10.0.0.0/8")
            })
        })
        .collect()
}

fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn type_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}
