//! Tokens in requests.

use super::*;

fn local(rest: &Value) -> Value {
    with(json!({"bearer_only": true, "use_jwks": true}), rest)
}

fn good() -> Value {
    json!({"iss": "http://idp.test", "sub": "rose", "aud": ["shop"], "scope": "read write", "exp": NOW + 60})
}

fn bearer(gateway: &mut Gateway, token: &str) -> Ended {
    gateway.get("/", &[("Authorization", &format!("Bearer {token}"))])
}

#[test]
fn a_signed_token_is_verified_with_the_keys_of_the_provider_and_passed_on() {
    let signer = Signer::new();
    let mut gateway = Gateway::new(local(&json!({})));
    gateway.answers(vec![answer(&document()), answer(&signer.jwks())]);
    let token = signer.token(&good());
    let forged = [("X-Userinfo", "root"), ("X_Userinfo", "root"), ("X-ID-Token", "root")];
    let authorization = format!("bearer {token}");
    let headers: Vec<_> = forged.into_iter().chain([("Authorization", &*authorization)]).collect();
    let ended = gateway.get("/", &headers);
    assert_eq!(ended.status, 200, "{ended:?}");
    assert_eq!(ended.upstream("X-Access-Token"), Some(&*token));
    let user = BASE64_STANDARD.decode(ended.upstream("X-Userinfo").unwrap()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&user).unwrap(), good());
    assert_eq!((ended.upstream("X-ID-Token"), ended.upstream("X_Userinfo")), (None, None));
    assert_eq!(gateway.asked(), 2);
    assert_eq!(
        (bearer(&mut gateway, &token).status, gateway.asked()),
        (200, 2),
        "document and keys are kept"
    );
    let own = gateway.get("/", &[("X-Access-Token", &token)]);
    assert_eq!(own.status, 200, "the token in its own header");
}

