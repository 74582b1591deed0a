use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use aws_lc_rs::{hmac, rsa};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use sdk::testing::Probe;

use super::*;

const NOW: u64 = 1_700_000_000;

fn part(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

/// A token with these parts, signed by `sign`.
fn token(header: &Value, payload: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", part(header), part(payload));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn hs256(payload: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "JWT"});
    token(&header, payload, |text| mac(hmac::HMAC_SHA256, b"my-secret-key", text))
}

fn mac(hash: hmac::Algorithm, secret: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hash, secret), text).as_ref().to_vec()
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64_STANDARD.encode(der))
}

fn run<T>(
    probe: Probe,
    consumer: Value,
    config: Value,
    then: impl FnOnce(Step, &mut Exchange<'_>) -> T,
) -> T {
    probe.world.now_ms.set(NOW * 1000);
    let mut probe = probe.consumer::<JwtAuth>("jack", consumer);
    let stage: JwtAuth = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    let step = stage.rewrite(&mut x);
    then(step, &mut x)
}

/// Returns the refusal's message for a token in the header; nothing if it is let through.
fn refused(token: &str, consumer: Value, config: Value) -> Option<String> {
    let probe = Probe::request("GET", "/", &[("Authorization", token)]);
    run(probe, consumer, config, |step, x| match step {
        Step::Next => {
            assert_eq!(x.consumer().unwrap().name, "jack");
            None
        }
        Step::Reply(reply) => {
            assert_eq!(reply.status, 401);
            assert!(reply.headers.contains(&("WWW-Authenticate", b"Bearer realm=\"jwt\"".to_vec())));
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            Some(body["message"].as_str().unwrap().to_owned())
        }
        step => panic!("{step:?}"),
    })
}

fn shared() -> Value {
    json!({"key": "user-key", "secret": "my-secret-key"})
}

const WRONG: &str = "failed to verify jwt";

#[test]
fn a_token_is_found_in_header_query_and_cookie_and_hidden() {
    let sent = hs256(&json!({"key": "user-key"}));
    let query = format!("/hello?a=1&jwt={sent}");
    let cookie = format!("b=2; jwt={sent}");
    let bearers = [sent.clone(), format!("Bearer {sent}"), format!("bearer {sent}")];
    let probes = || {
        let headers =
            bearers.iter().map(|bearer| Probe::request("GET", "/hello?a=1", &[("Authorization", bearer)]));
        let others = [Probe::get(&query), Probe::request("GET", "/hello?a=1", &[("Cookie", &cookie)])];
        headers.chain(others)
    };
    for probe in probes() {
        run(probe, shared(), json!({"hide_credentials": true}), |step, x| {
            assert!(matches!(step, Step::Next), "{step:?}");
            assert_eq!(x.header("X-Consumer-Username"), Some(&b"jack"[..]));
            assert_eq!((x.header("Authorization"), x.query(), x.cookie("jwt")), (None, &b"a=1"[..], None));
            assert!(x.header("Cookie").is_none_or(|rest| rest == b"b=2"));
        });
    }
    let before: Vec<usize> = probes().map(|probe| probe.messages.request.fields.list().len()).collect();
    for (probe, before) in probes().zip(before) {
        run(probe, shared(), json!({}), |step, x| {
            assert!(matches!(step, Step::Next), "{step:?}");
            let credential =
                |x: &Exchange<'_>| x.query().len() > 3 || x.request().fields.list().len() > before;
            assert!(credential(x), "the name of the consumer came to what was there");
        });
    }
}

#[test]
fn names_of_the_places_are_settings_and_the_header_goes_first() {
    let sent = hs256(&json!({"iss": "user-key"}));
    let config = json!({"header": "X-Token", "query": "t", "cookie": "c", "key_claim_name": "iss"});
    let passes = |probe| run(probe, shared(), config.clone(), |step, _| matches!(step, Step::Next));
    assert!(passes(Probe::request("GET", "/", &[("X-Token", &sent)])));
    assert!(passes(Probe::get(&format!("/?t={sent}"))));
    assert!(passes(Probe::request("GET", "/", &[("Cookie", &format!("c={sent}"))])));
    assert!(!passes(Probe::request("GET", &format!("/?t={sent}"), &[("X-Token", "no")])));
    assert!(!passes(Probe::request("GET", "/", &[("Authorization", &sent)])));
    assert!(!passes(Probe::get(&format!("/?t={sent}&t={sent}"))));
}

#[test]
fn refusals_say_what_apisix_says() {
    let missing = run(Probe::get("/"), shared(), json!({}), |step, _| match step {
        Step::Reply(reply) => reply.body,
        step => panic!("{step:?}"),
    });
    assert_eq!(missing, "{\"message\":\"Missing JWT token in request\"}\n");
    let good = hs256(&json!({"key": "user-key"}));
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let list = format!(
        "{}.{signature}",
        signed.split('.').next().unwrap().to_owned() + "." + &part(&json!(["key"]))
    );
    for invalid in ["", "x", "a.b.c", &format!("{good}.x"), &format!("x{good}"), signed, &list] {
        assert_eq!(refused(invalid, shared(), json!({})).as_deref(), Some("JWT token invalid"), "{invalid}");
    }
    for (payload, message) in [
        (json!({"sub": "user-key"}), "missing user key in JWT token"),
        (json!({"key": false}), "missing user key in JWT token"),
        (json!({"key": "stranger"}), "Invalid user key in JWT token"),
        (json!({"key": 1}), "Invalid user key in JWT token"),
        (json!({"key": null}), "Invalid user key in JWT token"),
    ] {
        assert_eq!(refused(&hs256(&payload), shared(), json!({})).as_deref(), Some(message), "{payload}");
    }
    for signature in ["", "YWJj", "@@@@"] {
        let token = format!("{signed}.{signature}");
        assert_eq!(refused(&token, shared(), json!({})).as_deref(), Some(WRONG), "{signature}");
    }
}

#[test]
fn each_hash_verifies_its_own_tokens_and_no_others() {
    let hashes = [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)];
    for (algorithm, hash) in hashes {
        let payload = json!({"key": "user-key"});
        let sent = token(&json!({"alg": algorithm}), &payload, |text| mac(hash, b"my-secret-key", text));
        for (other, _) in hashes {
            let consumer = json!({"key": "user-key", "secret": "my-secret-key", "algorithm": other});
            assert_eq!(
                refused(&sent, consumer, json!({})).is_none(),
                other == algorithm,
                "{algorithm} {other}"
            );
        }
        let encoded = json!({
            "key": "user-key", "algorithm": algorithm,
            "secret": BASE64_STANDARD.encode("my-secret-key"), "base64_secret": true,
        });
        assert_eq!(refused(&sent, encoded, json!({})), None);
        let other = json!({"key": "user-key", "algorithm": algorithm, "secret": "another"});
        assert_eq!(refused(&sent, other, json!({})).as_deref(), Some(WRONG));
    }
}

