use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sdk::connection::{AsyncReadExt, AsyncWriteExt};
use sdk::testing::{Pipe, Probe, now, pipe, reused_pipe};

use super::*;

fn config() -> Value {
    json!({"base_dn": "ou=users,dc=example,dc=org", "ldap_uri": "127.0.0.1:1389", "hide_credentials": true})
}

/// A bind's answer of this code.
fn answer(code: u8) -> Vec<u8> {
    vec![0x30, 14, 2, 1, 1, 0x61, 9, 10, 1, code, 4, 0, 4, 0, 4, 0]
}

fn basic(text: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(text))
}

/// Lets the servers answer with these bytes; none of them closes the connection. Returns the consumer of a request, or
/// the message.
fn ask(
    header: Option<&str>,
    servers: &mut [(Pipe, Option<Vec<u8>>)],
    probe: &mut Probe,
) -> Result<String, String> {
    for (server, answer) in servers {
        match answer {
            Some(answer) => now(server.write_all(answer)).unwrap(),
            None => now(server.close()).unwrap(),
        }
    }
    let stage: LdapAuth = probe.stage(config()).unwrap();
    let mut x = probe.exchange();
    if let Some(header) = header {
        x.set_header("Authorization", header.as_bytes()).unwrap();
    }
    let mut step = stage.rewrite(&mut x);
    if matches!(step, Step::Wait) {
        step = now(stage.wait(Phase::Rewrite, &mut x));
    }
    match step {
        Step::Next => {
            assert_eq!(x.header("Authorization"), None);
            Ok(x.consumer().unwrap().name.clone())
        }
        Step::Reply(reply) => {
            assert_eq!(reply.status, 401);
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            Err(body["message"].as_str().unwrap().to_owned())
        }
        step => panic!("{step:?}"),
    }
}

fn probe() -> Probe {
    Probe::get("/")
        .consumer::<LdapAuth>("jack", json!({"user_dn": "cn=jack,ou=users,dc=example,dc=org"}))
        .consumer::<LdapAuth>("odd", json!({"user_dn": "cn=a\\,dc\\=b,ou=users,dc=example,dc=org"}))
}

#[test]
fn a_bind_decides() {
    for (sent, answer, expected) in [
        ("jack:se:cret ", Some(answer(0)), Ok("jack")),
        ("ja ck:se:cret ", Some(answer(0)), Ok("jack")),
        ("a,dc=b:se:cret ", Some(answer(0)), Ok("odd")),
        ("jack:se:cret ", Some(answer(49)), Err(REFUSED)),
        ("jack:se:cret ", Some(answer(51)), Err(REFUSED)),
        ("jack:se:cret ", Some(vec![0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), Err(REFUSED)),
        ("jack:se:cret ", Some(vec![0x30, 0x85, 0, 0, 0, 0, 0]), Err(REFUSED)),
        ("jack:se:cret ", None, Err(REFUSED)),
    ] {
        let mut probe = probe();
        let (connection, server) = pipe();
        probe.world.connections.borrow_mut().push_back(Ok(connection));
        let is_judged = answer.as_ref().is_some_and(|answer| matches!(answer.get(9), Some(0 | 49)));
        let mut servers = [(server, answer)];
        let got = ask(Some(&basic(sent)), &mut servers, &mut probe);
        assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{sent}");
        let server = &mut servers[0].0;
        assert_eq!(server.kept().is_some(), is_judged);
        assert_eq!(probe.world.complaints.borrow().is_empty(), is_judged);
        if expected == Ok("jack") {
            let mut got = [0; 100];
            let length = now(server.read(&mut got)).unwrap();
            assert!(got[..length].ends_with(b"cn=jack,ou=users,dc=example,dc=org\x80\x08se:cret "));
        }
    }
}

#[test]
fn requests_without_a_password_or_a_consumer_do_not_reach_the_directory() {
    for (header, message) in [
        (None, MISSING),
        (Some("Bearer x".to_owned()), INVALID),
        (Some("Basic !".to_owned()), INVALID),
        (Some(basic("jack")), INVALID),
        (Some(basic("jack:")), REFUSED),
        (Some(basic(":secret")), REFUSED),
        (Some(basic(" :secret")), REFUSED),
        (Some(basic("jack:\0secret")), INVALID),
        // Maybe in the directory, but no consumer.
        (Some(basic("rose:secret")), REFUSED),
        (Some(basic(&format!("jack:{}", "x".repeat(LONGEST + 1)))), INVALID),
    ] {
        let mut probe = probe();
        assert_eq!(ask(header.as_deref(), &mut [], &mut probe), Err(message.to_owned()), "{header:?}");
        assert!(probe.world.opened.borrow().is_empty());
    }
}

#[test]
fn a_dead_connection_is_replaced() {
    let mut probe = probe();
    let ((first, dead), (second, server)) = (reused_pipe(), pipe());
    probe.world.connections.borrow_mut().extend([Ok(first), Ok(second)]);
    let mut servers = [(dead, None), (server, Some(answer(0)))];
    assert_eq!(ask(Some(&basic("jack:secret")), &mut servers, &mut probe), Ok("jack".into()));
    assert_eq!(probe.world.opened.borrow().len(), 2);
    // A new connection that is closed is not tried again.
    let (only, closed) = pipe();
    probe.world.connections.borrow_mut().extend([Ok(only)]);
    let refused = ask(Some(&basic("jack:secret")), &mut [(closed, None)], &mut probe);
    assert_eq!((refused, probe.world.opened.borrow().len()), (Err(REFUSED.to_owned()), 3));
}

#[test]
fn names_cannot_change_the_distinguished_name() {
    for (name, expected) in [
        ("jack", "jack"),
        ("a,b=c+d", "a\\,b\\=c\\+d"),
        ("#a#", "\\#a#"),
        (" a b ", "\\ a b\\ "),
        ("\\\"<>;", "\\\\\\\"\\<\\>\\;"),
        ("a\0", "a\\00"),
        ("\u{e4}", "\u{e4}"),
    ] {
        assert_eq!(escaped(name), expected);
    }
}

#[test]
fn settings_are_checked() {
    let refused = |config: Value| Probe::default().stage::<LdapAuth>(config).err().unwrap().pointer;
    for uri in ["", "a b", "h:0", "h:99999", "ldap://h"] {
        assert_eq!(refused(json!({"base_dn": "dc=a", "ldap_uri": uri})), "/ldap_uri", "{uri}");
    }
    assert!(LdapAuth::credential(&json!({"user_dn": ""})).is_err());
    for (tls, verify) in [(false, true), (true, false), (true, true)] {
        let probe = Probe::default();
        let config = json!({"base_dn": "dc=a", "ldap_uri": "[::1]", "use_tls": tls, "tls_verify": verify});
        let stage: LdapAuth = probe.stage(config).unwrap();
        let Server::Tcp { at: Addresses::Host { name, port: 389 }, tls: found } = &stage.connect.server
        else {
            panic!("{:?}", stage.connect)
        };
        assert_eq!((&**name, found.is_some()), ("::1", tls));
        assert!(found.as_ref().is_none_or(|tls| matches!(tls.trust, Trust::Common) == verify));
    }
}
