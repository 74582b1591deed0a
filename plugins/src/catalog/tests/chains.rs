//! Chains: what is built of a list of plugins, and which instances are shared.

use super::*;

#[test]
fn nothing_is_made_without_a_plugin_it_names() {
    let catalog = catalog();
    let owner = Owner { collection: "routes", id: "1".into() };
    let names = FixedNames::default();
    let scope = Scope { enabled: Some(&|name| name != "key-auth"), ..Scope::of_names(&names) };
    let chain = |name, config: &Value| {
        let chain = catalog.chain(&[Configured { name, config, owner: &owner }], &scope);
        chain.map(|chain| chain.names().len())
    };
    let invalid = chain("key-auth", &Value::Null).unwrap_err();
    assert_eq!(invalid.reason, "unknown plugin [key-auth]: the list of plugins does not have it");
    assert_eq!(invalid.pointer, "/key-auth");
    assert_eq!(chain("key-auth", &json!({"_meta": {"disable": true}})), Ok(0));
    assert_eq!(chain("request-id", &json!({})), Ok(1));
}

#[test]
fn credentials_are_keyed_and_other_plugins_have_none() {
    let catalog = catalog();
    let config = json!({"key": "auth-one"});
    let (plugin, credential) = catalog.credential("key-auth", &config).unwrap().unwrap();
    assert_eq!((plugin, &credential.key[..]), ("key-auth", &b"auth-one"[..]));
    assert!(catalog.credential("limit-count", &json!({})).unwrap().is_none());
    assert!(catalog.credential("key-auth", &json!({})).is_err());
    assert!(catalog.facts(Subsystem::Http, "key-auth").is_some_and(|facts| facts.consumer_schema.is_some()));
}

#[test]
fn who_explains_a_decision_asks_those_that_leave_no_trace() {
    let catalog = catalog();
    let none = json!({});
    for (name, config, pure) in [
        ("basic-auth", &none, true),
        ("consumer-restriction", &json!({"blacklist": ["a"]}), true),
        ("cors", &none, true),
        ("csrf", &json!({"key": "k"}), true),
        ("hmac-auth", &none, true),
        ("ip-restriction", &json!({"blacklist": ["10.0.0.1"]}), true),
        ("jwt-auth", &none, true),
        ("key-auth", &none, true),
        ("proxy-rewrite", &json!({"uri": "/a"}), true),
        ("real-ip", &json!({"source": "arg_ip"}), true),
        ("redirect", &json!({"uri": "/a"}), true),
        ("referer-restriction", &json!({"whitelist": ["a"]}), true),
        ("request-validation", &json!({"header_schema": {"type": "object"}}), true),
        ("ua-restriction", &json!({"denylist": ["a"]}), true),
        ("uri-blocker", &json!({"block_rules": ["a"]}), true),
        ("forward-auth", &json!({"uri": "http://127.0.0.1/"}), false),
        ("limit-count", &json!({"count": 2, "time_window": 60}), false),
        ("limit-req", &json!({"rate": 1, "burst": 0, "key": "remote_addr"}), false),
        ("request-id", &none, false),
    ] {
        let chain = chain(&catalog, &[(name, config.clone())]).unwrap();
        let asked: Vec<_> = chain.stages().map(|stage| stage.instance().is_pure()).collect();
        assert_eq!(asked, [pure], "{name}");
    }
}

