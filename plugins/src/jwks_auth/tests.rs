use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sdk::testing::{Probe, now};
use sdk::world::{FetchError, Fetched};

use super::*;

const NOW: u64 = 1_700_000_000;

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn token(header: &Value, payload: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed =
        format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(payload.to_string().as_bytes()));
    format!("{signed}.{}", encoded(&sign(signed.as_bytes())))
}

fn mac(secret: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text).as_ref().to_vec()
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

fn eddsa(payload: &Value) -> String {
    token(&json!({"alg": "EdDSA"}), payload, |text| pair().sign(text).as_ref().to_vec())
}

fn key(id: Option<&str>) -> Value {
    let mut key =
        json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": encoded(pair().public_key().as_ref())});
    if let Some(id) = id {
        key["kid"] = json!(id);
    }
    key
}

fn secret(id: &str) -> Value {
    json!({"kty": "oct", "alg": "HS256", "k": encoded(b"my-secret"), "kid": id})
}

fn set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

fn config(rest: Value) -> Value {
    let mut config = rest;
    if config.get("jwks_uri").is_none() && config.get("jwks").is_none() {
        config["jwks"] = json!(set(&[key(None)]));
    }
    config
}

/// The status of the refusal; nothing if the request is let through.
fn status(headers: &[(&str, &str)], target: &str, rest: Value) -> Option<u16> {
    let probe = Probe::request("GET", target, headers);
    probe.world.now_ms.set(NOW * 1000);
    let mut probe = probe;
    let stage: JwksAuth = probe.stage(config(rest)).unwrap();
    let mut x = probe.exchange();
    match stage.rewrite(&mut x) {
        Step::Next => None,
        Step::Reply(reply) => Some(reply.status),
        step => panic!("{step:?}"),
    }
}

fn with(token: &str, rest: Value) -> Option<u16> {
    status(&[("Authorization", &format!("Bearer {token}"))], "/", rest)
}

#[test]
fn tokens_are_verified_by_the_kind_of_the_key() {
    let random = SystemRandom::new();
    let rsa = signature::RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    // RSAPublicKey: a sequence of the modulus of 256 bytes, with a zero before it, and the exponent of 3.
    let public = rsa.public_key().as_ref();
    let (n, e) = (public[9..265].to_vec(), public[public.len() - 3..].to_vec());
    let rsa_key = json!({"kty": "RSA", "kid": "r", "n": encoded(&n), "e": encoded(&e)});
    let sign_rsa = |text: &[u8]| {
        let mut out = vec![0; rsa.public_modulus_len()];
        rsa.sign(&signature::RSA_PKCS1_SHA256, &random, text, &mut out).unwrap();
        out
    };
    let curve = EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = curve.public_key().as_ref();
    let curve_key =
        json!({"kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..])});
    let edwards = Ed25519KeyPair::generate().unwrap();
    let edwards_key = json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(edwards.public_key().as_ref())});
    let all =
        set(&[json!({"kty": "RSA", "use": "enc"}), secret("s"), rsa_key.clone(), curve_key, edwards_key]);
    let with_all = |token: &str| with(token, json!({"jwks": all}));
    let payload = json!({"sub": "a"});
    for (header, sign) in [
        (json!({"alg": "RS256", "kid": "r"}), &sign_rsa as &dyn Fn(&[u8]) -> Vec<u8>),
        (json!({"alg": "RS256"}), &sign_rsa),
        (json!({"alg": "ES256"}), &|text| curve.sign(&random, text).unwrap().as_ref().to_vec()),
        (json!({"alg": "EdDSA"}), &|text| edwards.sign(text).as_ref().to_vec()),
        (json!({"alg": "HS256", "kid": "s"}), &|text| mac(b"my-secret", text)),
    ] {
        assert_eq!(with_all(&token(&header, &payload, sign)), None, "{header}");
        assert_eq!(
            with_all(&token(&header, &payload, |text| [sign(text), vec![0]].concat())),
            Some(401),
            "{header}"
        );
    }
    for (header, sign) in [
        // Of another key, of no key, and with a public key as the secret.
        (json!({"alg": "RS256", "kid": "s"}), &sign_rsa as &dyn Fn(&[u8]) -> Vec<u8>),
        (json!({"alg": "RS256", "kid": "unknown"}), &sign_rsa),
        (json!({"alg": "none"}), &|_| Vec::new()),
        (json!({"alg": "HS256", "kid": "r"}), &|text| mac(&n, text)),
        (json!({"alg": "HS512", "kid": "s"}), &|text| mac(b"my-secret", text)),
        (json!({"alg": "HS256", "kid": "s", "crit": ["b64"]}), &|text| mac(b"my-secret", text)),
    ] {
        let token = token(&header, &payload, sign);
        // Keys without an id stand for any, but none of them fits.
        assert_eq!(with_all(&token), Some(401), "{header}");
    }
}

