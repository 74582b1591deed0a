use sdk::testing::{Probe, now, with_body};
use sdk::world::{FetchError, Fetched};

use super::*;

fn answer(status: u16, body: &str) -> Result<Fetched, FetchError> {
    Ok(Fetched { status, body: body.as_bytes().to_vec(), ..Fetched::default() })
}

fn accepted() -> Result<Fetched, FetchError> {
    answer(200, "{\"result\":true}")
}

/// The plugin with a request; `answers` are those of the server, in their order.
struct Case {
    probe: Probe,
    plugin: AuthzKeycloak,
}

impl Case {
    fn new(config: Value, request: (&str, &str, &[(&str, &str)])) -> Case {
        let probe = Probe::request(request.0, request.1, request.2);
        let mut all = json!({"client_id": "shop", "token_endpoint": "http://127.0.0.1:8080/token"});
        all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let plugin = probe.stage(all).unwrap();
        Case { probe, plugin }
    }

    /// Status and body of the reply, 0 if the request goes on; and what the server was asked.
    fn run(&mut self, answers: Vec<Result<Fetched, FetchError>>, body: &[u8]) -> (u16, String, Vec<String>) {
        *self.probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
        self.probe.messages.body = Default::default();
        let mut x = self.probe.exchange();
        with_body(&mut x, body);
        let step = match self.plugin.access(&mut x) {
            Step::Wait => now(self.plugin.wait(Phase::Access, &mut x)),
            step => step,
        };
        drop(x);
        let sent = self.probe.world.sent.take().into_iter().map(|fetch| {
            let token = fetch
                .fields
                .get_named(b"Authorization")
                .map(|token| String::from_utf8_lossy(token).into_owned());
            format!(
                "{} {} {}",
                String::from_utf8_lossy(&fetch.uri),
                token.unwrap_or_default(),
                String::from_utf8_lossy(&fetch.body)
            )
        });
        let sent = sent.collect();
        match step {
            Step::Next => (0, String::new(), sent),
            Step::Reply(reply) => {
                let location = reply.headers.iter().find(|(name, _)| *name == "Location");
                let body = location.map_or(&reply.body[..], |(_, value)| value);
                (reply.status, String::from_utf8(body.to_vec()).unwrap(), sent)
            }
            step => panic!("{step:?}"),
        }
    }
}

fn with_token(config: Value) -> Case {
    Case::new(config, ("GET", "/cars/1", &[("Authorization", "Bearer t")]))
}

#[test]
fn permissions_are_asked_for_with_the_token_of_the_request() {
    let mut case = with_token(json!({"permissions": ["car#view", "car 2"], "http_method_as_scope": true}));
    let (status, _, sent) = case.run(vec![answer(200, "{\"result\":true}")], b"");
    assert_eq!(status, 0);
    assert_eq!(
        sent,
        ["/token Bearer t grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Auma-ticket&audience=shop\
          &response_mode=decision&permission=car%23view%2C%20GET&permission=car%202%23GET"]
    );
    let mut bare = Case::new(json!({"permissions": ["a"]}), ("GET", "/", &[("Authorization", "t")]));
    assert!(bare.run(vec![answer(200, "{}")], b"").2[0].starts_with("/token Bearer t "));
}

#[test]
fn only_a_decision_accepts() {
    let mut case = with_token(json!({"permissions": ["a"]}));
    for (answered, status, body) in [
        (answer(403, "{\"error\":\"access_denied\"}"), 403, "{\"error\":\"access_denied\"}"),
        (answer(401, "{\"error\":\"invalid_token\"}"), 401, "{\"error\":\"invalid_token\"}"),
        (answer(400, "{\"error\":\"invalid_resource\"}"), 400, "{\"error\":\"invalid_resource\"}"),
        (answer(500, ""), 500, ""),
        (answer(302, ""), 503, ""),
        (answer(200, ""), 503, ""),
        (answer(200, "{\"result\":false}"), 503, ""),
        (Err(FetchError::Refused), 503, ""),
        (Err(FetchError::TooLarge), 503, ""),
    ] {
        let (own, text, _) = case.run(vec![answered], b"");
        assert_eq!((own, &text[..]), (status, body));
    }
    let mut redirected =
        with_token(json!({"permissions": ["a"], "access_denied_redirect_uri": "http://x/denied"}));
    assert_eq!(redirected.run(vec![answer(403, "no")], b"").1, "http://x/denied");
    assert_eq!(redirected.run(vec![answer(401, "no")], b"").0, 401);
}

