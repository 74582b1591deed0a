//! Shared by the tests: a provider with its key, tokens of it, and a browser.

mod bearer;
mod dpop;
mod login;
mod sessions;
mod settings;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sdk::build::Extensions;
use sdk::testing::{Probe, now};
use sdk::world::{FetchError, Fetched};
use serde_json::json;

use super::*;

const NOW: u64 = 1_700_000_000;

type Answer = Result<Fetched, FetchError>;

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn answer(body: &Value) -> Answer {
    Ok(Fetched { status: 200, body: body.to_string().into_bytes(), ..Fetched::default() })
}

/// The key of the provider, with the id `k`.
struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Signer {
        Signer(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn jwks(&self) -> Value {
        let point = self.0.public_key().as_ref();
        let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": x, "y": y}]})
    }

    fn token(&self, payload: &Value) -> String {
        self.with_header(&json!({"alg": "ES256", "kid": "k"}), payload)
    }

    fn with_header(&self, header: &Value, payload: &Value) -> String {
        let signed = format!("{}.{}", encoded(header.to_string()), encoded(payload.to_string()));
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", encoded(signature))
    }
}

fn document() -> Value {
    json!({
        "issuer": "http://idp.test",
        "authorization_endpoint": "http://127.0.0.1:8080/auth",
        "token_endpoint": "http://127.0.0.1:8080/token",
        "userinfo_endpoint": "http://127.0.0.1:8080/me",
        "introspection_endpoint": "http://127.0.0.1:8080/introspect",
        "revocation_endpoint": "http://127.0.0.1:8080/revoke",
        "pushed_authorization_request_endpoint": "http://127.0.0.1:8080/par",
        "end_session_endpoint": "http://127.0.0.1:8080/end",
        "jwks_uri": "http://127.0.0.1:8080/jwks",
    })
}

/// The settings with these in addition.
fn with(base: Value, rest: &Value) -> Value {
    let mut config = json!({"client_id": "shop", "discovery": "http://127.0.0.1:8080/.well-known"});
    for part in [&base, rest] {
        for (name, value) in part.as_object().unwrap() {
            config[name] = value.clone();
        }
    }
    config
}

/// A gateway with the plugin, and the browser's cookies.
struct Gateway {
    probe: Probe,
    plugin: OpenidConnect,
    cookies: Vec<(String, String)>,
}

/// How a request ended.
#[derive(Debug)]
struct Ended {
    /// 200 if it went on to the upstream.
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// Headers for the upstream.
    upstream: Vec<(String, String)>,
}

impl Ended {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    fn upstream(&self, name: &str) -> Option<&str> {
        self.upstream.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

impl Gateway {
    fn new(config: Value) -> Gateway {
        Gateway::with(config, Extensions::default())
    }

    fn with(config: Value, extensions: Extensions) -> Gateway {
        let mut probe = Probe::default();
        probe.services.extensions = extensions;
        let plugin = probe.stage(config).unwrap();
        let gateway = Gateway { probe, plugin, cookies: Vec::new() };
        gateway.at(0);
        gateway
    }

    /// Sets the clock, in seconds after [`NOW`].
    fn at(&self, seconds: u64) {
        self.probe.world.now_ms.set((NOW + seconds) * 1000);
    }

    /// The next answers of the provider, in this order.
    fn answers(&self, answers: Vec<Answer>) {
        *self.probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
    }

    fn asked(&self) -> usize {
        self.probe.world.sent.borrow().len()
    }

    /// Path and body of the last request to the provider.
    fn last_asked(&self) -> (String, String) {
        let sent = self.probe.world.sent.borrow();
        let last = sent.last().unwrap();
        (String::from_utf8(last.uri.clone()).unwrap(), String::from_utf8(last.body.to_vec()).unwrap())
    }

    fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Ended {
        self.request("GET", target, headers)
    }

    fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Ended {
        let mut all = vec![("Host", "gw.test")];
        all.extend_from_slice(headers);
        let sent: Vec<_> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let sent = sent.join("; ");
        if !sent.is_empty() {
            all.push(("Cookie", &sent));
        }
        self.probe.ask(method, target, &all);
        let mut x = self.probe.exchange();
        assert!(matches!(self.plugin.rewrite(&mut x), Step::Wait));
        let step = now(self.plugin.wait(Phase::Rewrite, &mut x));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let upstream = x.request().fields.iter().map(|(name, value, _)| (text(name), text(value))).collect();
        sdk::testing::respond(&mut x, 200, &[]);
        let fields = &x.response().fields;
        let mut headers: Vec<_> = fields.iter().map(|(name, value, _)| (text(name), text(value))).collect();
        let (status, body) = match step {
            Step::Next => (200, String::new()),
            Step::Reply(reply) => {
                headers.extend(reply.headers.iter().map(|(name, value)| ((*name).to_owned(), text(value))));
                (reply.status, text(&reply.body))
            }
            step => panic!("{step:?}"),
        };
        for (_, cookie) in headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie")) {
            let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.retain(|(own, _)| own != name);
            if !cookie.contains("Max-Age=0;") {
                self.cookies.push((name.to_owned(), value.to_owned()));
            }
        }
        Ended { status, headers, body, upstream }
    }
}