#[test]
fn claims_are_checked() {
    let rules = json!({"issuer": "i", "audiences": ["a", "b"], "require_expiration": true, "clock_skew": 10});
    let good = json!({"iss": "i", "aud": "a", "exp": NOW + 1});
    assert_eq!(with(&eddsa(&good), rules.clone()), None);
    for (name, value, accepted) in [
        ("aud", json!(["x", "b"]), true),
        ("aud", json!(["x"]), false),
        ("aud", json!(7), false),
        ("aud", Value::Null, false),
        ("iss", json!("j"), false),
        ("iss", Value::Null, false),
        ("exp", json!(NOW - 9), true),
        ("exp", json!(NOW - 10), false),
        ("exp", json!("soon"), false),
        ("nbf", json!(NOW + 10), true),
        ("nbf", json!(NOW + 11), false),
        ("nbf", json!([]), false),
    ] {
        let mut payload = good.clone();
        payload[name] = value.clone();
        let expected = (!accepted).then_some(401);
        assert_eq!(with(&eddsa(&payload), rules.clone()), expected, "{name} {value}");
    }
    assert_eq!(with(&eddsa(&json!({"iss": "i", "aud": "a"})), rules), Some(401), "no end");
    assert_eq!(with(&eddsa(&json!({})), json!({})), None);
}

#[test]
fn tokens_are_looked_for_where_the_settings_say() {
    let token = eddsa(&json!({}));
    let plain = |token: &str| status(&[("X-Token", token)], "/", json!({"header": "X-Token", "prefix": ""}));
    assert_eq!(plain(&token), None);
    assert_eq!(plain("no.token"), Some(401));
    assert_eq!(status(&[("Authorization", &format!("bearer {token}"))], "/", json!({})), None);
    assert_eq!(status(&[("Authorization", &token)], "/", json!({})), Some(401), "without its prefix");
    assert_eq!(status(&[], &format!("/?t={token}"), json!({"query": "t"})), None);
    assert_eq!(status(&[], &format!("/?t={token}&t=x"), json!({"query": "t"})), Some(401));
    assert_eq!(status(&[("Cookie", &format!("t={token}"))], "/", json!({"cookie": "t"})), None);
    assert_eq!(status(&[], "/", json!({})), Some(401));
    assert_eq!(status(&[], "/", json!({"allow_missing": true})), None);
    assert_eq!(with("wrong", json!({"allow_missing": true})), Some(401));
}

#[test]
fn claims_are_passed_on_and_the_token_is_hidden() {
    let payload = json!({"sub": "rose", "level": 3, "groups": ["a"]});
    let token = format!("Bearer {}", eddsa(&payload));
    let rest = json!({
        "hide_credentials": true, "payload_header": "X-Payload",
        "claim_headers": {"X-Sub": "sub", "X-Level": "level", "X-Groups": "groups"},
    });
    let forged = [("X-Sub", "root"), ("X_Sub", "root"), ("X-Groups", "root"), ("X-Payload", "e30")];
    for (authorization, expected) in
        [(Some(token.as_str()), [None, Some("rose"), Some("3"), None]), (None, [None, None, None, None])]
    {
        let headers = forged.into_iter().chain(authorization.map(|token| ("Authorization", token)));
        let headers: Vec<_> = headers.collect();
        let mut probe = Probe::request("GET", "/", &headers);
        let mut rest = rest.clone();
        rest["allow_missing"] = json!(true);
        let stage: JwksAuth = probe.stage(config(rest)).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let got = ["Authorization", "X-Sub", "X-Level", "X-Groups"]
            .map(|name| x.header(name).map(|value| String::from_utf8_lossy(value).into_owned()));
        assert_eq!(got.each_ref().map(Option::as_deref), expected);
        assert!(x.header("X_Sub").is_none());
        let sent = x.header("X-Payload").map(<[u8]>::to_vec);
        assert_eq!(sent, authorization.map(|_| encoded(payload.to_string().as_bytes()).into_bytes()));
    }
}

