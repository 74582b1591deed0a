//! Lists of header changes, as proxy-rewrite and response-rewrite take them:
//! either a plain map, which sets, or `add`, `set` and `remove`.

use model::Invalid;
use sdk::template::Template;
use sdk::{Exchange, FieldLines, HeaderName};
use serde_json::{Map, Value, json};

/// The kind of edit of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Set,
    Remove,
}

/// One change, in the order it is made: additions, then settings, then removals, as in APISIX.
#[derive(Debug)]
pub(crate) struct Edit {
    pub verb: Verb,
    pub name: HeaderName,
    /// Values with variables in them; several set the header several times. Empty for removals.
    pub values: Vec<Template>,
    /// The whole line, of a setting of one value without variables.
    pub line: Option<Box<FieldLines>>,
}

/// Reads a `headers` setting.
pub(crate) fn read(headers: &Value) -> Result<Vec<Edit>, Invalid> {
    let Value::Object(map) = headers else { return Ok(Vec::new()) };
    let mut edits = Vec::new();
    if !is_verbose(map) {
        of_map(Verb::Set, map, &mut edits)?;
        edits.shrink_to_fit();
        return Ok(edits);
    }
    match map.get("add") {
        Some(Value::Object(add)) => {
            of_map(Verb::Add, add, &mut edits).map_err(|error| error.under("/add"))?
        }
        Some(Value::Array(lines)) => {
            for (index, line) in lines.iter().enumerate() {
                let invalid = || {
                    Invalid::new("invalid header line").within(index).under("/add").expected("`Name: value`")
                };
                let (name, value) =
                    line.as_str().and_then(|line| line.split_once(':')).ok_or_else(invalid)?;
                push(Verb::Add, name.trim(), &json!(value.trim()), &mut edits)?;
            }
        }
        _ => {}
    }
    if let Some(Value::Object(set)) = map.get("set") {
        of_map(Verb::Set, set, &mut edits).map_err(|error| error.under("/set"))?;
    }
    for name in map.get("remove").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        edits.push(Edit { verb: Verb::Remove, name: header_name(name)?, values: Vec::new(), line: None });
    }
    edits.shrink_to_fit();
    Ok(edits)
}

/// The schema of a plain map, as fault-injection and mocking have it.
pub(crate) fn plain_schema() -> Value {
    json!({
        "type": "object",
        "minProperties": 1,
        "patternProperties": {"^[^:]+$": {"oneOf": [{"type": "string"}, {"type": "number"}]}},
    })
}

/// Reads a plain map; names such as `set` have no meaning in it.
pub(crate) fn plain(verb: Verb, map: &Map<String, Value>) -> Result<Vec<Edit>, Invalid> {
    let mut edits = Vec::new();
    of_map(verb, map, &mut edits)?;
    Ok(edits)
}

/// Makes the changes on the response, or on the one to come.
pub(crate) fn on_response(edits: &[Edit], x: &mut Exchange<'_>) {
    let mut value = Vec::new();
    for edit in edits {
        if let Some(line) = &edit.line {
            x.set_response_lines(line);
            continue;
        }
        if edit.verb == Verb::Remove {
            x.remove_response_header(&edit.name);
            continue;
        }
        for template in &edit.values {
            let value = rendered(template, x, &[], &mut value);
            // As in nginx, an empty value means no value.
            if value.is_empty() {
                if edit.verb == Verb::Set {
                    x.remove_response_header(&edit.name);
                }
                continue;
            }
            let done = match edit.verb {
                Verb::Set => x.set_response_header(&edit.name, value),
                _ => x.add_response_header(&edit.name, value),
            };
            // A value that a variable made unfit for a head is never sent, and what was there
            // before does not stand in for it.
            if done.is_err() && edit.verb == Verb::Set {
                x.remove_response_header(&edit.name);
                break;
            }
        }
    }
}

/// A value with its variables filled in. One without variables is not copied.
#[inline]
pub(crate) fn rendered<'v>(
    template: &'v Template,
    x: &Exchange<'_>,
    captures: &[Vec<u8>],
    room: &'v mut Vec<u8>,
) -> &'v [u8] {
    if let Some(text) = template.constant() {
        return text.as_bytes();
    }
    room.clear();
    template.render_with_captures(x, captures, room);
    room
}

