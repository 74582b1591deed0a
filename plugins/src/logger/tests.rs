use std::sync::Arc;
use std::sync::mpsc::channel;

use sdk::exchange::Body;
use sdk::sink::{Destination, Next, Sinks, Spec};
use sdk::testing::{FixedNames, Probe, chunk, respond, with_body};
use sdk::{Client, Plugin};

use super::*;
use crate::file_logger::FileLogger;
use crate::http_logger::HttpLogger;
use crate::syslog::Syslog;
use crate::tcp_logger::TcpLogger;

fn plugin(probe: &Probe, mut config: Value, metadata: Option<Value>) -> FileLogger {
    config["path"] = json!("logs/a.log");
    probe.stage_with(config, metadata.as_ref(), &FixedNames::default()).unwrap()
}

fn entry(plugin: &FileLogger, x: &Exchange<'_>, unmatched: Option<&str>) -> Value {
    let entry = plugin.logger.entry(x, unmatched);
    serde_json::from_slice(&entry)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&entry)))
}

fn get(entry: &Value, pointer: &str) -> Value {
    entry.pointer(pointer).cloned().unwrap_or(json!("absent"))
}

#[test]
fn the_full_entry_has_every_field() {
    let headers = [("Host", "H.example:81"), ("X-A", "1"), ("x-a", "2"), ("User-Agent", "a\"b")];
    let mut probe = Probe::request("GET", "/a%20b?x=1&y&x=%202&=z", &headers).from_ip("10.1.2.3");
    probe.route.service_id = "s".into();
    let plugin = plugin(&probe, json!({}), None);
    let mut x = probe.exchange();
    x.engine_mut().upstream_addr = Some("127.0.0.2:80".parse().unwrap());
    x.engine_mut().timing.total_us = 12_345;
    x.engine_mut().timing.upstream_us = 10_000;
    (x.engine_mut().timing.received, x.engine_mut().timing.sent) = (100, 200);
    respond(&mut x, 201, &[("Content-Type", "text/plain"), ("Set-Cookie", "a"), ("set-cookie", "b")]);
    let mut logged = entry(&plugin, &x, None);
    let server = logged.as_object_mut().unwrap().remove("server").unwrap();
    assert!(server["hostname"].is_string() && server["version"].is_string(), "{server}");
    assert_eq!(
        logged,
        json!({
            "request": {
                "url": "http://h.example:9080/a%20b?x=1&y&x=%202&=z", "uri": "/a%20b?x=1&y&x=%202&=z", "method": "GET",
                "headers": {"host": "H.example:81", "x-a": ["1", "2"], "user-agent": "a\"b"},
                "querystring": {"x": ["1", " 2"], "y": true}, "size": 100,
            },
            "response": {
                "status": 201, "headers": {"content-type": "text/plain", "set-cookie": ["a", "b"]}, "size": 200,
            },
            "upstream": "127.0.0.2:80", "service_id": "s", "route_id": "1", "client_ip": "10.1.2.3",
            "start_time": 1_699_999_999_988_u64, "latency": 12.345, "upstream_latency": 10, "apisix_latency": 2.345,
        })
    );
}

#[test]
fn a_request_without_a_route_is_reported_by_its_host() {
    let mut probe = Probe::get("/");
    let plugin = plugin(&probe, json!({}), None);
    let mut x = probe.exchange();
    x.engine_mut().matched.route = None;
    let logged = entry(&plugin, &x, None);
    assert_eq!(
        [get(&logged, "/service_id"), get(&logged, "/route_id")],
        [json!("example.com"), json!("absent")]
    );
    for gone in ["upstream", "upstream_latency", "consumer"] {
        assert!(logged.get(gone).is_none(), "{gone}");
    }
    assert_eq!(get(&entry(&plugin, &x, Some("no-matched")), "/route_id"), json!("no-matched"));
}

#[test]
fn the_consumer_is_logged() {
    let mut probe = Probe::get("/").consumer::<crate::key_auth::KeyAuth>("jack", json!({"key": "k"}));
    let plain = plugin(&probe, json!({}), None);
    let taken = plugin(&probe, json!({"log_format_extra": {"consumer": "mine"}}), None);
    let mut x = probe.exchange();
    let identity = x.consumers().find("key-auth", b"k").unwrap().clone();
    x.authenticate(identity);
    for plugin in [plain, taken] {
        assert_eq!(get(&entry(&plugin, &x, None), "/consumer"), json!({"username": "jack"}));
    }
}