#[test]
fn keys_are_fetched_once_and_again_for_unknown_keys() {
    let token = |id: &str| {
        let header = json!({"alg": "EdDSA", "kid": id});
        let token = token(&header, &json!({}), |text| pair().sign(text).as_ref().to_vec());
        format!("Bearer {token}")
    };
    let answer =
        |keys: &[Value]| Ok(Fetched { status: 200, body: set(keys).into_bytes(), ..Fetched::default() });
    let (one, two) = (token("one"), token("two"));
    let mut probe = Probe::request("GET", "/", &[("Authorization", &one)]);
    let stage: JwksAuth =
        probe.stage(json!({"jwks_uri": "http://127.0.0.1:8080/keys?a", "cache_ttl": 100})).unwrap();
    let world_time = |probe: &Probe, seconds: u64| probe.world.now_ms.set((NOW + seconds) * 1000);
    let asked = |probe: &Probe| probe.world.sent.borrow().len();
    let run = |probe: &mut Probe, token: &str| {
        let mut x = probe.exchange();
        x.set_header("Authorization", token.as_bytes()).unwrap();
        status_of(&stage, &mut x)
    };
    world_time(&probe, 0);
    probe.world.answers.borrow_mut().push(Err(FetchError::Refused));
    assert_eq!((run(&mut probe, &one), asked(&probe)), (503, 1));
    assert_eq!((run(&mut probe, &one), asked(&probe)), (503, 1), "not asked again at once");
    world_time(&probe, 2);
    probe.world.answers.borrow_mut().push(answer(&[key(Some("one"))]));
    assert_eq!((run(&mut probe, &one), asked(&probe)), (200, 2));
    assert_eq!(probe.world.sent.borrow()[1].uri, b"/keys?a");
    assert_eq!((run(&mut probe, &two), asked(&probe)), (401, 2), "not asked for each unknown key");
    world_time(&probe, 13);
    probe.world.answers.borrow_mut().push(answer(&[key(Some("two"))]));
    assert_eq!((run(&mut probe, &two), asked(&probe)), (200, 3));
    assert_eq!((run(&mut probe, &one), asked(&probe)), (401, 3), "a key that is gone");
    // Old keys are used while the server does not answer, but not for ever.
    for (seconds, body, expected) in [
        (150, Err(FetchError::Timeout), 200),
        (160, Ok(Fetched { status: 500, ..Fetched::default() }), 200),
        (170, Ok(Fetched { status: 200, body: b"{}".to_vec(), ..Fetched::default() }), 200),
        (4000, Err(FetchError::Timeout), 503),
    ] {
        world_time(&probe, seconds);
        let before = asked(&probe);
        probe.world.answers.borrow_mut().push(body);
        assert_eq!((run(&mut probe, &two), asked(&probe)), (expected, before + 1), "{seconds}");
    }
}

/// Runs the plugin once; returns the status.
fn run(stage: &JwksAuth, probe: &mut Probe) -> u16 {
    status_of(stage, &mut probe.exchange())
}

fn status_of(stage: &JwksAuth, x: &mut Exchange<'_>) -> u16 {
    let step = match stage.rewrite(x) {
        Step::Wait => now(stage.wait(Phase::Rewrite, x)),
        step => step,
    };
    match step {
        Step::Next => 200,
        Step::Reply(reply) => reply.status,
        step => panic!("{step:?}"),
    }
}

fn answer(body: String) -> Fetched {
    Fetched { status: 200, body: body.into_bytes(), ..Fetched::default() }
}

#[test]
fn shared_secrets_of_a_server_are_not_accepted() {
    let token = |header: &Value| token(header, &json!({}), |text: &[u8]| mac(b"my-secret", text));
    for (header, keys, expected) in [
        (json!({"alg": "HS256"}), vec![secret("s")], 503),
        (json!({"alg": "HS256", "kid": "s"}), vec![secret("s"), key(None)], 401),
        (json!({"alg": "HS256"}), vec![secret("s"), key(None)], 401),
    ] {
        let token = format!("Bearer {}", token(&header));
        let mut probe = Probe::request("GET", "/", &[("Authorization", &token)]);
        let stage: JwksAuth = probe.stage(json!({"jwks_uri": "http://127.0.0.1:8080/keys"})).unwrap();
        probe.world.answers.borrow_mut().push(Ok(answer(set(&keys))));
        assert_eq!(run(&stage, &mut probe), expected, "{header}");
    }
}

