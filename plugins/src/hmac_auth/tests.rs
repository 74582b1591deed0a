use sdk::testing::{Probe, with_body};

use super::*;

const NOW: &str = "Tue, 14 Nov 2023 22:13:20 GMT";

fn sign(hash: hmac::Algorithm, secret: &str, text: &str) -> String {
    BASE64_STANDARD.encode(hmac::sign(&hmac::Key::new(hash, secret.as_bytes()), text.as_bytes()))
}

fn authorization(algorithm: &str, headers: &str, signature: &str) -> String {
    format!(
        "Signature keyId=\"user-key\",algorithm=\"{algorithm}\",headers=\"{headers}\",signature=\"{signature}\""
    )
}

/// A request that jack signed: the line, his Date and a header of his own.
fn signed() -> String {
    let text = format!("user-key\nGET /hello?a=%20b\ndate: {NOW}\nx-own: 1\n");
    let signature = sign(hmac::HMAC_SHA256, "my-secret", &text);
    authorization("hmac-sha256", "@request-target date x-own", &signature)
}

/// Date and digest, signed.
fn with_digest(digest: &str) -> String {
    let text = format!("user-key\ndate: {NOW}\ndigest: {digest}\n");
    authorization("hmac-sha256", "date digest", &sign(hmac::HMAC_SHA256, "my-secret", &text))
}

/// Returns the status and message of the refusal, or nothing if the request passes.
fn ask(method: &str, headers: &[(&str, &str)], config: Value) -> Option<(u16, String)> {
    let mut probe = Probe::request(method, "/hello?a=%20b", headers)
        .consumer::<HmacAuth>("jack", json!({"key_id": "user-key", "secret_key": "my-secret"}));
    let stage: HmacAuth = probe.stage(config).unwrap();
    let mut x = probe.exchange();
    match stage.rewrite(&mut x) {
        Step::Next => {
            assert_eq!(x.consumer().unwrap().name, "jack");
            None
        }
        Step::Reply(reply) => {
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            Some((reply.status, body["message"].as_str().unwrap().to_owned()))
        }
        step => panic!("{step:?}"),
    }
}

fn wrong() -> Option<(u16, String)> {
    Some((401, "client request can't be validated".into()))
}

#[test]
fn a_signed_request_passes_and_a_changed_one_does_not() {
    let header = signed();
    let own = [("Authorization", header.as_str()), ("Date", NOW), ("X-Own", "1")];
    assert_eq!(ask("GET", &own, json!({})), None);
    assert_eq!(ask("POST", &own, json!({})), wrong());
    assert_eq!(ask("GET", &[own[0], own[1], ("X-Own", "2")], json!({})), wrong());
    assert_eq!(ask("GET", &[own[0], own[1]], json!({})), wrong());
    for (from, to) in
        [("user-key", "stranger"), ("sha256", "sha512"), ("sha256", "md5"), ("date x", "x"), ("=\"", "=\"A")]
    {
        let changed = header.replacen(from, to, 1);
        assert_ne!(changed, header);
        assert_eq!(ask("GET", &[("Authorization", &changed), own[1], own[2]], json!({})), wrong(), "{from}");
    }
}

#[test]
fn every_algorithm_signs_if_it_is_allowed() {
    for (algorithm, hash) in [
        ("hmac-sha1", hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
        ("hmac-sha256", hmac::HMAC_SHA256),
        ("hmac-sha512", hmac::HMAC_SHA512),
    ] {
        let signature = sign(hash, "my-secret", &format!("user-key\ndate: {NOW}\n"));
        let header = authorization(algorithm, "date", &signature);
        let headers = [("Authorization", header.as_str()), ("Date", NOW)];
        assert_eq!(ask("GET", &headers, json!({})), None, "{algorithm}");
        let config = json!({"allowed_algorithms": ["hmac-sha256"]});
        assert_eq!(ask("GET", &headers, config).is_none(), algorithm == "hmac-sha256");
    }
}

#[test]
fn the_header_itself_is_judged_by_name() {
    let said = |what: &str| Some((401, format!("client request can't be validated: {what}")));
    assert_eq!(ask("GET", &[], json!({})), said("missing Authorization header"));
    let start = said("Authorization header does not start with 'Signature'");
    assert_eq!(ask("GET", &[("Authorization", "Basic x")], json!({})), start);
    for header in [
        "Signature",
        "Signature keyId=\"user-key\"",
        "Signature keyId=user-key,algorithm=\"hmac-sha1\"",
        "Signature =\"\",\"=\"",
    ] {
        assert_eq!(ask("GET", &[("Authorization", header), ("Date", NOW)], json!({})), wrong(), "{header}");
    }
}

#[test]
fn a_signed_header_that_is_missing_counts_as_nothing() {
    let signature = sign(hmac::HMAC_SHA256, "my-secret", &format!("user-key\ndate: {NOW}\n"));
    let header = authorization("hmac-sha256", "x-missing date", &signature);
    assert_eq!(ask("GET", &[("Authorization", &header), ("Date", NOW)], json!({})), None);
}

#[test]
fn the_bound_of_a_body_holds_however_it_came() {
    // A body that an earlier plugin had read, with and without its length declared.
    for (length, has_length, status) in
        [(7, true, None), (8, true, None), (8, false, None), (9, true, Some(413)), (9, false, Some(413))]
    {
        let body = vec![b'a'; length];
        let sum = format!("SHA-256={}", BASE64_STANDARD.encode(digest(&SHA256, &body)));
        let header = with_digest(&sum);
        let mut probe =
            Probe::request("POST", "/", &[("Authorization", &header), ("Date", NOW), ("Digest", &sum)])
                .consumer::<HmacAuth>("jack", json!({"key_id": "user-key", "secret_key": "my-secret"}));
        if has_length {
            probe.messages.request.framing = Framing::Length(length as u64);
        }
        let stage: HmacAuth =
            probe.stage(json!({"validate_request_body": true, "max_req_body_size": 8})).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, &body);
        let refused = if let Step::Reply(reply) = stage.rewrite(&mut x) { Some(reply.status) } else { None };
        assert_eq!(refused, status, "{length} {has_length}");
    }
}

