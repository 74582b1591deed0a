//! Matchers: the expression of a model with the constants of a line.

use sdk::pattern::{Searches, StepLimit};

use super::functions::Function;
use super::model::{Graph, Request};
use super::parse::Expression;

/// A compiled matcher.
#[derive(Debug)]
pub(super) enum Matcher {
    Constant(bool),
    Or(Vec<Matcher>),
    And(Vec<Matcher>),
    Not(Box<Matcher>),
    Equal(Operand, Operand),
    /// The left text is before the right one.
    Less(Operand, Operand),
    Function(Operand, Function),
    Role {
        graph: usize,
        name: Operand,
        role: Operand,
        domain: Option<Operand>,
    },
}

/// A text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// A field of the request.
    Request(usize),
    Constant(Box<[u8]>),
}

/// The names in an expression.
pub(super) struct Scope<'s> {
    pub request: &'s [String],
    pub policy: &'s [String],
    /// The fields of the line.
    pub values: &'s [String],
    pub graphs: &'s [Graph],
}

impl Matcher {
    /// # Errors
    /// A name or a function is unknown, or a value has the wrong type; in words.
    pub fn compile(expression: &Expression, scope: &Scope<'_>) -> Result<Matcher, String> {
        let all = |parts: &[Expression]| {
            parts.iter().map(|part| Matcher::compile(part, scope)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match expression {
            Expression::Or(parts) => {
                let mut parts = all(parts)?;
                parts.retain(|part| !part.is_never());
                match parts.len() {
                    0 => Matcher::Constant(false),
                    _ if parts.iter().any(Matcher::is_always) => Matcher::Constant(true),
                    _ => Matcher::Or(parts),
                }
            }
            Expression::And(parts) => {
                let mut parts = all(parts)?;
                parts.retain(|part| !part.is_always());
                match parts.len() {
                    0 => Matcher::Constant(true),
                    _ if parts.iter().any(Matcher::is_never) => Matcher::Constant(false),
                    _ => Matcher::And(parts),
                }
            }
            Expression::Not(inner) => match Matcher::compile(inner, scope)? {
                Matcher::Constant(value) => Matcher::Constant(!value),
                inner => Matcher::Not(Box::new(inner)),
            },
            Expression::Compare(left, operator, right) => compare(left, operator, right, scope)?,
            Expression::In(value, list) => {
                let equal = |one| compare(value, "==", one, scope);
                Matcher::Or(list.iter().map(equal).collect::<Result<_, _>>()?)
            }
            Expression::Call(name, arguments) => call(name, arguments, scope)?,
            Expression::Name(name) if name == "true" => Matcher::Constant(true),
            Expression::Name(name) if name == "false" => Matcher::Constant(false),
            Expression::Name(_) | Expression::Text(_) | Expression::Number(_) => {
                return Err("a value stands where a condition is expected".to_owned());
            }
        })
    }

    /// Calls `found` for each question about roles: its graph, name and domain.
    pub fn roles<'m>(&'m self, found: &mut impl FnMut(usize, &'m Operand, Option<&'m Operand>)) {
        match self {
            Matcher::Or(parts) | Matcher::And(parts) => parts.iter().for_each(|part| part.roles(found)),
            Matcher::Not(inner) => inner.roles(found),
            Matcher::Role { graph, name, domain, .. } => {
                found(*graph, name, domain.as_ref());
            }
            Matcher::Constant(_) | Matcher::Equal(..) | Matcher::Less(..) | Matcher::Function(..) => {}
        }
    }

    pub fn is_never(&self) -> bool {
        matches!(self, Matcher::Constant(false))
    }

    fn is_always(&self) -> bool {
        matches!(self, Matcher::Constant(true))
    }

    /// # Errors
    /// It is undecided: a search took too many steps.
    pub fn holds(&self, request: &Request<'_>) -> Result<bool, StepLimit> {
        Ok(match self {
            Matcher::Constant(value) => *value,
            Matcher::Or(parts) => {
                for part in parts {
                    if part.holds(request)? {
                        return Ok(true);
                    }
                }
                false
            }
            Matcher::And(parts) => {
                for part in parts {
                    if !part.holds(request)? {
                        return Ok(false);
                    }
                }
                true
            }
            Matcher::Not(inner) => !inner.holds(request)?,
            Matcher::Equal(left, right) => left.of(request) == right.of(request),
            Matcher::Less(left, right) => left.of(request) < right.of(request),
            Matcher::Function(text, function) => function.holds(text.of(request), request.searches)?,
            Matcher::Role { graph, name, role, domain } => {
                let domain = domain.as_ref().map_or(&b""[..], |domain| domain.of(request));
                request.has_role(*graph, name.of(request), role.of(request), domain)
            }
        })
    }
}

