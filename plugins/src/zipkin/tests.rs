use std::sync::Arc;
use std::sync::mpsc::channel;

use sdk::sink::{Next, Sinks};
use sdk::testing::{Probe, respond};

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn stage(probe: &Probe, more: Value) -> Zipkin {
    let mut config = json!({"endpoint": "http://127.0.0.1:9411/api/v2/spans", "sample_ratio": 1});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    probe.stage(config).unwrap()
}

fn header(x: &Exchange<'_>, name: &str) -> String {
    x.header(name).map_or("absent".to_owned(), |value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn traces_are_continued() {
    let plugin = stage(&Probe::default(), json!({}));
    let single = |value: String| vec![("b3", value)];
    for (given, trace, sampled) in [
        (vec![("X-B3-TraceId", TRACE.to_uppercase()), ("X-B3-SpanId", SPAN.to_owned())], Some(TRACE), "1"),
        (vec![("X-B3-TraceId", SPAN.to_owned()), ("X-B3-Sampled", "0".to_owned())], Some(SPAN), "0"),
        (vec![("X-B3-TraceId", TRACE.to_owned()), ("X-B3-Sampled", "false".to_owned())], Some(TRACE), "0"),
        (vec![("X-B3-TraceId", "xyz".to_owned())], None, "1"),
        (vec![("X-B3-TraceId", TRACE.to_owned()), ("X-B3-ParentSpanId", "1".to_owned())], None, "1"),
        (single("0".to_owned()), None, "0"),
        (single(format!("{TRACE}-{SPAN}")), Some(TRACE), "1"),
        (single(format!("{TRACE}-{SPAN}-0")), Some(TRACE), "0"),
        (single(format!("{TRACE}-{SPAN}-d-{SPAN}")), Some(TRACE), "1"),
        (single(format!("{TRACE}-1-0")), None, "0"),
        // Zipkin refuses a whole batch for one identifier of zeros; only parents are sent so.
        (single(format!("{}-{SPAN}", "0".repeat(32))), None, "1"),
        (single(format!("{}-{SPAN}", "0".repeat(16))), None, "1"),
        (single(format!("{TRACE}-{}", "0".repeat(16))), None, "1"),
        (single(format!("{TRACE}-{SPAN}-1-{}", "0".repeat(16))), Some(TRACE), "1"),
    ] {
        let headers: Vec<_> = given.iter().map(|(name, value)| (*name, &value[..])).collect();
        let mut probe = Probe::request("GET", "/", &headers);
        let mut x = probe.exchange();
        assert!(matches!(plugin.rewrite(&mut x), Step::Next), "{given:?}");
        let sent = header(&x, "x-b3-traceid");
        match trace {
            Some(trace) => assert_eq!(sent, trace, "{given:?}"),
            None => assert!(sent.len() == 32 && sent != TRACE, "{given:?}"),
        }
        assert_eq!((header(&x, "x-b3-sampled").as_str(), header(&x, "b3").as_str()), (sampled, "absent"));
        assert_eq!(header(&x, "x-b3-flags") == "1", given[0].1.contains("-d-"), "{given:?}");
        let span = header(&x, "x-b3-spanid");
        assert!(span.len() == 16 && span != SPAN, "{given:?}");
    }
    for bad in ["", "1", "abc", "d"] {
        let mut probe = Probe::request("GET", "/", &[("b3", bad)]);
        let step = plugin.rewrite(&mut probe.exchange());
        assert!(matches!(step, Step::Reply(reply) if reply.status == 400), "{bad}");
    }
}

/// The spans that an exchange has.
fn spans(config: Value, headers: &[(&str, &str)]) -> (Vec<Value>, String) {
    let (to, started) = channel();
    let mut probe = Probe::request("GET", "/a?b=\"", headers).from_ip("10.1.2.3");
    probe.services.sinks = Arc::new(Sinks::new(1 << 20, move |intake| to.send(intake).unwrap()));
    let plugin = stage(&probe, config);
    let mut x = probe.exchange();
    let _ = plugin.rewrite(&mut x);
    let sent = header(&x, "x-b3-spanid");
    respond(&mut x, 200, &[]);
    let engine = x.engine_mut();
    engine.upstream_addr = Some("127.0.0.2:80".parse().unwrap());
    engine.timing.total_us = 9_000;
    engine.timing.upstream_us = 8_000;
    (engine.timing.asked_us, engine.timing.answered_us) = (100, 5_100);
    plugin.log(&mut x);
    let Some(Next::Entries(taken)) = started.try_recv().unwrap().take() else { panic!("no entry") };
    let text = [b"[", taken.bytes(), b"]"].concat();
    (serde_json::from_slice(&text).unwrap(), sent)
}

#[test]
fn spans_have_names_parents_and_times() {
    let headers = [("X-B3-TraceId", TRACE), ("X-B3-SpanId", SPAN)];
    let (all, sent) = spans(json!({"service_name": "g\"", "server_addr": "1.2.3.4"}), &headers);
    let request = all[0].clone();
    assert_eq!(
        request,
        json!({
            "traceId": TRACE, "id": request["id"], "parentId": SPAN, "name": "apisix.request", "kind": "SERVER",
            "timestamp": 1_700_000_000_000_000_u64, "duration": 9000,
            "localEndpoint": {"serviceName": "g\"", "ipv4": "1.2.3.4", "port": 9080},
            "remoteEndpoint": {"ipv4": "10.1.2.3", "port": 40000},
            "tags": {
                "component": "apisix", "http.method": "GET", "http.url": "/a?b=\"", "http.status_code": "200",
                "apisix.response_source": request["tags"]["apisix.response_source"],
            },
        })
    );
    let about = |span: &Value| {
        let name = span["name"].as_str().unwrap().to_owned();
        (
            name,
            span["parentId"].clone(),
            span["timestamp"].as_u64().unwrap() % 1_000_000,
            span["duration"].clone(),
        )
    };
    let named = |name: &str, parent: &Value, from: u64, duration: u64| {
        (name.to_owned(), parent.clone(), from, json!(duration))
    };
    assert_eq!(
        all[1..].iter().map(about).collect::<Vec<_>>(),
        [
            named("apisix.proxy", &request["id"], 0, 6000),
            named("apisix.response_span", &request["id"], 6000, 3000),
        ]
    );
    assert_eq!(all[1]["id"], json!(sent));
}

#[test]
fn version_1_has_a_span_for_each_phase() {
    let (all, sent) = spans(json!({"span_version": 1}), &[]);
    let (request, proxy) = (&all[0]["id"], json!(sent));
    assert!(all[0].get("parentId").is_none());
    let about: Vec<_> = all[1..].iter().map(|span| (&span["name"], &span["parentId"])).collect();
    let name = |text: &str| json!(format!("apisix.{text}"));
    assert_eq!(
        about,
        [
            (&name("rewrite"), request),
            (&name("access"), request),
            (&name("proxy"), request),
            (&name("body_filter"), &proxy),
        ]
    );
    let ids: std::collections::BTreeSet<_> = all.iter().map(|span| span["id"].to_string()).collect();
    assert_eq!(ids.len(), 5);
}

#[test]
fn mistakes_are_named() {
    for (more, pointer) in [
        (json!({"endpoint": "h"}), "/endpoint"),
        (json!({"sample_ratio": 0}), "/sample_ratio"),
        (json!({"server_addr": "999.1.1.1"}), "/server_addr"),
        (json!({"span_version": 3}), "/span_version"),
    ] {
        let mut config = json!({"endpoint": "http://h", "sample_ratio": 1});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let invalid = Probe::default().stage::<Zipkin>(config).err().unwrap();
        assert_eq!(invalid.pointer, pointer, "{more}");
    }
}