#[test]
fn without_permissions_the_mode_decides() {
    let mut enforcing = with_token(json!({}));
    let (status, body, sent) = enforcing.run(vec![], b"");
    assert_eq!(
        (status, &body[..], sent.len()),
        (403, "{\"error\":\"access_denied\",\"error_description\":\"not_authorized\"}", 0)
    );
    let mut redirected = with_token(json!({"access_denied_redirect_uri": "/denied"}));
    assert_eq!(redirected.run(vec![], b"").0, 307);
    let mut permissive = with_token(json!({"policy_enforcement_mode": "PERMISSIVE"}));
    assert_eq!(permissive.run(vec![accepted()], b"").0, 0);
    let two = [("Authorization", "Bearer t"), ("authorization", "Bearer u")];
    let mut twice = Case::new(json!({"permissions": ["a"]}), ("GET", "/", &two));
    assert_eq!(twice.run(vec![answer(200, "")], b"").0, 401);
    let mut missing = Case::new(json!({"permissions": ["a"]}), ("GET", "/", &[]));
    let (status, body, sent) = missing.run(vec![], b"");
    assert_eq!((status, &body[..], sent.len()), (401, "{\"message\":\"Missing JWT token in request\"}\n", 0));
}

#[test]
fn resources_of_a_path_are_asked_for_by_the_client() {
    let config = json!({
        "lazy_load_paths": true, "client_secret": "s", "resource_registration_endpoint": "http://127.0.0.1:8080/res",
    });
    let mut case = with_token(config);
    let tokens = |more: &str| answer(200, &format!("{{\"access_token\":\"sa\",\"expires_in\":60{more}}}"));
    let decision = accepted;
    let resources = || answer(200, "[\"id-1\"]");
    let (status, _, sent) = case.run(vec![tokens(",\"refresh_token\":\"r\""), resources(), decision()], b"");
    assert_eq!(status, 0);
    assert_eq!(sent[0], "/token  grant_type=client_credentials&client_id=shop&client_secret=s");
    assert_eq!(sent[1], "/res?uri=%2Fcars%2F1&matchingUri=true Bearer sa ");
    assert!(sent[2].ends_with("permission=id-1"), "{}", sent[2]);
    assert_eq!(case.run(vec![resources(), decision()], b"").2.len(), 2, "the token is kept");
    case.probe.world.now_ms.set(case.probe.world.now_ms.get() + 59_001);
    let (status, _, sent) = case.run(vec![tokens(""), resources(), decision()], b"");
    assert_eq!((status, sent.len()), (0, 3));
    assert_eq!(sent[0], "/token  grant_type=refresh_token&refresh_token=r&client_id=shop&client_secret=s");
    case.probe.world.now_ms.set(case.probe.world.now_ms.get() + 59_001);
    let (status, _, sent) = case.run(vec![answer(400, ""), tokens(""), resources(), decision()], b"");
    assert_eq!((status, sent.len()), (0, 4), "a refused refresh token is replaced: {sent:?}");
    assert_eq!(case.run(vec![answer(200, "[]")], b"").0, 403);
    let many = format!("[{}\"x\"]", "\"x\",".repeat(RESOURCES));
    for wrong in [answer(500, ""), answer(200, "{}"), answer(200, &many), Err(FetchError::Timeout)] {
        assert_eq!(case.run(vec![wrong], b"").0, 503);
    }
}