impl Operand {
    fn compile(expression: &Expression, scope: &Scope<'_>) -> Result<Operand, String> {
        let constant = |text: &str| Operand::Constant(text.as_bytes().into());
        match expression {
            Expression::Text(text) => Ok(constant(text)),
            Expression::Name(name) => {
                let field = |of: &[String], name: &str| of.iter().position(|field| field == name);
                let found = match name.split_once('.') {
                    Some(("r", name)) => field(scope.request, name).map(Operand::Request),
                    // A field that the line leaves out is empty.
                    Some(("p", name)) => field(scope.policy, name)
                        .map(|at| constant(scope.values.get(at).map_or("", String::as_str))),
                    _ => None,
                };
                found.ok_or_else(|| format!("unknown name {name}"))
            }
            // Fields are texts, so numbers are compared as they are written.
            Expression::Number(number) => Ok(constant(&number.to_string())),
            _ => Err("a condition stands where a value is expected".to_owned()),
        }
    }

    /// A text that is known before any request.
    pub fn constant(&self) -> Option<&[u8]> {
        match self {
            Operand::Request(_) => None,
            Operand::Constant(text) => Some(text),
        }
    }

    fn of<'v>(&'v self, request: &'v Request<'_>) -> &'v [u8] {
        match self {
            Operand::Request(at) => request.values[*at],
            Operand::Constant(text) => text,
        }
    }
}

fn compare(
    left: &Expression,
    operator: &str,
    right: &Expression,
    scope: &Scope<'_>,
) -> Result<Matcher, String> {
    let (left, right) = (Operand::compile(left, scope)?, Operand::compile(right, scope)?);
    let not = |matcher| match matcher {
        Matcher::Constant(value) => Matcher::Constant(!value),
        matcher => Matcher::Not(Box::new(matcher)),
    };
    let equal = |left: Operand, right: Operand| match (&left, &right) {
        (Operand::Constant(one), Operand::Constant(other)) => Matcher::Constant(one == other),
        _ => Matcher::Equal(left, right),
    };
    Ok(match operator {
        "==" => equal(left, right),
        "!=" => not(equal(left, right)),
        "<" => Matcher::Less(left, right),
        ">" => Matcher::Less(right, left),
        "<=" => not(Matcher::Less(right, left)),
        _ => not(Matcher::Less(left, right)),
    })
}

fn call(name: &str, arguments: &[Expression], scope: &Scope<'_>) -> Result<Matcher, String> {
    let operands = arguments.iter().map(|one| Operand::compile(one, scope)).collect::<Result<Vec<_>, _>>()?;
    if let Some(graph) = scope.graphs.iter().position(|graph| graph.name == name) {
        let has_domain = scope.graphs[graph].has_domain;
        return match <[Operand; 2]>::try_from(operands.clone()) {
            Ok([name, role]) if !has_domain => Ok(Matcher::Role { graph, name, role, domain: None }),
            _ => match <[Operand; 3]>::try_from(operands) {
                Ok([name, role, domain]) if has_domain => {
                    Ok(Matcher::Role { graph, name, role, domain: Some(domain) })
                }
                _ => Err(format!("{name} does not have the arguments of its role_definition")),
            },
        };
    }
    let known = Function::NAMES.into_iter().find(|known| *known == name).ok_or_else(|| {
        format!(
            "unknown function {name}; known are {} and the roles of the model",
            Function::NAMES.join(", ")
        )
    })?;
    let Ok([text, pattern]) = <[Operand; 2]>::try_from(operands) else {
        return Err(format!("{name} has two arguments"));
    };
    let Operand::Constant(constant) = &pattern else {
        return Err(format!("the pattern of {name} is a value of the request"));
    };
    let constant = std::str::from_utf8(constant).unwrap_or_default();
    let function = Function::compile(known, constant)?.ok_or_else(|| format!("unknown function {name}"))?;
    Ok(match &text {
        Operand::Constant(text) => {
            let holds = function.holds(text, &Searches::default());
            Matcher::Constant(holds.map_err(|StepLimit| format!("{name} takes too many steps"))?)
        }
        Operand::Request(_) => Matcher::Function(text, function),
    })
}
