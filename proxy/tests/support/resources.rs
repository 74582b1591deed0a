//! The snapshot of a gateway: its resources, its plugins and the addresses of its servers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::{Desired, Entry, Key, Kind, Resource};
use sdk::build::{Names, Services};
use sdk::meters::Meters;
use serde_json::{Value, json};
use snapshot::Snapshot;
use snapshot::certs::{Tickets, TlsSettings};
use snapshot::compile::{Compiler, Touched};

use super::{filters, recorder, routes, streams, trailers};

pub const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
/// The server for retries, on routes that have it.
pub(super) const SECOND: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

/// The second address of the host `both`.
pub(super) fn other_family() -> SocketAddr {
    "[fd00::1]:80".parse().unwrap()
}

/// The addresses of the host `many`, to which a plugin sends subrequests.
pub(super) fn many() -> impl Iterator<Item = SocketAddr> {
    (1..=4).map(|last| SocketAddr::from(([10, 0, 1, last], 80)))
}

/// Resolves `both` to an address of each family, and `many` to several addresses.
struct TwoNames;

impl Names for TwoNames {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        match host {
            "both" => vec![SocketAddr::from(SERVER).ip(), other_family().ip()],
            "many" => many().map(|addr| addr.ip()).collect(),
            _ => Vec::new(),
        }
    }
}

pub fn snapshot() -> (Snapshot, Arc<Meters>) {
    snapshot_of(&[])
}

