//! Reads single values of JSON texts without building the whole tree.
//!
//! A path of members is followed through the text, so a long body costs no additional memory. Only
//! the value at the path becomes a tree, and the size of trees is bounded.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

use super::value::Value;
use crate::verdict::Undecidable;

/// Maximum bytes of a tree. It lives while one condition is evaluated.
const TREE_LIMIT: usize = 64 << 20;
/// Bytes of a value in a tree besides its text.
const NODE: usize = size_of::<Json>();
/// Additional bytes of an object's member: header, hash and slot of its name.
const MEMBER: usize = 64;

/// The error for a repeated member name.
const TWICE: &str = "repeated member name";

/// The rest of [`TREE_LIMIT`].
#[derive(Debug)]
pub(super) struct Budget(Cell<usize>);

impl Budget {
    pub(super) fn new() -> Budget {
        Budget(Cell::new(TREE_LIMIT))
    }

    pub(super) fn take(&self, bytes: usize) -> Result<(), Undecidable> {
        match self.0.get().checked_sub(bytes) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => {
                // Marks the budget as spent, so that the error has the right cause.
                self.0.set(0);
                Err(Undecidable::TooLarge)
            }
        }
    }

    /// Takes the bytes of a value with a text of `text` bytes.
    pub(super) fn node(&self, text: usize) -> Result<(), Undecidable> {
        self.take(NODE + text)
    }

    pub(super) fn member(&self, name: usize) -> Result<(), Undecidable> {
        self.take(MEMBER + name)
    }

    fn why(&self) -> Undecidable {
        if self.0.get() == 0 { Undecidable::TooLarge } else { Undecidable::Unreadable }
    }
}

/// Finds the value at a path of members. If the path meets a repeated member name, the text is
/// unreadable: some servers use the first member, some the last (RFC 8259 section 4).
pub(super) fn at<'a>(text: &'a [u8], members: &[Box<str>]) -> Result<Option<Value<'a>>, Undecidable> {
    let budget = Budget::new();
    read(text, At { members, budget: &budget }).map_err(|_| budget.why())
}

/// Parses the whole text as a tree.
pub(super) fn tree(text: &[u8]) -> Result<Json, Undecidable> {
    let budget = Budget::new();
    read(text, Tree(&budget)).map_err(|_| budget.why())
}

fn read<'a, S: DeserializeSeed<'a>>(text: &'a [u8], seed: S) -> serde_json::Result<S::Value> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let found = seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(found)
}

/// Follows a path of members.
#[derive(Clone, Copy)]
struct At<'p> {
    members: &'p [Box<str>],
    budget: &'p Budget,
}

