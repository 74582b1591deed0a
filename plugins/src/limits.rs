//! hot path
//!
//! Code shared by the plugins that limit requests: keys to count by, amounts that may
//! come from the request, and where it is counted ([`policy`]).

pub(crate) mod fields;
pub(crate) mod policy;
#[cfg(test)]
mod scopes;

use model::Invalid;
use sdk::Exchange;
use sdk::state::WorkerState;
use sdk::template::Template;
use sdk::vars::Var;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where texts with variables are put together.
pub(crate) type Scratch = WorkerState<Vec<u8>>;

/// The value by which clients are counted separately. Without a value, the client's address serves.
pub(crate) enum By {
    Constant(String),
    Var(Var),
    Combination {
        template: Template,
        /// Where none of its variables has a value, the rule does not apply.
        optional: bool,
    },
}

/// An integer, or a text with variables that comes to one.
#[derive(Debug, Clone)]
pub(crate) enum Amount {
    Fixed(u64),
    Text(String, Template),
}

/// Beyond it, APISIX's numbers are no longer exact.
const MAX_AMOUNT: u64 = (1 << 53) - 1;

impl Amount {
    /// Its value for this request; none if it comes to no integer from `least` on.
    pub(crate) fn read(&self, x: &Exchange<'_>, least: u64, scratch: &Scratch) -> Option<u64> {
        match self {
            Amount::Fixed(amount) => Some(*amount),
            Amount::Text(_, template) => scratch.with(x.world(), |scratch| {
                scratch.clear();
                template.render(x, scratch);
                parse(scratch).filter(|amount| *amount >= least)
            }),
        }
    }
}

impl Amount {
    /// # Errors
    /// A text without a variable that is no integer from `least` on: every request would fail.
    pub(crate) fn check(&self, at: &str, least: u64) -> Result<(), Invalid> {
        match self {
            Amount::Text(text, _)
                if !text.contains('$') && parse(text.as_bytes()).is_none_or(|amount| amount < least) =>
            {
                let expected =
                    format!("an integer from {least} on, or a text with variables that comes to one");
                Err(Invalid::new(format!("`{text}` is not an integer of {least} or more"))
                    .at(at)
                    .expected(expected)
                    .got(text)
                    .hint("write the number alone: counts have no unit, and times are in seconds"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a number as Lua does, and takes it if it is an integer and not negative.
fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let amount = match text.parse::<u64>() {
        Ok(amount) => amount,
        Err(_) => {
            // `1e3` and `10.0`; not `inf` or `nan`, which Lua does not read either.
            let number: f64 =
                text.parse().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit() || c == '.'))?;
            if number.fract() != 0.0 {
                return None;
            }
            // A number beyond all integers becomes the largest.
            number as u64
        }
    };
    (amount <= MAX_AMOUNT).then_some(amount)
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Fixed(amount) => serializer.serialize_u64(*amount),
            Amount::Text(text, _) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            /// `60.0`, an integer to the schema.
            Float(f64),
            Text(String),
        }
        Ok(match Raw::deserialize(deserializer)? {
            Raw::Number(amount) => Amount::Fixed(amount),
            Raw::Float(amount) => Amount::Fixed(amount as u64),
            Raw::Text(text) => {
                let template = Template::parse(&text);
                Amount::Text(text, template)
            }
        })
    }
}

impl By {
    /// As `key` and `key_type` say it, but for constants.
    pub(crate) fn configured(key: &str, key_type: &str) -> By {
        match key_type {
            "var_combination" => By::Combination { template: Template::parse(key), optional: false },
            _ => By::Var(Var::parse(key)),
        }
    }

    /// Calls `f` with the request's value; `None` if the limit does not apply to it.
    #[inline]
    pub(crate) fn value<T>(&self, x: &Exchange<'_>, scratch: &Scratch, f: impl Fn(&[u8]) -> T) -> Option<T> {
        Some(match self {
            By::Constant(text) => f(text.as_bytes()),
            By::Var(var) => match var.of(x) {
                Some(value) => f(&value),
                None => f(x.client().ip_text()),
            },
            By::Combination { template, optional } => scratch.with(x.world(), |scratch| {
                scratch.clear();
                match (template.render(x, scratch), optional) {
                    (0, true) => None,
                    (0, false) => Some(f(x.client().ip_text())),
                    _ => Some(f(scratch)),
                }
            })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_lua_reads_them() {
        for (text, amount) in [("10", 10), (" 7 ", 7), ("1e3", 1000), ("10.0", 10), ("0", 0)] {
            assert_eq!(parse(text.as_bytes()), Some(amount), "{text}");
        }
        for text in ["", "-1", "1.5", "a", "inf", "nan", "9007199254740992", "1e300"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_never_comes_to_a_number_is_refused() {
        let amount = |text: &str| serde_json::from_value::<Amount>(text.into()).unwrap();
        for (text, least, fits) in [
            ("1", 1, true),
            ("0", 1, false),
            ("0", 0, true),
            ("a", 0, false),
            ("$arg_a", 1, true),
            ("2", 1, true),
        ] {
            assert_eq!(amount(text).check("/count", least).is_ok(), fits, "{text}");
        }
    }
}
