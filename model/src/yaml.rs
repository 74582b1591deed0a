//! YAML with positions, and with variables replaced.
//!
//! The reading itself is serde-saphyr's: YAML 1.2 with the booleans of 1.1
//! (`on`, `yes`), since APISIX's files use them. Repeated keys are errors,
//! anchors and merge keys work within limits, a file holds one document.

mod hints;
mod replaced;

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

use crate::document::{Document, Lines, Lookup, Position, Spot, SyntaxError};
use crate::variables;
use replaced::Replaced;

/// How deep values may nest.
pub const MAX_DEPTH: usize = 64;

/// How `${{NAME}}` is replaced.
#[derive(Clone, Copy)]
pub enum Variables<'a> {
    /// Not at all.
    Keep,
    /// In the text before it is parsed, so that quotes decide the type, as in
    /// `apisix.yaml`. Lines that are comments are left alone.
    InText(Lookup<'a>),
    /// In strings and names after parsing; a string that becomes a number or a
    /// boolean is one, as in `config.yaml`.
    InValues(Lookup<'a>),
}

/// Reads a YAML text. An empty one is `null`.
///
/// # Errors
/// The first mistake, with its place in the text as given.
pub fn parse(text: &str, variables: Variables<'_>) -> Result<Document, SyntaxError> {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    match variables {
        Variables::Keep => read(text, None),
        Variables::InValues(lookup) => read(text, Some(lookup)),
        Variables::InText(lookup) => {
            let Some(replaced) = Replaced::new(text, lookup)? else { return read(text, None) };
            let mut document = read(&replaced.text, None).map_err(|mut error| {
                let fails = |text: &str| read(text, None).err().map(|error| error.position);
                if let Some(broken) = replaced.broken_by_line_breaks(error.position, fails) {
                    return broken;
                }
                error.position =
                    replaced.original(&Lines::new(&replaced.text), &Lines::new(text), error.position);
                error
            })?;
            let (from, to) = (Lines::new(&replaced.text), Lines::new(text));
            document.spots.each(&mut |position| *position = replaced.original(&from, &to, *position));
            Ok(document)
        }
    }
}

/// [`parse`] with variables in the text, without the places, which cost more than the values. `None` if it cannot
/// be parsed: [`parse`] returns the reason.
pub fn parse_values(text: &str, lookup: Lookup<'_>) -> Option<Value> {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let replaced = Replaced::new(text, lookup).ok()?;
    let text = replaced.as_ref().map_or(text, |replaced| &replaced.text);
    let Bare(value) = serde_saphyr::from_str_with_options(text, options(text)).ok()?;
    Some(value)
}

fn read(text: &str, variables: Option<Lookup<'_>>) -> Result<Document, SyntaxError> {
    let root: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options(text))
        .map_err(|error| hints::add(text, syntax_error(&error)))?;
    let (value, spots) = Builder { variables }.value(root, None)?;
    Ok(Document { value, spots })
}

fn options(text: &str) -> serde_saphyr::Options {
    // The limits keep hostile nesting and aliases small; size alone is the operator's choice.
    serde_saphyr::options! {
        emit_comments: false,
        leading_zero_numbers_as_strings: true,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_events: 100_000_000,
            max_nodes: 100_000_000,
            // One anchor may be used by all resources of a file: what that makes is bounded below.
            enforce_alias_anchor_ratio: false,
            max_total_scalar_bytes: (1usize << 24).saturating_add(text.len().saturating_mul(4)),
        },
        // Aliases may expand a text to about the nodes that a text of that size can hold without them.
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 50_000 + text.len() / 8,
        },
    }
}

fn syntax_error(error: &serde_saphyr::Error) -> SyntaxError {
    let (mut message, mut place) = (error.without_snippet().to_string(), Position::START);
    if let Some(location) = error.location() {
        place = position(location);
        // The words repeat the place, which replaced variables would make a wrong one.
        let suffix = format!(" at line {}, column {}", place.line, place.column);
        message.truncate(message.strip_suffix(&suffix).unwrap_or(&message).len());
    }
    let hint = match error.without_snippet() {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            message = "a second document begins here, and a file holds one".to_owned();
            Some("remove the `---` and what follows".to_owned())
        }
        serde_saphyr::Error::DuplicateMappingKey { .. } => {
            message.truncate(message.find(", set ").unwrap_or(message.len()));
            Some("keep one of the two".to_owned())
        }
        _ => None,
    };
    SyntaxError { message, position: place, hint }
}