#[test]
fn formats_take_precedence_in_apisix_s_order() {
    let mut probe = Probe::get("/a");
    probe.route.service_id = "s".into();
    let own = json!({"uri": "$uri", "route_id": "mine"});
    let ids = json!({"route_id": "1", "service_id": "s"});
    let with = |format: Value| {
        let mut all = ids.clone();
        all.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
        all
    };
    let metadata = |format: Value| Some(json!({ "log_format": format }));
    for (config, metadata, expected) in [
        (json!({"log_format": own}), metadata(json!({"a": "b"})), Some(with(json!({"uri": "/a"})))),
        (json!({}), metadata(json!({"a": "b"})), Some(with(json!({"a": "b"})))),
        (json!({"log_format": {}}), metadata(json!({"a": "b"})), Some(ids.clone())),
        (json!({"log_format": {}, "log_format_extra": {"c": "d"}}), None, Some(ids.clone())),
        (json!({}), metadata(json!({})), None),
    ] {
        let plugin = plugin(&probe, config.clone(), metadata);
        let logged = entry(&plugin, &probe.exchange(), None);
        match expected {
            Some(expected) => assert_eq!(logged, expected, "{config}"),
            None => assert!(logged.get("request").is_some(), "{config}"),
        }
    }
}

#[test]
fn a_format_of_one_s_own_names_the_route_itself_where_there_is_none() {
    let mut probe = Probe::get("/a");
    for (format, expected) in [
        (json!({"a": "b"}), json!({"a": "b", "route_id": "no-matched"})),
        (json!({"route_id": "mine"}), json!({"route_id": "mine"})),
        (json!({}), json!({"route_id": "no-matched"})),
    ] {
        let plugin = plugin(&probe, json!({"log_format": format}), None);
        let mut x = probe.exchange();
        x.engine_mut().matched.route = None;
        assert_eq!(entry(&plugin, &x, Some("no-matched")), expected);
    }
}

#[test]
fn further_fields_never_take_the_place_of_others() {
    let mut probe = Probe::get("/a");
    let metadata = Some(json!({"log_format_extra": {"meta": "only"}}));
    let plugin = |config, metadata: &Option<Value>| plugin(&Probe::get("/a"), config, metadata.clone());
    let more = json!({"log_format_extra": {"uri": "$uri", "request": "mine", "upstream": "mine"}});
    let (own, inherited) = (plugin(more, &metadata), plugin(json!({}), &metadata));
    let emptied = plugin(json!({"log_format_extra": {}}), &metadata);
    let x = probe.exchange();
    let logged = entry(&own, &x, None);
    assert_eq!(
        [get(&logged, "/uri"), get(&logged, "/meta"), get(&logged, "/upstream")],
        ["/a", "absent", "mine"]
    );
    assert_eq!(get(&logged, "/request/method"), "GET");
    assert_eq!(get(&entry(&inherited, &x, None), "/meta"), "only");
    assert_eq!(get(&entry(&emptied, &x, None), "/meta"), "absent");
    drop(x);
    // Names that stand there in some entries only.
    let names = ["route_id", "upstream", "upstream_latency", "consumer"];
    let mine: serde_json::Map<_, _> = names.iter().map(|name| ((*name).to_owned(), json!("mine"))).collect();
    let own = self::plugin(&Probe::get("/a"), json!({"log_format_extra": mine}), None);
    let is_mine = |logged: Value| names.map(|name| get(&logged, &format!("/{name}")) == "mine");
    let mut x = probe.exchange();
    assert_eq!(is_mine(entry(&own, &x, None)), [false, true, true, true]);
    x.engine_mut().matched.route = None;
    assert_eq!(is_mine(entry(&own, &x, None)), [true; 4]);
    assert_eq!(is_mine(entry(&own, &x, Some("no-matched"))), [false, true, true, true]);
    x.engine_mut().upstream_addr = Some("10.0.0.1:80".parse().unwrap());
    assert_eq!(is_mine(entry(&own, &x, None)), [true, false, false, true]);
}

#[test]
fn the_request_s_body_is_read_as_far_as_it_is_logged() {
    let mut probe = Probe::request("POST", "/a", &[("Host", "h")]);
    let config = json!({
        "include_req_body": true, "max_req_body_bytes": 4, "include_req_body_expr": [["arg_log", "==", "yes"]],
    });
    let plugin = plugin(&probe, config, None);
    assert!(plugin.phases() == Phases::LOG | Phases::ACCESS);
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(plugin.access(&mut x), Step::Body(4)));
    with_body(&mut x, b"123456");
    assert!(matches!(plugin.access(&mut x), Step::Next));
    assert_eq!(get(&entry(&plugin, &x, None), "/request/body"), "absent", "the condition does not hold");
    drop(x);
    probe.ask("POST", "/a?log=yes", &[("Host", "h")]);
    let mut x = probe.exchange();
    with_body(&mut x, b"123456");
    assert_eq!(get(&entry(&plugin, &x, None), "/request/body"), "1234");
    x.engine_mut().body_state = Body::TooLarge;
    assert_eq!(get(&entry(&plugin, &x, None), "/request/body"), "1234", "the beginning of a longer one");
    x.engine_mut().body_asked = 4;
    assert!(matches!(plugin.access(&mut x), Step::Next), "there is enough of it");
    x.engine_mut().body_asked = 1000;
    with_body(&mut x, b"");
    x.engine_mut().body_state = Body::TooLarge;
    std::rc::Rc::make_mut(&mut x.engine_mut().messages.body).truncate(3);
    assert!(
        matches!(plugin.access(&mut x), Step::Body(4)),
        "another plugin asked for more, and it was not read"
    );
}

