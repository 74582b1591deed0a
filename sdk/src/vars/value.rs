//! Values of variables.

use std::borrow::Cow;

/// A value with its type; expressions distinguish types as Lua does.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Text(Cow<'a, [u8]>),
    Number(f64),
    Bool(bool),
    /// An array, an object or null in a body.
    Json(Cow<'a, serde_json::Value>),
}

impl Value<'_> {
    /// Formats as text: numbers in decimal, arrays and objects as JSON.
    pub(super) fn into_text<'a>(self) -> Cow<'a, [u8]>
    where
        Self: 'a,
    {
        match self {
            Value::Text(text) => text,
            Value::Number(number) => Cow::Owned(number.to_string().into_bytes()),
            Value::Bool(true) => Cow::Borrowed(b"true"),
            Value::Bool(false) => Cow::Borrowed(b"false"),
            Value::Json(value) => Cow::Owned(value.to_string().into_bytes()),
        }
    }

    /// Copies borrowed text.
    pub(super) fn into_owned<'a>(self) -> Value<'a> {
        match self {
            Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Value::Number(number) => Value::Number(number),
            Value::Bool(truth) => Value::Bool(truth),
            Value::Json(json) => Value::Json(Cow::Owned(json.into_owned())),
        }
    }
}
