//! key-auth: identifies a consumer by a key in a header or in the query.
//!
//! Settings, messages and headers as in APISIX 3.18. Identity headers a client
//! sent itself never reach the upstream.

use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::{Credential, Identity};
use sdk::{Build, Exchange, HeaderName, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{self, Challenge};
use crate::query::{self, Arg};

/// The stage.
pub struct KeyAuth {
    config: Config,
    /// No request has a header with an invalid name.
    header: Option<HeaderName>,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header: String,
    query: String,
    realm: String,
    hide_credentials: bool,
    anonymous_consumer: Option<String>,
}

/// Why a request's credential is rejected.
#[derive(Debug, Clone, Copy)]
enum Denied {
    Missing,
    Unknown,
}

impl Denied {
    fn message(self) -> &'static str {
        match self {
            Denied::Missing => "Missing API key in request",
            Denied::Unknown => "Invalid API key in request",
        }
    }
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
                "realm": auth::realm("key"),
                "hide_credentials": {"type": "boolean", "default": false},
                "anonymous_consumer": auth::anonymous_consumer(),
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

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<KeyAuth, Invalid> {
        let challenge = Challenge::new("apikey", &config.realm);
        let header = HeaderName::new(&config.header).ok();
        Ok(KeyAuth { config, header, challenge })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        auth::filled(consumer_config, &["key"])?;
        let key = consumer_config.get("key").and_then(Value::as_str);
        // A client that knows the key needs no further proof.
        Ok(key.map(|key| Credential { key: key.into(), secret: None }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let refusal = match self.identify(x) {
            Ok((identity, in_header)) => {
                if self.config.hide_credentials {
                    // Also where the key stood elsewhere, so that it does not follow behind the body.
                    self.remove_header(x);
                    if !in_header {
                        query::hide(x, &self.config.query);
                    }
                }
                x.authenticate(identity);
                return Step::Next;
            }
            Err(refusal) => refusal,
        };
        let Some(anonymous) = &self.config.anonymous_consumer else {
            return self.challenge.refuse(x, refusal.message());
        };
        if self.config.hide_credentials {
            // A wrong key may be a right one elsewhere, so it goes as well, wherever it stands.
            self.remove_header(x);
            query::hide(x, &self.config.query);
        }
        self.challenge.admit(x, Self::NAME, anonymous)
    }
}

impl KeyAuth {
    fn remove_header(&self, x: &mut Exchange<'_>) {
        if let Some(name) = &self.header {
            x.remove_header(name);
        }
    }

    /// Identifies the consumer, and whether its key stood in the header.
    fn identify(&self, x: &Exchange<'_>) -> Result<(Identity, bool), Denied> {
        let find = |key: &[u8]| x.consumers().find(Self::NAME, key).cloned().ok_or(Denied::Unknown);
        if let Some(key) = self.header.as_ref().and_then(|name| x.header(name)) {
            return find(key).map(|identity| (identity, true));
        }
        match query::find(x.query(), self.config.query.as_bytes()) {
            Arg::One(key) => find(&key).map(|identity| (identity, false)),
            Arg::Other => Err(Denied::Unknown),
            Arg::Absent => Err(Denied::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    /// A request with jack's key known to the gateway.
    fn probe(target: &str, headers: &[(&str, &str)]) -> Probe {
        Probe::request("GET", target, headers).consumer::<KeyAuth>("jack", json!({"key": "auth-one"}))
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
        run(probe("/?apikey=auth-one&apikey=auth-one", &[]), json!({}), |step, _| {
            refused(step, unknown, "key")
        });
        // The header wins over the query, even when it is wrong.
        run(probe("/?apikey=auth-one", &[("apikey", "nope")]), json!({}), |step, _| {
            refused(step, unknown, "key")
        });
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
        x.set_upstream_uri(b"/other?b=2&token=auth-one");
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
        run(probe("/", &[]), json!({"anonymous_consumer": "absent"}), |step, x| {
            refused(step, "Invalid user authorization", "key");
            assert!(x.consumer().is_none());
        });
    }

    #[test]
    fn the_identity_takes_the_place_of_another() {
        let headers =
            [("apikey", "auth-one"), ("X-Credential-Identifier", "9"), ("X-Consumer-Username", "root")];
        run(probe("/", &headers), json!({}), |_, x| {
            assert_eq!(x.header("X-Credential-Identifier"), None);
            assert_eq!(x.header("X-Consumer-Username"), Some(&b"jack"[..]));
        });
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (
                json!({"header": 1}),
                "property \"header\" validation failed: wrong type: expected string, got number",
            ),
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
        assert_eq!(KeyAuth::credential(&json!({"key": "k"})).unwrap().unwrap().key, b"k");
        let empty = KeyAuth::credential(&json!({"key": ""})).err().unwrap();
        assert_eq!((&*empty.reason, &*empty.pointer), ("property \"key\" must not be empty", "/key"));
    }
}
