//! Conditions of paths: `?(@.a == 1 && !@.b)`.

use serde_json::Value;

/// A condition on a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    Or(Vec<Filter>),
    And(Vec<Filter>),
    Not(Box<Filter>),
    Exists(Vec<Name>),
    Compare(Operand, Operator, Operand),
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    /// A member below the value; the value itself if it is empty.
    Below(Vec<Name>),
    Constant(Value),
}

/// A member or an item.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Name {
    Member(String),
    Item(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Filter {
    pub(super) fn holds(&self, value: &Value) -> bool {
        match self {
            Filter::Or(parts) => parts.iter().any(|part| part.holds(value)),
            Filter::And(parts) => parts.iter().all(|part| part.holds(value)),
            Filter::Not(part) => !part.holds(value),
            Filter::Exists(names) => below(value, names).is_some(),
            Filter::Compare(left, operator, right) => operator.holds(left.of(value), right.of(value)),
        }
    }
}

impl Operand {
    fn of<'v>(&'v self, value: &'v Value) -> Option<&'v Value> {
        match self {
            Operand::Below(names) => below(value, names),
            Operand::Constant(constant) => Some(constant),
        }
    }
}

fn below<'v>(value: &'v Value, names: &[Name]) -> Option<&'v Value> {
    names.iter().try_fold(value, |value, name| match name {
        Name::Member(name) => value.get(name),
        Name::Item(index) => {
            let items = value.as_array()?;
            items.get(super::from_end(*index, items.len())?)
        }
    })
}

impl Operator {
    /// RFC 9535 section 2.3.5.2.2: an absent value equals an absent one, and only numbers and texts have an order.
    fn holds(self, left: Option<&Value>, right: Option<&Value>) -> bool {
        let equal = match (left, right) {
            (Some(Value::Number(left)), Some(Value::Number(right))) => left.as_f64() == right.as_f64(),
            (left, right) => left == right,
        };
        let less = |left: Option<&Value>, right: Option<&Value>| match (left, right) {
            (Some(Value::Number(left)), Some(Value::Number(right))) => left.as_f64() < right.as_f64(),
            (Some(Value::String(left)), Some(Value::String(right))) => left < right,
            _ => false,
        };
        match self {
            Operator::Equal => equal,
            Operator::Unequal => !equal,
            Operator::Less => less(left, right),
            Operator::AtMost => less(left, right) || equal,
            Operator::Greater => less(right, left),
            Operator::AtLeast => less(right, left) || equal,
        }
    }
}
