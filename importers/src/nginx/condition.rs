//! Conditions of `if` and keys of `map`, as `vars` of a route.

use regex::RegexBuilder;
use serde_json::{Value, json};

use super::text::{Text, escaped};

/// The result of translating a condition.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    /// It is known while importing.
    Constant(bool),
    /// It holds if this one does, in the language of `vars`.
    Vars(Value),
}

/// The parts of `if (…)`, without the parentheses.
pub(super) fn parts(args: &[String]) -> Vec<String> {
    let mut parts: Vec<String> = args.to_vec();
    if let Some(first) = parts.first_mut()
        && let Some(rest) = first.strip_prefix('(')
    {
        *first = rest.to_owned();
    }
    if let Some(last) = parts.last_mut()
        && let Some(rest) = last.strip_suffix(')')
    {
        *last = rest.to_owned();
    }
    // `( $a = b )` has parentheses as words of their own; an empty text in quotes stays.
    if args.first().is_some_and(|first| first == "(") {
        parts.remove(0);
    }
    if args.len() > 1 && args.last().is_some_and(|last| last == ")") {
        parts.pop();
    }
    parts
}

/// Translates the parts of an `if`.
///
/// # Errors
/// Why it cannot be translated.
pub(super) fn translate(
    parts: &[String],
    lookup: &dyn Fn(&str) -> Option<Text>,
) -> Result<Condition, String> {
    let filled = |text: &str| Text::parse(text).fill(lookup);
    match parts {
        [one] if one.starts_with('$') => {
            let text = filled(one);
            if let Some(text) = text.constant() {
                return Ok(Condition::Constant(!text.is_empty() && text != "0"));
            }
            let variable = single(&text)?;
            Ok(Condition::Vars(json!(["AND", [variable, "~~", "."], [variable, "~=", "0"]])))
        }
        [test, _] if test.trim_start_matches('!').starts_with('-') => {
            Err(format!("`{test}` looks for a file, which the gateway does not do"))
        }
        [left, operator, right] => {
            let left = filled(left);
            match operator.as_str() {
                "=" | "!=" => equals(&left, &filled(right), operator == "!="),
                "~" | "~*" | "!~" | "!~*" => {
                    matches(&left, right, operator.ends_with('*'), operator.starts_with('!'))
                }
                other => Err(format!("the operator `{other}` is unknown")),
            }
        }
        _ => Err("the condition is not one of nginx".to_owned()),
    }
}

fn equals(left: &Text, right: &Text, negate: bool) -> Result<Condition, String> {
    match (left.constant(), right.constant()) {
        (Some(left), Some(right)) => Ok(Condition::Constant((left == right) != negate)),
        (None, Some("")) if negate => Ok(Condition::Vars(json!([single(left)?, "~~", "."]))),
        (None, Some("")) => Ok(Condition::Vars(json!([single(left)?, "!", "~~", "."]))),
        (None, Some(right)) => {
            let operator = if negate { "~=" } else { "==" };
            Ok(Condition::Vars(json!([single(left)?, operator, right])))
        }
        (Some(left), None) if !left.is_empty() => {
            let operator = if negate { "~=" } else { "==" };
            Ok(Condition::Vars(json!([single(right)?, operator, left])))
        }
        (_, None) => Err("both sides have variables".to_owned()),
    }
}

fn matches(left: &Text, pattern: &str, ignore_case: bool, negate: bool) -> Result<Condition, String> {
    let regex = compile(pattern, ignore_case);
    if let Some(left) = left.constant() {
        let regex = regex.ok_or("its regular expression cannot be evaluated while importing")?;
        return Ok(Condition::Constant(regex.is_match(left) != negate));
    }
    let variable = single(left)?;
    let operator = if ignore_case { "~*" } else { "~~" };
    // In nginx an absent variable is an empty text.
    let empty = regex.is_some_and(|regex| regex.is_match(""));
    Ok(Condition::Vars(match (empty, negate) {
        (false, false) => json!([variable, operator, pattern]),
        (false, true) => json!([variable, "!", operator, pattern]),
        (true, false) => json!(["OR", [variable, "==", null], [variable, operator, pattern]]),
        (true, true) => json!(["AND", [variable, "~=", null], [variable, "!", operator, pattern]]),
    }))
}

/// The one variable of a text, if the gateway has it.
fn single(text: &Text) -> Result<String, String> {
    let Some(name) = text.single() else {
        return Err(format!("`{}` is more than one variable", text.source()));
    };
    match text.template() {
        Ok(template) if !super::text::is_group(name) => Ok(template.trim_start_matches('$').to_owned()),
        _ => Err(format!("the gateway has no variable `${name}`")),
    }
}

/// Compiles a regular expression as the gateway does. `None` for one with look-around.
pub(super) fn compile(pattern: &str, ignore_case: bool) -> Option<regex::Regex> {
    RegexBuilder::new(pattern).case_insensitive(ignore_case).size_limit(1 << 20).build().ok()
}

/// The condition that a variable equals a text, without regard to case as in `map`.
pub(super) fn equals_ignoring_case(variable: &str, text: &str) -> Value {
    if text.is_empty() {
        json!([variable, "!", "~~", "."])
    } else if text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        json!([variable, "~*", format!("^{}$", escaped(text))])
    } else {
        json!([variable, "==", text])
    }
}
