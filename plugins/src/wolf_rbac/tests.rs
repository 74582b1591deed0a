use sdk::testing::{Probe, now, with_body};
use sdk::world::{FetchError, Fetched};

use super::*;

const TOKEN: &str = "V1#shop#secret";

fn answer(status: u16, body: &Value) -> Result<Fetched, FetchError> {
    Ok(Fetched { status, body: body.to_string().into_bytes(), ..Fetched::default() })
}

fn probe(method: &str, target: &str, headers: &[(&str, &str)]) -> Probe {
    let settings = json!({"appid": "shop", "server": "http://127.0.0.1:12180/base/"});
    Probe::request(method, target, headers).consumer::<WolfRbac>("jack", settings)
}

/// Status and body of a reply; 0 if the request goes on.
fn said(step: Step) -> (u16, String) {
    match step {
        Step::Next => (0, String::new()),
        Step::Reply(reply) => (reply.status, String::from_utf8_lossy(&reply.body).trim_end().to_owned()),
        step => panic!("{step:?}"),
    }
}

/// Runs a request; the answers are the server's, in their order.
fn run(
    probe: &mut Probe,
    answers: Vec<Result<Fetched, FetchError>>,
    then: impl FnOnce(&Exchange<'_>),
) -> (u16, String) {
    *probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
    let plugin: WolfRbac = probe.stage(json!({})).unwrap();
    let mut x = probe.exchange();
    let sure = plugin.sure_answer(&x);
    let step = match plugin.rewrite(&mut x) {
        Step::Wait => {
            assert_eq!(sure, None);
            now(plugin.wait(Phase::Rewrite, &mut x))
        }
        step => {
            assert_eq!(sure, Some(SureAnswer::Status(401)));
            step
        }
    };
    then(&x);
    said(step)
}

/// Calls an endpoint by its place.
fn call(
    probe: &mut Probe,
    at: usize,
    body: &str,
    answers: Vec<Result<Fetched, FetchError>>,
) -> (u16, String) {
    *probe.world.answers.borrow_mut() = answers.into_iter().rev().collect();
    let plugin: WolfRbac = probe.stage(json!({})).unwrap();
    let mut x = probe.exchange();
    with_body(&mut x, body.as_bytes());
    x.set_note(Called(at));
    said(match plugin.serve(&mut x) {
        Step::Wait => now(plugin.wait(Phase::Access, &mut x)),
        step => step,
    })
}

fn user() -> Value {
    json!({"ok": true, "data": {"token": "t", "userInfo": {"id": 100, "username": "ann", "nickname": "An Ä"}}})
}

#[test]
fn tokens_stand_in_four_places() {
    for (target, headers) in [
        ("/a?rbac_token=V1%23shop%23secret", &[][..]),
        ("/a", &[("Authorization", TOKEN)]),
        ("/a", &[("x-rbac-token", TOKEN)]),
        ("/a", &[("Cookie", "a=b; x-rbac-token=V1#shop#secret")]),
    ] {
        let mut probe = probe("GET", target, headers);
        let got = run(&mut probe, vec![answer(200, &user())], |x| {
            assert_eq!(x.consumer().unwrap().name, "jack");
            assert_eq!(x.header("X-UserId"), Some(&b"100"[..]));
            assert_eq!(x.header("X-Nickname"), Some(&b"An%20%C3%84"[..]));
        });
        assert_eq!(got, (0, String::new()), "{target} {headers:?}");
        let sent = probe.world.sent.borrow_mut().pop().unwrap();
        assert_eq!(sent.fields.get_named(b"X-Rbac-Token"), Some(&b"secret"[..]));
        assert_eq!(sent.timeouts.read, std::time::Duration::from_secs(10));
        assert_eq!(
            String::from_utf8_lossy(&sent.uri),
            "/base/wolf/rbac/access_check?appID=shop&resName=%2Fa&action=GET&clientIP=127.0.0.1"
        );
    }
}

#[test]
fn requests_without_a_usable_token_are_refused() {
    let message = |text: &str| (401, json!({ "message": text }).to_string());
    for (target, headers, text) in [
        ("/a", &[][..], MISSING),
        ("/a?rbac_token=a&rbac_token=b", &[("Authorization", TOKEN)], UNREADABLE),
        ("/a?rbac_token", &[], UNREADABLE),
        ("/a", &[("Authorization", "V2#shop#secret")], UNREADABLE),
        ("/a", &[("Authorization", "V1#shop")], UNREADABLE),
        ("/a", &[("Authorization", "")], UNREADABLE),
        ("/a", &[("Authorization", "V1#other#secret")], UNKNOWN),
        // {"appid":"other"}
        ("/a", &[("Authorization", "V1#shop#e30.eyJhcHBpZCI6Im90aGVyIn0.c2ln")], UNKNOWN),
        ("/a?rbac_token=V1%23shop%23a%0d%0ab:c", &[], UNREADABLE),
    ] {
        assert_eq!(
            run(&mut probe("GET", target, headers), vec![], |_| {}),
            message(text),
            "{target} {headers:?}"
        );
    }
    let mut probe = Probe::request("GET", "/a", &[("Authorization", TOKEN)]);
    assert_eq!(run(&mut probe, vec![], |_| {}), message("Missing related consumer"));
}

#[test]
fn only_a_decision_accepts() {
    let broken = || Ok(Fetched { status: 200, body: b"<html>".to_vec(), ..Fetched::default() });
    let odd = json!({"ok": true, "data": {"userInfo": {"id": "1\r\nX-Admin: 1"}}});
    let none = r#"{"message":"request to wolf-server failed, err:no decision"}"#;
    for (answers, status, text) in [
        (vec![answer(403, &json!({"reason": "ERR"}))], 403, r#"{"message":"ERR"}"#),
        (
            vec![answer(401, &json!({"reason": "ERR", "data": {"userInfo": {"username": "ann"}}}))],
            401,
            r#"{"message":"ERR","username":"ann","nickname":"ann"}"#,
        ),
        (
            vec![answer(500, &json!({})), answer(503, &json!({})), answer(502, &json!({}))],
            500,
            r#"{"message":"request to wolf-server failed, status:502"}"#,
        ),
        (vec![answer(500, &json!({})), answer(200, &user())], 0, ""),
        (vec![answer(200, &json!({"ok": false, "reason": "ERR"}))], 500, none),
        (vec![answer(200, &json!({"ok": 1, "data": {}}))], 500, none),
        (vec![answer(200, &json!({}))], 500, none),
        (vec![answer(204, &user())], 500, none),
        (vec![broken()], 500, r#"{"message":"check permission failed! parse response json failed!"}"#),
        (
            vec![answer(200, &json!([]))],
            500,
            r#"{"message":"check permission failed! parse response json failed!"}"#,
        ),
        (vec![answer(200, &odd)], 500, r#"{"message":"the user's id or name is not a valid header value"}"#),
        (
            vec![Err(FetchError::Unresolved)],
            500,
            r#"{"message":"request to wolf-server failed, err:the host name has no address"}"#,
        ),
    ] {
        let mut probe = probe("GET", "/a", &[("Authorization", TOKEN)]);
        let got = run(&mut probe, answers, |x| {
            assert_eq!(x.consumer().is_some(), status == 0);
            assert_eq!(x.header("X-Username").is_some(), status == 0);
        });
        assert_eq!(got, (status, text.to_owned()));
    }
}

#[test]
fn headers_of_the_client_about_its_user_are_removed() {
    let headers =
        [("Authorization", TOKEN), ("X-UserId", "1"), ("x_username", "root"), ("X-Nickname", "root")];
    let mut probe = probe("GET", "/a", &headers);
    let got = run(&mut probe, vec![answer(200, &json!({"ok": true, "data": {}}))], |x| {
        assert!(
            ["X-UserId", "X-Username", "x_username", "X-Nickname"]
                .iter()
                .all(|name| x.header(*name).is_none())
        );
    });
    assert_eq!(got.0, 0);
}

#[test]
fn a_login_returns_a_token() {
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let kind = [("Content-Type", "application/json; charset=utf-8")];
    let mut probe = probe("POST", "/login", &kind);
    let got = call(&mut probe, 0, r#"{"appid":"shop","username":"ann"}"#, vec![answer(200, &user())]);
    let body: Value = serde_json::from_str(&got.1).unwrap();
    assert_eq!(
        (got.0, &body["rbac_token"], &body["user_info"]["id"]),
        (200, &json!("V1#shop#t"), &json!(100))
    );
    let sent = probe.world.sent.borrow_mut().pop().unwrap();
    assert_eq!(sent.timeouts.read, std::time::Duration::from_secs(5));
    assert_eq!((sent.method, &*sent.uri), (Method::Post, &b"/base/wolf/rbac/login.rest"[..]));
    assert_eq!(sent.body, r#"{"appid":"shop","username":"ann"}"#);
    for (headers, body, answers, status, text) in [
        (&kind, "{", vec![], 400, "invalid request"),
        (&kind, "[]", vec![], 400, "invalid request"),
        (&kind, r#"{"appid":null}"#, vec![], 400, "appid is missing"),
        (&form, "username=ann", vec![], 400, "appid is missing"),
        (&kind, r#"{"appid":1}"#, vec![], 400, "appid not found"),
        (&form, "appid=other", vec![], 400, "appid not found"),
        (&form, "appid=shop", vec![answer(200, &json!({"ok": false, "reason": "ERR"}))], 200, FAILED),
        (&form, "appid=shop", vec![answer(200, &json!({"ok": true, "data": {}}))], 500, FAILED),
        (&form, "appid=shop", vec![answer(500, &user())], 500, FAILED),
        (&form, "appid=shop", vec![Err(FetchError::Unresolved)], 500, FAILED),
    ] {
        let got = call(&mut self::probe("POST", "/login", headers), 0, body, answers);
        assert_eq!(got, (status, json!({ "message": text }).to_string()), "{body}");
    }
    let mut without = Probe::request("POST", "/login", &form);
    assert_eq!(call(&mut without, 0, "appid=shop", vec![]).0, 500);
}

#[test]
fn a_user_changes_the_password_and_is_described() {
    let headers = [("Authorization", TOKEN)];
    let ok = || vec![answer(200, &user())];
    let mut change = probe("PUT", "/change", &headers);
    let got = call(&mut change, 1, "oldPassword=a&newPassword=b", ok());
    assert_eq!(got, (200, r#"{"message":"success to change password"}"#.to_owned()));
    let sent = change.world.sent.borrow_mut().pop().unwrap();
    assert_eq!((sent.method, &*sent.uri), (Method::Post, &b"/base/wolf/rbac/change_pwd"[..]));
    assert_eq!(sent.body, r#"{"oldPassword":"a","newPassword":"b"}"#);
    let got = call(&mut probe("GET", "/user", &headers), 2, "", ok());
    assert_eq!(got.1, r#"{"user_info":{"id":100,"username":"ann","nickname":"An Ä"}}"#);
    for (at, method) in [(1, "PUT"), (2, "GET")] {
        let got = call(&mut probe(method, "/a", &[]), at, "", ok());
        assert_eq!(got, (401, json!({ "message": MISSING }).to_string()));
    }
}

#[test]
fn servers_that_cannot_be_used_are_rejected() {
    for (settings, pointer) in [
        (json!({"appid": "", "server": "http://a", "header_prefix": "X-"}), "/appid"),
        (json!({"appid": "a", "server": "ftp://a", "header_prefix": "X-"}), "/server"),
        (json!({"appid": "a", "server": "http://a/#/", "header_prefix": "X-"}), "/server"),
        (json!({"appid": "a", "server": "http://a?b", "header_prefix": "X-"}), "/server"),
        (json!({"appid": "a", "server": "http://a", "header_prefix": "X "}), "/header_prefix"),
    ] {
        assert_eq!(WolfRbac::credential(&settings).err().unwrap().pointer, pointer, "{settings}");
    }
}
