//! Logins, with a browser that keeps cookies.

use sdk::build::Extensions;

use super::*;

pub(super) fn config(rest: &Value) -> Value {
    let base = json!({"client_secret": "secret", "session": {"secret": "0123456789abcdef"}, "use_pkce": true, "use_nonce": true});
    with(base, rest)
}

/// The value of an argument in a URL or a form.
pub(super) fn argument(text: &str, name: &str) -> String {
    let query = text.split_once('?').map_or(text, |(_, query)| query);
    let found = match crate::query::find(query.as_bytes(), name.as_bytes()) {
        crate::query::Arg::One(value) => value.into_owned(),
        _ => Vec::new(),
    };
    String::from_utf8(found).unwrap()
}

/// A gateway, its provider, and a browser that was sent to it for `/shop?a=1`.
pub(super) struct Login {
    pub gateway: Gateway,
    pub signer: Signer,
    pub location: String,
}

impl Login {
    pub fn begin(rest: &Value) -> Login {
        Login::begin_with(rest, Extensions::default())
    }

    /// At a gateway with these services.
    pub fn begin_with(rest: &Value, extensions: Extensions) -> Login {
        let mut gateway = Gateway::with(config(rest), extensions);
        gateway.answers(vec![answer(&document())]);
        let ended = gateway.get("/shop?a=1", &[]);
        assert_eq!(ended.status, 302, "{ended:?}");
        Login { gateway, signer: Signer::new(), location: ended.header("Location").to_owned() }
    }

    pub fn claims(&self) -> Value {
        let nonce = argument(&self.location, "nonce");
        json!({"iss": "http://idp.test", "sub": "rose", "aud": "shop", "iat": NOW, "exp": NOW + 60, "nonce": nonce})
    }

    pub fn tokens(&self, claims: &Value) -> Value {
        let id_token = self.signer.token(claims);
        json!({"access_token": "at-1", "refresh_token": "rt-1", "expires_in": 100, "id_token": id_token})
    }

    /// The provider's answers to a code.
    pub fn answers(&self, claims: &Value) {
        let user = json!({"sub": "rose", "name": "Rose"});
        let tokens = answer(&self.tokens(claims));
        self.gateway.answers(vec![tokens, answer(&self.signer.jwks()), answer(&user)]);
    }

    pub fn callback(&mut self, query: &str) -> Ended {
        self.gateway.get(&format!("/shop/.apisix/redirect?{query}"), &[])
    }

    pub fn come_back(&mut self) -> Ended {
        let state = argument(&self.location, "state");
        self.callback(&format!("code=c%2B1&state={state}&iss=http%3A%2F%2Fidp.test"))
    }

    pub fn done(rest: &Value) -> Login {
        Login::done_with(rest, Extensions::default())
    }

    pub fn done_with(rest: &Value, extensions: Extensions) -> Login {
        let mut login = Login::begin_with(rest, extensions);
        login.answers(&login.claims());
        let ended = login.come_back();
        assert_eq!((ended.status, ended.header("Location")), (302, "/shop?a=1"), "{ended:?}");
        login
    }
}

#[test]
fn a_browser_logs_in_and_its_tokens_are_passed_on() {
    let mut login = Login::begin(
        &json!({"authorization_params": {"audience": "api", "max": 5}, "set_refresh_token_header": true, "set_raw_id_token_header": true}),
    );
    let to = login.location.clone();
    assert!(
        to.starts_with("http://127.0.0.1:8080/auth?response_type=code&client_id=shop&scope=openid&"),
        "{to}"
    );
    assert_eq!(argument(&to, "redirect_uri"), "http://gw.test/shop/.apisix/redirect");
    assert_eq!([argument(&to, "audience"), argument(&to, "max")], ["api", "5"]);
    assert_eq!(argument(&to, "code_challenge_method"), "S256");
    assert!(argument(&to, "nonce").len() == 32 && argument(&to, "state").len() == 32);
    login.answers(&login.claims());
    let ended = login.come_back();
    assert_eq!((ended.status, ended.header("Location")), (302, "/shop?a=1"), "{ended:?}");
    {
        let sent = login.gateway.probe.world.sent.borrow();
        let body = String::from_utf8(sent[1].body.to_vec()).unwrap();
        assert_eq!([argument(&body, "grant_type"), argument(&body, "code")], ["authorization_code", "c+1"]);
        let hash = aws_lc_rs::digest::digest(
            &aws_lc_rs::digest::SHA256,
            argument(&body, "code_verifier").as_bytes(),
        );
        assert_eq!(argument(&to, "code_challenge"), encoded(hash));
    }
    let names: Vec<_> = login.gateway.cookies.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, ["session"], "the cookie of the login is gone");
    let ended = login.gateway.get("/shop?a=1", &[("Cookie", "theme=dark"), ("X-ID-Token", "forged")]);
    assert_eq!(ended.status, 200, "{ended:?}");
    assert_eq!(ended.upstream("X-Access-Token"), Some("at-1"));
    assert_eq!(ended.upstream("X-Refresh-Token"), Some("rt-1"));
    assert!(ended.upstream("X-Raw-ID-Token").is_some_and(|token| token.split('.').count() == 3));
    let json_of = |name: &str| {
        serde_json::from_slice::<Value>(&BASE64_STANDARD.decode(ended.upstream(name).unwrap()).unwrap())
            .unwrap()
    };
    assert_eq!(json_of("X-ID-Token"), login.claims());
    assert_eq!(json_of("X-Userinfo"), json!({"sub": "rose", "name": "Rose"}));
    assert_eq!(ended.upstream("Cookie"), Some("theme=dark"), "the session is not for the upstream");
}