fn position(location: Location) -> Position {
    let at = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    Position { line: at(location.line()), column: at(location.column()) }
}

/// A YAML node before it is a value.
enum Tree {
    Plain(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Tree, D::Error> {
        from.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Tree, D::Error> {
        Tree::deserialize(from)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::from(value)))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number must be finite"))?;
        Ok(Tree::Plain(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::from(value)))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(member) = members.next_entry()? {
            map.push(member);
        }
        Ok(Tree::Map(map))
    }
}

/// A YAML node without its places.
struct Bare(Value);

impl<'de> Deserialize<'de> for Bare {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bare, D::Error> {
        from.deserialize_any(BareVisitor).map(Bare)
    }
}

struct BareVisitor;

impl<'de> Visitor<'de> for BareVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TreeVisitor.expecting(f)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Bare(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Bare(member))) = members.next_entry::<String, Bare>()? {
            map.insert(name, member);
        }
        Ok(Value::Object(map))
    }
}

struct Builder<'a> {
    variables: Option<Lookup<'a>>,
}

impl Builder<'_> {
    fn value(&self, node: Spanned<Tree>, key: Option<Position>) -> Result<(Value, Spot), SyntaxError> {
        let at = position(node.referenced);
        let mut spot = Spot { key, value: at, children: Vec::new() };
        let value = match node.value {
            Tree::Plain(Value::String(text)) => self.text(text, at, variables::typed)?,
            Tree::Plain(value) => value,
            Tree::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    let (value, child) = self.value(item, None)?;
                    list.push(value);
                    spot.children.push(child);
                }
                Value::Array(list)
            }
            Tree::Map(members) => {
                let mut map = Map::new();
                for (name, member) in members {
                    let key = position(name.referenced);
                    let name = match self.text(name.value, key, Value::String)? {
                        Value::String(name) => name,
                        other => other.to_string(),
                    };
                    // The parser refuses names that repeat; these two came to repeat by replacement.
                    if map.contains_key(&name) {
                        let message = format!("duplicate mapping key: {name}");
                        return Err(SyntaxError { message, position: key, hint: None });
                    }
                    let (value, child) = self.value(member, Some(key))?;
                    map.insert(name, value);
                    spot.children.push(child);
                }
                Value::Object(map)
            }
        };
        Ok((value, spot))
    }

    fn text(&self, text: String, at: Position, typed: fn(String) -> Value) -> Result<Value, SyntaxError> {
        let Some(lookup) = self.variables else { return Ok(Value::String(text)) };
        match variables::substitute(&text, lookup) {
            Ok(None) => Ok(Value::String(text)),
            Ok(Some(replaced)) => Ok(typed(replaced)),
            Err(missing) => Err(SyntaxError { message: missing.message, position: at, hint: missing.hint }),
        }
    }
}