/// Compiles a snapshot with these resources alone, by their ids; with all if `only` is empty.
pub(super) fn snapshot_of(only: &[&str]) -> (Snapshot, Arc<Meters>) {
    let upstream = json!({
        "type": "roundrobin",
        "nodes": {SocketAddr::from(SERVER).to_string(): 1},
        "timeout": {"connect": 1, "send": 2, "read": 2},
        "keepalive_pool": {"size": 4, "idle_timeout": 60, "requests": 1000},
    });
    let mut desired = Desired::default();
    let mut put = |id: &str, value: Value| {
        let resource = Resource::parse(Kind::Route, id, &value).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::Route, id), resource, 1, 1)));
    };
    put("1", json!({"uris": ["/a", "/1", "/2", "/3", "/b"], "upstream": upstream}));
    put("2", json!({"uri": "/ws", "enable_websocket": true, "upstream": upstream}));
    let rewrite = json!({"response-rewrite": {"filters": [{"regex": "hello", "replace": "HELLO"}]}});
    put("3", json!({"uri": "/filtered", "upstream": upstream, "plugins": rewrite}));
    put("4", json!({"uri": "/trailers", "upstream": upstream, "plugins": {"trailers": {}}}));
    let h2c = routes::upstream(json!({"scheme": "h2c"}));
    put(
        "10",
        json!({"uri": "/ws-h2c", "enable_websocket": true, "upstream": routes::upstream(routes::kept(2))}),
    );
    let tries = json!({"scheme": "h2c", "sluice": {"retry": {"per_try_timeout": 0.5}}});
    put(
        "12",
        json!({"uri": "/ws-h2c-per-try", "enable_websocket": true, "upstream": routes::upstream(tries)}),
    );
    put("9", json!({"uri": "/trailers-h2c", "upstream": h2c, "plugins": {"trailers": {}}}));
    put("11", json!({"uri": "/edits-h2c", "upstream": h2c, "plugins": routes::edits()}));
    let vars = json!([["post_arg_x", "==", "y"]]);
    put("5", json!({"uri": "/held", "vars": vars, "upstream": upstream}));
    let recorded = json!({"recorder": {}});
    put(
        "recorded-held",
        json!({"uri": "/recorded-held", "vars": vars, "plugins": recorded, "upstream": upstream}),
    );
    let batches = json!({"public-api": {"uri": "/apisix/batch-requests"}});
    put("6", json!({"uri": "/batch", "plugins": batches}));
    let asks = json!({"forward-auth": {"uri": "http://many/auth", "timeout": 1000}});
    put("7", json!({"uri": "/asks", "plugins": asks, "upstream": upstream}));
    let asks =
        json!({"forward-auth": {"uri": "http://many/auth", "timeout": 1000, "request_method": "POST"}});
    put("8", json!({"uri": "/asks-post", "plugins": asks, "upstream": upstream}));
    for (uri, plugins) in routes::with_plugins() {
        put(&uri[1..], json!({"uri": uri, "plugins": plugins, "upstream": upstream}));
    }
    for (uri, more) in routes::of_two_servers().into_iter().chain(routes::over_http2()) {
        put(&uri[1..], json!({"uri": uri, "upstream": routes::upstream(more)}));
    }
    let address = json!({"response-rewrite": {"headers": {"set": {"X-Server": "$upstream_addr"}}}});
    let both = routes::upstream(json!({"nodes": [{"host": "both", "port": 80, "weight": 1}]}));
    put("both-address", json!({"uri": "/both-address", "plugins": address, "upstream": both}));
    for (uri, upstream) in routes::of_two_alike() {
        put(&uri[1..], json!({"uri": uri, "plugins": {"recorder": {}}, "upstream": upstream}));
    }
    let asks = json!({"ca": include_str!("../../../tests/certs/ca.crt")});
    let mut partly = asks.clone();
    partly["skip_mtls_uri_regex"] = json!(["^/open"]);
    let (own, ca) =
        (include_str!("../../../tests/certs/server-ec.crt"), include_str!("../../../tests/certs/ca.crt"));
    for (id, name, client, chain) in [
        ("1", "server.test", Value::Null, 0),
        ("2", "own.server.test", asks, 0),
        ("3", "partly.server.test", partly, 0),
        // Its certificates do not fit into three datagrams.
        ("4", "long.server.test", Value::Null, 12),
    ] {
        let mut tls = json!({
            "sni": name,
            "cert": ([own, &ca.repeat(chain)].concat()),
            "key": include_str!("../../../tests/certs/server-ec.key"),
        });
        if !client.is_null() {
            tls["client"] = client;
        }
        let tls = Resource::parse(Kind::Ssl, id, &tls).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::Ssl, id), tls, 1, 1)));
    }
    let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "jack-key"}, "recorder": {}}});
    let jack = Resource::parse(Kind::Consumer, "jack", &jack).unwrap();
    desired.put(Arc::new(Entry::new(Key::new(Kind::Consumer, "jack"), jack, 1, 1)));
    for (port, route) in routes::of_streams() {
        let mut route = route;
        route["server_port"] = json!(port);
        let id = port.to_string();
        let resource = Resource::parse(Kind::StreamRoute, &id, &route).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::StreamRoute, id), resource, 1, 1)));
    }
    if !only.is_empty() {
        let others = desired.iter().map(|entry| entry.key.clone());
        for key in others.filter(|key| !only.contains(&key.id.as_str())).collect::<Vec<_>>() {
            desired.delete(&key);
        }
    }
    let services = Services::for_tests();
    let meters = services.meters.clone();
    let catalog = Arc::new(plugins::Catalog::new(services, Default::default()));
    catalog.register(Box::new(trailers::Trailers)).unwrap();
    catalog.register(Box::new(recorder::Recorder)).unwrap();
    catalog.register(Box::new(filters::Filters)).unwrap();
    catalog.register(Box::<streams::First>::default()).unwrap();
    catalog.register(Box::new(streams::Waits)).unwrap();
    catalog.register(Box::new(streams::Sees)).unwrap();
    let settings = snapshot::compile::Settings {
        protocols: vec!["dubbo".to_owned(), "redis".to_owned()],
        tls: TlsSettings { tickets: Tickets::new(3600), ..TlsSettings::default() },
        ..Default::default()
    };
    let compiled = Compiler::new(Arc::new(streams::WithStreams(catalog)), settings).compile(
        &desired,
        &Touched::all(),
        &TwoNames,
        1,
    );
    assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    (compiled.snapshot, meters)
}
