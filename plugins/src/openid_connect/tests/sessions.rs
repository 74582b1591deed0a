//! Sessions after the login: their ends, renewals, claims and length.

use sdk::storage::{Memory, Storages};

use super::login::{Login, argument, config};
use super::*;

#[test]
fn sessions_end() {
    let limits = |limits: Value| {
        let mut session = json!({"secret": "0123456789abcdef"});
        session.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        json!({"session": session, "renew_access_token_on_expiry": false})
    };
    for (rest, last, over) in [
        (limits(json!({"idling_timeout": 30, "rolling_timeout": 0, "absolute_timeout": 0})), 29, 30),
        (limits(json!({"idling_timeout": 0, "rolling_timeout": 40, "absolute_timeout": 0})), 39, 40),
        (limits(json!({"idling_timeout": 0, "rolling_timeout": 0, "absolute_timeout": 50})), 49, 50),
        (limits(json!({"idling_timeout": 0, "rolling_timeout": 0, "cookie": {"lifetime": 50}})), 49, 50),
    ] {
        let mut login = Login::done(&rest);
        let cookies = login.gateway.cookies.clone();
        for (seconds, status) in [(last, 200), (over, 302)] {
            login.gateway.cookies = cookies.clone();
            login.gateway.at(seconds);
            assert_eq!(login.gateway.get("/shop", &[]).status, status, "{rest} {seconds}");
        }
    }
    let mut login = Login::done(&limits(json!({"idling_timeout": 100})));
    for turn in 1..=20 {
        login.gateway.at(turn * 70);
        assert_eq!(login.gateway.get("/shop", &[]).status, 200, "a session in use stays");
    }
}

#[test]
fn expired_access_tokens_are_renewed_once() {
    let mut login = Login::done(&json!({}));
    login.gateway.at(99);
    let before = login.gateway.asked();
    let old = login.gateway.cookies.clone();
    let renewed = json!({"access_token": "at-2", "refresh_token": "rt-2", "expires_in": 100});
    login.gateway.answers(vec![answer(&renewed)]);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, ended.upstream("X-Access-Token")), (200, Some("at-2")));
    let (uri, body) = login.gateway.last_asked();
    assert_eq!((&*uri, &*argument(&body, "refresh_token")), ("/token", "rt-1"));
    assert!(ended.header("Set-Cookie").starts_with("session=1."));
    let new = std::mem::replace(&mut login.gateway.cookies, old);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!(ended.upstream("X-Access-Token"), Some("at-2"), "another request with the old session");
    assert_eq!(login.gateway.asked(), before + 1);
    login.gateway.cookies = new;
    login.gateway.at(198);
    let mallory = login.signer.token(
        &json!({"iss": "http://idp.test", "sub": "mallory", "aud": "shop", "iat": NOW, "exp": NOW + 999}),
    );
    login.gateway.answers(vec![answer(&json!({"access_token": "at-3", "id_token": mallory}))]);
    assert_eq!(login.gateway.get("/shop", &[]).status, 302, "tokens of another user");
    login.gateway.answers(vec![Ok(Fetched { status: 400, ..Fetched::default() })]);
    assert_eq!(login.gateway.get("/shop", &[]).status, 302, "refused: the browser logs in again");
    let mut login = Login::done(&json!({"renew_access_token_on_expiry": false}));
    login.gateway.at(99);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, ended.upstream("X-Access-Token")), (200, None));
    let mut login = Login::done(&json!({"refresh_session_interval": 50}));
    login.gateway.at(51);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, &*argument(ended.header("Location"), "prompt")), (302, "none"));
}

#[test]
fn logout_ends_the_session_here_and_at_the_provider() {
    let rest = json!({"post_logout_redirect_uri": "http://gw.test/bye", "revoke_tokens_on_logout": true});
    let mut login = Login::done(&rest);
    let empty = || Ok(Fetched { status: 200, ..Fetched::default() });
    login.gateway.answers(vec![empty(), empty()]);
    let ended = login.gateway.get("/logout?x=1", &[]);
    let to = ended.header("Location");
    assert_eq!((ended.status, login.gateway.cookies.len()), (302, 0), "{ended:?}");
    assert!(to.starts_with("http://127.0.0.1:8080/end?id_token_hint=ey"), "{to}");
    assert_eq!(argument(to, "post_logout_redirect_uri"), "http://gw.test/bye");
    let (uri, body) = login.gateway.last_asked();
    assert_eq!((&*uri, &*argument(&body, "token")), ("/revoke", "at-1"));
    assert_eq!(login.gateway.get("/shop", &[]).status, 302);
    // The document has expired, and the provider does not answer.
    let mut login = Login::done(
        &json!({"session": {"secret": "0123456789abcdef", "idling_timeout": 0, "rolling_timeout": 0}}),
    );
    login.gateway.at(8_000);
    login.gateway.answers(vec![Ok(Fetched { status: 500, ..Fetched::default() })]);
    let ended = login.gateway.get("/logout", &[]);
    assert_eq!((ended.status, login.gateway.cookies.len()), (503, 0), "{ended:?}");
    for (after, status, to) in [
        (
            Some("http://gw.test/bye"),
            302,
            "http://gw.test/bye?post_logout_redirect_uri=http%3A%2F%2Fgw.test%2Fbye",
        ),
        (None, 200, ""),
    ] {
        let mut rest = json!({"logout_path": "/out"});
        if let Some(after) = after {
            rest["post_logout_redirect_uri"] = json!(after);
        }
        let mut gateway = Gateway::new(config(&rest));
        let mut document = document();
        document.as_object_mut().unwrap().remove("end_session_endpoint");
        gateway.answers(vec![answer(&document)]);
        let ended = gateway.get("/out", &[]);
        assert_eq!((ended.status, ended.header("Location")), (status, to));
    }
}

