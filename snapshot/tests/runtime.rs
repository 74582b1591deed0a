//! Upstreams that plugins make while the gateway runs.

use std::net::IpAddr;
use std::sync::Arc;

use crate::support::Plugins;
use sdk::testing::Probe;
use sdk::upstream::MakeUpstream;
use serde_json::{Value, json};
use snapshot::compile::Settings;
use snapshot::{Maker, RUNTIME_SLOT, made};

#[test]
fn they_are_as_configured_ones_but_unsupervised() {
    let maker = Maker::new(Arc::new(Plugins), Settings::default());
    let addresses = [("one.test".to_owned(), vec![IpAddr::from([10, 0, 0, 1])])];
    let make = |settings: Value| maker.make("mine", &settings, &addresses);
    let upstream = |settings: Value| {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        x.forward_to(&make(settings).unwrap());
        made(&x).unwrap()
    };
    let nodes = json!({"one.test:81": 2, "10.0.0.2:80": 1, "none.test": 1});
    let one = upstream(json!({"nodes": nodes, "type": "roundrobin", "scheme": "https"}));
    let found = one.endpoints.iter().map(|endpoint| format!("{} {}", endpoint.addr, endpoint.weight));
    assert_eq!(found.collect::<Vec<_>>(), ["10.0.0.1:81 2", "10.0.0.2:80 1"]);
    assert!(one.tls.is_some() && one.health.is_none() && one.slot >= RUNTIME_SLOT);
    let other = upstream(json!({"nodes": {"10.0.0.2:80": 1}}));
    assert_ne!(other.slot, one.slot, "each has a state of its own");
    for (settings, field) in [
        (json!({"service_name": "a", "discovery_type": "dns"}), "/service_name"),
        (json!({"nodes": {}, "checks": {"active": {"http_path": "/"}}}), "/checks"),
        (json!({"nodes": {}, "sluice": {"limits": {"connections": 1}}}), "/sluice"),
        (json!({"nodes": {"a:b:c": -1}}), "/nodes"),
    ] {
        let error = make(settings).expect_err(field);
        assert!(error.pointer.starts_with(field), "{error} {}", error.pointer);
    }
}
