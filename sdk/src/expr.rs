//! hot path
//!
//! Conditions on an exchange: `[["arg_name", "==", "json"], ["OR", …]]`.
//!
//! The language is that of lua-resty-expr 1.3, which APISIX uses for a route's `vars` and a
//! plugin's `_meta.filter`, with its error messages. All that can be prepared at compile time is:
//! numbers and addresses are parsed, patterns compiled, lists sorted. Stricter than APISIX in one
//! point: a regular expression that does not compile is rejected, where APISIX accepts it and never
//! matches.

mod compile;

use std::net::IpAddr;

use ipnet::IpNet;
use model::Invalid;
use serde_json::Value as Json;

use crate::exchange::{Body, Exchange};
use crate::pattern::{Pattern, Searches, StepLimit};
use crate::step::Step;
use crate::vars::{self, Value, Var};
use crate::verdict::{Undecidable, Verdict};

/// A compiled condition.
#[derive(Debug, Clone)]
pub struct Expr {
    root: Term,
    needs_body: bool,
    /// Evaluation may leave it undecided.
    may_be_undecided: bool,
}

#[derive(Debug, Clone)]
enum Term {
    /// All of them, or with `negate` not all.
    All {
        nodes: Vec<Term>,
        negate: bool,
    },
    /// Any of them, or with `negate` none.
    Any {
        nodes: Vec<Term>,
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
    /// A comparison that Lua does with a value nothing can equal.
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
    /// A list or an object, which equals no value.
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
    /// Compiles an expression. An error points to the faulty element.
    pub fn compile(value: &Json) -> Result<Expr, Invalid> {
        let root = compile::expression(value)?;
        let (mut needs_body, mut may_be_undecided) = (false, false);
        root.each(&mut |var, test| {
            needs_body |= var.needs_body();
            may_be_undecided |=
                var.needs_body() || matches!(test, Test::Matches(pattern) if pattern.may_be_spent());
        });
        Ok(Expr { root, needs_body, may_be_undecided })
    }

    /// Evaluates the condition. It is undecided if its result depends on a value that cannot be
    /// read; unreadable values that cannot change the result are ignored. If [`Expr::needs_body`],
    /// call it within [`crate::vars::reading_body`].
    #[inline]
    pub fn judge(&self, x: &Exchange<'_>) -> Verdict {
        if self.may_be_undecided { self.root.judge(x) } else { Verdict::of(self.root.matches(x)) }
    }

    /// Evaluates the condition with unreadable values as absent, as in APISIX. Must not be the only
    /// check that grants access.
    #[inline]
    pub fn matches(&self, x: &Exchange<'_>) -> bool {
        self.root.matches(x)
    }

    /// Evaluates the condition for a plugin. If it is undecided, returns the step that reads the
    /// body it needs, or that rejects the request.
    #[inline]
    pub fn decide(&self, x: &mut Exchange<'_>) -> Result<bool, Step> {
        match self.reading(x, |x| self.judge(x)) {
            Verdict::Holds => Ok(true),
            Verdict::Fails => Ok(false),
            verdict => Err(step_for(verdict, x)),
        }
    }

    /// Prepares a condition that a plugin evaluates with the response, when it is too late to
    /// reject the request. Returns the step that reads the body, or that rejects the request if any
    /// value of the condition cannot be read, even if that value would not matter.
    pub fn check_early(&self, x: &mut Exchange<'_>) -> Step {
        if !self.may_be_undecided {
            return Step::Next;
        }
        let worst = self.reading(x, |x| {
            let mut worst = Verdict::Holds;
            self.root.each(&mut |var, test| match test.judge(var, x) {
                Verdict::NeedsBody => worst = Verdict::NeedsBody,
                verdict @ Verdict::Undecidable(_) if worst == Verdict::Holds => worst = verdict,
                _ => {}
            });
            worst
        });
        step_for(worst, x)
    }

    fn reading(&self, x: &mut Exchange<'_>, judge: impl FnOnce(&Exchange<'_>) -> Verdict) -> Verdict {
        if self.needs_body && x.body_state() == Body::Whole { vars::reading_body(x, judge) } else { judge(x) }
    }

    /// Whether it reads the request's body.
    #[inline]
    pub fn needs_body(&self) -> bool {
        self.needs_body
    }

    /// Whether [`Expr::judge`] may leave it undecided.
    #[inline]
    pub fn may_be_undecided(&self) -> bool {
        self.may_be_undecided
    }
}

impl Term {
    fn matches(&self, x: &Exchange<'_>) -> bool {
        match self {
            Term::All { nodes, negate } => nodes.iter().all(|node| node.matches(x)) != *negate,
            Term::Any { nodes, negate } => nodes.iter().any(|node| node.matches(x)) != *negate,
            Term::Test { var, test, negate } => test.holds(var.value(x).as_ref(), x.searches()) != *negate,
        }
    }

