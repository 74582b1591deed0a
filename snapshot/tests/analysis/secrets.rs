//! Secrets, certificates and TLS.

use super::*;

#[test]
fn secrets_in_the_clear() {
    let text = format!(
        "routes:\n  - {{id: 1, uri: /a, {UP}, plugins: {{limit: {{password: hush}}, log: {{password: $env://P}}}}}}\n\
         consumers:\n  - {{username: jack, plugins: {{key: {{key: k1}}}}}}\n  - {{username: jill, plugins: {{key: {{key: $secret://vault/1/k}}}}}}\n\
         plugin_metadata:\n  - {{id: log, deep: {{token: [a, b]}}}}\n"
    );
    let expected = [
        "clear-secret routes/1/plugins/limit/password",
        "clear-secret consumers/jack/plugins/key/key",
        "clear-secret plugin_metadata/log/deep/token/0",
        "clear-secret plugin_metadata/log/deep/token/1",
    ];
    assert_eq!(found(&text, Mode::HostUri, &[Code::ClearSecret]), expected);
    assert!(
        look(&desired(&text), Mode::HostUri, true).findings.iter().all(|one| one.code != Code::ClearSecret)
    );
    let findings = look(&desired(&text), Mode::HostUri, false);
    assert!(!findings.to_string().contains("hush") && !findings.to_json().to_string().contains("hush"));
}

#[test]
fn secrets_within_secrets_and_private_keys() {
    let (crt, key) = (
        include_str!("../../../tests/certs/server-ec.crt"),
        include_str!("../../../tests/certs/server-ec.key"),
    );
    let tls = json!({"client_cert": crt, "client_key": key});
    let upstream = json!({"nodes": {"127.0.0.1:80": 1}, "scheme": "https", "tls": tls});
    let referred =
        json!({"nodes": {"127.0.0.1:80": 1}, "tls": {"client_cert": crt, "client_key": "$env://KEY"}});
    let of_upstream = |id: &str, mut value: serde_json::Value| {
        value["id"] = json!(id);
        value
    };
    let text = json!({
        "routes": [{
            "id": "1", "uri": "/a", "upstream": upstream,
            "plugins": {"log": {"password": {"of/a": "hush", "of_b": "$env://B", "of_c": 1, "of_d": ""}}},
        }],
        "upstreams": [of_upstream("u", upstream.clone()), of_upstream("v", referred)],
        "ssls": [
            {"id": "a", "sni": "a.test", "cert": crt, "key": key, "certs": [crt], "keys": [key]},
            {"id": "b", "sni": "b.test", "cert": crt, "key": "$env://KEY"},
        ],
    });
    let expected = [
        "clear-secret routes/1/plugins/log/password/of~1a",
        "clear-secret routes/1/upstream/tls/client_key",
        "clear-secret upstreams/u/tls/client_key",
        "clear-secret ssls/a/key",
        "clear-secret ssls/a/keys/0",
    ];
    assert_eq!(found(&text.to_string(), Mode::HostUri, &[Code::ClearSecret]), expected);
}

#[test]
fn forbidden_tls_versions() {
    let (crt, key) = (
        include_str!("../../../tests/certs/server-ec.crt"),
        include_str!("../../../tests/certs/server-ec.key"),
    );
    let ssl = |protocols: &[&str]| json!({"id": "1", "sni": "a.test", "cert": crt, "key": key, "ssl_protocols": protocols});
    let findings = |protocols: &[&str]| {
        found(&json!({"ssls": [ssl(protocols)]}).to_string(), Mode::HostUri, &[Code::WeakTls])
    };
    assert_eq!(findings(&["TLSv1.1", "TLSv1.2"]), ["weak-tls ssls/1/ssl_protocols/0"]);
    assert_eq!(findings(&["TLSv1.2", "TLSv1.3"]), [""; 0]);
}