#[test]
fn scopes_and_claims_of_a_session_are_checked() {
    let signer = Signer::new();
    for (rest, access_token, status) in [
        (json!({"required_scopes": ["read"]}), signer.token(&json!({"scope": "read"})), 200),
        (json!({"required_scopes": ["read"]}), signer.token(&json!({"scope": "write"})), 403),
        (json!({"required_scopes": ["read"]}), "opaque".to_owned(), 403),
        (json!({"claim_schema": {"required": ["id_token", "access_token"]}}), "opaque".to_owned(), 200),
        (
            json!({"claim_schema": {"properties": {"id_token": {"required": ["email"]}}}}),
            "opaque".to_owned(),
            401,
        ),
    ] {
        let mut login = Login::begin(&rest);
        let id_token = login.signer.token(&login.claims());
        let tokens = json!({"access_token": access_token, "id_token": id_token});
        login.gateway.answers(vec![
            answer(&tokens),
            answer(&login.signer.jwks()),
            answer(&json!({"sub": "rose"})),
        ]);
        assert_eq!(login.come_back().status, 302);
        assert_eq!(login.gateway.get("/shop", &[]).status, status, "{rest} {access_token}");
    }
}

#[test]
fn long_sessions_are_split_and_those_that_are_too_long_refused() {
    let store = |length: usize, user: usize| {
        let mut login = Login::begin(&json!({}));
        let mut tokens = login.tokens(&login.claims());
        tokens["access_token"] = json!("a".repeat(length));
        let user = json!({"sub": "rose", "text": "b".repeat(user)});
        login.gateway.answers(vec![answer(&tokens), answer(&login.signer.jwks()), answer(&user)]);
        let status = login.come_back().status;
        (login, status)
    };
    let (mut login, status) = store(9_000, 10);
    assert_eq!((status, login.gateway.cookies.len()), (302, 4));
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, ended.upstream("X-Access-Token").map(str::len)), (200, Some(9_000)));
    assert_eq!(ended.upstream("Cookie"), None);
    login.gateway.cookies.remove(1);
    assert_eq!(login.gateway.get("/shop", &[]).status, 302, "a part is missing");
    let (mut login, status) = store(10, 40_000);
    assert_eq!(status, 302);
    assert_eq!(login.gateway.get("/shop", &[]).upstream("X-Userinfo"), None, "left out");
    assert_eq!(store(40_000, 10).1, 500);
}

/// A storage for a gateway, and settings that use it.
fn stored() -> (std::sync::Arc<Memory>, sdk::build::Extensions, Value) {
    let memory = std::sync::Arc::new(Memory::default());
    let storages = Storages::default().with("redis", std::sync::Arc::new(memory.clone()));
    let extensions = sdk::build::Extensions::default().with(std::sync::Arc::new(storages));
    let session = json!({"secret": "0123456789abcdef", "storage": "redis", "redis": {"prefix": "s"}});
    (memory, extensions, json!({"session": session, "renew_access_token_on_expiry": false}))
}