#[test]
fn tokens_of_the_client_end_at_once_or_early() {
    let config =
        json!({"lazy_load_paths": true, "resource_registration_endpoint": "http://127.0.0.1:8080/res"});
    let mut case = with_token(config);
    let all = |seconds: u64| {
        let token = format!("{{\"access_token\":\"sa\",\"expires_in\":{seconds}}}");
        vec![answer(200, &token), answer(200, "[\"id-1\"]"), accepted()]
    };
    for seconds in [0, 1, 2] {
        let (status, _, sent) = case.run(all(seconds), b"");
        assert_eq!((status, sent.len()), (0, 3), "{seconds}: {sent:?}");
        case.probe.world.now_ms.set(case.probe.world.now_ms.get() + 2000);
    }
    // Without an answer, a token that is over is not used.
    let (status, _, sent) = case.run(vec![Err(FetchError::Refused)], b"");
    assert_eq!((status, sent.len()), (503, 1), "{sent:?}");
    case.probe.world.now_ms.set(case.probe.world.now_ms.get() + 2000);
    assert_eq!(case.run(all(300), b"").0, 0);
    assert_eq!(case.run(vec![answer(401, "")], b"").0, 503, "it was revoked");
    assert_eq!(case.run(all(300), b"").0, 0);
}

#[test]
fn endpoints_are_discovered() {
    let config =
        json!({"discovery": "http://127.0.0.1:8080/uma2", "token_endpoint": null, "permissions": ["a"]});
    let mut config = config;
    config.as_object_mut().unwrap().remove("token_endpoint");
    let probe = Probe::request("GET", "/", &[("Authorization", "Bearer t")]);
    config["client_id"] = json!("shop");
    let plugin = probe.stage(config).unwrap();
    let mut case = Case { probe, plugin };
    let document = "{\"token_endpoint\":\"http://127.0.0.1:8080/found\"}";
    for refused in [answer(500, ""), answer(200, "<html>"), Err(FetchError::Refused)] {
        assert_eq!(case.run(vec![refused], b"").0, 503);
        case.probe.world.now_ms.set(case.probe.world.now_ms.get() + 2000);
    }
    let (status, _, sent) = case.run(vec![answer(200, document), accepted()], b"");
    assert_eq!((status, &sent[0][..]), (0, "/uma2  "));
    assert!(sent[1].starts_with("/found Bearer t "));
    assert_eq!(case.run(vec![answer(200, "{}")], b"").2.len(), 1, "the document is kept");
}

#[test]
fn a_name_and_a_password_become_a_token() {
    let config =
        json!({"password_grant_token_generation_incoming_uri": "/api/token?x=1", "client_secret": "s"});
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let mut case = Case::new(config, ("POST", "/api/token?x=1", &form));
    let body = b"username=a%20b&password=p%26";
    let (status, token, sent) = case.run(vec![answer(200, "{\"access_token\":\"t\"}")], body);
    assert_eq!((status, &token[..]), (200, "{\"access_token\":\"t\"}"));
    assert_eq!(
        sent,
        ["/token  grant_type=password&client_id=shop&client_secret=s&username=a%20b&password=p%26"]
    );
    for (answered, body, status, message) in [
        (answer(401, "{}"), &body[..], 401, "Could not decode JSON from response."),
        (answer(200, "<html>"), body, 401, "Could not decode JSON from response."),
        (Err(FetchError::Refused), body, 401, "Accessing token endpoint URL failed."),
        (answer(200, "{}"), b"password=1", 422, "username is missing."),
        (answer(200, "{}"), b"username=1&password", 422, "password is missing."),
    ] {
        let (own, text, _) = case.run(vec![answered], body);
        assert_eq!((own, text), (status, format!("{{\"message\":\"{message}\"}}\n")));
    }
}

#[test]
fn mistakes_are_named() {
    let refused = |config: Value| Probe::default().stage::<AuthzKeycloak>(config).err().unwrap();
    let client = |more: Value| {
        let mut config = json!({"client_id": "c"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        refused(config)
    };
    client(json!({}));
    assert_eq!(client(json!({"token_endpoint": "ftp://h"})).pointer, "/token_endpoint");
    assert_eq!(client(json!({"discovery": "http://h/ x"})).pointer, "/discovery");
    client(json!({"token_endpoint": "http://h/", "lazy_load_paths": true}));
    let redirect = json!({"token_endpoint": "http://h/", "access_denied_redirect_uri": "http://x/\r\ny"});
    assert_eq!(client(redirect).pointer, "/access_denied_redirect_uri");
}
