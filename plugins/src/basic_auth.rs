//! basic-auth: identifies a consumer by user name and password (RFC 7617).
//!
//! Settings, messages and headers as in APISIX 3.18. As in APISIX, white space that the client sends
//! is ignored (clients often add a newline), unless it is part of the configured name or password.
//! Unlike in APISIX, a password may contain colons, and with `hashed` be a hash of a file of htpasswd.

mod hashed;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::{Phase, Phases};
use sdk::consumers::{Credential, Identity};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{self, Challenge, Decoded};
use hashed::Hash;

/// The configured plugin.
pub struct BasicAuth {
    hide_credentials: bool,
    anonymous_consumer: Option<String>,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    hide_credentials: bool,
    realm: String,
    anonymous_consumer: Option<String>,
}

/// The hash of a password, so that comparing takes the same time for passwords of any length.
struct Password([u8; SHA256_OUTPUT_LEN]);

impl Password {
    fn new(text: &[u8]) -> Password {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, text).as_ref());
        Password(hash)
    }

    fn is(&self, text: &[u8]) -> bool {
        auth::same(&self.0, digest(&SHA256, text).as_ref())
    }
}

/// The password of a consumer, or its hash.
enum Secret {
    Plain(Password),
    Hashed(Arc<Hashed>),
}

/// The hash of a password. Its rounds run until a request had the password, and never again.
struct Hashed {
    hash: Hash,
    /// Of this process and this consumer, so that `known` is of no use elsewhere.
    key: hmac::Key,
    /// The digest of the password, once it is known.
    known: OnceLock<hmac::Tag>,
    /// Jobs on background threads that compare with the hash.
    comparing: AtomicUsize,
}

/// Jobs of one consumer at most, so that guesses leave the background threads to others.
const MOST_COMPARING: usize = 4;

/// A job among those of a hash.
struct Comparing(Arc<Hashed>);

impl Comparing {
    /// `None` if there are too many.
    fn begin(hashed: &Arc<Hashed>) -> Option<Comparing> {
        let more = |count: usize| (count < MOST_COMPARING).then_some(count + 1);
        hashed.comparing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Comparing(hashed.clone()))
    }
}

impl Drop for Comparing {
    fn drop(&mut self) {
        self.0.comparing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hashed {
    fn new(hash: Hash) -> Result<Hashed, Invalid> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| Invalid::new("the system has no random numbers"))?;
        Ok(Hashed { hash, key, known: OnceLock::new(), comparing: AtomicUsize::new(0) })
    }

    /// Whether comparing takes long.
    fn is_slow(&self) -> bool {
        self.hash.is_slow() && self.known.get().is_none()
    }

    fn is(&self, text: &[u8]) -> bool {
        if text.len() > hashed::LONGEST {
            return false;
        }
        if let Some(known) = self.known.get() {
            // Another text with this hash is not accepted either. This compares in constant time.
            return hmac::verify(&self.key, text, known.as_ref()).is_ok();
        }
        let is_right = self.hash.is_of(text);
        if is_right {
            // Another worker may have been faster, with the same password.
            let _ = self.known.set(hmac::sign(&self.key, text));
        }
        is_right
    }
}

impl Secret {
    /// Of unknown names. Rounds of a hash are not run for these: they would let clients without a name use the worker.
    const NONE: &Secret = &Secret::Plain(Password([0; SHA256_OUTPUT_LEN]));

    fn is(&self, text: &[u8]) -> bool {
        match self {
            Secret::Plain(password) => password.is(text),
            Secret::Hashed(hashed) => hashed.is(text),
        }
    }

    /// The hash, if comparing with it takes long.
    fn slow(&self) -> Option<&Arc<Hashed>> {
        match self {
            Secret::Hashed(hashed) if hashed.is_slow() => Some(hashed),
            _ => None,
        }
    }
}