#[test]
fn dates_are_about_now() {
    let at = |date: &str, skew: u64| {
        let text = format!("user-key\ndate: {date}\n");
        let header = authorization("hmac-sha256", "date", &sign(hmac::HMAC_SHA256, "my-secret", &text));
        ask("GET", &[("Authorization", &header), ("Date", date)], json!({ "clock_skew": skew }))
    };
    assert_eq!(at("Tue, 14 Nov 2023 22:12:20 GMT", 60), None);
    assert_eq!(at("Tue, 14 Nov 2023 22:14:20 GMT", 60), None);
    assert_eq!(at("Tue, 14 Nov 2023 22:14:21 GMT", 60), wrong());
    assert_eq!(at("Tue, 14 Nov 2023 22:12:19 GMT", 60), wrong());
    assert_eq!(at("yesterday", 60), wrong());
}

#[test]
fn headers_that_must_be_signed_are() {
    let signature = sign(hmac::HMAC_SHA256, "my-secret", &format!("user-key\ndate: {NOW}\n"));
    let header = authorization("hmac-sha256", "date", &signature);
    let headers = [("Authorization", header.as_str()), ("Date", NOW)];
    assert_eq!(ask("GET", &headers, json!({"signed_headers": ["date", "x-own"]})), wrong());
    assert_eq!(ask("GET", &headers, json!({"signed_headers": []})), None);
}

#[test]
fn a_signed_header_comes_once() {
    let signature = sign(hmac::HMAC_SHA256, "my-secret", &format!("user-key\ndate: {NOW}\nX-Own: 1\n"));
    let header = authorization("hmac-sha256", "date X-Own", &signature);
    let mut headers = vec![
        ("Authorization", header.as_str()),
        ("Date", NOW),
        ("X-Own", "1"),
        ("X-Free", "1"),
        ("X-Free", "2"),
    ];
    assert_eq!(ask("GET", &headers, json!({})), None);
    for second in ["1", "2"] {
        headers.push(("x-own", second));
        assert_eq!(ask("GET", &headers, json!({})), wrong(), "{second}");
        headers.pop();
    }
    headers.push(("Date", NOW));
    assert_eq!(ask("GET", &headers, json!({})), wrong());
}

#[test]
fn the_digest_of_a_body_that_is_checked_is_signed() {
    let digest = "SHA-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    let signature = sign(hmac::HMAC_SHA256, "my-secret", &format!("user-key\ndate: {NOW}\n"));
    let unsigned = authorization("hmac-sha256", "date", &signature);
    let config = json!({"validate_request_body": true});
    for (header, refused) in [(unsigned, wrong()), (with_digest(digest), None)] {
        let headers = [("Authorization", header.as_str()), ("Date", NOW), ("Digest", digest)];
        assert_eq!(ask("GET", &headers, config.clone()), refused);
    }
}

