//! key-auth: a consumer is known by a key in a header or in the query.
//!
//! Settings, messages and headers as in APISIX 3.18. Identity headers a client
//! sent itself never reach the upstream.

use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::Identity;
use sdk::{Build, Exchange, Plugin, Reply, Span, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use crate::query::{self, Arg};

/// The stage.
pub struct KeyAuth {
    config: Config,
    /// The value of `WWW-Authenticate`.
    challenge: Vec<u8>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header: String,
    query: String,
    realm: String,
    hide_credentials: bool,
    anonymous_consumer: Option<String>,
}

/// What is wrong with a request's credential.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    Missing,
    Unknown,
    /// The anonymous consumer it would fall back to does not exist.
    Anonymous,
}

impl Plugin for KeyAuth {
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 2500;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "header": {"type": "string", "default": "apikey"},
                "query": {"type": "string", "default": "apikey"},
                "realm": {
                    "type": "string",
                    "pattern": "^[\\x20-\\x21\\x23-\\x5B\\]-\\x7E]+$",
                    "default": "key",
                    "minLength": 1,
                    "maxLength": 128,
                },
                "hide_credentials": {"type": "boolean", "default": false},
                "anonymous_consumer": {"type": "string", "minLength": 1},
            },
        })
    }

    fn consumer_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "properties": {"key": {"type": "string"}},
            "encrypt_fields": ["key"],
            "required": ["key"],
        }))
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<KeyAuth, Invalid> {
        let challenge = format!("apikey realm=\"{}\"", config.realm).into_bytes();
        Ok(KeyAuth { config, challenge })
    }

    fn credential(consumer_config: &Value) -> Option<Vec<u8>> {
        consumer_config.get("key")?.as_str().map(|key| key.as_bytes().to_vec())
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let refusal = match self.identify(x) {
            Ok((identity, in_header)) => {
                if self.config.hide_credentials {
                    if in_header { x.remove_header(&self.config.header) } else { self.hide_in_query(x) }
                }
                x.authenticate(identity);
                return Step::Next;
            }
            Err(refusal) => refusal,
        };
        let Some(anonymous) = &self.config.anonymous_consumer else { return self.refuse(refusal) };
        if self.config.hide_credentials {
            // A wrong key may be a right one elsewhere, so it goes as well, wherever it stands.
            x.remove_header(&self.config.header);
            self.hide_in_query(x);
        }
        let Some(consumer) = x.consumers.by_name(anonymous) else { return self.refuse(Refusal::Anonymous) };
        let identity =
            Identity { consumer: consumer.clone(), credential_id: None, config: Arc::new(Value::Null) };
        x.authenticate(identity);
        Step::Next
    }
}

impl KeyAuth {
    /// Who the request is from, and whether its key stood in the header.
    fn identify(&self, x: &Exchange<'_>) -> Result<(Identity, bool), Refusal> {
        let find = |key: &[u8]| x.consumers.find(Self::NAME, key).cloned().ok_or(Refusal::Unknown);
        if let Some(key) = x.header(&self.config.header) {
            return find(key).map(|identity| (identity, true));
        }
        match query::find(x.query(), self.config.query.as_bytes()) {
            Arg::One(key) => find(&key).map(|identity| (identity, false)),
            Arg::Other => Err(Refusal::Unknown),
            Arg::Absent => Err(Refusal::Missing),
        }
    }

    fn refuse(&self, refusal: Refusal) -> Step {
        let message = match refusal {
            Refusal::Missing => "Missing API key in request",
            Refusal::Unknown => "Invalid API key in request",
            Refusal::Anonymous => "Invalid user authorization",
        };
        let reply = Reply::json(401, &json!({ "message": message }));
        Step::Reply(reply.header("WWW-Authenticate", self.challenge.clone()))
    }

    /// Takes the key out of the query, as later stages and the upstream see it.
    fn hide_in_query(&self, x: &mut Exchange<'_>) {
        let name = self.config.query.as_bytes();
        if query::find(x.query(), name) != Arg::Absent {
            let rest = query::without(x.query(), name);
            let head = &mut x.messages.request;
            head.has_query = !rest.is_empty();
            head.query_span = head.fields.intern(&rest);
        }
        if let Some(uri) = x.forward.uri {
            x.forward.uri = Some(self.hide_in_uri(x, uri));
        }
    }

