//! Server certificates and client certificates for upstreams follow the ssl resources.

use std::sync::Arc;

use crate::support::{Plugins, Table, entry};
use model::{Desired, Key, Kind, Served};
use serde_json::{Value, json};
use snapshot::certs::Certificate;
use snapshot::compile::Settings;
use snapshot::{Compiled, Compiler, Touched, Upstream};

macro_rules! pem {
    ($name:literal) => {
        include_str!(concat!("../../tests/certs/", $name))
    };
}

/// A compiler and its input.
struct Bench {
    compiler: Compiler,
    desired: Desired,
}

impl Bench {
    /// With a certificate in the variables `CERT` and `KEY`.
    fn new() -> Bench {
        let env = |name: &str| match name {
            "CERT" => Some(pem!("server-ec.crt").to_owned()),
            "KEY" => Some(pem!("server-ec.key").to_owned()),
            _ => None,
        };
        let settings = Settings { env: Arc::new(env), ..Settings::default() };
        Bench { compiler: Compiler::new(Arc::new(Plugins), settings), desired: Desired::default() }
    }

    fn compile(&mut self, key: Key) -> Compiled {
        self.compiler.compile(&self.desired, &Touched::from_iter([key]), &Table::default(), 1)
    }

    fn put(&mut self, kind: Kind, id: &str, value: Value) -> Compiled {
        self.desired.put(entry(kind, id, value));
        self.compile(Key::new(kind, id))
    }

    fn delete(&mut self, kind: Kind, id: &str) -> Compiled {
        self.desired.delete(&Key::new(kind, id));
        self.compile(Key::new(kind, id))
    }
}

fn ssl(more: Value) -> Value {
    let mut ssl = json!({"cert": pem!("server-ec.crt"), "key": pem!("server-ec.key")});
    ssl.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    ssl
}

fn found<'c>(compiled: &'c Compiled, name: &str) -> Option<&'c Arc<Certificate>> {
    compiled.snapshot.certificates.find(Some(name))
}

fn id(compiled: &Compiled, name: &str) -> Option<String> {
    found(compiled, name).map(|certificate| certificate.id.clone())
}

#[test]
fn names_are_served_while_an_ssl_covers_them() {
    let mut bench = Bench::new();
    let first = bench.put(Kind::Ssl, "1", ssl(json!({"sni": "a.test"})));
    assert_eq!((id(&first, "a.test").as_deref(), first.rejected.len()), (Some("1"), 0));
    let again = bench.put(Kind::Ssl, "1", ssl(json!({"sni": "a.test"})));
    let pair = [&first, &again].map(|compiled| found(compiled, "a.test").expect("it is served"));
    assert!(Arc::ptr_eq(pair[0], pair[1]), "an unchanged key is not parsed again");
    let renamed = bench.put(Kind::Ssl, "1", ssl(json!({"snis": ["b.test.", "*.b.test"]})));
    assert_eq!(id(&renamed, "a.test"), None);
    assert_eq!(["b.test", "x.b.test"].map(|name| id(&renamed, name).is_some()), [true, true]);
    let other_key = json!({"sni": "c.test", "key": pem!("client.key")});
    let wrong = bench.put(Kind::Ssl, "1", ssl(other_key));
    assert_eq!(wrong.rejected[0].served, Served::LastGoodForm);
    assert_eq!((id(&wrong, "b.test").as_deref(), id(&wrong, "c.test")), (Some("1"), None));
    let pair = [&renamed, &wrong].map(|compiled| found(compiled, "b.test").expect("it is served"));
    assert!(Arc::ptr_eq(pair[0], pair[1]), "its last valid version stays in use");
    let off = bench.put(Kind::Ssl, "1", ssl(json!({"sni": "b.test", "status": 0})));
    assert_eq!((id(&off, "b.test"), off.rejected.len()), (None, 0));
    let on = bench.put(Kind::Ssl, "1", ssl(json!({"sni": "b.test"})));
    assert!(id(&on, "b.test").is_some());
    assert_eq!(id(&bench.delete(Kind::Ssl, "1"), "b.test"), None);
}