#[test]
fn each_kind_of_key_verifies_its_own_tokens() {
    let rng = SystemRandom::new();
    let payload = json!({"key": "user-key"});
    let consumer =
        |algorithm: &str, key: &str| json!({"key": "user-key", "algorithm": algorithm, "public_key": key});
    let check = |algorithm: &str, public: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>| {
        let sent = token(&json!({"alg": algorithm}), &payload, sign);
        assert_eq!(refused(&sent, consumer(algorithm, public), json!({})), None, "{algorithm}");
        let (head, tail) = sent.split_at(sent.len() - 4);
        let forged = format!("{head}{}", if tail == "AAAA" { "BBBB" } else { "AAAA" });
        assert_eq!(refused(&forged, consumer(algorithm, public), json!({})).as_deref(), Some(WRONG));
        // The classic confusion: the public key, which anybody has, taken as a shared secret.
        for header in [json!({"alg": "HS256"}), json!({"alg": "none"}), json!({}), json!({"alg": 1})] {
            let forged = token(&header, &payload, |text| mac(hmac::HMAC_SHA256, public.as_bytes(), text));
            assert_eq!(
                refused(&forged, consumer(algorithm, public), json!({})).as_deref(),
                Some(WRONG),
                "{header}"
            );
        }
    };

    let pair = rsa::KeyPair::generate(KeySize::Rsa2048).unwrap();
    let der = pair.public_key().as_der().unwrap();
    let spki = pem("PUBLIC KEY", der.as_ref());
    let pkcs1 = pem("RSA PUBLIC KEY", pair.public_key().as_ref());
    let schemes: [(&str, &'static dyn signature::RsaEncoding); 6] = [
        ("RS256", &signature::RSA_PKCS1_SHA256),
        ("RS384", &signature::RSA_PKCS1_SHA384),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS256", &signature::RSA_PSS_SHA256),
        ("PS384", &signature::RSA_PSS_SHA384),
        ("PS512", &signature::RSA_PSS_SHA512),
    ];
    for (algorithm, scheme) in schemes {
        let sign = |text: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(scheme, &rng, text, &mut signature).unwrap();
            signature
        };
        check(algorithm, &spki, &sign);
        check(algorithm, &pkcs1, &sign);
    }
    for (algorithm, scheme) in [
        ("ES256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        ("ES384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        ("ES512", &signature::ECDSA_P521_SHA512_FIXED_SIGNING),
    ] {
        let pair = EcdsaKeyPair::generate(scheme).unwrap();
        let public = pem("PUBLIC KEY", pair.public_key().as_der().unwrap().as_ref());
        check(algorithm, &public, &|text| pair.sign(&rng, text).unwrap().as_ref().to_vec());
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let public = pem("PUBLIC KEY", pair.public_key().as_der().unwrap().as_ref());
    check("EdDSA", &public, &|text| pair.sign(text).as_ref().to_vec());

    // A key of another kind, or none at all, verifies nothing, and the log says why.
    let sent = token(&json!({"alg": "EdDSA"}), &payload, |text| pair.sign(text).as_ref().to_vec());
    for (key, why) in [(spki.as_str(), "not an Ed25519 key"), ("somekey", "not a public key in PEM")] {
        let mut probe = Probe::request("GET", "/", &[("Authorization", &sent)])
            .consumer::<JwtAuth>("jack", consumer("EdDSA", key));
        let stage: JwtAuth = probe.stage(json!({})).unwrap();
        let Step::Reply(reply) = stage.rewrite(&mut probe.exchange()) else { panic!("it passed") };
        assert_eq!(reply.body, "{\"message\":\"failed to verify jwt\"}\n");
        let complaints = probe.world.complaints.borrow();
        assert!(
            complaints.iter().any(|(plugin, said)| *plugin == "jwt-auth" && said.contains(why)),
            "{complaints:?}"
        );
    }
}

#[test]
fn claims_of_time_are_judged() {
    let expired = json!({"key": "user-key", "exp": NOW - 10});
    let early = json!({"key": "user-key", "nbf": NOW + 10});
    let good = json!({"key": "user-key", "exp": NOW + 10, "nbf": NOW - 10});
    let none = json!({"key": "user-key"});
    let text = json!({"key": "user-key", "exp": "later"});
    let with =
        |grace: u64| json!({"key": "user-key", "secret": "my-secret-key", "lifetime_grace_period": grace});
    let (any, exp, both) = (json!([]), json!(["exp"]), json!(["exp", "nbf"]));
    for (payload, grace, claims, passes) in [
        (&expired, 0, &any, false),
        (&expired, 10, &any, false),
        (&expired, 11, &any, true),
        (&early, 0, &any, false),
        (&early, 10, &any, false),
        (&early, 11, &any, true),
        (&good, 0, &any, true),
        (&good, 0, &both, true),
        (&none, 0, &any, true),
        (&none, 0, &exp, false),
        (&early, 0, &exp, false),
        (&expired, 0, &json!(["nbf"]), false),
        (&text, 0, &any, false),
        (&json!({"key": "user-key", "exp": NOW + 10, "nbf": NOW + 10}), 0, &exp, true),
    ] {
        let refused = refused(&hs256(payload), with(grace), json!({"claims_to_verify": claims}));
        assert_eq!(refused.is_none(), passes, "{payload} {grace} {claims}");
        assert!(refused.is_none_or(|message| message == WRONG));
    }
}

#[test]
fn a_token_with_extensions_that_must_be_understood_is_refused() {
    let header = json!({"alg": "HS256", "crit": ["b64"], "b64": false});
    let sent =
        token(&header, &json!({"key": "user-key"}), |text| mac(hmac::HMAC_SHA256, b"my-secret-key", text));
    assert_eq!(refused(&sent, shared(), json!({})).as_deref(), Some(WRONG));
}

#[test]
fn claims_are_noted_if_asked_for_and_the_anonymous_take_the_rest() {
    let sent = hs256(&json!({"key": "user-key", "role": "boss"}));
    for store in [true, false] {
        let probe = Probe::request("GET", "/", &[("Authorization", &sent)]);
        run(probe, shared(), json!({"store_in_ctx": store}), |_, x| {
            let role = x.note::<Claims>().map(|claims| claims.0["role"].clone());
            assert_eq!(role, store.then(|| json!("boss")));
        });
    }
    let anonymous = json!({"anonymous_consumer": "jack", "hide_credentials": true});
    run(Probe::request("GET", "/", &[("Authorization", "x")]), shared(), anonymous, |step, x| {
        assert!(matches!(step, Step::Next));
        assert_eq!((x.consumer().unwrap().name.as_str(), x.header("Authorization")), ("jack", None));
    });
    run(Probe::get("/"), shared(), json!({"anonymous_consumer": "no"}), |step, _| {
        let Step::Reply(reply) = step else { panic!("{step:?}") };
        assert_eq!(reply.body, "{\"message\":\"Invalid user authorization\"}\n");
    });
}

#[test]
fn settings_of_a_consumer_are_checked() {
    let schema = model::Schema::new(&JwtAuth::consumer_schema().unwrap()).unwrap();
    let reason = |config: Value| match schema.parse(config).and_then(|config| JwtAuth::credential(&config)) {
        Ok(credential) => format!("{:?}", credential.is_some()),
        Err(invalid) => invalid.reason,
    };
    assert_eq!(reason(shared()), "true");
    let dependent = "failed to validate dependent schema for \"algorithm\": value should match only one schema, but matches none";
    assert_eq!(reason(json!({"key": "k", "algorithm": "RS256"})), dependent);
    assert_eq!(reason(json!({"secret": "s"})), "property \"key\" is required");
    let needed = "property \"secret\" is required when using HS based algorithms";
    assert_eq!(reason(json!({"key": "k"})), needed);
    assert_eq!(reason(json!({"key": "k", "algorithm": "HS384"})), needed);
    let base64 = "base64_secret required but the secret is not in base64 format";
    assert_eq!(reason(json!({"key": "k", "secret": "{^c0j4&]2!=J=", "base64_secret": true})), base64);
    let claims = Probe::default().stage::<JwtAuth>(json!({"claims_to_verify": ["iat"]}));
    assert!(claims.is_err());
}

#[test]
fn no_token_breaks_it() {
    let good = hs256(&json!({"key": "user-key", "exp": NOW + 10}));
    let deep =
        format!("{}.{}.x", part(&json!({"alg": "HS256"})), BASE64_URL_SAFE_NO_PAD.encode("[".repeat(5_000)));
    assert_eq!(refused(&deep, shared(), json!({})).as_deref(), Some("JWT token invalid"));
    let mut rng = fastrand::Rng::with_seed(6);
    for _ in 0..300 {
        let mut bytes = good.clone().into_bytes();
        let at = rng.usize(..bytes.len());
        let old = bytes[at];
        bytes[at] = *rng.choice(b".AZaz09-_=+/ {").unwrap();
        let changed = String::from_utf8(bytes.clone()).unwrap();
        // Bits behind the end of the signature have no meaning.
        let same = bytes[at] == old || at + 1 == bytes.len();
        assert!(same || refused(&changed, shared(), json!({})).is_some(), "{changed}");
    }
}

#[test]
fn a_realm_may_have_variables() {
    let realm = "${scheme}://${http_host}${real_request_uri}";
    let probe = Probe::request("GET", "/a?b=\"c\"", &[("Host", "a.test")]);
    run(probe, shared(), json!({ "realm": realm }), |step, _| match step {
        Step::Reply(reply) => {
            let challenge = b"Bearer realm=\"http://a.test/a?b=\\\"c\\\"\"".to_vec();
            assert_eq!(reply.headers.last(), Some(&("WWW-Authenticate", challenge)));
        }
        step => panic!("{step:?}"),
    });
}