#[test]
fn a_body_is_read_once_the_signature_holds_and_within_its_bound() {
    let digest = "SHA-256=ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="; // of abc
    let config = json!({"validate_request_body": true, "max_req_body_size": 8});
    let run = |header: &str, digest: &str, body: Option<&[u8]>| {
        let mut probe =
            Probe::request("POST", "/", &[("Authorization", header), ("Date", NOW), ("Digest", digest)])
                .consumer::<HmacAuth>("jack", json!({"key_id": "user-key", "secret_key": "my-secret"}));
        let stage: HmacAuth = probe.stage(config.clone()).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        match body {
            Some(body) if body.len() <= 8 => with_body(&mut x, body),
            Some(_) => (x.engine_mut().body_state, x.engine_mut().body_asked) = (Body::TooLarge, 8),
            None => {}
        }
        stage.rewrite(&mut x)
    };
    let header = with_digest(digest);
    assert!(matches!(run(&header, digest, None), Step::Body(8)));
    assert!(matches!(run(&header, digest, Some(b"abc")), Step::Next));
    for (digest, body) in [(digest, b"abd"), ("SHA-256=", b"abc"), ("MD5=x", b"abc")] {
        let Step::Reply(reply) = run(&with_digest(digest), digest, Some(body)) else { panic!("it passed") };
        assert_eq!(reply.status, 401, "{digest}");
    }
    let Step::Reply(reply) = run(&header, digest, Some(b"123456789")) else { panic!("it passed") };
    assert_eq!(reply.status, 413);
    // A request with a wrong signature does not make the gateway hold a body.
    let Step::Reply(reply) = run(&header.replace("user-key", "stranger"), digest, None) else {
        panic!("no reply")
    };
    assert_eq!(reply.status, 401);
}

#[test]
fn an_announced_length_beyond_the_bound_is_refused_unread() {
    let header = with_digest("x");
    let headers = [("Authorization", header.as_str()), ("Date", NOW), ("Digest", "x")];
    let mut probe = Probe::request("POST", "/", &headers)
        .consumer::<HmacAuth>("jack", json!({"key_id": "user-key", "secret_key": "my-secret"}));
    probe.messages.request.framing = Framing::Length(9);
    let stage: HmacAuth =
        probe.stage(json!({"validate_request_body": true, "max_req_body_size": 8})).unwrap();
    let mut x = probe.exchange();
    x.engine_mut().body_state = Body::Streaming;
    let Step::Reply(reply) = stage.rewrite(&mut x) else { panic!("it passed") };
    let said = "{\"message\":\"request size 9 is greater than the maximum size 8 allowed\"}\n";
    assert_eq!((reply.status, &reply.body[..]), (413, said.as_bytes()));
}

#[test]
fn credentials_are_hidden_and_the_anonymous_take_the_rest() {
    let mut probe = Probe::request("GET", "/", &[("Authorization", "Signature x")])
        .consumer::<HmacAuth>("jack", json!({"key_id": "user-key", "secret_key": "my-secret"}));
    let stage: HmacAuth =
        probe.stage(json!({"anonymous_consumer": "jack", "hide_credentials": true})).unwrap();
    let mut x = probe.exchange();
    assert!(matches!(stage.rewrite(&mut x), Step::Next));
    assert_eq!((x.consumer().unwrap().name.as_str(), x.header("Authorization")), ("jack", None));
    drop(x);
    let stage: HmacAuth = probe.stage(json!({"anonymous_consumer": "jack"})).unwrap();
    let mut x = probe.exchange();
    x.set_header("Authorization", b"Signature x").unwrap();
    assert!(matches!(stage.rewrite(&mut x), Step::Next));
    assert!(x.header("Authorization").is_some(), "who is not to hide it passes it on");
}

#[test]
fn a_signature_covers_so_many_headers_and_no_more() {
    for (count, passes) in [(128, true), (129, false), (5_000, false)] {
        let names = vec!["date"; count].join(" ");
        let text = format!("user-key\n{}", format!("date: {NOW}\n").repeat(count));
        let signature = sign(hmac::HMAC_SHA256, "my-secret", &text);
        let header = authorization("hmac-sha256", &names, &signature);
        let refused = ask("GET", &[("Authorization", &header), ("Date", NOW)], json!({}));
        assert_eq!(refused.is_none(), passes, "{count}");
    }
}

#[test]
fn no_header_breaks_it() {
    let good = signed();
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        // Pieces of a good one in any order, with what stands between them changed.
        let mut bytes: Vec<u8> = good.bytes().collect();
        for _ in 0..rng.usize(1..12) {
            let at = rng.usize(..bytes.len());
            match rng.u8(..3) {
                0 => bytes[at] = *rng.choice(b"\",= \t:@a").unwrap(),
                1 => bytes.truncate(at.max(1)),
                _ => {
                    let piece = bytes[at..].to_vec();
                    bytes.extend(piece.into_iter().take(40));
                }
            }
        }
        let header = String::from_utf8(bytes).unwrap();
        let own = [("Authorization", header.trim()), ("Date", NOW), ("X-Own", "1")];
        if let Some((status, _)) = ask("GET", &own, json!({})) {
            assert_eq!(status, 401);
        }
    }
}