#[test]
fn a_format_with_the_body_reads_the_body() {
    let mut probe = Probe::request("POST", "/a", &[("Host", "h")]);
    let plugin =
        plugin(&probe, json!({"log_format": {"b": {"c": "$request_body"}}, "max_req_body_bytes": 2}), None);
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    assert!(matches!(plugin.access(&mut x), Step::Body(2)));
    with_body(&mut x, b"123");
    assert_eq!(get(&entry(&plugin, &x, None), "/b/c"), "12");
}

#[test]
fn the_response_s_body_is_collected_up_to_its_bound() {
    let mut probe = Probe::get("/a");
    let config = json!({
        "include_resp_body": true, "max_resp_body_bytes": 5, "include_resp_body_expr": [["status", "==", 200]],
    });
    let plugin = plugin(&probe, config, None);
    assert!(plugin.phases() == Phases::LOG | Phases::BODY_FILTER);
    let mut x = probe.exchange();
    assert_eq!(get(&entry(&plugin, &x, None), "/response/body"), "absent");
    respond(&mut x, 200, &[]);
    assert!(plugin.filters_body(&x));
    for (text, last) in [("123", false), ("456", false), ("789", true)] {
        let mut piece = chunk(text.as_bytes(), last);
        plugin.body_filter(&mut x, &mut piece);
        assert_eq!(piece.data, text.as_bytes(), "it goes on as it is");
    }
    assert_eq!(get(&entry(&plugin, &x, None), "/response/body"), "12345");
    drop(x);
    assert!(probe.world.budget.taken() >= 5);
    probe.messages.clear();
    assert_eq!(probe.world.budget.taken(), 0);
    let mut x = probe.exchange();
    respond(&mut x, 404, &[]);
    assert!(!plugin.filters_body(&x));
    plugin.body_filter(&mut x, &mut chunk(b"123", true));
    assert_eq!(get(&entry(&plugin, &x, None), "/response/body"), "absent");
}

#[test]
fn each_logger_collects_for_itself() {
    let mut probe = Probe::get("/a");
    let collects = |most: u64| json!({"include_resp_body": true, "max_resp_body_bytes": most});
    let all = [
        plugin(&probe, collects(2), None),
        plugin(&probe, collects(3), None),
        plugin(&probe, json!({}), None),
    ];
    let mut x = probe.exchange();
    respond(&mut x, 200, &[]);
    for plugin in &all {
        plugin.body_filter(&mut x, &mut chunk(b"12345", true));
    }
    let bodies = all.each_ref().map(|plugin| get(&entry(plugin, &x, None), "/response/body"));
    assert_eq!(bodies, ["12", "123", "absent"]);
}

#[test]
fn a_body_that_finds_no_room_is_cut_and_reported() {
    let mut probe = Probe::get("/a");
    probe.world.budget = sdk::budget::Budget::new(4);
    let plugin = plugin(&probe, json!({"include_resp_body": true}), None);
    let mut x = probe.exchange();
    respond(&mut x, 200, &[]);
    for (text, last) in [("123", false), ("45", false), ("6", true)] {
        plugin.body_filter(&mut x, &mut chunk(text.as_bytes(), last));
    }
    assert_eq!(get(&entry(&plugin, &x, None), "/response/body"), "123");
    drop(x);
    assert_eq!(probe.world.complaints.borrow().len(), 1);
}