#[test]
fn certificates_may_be_references_and_lists() {
    let mut bench = Bench::new();
    let elsewhere = json!({"sni": "a.test", "cert": "$env://CERT", "key": "$env://KEY"});
    let compiled = bench.put(Kind::Ssl, "1", ssl(elsewhere));
    assert_eq!((id(&compiled, "a.test").as_deref(), compiled.rejected.len()), (Some("1"), 0));
    let second = json!({"sni": "b.test", "certs": [pem!("server-rsa.crt")], "keys": [pem!("client.key")]});
    let compiled = bench.put(Kind::Ssl, "2", ssl(second));
    let reason = &compiled.rejected[0].invalid.reason;
    assert!(reason.starts_with("failed to handle cert-key pair[1]: "), "{reason}");
    let first = json!({"sni": "b.test", "key": pem!("client.key")});
    let compiled = bench.put(Kind::Ssl, "2", ssl(first));
    let reason = &compiled.rejected[0].invalid.reason;
    assert!(reason.starts_with("failed to parse key"), "{reason}");
}

#[test]
fn an_unservable_ssl_keeps_its_names() {
    let client = json!({"ca": pem!("ca.crt")});
    for wrong in [
        json!({"sni": "strict.test", "client": client, "ssl_protocols": ["TLSv1.1"]}),
        json!({"sni": "strict.test", "client": client, "key": "$env://NONE"}),
    ] {
        let mut bench = Bench::new();
        bench.put(Kind::Ssl, "all", ssl(json!({"sni": "*"})));
        let compiled = bench.put(Kind::Ssl, "strict", ssl(wrong.clone()));
        assert_eq!(compiled.rejected[0].served, Served::Refusal, "{wrong}");
        assert_eq!(id(&compiled, "strict.test").as_deref(), Some("strict"));
        // A connection made under another name still learns that this one requires a certificate.
        assert!(found(&compiled, "strict.test").is_some_and(|strict| strict.client.is_some()));
        assert!(compiled.snapshot.certificates.ask_clients());
        // An error of another kind does not lift the refusal either.
        let broken = json!({"sni": "strict.test", "client": client, "key": pem!("client.key")});
        let compiled = bench.put(Kind::Ssl, "strict", ssl(broken));
        assert_eq!(compiled.rejected[0].served, Served::Refusal);
        assert_eq!(id(&compiled, "strict.test").as_deref(), Some("strict"));
        let mended = bench.put(Kind::Ssl, "strict", ssl(json!({"sni": "strict.test", "client": client})));
        assert_eq!((id(&mended, "strict.test").as_deref(), mended.rejected.len()), (Some("strict"), 0));
        // A certificate that was valid before is not served in unsupported versions.
        let old = json!({"sni": "strict.test", "client": client, "ssl_protocols": ["TLSv1.1"]});
        let compiled = bench.put(Kind::Ssl, "strict", ssl(old));
        assert_eq!(compiled.rejected[0].served, Served::Refusal);
    }
    let mut bench = Bench::new();
    bench.put(Kind::Ssl, "all", ssl(json!({"sni": "*"})));
    let wrong = bench.put(Kind::Ssl, "strict", ssl(json!({"sni": "strict.test", "key": pem!("client.key")})));
    assert_eq!(wrong.rejected[0].served, Served::Nothing, "it never was a certificate");
    // The refusal ends when the resource is for upstreams, or deleted.
    for (kind, left) in [(json!({"type": "client", "key": "$env://NONE"}), 1), (Value::Null, 0)] {
        bench.put(Kind::Ssl, "strict", ssl(json!({"sni": "strict.test", "key": "$env://NONE"})));
        let compiled = match kind.is_null() {
            true => bench.delete(Kind::Ssl, "strict"),
            false => bench.put(Kind::Ssl, "strict", ssl(kind)),
        };
        assert_eq!(id(&compiled, "strict.test").as_deref(), Some("all"));
        assert_eq!(compiled.rejected.len(), left);
    }
    let both = ssl(json!({"sni": "strict.test", "ssl_protocols": ["TLSv1.1", "TLSv1.3"]}));
    assert_eq!(bench.put(Kind::Ssl, "strict", both).rejected.len(), 0, "one of them is supported");
}

/// The upstream of the only route.
fn upstream(compiled: &Compiled) -> &Arc<Upstream> {
    let plan = compiled.snapshot.router.plan("1").expect("a route");
    compiled.snapshot.upstream(plan).expect("an upstream")
}

fn route(more: Value) -> Value {
    let mut upstream = json!({"scheme": "https", "nodes": {"127.0.0.1:1": 1}});
    upstream.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    json!({"uri": "/1", "upstream": upstream})
}

