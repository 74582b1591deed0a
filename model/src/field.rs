//! Fields that kinds of resources share, and how fields are read.

use std::time::Duration;

use indexmap::IndexMap;
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::Value;

use crate::invalid::push_pointer;
use crate::{Invalid, network};

/// Plugins by name, in the order they were written; each configuration is an object.
pub type Plugins = IndexMap<String, Value>;

/// Fields that most resources have, without those that only the Admin API uses. The id is in the key.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Meta {
    pub name: Option<String>,
    /// Boxed, for few resources have any.
    pub labels: Option<Box<IndexMap<String, String>>>,
}

/// How long each step of talking to an upstream may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Timeout {
    #[serde(deserialize_with = "seconds")]
    pub connect: Duration,
    /// Between two writes.
    #[serde(deserialize_with = "seconds")]
    pub send: Duration,
    /// Between two reads.
    #[serde(deserialize_with = "seconds")]
    pub read: Duration,
}

impl Meta {
    /// The metadata of a value that has passed its schema.
    pub(crate) fn of(value: &Value) -> Result<Meta, Invalid> {
        Meta::deserialize(value).map_err(|error| Invalid::new(format!("invalid configuration: {error}")))
    }
}

/// An id as the string used in keys; `None` if it is neither a string nor an integer.
pub(crate) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(n), _) => Some(n.to_string()),
            (None, Some(n)) if n >= 1.0 && n % 1.0 == 0.0 && n <= 9_007_199_254_740_992.0 => {
                Some((n as u64).to_string())
            }
            _ => None,
        },
        _ => None,
    }
}

/// Takes a property out of a value, which reading would copy.
pub(crate) fn take(value: &mut Value, name: &str) -> Option<Value> {
    value.as_object_mut()?.swap_remove(name).filter(|property| !property.is_null())
}

/// Takes out the property `plugins` of a value that has passed its schema.
pub(crate) fn take_plugins(value: &mut Value) -> Plugins {
    match take(value, "plugins") {
        Some(Value::Object(plugins)) => plugins.into_iter().collect(),
        _ => Plugins::default(),
    }
}

/// Types a value that has passed its schema.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> Result<T, Invalid> {
    // Keeping track of the place costs more than reading, so it is done for refusals alone.
    T::deserialize(&value).or_else(|_| {
        serde_path_to_error::deserialize(&value).map_err(|error| {
            let mut pointer = String::new();
            for segment in error.path().iter() {
                match segment {
                    serde_path_to_error::Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
                    serde_path_to_error::Segment::Map { key } => push_pointer(&mut pointer, key),
                    _ => {}
                }
            }
            Invalid::new(format!("invalid configuration: {}", error.inner())).at(pointer)
        })
    })
}

/// Reads a number of seconds, cut off at ten years: deadlines are sums.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    f64::deserialize(from).map(duration)
}

/// Like [`seconds`] for a field that may be absent.
pub(crate) fn seconds_opt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    Option::<f64>::deserialize(from).map(|seconds| seconds.map(duration))
}

fn duration(seconds: f64) -> Duration {
    const TEN_YEARS: f64 = 315_360_000.0;
    Duration::try_from_secs_f64(seconds.min(TEN_YEARS)).unwrap_or_default()
}

/// Reads an optional id, written as a string or an integer.
pub(crate) fn id_opt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    match Option::<Value>::deserialize(from)? {
        None => Ok(None),
        Some(value) => id_text(&value)
            .map(Some)
            .ok_or_else(|| D::Error::custom("an id must be a string or a positive integer")),
    }
}

/// Reads addresses and networks; a single address is a network of one.
pub(crate) fn networks(
    property: &str,
    one: Option<String>,
    many: Option<Vec<String>>,
) -> Result<Vec<IpNet>, Invalid> {
    let refused = |property: &str, item: &str| {
        Invalid::new(format!(
            "invalid configuration: property \"{property}\" validation failed: {item}object matches none of the required"
        ))
        .expected("an IPv4 or IPv6 address or CIDR")
    };
    let mut networks = Vec::new();
    if let Some(text) = one {
        networks.push(network::parse(&text).ok_or_else(|| refused(property, "").within(property))?);
    }
    for (at, text) in many.into_iter().flatten().enumerate() {
        let property = format!("{property}s");
        networks.push(network::parse(&text).ok_or_else(|| {
            refused(&property, &format!("failed to validate item {}: ", at + 1)).within(at).within(&property)
        })?);
    }
    Ok(networks)
}
