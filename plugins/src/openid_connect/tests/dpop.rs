//! Logins whose tokens are bound to a key.

use super::login::Login;
use super::*;
use crate::jwt_auth::token::Token;

/// A private key in PEM and its public key.
fn pair() -> (String, Value) {
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref()).unwrap();
    let point = key.public_key().as_ref();
    let jwk = json!({"kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..]), "kid": "mine"});
    let pem =
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", BASE64_STANDARD.encode(der));
    (pem, jwk)
}

fn settings((pem, jwk): &(String, Value)) -> Value {
    json!({"dpop": {"enabled": true, "private_key": pem, "public_jwk": jwk}})
}

/// The claims of the proof in a request to the provider, if the key signed it.
fn proof(login: &Login, request: usize, jwk: &Value) -> Value {
    let sent = login.gateway.probe.world.sent.borrow();
    let proof = sent[request].fields.get_named(b"dpop").unwrap();
    let token = Token::parse(proof).unwrap();
    assert!(KeySet::read(json!({"keys": [jwk]}).to_string().as_bytes()).unwrap().verify(&token));
    let head = proof.split(|byte| *byte == b'.').next().unwrap();
    let head: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(head).unwrap()).unwrap();
    assert_eq!((&head["typ"], &head["alg"]), (&json!("dpop+jwt"), &json!("ES256")));
    assert_eq!(head["jwk"].get("kid"), None, "the public key alone");
    token.into_claims()
}

#[test]
fn requests_for_tokens_and_claims_carry_a_proof() {
    let pair = pair();
    let mut login = Login::begin(&settings(&pair));
    let mut tokens = login.tokens(&login.claims());
    tokens["token_type"] = json!("DPoP");
    let asks = Ok(Fetched {
        status: 400,
        fields: sdk::testing::fields(&[("DPoP-Nonce", "n-1")]),
        body: br#"{"error": "use_dpop_nonce"}"#.to_vec(),
        ..Fetched::default()
    });
    let (keys, user) = (answer(&login.signer.jwks()), answer(&json!({"sub": "rose"})));
    login.gateway.answers(vec![asks, answer(&tokens), keys, user]);
    assert_eq!(login.come_back().status, 302);
    let (first, second, user) =
        (proof(&login, 1, &pair.1), proof(&login, 2, &pair.1), proof(&login, 4, &pair.1));
    assert_eq!((&first["htm"], &first["htu"]), (&json!("POST"), &json!("http://127.0.0.1:8080/token")));
    assert_eq!((first.get("nonce"), &second["nonce"]), (None, &json!("n-1")));
    assert_ne!(first["jti"], second["jti"]);
    assert_eq!((&user["htm"], &user["htu"]), (&json!("GET"), &json!("http://127.0.0.1:8080/me")));
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, b"at-1");
    assert_eq!(user["ath"], json!(encoded(hash)));
    let sent = login.gateway.probe.world.sent.borrow();
    assert_eq!(sent[4].fields.get_named(b"authorization"), Some(&b"DPoP at-1"[..]));
}

#[test]
fn a_nonce_is_asked_for_once_and_tokens_must_be_bound() {
    let pair = pair();
    let refuses = || {
        Ok(Fetched {
            status: 400,
            fields: sdk::testing::fields(&[("DPoP-Nonce", "n")]),
            body: br#"{"error": "use_dpop_nonce"}"#.to_vec(),
            ..Fetched::default()
        })
    };
    let mut login = Login::begin(&settings(&pair));
    login.gateway.answers(vec![refuses(), refuses(), refuses()]);
    assert_eq!((login.come_back().status, login.gateway.asked()), (500, 3));
    let mut login = Login::begin(&settings(&pair));
    login.answers(&login.claims());
    assert_eq!(login.come_back().status, 500, "a bearer token");
}

#[test]
fn each_request_has_an_assertion_of_its_own_and_the_claims_a_nonce_of_their_own() {
    let pair = pair();
    let mut rest = settings(&pair);
    rest["token_endpoint_auth_method"] = json!("client_secret_jwt");
    let mut login = Login::begin(&rest);
    let mut tokens = login.tokens(&login.claims());
    tokens["token_type"] = json!("DPoP");
    let asks = |status: u16, header: (&str, &str), nonce: &str| {
        let fields = sdk::testing::fields(&[("DPoP-Nonce", nonce), header]);
        let body = br#"{"error": "use_dpop_nonce"}"#.to_vec();
        Ok(Fetched { status, fields, body, ..Fetched::default() })
    };
    let of_userinfo = ("WWW-Authenticate", r#"DPoP error="use_dpop_nonce""#);
    login.gateway.answers(vec![
        asks(400, ("X", "1"), "n-1"),
        answer(&tokens),
        answer(&login.signer.jwks()),
        asks(401, of_userinfo, "n-2"),
        answer(&json!({"sub": "rose"})),
    ]);
    assert_eq!(login.come_back().status, 302);
    let assertion = |request: usize| {
        let sent = login.gateway.probe.world.sent.borrow();
        super::login::argument(std::str::from_utf8(&sent[request].body).unwrap(), "client_assertion")
    };
    assert!(assertion(1) != assertion(2) && !assertion(2).is_empty());
    assert_eq!(proof(&login, 5, &pair.1)["nonce"], json!("n-2"));
    let mut login = Login::begin(&settings(&pair));
    login.gateway.answers(vec![asks(400, ("X", "1"), &"n".repeat(1025)), answer(&tokens)]);
    assert_eq!((login.come_back().status, login.gateway.asked()), (500, 2), "the nonce is too long");
}

#[test]
fn keys_must_fit() {
    let (one, other) = (pair(), pair());
    let refused = |rest: Value| {
        let config = super::login::config(&rest);
        Probe::default().stage::<OpenidConnect>(config).map(drop).unwrap_err().pointer
    };
    assert_eq!(refused(settings(&(one.0.clone(), other.1.clone()))), "/dpop/public_jwk");
    assert_eq!(refused(settings(&(one.0.clone(), json!({"kty": "EC"})))), "/dpop/public_jwk");
    assert_eq!(refused(settings(&("x".to_owned(), one.1.clone()))), "/dpop/private_key");
    let mut rsa = settings(&one);
    rsa["dpop"]["signing_alg"] = json!("PS256");
    assert_eq!(refused(rsa), "/dpop/signing_alg");
}