#[test]
fn tls_that_protects_less_than_it_seems() {
    let text = "routes:\n  - {id: 1, uri: /a, upstream: {scheme: https, nodes: {\"127.0.0.1:80\": 1}}, plugins: {log: {ssl_verify: false}}}\n\
                upstreams:\n  - {id: open, scheme: grpcs, nodes: {\"127.0.0.1:80\": 1}}\n  \
                - {id: good, scheme: https, tls: {verify: true}, nodes: {\"127.0.0.1:80\": 1}}\n";
    let expected = [
        "weak-tls routes/1/upstream/scheme",
        "weak-tls routes/1/plugins/log/ssl_verify",
        "weak-tls upstreams/open/scheme",
    ];
    assert_eq!(found(text, Mode::HostUri, &[Code::WeakTls]), expected);
}

#[test]
fn expired_certificates() {
    let (good, key) = (
        include_str!("../../../tests/certs/server-ec.crt"),
        include_str!("../../../tests/certs/server-ec.key"),
    );
    let (over, its_key) =
        (include_str!("../../../tests/certs/expired.crt"), include_str!("../../../tests/certs/expired.key"));
    let text = serde_json::json!({"ssls": [
        {"id": "good", "sni": "a.test", "cert": good, "key": key},
        {"id": "second", "sni": "b.test", "cert": good, "key": key, "certs": [over], "keys": [its_key]},
        {"id": "over", "sni": "c.test", "cert": over, "key": its_key},
        {"id": "off", "sni": "c.test", "cert": over, "key": its_key, "status": 0},
    ]});
    let desired = desired(&text.to_string());
    let at = |now| {
        let of = Input {
            desired: &desired,
            mode: Mode::HostUri,
            options: Options::default(),
            paths: PathRules::default(),
            catalog: &Plugins,
            encrypts: true,
            stream_ports: &[],
            now,
        };
        let all = analyse(of).findings.into_iter().filter(|one| one.code == Code::ExpiredCertificate);
        all.map(|one| format!("{}{}", one.key, one.invalid.pointer)).collect::<Vec<_>>()
    };
    assert_eq!(at(2_000_000_000), ["ssls/over/cert", "ssls/second/certs/0"]);
    assert!(at(0).is_empty());
}

#[test]
fn certificates_for_other_names() {
    let (crt, key) = (
        include_str!("../../../tests/certs/server-ec.crt"),
        include_str!("../../../tests/certs/server-ec.key"),
    );
    let findings = |snis: &[&str], cert: &str| {
        let text = json!({"ssls": [{"id": "1", "snis": snis, "cert": cert, "key": key}]});
        found(&text.to_string(), Mode::HostUri, &[Code::OtherName])
    };
    let wrong = "other-name ssls/1/cert";
    assert_eq!(findings(&["server.test", "Server.TEST", "a.server.test", "*.server.test"], crt), [""; 0]);
    assert_eq!(findings(&["server.test", "a.test"], crt), [wrong]);
    assert_eq!(findings(&["a.b.server.test", "*.test"], crt), [wrong, wrong]);
    assert_eq!(findings(&["a.test"], "$env://CERT"), [""; 0]);
}

#[test]
fn server_names_that_no_client_can_ask_for() {
    let found = |names: Value| {
        let mut ssl = json!({"id": "1", "cert": "$env://CERT", "key": "$env://KEY"});
        ssl.as_object_mut().unwrap().extend(names.as_object().unwrap().clone());
        found(&json!({ "ssls": [ssl] }).to_string(), Mode::HostUri, &[Code::NoHost])
    };
    assert_eq!(found(json!({"snis": ["server.test", "*.server.test", "127.0.0.1", "*"]})), [""; 0]);
    assert_eq!(found(json!({"snis": ["server.test", "server.test:443"]})), ["no-host ssls/1/snis/1"]);
    assert_eq!(found(json!({"sni": "server..test"})), ["no-host ssls/1/sni"]);
    assert_eq!(found(json!({"sni": "server..test", "status": 0})), [""; 0]);
}