impl Plugin for BasicAuth {
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 2520;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "title": "work with route or service object",
            "properties": {
                "hide_credentials": {"type": "boolean", "default": false},
                "realm": auth::realm("basic"),
                "anonymous_consumer": auth::anonymous_consumer(),
            },
        })
    }

    fn consumer_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "title": "work with consumer object",
            "properties": {
                "username": {"type": "string"},
                "password": {"type": "string"},
                "hashed": {"type": "boolean"},
            },
            "encrypt_fields": ["password"],
            "required": ["username", "password"],
        }))
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<BasicAuth, Invalid> {
        Ok(BasicAuth {
            hide_credentials: config.hide_credentials,
            anonymous_consumer: config.anonymous_consumer,
            challenge: Challenge::new("Basic", &config.realm),
        })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        auth::filled(consumer_config, &["password"])?;
        let text = |name: &str| consumer_config.get(name).and_then(Value::as_str);
        let Some((name, password)) = text("username").zip(text("password")) else { return Ok(None) };
        let secret = match consumer_config.get("hashed").and_then(Value::as_bool) {
            Some(true) => {
                let hash = Hash::parse(password).ok_or_else(|| {
                    Invalid::new("invalid hash in property \"password\"")
                        .at("/password")
                        .expected("{SHA}…, {SSHA}…, $apr1$…, $1$…, $5$…, $6$… or $2y$… of a file of htpasswd, with a cost up to 12 or 200,000 rounds")
                })?;
                Secret::Hashed(Arc::new(Hashed::new(hash)?))
            }
            _ => Secret::Plain(Password::new(password.as_bytes())),
        };
        Ok(Some(Credential { key: name.into(), secret: Some(Arc::new(secret)) }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match sent(x) {
            Ok(sent) => match claimed(x, &sent).1 {
                Some(_) => Step::Wait,
                None => self.decide(identify(x, &sent), x),
            },
            Err(message) => self.decide(Err(message), x),
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let sent = match sent(x) {
            Ok(sent) => sent,
            Err(message) => return self.decide(Err(message), x),
        };
        if let (Some(_), Some(hashed)) = claimed(x, &sent) {
            let Some(comparing) = Comparing::begin(hashed) else {
                let message = "too many passwords of this consumer are being compared";
                return Step::Reply(Reply::json(503, &json!({ "message": message })).because(message));
            };
            let texts: Vec<Vec<u8>> = passwords(&sent).map(|text| text.to_vec()).collect();
            // A right password is known afterwards, so `identify` compares with its digest.
            let compare = move |hashed: &Hashed| texts.iter().any(|text| hashed.is(text));
            let job = x.world().offload(Reservation::default(), move |_| compare(&comparing.0));
            if !job.await.0 {
                return self.decide(Err(REFUSED), x);
            }
        }
        self.decide(identify(x, &sent), x)
    }
}

impl BasicAuth {
    fn decide(&self, identity: Result<Identity, &'static str>, x: &mut Exchange<'_>) -> Step {
        let step = match (identity, &self.anonymous_consumer) {
            (Ok(identity), _) => {
                x.authenticate(identity);
                Step::Next
            }
            (Err(_), Some(anonymous)) => self.challenge.admit(x, Self::NAME, anonymous),
            (Err(message), None) => self.challenge.refuse(x, message),
        };
        if self.hide_credentials && matches!(step, Step::Next) {
            x.remove_header("Authorization");
        }
        step
    }
}

const REFUSED: &str = "Invalid user authorization";

/// Name and password of a request.
struct Sent {
    text: Decoded,
    colon: usize,
}

/// Reads name and password. The error is APISIX's message.
fn sent(x: &Exchange<'_>) -> Result<Sent, &'static str> {
    const INVALID: &str = "Invalid authorization in request";
    let header = x.header("Authorization").ok_or("Missing authorization in request")?;
    let text = auth::basic(header).ok_or(INVALID)?;
    let colon = text.iter().position(|&byte| byte == b':').ok_or(INVALID)?;
    Ok(Sent { text, colon })
}

/// The password as it is sent, and without white space.
fn passwords(sent: &Sent) -> impl Iterator<Item = Decoded> {
    let password = &sent.text[sent.colon + 1..];
    [Some(password.into()), without_spaces(password)].into_iter().flatten()
}

/// The consumer of the name, and the hash of its password if comparing takes long.
fn claimed<'x>(x: &'x Exchange<'_>, sent: &Sent) -> (Option<&'x Identity>, Option<&'x Arc<Hashed>>) {
    let name = &sent.text[..sent.colon];
    let find = |name: &[u8]| x.consumers().find(BasicAuth::NAME, name);
    let found = find(name).or_else(|| find(&without_spaces(name)?));
    (found, found.and_then(Identity::secret).and_then(Secret::slow))
}

/// Finds the consumer of a request. The error is APISIX's message.
fn identify(x: &Exchange<'_>, sent: &Sent) -> Result<Identity, &'static str> {
    let (found, _) = claimed(x, sent);
    // An unknown name is compared too, so that timing does not reveal which names exist.
    let secret = found.and_then(Identity::secret).unwrap_or(Secret::NONE);
    let right = passwords(sent).fold(false, |right, text| secret.is(&text) | right);
    found.filter(|_| right).cloned().ok_or(REFUSED)
}

/// The text without its white space; `None` if it has none.
fn without_spaces(text: &[u8]) -> Option<Decoded> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    text.iter().any(is_space).then(|| text.iter().copied().filter(|byte| !is_space(byte)).collect())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use sdk::testing::{Probe, now};

    use super::*;

    fn basic(text: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(text))
    }

    /// The consumer that a request with this header is accepted as, or the message it is refused with.
    fn ask(header: Option<&str>, config: Value) -> Result<String, String> {
        let headers: Vec<_> = header.map(|value| ("Authorization", value)).into_iter().collect();
        let mut probe = Probe::request("GET", "/", &headers)
            .consumer::<BasicAuth>("jack", json!({"username": "foo", "password": "bar"}))
            .consumer::<BasicAuth>("rose", json!({"username": "a b", "password": "c: d"}));
        let stage: BasicAuth = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        match stage.rewrite(&mut x) {
            Step::Next => Ok(x.consumer().unwrap().name.clone()),
            Step::Reply(reply) => {
                assert_eq!(reply.status, 401);
                let body: Value = serde_json::from_slice(&reply.body).unwrap();
                Err(body["message"].as_str().unwrap().to_owned())
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn name_and_password_find_the_consumer() {
        for (sent, consumer) in
            [("foo:bar", "jack"), ("foo:bar\n", "jack"), ("f oo:b ar", "jack"), ("a b:c: d", "rose")]
        {
            assert_eq!(ask(Some(&basic(sent)), json!({})), Ok(consumer.into()), "{sent}");
        }
        for scheme in ["basic", "BASIC"] {
            assert_eq!(ask(Some(&basic("foo:bar").replace("Basic", scheme)), json!({})), Ok("jack".into()));
        }
    }

    #[test]
    fn refusals_say_what_apisix_says() {
        assert_eq!(ask(None, json!({})), Err("Missing authorization in request".into()));
        for header in [
            "",
            "Basic",
            "Basic ",
            "Basic aca_a",
            "Basic YmFy",
            "Bearer YmFyOmJhcgo=",
            "Basic  Zm9vOmJhcg==",
            "Basix Zm9vOmJhcg==",
            "Basic_Zm9vOmJhcg==",
        ] {
            assert_eq!(
                ask(Some(header), json!({})),
                Err("Invalid authorization in request".into()),
                "{header}"
            );
        }
        for sent in ["foo:baz", "foo:", "foo:bar:", "fo:bar", ":", "foo:bar:baz", "ab:c: d"] {
            assert_eq!(
                ask(Some(&basic(sent)), json!({})),
                Err("Invalid user authorization".into()),
                "{sent}"
            );
        }
    }

    #[test]
    fn the_anonymous_consumer_takes_the_rest_and_credentials_are_hidden() {
        let config = json!({"anonymous_consumer": "jack", "hide_credentials": true});
        assert_eq!(ask(None, config.clone()), Ok("jack".into()));
        assert_eq!(ask(None, json!({"anonymous_consumer": "no"})), Err("Invalid user authorization".into()));
        let header = basic("stranger:x");
        let mut probe = Probe::request("GET", "/", &[("Authorization", &header)])
            .consumer::<BasicAuth>("jack", json!({"username": "foo", "password": "bar"}));
        let stage: BasicAuth = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        assert_eq!(x.header("Authorization"), None);
        drop(x);
        // Without `hide_credentials` they are passed on.
        let stage: BasicAuth = probe.stage(json!({"anonymous_consumer": "jack"})).unwrap();
        let mut x = probe.exchange();
        x.set_header("Authorization", header.as_bytes()).unwrap();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        assert_eq!(x.header("Authorization"), Some(header.as_bytes()));
    }

    #[test]
    fn a_password_may_be_a_hash() {
        let hash = "$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0";
        let jack = json!({"username": "jack", "password": hash, "hashed": true});
        // Twice, since a password that was right is remembered.
        for (sent, is_right) in [
            ("jack:password", true),
            ("jack:passwore", false),
            ("jack:pass word", true),
            (&format!("jack:{hash}"), false),
            ("jack:password", true),
        ] {
            let header = basic(sent);
            let mut probe = Probe::request("GET", "/", &[("Authorization", &header)])
                .consumer::<BasicAuth>("jack", jack.clone());
            let stage: BasicAuth = probe.stage(json!({})).unwrap();
            let mut x = probe.exchange();
            for _ in 0..2 {
                assert_eq!(matches!(stage.rewrite(&mut x), Step::Next), is_right, "{sent}");
            }
        }
        for wrong in [json!("hunter2"), json!("$2y$05$x"), json!("$6$salt$x")] {
            let config = json!({"username": "jack", "password": wrong, "hashed": true});
            let refused = BasicAuth::credential(&config).err().unwrap();
            assert_eq!(refused.pointer, "/password");
            assert!(!format!("{refused:?}").contains(wrong.as_str().unwrap()), "a password is not shown");
        }
    }

    #[test]
    fn slow_hashes_are_compared_on_background_threads() {
        let hash = "$2y$04$YFSBCOSfNgjJaArvoXjN2.lKoVp5mC8H8mFpUr5FXGvJpE4q8cK2m";
        let jack = json!({"username": "jack", "password": hash, "hashed": true});
        for (sent, is_right) in [("jack:password", true), ("jack:pass word", true), ("jack:passwore", false)]
        {
            let header = basic(sent);
            let mut probe = Probe::request("GET", "/", &[("Authorization", &header)])
                .consumer::<BasicAuth>("jack", jack.clone());
            let stage: BasicAuth = probe.stage(json!({"hide_credentials": true})).unwrap();
            let mut x = probe.exchange();
            assert!(matches!(stage.rewrite(&mut x), Step::Wait), "{sent}");
            match now(stage.wait(Phase::Rewrite, &mut x)) {
                Step::Next => assert!(is_right && x.consumer().unwrap().name == "jack", "{sent}"),
                Step::Reply(reply) => assert!(!is_right && reply.status == 401, "{sent}"),
                step => panic!("{step:?}"),
            }
            assert_eq!(x.header("Authorization").is_none(), is_right);
            // A right password is known afterwards: nothing waits again, not even for a wrong one.
            x.set_header("Authorization", header.as_bytes()).unwrap();
            assert_eq!(matches!(stage.rewrite(&mut x), Step::Wait), !is_right, "{sent}");
        }
        let (header, more) = (basic("rose:password"), basic("jack:password"));
        let mut probe =
            Probe::request("GET", "/", &[("Authorization", &header)]).consumer::<BasicAuth>("jack", jack);
        let stage: BasicAuth = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Reply(reply) if reply.status == 401));
        x.set_header("Authorization", more.as_bytes()).unwrap();
        let hashed = claimed(&x, &super::sent(&x).ok().unwrap()).1.unwrap().clone();
        let mut jobs: Vec<_> = (0..MOST_COMPARING).map(|_| Comparing::begin(&hashed).unwrap()).collect();
        let step = now(stage.wait(Phase::Rewrite, &mut x));
        assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
        jobs.pop();
        assert!(matches!(now(stage.wait(Phase::Rewrite, &mut x)), Step::Next));
    }

    #[test]
    fn rounds_run_until_the_password_is_known() {
        let hash = |text: &str| Hash::parse(text).unwrap();
        let mut hashed = Hashed::new(hash("$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0")).unwrap();
        assert!(!hashed.is(b"passwore") && hashed.known.get().is_none());
        assert!(hashed.is(b"password") && hashed.known.get().is_some());
        // With the hash of another password: it is not looked at again.
        hashed.hash = hash("{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
        assert!(hashed.hash.is_of(b""));
        for (text, is_right) in
            [(&b"password"[..], true), (b"passwore", false), (b"", false), (b"password", true)]
        {
            assert_eq!(hashed.is(text), is_right);
        }
    }

    #[test]
    fn long_passwords_are_refused_without_a_hash() {
        // SHA-1 of 97 letters; those of 96 are hashed.
        for (length, accepted) in [(hashed::LONGEST, true), (hashed::LONGEST + 1, false)] {
            let text = vec![b'a'; length];
            let digest = digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &text);
            let hash = Hash::parse(&format!("{{SHA}}{}", BASE64_STANDARD.encode(digest))).unwrap();
            assert!(hash.is_of(&text));
            assert_eq!(Hashed::new(hash).unwrap().is(&text), accepted);
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        assert_eq!(
            BasicAuth::credential(&json!({"username": "foo", "password": ""})).err().unwrap().pointer,
            "/password"
        );
        let credential =
            BasicAuth::credential(&json!({"username": "foo", "password": "bar"})).unwrap().unwrap();
        assert_eq!(format!("{credential:?}"), "Credential");
    }
}
