//! Placeholders: `${NAME}` with an upper-case name, as cases write ports and paths.
//!
//! Everything else with a dollar sign is the gateway's business and left alone.

use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    pub fn set(&mut self, name: impl Into<String>, value: impl ToString) {
        self.0.insert(name.into(), value.to_string());
    }

    pub fn value_of(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Replaces placeholders; an unknown upper-case name is an error.
    pub fn fill(&self, text: &str) -> Result<String> {
        self.replace(text, true)
    }

    /// As `fill`, leaving names it does not know to the shell.
    pub fn fill_shell(&self, text: &str) -> Result<String> {
        self.replace(text, false)
    }

    /// Fills every text in a value. A text that is nothing but one placeholder
    /// of digits becomes a number, so that ports can be written.
    pub fn fill_value(&self, value: &Value) -> Result<Value> {
        Ok(match value {
            Value::String(text) => {
                let filled = self.fill(text)?;
                let is_placeholder =
                    filled != *text && text.starts_with("${") && text.find('}') == Some(text.len() - 1);
                match filled.parse::<u64>() {
                    Ok(number) if is_placeholder => number.into(),
                    _ => filled.into(),
                }
            }
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect::<Result<_>>()?,
            Value::Object(map) => {
                let filled = map.iter().map(|(name, value)| Ok((self.fill(name)?, self.fill_value(value)?)));
                Value::Object(filled.collect::<Result<_>>()?)
            }
            other => other.clone(),
        })
    }

    fn replace(&self, text: &str, strict: bool) -> Result<String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let name = rest.find('}').map(|end| &rest[2..end]).filter(|name| is_name(name));
            match name.map(|name| (name, self.0.get(name))) {
                Some((name, Some(value))) => {
                    out.push_str(value);
                    rest = &rest[name.len() + 3..];
                }
                Some((name, None)) if strict => {
                    let known: Vec<_> = self.0.keys().map(String::as_str).collect();
                    bail!("no such placeholder ${{{name}}}; there are {}", known.join(", "));
                }
                _ => {
                    out.push_str("${");
                    rest = &rest[2..];
                }
            }
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// Upper case up to the first dot; what follows names an upstream.
fn is_name(text: &str) -> bool {
    let (head, tail) = text.split_once('.').unwrap_or((text, "x"));
    let upper = |c: char| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit();
    head.starts_with(|c: char| c.is_ascii_uppercase())
        && head.chars().all(upper)
        && !tail.is_empty()
        && tail.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::Names;
    use serde_json::json;

    #[test]
    fn known_names_are_filled_and_others_left_or_refused() {
        let mut names = Names::default();
        names.set("UPSTREAM.a", "127.0.0.1:80");
        names.set("PORT", 80);
        assert_eq!(
            names.fill("x ${UPSTREAM.a} ${{VAR}} $uri ${arg_x}").expect("ok"),
            "x 127.0.0.1:80 ${{VAR}} $uri ${arg_x}"
        );
        assert!(names.fill("${NOPE}").is_err());
        assert_eq!(names.fill_shell("${NOPE} ${PORT}").expect("ok"), "${NOPE} 80");
        let value = json!({"${UPSTREAM.a}": 1, "port": "${PORT}", "text": "${PORT}/"});
        assert_eq!(
            names.fill_value(&value).expect("ok"),
            json!({"127.0.0.1:80": 1, "port": 80, "text": "80/"})
        );
    }
}