#[test]
fn cookies_have_the_attributes_of_the_settings() {
    let cookies = |session: Value, headers: &[(&str, &str)]| {
        let mut gateway = Gateway::new(config(&json!({ "session": session })));
        gateway.answers(vec![answer(&document())]);
        gateway.get("/", headers).header("Set-Cookie").to_owned()
    };
    let secret = "0123456789abcdef";
    let plain = cookies(json!({"secret": secret}), &[]);
    assert!(plain.starts_with("session_login=1."), "{plain}");
    assert!(plain.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=600"), "{plain}");
    let behind = cookies(json!({"secret": secret}), &[("X-Forwarded-Proto", "https")]);
    assert!(behind.contains("; Secure"), "{behind}");
    let forwarded = [
        ("Forwarded", "for=1.2.3.4;Host=\"shop.test:8443\";proto=https, host=x"),
        ("X-Forwarded-Host", "no.test"),
    ];
    let mut gateway = Gateway::new(config(&json!({})));
    gateway.answers(vec![answer(&document())]);
    let to = gateway.get("/", &forwarded).header("Location").to_owned();
    assert_eq!(argument(&to, "redirect_uri"), "https://shop.test:8443/.apisix/redirect");
    let all = json!({
        "secret": secret, "cookie_name": "own", "cookie_path": "/a", "cookie_domain": "a.test",
        "cookie_secure": true, "cookie_http_only": false, "cookie_same_site": "Strict",
    });
    let all = cookies(all, &[]);
    assert!(all.starts_with("own_login=1."), "{all}");
    assert!(all.contains("; Path=/a; Domain=a.test; SameSite=Lax; Secure"), "{all}");
}

#[test]
fn answers_that_belong_to_no_login_of_this_browser_are_refused() {
    // Without the cookie: another browser's answer.
    let mut login = Login::begin(&json!({}));
    login.answers(&login.claims());
    let cookies = std::mem::take(&mut login.gateway.cookies);
    assert_eq!(login.come_back().status, 500);
    assert_eq!(login.gateway.asked(), 1, "the code is not used");
    // With the cookie of another login.
    let other = Login::begin(&json!({}));
    login.gateway.cookies = other.gateway.cookies.clone();
    let ended = login.come_back();
    assert_eq!((ended.status, ended.header("Location")), (302, "/shop?a=1"), "the login begins again");
    assert_eq!(login.gateway.asked(), 1, "the code is not used");
    // A changed cookie, and one of another secret or client.
    for rest in [json!({"session": {"secret": "fedcba9876543210"}}), json!({"client_id": "other"})] {
        let mut other = Login::begin(&rest);
        other.gateway.cookies = cookies.clone();
        let state = argument(&login.location, "state");
        assert_eq!(other.callback(&format!("code=c&state={state}")).status, 500, "{rest}");
    }
    for at in [3, 40] {
        let (name, mut value) = cookies[0].clone();
        let other = if value.as_bytes()[at] == b'A' { "B" } else { "A" };
        value.replace_range(at..=at, other);
        login.gateway.cookies = vec![(name, value)];
        assert_eq!(login.come_back().status, 500, "{at}");
    }
    // The cookie of a login is no session.
    login.gateway.cookies = vec![("session".to_owned(), cookies[0].1.clone())];
    assert_eq!(login.gateway.get("/shop", &[]).status, 302);
    // A login that takes too long.
    login.gateway.cookies = cookies.clone();
    login.gateway.at(601);
    assert_eq!(login.come_back().status, 500);
    login.gateway.at(599);
    login.gateway.cookies = cookies;
    let mut claims = login.claims();
    claims["exp"] = json!(NOW + 999);
    login.answers(&claims);
    assert_eq!(login.come_back().status, 302);
    assert_eq!(login.come_back().status, 500, "a state is good for one session");
}

#[test]
fn a_login_that_fails_for_a_moment_begins_again_three_times() {
    let mut login = Login::begin(&json!({}));
    for turn in 0..4 {
        let state = argument(&login.location, "state");
        let ended = login.callback(&format!("error=temporarily_unavailable&state={state}"));
        if turn == 3 {
            assert_eq!(ended.status, 500);
            break;
        }
        assert_eq!((ended.status, ended.header("Location")), (302, "/shop?a=1"));
        login.location = login.gateway.get("/shop?a=1", &[]).header("Location").to_owned();
    }
    for query in [
        "error=access_denied&state=STATE",
        "error=temporarily_unavailable&state=forged",
        "",
        "code=c",
        "code=c&code=d&state=STATE",
    ] {
        let mut login = Login::begin(&json!({}));
        let query = query.replace("STATE", &argument(&login.location, "state"));
        assert_eq!(login.callback(&query).status, 500, "{query}");
    }
    let mut login = Login::begin(&json!({}));
    let state = argument(&login.location, "state");
    assert_eq!(login.callback(&format!("code=c&state={state}&iss=http%3A%2F%2Fevil.test")).status, 500);
}

#[test]
fn tabs_log_in_side_by_side_and_the_oldest_of_many_logins_is_forgotten() {
    let mut login = Login::begin(&json!({}));
    let first = login.location.clone();
    let second = login.gateway.get("/other", &[]).header("Location").to_owned();
    for (location, url) in [(second, "/other"), (first, "/shop?a=1")] {
        login.location = location;
        login.answers(&login.claims());
        assert_eq!(login.come_back().header("Location"), url);
    }
    let mut login = Login::begin(&json!({}));
    (0..4).for_each(|_| drop(login.gateway.get("/other", &[])));
    assert_eq!(login.come_back().header("Location"), "/other", "forgotten: the latest begins again");
}

#[test]
fn browsers_are_never_sent_to_another_host() {
    for path in ["//evil.test/", "///evil.test", "/%5Cevil.test/..", "/\\evil.test/"] {
        let mut gateway = Gateway::new(config(&json!({"redirect_uri": "http://gw.test/cb"})));
        gateway.answers(vec![answer(&document())]);
        let location = gateway.get(path, &[]).header("Location").to_owned();
        let signer = Signer::new();
        let login = Login { gateway, signer, location };
        login.answers(&login.claims());
        let state = argument(&login.location, "state");
        let mut login = login;
        let ended = login.gateway.get(&format!("/cb?code=c&state={state}"), &[]);
        let to = ended.header("Location");
        assert_eq!(ended.status, 302, "{path}");
        assert!(to.starts_with('/') && !to.starts_with("//") && !to.starts_with("/\\"), "{path} {to}");
    }
}

#[test]
fn id_tokens_are_verified() {
    let signer = Signer::new();
    let good = |login: &Login| login.claims();
    let change = |login: &Login, name: &str, value: Value| {
        let mut claims = login.claims();
        claims[name] = value;
        claims
    };
    for (name, value) in [
        ("iss", json!("http://evil.test")),
        ("aud", json!(["other"])),
        ("nonce", json!("other")),
        ("nonce", Value::Null),
        ("sub", Value::Null),
        ("iat", json!(NOW + 121)),
        ("iat", Value::Null),
        ("exp", json!(NOW - 121)),
        ("exp", Value::Null),
    ] {
        let mut login = Login::begin(&json!({}));
        login.answers(&change(&login, name, value.clone()));
        assert_eq!(login.come_back().status, 500, "{name} {value}");
        assert!(!login.gateway.cookies.iter().any(|(name, _)| name == "session"), "no session");
    }
    let run = |rest: &Value, id_token: &dyn Fn(&Login) -> String| {
        let mut login = Login::begin(rest);
        let tokens = json!({"access_token": "at", "id_token": id_token(&login)});
        login.gateway.answers(vec![
            answer(&tokens),
            answer(&login.signer.jwks()),
            answer(&json!({"sub": "rose"})),
        ]);
        login.come_back().status
    };
    let none =
        |login: &Login| format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(good(login).to_string()));
    let unknown =
        |login: &Login| format!("{}.{}.AAAA", encoded(r#"{"alg":"XX9"}"#), encoded(good(login).to_string()));
    let hashed = |login: &Login| {
        let signed = format!("{}.{}", encoded(r#"{"alg":"HS256"}"#), encoded(good(login).to_string()));
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"secret");
        format!("{signed}.{}", encoded(aws_lc_rs::hmac::sign(&key, signed.as_bytes())))
    };
    assert_eq!(run(&json!({}), &none), 500);
    assert_eq!(run(&json!({"accept_none_alg": true}), &none), 302);
    assert_eq!(run(&json!({}), &unknown), 302, "as APISIX: it comes from the provider itself");
    assert_eq!(run(&json!({"accept_unsupported_alg": false}), &unknown), 500);
    assert_eq!(run(&json!({}), &hashed), 302);
    assert_eq!(run(&json!({"client_secret": "other"}), &hashed), 500);
    assert_eq!(run(&json!({}), &|login| signer.token(&good(login))), 500, "another key");
    assert_eq!(run(&json!({}), &|_| "e30".to_owned()), 500);
}

#[test]
fn a_provider_that_is_away_or_wrong_gives_500() {
    let mut gateway = Gateway::new(config(&json!({})));
    gateway.answers(vec![Err(FetchError::Timeout)]);
    assert_eq!(gateway.get("/", &[]).status, 500);
    assert_eq!(gateway.get("/logout", &[]).status, 503);
    for failed in [
        Err(FetchError::TooLarge),
        Ok(Fetched { status: 400, body: b"{\"error\":\"invalid_grant\"}".to_vec(), ..Fetched::default() }),
        answer(&json!([1])),
        answer(&json!({"access_token": "at"})),
    ] {
        let mut login = Login::begin(&json!({}));
        login.gateway.answers(vec![failed]);
        assert_eq!(login.come_back().status, 500);
    }
    let mut login = Login::begin(&json!({}));
    let tokens = answer(&login.tokens(&login.claims()));
    let other = answer(&json!({"sub": "mallory"}));
    login.gateway.answers(vec![tokens, answer(&login.signer.jwks()), other]);
    assert_eq!(login.come_back().status, 302);
    let ended = login.gateway.get("/shop", &[]);
    assert_eq!(
        (ended.status, ended.upstream("X-Userinfo")),
        (200, None),
        "claims of another user are ignored"
    );
}

#[test]
fn without_a_session_the_action_decides() {
    for (action, status) in [("deny", 401), ("pass", 200)] {
        let mut gateway = Gateway::new(config(&json!({"unauth_action": action})));
        let ended = gateway.get("/", &[("X-Userinfo", "forged")]);
        assert_eq!((ended.status, ended.upstream("X-Userinfo"), gateway.asked()), (status, None, 0));
    }
}

#[test]
fn a_token_of_the_client_does_not_pass_for_that_of_the_session() {
    for (own_header, sent, upstream) in [
        (true, "Bearer forged", None),
        (true, "bearer  forged", None),
        (true, "Basic eDp5", Some("Basic eDp5")),
        (false, "Bearer other", Some("Bearer other")),
    ] {
        let rest = json!({"unauth_action": "pass", "access_token_in_authorization_header": own_header, "renew_access_token_on_expiry": false});
        let headers = [("Authorization", sent)];
        let ended = Gateway::new(config(&rest)).get("/", &headers);
        assert_eq!((ended.status, ended.upstream("Authorization")), (200, upstream), "{sent}");
        let mut login = Login::begin(&rest_with_login(&rest));
        login.answers(&login.claims());
        login.come_back();
        login.gateway.at(99);
        let ended = login.gateway.get("/", &headers);
        assert_eq!(ended.upstream("Authorization"), upstream, "{sent}: the session has no valid token");
    }
}

/// The settings with a login for requests without a session.
fn rest_with_login(rest: &Value) -> Value {
    let mut rest = rest.clone();
    rest["unauth_action"] = json!("auth");
    rest
}

#[test]
fn requests_are_pushed_to_the_provider() {
    let mut gateway = Gateway::new(config(&json!({"par": {"enabled": true}})));
    gateway.answers(vec![answer(&document()), answer(&json!({"request_uri": "urn:1"}))]);
    let ended = gateway.get("/shop", &[]);
    assert_eq!(ended.header("Location"), "http://127.0.0.1:8080/auth?client_id=shop&request_uri=urn%3A1");
    let (uri, body) = gateway.last_asked();
    assert_eq!((&*uri, &*argument(&body, "response_type")), ("/par", "code"));
    let par = json!({"enabled": true, "endpoint": "http://127.0.0.1:8080/own", "endpoint_auth_method": "client_secret_post"});
    let mut gateway = Gateway::new(config(&json!({ "par": par })));
    gateway.answers(vec![answer(&document()), answer(&json!({"request_uri": "urn:1"}))]);
    assert_eq!(gateway.get("/shop", &[]).status, 302);
    let (uri, body) = gateway.last_asked();
    assert_eq!((&*uri, &*argument(&body, "client_id")), ("/own", "shop"), "once");
    assert_eq!(argument(&body, "client_secret"), "secret");
}
