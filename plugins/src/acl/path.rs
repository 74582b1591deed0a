//! Paths into JSON: the part of JSONPath (RFC 9535) that names members and items.

use serde_json::Value;

/// Parts that a path may have, and values that it may find.
const PARTS: usize = 32;
const FOUND: usize = 1024;

/// A parsed path.
#[derive(Debug, PartialEq)]
pub(super) struct Path(Vec<Part>);

#[derive(Debug, PartialEq)]
enum Part {
    Member(String),
    Item(usize),
    All,
    /// A member at any depth.
    Deep(String),
}

impl Path {
    /// Parses `$.a.b`, `a.b`, `$..a`, `$.a[0]`, `$.a[*]`, `$.a.*` and `$['a']`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Path, &'static str> {
        const FORM: &str = "it must be a JSONPath of names, [number], [*], ['name'] and ..name";
        let mut parts = Vec::new();
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        // A name may come first without a dot.
        let mut is_first = !text.starts_with('$');
        while !rest.is_empty() {
            if parts.len() >= PARTS {
                return Err("it has too many parts");
            }
            if let Some(inner) = rest.strip_prefix('[') {
                let (inside, after) = inner.split_once(']').ok_or(FORM)?;
                let quoted = |mark: char| inside.strip_prefix(mark).and_then(|text| text.strip_suffix(mark));
                parts.push(match (inside, quoted('\'').or(quoted('"'))) {
                    ("*", _) => Part::All,
                    (_, Some(name)) => Part::Member(name.to_owned()),
                    (digits, None) => Part::Item(digits.parse().map_err(|_| FORM)?),
                });
                rest = after;
            } else {
                let deep = rest.starts_with("..");
                let dots = if deep { 2 } else { usize::from(rest.starts_with('.')) };
                if dots == 0 && !is_first {
                    return Err(FORM);
                }
                let inner = &rest[dots..];
                let (name, after) = inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()));
                let is_name = |c: char| c.is_alphanumeric() || "_-:@/".contains(c);
                parts.push(match name {
                    "*" if !deep => Part::All,
                    name if name.is_empty() || !name.chars().all(is_name) => return Err(FORM),
                    name if deep => Part::Deep(name.to_owned()),
                    name => Part::Member(name.to_owned()),
                });
                rest = after;
            }
            is_first = false;
        }
        Ok(Path(parts))
    }

    /// The values that the path leads to, in their order.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for part in &self.0 {
            let mut next = Vec::new();
            for value in found {
                match part {
                    Part::Member(name) => next.extend(value.get(name)),
                    Part::Item(index) => next.extend(value.get(index)),
                    Part::All => match value {
                        Value::Array(items) => next.extend(items),
                        Value::Object(members) => next.extend(members.values()),
                        _ => {}
                    },
                    Part::Deep(name) => deep(value, name, &mut next),
                }
            }
            next.truncate(FOUND);
            found = next;
        }
        found
    }
}

/// Adds the members of this name at any depth. Parsed JSON is nested to a bounded depth.
fn deep<'v>(value: &'v Value, name: &str, found: &mut Vec<&'v Value>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get(name));
            members.values().for_each(|value| deep(value, name, found));
        }
        Value::Array(items) => items.iter().for_each(|value| deep(value, name, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_values() {
        let value = json!({"a": {"b": [1, {"c": 2}]}, "c": 3, "x y": 4});
        let found = |path: &str| {
            let path = Path::parse(path).unwrap();
            path.find(&value).iter().filter_map(|value| value.as_i64()).collect::<Vec<_>>()
        };
        assert_eq!(found("c"), [3]);
        assert_eq!(found("$.a.b[0]"), [1]);
        assert_eq!(found("a['b'][1].c"), [2]);
        assert_eq!(found("$..c"), [3, 2]);
        assert_eq!(found("$[\"x y\"]"), [4]);
        assert_eq!(found("$.a.b[*]"), [1]);
        assert_eq!(found("$.*"), [3, 4]);
        assert_eq!([found("$.a.c"), found("$.c.d"), found("$.a.b[9]")], [[0i64; 0]; 3]);
        for wrong in [
            "$.",
            "$a",
            "a[",
            "a[b]",
            "a[-1]",
            "$..",
            "a b",
            "$...a",
            "$[?(@.a)]",
            &"a".repeat(3).replace('a', ".a.a.a.a.a.a.a.a.a.a.a.a"),
        ] {
            assert!(Path::parse(wrong).is_err(), "{wrong}");
        }
    }
}
