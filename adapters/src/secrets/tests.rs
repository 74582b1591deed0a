use std::time::Duration;

use model::{Kind, Resource};
use serde_json::json;

use super::*;
use crate::testing::{Line, server, trust};

fn manager(id: &str, value: Value) -> SecretManager {
    match Resource::parse(Kind::Secret, id, &value).unwrap() {
        Resource::Secret(secret) => secret.manager,
        other => panic!("{other:?}"),
    }
}

async fn fetch(id: &str, value: Value, key: &str) -> Result<String, Failure> {
    Secrets::new(trust()).fetch(&manager(id, value), key).await
}

/// Knows the name of one server.
struct OneName;

impl sdk::resolve::Resolve for OneName {
    fn resolve(&self, host: &str) -> sdk::resolve::Answer {
        let addresses = match host {
            "vault.test" => Ok([std::net::IpAddr::from([127, 0, 0, 1])].into()),
            _ => Err("there is no such name".into()),
        };
        Box::pin(async { Some(sdk::resolve::Resolved { addresses, ttl: Duration::from_secs(1) }) })
    }
}

#[tokio::test]
async fn managers_are_resolved_as_upstreams_are() {
    let vault = server(vec![line("GET /v1/kv/one/jack HTTP", 200, json!({"data": {"key": "k1"}}))]).await;
    let secrets = Secrets::new(Trust { names: Some(crate::Names(Arc::new(OneName))), ..trust() });
    let ask = async |host: &str| {
        let uri = format!("http://{host}:{}", vault.addr.port());
        let conf = json!({"uri": uri, "prefix": "kv/one", "token": "root"});
        secrets.fetch(&manager("vault/1", conf), "jack/key").await
    };
    for host in ["vault.test", "127.0.0.1"] {
        assert_eq!(ask(host).await, Ok("k1".to_owned()), "{host}");
    }
    let why = format!("{:?}", ask("none.test").await.unwrap_err());
    assert!(why.contains("there is no such name"), "{why}");
}

fn missing(failure: Result<String, Failure>) -> bool {
    matches!(failure, Err(Failure::Missing(_)))
}

fn unavailable(failure: Result<String, Failure>) -> bool {
    matches!(failure, Err(Failure::Unavailable(_)))
}

fn line(start: &'static str, status: u16, body: Value) -> Line {
    (start, status, vec![], body.to_string())
}

#[tokio::test]
async fn vault_is_asked_for_fields_of_both_engines() {
    let vault = server(vec![
        line(
            "GET /v1/kv/one/jack HTTP",
            200,
            json!({"data": {"key": "k1", "age": 3, "data": "d", "list": []}}),
        ),
        line(
            "GET /v1/kv/data/jack HTTP",
            200,
            json!({"data": {"data": {"key": "k2"}, "metadata": {"version": 7}}}),
        ),
        line("GET /v1/kv/one/a%20b%3F HTTP", 200, json!({"data": {"key": "odd"}})),
        line("GET /v1/kv/one/sealed HTTP", 503, json!({"errors": ["Vault is sealed"]})),
        line("GET /v1/kv/one/denied HTTP", 403, json!({"errors": ["permission denied"]})),
        line("GET /v1/kv/one/deleted HTTP", 200, json!({"data": null})),
        ("GET /v1/kv/one/nonsense HTTP", 200, vec![], "hush".to_owned()),
    ])
    .await;
    let conf = |prefix: &str| json!({"uri": format!("http://{}", vault.addr), "prefix": prefix, "token": "root", "namespace": "team"});
    for (prefix, key, expected) in [
        ("kv/one", "jack/key", "k1"),
        ("/kv//one/", "jack/age", "3"),
        ("kv/one", "jack/data", "d"),
        ("kv/data", "jack/key", "k2"),
        ("kv/one", "a b?/key", "odd"),
    ] {
        assert_eq!(fetch("vault/1", conf(prefix), key).await, Ok(expected.to_owned()), "{key}");
    }
    for key in
        ["jack/none", "jack/list", "absent/key", "deleted/key", "jack", "/key", "jack/", "../../sys/key"]
    {
        assert!(missing(fetch("vault/1", conf("kv/one"), key).await), "{key}");
    }
    for key in ["sealed/key", "denied/key", "nonsense/key"] {
        let failure = fetch("vault/1", conf("kv/one"), key).await;
        assert!(!format!("{failure:?}").contains("hush"));
        assert!(unavailable(failure), "{key}");
    }
    let heads = vault.heads();
    assert!(heads.iter().all(|head| head.contains("x-vault-token: root\r\n")), "{heads:?}");
    assert!(heads.iter().all(|head| head.contains("x-vault-namespace: team\r\n") && !head.contains("..")));
    let gone = json!({"uri": "http://127.0.0.1:9", "prefix": "kv", "token": "t"});
    assert!(unavailable(fetch("vault/1", gone, "a/b").await));
}