fn set_away(memory: &Memory, is_away: bool) {
    memory.is_away.store(is_away, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn sessions_may_be_in_a_storage() {
    let (memory, extensions, rest) = stored();
    let mut login = Login::done_with(&rest, extensions);
    let keys = || memory.values().keys().cloned().collect::<Vec<_>>();
    let [(_, cookie)] = &login.gateway.cookies.clone()[..] else { panic!("{:?}", login.gateway.cookies) };
    let id = cookie.strip_prefix("1.").unwrap();
    let key = String::from_utf8(keys()[0].clone()).unwrap();
    assert!(key.starts_with("s:session:") && !key.contains(id), "{key} {id}");
    let (value, ttl) = memory.values().values().next().unwrap().clone();
    assert!(!value.windows(4).any(|part| part == b"at-1"), "it is encrypted");
    assert_eq!(ttl, std::time::Duration::from_secs(900));
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, ended.upstream("Cookie")), (200, None));
    assert_eq!(ended.upstream("X-Access-Token"), Some("at-1"));
    let unknown = format!("1.{}", "A".repeat(43));
    for cookie in [&unknown[..], &format!("1.{}/", &id[..42]), &key.replace("s:session:", "1."), "1.x", "2.x"]
    {
        login.gateway.cookies = vec![("session".to_owned(), cookie.to_owned())];
        assert_eq!(login.gateway.get("/shop", &[]).status, 302, "{cookie}");
    }
    let mine = vec![("session".to_owned(), format!("1.{id}"))];
    login.gateway.cookies = [mine.clone(), vec![("session2".to_owned(), "of cookies".to_owned())]].concat();
    // Its use is noted in its place.
    login.gateway.at(100);
    let ended = login.gateway.get("/shop", &[]);
    assert!(ended.header("Set-Cookie").starts_with(&format!("session=1.{id};")), "{ended:?}");
    assert_eq!((keys().len(), login.gateway.cookies.clone()), (1, mine.clone()));
    set_away(&memory, true);
    assert_eq!(login.gateway.get("/shop", &[]).status, 503);
    assert_eq!(login.gateway.get("/logout", &[]).status, 503);
    set_away(&memory, false);
    assert_eq!(login.gateway.get("/logout", &[]).status, 302);
    assert_eq!((login.gateway.cookies.len(), keys().len()), (0, 0), "the session is gone in both places");
    login.gateway.cookies = mine;
    assert_eq!(login.gateway.get("/shop", &[]).status, 302);
}

#[test]
fn a_value_of_another_session_does_not_open() {
    let (memory, extensions, rest) = stored();
    let mut one = Login::done_with(&rest, extensions.clone());
    let mut other = Login::done_with(&rest, extensions);
    let mut values = memory.values();
    let both: Vec<_> = values.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let [(first, value), (second, other_value)] = &both[..] else { panic!("{both:?}") };
    values.insert(first.clone(), other_value.clone());
    values.insert(second.clone(), value.clone());
    drop(values);
    assert_eq!([one.gateway.get("/shop", &[]).status, other.gateway.get("/shop", &[]).status], [302, 302]);
}

#[test]
fn a_renewal_beside_a_logout_or_another_renewal_does_not_bring_a_session_back() {
    let (memory, extensions, mut rest) = stored();
    rest["renew_access_token_on_expiry"] = json!(true);
    rest["revoke_tokens_on_logout"] = json!(true);
    let mut login = Login::done_with(&rest, extensions);
    let before = memory.values().clone();
    let renewed = || answer(&json!({"access_token": "at-2", "refresh_token": "rt-2", "expires_in": 1000}));
    let refused = || Ok(Fetched { status: 400, ..Fetched::default() });
    let cookies = login.gateway.cookies.clone();
    memory.then(Default::default());
    login.gateway.at(200);
    let empty = || Ok(Fetched { status: 200, ..Fetched::default() });
    login.gateway.answers(vec![renewed(), empty(), empty()]);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, memory.values().len()), (302, 0), "{ended:?}");
    let (uri, body) = login.gateway.last_asked();
    assert_eq!((&*uri, &*argument(&body, "token")), ("/revoke", "at-2"));
    // Another node renews it first: the provider refuses the second renewal, and the renewed session is in the storage.
    *memory.values() = before.clone();
    login.gateway.cookies = cookies.clone();
    login.gateway.at(300);
    login.gateway.answers(vec![renewed()]);
    assert_eq!(login.gateway.get("/shop", &[]).upstream("X-Access-Token"), Some("at-2"));
    let after = memory.values().clone();
    *memory.values() = before;
    memory.then(after);
    login.gateway.at(320);
    login.gateway.answers(vec![refused()]);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!((ended.status, ended.upstream("X-Access-Token")), (200, Some("at-2")), "{ended:?}");
}

#[test]
fn a_login_gets_an_id_of_its_own_in_the_storage() {
    let (memory, extensions, rest) = stored();
    let mut first = Login::done_with(&rest, extensions);
    let cookie = first.gateway.cookies[0].1.clone();
    first.gateway.at(1_000);
    let ended = first.gateway.get("/shop?a=1", &[]);
    assert_eq!(ended.status, 302, "it has expired");
    first.location = ended.header("Location").to_owned();
    first.gateway.answers(Vec::new());
    let mut claims = first.claims();
    claims["iat"] = json!(NOW + 1_000);
    claims["exp"] = json!(NOW + 1_060);
    first.answers(&claims);
    assert_eq!(first.come_back().status, 302);
    assert_ne!(first.gateway.cookies[0].1, cookie);
    assert_eq!(memory.values().len(), 1, "the old one is removed");
}