#[test]
fn metadata_of_the_issuer_names_the_keys() {
    let document = |issuer: &str, keys: &str| json!({"issuer": issuer, "jwks_uri": keys}).to_string();
    let (issuer, keys) = ("http://127.0.0.1:8080/realms/shop", "http://127.0.0.1:8081/certs");
    let (secure, secure_keys) = ("https://127.0.0.1:8080/realms/shop", "https://127.0.0.1:8081/certs");
    for (discovery, config, metadata, expected, asked) in [
        (issuer, json!({"issuer": issuer}), document(issuer, keys), 200, 2),
        (issuer, json!({}), document("http://other", keys), 200, 2),
        (issuer, json!({"issuer": issuer}), document("http://other", keys), 503, 1),
        (issuer, json!({"issuer": issuer}), document(&format!("{issuer}/"), keys), 503, 1),
        (issuer, json!({"issuer": issuer}), document(issuer, "file:///etc/passwd"), 503, 1),
        (issuer, json!({"issuer": issuer}), "<html>".to_owned(), 503, 1),
        // The keys are no less protected than the document that names them.
        (secure, json!({"issuer": issuer}), document(issuer, secure_keys), 200, 2),
        (secure, json!({"issuer": issuer}), document(issuer, keys), 503, 1),
    ] {
        let token = format!("Bearer {}", eddsa(&json!({"iss": issuer})));
        let mut probe = Probe::request("GET", "/", &[("Authorization", &token)]);
        let mut config = config;
        config["discovery"] = json!(format!("{discovery}/.well-known/openid-configuration"));
        let stage: JwksAuth = probe.stage(config.clone()).unwrap();
        // The last one is taken first.
        let answers = [answer(set(&[key(None)])), answer(metadata.clone())];
        probe.world.answers.borrow_mut().extend(answers.map(Ok));
        let status = run(&stage, &mut probe);
        let sent: Vec<_> = probe.world.sent.borrow().iter().map(|one| one.uri.clone()).collect();
        assert_eq!((status, sent.len()), (expected, asked), "{config} {metadata}");
        assert_eq!(sent[0], b"/realms/shop/.well-known/openid-configuration");
        assert!(sent.get(1).is_none_or(|uri| uri == b"/certs"));
    }
}

#[test]
fn the_metadata_is_fetched_less_often_than_the_keys() {
    let token = format!("Bearer {}", eddsa(&json!({})));
    let mut probe = Probe::request("GET", "/", &[("Authorization", &token)]);
    let stage: JwksAuth =
        probe.stage(json!({"discovery": "http://127.0.0.1:8080/metadata", "cache_ttl": 60})).unwrap();
    let metadata = json!({"jwks_uri": "http://127.0.0.1:8081/certs"}).to_string();
    for (seconds, fetched) in [
        (0, &["/metadata", "/certs"][..]),
        (59, &[]),
        (61, &["/certs"]),
        (122, &["/certs"]),
        (3601, &["/metadata", "/certs"]),
    ] {
        probe.world.now_ms.set((NOW + seconds) * 1000);
        let answers = fetched.iter().rev().map(|uri| match *uri {
            "/certs" => Ok(answer(set(&[key(None)]))),
            _ => Ok(answer(metadata.clone())),
        });
        probe.world.answers.borrow_mut().extend(answers);
        probe.world.sent.borrow_mut().clear();
        assert_eq!(run(&stage, &mut probe), 200);
        let sent: Vec<_> =
            probe.world.sent.borrow().iter().map(|one| String::from_utf8(one.uri.clone()).unwrap()).collect();
        assert_eq!(sent, fetched, "{seconds}");
    }
}

#[test]
fn invalid_settings_are_refused() {
    let probe = Probe::default();
    for config in [
        json!({"jwks": "{"}),
        json!({"jwks": "{\"keys\": []}"}),
        json!({"jwks": set(&[json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"})])}),
        json!({"jwks": set(&[json!({"kty": "oct", "k": "c2VjcmV0", "key_ops": ["encrypt"]})])}),
        json!({"jwks_uri": "ftp://127.0.0.1/"}),
        json!({"jwks_uri": "http://127.0.0.1/a b"}),
        json!({"discovery": "file:///etc/passwd"}),
        json!({"discovery": "http://127.0.0.1/", "jwks_uri": "http://127.0.0.1/"}),
        json!({"issuer": "http://127.0.0.1/"}),
        json!({"jwks": set(&[key(None)]), "payload_header": "a b"}),
        json!({"jwks": set(&[key(None)]), "claim_headers": {"a:b": "sub"}}),
    ] {
        assert!(probe.stage::<JwksAuth>(config.clone()).is_err(), "{config}");
    }
}