#[tokio::test]
async fn aws_is_asked_for_the_whole_name_then_for_a_field_of_a_shorter_one() {
    let absent = json!({"__type": "com.amazonaws.secretsmanager#ResourceNotFoundException", "Message": "no"});
    let aws = server(vec![
        line("POST / HTTP/1.1", 400, absent.clone()),
        line("POST / HTTP/1.1", 200, json!({"Name": "a", "SecretString": "{\"b\": \"found\", \"n\": 5}"})),
        line("POST / HTTP/1.1", 200, json!({"SecretString": "whole"})),
        line("POST / HTTP/1.1", 400, absent.clone()),
        line("POST / HTTP/1.1", 400, absent),
        line("POST / HTTP/1.1", 200, json!({"SecretBinary": "AAEC"})),
        line("POST / HTTP/1.1", 400, json!({"__type": "InvalidSignatureException"})),
    ])
    .await;
    let conf = json!({
        "access_key_id": "AKID", "secret_access_key": "secret", "session_token": "session", "region": "eu-west-1",
        "endpoint_url": format!("http://{}/ignored", aws.addr),
    });
    let ask = |key: &'static str| fetch("aws/1", conf.clone(), key);
    assert_eq!(ask("a/b").await, Ok("found".to_owned()));
    assert_eq!(ask("a/b").await, Ok("whole".to_owned()));
    assert!(missing(ask("a/b").await));
    assert!(missing(ask("binary").await));
    assert!(unavailable(ask("a/b").await));
    assert!(missing(ask("/a").await) && missing(ask("").await));
    for head in aws.heads() {
        assert!(head.contains("x-amz-target: secretsmanager.GetSecretValue\r\n"), "{head}");
        assert!(head.contains("x-amz-security-token: session\r\n") && head.contains("Credential=AKID/"));
        assert!(head.contains("/eu-west-1/secretsmanager/aws4_request, SignedHeaders=content-type;host;"));
    }
}

#[tokio::test]
async fn gcp_gets_a_token_once_and_secrets_with_it() {
    let secret = |text: &str| {
        use base64::Engine;
        json!({"payload": {"data": base64::engine::general_purpose::STANDARD.encode(text)}})
    };
    let gcp = server(vec![
        line(
            "POST /token HTTP",
            200,
            json!({"access_token": "at", "token_type": "Bearer", "expires_in": 3600}),
        ),
        line("GET /v1/projects/p%2D1/secrets/plain/versions/latest:access", 200, secret("whole")),
        line(
            "GET /v1/projects/p%2D1/secrets/object/versions/latest:access",
            200,
            secret("{\"a\": \"field\"}"),
        ),
        line("GET /v1/projects/p%2D1/secrets/odd/versions/latest:access", 200, json!({"payload": {}})),
        line("GET /v1/projects/p%2D1/secrets/denied/versions/latest:access", 403, json!({})),
    ])
    .await;
    let key = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/server-rsa.key"))
        .unwrap();
    let conf = |key: &str| {
        json!({"auth_config": {
            "client_email": "a@p", "private_key": key, "project_id": "p-1",
            "token_uri": format!("http://{}/token", gcp.addr), "entries_uri": format!("http://{}/v1", gcp.addr),
        }})
    };
    let secrets = Secrets::new(trust());
    let one = manager("gcp/1", conf(&key));
    assert_eq!(secrets.fetch(&one, "plain").await, Ok("whole".to_owned()));
    assert_eq!(secrets.fetch(&one, "object/a").await, Ok("field".to_owned()));
    for key in ["object/none", "plain/a", "none", "odd", ""] {
        assert!(missing(secrets.fetch(&one, key).await), "{key}");
    }
    assert!(unavailable(secrets.fetch(&one, "denied").await));
    let heads = gcp.heads();
    assert_eq!(heads.iter().filter(|head| head.starts_with("POST")).count(), 1);
    assert!(heads[1..].iter().all(|head| head.contains("authorization: Bearer at\r\n")));
    for wrong in ["nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        assert!(unavailable(secrets.fetch(&manager("gcp/1", conf(wrong)), "plain").await));
    }
}

#[tokio::test]
async fn an_account_whose_token_server_hangs_holds_up_no_other() {
    let hanging = server(vec![("POST /token HTTP", 0, vec![], String::new())]).await;
    let good = server(vec![
        line("POST /token HTTP", 200, json!({"access_token": "at", "expires_in": 3600})),
        line(
            "GET /v1/projects/p/secrets/s/versions/latest:access",
            200,
            json!({"payload": {"data": "b25l"}}),
        ),
    ])
    .await;
    let key = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/certs/server-rsa.key"))
        .unwrap();
    let account = |tokens: std::net::SocketAddr| {
        let auth = json!({
            "client_email": "a@p", "private_key": key, "project_id": "p",
            "token_uri": format!("http://{tokens}/token"), "entries_uri": format!("http://{}/v1", good.addr),
        });
        manager("gcp/1", json!({ "auth_config": auth }))
    };
    let secrets = Secrets::new(trust());
    let silent = tokio::spawn(secrets.fetch(&account(hanging.addr), "s"));
    while hanging.heads().is_empty() {
        tokio::task::yield_now().await;
    }
    let found = tokio::time::timeout(Duration::from_secs(30), secrets.fetch(&account(good.addr), "s")).await;
    assert_eq!(found.expect("the other account"), Ok("one".to_owned()));
    silent.abort();
}