impl<'p> At<'p> {
    fn leaf<'de, E: de::Error>(self, value: Value<'de>) -> Result<Option<Value<'de>>, E> {
        Ok(self.members.is_empty().then_some(value))
    }

    fn tree(self) -> Tree<'p> {
        Tree(self.budget)
    }
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<Value<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<Value<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Self::Value, E> {
        self.leaf(Value::Bool(truth))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        self.leaf(Value::Number(number as f64))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        self.leaf(Value::Number(number as f64))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        self.leaf(Value::Number(number))
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        self.leaf(Value::Text(Cow::Borrowed(text.as_bytes())))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if self.members.is_empty() { self.leaf(Value::Text(Cow::Owned(text.into()))) } else { Ok(None) }
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        self.leaf(Value::Json(Cow::Owned(Json::Null)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if self.members.is_empty() {
            return self.leaf(Value::Json(Cow::Owned(self.tree().visit_seq(list)?)));
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let Some((first, members)) = self.members.split_first() else {
            return self.leaf(Value::Json(Cow::Owned(self.tree().visit_map(object)?)));
        };
        let (mut found, mut seen) = (None, false);
        while let Some(meant) = object.next_key_seed(Is(first))? {
            if meant {
                if std::mem::replace(&mut seen, true) {
                    return Err(de::Error::custom(TWICE));
                }
                found = object.next_value_seed(At { members, ..self })?;
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Compares a name.
struct Is<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<bool, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<bool, E> {
        Ok(self.0 == name)
    }
}

/// Builds a tree within the budget.
#[derive(Clone, Copy)]
struct Tree<'p>(&'p Budget);

impl Tree<'_> {
    fn node<E: de::Error>(self, text: usize, value: impl FnOnce() -> Json) -> Result<Json, E> {
        self.0.node(text).map_err(|why| E::custom(why.as_str()))?;
        Ok(value())
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Json, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Json, E> {
        self.node(0, || Json::Bool(truth))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Json, E> {
        self.node(0, || number.into())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Json, E> {
        self.node(0, || number.into())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Json, E> {
        self.node(0, || number.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Json, E> {
        self.node(text.len(), || text.into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        self.node(0, || Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element_seed(self)? {
            elements.push(element);
        }
        self.node(0, || Json::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut members = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            self.0.member(name.len()).map_err(|why| de::Error::custom(why.as_str()))?;
            if members.insert(name, object.next_value_seed(self)?).is_some() {
                return Err(de::Error::custom(TWICE));
            }
        }
        self.node(0, || Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, path: &str) -> Result<Option<String>, Undecidable> {
        let members: Vec<Box<str>> =
            path.split('.').filter(|part| !part.is_empty()).map(Into::into).collect();
        let value = at(text.as_bytes(), &members)?;
        Ok(value.map(|value| String::from_utf8(value.into_text().into_owned()).unwrap()))
    }

    #[test]
    fn members_are_followed_through_the_text() {
        let deep = format!(r#"{{"d":{}{},"a":1}}"#, "[".repeat(50_000), "]".repeat(50_000));
        for (text, path, expected) in [
            (r#"{"a":{"b":"x"}}"#, "a.b", Some("x")),
            (r#"{"a":"\u0078\n"}"#, "a", Some("x\n")),
            (r#"{"\u0061":1}"#, "a", Some("1")),
            (r#"{"b":1,"b":{"b":1,"b":2},"a":3}"#, "a", Some("3")),
            (r#"{"a":-1.5e2}"#, "a", Some("-150")),
            (r#"{"a":18446744073709551615}"#, "a", Some("18446744073709552000")),
            (r#"{"a":false}"#, "a", Some("false")),
            (r#"{"a":null}"#, "a", Some("null")),
            (r#"{"a":[1,{"b":[]}]}"#, "a", Some(r#"[1,{"b":[]}]"#)),
            (r#"{"a":{"c":"d"}}"#, "a", Some(r#"{"c":"d"}"#)),
            (r#"[{"a":1}]"#, "a", None),
            (r#""a""#, "a", None),
            (r#"{"a":"x"}"#, "a.b", None),
            (r#"{"b":1e999,"a":1}"#, "a", Some("1")),
            (&deep, "a", Some("1")),
            (r#" {"b":1} "#, "a", None),
        ] {
            let short: String = text.chars().take(80).collect();
            assert_eq!(found(text, path), Ok(expected.map(str::to_owned)), "{path} of {short}");
        }
    }

    #[test]
    fn invalid_json_is_unreadable() {
        for text in [
            "",
            " ",
            "{",
            "{'a':1}",
            "\u{feff}{\"a\":1}",
            r#"{"a":1}x"#,
            r#"{"a":1} {"a":2}"#,
            r#"{"a":1,}"#,
            r#"{"b":01,"a":1}"#,
            r#"{"a":1e999}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":{"b":1,"b":1}}"#,
            "{\"a\":\"\n\"}",
        ] {
            assert_eq!(found(text, "a"), Err(Undecidable::Unreadable), "{text}");
        }
        assert_eq!(found(r#"{"a":{"b":1},"a":3}"#, "a.b"), Err(Undecidable::Unreadable));
        assert_eq!(tree(br#"[{"b":1,"b":2}]"#), Err(Undecidable::Unreadable));
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(found(&deep, "a"), Err(Undecidable::Unreadable));
        assert_eq!(at(b"{\"a\":\"\xff\"}", &["a".into()]), Err(Undecidable::Unreadable));
    }

    #[test]
    fn trees_are_bounded_and_skipped_values_are_not() {
        let many = format!(r#"{{"m":[{}0],"a":1}}"#, "0,".repeat(TREE_LIMIT / NODE));
        assert_eq!(found(&many, "m"), Err(Undecidable::TooLarge));
        assert_eq!(found(&many, "a"), Ok(Some("1".into())));
        assert_eq!(tree(many.as_bytes()), Err(Undecidable::TooLarge));
        assert_eq!(tree(many.replace('0', "null").as_bytes()), Err(Undecidable::TooLarge));
        // A long name counts with its length.
        assert!(tree(format!("{{\"{}\":0}}", "n".repeat(TREE_LIMIT / 4)).as_bytes()).is_ok());
        assert!(tree(format!("{{\"{}\":0}}", "n".repeat(TREE_LIMIT)).as_bytes()).is_err());
        let names: String = (0..TREE_LIMIT / (NODE + MEMBER)).map(|i| format!("\"{i}\":0,")).collect();
        assert_eq!(tree(format!("{{{names}\"x\":0}}").as_bytes()), Err(Undecidable::TooLarge));
    }
}
