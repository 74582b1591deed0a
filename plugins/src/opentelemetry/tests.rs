use std::sync::Arc;
use std::sync::mpsc::channel;

use sdk::sink::{Intake, Next, Sinks};
use sdk::testing::{FixedNames, Probe, respond};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn always() -> Value {
    json!({"sampler": {"name": "always_on"}})
}

fn stage(probe: &Probe, config: Value, metadata: Value) -> Opentelemetry {
    probe.stage_with(config, Some(&metadata), &FixedNames::default()).unwrap()
}

fn traceparent(x: &Exchange<'_>) -> String {
    String::from_utf8(x.header("traceparent").unwrap_or_default().to_vec()).unwrap()
}

/// The fields of a message: numbers, and bytes for what has a length.
fn fields(mut bytes: &[u8]) -> Vec<(u32, u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (mut number, mut data) = (0, Vec::new());
        match tag & 7 {
            0 => number = varint(&mut bytes),
            1 => {
                number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                bytes = &bytes[8..];
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                data = bytes[..length].to_vec();
                bytes = &bytes[length..];
            }
            other => panic!("wire type {other}"),
        }
        all.push(((tag >> 3) as u32, number, data));
    }
    all
}

/// The attributes of a span as `key=value`.
fn attributes(span: &[(u32, u64, Vec<u8>)]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let attribute = |(_, _, bytes): &(u32, u64, Vec<u8>)| {
        let parts = fields(bytes);
        let (kind, number, value) = fields(&parts[1].2).remove(0);
        let value = if kind == 1 { text(&value) } else { number.to_string() };
        format!("{}={value}", text(&parts[0].2))
    };
    span.iter().filter(|(field, ..)| *field == field::SPAN_ATTRIBUTES).map(attribute).collect()
}

