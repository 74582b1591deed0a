//! The common parts of plugins that call servers of Envoy's services by gRPC.

pub(crate) mod headers;

use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use model::Invalid;
use sdk::world::{Fetch, FetchTimeouts, Keep, Target};
use sdk::{Build, Exchange, Fields, Method};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The settings for a server.
#[derive(Debug, Deserialize)]
pub(crate) struct Settings {
    pub uri: String,
    ssl_verify: bool,
    timeout: u64,
    pub allow_degradation: bool,
    pub status_on_error: u16,
    #[serde(default)]
    metadata: IndexMap<String, String>,
    keepalive_timeout: u64,
}

/// Returns the schema of a plugin: the settings for its server, with this default of `status_on_error`, and its own.
pub(crate) fn schema(status_on_error: u16, own: Value) -> Value {
    let first = json!({
        "uri": {"type": "string"},
        "ssl_verify": {"type": "boolean", "default": true},
        "timeout": {"type": "integer", "minimum": 1, "maximum": 60000, "default": 200},
        "allow_degradation": {"type": "boolean", "default": false},
        "status_on_error": {"type": "integer", "minimum": 200, "maximum": 599, "default": status_on_error},
    });
    let last = json!({
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 60000},
    });
    let parts = [first, own, last].into_iter().filter_map(|part| match part {
        Value::Object(properties) => Some(properties),
        _ => None,
    });
    let properties = parts.flatten().collect::<Map<_, _>>();
    json!({"type": "object", "properties": properties, "required": ["uri"], "encrypt_fields": ["metadata"]})
}

/// A server, with all that its calls have in common.
#[derive(Debug)]
pub(crate) struct Server {
    target: Target,
    /// The path of the method.
    path: Vec<u8>,
    fields: Fields,
    verify: bool,
    pub timeout: Duration,
    keep: Keep,
}

impl Server {
    /// Compiles the settings for a server whose method usually has this path.
    ///
    /// # Errors
    /// The address or a header is invalid.
    pub fn build(settings: &Settings, method: &str, cx: &mut Build<'_>) -> Result<Server, Invalid> {
        Ok(Server {
            target: cx.target(&settings.uri).map_err(|invalid| invalid.at("/uri"))?,
            path: path_of(&settings.uri, method)?,
            fields: fields_of(&settings.metadata)?,
            verify: settings.ssl_verify,
            timeout: Duration::from_millis(settings.timeout),
            keep: Keep { connections: 1, idle: Duration::from_millis(settings.keepalive_timeout) },
        })
    }

    /// Returns a request of an exchange to the server, without a body.
    pub fn request(&self, x: &Exchange<'_>) -> Fetch {
        let mut fields = self.fields.clone();
        x.count_hop(&mut fields);
        Fetch {
            verify: self.verify,
            target: self.target.clone(),
            method_name: Vec::new(),
            method: Method::Post,
            uri: self.path.clone(),
            fields,
            body: Bytes::new(),
            timeouts: FetchTimeouts { connect: self.timeout, send: self.timeout, read: self.timeout },
            max_body: 0,
            repeatable: false,
            http2: true,
            keep: self.keep,
            tunnel: None,
        }
    }
}

/// The path of the method to call: that of the address, or the usual one.
///
/// # Errors
/// It is no path of a method.
fn path_of(uri: &str, usual: &str) -> Result<Vec<u8>, Invalid> {
    let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
    match rest.find('/').map(|at| &rest[at..]) {
        None | Some("/") => Ok(usual.into()),
        Some(path) if path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#')) => {
            Ok(path.into())
        }
        Some(_) => {
            Err(Invalid::new("the path of uri is not that of a method of gRPC").at("/uri").expected(usual))
        }
    }
}

/// The headers of a call.
///
/// # Errors
/// One of them is invalid.
fn fields_of(metadata: &IndexMap<String, String>) -> Result<Fields, Invalid> {
    let mut fields = Fields::new();
    for (name, value) in metadata {
        fields
            .append(name.as_bytes(), value.as_bytes())
            .map_err(|_| Invalid::new("this is not a valid header").within(name).under("/metadata"))?;
    }
    // The name and value are valid.
    let _ = fields.set(b"Content-Type", b"application/grpc");
    Ok(fields)
}
