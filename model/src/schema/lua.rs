//! Values as Lua prints and compares them.

use serde_json::{Number, Value};

/// Returns the result of Lua's `type()` for a decoded JSON value.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "userdata",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) | Value::Object(_) => "table",
    }
}

/// Returns the type of a value as JSON names it.
pub fn json_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Lua 5.1's `%q`: in double quotes, with quote, backslash, newline, return and NUL escaped.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' | '\n' => {
                out.push('\\');
                out.push(c);
            }
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\000"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A number as `tostring` prints it: C's `%.14g`.
pub fn number(number: &Number) -> String {
    general(number.as_f64().unwrap_or(f64::NAN))
}

/// C's `%.14g`.
pub fn general(number: f64) -> String {
    const DIGITS: i32 = 14;
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 { "0".to_owned() } else { number.to_string() };
    }
    let scientific = format!("{:.*e}", (DIGITS - 1) as usize, number);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..DIGITS).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    trimmed(&format!("{:.*}", (DIGITS - 1 - exponent).max(0) as usize, number)).to_owned()
}

fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// Whether two values are equal to Lua: `1` is `1.0`, `{}` is `[]`.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        (Value::Array(a), Value::Object(b)) => a.is_empty() && b.is_empty(),
        (Value::Object(a), Value::Array(b)) => a.is_empty() && b.is_empty(),
        (a, b) => a == b,
    }
}

/// A text that two values share exactly if [`equal`] holds, to find twins in
/// one pass: comparing each pair would let a long list hold the control plane up.
pub fn fingerprint(value: &Value, out: &mut String) {
    use std::fmt::Write;
    match value {
        Value::Null => out.push('n'),
        Value::Bool(b) => out.push(if *b { 't' } else { 'f' }),
        Value::Number(n) => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}", n.as_f64().unwrap_or(f64::NAN) + 0.0);
        }
        Value::String(s) => {
            let _ = write!(out, "{}\"{s}", s.len());
        }
        Value::Array(items) if items.is_empty() => out.push_str("{}"),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                fingerprint(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            let mut names: Vec<&String> = map.keys().collect();
            names.sort_unstable();
            for name in names {
                let _ = write!(out, "{}\"{name}", name.len());
                fingerprint(&map[name], out);
                out.push(',');
            }
            out.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_print_as_c_prints_them() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (-1.0, "-1"),
            (0.5, "0.5"),
            (1.13, "1.13"),
            (2_000_000_000_000.0, "2000000000000"),
            (99_999_999_999_999.0, "99999999999999"),
            (1e14, "1e+14"),
            (1e20, "1e+20"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1.0 / 3.0, "0.33333333333333"),
        ] {
            assert_eq!(general(number), text);
        }
    }

    #[test]
    fn quoting_escapes_what_lua_escapes() {
        assert_eq!(quoted("a\"b\\c\nd\re\0f"), "\"a\\\"b\\\\c\\\nd\\re\\000f\"");
    }

    #[test]
    fn fingerprints_agree_with_equality() {
        let values = [
            json!(1),
            json!(1.0),
            json!("1"),
            json!([]),
            json!({}),
            json!([1]),
            json!(["1"]),
            json!({"a": 1, "b": [2]}),
            json!({"b": [2.0], "a": 1}),
            json!(null),
            json!(true),
        ];
        for a in &values {
            for b in &values {
                let (mut x, mut y) = (String::new(), String::new());
                fingerprint(a, &mut x);
                fingerprint(b, &mut y);
                assert_eq!(x == y, equal(a, b), "{a} {b}");
            }
        }
    }
}
