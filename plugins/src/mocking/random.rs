//! Random data in the shape that a JSON schema describes, as APISIX's mocking makes them.

use std::fmt::Write;

use serde_json::Value;

use crate::lua::write_number;

/// Values made for one answer at most: lists in lists grow with each level.
const MOST_VALUES: usize = 10_000;

/// The parts of a schema that matter here.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Object(Vec<(String, Shape)>),
    /// One to three of these.
    List(Box<Shape>),
    /// The example, or one to ten letters.
    Text(Option<String>),
    /// The example, or a number below ten thousand.
    Number(Option<f64>),
    /// The example, or a whole number up to ten thousand.
    Integer(Option<f64>),
    Bool(Option<bool>),
    /// No value: a list without `items`, or an unknown type.
    Nothing,
}

/// A value made from a shape, before it becomes a text.
#[derive(Debug, Clone, PartialEq)]
enum Made<'s> {
    Object(Vec<(&'s str, Made<'s>)>),
    List(Vec<Made<'s>>),
    Text(String),
    Number(f64),
    Bool(bool),
}

impl Shape {
    /// The shape of an answer: an object, even if the schema has another type.
    pub(super) fn of_object(schema: &Value) -> Shape {
        let properties = schema.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten();
        Shape::Object(fields.map(|(name, schema)| (name.clone(), Shape::of(schema))).collect())
    }

    fn of(schema: &Value) -> Shape {
        let example = schema.get("example");
        let number = example.and_then(Value::as_f64);
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        match kind.to_ascii_lowercase().as_str() {
            "array" => match schema.get("items") {
                Some(items) => Shape::List(Box::new(Shape::of(items))),
                None => Shape::Nothing,
            },
            "object" => Shape::of_object(schema),
            "string" => Shape::Text(example.and_then(Value::as_str).map(str::to_owned)),
            "number" => Shape::Number(number),
            "integer" => Shape::Integer(number.map(f64::floor)),
            "boolean" => Shape::Bool(example.and_then(Value::as_bool)),
            _ => Shape::Nothing,
        }
    }

    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        if let Some(made) = self.make(&mut MOST_VALUES.clone()) {
            made.write_json(&mut out);
        }
        out
    }

    /// XML in the form of the Lua library `xml2lua`, which does not escape anything.
    pub(super) fn xml(&self, name: &str) -> String {
        let mut out = format!("<{name}>\n");
        if let Some(Made::Object(fields)) = self.make(&mut MOST_VALUES.clone()) {
            let lines = of_object(&fields, 1);
            if !lines.is_empty() {
                let _ = writeln!(out, "{lines}");
            }
        }
        let _ = writeln!(out, "</{name}>");
        out
    }

    fn make<'s>(&'s self, left: &mut usize) -> Option<Made<'s>> {
        *left = left.checked_sub(1)?;
        Some(match self {
            Shape::Object(fields) => {
                let made = fields.iter().filter_map(|(name, shape)| Some((name.as_str(), shape.make(left)?)));
                Made::Object(made.collect())
            }
            Shape::List(items) => {
                let made: Vec<_> = (0..fastrand::u8(1..=3)).filter_map(|_| items.make(left)).collect();
                // To Lua, an empty list is an empty object.
                if made.is_empty() { Made::Object(Vec::new()) } else { Made::List(made) }
            }
            Shape::Text(example) => Made::Text(match example {
                Some(example) => example.clone(),
                None => (0..fastrand::u8(1..=10)).map(|_| fastrand::lowercase()).collect(),
            }),
            Shape::Number(example) => Made::Number(example.unwrap_or_else(|| fastrand::f64() * 10_000.0)),
            Shape::Integer(example) => {
                Made::Number(example.unwrap_or_else(|| f64::from(fastrand::u16(1..=10_000))))
            }
            Shape::Bool(example) => Made::Bool(example.unwrap_or_else(fastrand::bool)),
            Shape::Nothing => return None,
        })
    }
}

impl Made<'_> {
    fn write_json(&self, out: &mut String) {
        match self {
            Made::Object(fields) => {
                out.push('{');
                for (index, (name, made)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    // As a JSON text.
                    let _ = write!(out, "{}:", Value::from(*name));
                    made.write_json(out);
                }
                out.push('}');
            }
            Made::List(items) => {
                out.push('[');
                for (index, made) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    made.write_json(out);
                }
                out.push(']');
            }
            Made::Text(text) => _ = write!(out, "{}", Value::from(text.as_str())),
            Made::Number(number) => write_number(*number, out),
            Made::Bool(truth) => _ = write!(out, "{truth}"),
        }
    }

    fn write_text(&self, out: &mut String) {
        match self {
            Made::Text(text) => out.push_str(text),
            Made::Number(number) => write_number(*number, out),
            Made::Bool(truth) => _ = write!(out, "{truth}"),
            Made::Object(_) | Made::List(_) => {}
        }
    }
}

