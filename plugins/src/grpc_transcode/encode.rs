//! A request's fields, in JSON, a form or a query, as a message of protobuf.
//!
//! Values go from the text straight into the message: no tree is made of them. Names are those of the proto;
//! unknown ones are ignored, and so are those whose value is `null`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::types::{Field, Kind, Message, Shape, Types, Wire};
use super::write::{self, Given};

/// Makes a message of a JSON object.
///
/// # Errors
/// A sentence for the client: invalid JSON, or a value that its field does not take. Objects nest up to 128 levels.
pub(super) fn from_json(types: &Types, message: usize, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let seed = MessageSeed { types, of: &types.messages[message], out };
    seed.deserialize(&mut deserializer).and_then(|()| deserializer.end()).map_err(|error| error.to_string())
}

/// Makes a message of the arguments of a query or form. Only fields of a simple type can be given there; one that
/// repeats fills a list.
///
/// # Errors
/// As for [`from_json`].
pub(super) fn from_arguments(
    types: &Types,
    message: usize,
    text: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let of = &types.messages[message];
    for pair in text.split(|&byte| byte == b'&') {
        let (name, value) = crate::query::split(pair);
        let name = crate::query::decode(name);
        let Some(field) = std::str::from_utf8(&name).ok().and_then(|name| of.by_name(name)) else { continue };
        let refused = |expected| format!("field {}: expected {expected}", field.name);
        // As in APISIX, a name alone is `true`.
        let value = value.map(crate::query::decode);
        let given = match &value {
            None => Given::Bool(true),
            Some(value) => Given::Text(std::str::from_utf8(value).map_err(|_| refused("UTF-8"))?),
        };
        if field.shape == Shape::Map {
            return Err(refused("an object"));
        }
        write::field(types, field, given, false, out).map_err(refused)?;
    }
    Ok(())
}

/// Writes the fields of a JSON object.
struct MessageSeed<'a> {
    types: &'a Types,
    of: &'a Message,
    out: &'a mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let MessageSeed { types, of, out } = self;
        while let Some(field) = map.next_key_seed(NameSeed(of))? {
            match field {
                Some(field) => map.next_value_seed(FieldSeed { types, field, out: &mut *out })?,
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

/// Finds the field of a name.
struct NameSeed<'a>(&'a Message);

impl<'de, 'a> DeserializeSeed<'de> for NameSeed<'a> {
    type Value = Option<&'a Field>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for NameSeed<'a> {
    type Value = Option<&'a Field>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.by_name(name))
    }
}

/// Writes a field, a single value, a list or a map.
struct FieldSeed<'a> {
    types: &'a Types,
    field: &'a Field,
    out: &'a mut Vec<u8>,
}

impl FieldSeed<'_> {
    fn given<E: Error>(self, given: Given<'_>) -> Result<(), E> {
        let Field { name, shape, .. } = self.field;
        if *shape != Shape::Single {
            let expected = if *shape == Shape::Map { "an object" } else { "a list" };
            return Err(E::custom(format_args!("field {name}: expected {expected}")));
        }
        write::field(self.types, self.field, given, false, self.out)
            .map_err(|expected| E::custom(format_args!("field {name}: expected {expected}")))
    }
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// The simple values, which all seeds hand to their `given`.
macro_rules! simple_values {
    () => {
        fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
            self.given(Given::Bool(value))
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
            self.given(Given::Unsigned(value))
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
            self.given(Given::Signed(value))
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
            self.given(Given::Float(value))
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
            self.given(Given::Text(value))
        }
    };
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of field {}", self.field.name)
    }

    simple_values!();

    /// As if it were not there.
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let FieldSeed { types, field, out } = self;
        let Shape::List { packed } = field.shape else {
            return Err(A::Error::custom(format_args!("field {}: expected no list", field.name)));
        };
        let mut elements = |out: &mut Vec<u8>| {
            while let Some(()) =
                list.next_element_seed(ElementSeed { types, field, packed, out: &mut *out })?
            {}
            Ok(())
        };
        if !packed {
            return elements(out);
        }
        write::tag(field.number, Wire::Bytes, out);
        write::with_length(out, elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let FieldSeed { types, field, out } = self;
        match (field.shape, field.kind) {
            (Shape::Single, Kind::Message(index)) => {
                write::tag(field.number, Wire::Bytes, out);
                let of = &types.messages[index];
                write::with_length(out, |out| MessageSeed { types, of, out }.visit_map(map))
            }
            (Shape::Map, Kind::Message(index)) => {
                let [key, value] = &types.messages[index].fields[..] else {
                    return Err(A::Error::custom(format_args!("field {}: its map has no type", field.name)));
                };
                // The entry is made behind the message, as its key comes before its value.
                let mut start = Vec::new();
                loop {
                    start.clear();
                    let seed = ElementSeed { types, field: key, packed: false, out: &mut start };
                    let Some(()) = map.next_key_seed(seed)? else { return Ok(()) };
                    write::tag(field.number, Wire::Bytes, out);
                    write::with_length(out, |out| {
                        out.extend_from_slice(&start);
                        map.next_value_seed(ElementSeed { types, field: value, packed: false, out })
                    })?;
                }
            }
            _ => Err(A::Error::custom(format_args!("field {}: expected no object", field.name))),
        }
    }
}

/// Writes one element of a list, or the key or the value of an entry of a map.
struct ElementSeed<'a> {
    types: &'a Types,
    field: &'a Field,
    /// Without a tag.
    packed: bool,
    out: &'a mut Vec<u8>,
}

impl ElementSeed<'_> {
    fn given<E: Error>(self, given: Given<'_>) -> Result<(), E> {
        let ElementSeed { types, field, packed, out } = self;
        write::field(types, field, given, packed, out)
            .map_err(|expected| E::custom(format_args!("field {}: expected {expected}", field.name)))
    }
}

impl<'de> DeserializeSeed<'de> for ElementSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of field {}", self.field.name)
    }

    simple_values!();

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let ElementSeed { types, field, out, .. } = self;
        let Kind::Message(index) = field.kind else {
            return Err(A::Error::custom(format_args!("field {}: expected no object", field.name)));
        };
        write::tag(field.number, Wire::Bytes, out);
        let of = &types.messages[index];
        write::with_length(out, |out| MessageSeed { types, of, out }.visit_map(map))
    }
}
