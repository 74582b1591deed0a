//! Every variable, by its name.

mod body;
mod lookups;
mod request;
mod response;

use super::*;
use crate::client::Client;
use crate::testing::{Probe, respond, with_body};
use crate::trace::{SpanContext, Tracer};
use crate::verdict::Undecidable;

fn text(x: &Exchange<'_>, name: &str) -> Option<String> {
    let var = Var::parse(name);
    let value = var.of(x).map(|value| String::from_utf8(value.into_owned()).unwrap());
    let mut written = Vec::new();
    assert_eq!(var.write(x, &mut written), value.is_some(), "{name}");
    assert_eq!(written, value.as_deref().unwrap_or_default().as_bytes(), "{name}");
    value
}

#[test]
fn every_variable_is_in_the_documentation() {
    let pages = [include_str!("../../../docs/operating.md"), include_str!("../../../docs/streams.md")];
    for name in NAMES {
        let shown = format!("`${name}`");
        assert!(pages.iter().any(|page| page.contains(&shown)), "{shown} is not in docs/operating.md, Logs");
    }
}

/// `Plain::read`, `read_other` and `ssl::read` together read every name: with a complete exchange,
/// every variable has a value.
#[test]
fn every_variable_can_have_a_value() {
    let mut probe = Probe::request(
        "POST",
        "/a/b?x=1",
        &[
            ("Host", "a.com:81"),
            ("Content-Type", "text/plain"),
            ("Content-Length", "2"),
            ("Authorization", "Basic YTpi"),
        ],
    );
    probe.route.service_id = "s".into();
    probe.route.service_name = "service".into();
    let addr = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let ends = wire::proxy_protocol::Ends { source: addr("10.0.0.8:1"), destination: addr("10.0.0.7:2") };
    probe.client = Client::new(addr("10.0.0.9:1234"), addr("10.0.0.1:9443"), true).proxied(ends);
    let certificate = crate::client::ClientCertificate {
        subject: "CN=c".into(),
        issuer: "CN=ca".into(),
        serial: "01".into(),
        fingerprint: "02".into(),
        not_before: "then".into(),
        not_after: "later".into(),
        ends: 1_700_000_000 + 3 * 86_400 + 5,
        der: vec![1],
    };
    let session = crate::client::TlsSession {
        server_name: Some("a.com".into()),
        protocol: "TLSv1.3",
        cipher: "c",
        curve: "x",
        alpn: "h2",
        certificate: Some(Box::new(certificate)),
        ..Default::default()
    };
    probe.client.session = Some(std::sync::Arc::new(session));
    let consumer = crate::consumers::Consumer {
        name: "jack".into(),
        group_id: Some("g".into()),
        custom_id: None,
        labels: Vec::new(),
        chain: None,
        slot: 1,
    };
    let identity =
        crate::consumers::Identity { consumer: consumer.into(), credential_id: None, secret: None };
    let mut x = probe.exchange();
    with_body(&mut x, b"ab");
    respond(&mut x, 200, &[]);
    x.authenticate(identity);
    let server = x.intern(b"upstream.test:80");
    let engine = x.engine_mut();
    engine.matched.uri = "/a/*";
    engine.matched.host = "*.com";
    engine.reason = "no route matches";
    engine.upstream_addr = Some(addr("10.0.0.2:80"));
    engine.forward.server = Some(server);
    engine.stream = Some(Box::new(crate::stream::Stream {
        server_name: Some("a.com".into()),
        mqtt_client_id: Some((*b"m").into()),
        connect_us: Some(21_999),
        call: Some(crate::stream::Call { took_us: 1_999, redis_line: Some(b"get a".to_vec()) }),
        ..Default::default()
    }));
    x.engine_mut().timing.total_us = 2_345_678;
    assert_eq!(text(&x, "rpc_time").as_deref(), Some("0.001"));
    assert_eq!(text(&x, "session_time").as_deref(), Some("2.345"));
    assert_eq!(text(&x, "upstream_connect_time").as_deref(), Some("0.021"));
    for (name, expected) in [
        ("proxy_protocol_addr", "10.0.0.8"),
        ("proxy_protocol_port", "1"),
        ("proxy_protocol_server_addr", "10.0.0.7"),
        ("proxy_protocol_server_port", "2"),
        ("upstream_unresolved_host", "upstream.test"),
        ("ssl_client_v_remain", "3"),
        ("uri_param__host", "*.com"),
        ("uri_param__method", "POST"),
    ] {
        assert_eq!(text(&x, name).as_deref(), Some(expected), "{name}");
    }
    let server = x.intern(b"[::1]:80");
    x.engine_mut().forward.server = Some(server);
    assert_eq!(text(&x, "upstream_unresolved_host").as_deref(), Some("[::1]"));
    for tracer in [Tracer::OpenTelemetry, Tracer::Zipkin] {
        x.set_span(tracer, SpanContext { trace_id: [1; 16], span_id: [2; 8], sampled: true });
    }
    for name in plain::NAMES {
        assert!(text(&x, name).is_some_and(|value| !value.is_empty()), "{name}");
    }
}

#[test]
fn names_of_variables() {
    assert_eq!(nearest("upstream_adr"), Some("upstream_addr"));
    assert_eq!(nearest("nothing_like_any"), None);
    let names_server = |name: &str| Var::parse(name).names_server();
    assert!(names_server("upstream_unresolved_host") && !names_server("upstream_addr"));
}

#[test]
fn hex_has_eight_digits() {
    for value in [0, 1, 9, 10, 15, 16, 0x0123_4567, 0x89ab_cdef, 0xfedc_ba98, 0xa0b0_c0d0, u32::MAX] {
        assert_eq!(crate::trace::hex_digits(value), *format!("{value:08x}").as_bytes());
    }
}

#[test]
fn undecidable_conditions_have_a_status_and_a_text() {
    let all = [Undecidable::TooLarge, Undecidable::Unreadable, Undecidable::Spent];
    assert_eq!(all.map(Undecidable::status), [413, 400, 400]);
    let texts: std::collections::BTreeSet<_> = all.map(Undecidable::as_str).into_iter().collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| text.len() > 20), "{texts:?}");
}