/// The lines of an object's fields. The library counts a level for every field that is not a plain
/// value, and so do the ones behind it.
fn of_object(fields: &[(&str, Made<'_>)], mut level: usize) -> String {
    let spaces = "  ".repeat(level);
    let mut lines = Vec::new();
    for (name, made) in fields.iter().filter(|(name, made)| !is_attributes(name, made)) {
        match made {
            Made::Object(inner) => {
                level += 1;
                lines.push(nested(&spaces, name, inner, level + 1));
            }
            Made::List(items) => {
                level += 1;
                lines.push(of_list(name, items, level));
            }
            plain => lines.push(tagged(&spaces, name, plain)),
        }
    }
    lines.join("\n")
}

/// The lines of a list: each element in a tag of the list's name.
fn of_list(name: &str, items: &[Made<'_>], level: usize) -> String {
    let spaces = "  ".repeat(level);
    let line = |made: &Made<'_>| match made {
        Made::Object(inner) => nested(&spaces, name, inner, level + 1),
        Made::List(items) => {
            format!("{spaces}<{name}>\n{}\n{spaces}</{name}>", of_list(name, items, level + 1))
        }
        plain => tagged(&spaces, name, plain),
    };
    items.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn tagged(spaces: &str, name: &str, made: &Made<'_>) -> String {
    let mut line = format!("{spaces}<{name}>");
    made.write_text(&mut line);
    let _ = write!(line, "</{name}>");
    line
}

fn nested(spaces: &str, name: &str, fields: &[(&str, Made<'_>)], level: usize) -> String {
    let mut attributes = String::new();
    for (name, made) in fields {
        let Made::Object(list) = made else { continue };
        for (attribute, made) in list.iter().filter(|_| is_attributes(name, made)) {
            let _ = write!(attributes, " {attribute}=\"");
            made.write_text(&mut attributes);
            attributes.push('"');
        }
    }
    format!("{spaces}<{name}{attributes}>\n{}\n{spaces}</{name}>", of_object(fields, level))
}

/// The field `_attr` of an object holds the attributes of its tag.
fn is_attributes(name: &str, made: &Made<'_>) -> bool {
    name == "_attr" && matches!(made, Made::Object(_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape(properties: Value) -> Shape {
        Shape::of_object(&json!({"type": "object", "properties": properties}))
    }

    #[test]
    fn examples_stand_as_they_are() {
        let shape = shape(json!({
            "text": {"type": "string", "example": "a \"b\""},
            "number": {"type": "Number", "example": 5.5},
            "whole": {"type": "integer", "example": 4.7},
            "truth": {"type": "boolean", "example": true},
            "object": {"type": "object", "properties": {"in": {"type": "integer", "example": 1}}},
            "empty": {"type": "object"},
            "list": {"type": "array"},
            "none": {"type": "null"},
            "untyped": {},
        }));
        let expected =
            r#"{"text":"a \"b\"","number":5.5,"whole":4,"truth":true,"object":{"in":1},"empty":{}}"#;
        assert_eq!(shape.json(), expected);
        assert_eq!(Shape::of_object(&json!({})).json(), "{}");
    }

    #[test]
    fn what_has_no_example_is_random_within_its_type() {
        let shape = shape(json!({
            "text": {"type": "string", "example": 7},
            "number": {"type": "number"},
            "whole": {"type": "integer", "example": "7"},
            "truth": {"type": "boolean"},
            "list": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        }));
        let (mut seen, mut greatest) = (std::collections::HashSet::new(), 0.0_f64);
        for _ in 0..200 {
            let text = shape.json();
            let made: Value = serde_json::from_str(&text).unwrap();
            let letters = made["text"].as_str().unwrap();
            assert!((1..=10).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_lowercase()));
            let number = made["number"].as_f64().unwrap();
            assert!((0.0..10_000.0).contains(&number));
            greatest = greatest.max(number);
            assert!((1..=10_000).contains(&made["whole"].as_u64().unwrap()));
            assert!(made["truth"].is_boolean());
            let list = made["list"].as_array().unwrap();
            assert!((1..=3).contains(&list.len()) && list.iter().all(|inner| inner[0].is_string()));
            seen.insert(text);
        }
        assert!(seen.len() > 100 && greatest > 1000.0);
    }

    #[test]
    fn xml_has_the_librarys_form() {
        let shape = shape(json!({
            "a": {"type": "string", "example": "x"},
            "b": {"type": "object", "properties": {
                "_attr": {"type": "object", "properties": {"id": {"type": "integer", "example": 3}}},
                "c": {"type": "number", "example": 0.5},
            }},
            "d": {"type": "object"},
        }));
        let expected =
            "<data>\n  <a>x</a>\n  <b id=\"3\">\n      <c>0.5</c>\n  </b>\n  <d>\n\n  </d>\n</data>\n";
        assert_eq!(shape.xml("data"), expected);
        assert_eq!(Shape::of_object(&json!({})).xml("data"), "<data>\n</data>\n");
        let list = Shape::of_object(
            &json!({"properties": {"l": {"type": "array", "items": {"type": "integer", "example": 1}}}}),
        );
        let text = list.xml("data");
        let inside = text.strip_prefix("<data>\n").unwrap().strip_suffix("</data>\n").unwrap();
        assert!(inside.lines().all(|line| line == "    <l>1</l>"), "{text}");
    }

    /// Lists hold one to three elements, each at its own depth.
    #[test]
    fn lists_in_xml_stand_in_tags_of_their_name() {
        let of = |items: Value| shape(json!({"l": {"type": "array", "items": items}})).xml("data");
        let one = json!({"type": "integer", "example": 1});
        let objects = of(json!({"type": "object", "properties": {"o": one}}));
        assert!(objects.contains("    <l>\n      <o>1</o>\n    </l>"), "{objects}");
        let lists = of(json!({"type": "array", "items": one}));
        assert!(lists.contains("    <l>\n      <l>1</l>"), "{lists}");
    }

    #[test]
    fn an_answer_stays_bounded() {
        let mut schema = json!({"type": "string", "example": "x"});
        for _ in 0..60 {
            schema = json!({"type": "array", "items": schema});
        }
        let text = shape(json!({ "a": schema })).json();
        assert!(text.len() < 8 * MOST_VALUES);
    }
}