    fn judge(&self, x: &Exchange<'_>) -> Verdict {
        match self {
            Term::All { nodes, negate } => decide(nodes, Verdict::Fails, x).negated_if(*negate),
            Term::Any { nodes, negate } => decide(nodes, Verdict::Holds, x).negated_if(*negate),
            Term::Test { var, test, negate } => test.judge(var, x).negated_if(*negate),
        }
    }

    /// Calls `see` with every test and its variable.
    fn each(&self, see: &mut impl FnMut(&Var, &Test)) {
        match self {
            Term::All { nodes, .. } | Term::Any { nodes, .. } => nodes.iter().for_each(|node| node.each(see)),
            Term::Test { var, test, .. } => see(var, test),
        }
    }
}

/// The step that resolves an undecided verdict.
fn step_for(verdict: Verdict, x: &Exchange<'_>) -> Step {
    let bound = x.world().bounds().body;
    match verdict {
        Verdict::NeedsBody => Step::Body(bound),
        // The body was requested with a smaller limit before.
        Verdict::Undecidable(Undecidable::TooLarge) if x.lacks_body(bound) => Step::Body(bound),
        Verdict::Undecidable(why) => Step::Refuse(why),
        Verdict::Holds | Verdict::Fails => Step::Next,
    }
}

/// Evaluates a list in which one node with the verdict `alone` decides; the others, decided or not,
/// are then irrelevant. Otherwise reading the body takes precedence, since the body may decide.
fn decide(nodes: &[Term], alone: Verdict, x: &Exchange<'_>) -> Verdict {
    let mut all = alone.negated_if(true);
    for node in nodes {
        match node.judge(x) {
            verdict if verdict == alone => return alone,
            Verdict::NeedsBody => all = Verdict::NeedsBody,
            Verdict::Undecidable(why) if all != Verdict::NeedsBody => all = Verdict::Undecidable(why),
            _ => {}
        }
    }
    all
}

impl Test {
    fn judge(&self, var: &Var, x: &Exchange<'_>) -> Verdict {
        let left = match var.judge(x) {
            Ok(left) => left,
            Err(doubt) => return doubt.into(),
        };
        match (self, &left) {
            (Test::Matches(pattern), Some(Value::Text(text))) => match pattern.judge(text, x.searches()) {
                Ok(truth) => Verdict::of(truth),
                Err(StepLimit) => Verdict::Undecidable(Undecidable::Spent),
            },
            _ => Verdict::of(self.holds(left.as_ref(), x.searches())),
        }
    }

    fn holds(&self, left: Option<&Value<'_>>, searches: &Searches) -> bool {
        // An undecided pattern does not match here.
        let is_match = |pattern: &Pattern, text: &[u8]| pattern.judge(text, searches).unwrap_or(false);
        let number = || left.and_then(as_number);
        match self {
            Test::Equal(right) => right.equals(left),
            Test::NotEqual(right) => !right.equals(left),
            Test::Greater(right) => number().is_some_and(|left| left > *right),
            Test::GreaterOrEqual(right) => number().is_some_and(|left| left >= *right),
            Test::Less(right) => number().is_some_and(|left| left < *right),
            Test::LessOrEqual(right) => number().is_some_and(|left| left <= *right),
            Test::Matches(pattern) => match left {
                Some(Value::Text(text)) => is_match(pattern, text),
                Some(Value::Number(number)) => is_match(pattern, number.to_string().as_bytes()),
                Some(Value::Bool(truth)) => is_match(pattern, truth.to_string().as_bytes()),
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
    /// `==`: a number on the right converts the left side into a number; otherwise type and value
    /// must be equal.
    fn equals(&self, left: Option<&Value<'_>>) -> bool {
        match (self, left) {
            (Operand::Absent, left) => left.is_none(),
            (Operand::Number(right), Some(left)) => as_number(left) == Some(*right),
            (Operand::Text(right), Some(Value::Text(left))) => **right == **left,
            (Operand::Bool(right), Some(Value::Bool(left))) => right == left,
            _ => false,
        }
    }

    /// Equality with a list element: type and value.
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

/// Parses a number as Lua does: decimal or hexadecimal, with spaces around it.
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
    // Rust parses `inf` and `nan` as LuaJIT does, but a second sign is not a number.
    if digits.starts_with(['-', '+']) { None } else { digits.parse::<f64>().ok().map(|n| sign * n) }
}

fn address(text: &[u8]) -> Option<IpAddr> {
    let ip: IpAddr = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests;
