//! Comparing what came with what a case expects, in words a reader can act on.

use crate::case::Expect;
use crate::client::Answer;
use crate::fill::Names;
use crate::http::values;
use anyhow::{Result, bail, ensure};
use indexmap::IndexMap;
use regex::Regex;
use serde_json::Value;

/// How much of a body a report shows.
const SHOWN: usize = 600;

/// Everything asked of one answer.
pub fn answer(expect: &Expect, names: &Names, answer: &Answer) -> Result<()> {
    let message = &answer.message;
    let shown = || format!("\n      answer: {}\n      body: {}", message.line, shorten(&message.body));
    if let Some(status) = &expect.status {
        ensure!(
            status.all().contains(&message.status()),
            "status: expected {:?}, got {}{}",
            status.all(),
            message.status(),
            shown()
        );
    }
    if let Some(interim) = &expect.interim {
        ensure!(
            *interim == message.interim,
            "interim answers: expected {interim:?}, got {:?}",
            message.interim
        );
    }
    fields("header", &expect.headers, names, &message.headers).map_err(|error| error.context(shown()))?;
    fields("trailer", &expect.trailers, names, &message.trailers)?;
    body(expect, names, &message.body).map_err(|error| error.context(format!("answer: {}", message.line)))?;
    match expect.truncated {
        Some(truncated) => {
            ensure!(truncated != message.complete, "truncated: expected {truncated}{}", shown())
        }
        None => ensure!(message.complete, "the answer breaks off{}", shown()),
    }
    if let (Some(expected), Some(got)) = (expect.closed, answer.closed) {
        ensure!(expected == got, "closed: expected {expected}, got {got}{}", shown());
    }
    if let Some(least) = expect.at_least {
        ensure!(answer.elapsed >= least, "took {:?}, expected at least {least:?}", answer.elapsed);
    }
    if let Some(most) = expect.at_most {
        ensure!(answer.elapsed <= most, "took {:?}, expected at most {most:?}", answer.elapsed);
    }
    Ok(())
}

/// Everything asked of a body or an output.
pub fn body(expect: &Expect, names: &Names, body: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(body);
    if let Some(wanted) = &expect.body {
        let wanted = names.fill(wanted)?;
        ensure!(text == wanted, "body: expected {wanted:?}\n      got {}", shorten(body));
    }
    for wanted in expect.body_contains.iter().flat_map(|many| many.all()) {
        let wanted = names.fill(wanted)?;
        ensure!(
            text.contains(&wanted),
            "body: expected it to contain {wanted:?}\n      got {}",
            shorten(body)
        );
    }
    for unwanted in expect.body_lacks.iter().flat_map(|many| many.all()) {
        let unwanted = names.fill(unwanted)?;
        ensure!(
            !text.contains(&unwanted),
            "body: expected it not to contain {unwanted:?}\n      got {}",
            shorten(body)
        );
    }
    if let Some(pattern) = &expect.body_matches {
        let regex = Regex::new(&names.fill(pattern)?)?;
        ensure!(regex.is_match(&text), "body: expected a match of {pattern:?}\n      got {}", shorten(body));
    }
    if let Some(size) = expect.body_size {
        ensure!(body.len() == size, "body: expected {size} bytes, got {}", body.len());
    }
    if let Some(wanted) = &expect.json {
        let got: Value = serde_json::from_slice(body)
            .map_err(|error| anyhow::anyhow!("body: not JSON ({error}): {}", shorten(body)))?;
        if let Err(difference) = json("", &names.fill_value(wanted)?, &got) {
            bail!("JSON {difference}\n      got {}", shorten(body));
        }
    }
    Ok(())
}

/// Each expected field against what came: a text (the one value), null
/// (absent), a list (all values in order), or `{matches, contains, lacks}`.
pub fn fields(
    kind: &str,
    wanted: &IndexMap<String, Value>,
    names: &Names,
    got: &[(String, String)],
) -> Result<()> {
    for (name, wanted) in wanted {
        let found: Vec<&str> = values(got, name).collect();
        let wanted = names.fill_value(wanted)?;
        let fits = match &wanted {
            Value::Null => found.is_empty(),
            Value::Array(list) => list.iter().map(plain).eq(found.iter().map(|value| (*value).to_owned())),
            Value::Object(map) => !found.is_empty() && object(map, &found.join(", "))?,
            value => found == [plain(value)],
        };
        ensure!(fits, "{kind} {name}: expected {wanted}, got {found:?}");
    }
    Ok(())
}

