//! proxy-mirror: sends a copy of the request to another server and forgets the answer.
//!
//! Settings as in APISIX 3.18; time-outs from `plugin_attr.proxy-mirror.timeout`. The body
//! of a mirrored request is held in memory, up to `plugin_attr.proxy-mirror.max_body_size`
//! bytes (ours, 1 MiB); a request with a longer one is served as ever but not mirrored.

use bytes::Bytes;
use model::Invalid;
use model::boot::Section;
use sdk::chain::Phases;
use sdk::exchange::Body;
use sdk::world::{Fetch, FetchTimeouts, Keep, Target};
use sdk::{Build, Exchange, Fields, Name, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct ProxyMirror {
    target: Target,
    path: Option<String>,
    prefix: bool,
    sample_ratio: f64,
    timeouts: FetchTimeouts,
    max_body: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    host: String,
    path: Option<String>,
    path_concat_mode: String,
    sample_ratio: f64,
}

/// Where this request is mirrored to, decided in the rewrite phase. A request is mirrored once:
/// the route's word goes before that of a global rule, as in APISIX.
struct Chosen {
    stage: usize,
    uri: Vec<u8>,
}

/// The most bytes of a mirror's answer; it is read only to keep the connection.
const MAX_ANSWER: usize = 1 << 20;

impl Plugin for ProxyMirror {
    const NAME: &'static str = "proxy-mirror";
    const PRIORITY: i32 = 1010;
    const PHASES: Phases = Phases::REWRITE.with(Phases::BEFORE_PROXY);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "host": {
                    "type": "string",
                    "pattern": "^(http(s)?|grpc(s)?):\\/\\/([\\da-zA-Z.-]+|\\[[\\da-fA-F:]+\\])(:\\d+)?$",
                },
                "path": {"type": "string", "pattern": "^/[^?&]+$"},
                "path_concat_mode": {
                    "type": "string", "default": "replace", "enum": ["replace", "prefix"],
                    "description": "the concatenation mode for custom path",
                },
                "sample_ratio": {"type": "number", "minimum": 0.00001, "maximum": 1, "default": 1},
            },
            "required": ["host"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ProxyMirror, Invalid> {
        if !config.host.starts_with("http://") && !config.host.starts_with("https://") {
            return Err(Invalid::new("mirrors over gRPC are not available in this version")
                .at("/host")
                .expected("http://host[:port] or https://host[:port]")
                .got(config.host));
        }
        let (timeouts, max_body) = read_attr(cx.attr);
        Ok(ProxyMirror {
            target: cx.target(&config.host).map_err(|error| error.at("/host"))?,
            path: config.path,
            prefix: config.path_concat_mode == "prefix",
            sample_ratio: config.sample_ratio,
            timeouts,
            max_body,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if self.sample_ratio >= 1.0 || fastrand::f64() < self.sample_ratio {
            let mut uri = Vec::new();
            match &self.path {
                Some(path) => {
                    uri.extend_from_slice(path.as_bytes());
                    if self.prefix {
                        x.upstream_uri(&mut uri);
                    } else if x.request().has_query {
                        uri.push(b'?');
                        uri.extend_from_slice(x.query());
                    }
                }
                None => x.upstream_uri(&mut uri),
            }
            x.set_note(Chosen { stage: self.id(), uri });
        }
        Step::Next
    }

    fn before_proxy(&self, x: &mut Exchange<'_>) -> Step {
        if x.note::<Chosen>().is_none_or(|chosen| chosen.stage != self.id()) {
            return Step::Next;
        }
        // A copy is not worth the request: where there is no memory for one, none is made.
        if let Some(step) = x.ask_for_optional_body(self.max_body) {
            return step;
        }
        match x.body_state() {
            Body::Streaming | Body::TooLarge => {
                x.world().meters().fetch_dropped();
                return Step::Next;
            }
            Body::None | Body::Whole => {}
        }
        let Some(Chosen { uri, .. }) = x.take_note() else { return Step::Next };
        let head = x.request();
        let mut fields = Fields::new();
        for (name, value, id) in head.fields.iter() {
            // The client's address is the gateway's to tell, here as at the upstream.
            if id != Name::XRealIp {
                // They stand in a head already, so they can stand in another.
                let _ = fields.append(name, value);
            }
        }
        let _ = fields.append_id(Name::XRealIp, x.client().ip_text());
        x.count_hop(&mut fields);
        if let Some(host) = x.rewritten_host() {
            let _ = fields.set(b"Host", host);
        }
        x.world().send(Fetch {
            // As nginx does for mirrors.
            verify: false,
            target: self.target.clone(),
            method: x.upstream_method(),
            method_name: head.method_bytes().to_vec(),
            uri,
            fields,
            body: Bytes::copy_from_slice(x.body()),
            timeouts: self.timeouts,
            max_body: MAX_ANSWER,
            // Rather a copy twice than none, where the mirror closed a kept connection.
            repeatable: true,
            http2: false,
            keep: Keep::default(),
            tunnel: None,
        });
        Step::Next
    }
}

/// `plugin_attr.proxy-mirror`: its time-outs, and how long a body may be that is copied.
fn read_attr(attr: Option<&Value>) -> (FetchTimeouts, usize) {
    let attr = Section::attr("/plugin_attr/proxy-mirror", attr);
    let timeouts = FetchTimeouts {
        connect: attr.time("/timeout/connect"),
        send: attr.time("/timeout/send"),
        read: attr.time("/timeout/read"),
    };
    (timeouts, attr.bytes("/max_body_size"))
}

impl ProxyMirror {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, with_body};

    use super::*;

    /// The URIs and bodies that reached the mirror.
    fn mirrored(config: Value, body: Option<&[u8]>) -> Vec<(String, Vec<u8>)> {
        let mut probe = Probe::get("/hello?a=1");
        let stage: ProxyMirror = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        if let Some(body) = body {
            x.engine_mut().body_state = Body::Streaming;
            assert!(matches!(stage.before_proxy(&mut x), Step::Body(1_048_576)));
            with_body(&mut x, body);
        }
        assert!(matches!(stage.before_proxy(&mut x), Step::Next));
        drop(x);
        let sent = probe.world.sent.borrow();
        sent.iter()
            .map(|fetch| (String::from_utf8(fetch.uri.clone()).unwrap(), fetch.body.to_vec()))
            .collect()
    }

    #[test]
    fn attributes_are_times_and_sizes_as_elsewhere() {
        let attr = json!({"timeout": {"connect": "500ms", "send": 2, "read": "1m"}, "max_body_size": "2m"});
        let (timeouts, max_body) = read_attr(Some(&attr));
        let times = [timeouts.connect, timeouts.send, timeouts.read].map(|time| time.as_millis());
        assert_eq!((times, max_body), ([500, 2000, 60_000], 2 << 20));
    }

    #[test]
    fn a_copy_goes_out_with_its_body() {
        let config = json!({"host": "http://127.0.0.1:1982"});
        assert_eq!(mirrored(config.clone(), None), [("/hello?a=1".to_owned(), Vec::new())]);
        assert_eq!(mirrored(config, Some(b"body")), [("/hello?a=1".to_owned(), b"body".to_vec())]);
    }

    #[test]
    fn the_route_s_mirror_goes_before_a_global_one() {
        let mut probe = Probe::get("/hello");
        let stage = |host: &str| probe.stage::<ProxyMirror>(json!({ "host": host })).unwrap();
        let (global, own) = (stage("http://127.0.0.1:1"), stage("http://127.0.0.1:2"));
        let mut x = probe.exchange();
        for step in [global.rewrite(&mut x), own.rewrite(&mut x)] {
            assert!(matches!(step, Step::Next));
        }
        for step in [global.before_proxy(&mut x), own.before_proxy(&mut x)] {
            assert!(matches!(step, Step::Next));
        }
        drop(x);
        let sent = probe.world.sent.borrow();
        let targets: Vec<_> = sent.iter().map(|fetch| fetch.target.authority.as_str()).collect();
        assert_eq!(targets, ["127.0.0.1:2"]);
    }

    #[test]
    fn the_gateway_sets_the_client_s_address() {
        let headers = [("Host", "a"), ("X-Real-IP", "9.9.9.9"), ("X-A", "1"), ("X-A", "2")];
        let mut probe = Probe::request("GET", "/", &headers);
        let stage: ProxyMirror = probe.stage(json!({"host": "http://127.0.0.1:1"})).unwrap();
        let mut x = probe.exchange();
        for step in [stage.rewrite(&mut x), stage.before_proxy(&mut x)] {
            assert!(matches!(step, Step::Next));
        }
        drop(x);
        let sent = probe.world.sent.borrow();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let got: Vec<_> =
            sent[0].fields.iter().map(|(name, value, _)| (text(name).to_lowercase(), text(value))).collect();
        let wanted =
            [("host", "a"), ("x-a", "1"), ("x-a", "2"), ("x-real-ip", "127.0.0.1"), ("sluice-hops", "1")];
        assert_eq!(got, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_share_of_the_requests_is_copied() {
        for (ratio, least, most) in [(1.0, 400, 400), (0.9, 250, 399), (0.1, 1, 150), (0.00001, 0, 10)] {
            let config = json!({"host": "http://127.0.0.1:1982", "sample_ratio": ratio});
            let copies: usize = (0..400).map(|_| mirrored(config.clone(), None).len()).sum();
            assert!((least..=most).contains(&copies), "{ratio}: {copies}");
        }
    }

    #[test]
    fn the_path_is_replaced_or_prefixed() {
        let with = |mode| json!({"host": "http://127.0.0.1:1982", "path": "/m", "path_concat_mode": mode});
        assert_eq!(mirrored(with("replace"), None)[0].0, "/m?a=1");
        assert_eq!(mirrored(with("prefix"), None)[0].0, "/m/hello?a=1");
    }

    #[test]
    fn a_body_too_long_is_served_but_not_mirrored() {
        let mut probe = Probe::request("POST", "/", &[("Host", "a")]);
        let stage: ProxyMirror = probe.stage(json!({"host": "http://127.0.0.1:1"})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        x.engine_mut().body_state = Body::TooLarge;
        assert!(matches!(stage.before_proxy(&mut x), Step::Body(_)), "another stage took less");
        assert!(x.engine_mut().body_optional, "the request goes on without it");
        x.engine_mut().body_asked = usize::MAX;
        assert!(matches!(stage.before_proxy(&mut x), Step::Next));
        drop(x);
        assert!(probe.world.sent.borrow().is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::get("/");
        for host in ["127.0.0.1:80", "ftp://a", "grpc://a", "https://"] {
            assert!(probe.stage::<ProxyMirror>(json!({"host": host})).is_err(), "{host}");
        }
        for host in ["http://127.0.0.1", "https://127.0.0.1:8443"] {
            assert!(probe.stage::<ProxyMirror>(json!({"host": host})).is_ok(), "{host}");
        }
        assert!(probe.stage::<ProxyMirror>(json!({"host": "http://a", "sample_ratio": 2})).is_err());
    }
}
