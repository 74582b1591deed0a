use sdk::Plugin;
use sdk::testing::{Probe, respond};
use serde_json::{Value, json};

use super::*;
use crate::opentelemetry::Opentelemetry;
use crate::otlp_logger::OtlpLogger;
use crate::protobuf::{Field, Fields};

/// The fields of a message with their numbers; numbers of fixed length are left out.
fn fields(message: &[u8]) -> Vec<(u64, Field<'_>)> {
    Fields::of(message).map(Result::unwrap).collect()
}

fn part(message: &[u8], wanted: u32) -> Option<&[u8]> {
    fields(message).into_iter().find_map(|(number, field)| match field {
        Field::Bytes(bytes) if number == u64::from(wanted) => Some(bytes),
        _ => None,
    })
}

/// A text or a whole number; other values are empty.
fn any(value: &[u8]) -> String {
    match fields(value).remove(0).1 {
        Field::Bytes(text) => String::from_utf8(text.to_vec()).unwrap(),
        Field::Number(number) => number.to_string(),
        Field::Fixed => String::new(),
    }
}

/// The attributes of a record as `key=value`.
fn attributes(record: &[u8]) -> Vec<String> {
    let all = fields(record).into_iter().filter_map(|(number, field)| match field {
        Field::Bytes(bytes) if number == u64::from(field::LOG_ATTRIBUTES) => Some(bytes),
        _ => None,
    });
    all.map(|one| format!("{}={}", any(one), any(part(one, 2).unwrap()))).collect()
}

/// The record of a request and its response.
fn record(config: Value, status: u16) -> Record {
    let headers = [("Host", "h.test"), ("User-Agent", "agent")];
    let mut probe = Probe::request("POST", "/a?b=c", &headers).from_ip("10.1.2.3");
    probe.route.service_id = "s".into();
    let plugin: OtlpLogger = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().upstream_addr = Some("127.0.0.2:80".parse().unwrap());
    let timing = &mut x.engine_mut().timing;
    (timing.total_us, timing.received, timing.sent) = (1_012_345, 100, 200);
    respond(&mut x, status, &[]);
    of(&plugin.logger, &x).unwrap()
}

#[test]
fn a_record_has_the_attributes_of_the_conventions() {
    let Record { fields: json, bytes } = record(json!({}), 201);
    assert!(json.is_empty(), "{json:?}");
    assert_eq!(part(&bytes, field::LOG_BODY).map(any).as_deref(), Some("POST /a?b=c 201"));
    let all = attributes(&bytes);
    for expected in [
        "http.request.method=POST",
        "url.scheme=http",
        "url.path=/a",
        "url.query=b=c",
        "http.response.status_code=201",
        "http.request.size=100",
        "http.response.size=200",
        "http.server.request.duration=",
        "server.address=h.test",
        "client.address=10.1.2.3",
        "network.protocol.name=http",
        "network.protocol.version=1.1",
        "user_agent.original=agent",
        "apisix.route_id=1",
        "apisix.service_id=s",
        "apisix.upstream_addr=127.0.0.2:80",
    ] {
        assert!(all.iter().any(|one| one == expected), "{expected}: {all:?}");
    }
    for absent in ["error.type", "user.name", "http.request.body.content", "apisix.service_name"] {
        assert!(!all.iter().any(|one| one.starts_with(absent)), "{absent}: {all:?}");
    }
    assert!(attributes(&record(json!({}), 503).bytes).contains(&"error.type=503".to_owned()));
}

#[test]
fn the_status_decides_the_severity() {
    for (status, severity) in [(200, "INFO"), (302, "INFO"), (404, "WARN"), (499, "WARN"), (500, "ERROR")] {
        let bytes = record(json!({}), status).bytes;
        assert_eq!(part(&bytes, field::LOG_SEVERITY_TEXT), Some(severity.as_bytes()), "{status}");
    }
}

#[test]
fn a_format_is_the_body_and_further_fields_are_attributes() {
    let own = record(json!({"log_format": {"q": "$arg_b"}, "log_format_extra": {"x": 1}}), 200);
    assert_eq!(own.fields, [("body", br#"{"q":"c","service_id":"s","route_id":"1"}"#.to_vec())]);
    assert!(attributes(&own.bytes).is_empty() && part(&own.bytes, field::LOG_BODY).is_none());
    let extra = record(json!({"log_format_extra": {"q": "$arg_b", "n": 1, "none": "$http_none"}}), 200);
    assert_eq!(extra.fields.len(), 1);
    assert_eq!(extra.fields[0].0, "attributes");
    assert_eq!(serde_json::from_slice::<Value>(&extra.fields[0].1).unwrap(), json!({"q": "c", "n": 1}));
    assert!(part(&extra.bytes, field::LOG_BODY).is_some());
}

#[test]
fn a_traced_request_has_its_span_in_the_record() {
    for (sampler, is_traced) in [("always_on", true), ("always_off", false)] {
        let mut probe = Probe::get("/a");
        let tracer: Opentelemetry = probe.stage(json!({"sampler": {"name": sampler}})).unwrap();
        let plugin: OtlpLogger = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        let _ = tracer.rewrite(&mut x);
        let sent = x.header("traceparent").unwrap_or_default().to_vec();
        let span = sdk::trace::SpanContext::parse(&sent).unwrap();
        respond(&mut x, 200, &[]);
        let bytes = of(&plugin.logger, &x).unwrap().bytes;
        let expected = is_traced.then_some((&span.trace_id[..], &span.span_id[..]));
        assert_eq!(part(&bytes, field::LOG_TRACE_ID).zip(part(&bytes, field::LOG_SPAN_ID)), expected);
    }
}

#[test]
fn versions_are_those_of_the_conventions() {
    let all = ["HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"];
    assert_eq!(all.map(version), ["1.0", "1.1", "2", "3"]);
}
