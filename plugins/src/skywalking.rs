//! hot path
//!
//! skywalking: traces of sampled requests, sent to SkyWalking as segments over HTTP.
//!
//! Settings, names and tags as in APISIX 3.18; the collector is configured in `plugin_attr` of config.yaml. A request
//! continues the trace in its header `sw8`, and the upstream gets the header of this segment. Where no server was
//! contacted, the segment has no span of one.

use std::io::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Sink};
use sdk::trace::{hex, new_ids};
use sdk::vars::{self, Var};
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{base64, base64url};
use crate::logger::{endpoint, full, wrapped};
use crate::opentelemetry::salt;

/// The plugin instance.
pub struct Skywalking {
    /// Requests whose number is below this, of 2^64, are sampled.
    bound: u128,
    salt: u64,
    service: String,
    instance: String,
    /// Both in Base64, as `sw8` has them.
    names: String,
    request_uri: Var,
    host: Var,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    sample_ratio: f64,
}

/// `plugin_attr.skywalking` of config.yaml.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Attr {
    service_name: String,
    service_instance_name: String,
    endpoint_addr: String,
    report_interval: u64,
}

impl Default for Attr {
    fn default() -> Attr {
        Attr {
            service_name: "APISIX".to_owned(),
            service_instance_name: "APISIX Instance Name".to_owned(),
            endpoint_addr: "http://127.0.0.1:12800".to_owned(),
            report_interval: 3,
        }
    }
}

/// The segment of a sampled request.
struct Active {
    instance: usize,
    trace: Box<str>,
    segment: Box<str>,
    parent: Option<Reference>,
}

/// The span of another process that caused the request.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    trace: String,
    segment: String,
    span: u32,
    service: String,
    instance: String,
    endpoint: String,
    address: String,
}

/// The upstream's name in `sw8`: `upstream service` in Base64.
const PEER: &str = "dXBzdHJlYW0gc2VydmljZQ==";

/// APISIX's number among SkyWalking's components.
const COMPONENT: u32 = 6002;

/// Segments of a full batch.
const BATCH: usize = 500;

/// Seconds for connecting, and for each part of the answer.
const TIMEOUT: u64 = 10;

/// The longest `sw8` that is read; a longer one begins no trace.
const HEADER: usize = 4096;