#[test]
fn upstreams_get_the_client_certificate_they_name() {
    let mut bench = Bench::new();
    let lacks = |compiled: &Compiled| upstream(compiled).tls.as_ref().and_then(|tls| tls.lacks);
    let client = json!({"type": "client", "cert": pem!("client.crt"), "key": pem!("client.key")});
    let by_id = route(json!({"tls": {"client_cert_id": "c"}}));
    assert!(lacks(&bench.put(Kind::Route, "1", by_id)).is_some_and(|why| why.contains("does not exist")));
    let with = bench.put(Kind::Ssl, "c", client.clone());
    assert_eq!(lacks(&with), None);
    let shown = upstream(&with).tls.clone().expect("https");
    assert!(lacks(&bench.delete(Kind::Ssl, "c")).is_some(), "a deleted certificate is not presented");
    assert_eq!(lacks(&bench.put(Kind::Ssl, "c", client)), None);
    let server = bench.put(Kind::Ssl, "c", ssl(json!({"sni": "a.test"})));
    assert!(lacks(&server).is_some_and(|why| why.contains("not of the type client")));

    let own = json!({"tls": {"client_cert": pem!("client.crt"), "client_key": pem!("client.key")}});
    assert_eq!(upstream(&bench.put(Kind::Route, "1", route(own))).tls.as_ref(), Some(&shown));
    for (cert, key, place) in [
        (pem!("client.crt"), pem!("server-ec.key"), "/upstream/tls/client_key"),
        (pem!("client.key"), pem!("client.key"), "/upstream/tls/client_cert"),
    ] {
        let mixed =
            bench.put(Kind::Route, "1", route(json!({"tls": {"client_cert": cert, "client_key": key}})));
        assert_eq!(mixed.rejected[0].invalid.pointer, place);
    }
}

#[test]
fn upstreams_are_verified_if_configured() {
    let mut bench = Bench::new();
    let mut tls = |scheme: &str, tls: Value| {
        let compiled = bench.put(Kind::Route, "1", route(json!({"scheme": scheme, "tls": tls})));
        assert_eq!(compiled.rejected.len(), 0);
        upstream(&compiled).tls.clone()
    };
    assert!(tls("http", json!({"verify": true})).is_none());
    let trusting = tls("https", json!({})).expect("https");
    let general = tls("https", json!({"verify": true})).expect("https");
    let own = tls("https", json!({"verify": true, "ca": pem!("ca.crt")})).expect("https");
    assert_eq!([&trusting, &general, &own].map(|tls| tls.verifies), [false, true, true]);
    assert_ne!(general, own, "other authorities are trusted");

    let mut probes = |kind: &str, verify: bool| {
        let checks = json!({"active": {"type": kind, "https_verify_certificate": verify}});
        let compiled = bench.put(Kind::Route, "1", route(json!({"checks": checks})));
        let health = upstream(&compiled).health.clone().expect("checks");
        health.probe_tls().map(|tls| tls.verifies)
    };
    assert_eq!(probes("http", true), None);
    assert_eq!([probes("https", true), probes("https", false)], [Some(true), Some(false)]);
}

#[test]
fn ocsp_responses_are_stapled_where_configured() {
    let mut bench = Bench::new();
    let written = ssl(json!({"sni": "a.test", "ocsp_stapling": {"enabled": true}}));
    let before = bench.put(Kind::Ssl, "1", written.clone());
    let [wanted] = &before.stapling[..] else { panic!("{:?}", before.stapling) };
    assert_eq!((wanted.key.id.as_str(), wanted.chain.len()), ("1", 1));
    let served = |compiled: &Compiled| found(compiled, "a.test").expect("it is served").clone();
    let stapled = |bench: &mut Bench, response: Option<&[u8]>| {
        bench.compiler.staple(wanted.id, response.map(Arc::from));
        let after = bench.compile(Key::new(Kind::Ssl, "1"));
        (served(&after), after.stapling)
    };
    let (first, _) = stapled(&mut bench, Some(b"good"));
    assert!(!Arc::ptr_eq(&first, &served(&before)));
    assert!(Arc::ptr_eq(&first, &stapled(&mut bench, Some(b"good")).0), "it has that response");
    let (other, _) = stapled(&mut bench, Some(b"newer"));
    assert!(!Arc::ptr_eq(&first, &other));
    let (none, still) = stapled(&mut bench, None);
    assert!(!Arc::ptr_eq(&other, &none) && still.len() == 1);
    // An error follows: the last valid version is still stapled.
    bench.put(Kind::Ssl, "1", ssl(json!({"sni": "a.test", "key": pem!("client.key")})));
    let (kept, _) = stapled(&mut bench, Some(b"newest"));
    assert!(!Arc::ptr_eq(&none, &kept));
    assert_eq!(bench.put(Kind::Ssl, "1", ssl(json!({"sni": "a.test"}))).stapling.len(), 0);
    bench.put(Kind::Ssl, "1", written);
    assert_eq!(bench.delete(Kind::Ssl, "1").stapling.len(), 0);
}
