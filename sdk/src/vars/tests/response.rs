//! Variables of the response and of the attempts to get it.

use super::*;
use crate::exchange::Try;

#[test]
fn response_variables() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    x.engine_mut().upstream_addr = Some("10.0.0.2:80".parse().unwrap());
    x.engine_mut().timing.upstream_us = 5_900;
    assert_eq!(text(&x, "upstream_scheme").as_deref(), Some("http"));
    x.engine_mut().forward.scheme = "https";
    respond(&mut x, 502, &[("X-Cache", "HIT")]);
    for (name, expected) in [
        ("status", Some("502")),
        ("upstream_status", Some("502")),
        ("upstream_scheme", Some("https")),
        ("upstream_addr", Some("10.0.0.2:80")),
        ("upstream_response_time", Some("0.005")),
        ("balancer_ip", Some("10.0.0.2")),
        ("balancer_port", Some("80")),
        ("sent_http_x_cache", Some("HIT")),
        ("upstream_http_x_cache", Some("HIT")),
        ("sent_http_none", None),
        ("is_args", Some("")),
        ("args", None),
    ] {
        assert_eq!(text(&x, name).as_deref(), expected, "{name}");
    }
    assert_eq!(Var::parse("balancer_port").value(&x), Some(Value::Number(80.0)));
}

#[test]
fn attempts_are_lists() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    let addr = |n: u8| std::net::SocketAddr::from(([10, 0, 0, n], 80));
    x.engine_mut().upstream_addr = Some(addr(1));
    assert_eq!(text(&x, "upstream_status"), None, "not contacted yet");
    x.engine_mut().tried.push(Try { addr: addr(1), status: 502, took_us: 5_999 });
    x.engine_mut().tried.push(Try { addr: addr(2), status: 504, took_us: 1_000_000 });
    x.engine_mut().upstream_addr = Some(addr(3));
    assert_eq!(text(&x, "upstream_status").as_deref(), Some("502, 504, -"));
    respond(&mut x, 200, &[]);
    assert_eq!(text(&x, "upstream_status").as_deref(), Some("502, 504, 200"));
    assert_eq!(text(&x, "upstream_addr").as_deref(), Some("10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80"));
    assert_eq!(text(&x, "balancer_ip").as_deref(), Some("10.0.0.3"));
    x.engine_mut().timing.upstream_us = 1_008_000;
    assert_eq!(text(&x, "upstream_response_time").as_deref(), Some("0.005, 1.000, 0.002"));
    x.engine_mut().upstream_addr = Some("[::1]:80".parse().unwrap());
    assert_eq!(text(&x, "upstream_addr").as_deref(), Some("10.0.0.1:80, 10.0.0.2:80, [::1]:80"));
}

#[test]
fn responses_of_the_gateway_have_no_upstream_headers() {
    let mut probe = Probe::get("/");
    let mut x = probe.exchange();
    respond(&mut x, 403, &[("X-Cache", "HIT")]);
    x.engine_mut().source = crate::exchange::Source::Plugin;
    assert_eq!(text(&x, "sent_http_x_cache").as_deref(), Some("HIT"));
    assert_eq!(text(&x, "upstream_http_x_cache"), None);
}
