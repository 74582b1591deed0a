//! http-logger: sends entries to an HTTP server, a batch in the body of a POST.
//!
//! Settings as in APISIX 3.18. A batch of one (`batch_max_size: 1`) is the entry itself; longer ones are a
//! JSON array, or lines.

use model::Invalid;
use sdk::build::split_authority;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, HOPS, Record, Sink, Spec};
use sdk::{Build, Chunk, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options};

/// The plugin instance.
pub struct HttpLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    uri: String,
    auth_header: Option<String>,
    /// Seconds.
    timeout: u64,
    concat_method: Concat,
    ssl_verify: bool,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Concat {
    Json,
    NewLine,
}

/// The route's name in the entry of a request that matched no route.
const UNMATCHED: &str = "no-matched";

impl Plugin for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "uri": {
                "type": "string",
                "pattern": "^[^\\/]+:\\/\\/([\\da-zA-Z.-]+|\\[[\\da-fA-F:]+\\])(:\\d+)?",
            },
            "auth_header": {"type": "string"},
            "timeout": {"type": "integer", "minimum": 1, "default": 3},
            "concat_method": {"type": "string", "default": "json", "enum": ["json", "new_line"]},
            "ssl_verify": {"type": "boolean", "default": false},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "http logger"),
            "required": ["uri"],
            "encrypt_fields": ["auth_header"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<HttpLogger, Invalid> {
        let Config { uri, auth_header, timeout, concat_method, ssl_verify, options, batching } = config;
        let logger = Logger::build(options, cx)?;
        let Server { https, host, port, path } = server(&uri).ok_or_else(|| {
            Invalid::new("it has no valid server, or characters that are not allowed in a URI")
                .at("/uri")
                .expected("http://host[:port][/path][?query], or https://")
        })?;
        if auth_header
            .as_deref()
            .is_some_and(|value| !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')))
        {
            return Err(Invalid::new("it has characters that are not allowed in a header").at("/auth_header"));
        }
        let (format, content_type) = match (concat_method, batching.batch_max_size) {
            (Concat::Json, 1) => ("plain", "application/json"),
            (Concat::Json, _) => ("array", "application/json"),
            (Concat::NewLine, _) => ("lines", "text/plain"),
        };
        let settings = json!({
            "uri": path,
            "format": format,
            "content_type": content_type,
            "authorization": auth_header,
            "tls": https.then(|| json!({"verify": ssl_verify})),
            "timeout": timeout.saturating_mul(1000),
        });
        let sink = cx.sink(Spec {
            plugin: Self::NAME,
            owner: Some(cx.owner.clone()),
            target: Destination::server("http", host, port, settings),
            batching,
            max_entries: cx.max_pending_entries(),
            max_bytes: usize::MAX,
        });
        Ok(HttpLogger { logger, sink })
    }

    fn phases(&self) -> Phases {
        self.logger.phases()
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        self.logger.access(x)
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.logger.collects(x)
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) {
        self.logger.collect(x, Self::NAME, chunk);
    }

    fn log(&self, x: &mut Exchange<'_>) {
        // Sent to this gateway, the entry would be a request with an entry of its own, without an end.
        if x.is_loop() {
            return;
        }
        let mut record = Record::from(self.logger.entry(x, Some(UNMATCHED)));
        if x.hops() > 0 {
            record.fields.push((HOPS, x.hops().to_string().into_bytes()));
        }
        self.sink.push(x, record);
    }
}

/// Where a URI leads.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    https: bool,
    host: String,
    port: u16,
    /// With the query.
    path: String,
}

fn server(uri: &str) -> Option<Server> {
    let (scheme, rest) = uri.split_once("://")?;
    let https = scheme.eq_ignore_ascii_case("https");
    if !https && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    // A fragment is not sent to the server.
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = split_authority(authority, if https { 443 } else { 80 })?;
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    // The brackets of an IPv6 address belong to it in a URI and in Host.
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Some(Server { https, host, port, path: format!("{slash}{path}") })
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn refused(config: Value) -> Invalid {
        Probe::default().stage::<HttpLogger>(config).err().unwrap()
    }

    #[test]
    fn servers_are_read_from_uris() {
        let found = |host: &str, port, path: &str| {
            Some(Server { https: false, host: host.to_owned(), port, path: path.to_owned() })
        };
        let over_tls = |server: Option<Server>| server.map(|server| Server { https: true, ..server });
        for (uri, expected) in [
            ("http://a.b", found("a.b", 80, "/")),
            ("HTTP://a.b:8080/log/in?a=b#c", found("a.b", 8080, "/log/in?a=b")),
            ("http://a?b=c", found("a", 80, "/?b=c")),
            ("http://[::1]:81/x", found("[::1]", 81, "/x")),
            ("https://a.b/in", over_tls(found("a.b", 443, "/in"))),
            ("HTTPS://a.b:8443", over_tls(found("a.b", 8443, "/"))),
            ("http://u:p@h/x", None),
            ("http://h:0/", None),
            ("http://h/a b", None),
            ("http://h/\u{e9}", None),
            ("ftp://h/", None),
        ] {
            assert_eq!(server(uri), expected, "{uri}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(refused(json!({})).reason, "property \"uri\" is required");
        for (config, pointer) in [
            (json!({"uri": "http://h/a b"}), "/uri"),
            (json!({"uri": "https://h/a b"}), "/uri"),
            (json!({"uri": "http://h", "auth_header": "a\nb"}), "/auth_header"),
            (json!({"uri": "http://h", "timeout": 0}), "/timeout"),
            (json!({"uri": "http://h", "concat_method": "xml"}), "/concat_method"),
            (json!({"uri": "http://h", "batch_max_size": 0}), "/batch_max_size"),
        ] {
            assert_eq!(refused(config.clone()).pointer, pointer, "{config}");
        }
        let invalid = refused(
            json!({"uri": "http://h", "include_resp_body": true, "include_resp_body_expr": [["bar", "<>", "x"]]}),
        );
        assert!(
            invalid.reason.starts_with("failed to validate the 'include_resp_body_expr' expression: "),
            "{}",
            invalid.reason
        );
    }
}