#[test]
fn hostile_tokens_are_refused() {
    let signer = Signer::new();
    let other = Signer::new();
    let mut gateway = Gateway::new(local(&json!({})));
    gateway.answers(vec![answer(&document()), answer(&signer.jwks())]);
    assert_eq!(bearer(&mut gateway, &signer.token(&good())).status, 200);
    let changed = |name: &str, value: Value| {
        let mut payload = good();
        payload[name] = value;
        signer.token(&payload)
    };
    let unsigned =
        |header: &Value| format!("{}.{}.", encoded(header.to_string()), encoded(good().to_string()));
    let public = signer.0.public_key().as_ref().to_vec();
    let confused = {
        let signed = format!("{}.{}", encoded(r#"{"alg":"HS256","kid":"k"}"#), encoded(good().to_string()));
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &public);
        format!("{signed}.{}", encoded(aws_lc_rs::hmac::sign(&key, signed.as_bytes())))
    };
    let nested = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let deep = format!("{}.{}.AA", encoded(r#"{"alg":"ES256"}"#), encoded(format!("{{\"a\":{nested}}}")));
    for (token, description) in [
        (other.token(&good()), "signature verification failed"),
        (signer.with_header(&json!({"alg": "ES384", "kid": "k"}), &good()), "signature verification failed"),
        (
            signer.with_header(&json!({"alg": "ES256", "kid": "k", "crit": ["b64"]}), &good()),
            "verification failed",
        ),
        (signer.with_header(&json!({"alg": "ES256", "kid": "unknown"}), &good()), "verification failed"),
        (confused, "signature verification failed"),
        (unsigned(&json!({"alg": "none"})), "none alg"),
        (unsigned(&json!({"alg": "None"})), "none alg"),
        (unsigned(&json!({})), "none alg"),
        (changed("exp", json!(NOW - 121)), "expired"),
        (changed("exp", json!("later")), "expired"),
        (changed("nbf", json!(NOW + 121)), "not yet valid"),
        (changed("iss", json!("http://other.test")), "issuer"),
        (changed("iss", Value::Null), "issuer"),
        (deep, "invalid jwt"),
        ("a".repeat(17 << 10), "too long"),
        ("a.b".to_owned(), "invalid jwt"),
        ("a.b.c.d.e".to_owned(), "invalid jwt"),
        (String::new(), "invalid jwt"),
    ] {
        let ended = bearer(&mut gateway, &token);
        let challenge = ended.header("WWW-Authenticate");
        assert_eq!(ended.status, 401, "{description}");
        assert!(challenge.starts_with("Bearer realm=\"apisix\", error=\"invalid_token\""), "{challenge}");
        assert!(challenge.contains(description), "{challenge} {description}");
        assert!(token.len() < 20 || !challenge.contains(&token), "the token is not repeated");
    }
    assert_eq!(bearer(&mut gateway, &changed("exp", json!(NOW - 119))).status, 200, "within iat_slack");
}

#[test]
fn requests_without_a_token_are_refused() {
    let mut gateway = Gateway::new(local(&json!({"realm": "own"})));
    let ended = gateway.get("/", &[]);
    assert_eq!((ended.status, ended.header("WWW-Authenticate")), (401, "Bearer realm=\"own\""));
    assert_eq!(gateway.get("/", &[("Authorization", "Basic YTpi")]).status, 401);
    assert_eq!(gateway.get("/", &[("Authorization", "token")]).status, 400);
    assert_eq!(gateway.asked(), 0);
}

#[test]
fn keys_may_change_and_the_provider_may_be_away() {
    let (old, new) = (Signer::new(), Signer::new());
    let with_id = |signer: &Signer, id: &str| {
        let mut jwks = signer.jwks();
        jwks["keys"][0]["kid"] = json!(id);
        answer(&jwks)
    };
    let token = |signer: &Signer, id: &str| signer.with_header(&json!({"alg": "ES256", "kid": id}), &good());
    let mut gateway = Gateway::new(local(&json!({"iat_slack": 1_000_000})));
    gateway.answers(vec![Err(FetchError::Timeout)]);
    let ended = bearer(&mut gateway, &token(&old, "old"));
    assert_eq!(ended.status, 401);
    assert!(ended.header("WWW-Authenticate").contains("issuer validation unavailable"));
    gateway.at(2);
    gateway.answers(vec![answer(&document()), with_id(&old, "old")]);
    assert_eq!(bearer(&mut gateway, &token(&old, "old")).status, 200);
    assert_eq!(bearer(&mut gateway, &token(&new, "new")).status, 401, "not fetched for each unknown key");
    gateway.at(13);
    gateway.answers(vec![with_id(&new, "new")]);
    assert_eq!(bearer(&mut gateway, &token(&new, "new")).status, 200, "rotated");
    assert_eq!(bearer(&mut gateway, &token(&old, "old")).status, 401, "withdrawn");
    gateway.at(3_700);
    gateway.answers(vec![Err(FetchError::Refused)]);
    assert_eq!(
        bearer(&mut gateway, &token(&new, "new")).status,
        200,
        "the old document while there is no new one"
    );
    for wrong in [json!([]), json!("text"), json!({"issuer": 7}), json!({"issuer": "http://other.test"})] {
        let mut gateway = Gateway::new(local(&json!({})));
        gateway.answers(vec![answer(&wrong), answer(&old.jwks())]);
        assert_eq!(bearer(&mut gateway, &token(&old, "k")).status, 401, "{wrong}");
    }
}

#[test]
fn secrets_in_a_public_set_of_keys_are_ignored() {
    let mut gateway = Gateway::new(local(&json!({})));
    let jwks = json!({"keys": [{"kty": "oct", "k": encoded("public"), "kid": "s"}]});
    gateway.answers(vec![answer(&document()), answer(&jwks)]);
    let signed = format!("{}.{}", encoded(r#"{"alg":"HS256","kid":"s"}"#), encoded(good().to_string()));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"public");
    let token = format!("{signed}.{}", encoded(aws_lc_rs::hmac::sign(&key, signed.as_bytes())));
    assert_eq!(bearer(&mut gateway, &token).status, 401);
}

#[test]
fn claims_are_checked() {
    let signer = Signer::new();
    let scopes = json!({"required_scopes": ["read", "admin"]});
    let matching = json!({"claim_validator": {"audience": {"match_with_client_id": true}}});
    let required = json!({"claim_validator": {"audience": {"claim": "for", "required": true}}});
    let issuers = json!({"claim_validator": {"issuer": {"valid_issuers": ["http://second.test"]}}});
    let schema = json!({"claim_schema": {"type": "object", "required": ["level"]}});
    for (rest, changes, status, body) in [
        (&scopes, json!({"scope": "admin read"}), 200, ""),
        (&scopes, json!({}), 403, "required scopes read, admin not present"),
        (&scopes, json!({"scope": ["read", "admin"]}), 403, "required scopes"),
        (&matching, json!({}), 200, ""),
        (&matching, json!({"aud": "shop"}), 200, ""),
        (&matching, json!({"aud": "other"}), 403, "mismatched audience"),
        (&matching, json!({"aud": ["other", 7]}), 403, "mismatched audience"),
        (&matching, json!({"aud": null}), 403, "required audience claim not present"),
        (&required, json!({"for": "x"}), 200, ""),
        (&required, json!({}), 403, "required audience claim not present"),
        (&issuers, json!({"iss": "http://second.test"}), 200, ""),
        (&issuers, json!({}), 401, ""),
        (&schema, json!({"level": 3}), 200, ""),
        (&schema, json!({}), 401, ""),
    ] {
        let mut gateway = Gateway::new(local(rest));
        gateway.answers(vec![answer(&document()), answer(&signer.jwks())]);
        let mut payload = good();
        for (name, value) in changes.as_object().unwrap() {
            payload[name] = value.clone();
        }
        let ended = bearer(&mut gateway, &signer.token(&payload));
        assert_eq!(ended.status, status, "{rest} {changes}");
        assert!(ended.body.contains(body), "{}", ended.body);
    }
}

#[test]
fn a_public_key_needs_no_provider() {
    // Made by openssl ecparam -name prime256v1 -genkey; the other key does not fit.
    let signer = Signer::new();
    let spki = aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(
        signer.0.public_key(),
    );
    let spki = BASE64_STANDARD.encode(spki.unwrap().as_ref());
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{spki}\n-----END PUBLIC KEY-----\n");
    let rest = json!({
        "use_jwks": false, "public_key": pem, "token_signing_alg_values_expected": "ES256",
        "claim_validator": {"issuer": {"valid_issuers": ["http://idp.test"]}},
        "access_token_in_authorization_header": true, "set_userinfo_header": false,
    });
    let mut gateway = Gateway::new(local(&rest));
    let token = signer.token(&good());
    let ended = bearer(&mut gateway, &token);
    assert_eq!((ended.status, gateway.asked()), (200, 0));
    assert_eq!(ended.upstream("Authorization"), Some(&*format!("Bearer {token}")));
    assert_eq!((ended.upstream("X-Access-Token"), ended.upstream("X-Userinfo")), (None, None));
    assert_eq!(bearer(&mut gateway, &Signer::new().token(&good())).status, 401);
    let mut rest = rest;
    rest["token_signing_alg_values_expected"] = json!("RS256");
    let ended = bearer(&mut Gateway::new(local(&rest)), &token);
    assert!(ended.header("WWW-Authenticate").contains("unexpected algorithm"));
}

#[test]
fn tokens_are_introspected_and_the_answers_kept() {
    let config = |rest: &Value| {
        let base = json!({"bearer_only": true, "client_secret": "s:1", "introspection_endpoint": "http://127.0.0.1:8080/i"});
        with(base, rest)
    };
    let active = || answer(&json!({"active": true, "scope": "read", "sub": "rose", "exp": NOW + 60}));
    let mut gateway = Gateway::new(config(&json!({"introspection_addon_headers": ["X-Tenant"]})));
    gateway.answers(vec![active()]);
    let ended = gateway.get("/", &[("Authorization", "Bearer opaque+1"), ("X-Tenant", "t")]);
    assert_eq!((ended.status, ended.upstream("X-Access-Token")), (200, Some("opaque+1")));
    assert_eq!(gateway.last_asked(), ("/i".to_owned(), "token=opaque%2B1".to_owned()));
    {
        let sent = gateway.probe.world.sent.borrow();
        let value = |name: &str| sent[0].fields.get_named(name.as_bytes()).map(<[u8]>::to_vec);
        assert_eq!(
            value("Authorization"),
            Some(format!("Basic {}", BASE64_STANDARD.encode("shop:s%3A1")).into_bytes())
        );
        assert_eq!(value("X-Tenant"), Some(b"t".to_vec()));
    }
    assert_eq!((bearer(&mut gateway, "opaque+1").status, gateway.asked()), (200, 1), "kept");
    gateway.at(61);
    gateway.answers(vec![answer(&json!({"active": false}))]);
    let ended = bearer(&mut gateway, "opaque+1");
    assert_eq!((ended.status, gateway.asked()), (401, 2), "not beyond its time");
    assert!(ended.header("WWW-Authenticate").contains("error_description=\"invalid token\""));
    for failed in [
        Err(FetchError::TooLarge),
        Ok(Fetched { status: 500, body: b"secret".to_vec(), ..Fetched::default() }),
        Ok(Fetched { status: 200, body: b"<html>".to_vec(), ..Fetched::default() }),
    ] {
        gateway.answers(vec![failed]);
        let ended = bearer(&mut gateway, "other");
        assert_eq!(ended.status, 401);
        assert!(ended.header("WWW-Authenticate").contains("accessing introspection endpoint failed"));
    }
    let mut gateway = Gateway::new(config(&json!({"introspection_interval": 10})));
    gateway.answers(vec![active(), active()]);
    assert_eq!((bearer(&mut gateway, "t").status, gateway.asked()), (200, 1));
    gateway.at(11);
    assert_eq!(
        (bearer(&mut gateway, "t").status, gateway.asked()),
        (200, 2),
        "asked again after the interval"
    );
}

#[test]
fn the_client_proves_itself_as_the_settings_say() {
    let signer = aws_lc_rs::signature::RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
    let der = aws_lc_rs::encoding::AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&signer).unwrap();
    let pem = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        BASE64_STANDARD.encode(der.as_ref())
    );
    for (method, parts) in [
        ("client_secret_post", &["client_secret=secret", "client_id=shop"][..]),
        ("client_secret_jwt", &["client_assertion_type=urn%3Aietf", "client_id=shop", "client_assertion=ey"]),
        ("private_key_jwt", &["client_assertion_type=urn%3Aietf", "client_id=shop", "client_assertion=ey"]),
    ] {
        let base = json!({
            "bearer_only": true, "client_secret": "secret", "client_rsa_private_key": pem,
            "client_rsa_private_key_id": "own", "introspection_endpoint_auth_method": method,
        });
        let mut gateway = Gateway::new(with(base, &json!({})));
        gateway.answers(vec![answer(&document()), answer(&json!({"active": true}))]);
        assert_eq!(bearer(&mut gateway, "t").status, 200, "{method}");
        let (uri, body) = gateway.last_asked();
        assert_eq!(uri, "/introspect", "from the discovery document");
        assert!(parts.iter().all(|part| body.contains(part)), "{method} {body}");
        let Some((_, rest)) = body.split_once("client_assertion=") else { continue };
        assert!(!body.contains("client_secret="), "{method}");
        let text = rest.split('&').next().unwrap();
        let token = crate::jwt_auth::token::Token::parse(text.as_bytes()).unwrap();
        let expected = (Some("HS256"), Some("RS256"));
        match method {
            "client_secret_jwt" => {
                assert_eq!(token.algorithm(), expected.0);
                assert!(KeySet::of_secret(b"secret").verify(&token));
            }
            _ => assert_eq!((token.algorithm(), token.key_id()), (expected.1, Some("own"))),
        }
        assert_eq!(token.claim("aud").unwrap(), "http://127.0.0.1:8080/introspect");
        assert_eq!(token.claim("exp").unwrap(), NOW + 60);
    }
}