impl Spot {
    /// Changes each position.
    fn each(&mut self, change: &mut impl FnMut(&mut Position)) {
        self.key.iter_mut().for_each(&mut *change);
        change(&mut self.value);
        for child in &mut self.children {
            child.each(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn aliases_make_little_more_of_a_text_than_it_holds() {
        // Of a list, of a list of lists, and of one long text.
        let list = |inner: &str, count: usize| format!("[{}]", vec![inner; count].join(","));
        let wide = format!("a: &a {}\nb: {}\n", list("1", 1000), list("*a", 1000));
        let deep = format!(
            "a: &a {}\nb: &b {}\nc: &c {}\nd: {}\n",
            list("1", 50),
            list("*a", 50),
            list("*b", 50),
            list("*c", 50)
        );
        let long = format!("a: &a {}\nb: {}\n", "x".repeat(1 << 20), list("*a", 100));
        for text in [wide, deep, long] {
            assert!(parse(&text, Variables::Keep).is_err(), "{}", &text[..40]);
        }
        // As files of resources use them.
        let plugins =
            "plugins: &p {cors: {}, key-auth: {header: a}, limit-count: {count: 1, time_window: 1}}\n";
        let used = format!("{plugins}routes:\n{}", "- {uri: /a, plugins: *p}\n".repeat(2000));
        let read =
            parse(&used, Variables::Keep).map(|document| document.value["routes"].as_array().map(Vec::len));
        assert_eq!(read.map_err(|error| error.message), Ok(Some(2000)));
    }

    #[test]
    fn line_breaks_of_a_variable_that_break_the_text_are_named() {
        let pem = "-----BEGIN X-----\nsecret+a\nsecret=\n-----END X-----\n";
        let lookup = |name: &str| match name {
            "PEM" | "KEY" => Some(pem.to_owned()),
            "DOS" => Some(pem.replace('\n', "\r\n")),
            "PORT" => Some("1980".to_owned()),
            "TWO" => Some("x: 1\ny: 2".to_owned()),
            _ => None,
        };
        for (text, broken) in [
            ("a:\n  - cert: ${{PEM}}\n    key: b\n", Some(("PEM", (2, 11)))),
            ("a:\n  - cert: ${{ DOS }}\n    key: b\n", Some(("DOS", (2, 11)))),
            ("a:\n  - cert: \"${{PEM}}\"\n    key: b\n", Some(("PEM", (2, 12)))),
            ("a:\n  - cert: |\n      ${{PEM}}\n", Some(("PEM", (3, 7)))),
            ("a:\n  - port: ${{PORT}}\n    cert: ${{PEM}}\n    key: ${{KEY}}\n", Some(("PEM", (3, 11)))),
            ("a:\n  - cert: '${{PEM:=x}}'\nb: [", Some(("PEM", (2, 12)))),
            // Other mistakes keep their words.
            ("${{TWO}}\nb: [\n", None),
            ("# ${{PEM}}\nb: ${{PORT}}: [\n", None),
            ("b: [\na: ${{PEM}}\n", None),
        ] {
            let error = parse(text, Variables::InText(&lookup)).unwrap_err();
            let message = broken.map(|(name, _)| {
                format!("the environment variable {name} has line breaks, which make the YAML invalid")
            });
            let names = error.message.contains("has line breaks");
            assert_eq!(names.then(|| error.message.clone()), message, "{text}: {error}");
            if let Some((name, place)) = broken {
                assert_eq!(<(u32, u32)>::from(error.position), place, "{text}");
                assert!(error.hint.unwrap().contains(&format!("\"$env://{name}\"")), "{text}");
            }
        }
    }

    fn lookup(name: &str) -> Option<String> {
        match name {
            "PORT" => Some("1980".to_owned()),
            "LONG" => Some("a-value-longer-than-its-name".to_owned()),
            "TWO" => Some("x: 1\ny: 2".to_owned()),
            _ => None,
        }
    }

    fn at(document: &Document, pointer: &str) -> (u32, u32) {
        document.position(pointer).unwrap().into()
    }

    #[test]
    fn values_alone_are_the_same_values() {
        let texts = [
            "",
            "null",
            "a: 1\nb: [x, 2, 1.5, -3, on, no, ~, '7', 007, 0x1f, 18446744073709551615]\n",
            "base: &base {x: 1, y: [2]}\nmore:\n  <<: *base\n  z: *base\n",
            "80: web\ntrue: yes\n? long\n: |\n  two\n  lines\n",
            "port: ${{PORT}}\ntext: '${{PORT}}'\n# ${{UNSET}}\n",
            "\u{FEFF}a: b",
        ];
        for text in texts {
            let whole = parse(text, Variables::InText(&lookup)).unwrap().value;
            assert_eq!(parse_values(text, &lookup), Some(whole), "{text}");
        }
        for text in ["a: 1\na: 2", "a: [", "a: ${{UNSET}}", "a: .inf", "---\na\n---\nb", "a: *b"] {
            assert!(parse(text, Variables::InText(&lookup)).is_err(), "{text}");
            assert_eq!(parse_values(text, &lookup), None, "{text}");
        }
    }

    #[test]
    fn values_and_places_are_read() {
        let text =
            "# top\nroutes:\n  - uri: /a # c\n    hosts: [a, \"b\"]\n    80: on\n  -\n    x: ~\n#END\n";
        let document = parse(text, Variables::Keep).unwrap();
        assert_eq!(
            document.value,
            json!({"routes": [{"uri": "/a", "hosts": ["a", "b"], "80": true}, {"x": null}]})
        );
        assert_eq!(at(&document, "/routes"), (2, 1));
        assert_eq!(at(&document, "/routes/0/uri"), (3, 10));
        assert_eq!(at(&document, "/routes/0/hosts"), (4, 5));
        assert_eq!(at(&document, "/routes/0/hosts/1"), (4, 16));
        assert_eq!(at(&document, "/routes/1/x"), (7, 8));
    }

    #[test]
    fn an_empty_text_is_null() {
        assert_eq!(parse("", Variables::Keep).unwrap().value, Value::Null);
        assert_eq!(parse("# nothing\n", Variables::Keep).unwrap().value, Value::Null);
    }

    #[test]
    fn errors_say_where() {
        for (text, line) in [
            ("a: 1\nb: [1,\n", 2),
            ("a: 1\na: 2\n", 2),
            ("a:\n  - b\n c: 1\n", 3),
            ("a: *nowhere\n", 1),
            ("a: 1\n---\nb: 2\n", 3),
            ("a: .nan\n", 1),
        ] {
            let error = parse(text, Variables::Keep).unwrap_err();
            assert_eq!(error.position.line, line, "{text}: {error}");
            assert!(!error.message.contains("column"), "{error}");
        }
    }

    #[test]
    fn variables_in_text_keep_the_places_of_the_original() {
        let text = "port: ${{PORT}}\nname: \"${{PORT}}\"\na: {b: ${{LONG}}, c: 1}\n# ${{NOPE}}\nd: 1\n";
        let document = parse(text, Variables::InText(&lookup)).unwrap();
        assert_eq!(document.value["port"], json!(1980));
        assert_eq!(document.value["name"], json!("1980"));
        assert_eq!(at(&document, "/a/b"), (3, 8));
        assert_eq!(at(&document, "/a/c"), (3, 22));
        assert_eq!(at(&document, "/d"), (5, 4));

        let error = parse("a: 1\nb: ${{LONG}} : [\n", Variables::InText(&lookup)).unwrap_err();
        assert_eq!(error.position.line, 2);
        let error = parse("a: 1\nb: x${{NOPE}}\n", Variables::InText(&lookup)).unwrap_err();
        assert_eq!(<(u32, u32)>::from(error.position), (2, 5));
        assert!(error.message.ends_with("can't find environment variable NOPE"));

        let document = parse("${{TWO}}\nz: 3\n", Variables::InText(&lookup)).unwrap();
        assert_eq!(document.value, json!({"x": 1, "y": 2, "z": 3}));
        assert_eq!((at(&document, "/y"), at(&document, "/z")), ((1, 1), (2, 4)));
    }

    #[test]
    fn variables_in_values_decide_their_type() {
        let text = "port: \"${{PORT}}\"\nurl: http://h:${{PORT}}\n\"${{PORT}}\": 1\ntext: ${{TWO}}\n";
        let document = parse(text, Variables::InValues(&lookup)).unwrap();
        assert_eq!(
            document.value,
            json!({"port": 1980, "url": "http://h:1980", "1980": 1, "text": "x: 1\ny: 2"})
        );
        let error = parse("a:\n  - ${{NOPE}}\n", Variables::InValues(&lookup)).unwrap_err();
        assert_eq!(<(u32, u32)>::from(error.position), (2, 5));
    }

    #[test]
    fn hostile_documents_are_refused_in_bounds() {
        let deep = "[".repeat(10_000);
        assert!(parse(&deep, Variables::Keep).is_err());
        let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
        for (name, last) in
            ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip(["a", "b", "c", "d", "e", "f", "g", "h"])
        {
            bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{last}"); 9].join(", ")));
        }
        assert!(parse(&bomb, Variables::Keep).is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics(text in r#"[a-c:\-\[\]{}&*!|>'"%@` #\n\t$.0-9é]{0,60}"#, any in ".*") {
            for text in [text, any] {
                let _ = parse(&text, Variables::Keep);
                let _ = parse(&text, Variables::InText(&lookup));
                let _ = parse(&text, Variables::InValues(&lookup));
            }
        }
    }
}