fn recorded(intake: &Intake) -> Vec<(u32, u64, Vec<u8>)> {
    match intake.take() {
        Some(Next::Entries(taken)) => fields(taken.bytes()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sampled_request_has_a_span() {
    let (to, started) = channel();
    let given = format!("{PARENT}-00");
    let headers = [
        ("Host", "h.example"),
        ("User-Agent", "agent"),
        ("traceparent", &given[..]),
        ("tracestate", "a=b"),
        ("X-My-A", "1"),
        ("x-my-a", "2"),
        ("X-My-B", "3"),
    ];
    let mut probe = Probe::request("GET", "/a?b=c", &headers);
    probe.services.sinks = Arc::new(Sinks::new(1 << 20, move |intake| to.send(intake).unwrap()));
    probe.route.name = "name".into();
    probe.route.service_id = "s".into();
    let mut config = always();
    config["additional_attributes"] = json!(["arg_b", "http_none"]);
    config["additional_header_prefix_attributes"] = json!(["x-my-*", "User-Agent"]);
    let plugin = stage(&probe, config, json!({}));
    let mut x = probe.exchange();
    assert!(matches!(plugin.rewrite(&mut x), Step::Next));
    let sent = SpanContext::parse(traceparent(&x).as_bytes()).unwrap();
    let parent = SpanContext::parse(given.as_bytes()).unwrap();
    assert!(sent.trace_id == parent.trace_id && sent.span_id != parent.span_id && sent.sampled);
    assert_eq!(x.header("tracestate"), Some(&b"a=b"[..]));
    respond(&mut x, 503, &[]);
    x.engine_mut().timing.total_us = 1500;
    plugin.log(&mut x);
    let intake = started.try_recv().unwrap();
    assert_eq!((intake.spec().target.sink, &intake.spec().owner), ("otlp", &None));
    let span = recorded(&intake);
    let of = |field: u32| span.iter().find(|(number, ..)| *number == field).cloned().unwrap();
    assert_eq!(of(field::SPAN_TRACE_ID).2, parent.trace_id);
    assert_eq!(of(field::SPAN_ID).2, sent.span_id);
    assert_eq!(of(field::SPAN_PARENT).2, parent.span_id);
    assert_eq!(of(field::SPAN_TRACE_STATE).2, b"a=b");
    assert!(of(field::SPAN_NAME).2.starts_with(b"GET "));
    assert_eq!(of(field::SPAN_KIND).1, otlp::KIND_SERVER);
    assert_eq!(of(field::SPAN_END).1 - of(field::SPAN_START).1, 1_500_000);
    let status = fields(&of(field::SPAN_STATUS).2);
    assert!(status[0].2.ends_with(b" error: 503") && status[1].1 == otlp::STATUS_ERROR);
    let attributes = attributes(&span);
    for expected in [
        "net.host.name=h.example",
        "http.method=GET",
        "http.scheme=http",
        "http.target=/a?b=c",
        "http.user_agent=agent",
        "http.request.method=GET",
        "url.scheme=http",
        "url.path=/a",
        "user_agent.original=agent",
        "apisix.route_id=1",
        "apisix.route_name=name",
        "apisix.service_id=s",
        "http.status_code=503",
        "http.response.status_code=503",
        "arg_b=c",
        "x-my-a=1, 2",
        "x-my-b=3",
        "user-agent=agent",
    ] {
        assert!(attributes.iter().any(|one| one == expected), "{expected}: {attributes:?}");
    }
    assert!(!attributes.iter().any(|one| one.starts_with("apisix.service_name") || one.contains("none")));
}

#[test]
fn a_request_that_is_not_sampled_passes_the_trace_on() {
    let probe = Probe::default();
    let plugin = stage(&probe, json!({}), json!({}));
    for (given, expected) in [
        (vec![("traceparent", format!("{PARENT}-01")), ("tracestate", "a=b".to_owned())], Some("a=b")),
        (vec![("traceparent", "00-x".to_owned()), ("tracestate", "a=b".to_owned())], None),
        (
            vec![
                ("traceparent", format!("{PARENT}-01")),
                ("traceparent", format!("{PARENT}-01")),
                ("tracestate", "a=b".to_owned()),
            ],
            None,
        ),
        (vec![("tracestate", "a=b".to_owned())], None),
    ] {
        let headers: Vec<_> = given.iter().map(|(name, value)| (*name, &value[..])).collect();
        let mut probe = Probe::request("GET", "/", &headers);
        let mut x = probe.exchange();
        let _ = plugin.rewrite(&mut x);
        let sent = traceparent(&x);
        assert!(SpanContext::parse(sent.as_bytes()).is_some_and(|context| !context.sampled), "{sent}");
        assert_eq!(sent.starts_with(PARENT.split_at(35).0), expected.is_some(), "{given:?}");
        assert_eq!(x.header("tracestate"), expected.map(str::as_bytes), "{given:?}");
        assert_eq!(x.request().fields.all(b"traceparent").count(), 1);
        assert!(x.note::<Spans>().is_none());
        plugin.log(&mut x);
    }
}

#[test]
fn the_request_s_identifier_may_be_the_trace_s() {
    let probe = Probe::default();
    let plugin = stage(&probe, always(), json!({"trace_id_source": "x-request-id"}));
    for (given, is_taken) in [
        ("0AF7651916CD43DD8448EB211C80319C", true),
        ("0af76519-16cd-43dd-8448-eb211c80319c", false),
        ("00000000000000000000000000000000", false),
        ("", false),
    ] {
        let mut probe = Probe::request("GET", "/", &[("X-Request-Id", given)]);
        let mut x = probe.exchange();
        let _ = plugin.rewrite(&mut x);
        assert_eq!(traceparent(&x)[3..35] == given.to_ascii_lowercase(), is_taken, "{given}");
    }
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    let _ = plugin.rewrite(&mut x);
    let own = Var::parse("request_id").of(&x).unwrap().into_owned();
    assert_eq!(&traceparent(&x).as_bytes()[3..35], own);
}

#[test]
fn variables_hold_the_span() {
    let mut probe = Probe::get("/");
    let plugin = stage(&probe, json!({}), json!({"set_ngx_var": true}));
    let mut x = probe.exchange();
    let _ = plugin.rewrite(&mut x);
    let sent = traceparent(&x);
    let var = |name: &str| String::from_utf8(Var::parse(name).of(&x).unwrap().into_owned()).unwrap();
    assert_eq!(var("opentelemetry_context_traceparent"), sent);
    assert_eq!(var("opentelemetry_trace_id"), sent[3..35]);
    assert_eq!(var("opentelemetry_span_id"), sent[36..52]);
}