#[test]
fn the_same_settings_share_what_leaves_no_trace() {
    let catalog = catalog();
    let metadata = json!({"allow_origins": {"shop": "https://shop.test"}});
    let made = |name: &str, config: &Value, id: &str| {
        let owner = Owner { collection: "routes", id: id.to_owned() };
        let (names, config) = (FixedNames::default(), config.clone());
        let metadata = |_: &'static str| Some(&metadata);
        let scope = Scope { metadata: &metadata, ..Scope::of_names(&names) };
        let chain = catalog.chain(&[Configured { name, config: &config, owner: &owner }], &scope).unwrap();
        let stage = std::ptr::from_ref(chain.stages().next().unwrap()).addr();
        (stage, chain)
    };
    for (name, config, shared) in [
        ("cors", json!({}), true),
        ("cors", json!({"allow_origins_by_metadata": ["shop"]}), false),
        ("cors", json!({"_meta": {"filter": [["arg_a", "==", "b"]]}}), false),
        ("cors", json!({"_meta": {"priority": 7}}), true),
        ("cors", json!({"allow_headers": "x".repeat(2000)}), false),
        ("ip-restriction", json!({"blacklist": ["10.0.0.1"]}), true),
        ("limit-count", json!({"count": 2, "time_window": 60}), false),
    ] {
        let ((one, kept), (two, _)) = (made(name, &config, "1"), made(name, &config, "2"));
        assert_eq!(one == two, shared, "{name} {config}");
        drop(kept);
    }
    // A chain of nothing else is shared, too.
    let (_, one) = made("key-auth", &json!({}), "1");
    let ((_, two), (_, three)) = (made("key-auth", &json!({}), "2"), made("key-auth", &json!({}), "3"));
    assert!(!Arc::ptr_eq(&one, &two) && Arc::ptr_eq(&two, &three));
    // The order of fields is a part of what was written.
    let headers = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (one, _kept) = made("proxy-rewrite", &headers(r#"{"headers": {"set": {"A": "1", "B": "2"}}}"#), "1");
    let (two, _) = made("proxy-rewrite", &headers(r#"{"headers": {"set": {"B": "2", "A": "1"}}}"#), "2");
    assert_ne!(one, two);
}

#[test]
fn streams_have_plugins_of_their_own() {
    let catalog = catalog();
    assert_eq!((catalog.has_stream("ip-restriction"), catalog.has_stream("key-auth")), (true, false));
    let (right, wrong) = (json!({"whitelist": ["10.0.0.0/8"]}), json!({"whitelist": 1}));
    let off = json!({"whitelist": 1, "_meta": {"disable": true}});
    let check = |name: &str, config: &Value| catalog.check(name, config, SchemaType::Stream).is_ok();
    assert!(check("ip-restriction", &right) && !check("ip-restriction", &wrong));
    assert!(check("ip-restriction", &off), "what is switched off may be wrong");
    assert!(!check("key-auth", &json!({})));

    let owner = Owner { collection: "stream_routes", id: "1".into() };
    let names = FixedNames::default();
    let listed = |name: &str| name == "ip-restriction";
    let scope = Scope { enabled: Some(&listed), ..Scope::of_names(&names) };
    let chain = |name, config: &Value| {
        let chain = catalog.stream_chain(&[Configured { name, config, owner: &owner }], &scope);
        chain.map(|chain| chain.stages().count()).map_err(|invalid| invalid.pointer)
    };
    assert_eq!(chain("ip-restriction", &right), Ok(1));
    assert_eq!(chain("ip-restriction", &off), Ok(0));
    assert_eq!(chain("ip-restriction", &wrong), Err("/ip-restriction/whitelist".to_owned()));
    for name in ["limit-conn", "key-auth"] {
        assert_eq!(chain(name, &json!({})), Err(format!("/{name}")), "{name}");
    }
}

#[test]
fn what_a_consumer_carries_is_a_credential_or_a_stage() {
    let catalog = catalog();
    let limit = json!({"count": 2, "time_window": 60});
    let names = FixedNames::default();
    let scope = Scope::of_names(&names);
    for (collection, auth) in [("consumers", 0), ("credentials", 0), ("routes", 1)] {
        let owner = Owner { collection, id: "1".into() };
        for (name, config, stages) in [("key-auth", &json!({}), auth), ("limit-count", &limit, 1)] {
            let chain = catalog.chain(&[Configured { name, config, owner: &owner }], &scope).unwrap();
            assert_eq!(chain.stages().count(), stages, "{collection} {name}");
        }
    }
    let off = json!({"_meta": {"disable": true}});
    assert!(chain(&catalog, &[("no-such", off)]).is_err(), "an unknown name");
}

#[test]
fn a_consumer_may_carry_what_another_version_checks() {
    let catalog = catalog();
    let names = FixedNames::default();
    let scope = Scope::of_names(&names);
    // On a consumer it is a credential; on a route it would have to be asked.
    for (collection, config, fits) in [
        ("consumers", json!({"user_dn": "cn=a"}), true),
        ("credentials", json!({"user_dn": "cn=a"}), true),
        ("consumers", json!({"user_dn": 1}), false),
        ("routes", json!({"base_dn": "o", "ldap_uri": "h"}), false),
    ] {
        let owner = Owner { collection, id: "1".into() };
        let entry = Configured { name: "ldap-auth-advanced", config: &config, owner: &owner };
        assert_eq!(catalog.chain(&[entry], &scope).is_ok(), fits, "{collection} {config}");
    }
}