#[test]
fn a_compressed_body_is_logged_decoded() {
    use std::io::Write;
    let text = "hello ".repeat(100);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut brotli = Vec::new();
    brotli::CompressorWriter::new(&mut brotli, 4096, 5, 20).write_all(text.as_bytes()).unwrap();
    assert_eq!(decoded(Some(b"gzip"), &gzip, 1000), Some(text.clone().into_bytes()));
    assert_eq!(decoded(Some(b"br"), &brotli, 1000), Some(text.clone().into_bytes()));
    assert_eq!(decoded(Some(b"gzip"), &gzip, 7), Some(b"hello h".to_vec()), "never more than may be logged");
    assert_eq!(decoded(Some(b"gzip"), b"hello", 1000), None);
    let zstd = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert_eq!(decoded(Some(b"zstd"), &zstd, 1000), Some(text.clone().into_bytes()));
    assert_eq!(decoded(Some(b"zstd"), &gzip, 1000), None);
    assert_eq!(decoded(Some(b"deflate"), &gzip, 1000), None);
    assert_eq!(decoded(None, &gzip, 1000), None);
    let mut probe = Probe::get("/a");
    let plugin = plugin(&probe, json!({"include_resp_body": true}), None);
    let mut x = probe.exchange();
    respond(&mut x, 200, &[("Content-Encoding", "gzip")]);
    plugin.body_filter(&mut x, &mut chunk(&gzip, true));
    assert_eq!(get(&entry(&plugin, &x, None), "/response/body"), text);
}

#[test]
fn the_own_address_is_the_listener_s() {
    let mut probe = Probe::get("/");
    probe.client = Client::new("[::1]:5".parse().unwrap(), "[::1]:6".parse().unwrap(), true);
    let plugin = plugin(&probe, json!({}), None);
    assert_eq!(get(&entry(&plugin, &probe.exchange(), None), "/request/url"), "https://example.com:6/");
}

/// Returns the entry that a logger puts into its sink for an exchange, and the sink it asked for.
fn logged<P: Plugin>(mut config: Value) -> (Spec, Value) {
    let options = json!({
        "include_resp_body": true, "include_resp_body_expr": [["status", "==", 200]],
        "log_format_extra": {"route": "$route_id"},
    });
    config.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let (to, started) = channel();
    let mut probe = Probe::get("/a");
    probe.services.sinks = Arc::new(Sinks::new(1 << 20, move |intake| to.send(intake).unwrap()));
    let plugin: P = probe.stage(config).unwrap();
    assert!(plugin.phases() == Phases::LOG | Phases::BODY_FILTER);
    let mut x = probe.exchange();
    for (status, collects) in [(404, false), (200, true)] {
        respond(&mut x, status, &[]);
        assert_eq!(plugin.filters_body(&x), collects, "{status}");
    }
    plugin.body_filter(&mut x, &mut chunk(b"body", true));
    plugin.log(&mut x);
    let intake = started.try_recv().expect("an entry");
    let Some(Next::Entries(entries)) = intake.take() else { panic!("no entry") };
    let text = String::from_utf8(entries.bytes().to_vec()).unwrap();
    (intake.spec().clone(), serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap())
}

#[test]
fn loggers_put_their_entries_into_the_sinks_they_asked_for() {
    let to = |sink, settings| Destination::server(sink, "127.0.0.1".to_owned(), 5, settings);
    let tcp = |format: &str, tls: Value| to("tcp", json!({"format": format, "tls": tls, "timeout": 1000}));
    let server = |more: Value| {
        let mut config = json!({"host": "127.0.0.1", "port": 5, "timeout": 1000});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let http = json!({
        "endpoints": [{"uri": "/in", "tls": null}], "format": "array", "timeout": 1000,
        "headers": {"Host": "127.0.0.1", "Content-Type": "application/json", "Authorization": null},
    });
    let syslog = json!({"format": "syslog", "tls": {"verify": true}, "timeout": 1000, "keep": true});
    let named = json!({"tls": true, "tls_options": "a.b", "batch_max_size": 1});
    let unnamed = json!({"tls": true, "tls_options": ""});
    for ((spec, entry), target) in [
        (logged::<FileLogger>(json!({"path": "logs/a.log"})), Destination::file("/data/logs/a.log")),
        (logged::<HttpLogger>(json!({"uri": "http://127.0.0.1:5/in", "timeout": 1})), to("http", http)),
        (logged::<TcpLogger>(server(json!({}))), tcp("array", Value::Null)),
        (logged::<TcpLogger>(server(named)), tcp("plain", json!({"name": "a.b", "verify": false}))),
        (logged::<TcpLogger>(server(unnamed)), tcp("array", json!({"name": null, "verify": false}))),
        (logged::<Syslog>(server(json!({"tls": true}))), to("tcp", syslog)),
        (
            logged::<Syslog>(server(json!({"sock_type": "udp"}))),
            to("udp", json!({"format": "syslog", "timeout": 1000})),
        ),
    ] {
        assert_eq!(spec.target, target, "{}", spec.plugin);
        assert_eq!([get(&entry, "/response/body"), get(&entry, "/route")], ["body", "1"], "{}", spec.plugin);
    }
}