    /// The same for a path and query another stage made.
    fn hide_in_uri(&self, x: &mut Exchange<'_>, uri: Span) -> Span {
        let bytes = x.request().fields.bytes(uri);
        let Some(at) = bytes.iter().position(|&byte| byte == b'?') else { return uri };
        let rest = query::without(&bytes[at + 1..], self.config.query.as_bytes());
        let mut whole = bytes[..at].to_vec();
        if !rest.is_empty() {
            whole.push(b'?');
            whole.extend_from_slice(&rest);
        }
        x.intern(&whole)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    /// A request with jack's key known to the gateway.
    fn probe(target: &str, headers: &[(&str, &str)]) -> Probe {
        Probe::request("GET", target, headers).consumer("jack", "key-auth", "auth-one", json!({"key": "auth-one"}))
    }

    fn run(mut probe: Probe, config: Value, then: impl FnOnce(Step, &mut Exchange<'_>)) {
        let stage: KeyAuth = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        let step = stage.rewrite(&mut x);
        then(step, &mut x);
    }

    fn refused(step: Step, message: &str, realm: &str) {
        let Step::Reply(reply) = step else { panic!("{step:?}") };
        assert_eq!(reply.status, 401);
        assert_eq!(reply.body, format!("{{\"message\":\"{message}\"}}\n"));
        let challenge = format!("apikey realm=\"{realm}\"").into_bytes();
        assert!(reply.headers.contains(&("WWW-Authenticate", challenge)), "{reply:?}");
    }

    fn upstream_uri(x: &Exchange<'_>) -> String {
        let mut out = Vec::new();
        x.upstream_uri(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_key_in_the_header_finds_the_consumer() {
        run(probe("/hello", &[("apikey", "auth-one")]), json!({}), |step, x| {
            assert!(matches!(step, Step::Next));
            assert_eq!(x.consumer().unwrap().name, "jack");
            assert_eq!(x.header("X-Consumer-Username"), Some(&b"jack"[..]));
            assert_eq!(x.header("apikey"), Some(&b"auth-one"[..]));
        });
    }

    #[test]
    fn a_key_in_the_query_finds_the_consumer() {
        run(probe("/hello?a=1&apikey=auth-one", &[]), json!({}), |step, x| {
            assert!(matches!(step, Step::Next));
            assert_eq!(x.consumer().unwrap().name, "jack");
            assert_eq!(upstream_uri(x), "/hello?a=1&apikey=auth-one");
        });
    }

    #[test]
    fn refusals_say_what_apisix_says() {
        run(probe("/hello", &[]), json!({}), |step, _| refused(step, "Missing API key in request", "key"));
        let unknown = "Invalid API key in request";
        run(probe("/hello", &[("apikey", "nope")]), json!({"realm": "shop"}), |step, x| {
            refused(step, unknown, "shop");
            assert!(x.consumer().is_none());
        });
        run(probe("/?apikey=auth-one&apikey=auth-one", &[]), json!({}), |step, _| refused(step, unknown, "key"));
        // The header wins over the query, even when it is wrong.
        run(probe("/?apikey=auth-one", &[("apikey", "nope")]), json!({}), |step, _| refused(step, unknown, "key"));
        // And when it is empty: a header that is there is the one that counts.
        run(probe("/?apikey=auth-one", &[("apikey", "")]), json!({}), |step, x| {
            refused(step, unknown, "key");
            assert!(x.consumer().is_none());
        });
    }

    #[test]
    fn credentials_are_hidden_where_they_stood() {
        let config = json!({"hide_credentials": true, "header": "Authorization", "query": "token"});
        run(probe("/hello?token=x", &[("Authorization", "auth-one")]), config.clone(), |_, x| {
            assert_eq!(x.header("authorization"), None);
            assert_eq!(upstream_uri(x), "/hello?token=x");
        });
        run(probe("/hello?token=auth-one", &[]), config.clone(), |_, x| {
            assert_eq!(upstream_uri(x), "/hello");
            assert_eq!(x.query(), b"");
        });
        let mut rewritten = probe("/hello?token=auth-one&b=2", &[]);
        let stage: KeyAuth = rewritten.stage(config).unwrap();
        let mut x = rewritten.exchange();
        x.forward.uri = Some(x.intern(b"/other?b=2&token=auth-one"));
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        assert_eq!(upstream_uri(&x), "/other?b=2");
        assert_eq!(x.query(), b"b=2");
    }

    #[test]
    fn the_anonymous_consumer_takes_who_has_no_key() {
        let config = json!({"anonymous_consumer": "jack", "hide_credentials": true});
        run(probe("/?apikey=nope", &[("apikey", "nope")]), config, |step, x| {
            assert!(matches!(step, Step::Next));
            assert_eq!(x.consumer().unwrap().name, "jack");
            assert_eq!(x.header("apikey"), None);
            assert_eq!(upstream_uri(x), "/");
        });
        run(probe("/", &[]), json!({"anonymous_consumer": "nobody"}), |step, x| {
            refused(step, "Invalid user authorization", "key");
            assert!(x.consumer().is_none());
        });
    }

    #[test]
    fn the_identity_takes_the_place_of_another() {
        let headers = [("apikey", "auth-one"), ("X-Credential-Identifier", "9"), ("X-Consumer-Username", "root")];
        run(probe("/", &headers), json!({}), |_, x| {
            assert_eq!(x.header("X-Credential-Identifier"), None);
            assert_eq!(x.header("X-Consumer-Username"), Some(&b"jack"[..]));
        });
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (json!({"header": 1}), "property \"header\" validation failed: wrong type: expected string, got number"),
            (
                json!({"realm": "a\"b"}),
                "property \"realm\" validation failed: failed to match pattern \
                 \"^[\\\\x20-\\\\x21\\\\x23-\\\\x5B\\\\]-\\\\x7E]+$\" with \"a\\\"b\"",
            ),
            (
                json!({"anonymous_consumer": ""}),
                "property \"anonymous_consumer\" validation failed: string too short, expected at least 1, got 0",
            ),
        ] {
            assert_eq!(probe.stage::<KeyAuth>(config).err().unwrap().reason, reason);
        }
        assert_eq!(KeyAuth::credential(&json!({"key": "k"})), Some(b"k".to_vec()));
    }
}
