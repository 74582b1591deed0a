//! Collectors of OpenTelemetry: the settings that `opentelemetry`, `otlp-logger` and the metrics of the gateway share.

use model::Invalid;
use sdk::otlp::Signal;
use sdk::sink::Destination;
use sdk::vars::hostname;
use serde_json::{Map, Value, json};

use crate::logger::endpoint;

/// The collector of settings that name none.
pub const ADDRESS: &str = "127.0.0.1:4318";

/// Seconds, where settings have no timeout.
pub const TIMEOUT: u64 = 3;

/// Where telemetry goes, and the resource it is about.
#[derive(Debug, Clone)]
pub struct Collector {
    /// `host:port`, or a URI to which the path is appended.
    pub address: String,
    pub grpc: bool,
    pub headers: Map<String, Value>,
    /// Milliseconds.
    pub timeout: u64,
    /// Whether the certificate must be valid.
    pub verify: bool,
    /// Attributes of the resource besides the default ones.
    pub resource: Map<String, Value>,
    /// The pointers of the address and of the headers in the settings.
    pub pointers: [&'static str; 2],
}

/// Settings of which absent ones are those of opentelemetry.
#[derive(Debug, Clone, Default)]
pub struct Own {
    pub endpoint: Option<String>,
    pub grpc: Option<bool>,
    pub headers: Option<Map<String, Value>>,
    /// Milliseconds.
    pub timeout: Option<u64>,
    pub verify: bool,
    pub resource: Option<Map<String, Value>>,
    /// See [`Collector::pointers`].
    pub pointers: [&'static str; 2],
}

impl Own {
    /// Completes the settings with these of opentelemetry. Its headers, which may be secrets, go to its collector alone.
    pub fn with(self, opentelemetry: &Value) -> Collector {
        let shared = Collector::of_opentelemetry(opentelemetry);
        let collector = match self.endpoint {
            Some(address) => {
                Collector { address, grpc: false, headers: Map::new(), timeout: TIMEOUT * 1000, ..shared }
            }
            None => shared,
        };
        Collector {
            grpc: self.grpc.unwrap_or(collector.grpc),
            headers: self.headers.unwrap_or(collector.headers),
            timeout: self.timeout.unwrap_or(collector.timeout),
            verify: self.verify,
            resource: self.resource.unwrap_or(collector.resource),
            pointers: self.pointers,
            ..collector
        }
    }
}

impl Collector {
    /// Reads the members `collector` and `resource` of opentelemetry's metadata or `plugin_attr`.
    pub fn of_opentelemetry(settings: &Value) -> Collector {
        let at = |pointer: &str| settings.pointer(pointer);
        let members = |pointer: &str| at(pointer).and_then(Value::as_object).cloned().unwrap_or_default();
        let seconds = at("/collector/request_timeout").and_then(Value::as_u64).unwrap_or(TIMEOUT).max(1);
        Collector {
            address: at("/collector/address").and_then(Value::as_str).unwrap_or(ADDRESS).to_owned(),
            grpc: at("/collector/protocol").and_then(Value::as_str) == Some("grpc"),
            headers: members("/collector/request_headers"),
            timeout: seconds.saturating_mul(1000),
            // There is no setting that says otherwise.
            verify: true,
            resource: members("/resource"),
            pointers: ["/collector/address", "/collector/request_headers"],
        }
    }

    /// The destination of one signal.
    ///
    /// # Errors
    /// An address that is not valid, or a header that cannot be sent.
    pub fn destination(&self, signal: Signal) -> Result<Destination, Invalid> {
        let [address, pointer] = self.pointers;
        let uri = match self.address.trim_end_matches('/') {
            uri if uri.contains("://") => uri.to_owned(),
            uri => format!("http://{uri}"),
        };
        let path = if self.grpc { signal.method() } else { signal.path() };
        let (servers, endpoints) = endpoint::all([(&uri[..], address.to_owned())], path, self.verify)?;
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let all = self.headers.iter().map(|(name, value)| (name.clone(), text(value).into())).collect();
        let mut headers = json!({});
        endpoint::add_fields(&mut headers, &all, pointer)?;
        if !self.grpc {
            headers["Content-Type"] = "application/x-protobuf".into();
        }
        let settings = json!({
            "signal": signal,
            "endpoints": endpoints,
            "headers": headers,
            "timeout": self.timeout,
            "resource": self.attributes(),
            "scope": "sluice",
            "version": env!("CARGO_PKG_VERSION"),
            "grpc": self.grpc,
        });
        Ok(Destination { sink: "otlp", servers, settings })
    }

    /// The attributes of the resource, with the ones that APISIX has.
    fn attributes(&self) -> Map<String, Value> {
        let mut all = Map::new();
        all.insert("hostname".to_owned(), hostname().into());
        all.insert("service.name".to_owned(), "APISIX".into());
        all.extend(self.resource.clone());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_has_a_path_and_a_method() {
        let mut collector =
            Collector::of_opentelemetry(&json!({"collector": {"address": "https://h.test/otlp/"}}));
        let mut uris = Vec::new();
        for grpc in [false, true] {
            collector.grpc = grpc;
            for signal in [Signal::Traces, Signal::Logs, Signal::Metrics] {
                let destination = collector.destination(signal).unwrap();
                assert_eq!(destination.servers, [("h.test".to_owned(), 443)]);
                let endpoint = &destination.settings["endpoints"][0];
                assert_eq!(endpoint["tls"], json!({"verify": true}));
                uris.push(endpoint["uri"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(uris[..3], ["/otlp/v1/traces", "/otlp/v1/logs", "/otlp/v1/metrics"]);
        assert!(
            uris[3..].iter().all(|uri| uri.starts_with("/otlp/opentelemetry.proto.collector.")),
            "{uris:?}"
        );
    }
}