impl Plugin for Skywalking {
    const NAME: &'static str = "skywalking";
    const PRIORITY: i32 = 12010;
    const PHASES: Phases = Phases::REWRITE.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Skywalking, Invalid> {
        let attr = match cx.attr {
            Some(attr) => Attr::deserialize(attr)
                .map_err(|error| Invalid::new(format!("plugin_attr.skywalking in config.yaml: {error}")))?,
            None => Attr::default(),
        };
        let address = attr.endpoint_addr.trim_end_matches('/');
        let (servers, endpoints) = endpoint::all([(address, String::new())], "/v3/segments", false)
            .map_err(|invalid| invalid.said("plugin_attr.skywalking.endpoint_addr in config.yaml: "))?;
        let settings = json!({
            "endpoints": endpoints,
            "format": "array",
            "headers": {"Content-Type": "application/json"},
            "timeout": TIMEOUT * 1000,
        });
        let target = Destination { sink: "http", servers, settings };
        let interval = attr.report_interval.max(1);
        let batching = Batching {
            batch_max_size: BATCH,
            inactive_timeout: interval,
            buffer_duration: interval,
            ..Batching::at_once("skywalking_report")
        };
        let sink = cx.own_sink(Self::NAME, target, batching);
        let instance = match &attr.service_instance_name[..] {
            "$hostname" => vars::hostname().to_owned(),
            name => name.to_owned(),
        };
        let names = [&attr.service_name, &instance].map(|name| BASE64_STANDARD.encode(name)).join("-");
        Ok(Skywalking {
            names,
            bound: (config.sample_ratio * (1_u128 << 64) as f64) as u128,
            salt: salt(cx.owner.collection, &cx.owner.id),
            service: attr.service_name,
            instance,
            request_uri: Var::parse("request_uri"),
            host: Var::parse("host"),
            sink,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if u128::from(x.unique()[1]) >= self.bound {
            return Step::Next;
        }
        let parent = x.header("sw8").and_then(Reference::read);
        let (trace, span) = new_ids(x.unique(), self.salt);
        let (mut long, mut short) = ([0; 32], [0; 16]);
        hex(&trace, &mut long);
        hex(&span, &mut short);
        let (long, short) = (String::from_utf8_lossy(&long), String::from_utf8_lossy(&short));
        let segment = format!("{long}.{short}");
        let trace = parent.as_ref().map_or(&*long, |parent| &parent.trace);
        let header = self.header(trace, &segment, x.path());
        let active = Active {
            instance: std::ptr::from_ref(self).addr(),
            trace: trace.into(),
            segment: segment.into(),
            parent,
        };
        // Base64 is valid in a header.
        let _ = x.set_header("sw8", header.as_bytes());
        x.expect_log();
        x.set_note(active);
        Step::Next
    }

    fn logs_on_demand(&self) -> bool {
        true
    }

    fn log(&self, x: &mut Exchange<'_>) {
        // Of several instances, as of a global rule, the last one has the segment.
        let instance = std::ptr::from_ref(self).addr();
        let Some(active) = x.note::<Active>().filter(|active| active.instance == instance) else { return };
        if let Some(record) = wrapped(x, || self.segment(x, active)) {
            self.sink.push(x, record);
        }
    }
}

impl Skywalking {
    /// The header for the upstream, whose request is the span 1 of the segment.
    fn header(&self, trace: &str, segment: &str, path: &[u8]) -> String {
        let code = |text: &[u8]| BASE64_STANDARD.encode(text);
        format!(
            "1-{}-{}-1-{}-{}-{PEER}",
            code(trace.as_bytes()),
            code(segment.as_bytes()),
            self.names,
            code(path),
        )
    }

    /// The segment of a request that has ended.
    fn segment(&self, x: &Exchange<'_>, active: &Active) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let texts = [
            (&b"{\"traceId\":"[..], &*active.trace),
            (b",\"traceSegmentId\":", &*active.segment),
            (b",\"service\":", &self.service),
            (b",\"serviceInstance\":", &self.instance),
        ];
        for (key, text) in texts {
            full::put(&mut out, key);
            json_text(text.as_bytes(), &mut out);
        }
        let start = x.start_ms();
        let end = start + x.timing().total_us / 1000;
        full::put(&mut out, b",\"spans\":[");
        if x.upstream_addr().is_some() {
            let asked = x.timing().total_us.saturating_sub(x.timing().upstream_us) / 1000;
            self.span(
                x,
                "\"spanId\":1,\"parentSpanId\":0",
                (start + asked, end),
                x.upstream_status(),
                &mut out,
            );
            full::put(&mut out, b",\"spanType\":\"Exit\",\"peer\":\"upstream service\",\"refs\":[]},");
        }
        self.span(x, "\"spanId\":0,\"parentSpanId\":-1", (start, end), x.status(), &mut out);
        full::put(&mut out, b",\"spanType\":\"Entry\",\"peer\":\"\",\"refs\":[");
        if let Some(parent) = &active.parent {
            parent.write(&mut out);
        }
        full::put(&mut out, b"]}]}");
        out
    }

    /// A span without what differs between the two.
    fn span(&self, x: &Exchange<'_>, ids: &str, (start, end): (u64, u64), status: u16, out: &mut Vec<u8>) {
        let is_error = status >= 500;
        // Writing to a Vec cannot fail.
        let _ = write!(
            out,
            "{{{ids},\"startTime\":{start},\"endTime\":{end},\"spanLayer\":\"Http\",\"componentId\":{COMPONENT},\
             \"isError\":{is_error},\"skipAnalysis\":false,\"logs\":[],\"operationName\":"
        );
        json_text(x.path(), out);
        full::put(out, b",\"tags\":[");
        if ids.starts_with("\"spanId\":0") {
            full::put(out, b"{\"key\":\"http.method\",\"value\":");
            json_text(x.request().method_bytes(), out);
            full::put(out, b"},{\"key\":\"http.params\",\"value\":");
            let (host, uri) =
                (self.host.of(x).unwrap_or_default(), self.request_uri.of(x).unwrap_or_default());
            json_text(&[x.client().scheme().as_bytes(), b"://", &host, &uri].concat(), out);
            full::put(out, b"},");
        }
        let _ = write!(out, "{{\"key\":\"http.status\",\"value\":\"{status}\"}}]");
    }
}

impl Reference {
    /// Reads `sw8`; `None` if it is malformed, or its sender does not sample.
    fn read(header: &[u8]) -> Option<Reference> {
        let text = std::str::from_utf8(header).ok().filter(|text| text.len() <= HEADER)?;
        let mut parts = text.splitn(9, '-');
        let sampled = parts.next()?;
        let mut part = || {
            let coded = parts.next()?.as_bytes();
            String::from_utf8(base64(coded).or_else(|| base64url(coded))?.to_vec()).ok()
        };
        let (trace, segment) = (part()?, part()?);
        let span = parts.next()?.parse().ok()?;
        let mut part = || {
            let coded = parts.next()?.as_bytes();
            String::from_utf8(base64(coded).or_else(|| base64url(coded))?.to_vec()).ok()
        };
        let (service, instance, endpoint, address) = (part()?, part()?, part()?, part()?);
        let is_whole = parts.next().is_none() && sampled == "1" && !trace.is_empty();
        is_whole.then_some(Reference { trace, segment, span, service, instance, endpoint, address })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let _ = write!(out, "{{\"refType\":\"CrossProcess\",\"parentSpanId\":{}", self.span);
        let texts = [
            ("traceId", &self.trace),
            ("parentTraceSegmentId", &self.segment),
            ("parentService", &self.service),
            ("parentServiceInstance", &self.instance),
            ("parentEndpoint", &self.endpoint),
            ("networkAddressUsedAtPeer", &self.address),
        ];
        for (key, text) in texts {
            let _ = write!(out, ",\"{key}\":");
            json_text(text.as_bytes(), out);
        }
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    const SW8: &str = "1-YWJj-ZGVm-3-c2VydmljZQ==-aW5zdGFuY2U=-L2E=-MTI3LjAuMC4xOjgw";

    /// `sw8` for the upstream, and the segment.
    fn traced(headers: &[(&str, &str)], has_upstream: bool) -> (String, Value) {
        let mut probe = Probe::request("GET", "/a?q=1", headers);
        let plugin: Skywalking = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(plugin.rewrite(&mut x), Step::Next));
        let sent = String::from_utf8(x.header("sw8").unwrap().to_vec()).unwrap();
        if has_upstream {
            x.engine_mut().upstream_addr = Some("127.0.0.2:80".parse().unwrap());
            (x.engine_mut().timing.total_us, x.engine_mut().timing.upstream_us) = (50_000, 30_000);
        }
        respond(&mut x, 503, &[]);
        let active = x.note::<Active>().unwrap();
        (sent, serde_json::from_slice(&plugin.segment(&x, active)).unwrap())
    }

