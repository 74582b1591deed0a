//! The specification of a fake upstream in a case.

use crate::case::{Headers, Many, Move, parse_duration};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Either `replies`, one a request and the last one again and again, or a
/// `talk` with each connection.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// A fixed port instead of a free one.
    pub port: Option<u16>,
    /// Nothing listens there.
    pub closed: bool,
    pub replies: Vec<Reply>,
    pub talk: Option<Vec<Move>>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Reply {
    pub status: Option<u16>,
    pub reason: Option<String>,
    pub headers: Option<Headers>,
    pub body: Option<String>,
    pub json: Option<Value>,
    pub many: Option<Many>,
    /// Answers with what it got, as JSON: method, target, headers, body.
    pub echo: bool,
    pub chunks: Option<Vec<String>>,
    pub trailers: Option<Headers>,
    /// 1xx statuses sent first.
    pub interim: Vec<u16>,
    /// Waits before the answer.
    #[serde(deserialize_with = "wait")]
    pub delay: Option<Duration>,
    /// Waits between head and body, and between chunks.
    #[serde(deserialize_with = "wait")]
    pub pace: Option<Duration>,
    /// Answers before reading the request's body.
    pub early: bool,
    /// Bytes instead of an answer, each character one byte.
    pub raw: Option<String>,
    /// Sends only this many bytes of the body, then closes.
    pub cut: Option<usize>,
    /// Body without a length, ended by closing.
    pub until_close: bool,
    /// Closes after the answer without saying so.
    pub close: bool,
    /// Closes without an answer.
    pub drop: bool,
    /// Resets the connection without an answer.
    pub reset: bool,
    /// Never answers.
    pub hold: bool,
    /// 101, then every byte comes back.
    pub upgrade: bool,
}

impl Spec {
    /// A word (`echo`, `closed`, `upgrade`, `hold`), a reply, or the full form.
    pub fn from_value(value: Value) -> Result<Spec> {
        let full = ["replies", "talk", "closed", "port"];
        let value = match value {
            Value::String(word) => match word.as_str() {
                "closed" => json!({"closed": true}),
                "echo" | "upgrade" | "hold" | "drop" | "reset" => json!({"replies": [{word: true}]}),
                _ => bail!("no such kind of upstream: {word}"),
            },
            Value::Object(map) if full.iter().any(|key| map.contains_key(*key)) => Value::Object(map),
            reply => json!({"replies": [reply]}),
        };
        let mut spec: Spec = serde_json::from_value(value).context("a fake upstream")?;
        if spec.replies.is_empty() {
            spec.replies.push(Reply { echo: true, ..Reply::default() });
        }
        Ok(spec)
    }
}

fn wait<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
}
