//! skywalking-logger: sends entries to SkyWalking, as its log data over HTTP.
//!
//! Settings as in APISIX 3.18. An entry belongs to the trace that the request names in `sw8`.

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{base64, base64url};
use crate::logger::{self, Logger, Options, endpoint, full, logger_phases, wrapped};

/// The plugin instance.
pub struct SkywalkingLogger {
    pub(crate) logger: Logger,
    service: String,
    /// `None` is the name of this machine.
    instance: Option<String>,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint_addr: String,
    service_name: String,
    service_instance_name: String,
    /// Seconds.
    timeout: u64,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

impl Plugin for SkywalkingLogger {
    const NAME: &'static str = "skywalking-logger";
    const PRIORITY: i32 = 408;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "endpoint_addr": endpoint::uri_schema(),
            "service_name": {"type": "string", "default": "APISIX"},
            "service_instance_name": {"type": "string", "default": "APISIX Instance Name"},
            "timeout": {"type": "integer", "minimum": 1, "default": 3},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "skywalking logger"),
            "required": ["endpoint_addr"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<SkywalkingLogger, Invalid> {
        let Config { endpoint_addr, service_name, service_instance_name, timeout, options, batching } =
            config;
        let logger = Logger::build(options, cx)?;
        // As in APISIX, a path of the address is not part of the request.
        let end = endpoint_addr.find("://").map_or(0, |at| at + 3);
        let end = endpoint_addr[end..].find(['/', '?', '#']).map_or(endpoint_addr.len(), |at| end + at);
        let server = [(&endpoint_addr[..end], "/endpoint_addr".to_owned())];
        let (servers, endpoints) = endpoint::all(server, "/v3/logs", false)?;
        let settings = json!({
            "endpoints": endpoints,
            "format": "array",
            "headers": {"Host": servers[0].0, "Content-Type": "application/json"},
            "timeout": timeout.saturating_mul(1000),
        });
        let target = Destination { sink: "http", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        let instance = Some(service_instance_name).filter(|name| name != "$hostname");
        Ok(SkywalkingLogger { logger, service: service_name, instance, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = wrapped(x, || self.data(x)) {
            self.sink.push(x, record);
        }
    }
}

impl SkywalkingLogger {
    /// The entry as SkyWalking's log data.
    fn data(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut out = b"{".to_vec();
        if let Some(header) = x.header("sw8") {
            match trace(header) {
                Some(trace) => {
                    full::put(&mut out, b"\"traceContext\":");
                    full::put(&mut out, trace.to_string().as_bytes());
                    out.push(b',');
                }
                None => x.complain(Self::NAME, "the header sw8 is not a trace context"),
            }
        }
        full::put(&mut out, b"\"body\":{\"json\":{\"json\":");
        json_text(&self.logger.entry(x, Some(logger::UNMATCHED)), &mut out);
        full::put(&mut out, b"}},\"service\":");
        json_text(self.service.as_bytes(), &mut out);
        full::put(&mut out, b",\"serviceInstance\":");
        match &self.instance {
            Some(name) => json_text(name.as_bytes(), &mut out),
            None => full::hostname(x, &mut out),
        }
        full::put(&mut out, b",\"endpoint\":");
        json_text(x.path(), &mut out);
        out.push(b'}');
        out
    }
}

/// The identifiers in `sw8`: `1-TRACEID-SEGMENTID-SPANID-` and four further parts.
fn trace(header: &[u8]) -> Option<Value> {
    let parts: Vec<&str> = std::str::from_utf8(header).ok()?.splitn(9, '-').collect();
    let [_, trace, segment, span, _, _, _, _] = parts[..] else { return None };
    let text = |part: &str| {
        let bytes = base64(part.as_bytes()).or_else(|| base64url(part.as_bytes()))?;
        String::from_utf8(bytes.to_vec()).ok()
    };
    Some(
        json!({"traceId": text(trace)?, "traceSegmentId": text(segment)?, "spanId": span.parse::<u32>().ok()?}),
    )
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    fn data(more: Value, request: &[(&str, &str)]) -> Value {
        let mut config =
            json!({"endpoint_addr": "http://127.0.0.1:12800/ignored", "log_format": {"q": "$arg_q"}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut probe = Probe::request("GET", "/a?q=%22", request);
        let stage: SkywalkingLogger = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        respond(&mut x, 200, &[]);
        serde_json::from_slice(&stage.data(&x)).unwrap()
    }

    #[test]
    fn entries_are_log_data() {
        let entry = data(json!({}), &[]);
        let text = entry["body"]["json"]["json"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap()["q"], "\"");
        assert_eq!(
            (&entry["service"], &entry["serviceInstance"]),
            (&json!("APISIX"), &json!("APISIX Instance Name"))
        );
        assert_eq!((&entry["endpoint"], entry.get("traceContext")), (&json!("/a"), None));
        let named = data(json!({"service_name": "s", "service_instance_name": "$hostname"}), &[]);
        assert_eq!(named["service"], "s");
        assert!(
            named["serviceInstance"].as_str().is_some_and(|name| !name.is_empty() && name != "$hostname")
        );
    }

    #[test]
    fn the_trace_of_the_request_is_that_of_the_entry() {
        let sent = "1-YWJj-ZGVm-3-c2VydmljZQ==-aW5zdGFuY2U=-L2E=-MTI3LjAuMC4xOjgw";
        let expected = json!({"traceId": "abc", "traceSegmentId": "def", "spanId": 3});
        assert_eq!(data(json!({}), &[("sw8", sent)])["traceContext"], expected);
        for wrong in [
            "",
            "1",
            "1-YWJj-ZGVm-3",
            "1-!-ZGVm-3-a-b-c-d",
            "1-YWJj-ZGVm-x-a-b-c-d",
            "1-YWJj-ZGVm-3-a-b-c-d-e",
        ] {
            assert!(data(json!({}), &[("sw8", wrong)]).get("traceContext").is_none(), "{wrong}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |config: Value| Probe::default().stage::<SkywalkingLogger>(config).err().unwrap();
        assert_eq!(refused(json!({})).reason, "property \"endpoint_addr\" is required");
        assert_eq!(refused(json!({"endpoint_addr": "ftp://h"})).pointer, "/endpoint_addr");
        assert_eq!(refused(json!({"endpoint_addr": "http://h", "timeout": 0})).pointer, "/timeout");
    }
}