fn object(map: &serde_json::Map<String, Value>, got: &str) -> Result<bool> {
    for (test, value) in map {
        let value = plain(value);
        let fits = match test.as_str() {
            "matches" => Regex::new(&value)?.is_match(got),
            "contains" => got.contains(&value),
            "lacks" => !got.contains(&value),
            "at_least" => {
                got.parse::<f64>().is_ok_and(|number| value.parse::<f64>().is_ok_and(|least| number >= least))
            }
            "at_most" => {
                got.parse::<f64>().is_ok_and(|number| value.parse::<f64>().is_ok_and(|most| number <= most))
            }
            other => bail!("no such test of a field: {other}"),
        };
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A value as a field would carry it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Objects by subset, lists by length and element, `~ REGEX` by match,
/// `<any>`, `<number>`, `<string>` by kind, `<absent>` by absence.
fn json(path: &str, wanted: &Value, got: &Value) -> Result<(), String> {
    let place = if path.is_empty() { "/" } else { path };
    let differs = || Err(format!("{place}: expected {wanted}, got {got}"));
    match (wanted, got) {
        (Value::Object(map), Value::Object(other)) => {
            for (name, value) in map {
                match (value.as_str(), other.get(name)) {
                    (Some("<absent>"), None) => {}
                    (Some("<absent>"), Some(there)) => {
                        return Err(format!("{place}/{name}: expected nothing, got {there}"));
                    }
                    (_, None) => return Err(format!("{place}/{name}: expected {value}, got nothing")),
                    (_, Some(there)) => json(&format!("{path}/{name}"), value, there)?,
                }
            }
            Ok(())
        }
        (Value::Array(list), Value::Array(other)) if list.len() == other.len() => list
            .iter()
            .zip(other)
            .enumerate()
            .try_for_each(|(index, (wanted, got))| json(&format!("{path}/{index}"), wanted, got)),
        (Value::String(test), _) if test == "<any>" => Ok(()),
        (Value::String(test), Value::Number(_)) if test == "<number>" => Ok(()),
        (Value::String(test), Value::String(_)) if test == "<string>" => Ok(()),
        (Value::String(test), Value::String(text)) if test.starts_with("~ ") => {
            let regex = Regex::new(&test[2..]).map_err(|error| error.to_string())?;
            if regex.is_match(text) { Ok(()) } else { differs() }
        }
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => Ok(()),
        _ if wanted == got => Ok(()),
        _ => differs(),
    }
}

pub fn shorten(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).into_owned();
    if body.len() > SHOWN { format!("{text:?} … ({} bytes)", body.len()) } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::{fields, json};
    use crate::fill::Names;
    use serde_json::json as value;

    #[test]
    fn json_is_compared_by_subset() {
        let got = value!({"a": 1, "b": [{"c": "xyz"}], "d": null});
        for good in [
            value!({"a": 1}),
            value!({"b": [{"c": "~ ^x"}], "e": "<absent>"}),
            value!({"a": "<number>", "d": null}),
            value!({"a": 1.0}),
        ] {
            assert!(json("", &good, &got).is_ok(), "{good}");
        }
        for bad in [
            value!({"a": 2}),
            value!({"b": []}),
            value!({"a": "<absent>"}),
            value!({"f": null}),
            value!({"a": "1"}),
        ] {
            assert!(json("", &bad, &got).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_are_exact_absent_listed_or_matched() {
        let got = [
            ("X-A".to_owned(), "1".to_owned()),
            ("x-b".to_owned(), "2".to_owned()),
            ("X-B".to_owned(), "3".to_owned()),
        ];
        let holds = |wanted: serde_json::Value| {
            let wanted = serde_json::from_value(wanted).expect("a map");
            fields("header", &wanted, &Names::default(), &got).is_ok()
        };
        assert!(holds(value!({"x-a": "1", "X-B": ["2", "3"], "X-C": null})));
        assert!(holds(value!({"x-a": 1, "X-B": {"contains": "3", "matches": "^2"}})));
        assert!(!holds(value!({"x-b": "2"})));
        assert!(!holds(value!({"x-a": null})));
        assert!(!holds(value!({"x-c": {"lacks": "z"}})));
    }
}
