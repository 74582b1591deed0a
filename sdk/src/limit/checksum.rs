//! The checksum of a configuration, as APISIX has it in the keys of limits.
//!
//! CRC-32 of the configuration as `api7-dkjson` prints it: keys in order, an empty object as `[]`, numbers with up to 14
//! digits, and some characters escaped that need not be.

use std::fmt::Write;

use serde_json::Value;

/// Returns the checksum in decimal.
pub fn of(config: &Value) -> String {
    let mut text = String::new();
    value(config, &mut text);
    crc32(text.as_bytes()).to_string()
}

fn value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&shown(number.as_f64().unwrap_or_default())),
        Value::String(text) => quoted(text, out),
        Value::Array(all) => list('[', all, ']', out, self::value),
        Value::Object(map) if map.is_empty() => out.push_str("[]"),
        Value::Object(map) => {
            let mut pairs: Vec<(&String, &Value)> = map.iter().collect();
            pairs.sort_unstable_by_key(|(name, _)| *name);
            list('{', &pairs, '}', out, |(name, member), out| {
                quoted(name, out);
                out.push(':');
                self::value(member, out);
            });
        }
    }
}

fn list<T>(open: char, all: &[T], close: char, out: &mut String, mut print: impl FnMut(&T, &mut String)) {
    out.push(open);
    for (at, one) in all.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        print(one, out);
    }
    out.push(close);
}

/// A number in C's format `%.14g`.
fn shown(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{number:.13e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..14).contains(&exponent) {
        let decimals = usize::try_from(13 - exponent).unwrap_or_default();
        return trimmed(&format!("{number:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{600}'..='\u{604}'
            | '\u{70f}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{200c}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff0}'..='\u{ffff}' => {
                // Writing to a text cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Of ISO 3309, as `ngx.crc32_short`.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    });
    !crc
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The expected texts are those of `api7-dkjson` 0.1.1 under LuaJIT 2.1.
    #[test]
    fn configurations_are_printed_as_apisix_prints_them() {
        for (config, expected) in [
            (
                r#"{"b": 1, "a": [1, 2.5, {}], "_meta": {}, "B": true, "a-": false, "a_": [], "aa": {"z": 1, "y": [[]]}}"#,
                "{\"B\":true,\"_meta\":[],\"a\":[1,2.5,[]],\"a-\":false,\"a_\":[],\"aa\":{\"y\":[[]],\"z\":1},\"b\":1}",
            ),
            (
                r#"[0, 1, -1, 0.1, 1.5, 100, 99999999999999, 100000000000000, 1e15, 123456789012345678, 0.0001, 0.00001, 1e-7, 1.23456789012345678, 2147483648, -0.5, 1e300]"#,
                "[0,1,-1,0.1,1.5,100,99999999999999,1e+14,1e+15,1.2345678901235e+17,0.0001,1e-05,1e-07,1.2345678901235,2147483648,-0.5,1e+300]",
            ),
            (
                r#""/\"\\\b\f\n\r\t\u0000\u001f\u007f\u0080\u009f\u00a0\u00ad\u0600\u0604\u0605\u070f\u17b4\u17b5\u200b\u200c\u200f\u2027\u2028\u202f\u2060\u206f\ufeff\ufff0\uffff\ud83d\ude00 \u00e9""#,
                "\"/\\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u0080\\u009f\u{a0}\\u00ad\\u0600\\u0604\u{605}\\u070f\\u17b4\\u17b5\u{200b}\\u200c\\u200f\u{2027}\\u2028\\u202f\\u2060\\u206f\\ufeff\\ufff0\\uffff\u{1f600} \u{e9}\"",
            ),
        ] {
            let config: Value = serde_json::from_str(config).unwrap();
            let mut text = String::new();
            value(&config, &mut text);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn checksums_are_those_of_nginx() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(of(&json!({"_meta": {}})), "865428421");
    }
}