/// `add`, `set` or `remove` with a table under it; a plain map has texts there.
fn is_verbose(map: &Map<String, Value>) -> bool {
    ["add", "set", "remove"]
        .iter()
        .any(|verb| matches!(map.get(*verb), Some(Value::Object(_) | Value::Array(_))))
}

fn of_map(verb: Verb, map: &Map<String, Value>, edits: &mut Vec<Edit>) -> Result<(), Invalid> {
    map.iter().try_for_each(|(name, value)| push(verb, name, value, edits))
}

fn push(verb: Verb, name: &str, value: &Value, edits: &mut Vec<Edit>) -> Result<(), Invalid> {
    let header = header_name(name)?;
    let values = match value {
        Value::Array(values) => values.iter().map(|value| text(name, value)).collect::<Result<_, _>>()?,
        value => vec![text(name, value)?],
    };
    let line = match (verb, &*values) {
        (Verb::Set, [value]) => value.constant().filter(|value| !value.is_empty()),
        _ => None,
    };
    // A text that cannot stand in a head was rejected above.
    let line =
        line.and_then(|value| FieldLines::new([(name.as_bytes(), value.as_bytes())]).ok()).map(Box::new);
    edits.push(Edit { verb, name: header, values, line });
    Ok(())
}

fn header_name(name: &str) -> Result<HeaderName, Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("invalid field length in header"));
    }
    HeaderName::new(name)
        .map_err(|_| Invalid::new("invalid field character in header").within(name).expected("a token"))
}

fn text(name: &str, value: &Value) -> Result<Template, Invalid> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Err(Invalid::new("invalid type as header value").within(name)),
    };
    if text.bytes().any(|byte| byte < 0x20 && byte != b'\t' || byte == 0x7f) {
        return Err(Invalid::new("invalid value character in header").within(name));
    }
    Ok(Template::parse(&text))
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    fn list(headers: Value) -> Vec<(Verb, String, usize)> {
        read(&headers)
            .unwrap()
            .into_iter()
            .map(|edit| (edit.verb, edit.name.as_str().to_owned(), edit.values.len()))
            .collect()
    }

    #[test]
    fn both_forms_are_read() {
        assert_eq!(list(json!({"X-A": "1", "set": "2"})).len(), 2, "a header may be called set");
        assert_eq!(
            list(json!({"remove": ["X-C"], "set": {"X-B": ["1", 2]}, "add": {"X-A": "$host"}})),
            [(Verb::Add, "X-A".into(), 1), (Verb::Set, "X-B".into(), 2), (Verb::Remove, "X-C".into(), 0)]
        );
        assert_eq!(
            list(json!({"add": ["Set-Cookie: a=b; Max-Age=1"]})),
            [(Verb::Add, "Set-Cookie".into(), 1)]
        );
    }

    /// The response's `X-A` after the changes, `X-A: old` before them.
    fn changed(headers: Value) -> Vec<String> {
        let mut probe = Probe::get("/?torn=a%0d%0ab");
        let mut x = probe.exchange();
        respond(&mut x, 200, &[("X-A", "old")]);
        on_response(&read(&headers).unwrap(), &mut x);
        let all = x.response().fields.all(b"X-A");
        all.map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_value_that_cannot_be_sent_leaves_nothing_behind() {
        assert_eq!(changed(json!({"set": {"X-A": "new"}})), ["new"]);
        assert_eq!(changed(json!({"add": {"X-A": "new"}})), ["old", "new"]);
        assert_eq!(changed(json!({"remove": ["x-a"]})), [""; 0]);
        // Nothing, as nginx has it: a header that is set to it is gone, one that is added is not there.
        assert_eq!(changed(json!({"set": {"X-A": "$arg_none"}})), [""; 0]);
        assert_eq!(changed(json!({"add": {"X-A": "$arg_none"}})), ["old"]);
        assert_eq!(changed(json!({"set": {"X-A": "$arg_torn"}})), [""; 0]);
        assert_eq!(changed(json!({"add": {"X-A": "$arg_torn"}})), ["old"]);
        assert_eq!(changed(json!({"add": {"X-A": ["$arg_torn", "new"]}})), ["old", "new"]);
    }

    #[test]
    fn what_cannot_stand_in_a_head_is_refused() {
        for bad in
            [json!({"X A": "1"}), json!({"": "1"}), json!({"X-A": "1\r\nX-B: 2"}), json!({"X-A": true})]
        {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }
}