    #[test]
    fn a_segment_has_the_spans_of_the_request_and_of_the_upstream() {
        let (sent, segment) = traced(&[("Host", "h.test")], true);
        let (trace, id) = (segment["traceId"].as_str().unwrap(), segment["traceSegmentId"].as_str().unwrap());
        assert!(trace.len() == 32 && id.starts_with(trace) && id.len() == 49, "{id}");
        assert_eq!(
            sent,
            format!(
                "1-{}-{}-1-QVBJU0lY-QVBJU0lYIEluc3RhbmNlIE5hbWU=-L2E=-dXBzdHJlYW0gc2VydmljZQ==",
                BASE64_STANDARD.encode(trace),
                BASE64_STANDARD.encode(id)
            )
        );
        assert_eq!(
            (&segment["service"], &segment["serviceInstance"]),
            (&json!("APISIX"), &json!("APISIX Instance Name"))
        );
        let start = 1_700_000_000_000_u64;
        let status = json!({"key": "http.status", "value": "503"});
        assert_eq!(
            segment["spans"],
            json!([
                {
                    "spanId": 1, "parentSpanId": 0, "startTime": start + 20, "endTime": start + 50, "spanLayer": "Http",
                    "componentId": 6002, "isError": true, "skipAnalysis": false, "logs": [], "operationName": "/a",
                    "tags": [status], "spanType": "Exit", "peer": "upstream service", "refs": [],
                },
                {
                    "spanId": 0, "parentSpanId": -1, "startTime": start, "endTime": start + 50, "spanLayer": "Http",
                    "componentId": 6002, "isError": true, "skipAnalysis": false, "logs": [], "operationName": "/a",
                    "tags": [
                        {"key": "http.method", "value": "GET"},
                        {"key": "http.params", "value": "http://h.test/a?q=1"},
                        status,
                    ],
                    "spanType": "Entry", "peer": "", "refs": [],
                },
            ])
        );
        assert_eq!(traced(&[], false).1["spans"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_trace_is_continued() {
        let (sent, segment) = traced(&[("sw8", SW8)], false);
        assert!(sent.starts_with("1-YWJj-") && segment["traceId"] == "abc", "{sent}");
        assert_eq!(
            segment["spans"][0]["refs"],
            json!([{
                "refType": "CrossProcess", "parentSpanId": 3, "traceId": "abc", "parentTraceSegmentId": "def",
                "parentService": "service", "parentServiceInstance": "instance", "parentEndpoint": "/a",
                "networkAddressUsedAtPeer": "127.0.0.1:80",
            }])
        );
        let long = format!("1-{}-ZGVm-3-c2VydmljZQ==-aW5zdGFuY2U=-L2E=-YQ==", "YWJj".repeat(2000));
        for other in [
            "",
            "1",
            "1-!-ZGVm-3-YQ==-YQ==-YQ==-YQ==",
            "1-YWJj-ZGVm-x-YQ==-YQ==-YQ==-YQ==",
            &SW8.replacen('1', "0", 1),
            &format!("{SW8}-more"),
            &long,
        ] {
            assert_eq!(Reference::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn others_are_not_traced() {
        let mut probe = Probe::request("GET", "/", &[("sw8", SW8)]);
        let plugin: Skywalking = probe.stage(json!({"sample_ratio": 0.00001})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(plugin.rewrite(&mut x), Step::Next));
        if x.note::<Active>().is_none() {
            assert_eq!(x.header("sw8"), Some(SW8.as_bytes()));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |config: Value| Probe::default().stage::<Skywalking>(config).err().unwrap();
        assert_eq!(refused(json!({"sample_ratio": 0})).pointer, "/sample_ratio");
        assert_eq!(refused(json!({"sample_ratio": 2})).pointer, "/sample_ratio");
    }
}
