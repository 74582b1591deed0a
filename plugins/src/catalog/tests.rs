use sdk::testing::{FixedNames, Probe};
use sdk::{Catalog as _, Phase, Phases, Step};

use super::*;

fn catalog() -> Catalog {
    Catalog::new(Services::for_tests(), IndexMap::new())
}

fn chain(catalog: &Catalog, entries: &[(&str, Value)]) -> Result<Arc<Chain>, Invalid> {
    let owner = Owner { collection: "routes", id: "1".into() };
    let entries: Vec<_> =
        entries.iter().map(|(name, config)| Configured { name, config, owner: &owner }).collect();
    let names = FixedNames::default();
    catalog.chain(&entries, &Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: None })
}

#[test]
fn checks_speak_as_apisix_does() {
    let catalog = catalog();
    let check = |name: &str, config: Value, place| catalog.check(name, &config, place);
    let reason = |name, config, place| check(name, config, place).unwrap_err().reason;
    assert_eq!(check("key-auth", json!({}), SchemaType::Route), Ok(()));
    assert_eq!(check("key-auth", json!(null), SchemaType::Route), Ok(()));
    assert_eq!(check("key-auth", json!([]), SchemaType::Route), Ok(()));
    assert_eq!(
        reason("key-auth", json!({"header": 1}), SchemaType::Route),
        "failed to check the configuration of plugin key-auth err: \
         property \"header\" validation failed: wrong type: expected string, got number"
    );
    assert_eq!(
        reason("key-auth", json!({}), SchemaType::Consumer),
        "failed to check the configuration of plugin key-auth err: property \"key\" is required"
    );
    assert_eq!(
        reason("key-auth", json!("x"), SchemaType::Route),
        "invalid plugin conf for plugin [key-auth]"
    );
    let invalid = check("key-auht", json!({}), SchemaType::Route).unwrap_err();
    assert_eq!(invalid.reason, "unknown plugin [key-auht]");
    assert_eq!(invalid.hint.as_deref(), Some("did you mean `key-auth`?"));
    assert!(
        reason("ldap-auth", json!({"base_dn": "o", "ldap_uri": "h"}), SchemaType::Route)
            .starts_with("unknown plugin [ldap-auth]: it exists")
    );
    let all = IndexMap::from([("key-auth".to_owned(), json!({"header": 1}))]);
    assert_eq!(catalog.check_all(&all, SchemaType::Route).unwrap_err().pointer, "/key-auth/header");
}

#[test]
fn what_is_switched_off_may_be_wrong() {
    let catalog = catalog();
    let off = json!({"header": 1, "_meta": {"disable": true}});
    assert_eq!(catalog.check("key-auth", &off, SchemaType::Route), Ok(()));
    assert_eq!(catalog.check("ldap-auth", &off, SchemaType::Route), Ok(()));
    assert!(catalog.check("no-such", &off, SchemaType::Route).is_err());
    // As may one that is not in this build, and settings of which nothing is known.
    let unknown = model::apisix_plugins::Subsystem::Http.plugins().iter().find(|known| {
        catalog
            .check(known.name, &json!({}), SchemaType::Route)
            .is_err_and(|invalid| invalid.reason.starts_with("unknown plugin"))
    });
    let unknown = unknown.expect("APISIX has more plugins").name;
    assert_eq!(catalog.check(unknown, &off, SchemaType::Route), Ok(()));
    assert_eq!(catalog.check("mqtt-proxy", &off, SchemaType::Route), Ok(()), "one of streams");
    let names = ["key-auth", "ldap-auth", unknown, "mqtt-proxy"];
    let entries = names.map(|name| (name, off.clone()));
    let chain = chain(&catalog, &entries).unwrap();
    assert_eq!(chain.names(), [""; 0]);
    assert_eq!(chain.phases(), Phases::NONE);
}

#[test]
fn meta_is_checked() {
    let catalog = catalog();
    for (meta, reason) in [
        (json!({"priorty": 1}), "additional properties forbidden, found priorty"),
        (
            json!({"disable": "yes"}),
            "property \"disable\" validation failed: wrong type: expected boolean, got string",
        ),
    ] {
        let invalid = catalog.check("key-auth", &json!({"_meta": meta}), SchemaType::Route).unwrap_err();
        assert!(
            invalid.reason.ends_with(&format!("property \"_meta\" validation failed: {reason}")),
            "{invalid}"
        );
    }
    let lua = json!({"_meta": {"pre_function": "return function() end"}});
    assert_eq!(
        catalog.check("key-auth", &lua, SchemaType::Route).unwrap_err().pointer,
        "/_meta/pre_function"
    );
}

#[test]
fn meta_moves_a_plugin_in_the_order() {
    let catalog = catalog();
    let at = |priority: i64| json!({"_meta": {"priority": priority}});
    let limit = |priority: i64| {
        let chain = chain(&catalog, &[("key-auth", at(priority)), ("request-id", json!({}))]).unwrap();
        chain.names().join(" ")
    };
    // request-id has 12015.
    for (priority, order) in [
        (12016, "key-auth request-id"),
        (12014, "request-id key-auth"),
        (1 << 40, "key-auth request-id"),
        (-(1 << 40), "request-id key-auth"),
    ] {
        assert_eq!(limit(priority), order, "{priority}");
    }
}

#[test]
fn an_error_response_takes_the_place_of_a_refusals_body() {
    let catalog = catalog();
    for (response, body, content_type) in [
        (json!("no"), "no", "text/plain; charset=utf-8"),
        (json!({"message": "no"}), "{\"message\":\"no\"}\n", "application/json"),
    ] {
        let chain = chain(&catalog, &[("key-auth", json!({"_meta": {"error_response": response}}))]).unwrap();
        let mut probe = Probe::default();
        let Step::Reply(reply) = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange()) else {
            panic!("no reply")
        };
        assert_eq!((reply.status, &reply.body[..]), (401, body.as_bytes()));
        let types: Vec<_> = reply.headers.iter().filter(|(name, _)| *name == "Content-Type").collect();
        assert_eq!(types, [&("Content-Type", content_type.as_bytes().to_vec())]);
        assert!(reply.headers.iter().any(|(name, _)| *name == "WWW-Authenticate"));
    }
}

#[test]
fn a_filter_decides_once_a_request() {
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["arg_a", "==", "1"]]}});
    let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
    for (target, runs) in [("/?a=1", true), ("/?a=2", false)] {
        let mut probe = Probe::get(target);
        let mut x = probe.exchange();
        let step = chain.run(Phase::Rewrite, &mut 0, &mut x);
        assert_eq!(matches!(step, Step::Reply(_)), runs, "{target}");
        // Later changes of the request do not matter any more.
        x.engine_mut().messages.request.query_span = x.intern(if runs { b"a=2" } else { b"a=1" });
        assert_eq!(matches!(chain.run(Phase::Rewrite, &mut 0, &mut x), Step::Reply(_)), runs);
    }
    let wrong = json!({"_meta": {"filter": [["arg_a", "near", "1"]]}});
    let invalid = catalog.check("key-auth", &wrong, SchemaType::Route).unwrap_err();
    assert!(invalid.reason.starts_with("failed to validate the 'vars' expression: "), "{invalid}");
    assert!(invalid.pointer.starts_with("/_meta/filter"), "{invalid:?}");
}

#[test]
fn a_filter_that_cannot_be_judged_refuses_the_request() {
    use sdk::Undecidable;
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["post_arg.a", "==", "1"], ["arg_x", "==", "1"]]}});
    let guard = chain(&catalog, &[("key-auth", filter)]).unwrap();
    let run = |target: &str, body: Option<&[u8]>| {
        let mut probe = Probe::request("POST", target, &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        match body {
            Some(body) => sdk::testing::with_body(&mut x, body),
            None => x.engine_mut().body_state = sdk::exchange::Body::TooLarge,
        }
        x.engine_mut().body_asked = 64 << 20;
        guard.run(Phase::Rewrite, &mut 0, &mut x)
    };
    assert!(matches!(run("/?x=1", Some(b"{")), Step::Refuse(Undecidable::Unreadable)));
    assert!(matches!(run("/?x=1", None), Step::Refuse(Undecidable::TooLarge)));
    assert!(matches!(run("/?x=2", Some(b"{")), Step::Next), "it does not matter");
    assert!(matches!(run("/?x=1", Some(b"")), Step::Next), "no body, no value");
    assert!(matches!(run("/?x=1", Some(br#"{"a":"1"}"#)), Step::Reply(_)));
}

#[test]
fn a_filter_of_a_response_stage_is_readable_before_the_response() {
    let catalog = catalog();
    let meta = json!({"filter": [["post_arg.a", "==", "1"], ["status", "==", "200"]]});
    let rewrite = json!({"headers": {"X-A": "1"}, "_meta": meta});
    let chain = chain(&catalog, &[("response-rewrite", rewrite)]).unwrap();
    assert!(chain.phases().has(Phase::Access));
    for (body, expected) in [(&br#"{"a":"1"}"#[..], Some(&b"1"[..])), (br#"{"a":"2"}"#, None)] {
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        x.engine_mut().body_state = sdk::exchange::Body::Streaming;
        assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Body(_)));
        sdk::testing::with_body(&mut x, body);
        assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Next));
        sdk::testing::respond(&mut x, 200, &[]);
        assert!(matches!(chain.header_filter(&mut 0, &mut x), Step::Next));
        assert_eq!(x.response_header("X-A"), expected);
    }
    let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
    let mut x = probe.exchange();
    sdk::testing::with_body(&mut x, b"{");
    assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Refuse(_)));
}

#[test]
fn a_filter_on_the_body_asks_for_the_body() {
    let catalog = catalog();
    let filter = json!({"_meta": {"filter": [["post_arg_a", "==", "1"]]}});
    let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
    let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/x-www-form-urlencoded")]);
    let mut x = probe.exchange();
    x.engine_mut().body_state = sdk::exchange::Body::Streaming;
    let mut cursor = 0;
    assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Body(_)));
    sdk::testing::with_body(&mut x, b"a=1");
    assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Reply(_)));
}

#[test]
fn nothing_is_made_without_a_plugin_it_names() {
    let catalog = catalog();
    let owner = Owner { collection: "routes", id: "1".into() };
    let names = FixedNames::default();
    let scope = Scope {
        names: &names,
        upstreams: None,
        metadata: &|_| None,
        enabled: Some(&|name| name != "key-auth"),
    };
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
fn every_schema_compiles() {
    for plugin in &catalog().linked {
        assert!(plugin.schema().check(&json!(1)).is_err(), "{}", plugin.row.name());
        assert!(plugin.metadata_schema().check(&json!(1)).is_err(), "{}", plugin.row.name());
        assert_eq!(plugin.consumer_schema().is_some(), plugin.row.consumer_schema().is_some());
    }
}

#[test]
fn plugins_ask_other_plugins_and_get_their_answer() {
    let catalog = catalog();
    let owner = Owner { collection: "routes", id: "1".into() };
    let (names, services) = (FixedNames::default(), Services::for_tests());
    let scope =
        Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: Some(&|name| name != "cors") };
    let others = Within { catalog: &catalog, scope: &scope, depth: 0 };
    let cx = Build::new(&owner, &services, &names).with_plugin_builder(&others);
    let chain = cx.plugin("key-auth", &json!({}), "0").unwrap();
    let mut probe = Probe::default();
    let step = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange());
    assert!(matches!(step, Step::Reply(reply) if reply.status == 401));
    assert_eq!(
        (cx.is_auth("key-auth"), cx.is_auth("cors"), cx.is_auth("x")),
        (Some(true), Some(false), None)
    );

    let off = json!({"_meta": {"disable": true}});
    assert_eq!(cx.plugin("key-auth", &off, "0").unwrap().phases(), Phases::NONE);
    let wrong = cx.plugin("key-auth", &json!({"header": 1}), "0").unwrap_err();
    assert_eq!(wrong.pointer, "/header");
    assert!(cx.plugin("cors", &json!({}), "0").is_err(), "it is not in the list");
    assert!(cx.plugin("no-such", &json!({}), "0").is_err());
    // A plugin with a path of its own is there for others if it is in the list.
    let paths = |listed: bool| {
        let listed = move |_: &str| listed;
        let scope = Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: Some(&listed) };
        let others = Within { catalog: &catalog, scope: &scope, depth: 0 };
        others.endpoints(&owner).into_iter().map(|served| served.endpoint.path).collect::<Vec<_>>()
    };
    assert!(paths(true).contains(&"/apisix/batch-requests".to_owned()));
    assert_eq!(paths(false), [""; 0]);

    let deep = Within { depth: MOST_NESTED, ..others };
    let cx = Build::new(&owner, &services, &names).with_plugin_builder(&deep);
    assert_eq!(cx.plugin("key-auth", &json!({}), "0").unwrap_err().reason, "plugins are nested too deeply");
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
        let scope = Scope { names: &names, upstreams: None, metadata: &metadata, enabled: None };
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
fn metadata_is_checked() {
    let catalog = catalog();
    for (name, metadata, pointer) in [
        ("batch-requests", json!({"max_body_size": 0}), "/max_body_size"),
        ("cors", json!({"allow_origins": {"a": 1}}), "/allow_origins/a"),
        ("error-page", json!({"enable": 1}), "/enable"),
        ("file-logger", json!({"path": 1}), "/path"),
        ("http-logger", json!({"log_format": 1}), "/log_format"),
        ("syslog", json!({"log_format": 1}), "/log_format"),
        ("limit-count", json!({"limit_header": 1}), "/limit_header"),
        ("tcp-logger", json!({"log_format": 1}), "/log_format"),
    ] {
        let invalid = catalog.check(name, &metadata, SchemaType::Metadata).unwrap_err();
        assert_eq!(invalid.pointer, pointer, "{name}");
    }
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
    let scope = Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: Some(&listed) };
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
    let scope = Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: None };
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
fn what_acts_before_a_consumer_is_known_is_none_s() {
    let catalog = catalog();
    for (name, place, fits) in [
        ("server-info", SchemaType::Route, true),
        ("server-info", SchemaType::Consumer, false),
        ("cors", SchemaType::Route, true),
        ("cors", SchemaType::Consumer, true),
    ] {
        assert_eq!(catalog.check(name, &json!({}), place).is_ok(), fits, "{name} {place:?}");
    }
}

#[test]
fn a_consumer_may_carry_what_another_version_checks() {
    let catalog = catalog();
    let names = FixedNames::default();
    let scope = Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: None };
    // On a consumer it is a credential; on a route it would have to be asked.
    for (collection, config, fits) in [
        ("consumers", json!({"user_dn": "cn=a"}), true),
        ("credentials", json!({"user_dn": "cn=a"}), true),
        ("consumers", json!({"user_dn": 1}), false),
        ("routes", json!({"base_dn": "o", "ldap_uri": "h"}), false),
    ] {
        let owner = Owner { collection, id: "1".into() };
        let entry = Configured { name: "ldap-auth", config: &config, owner: &owner };
        assert_eq!(catalog.chain(&[entry], &scope).is_ok(), fits, "{collection} {config}");
    }
}

#[test]
fn a_secret_that_is_kept_elsewhere_is_judged_when_it_is_there() {
    let catalog = catalog();
    for (secret, fits) in [
        ("c2VjcmV0", true),
        ("not base64!", false),
        ("$env://SECRET", true),
        ("$ENV://SECRET", true),
        ("$secret://vault/1/jack/secret", true),
        ("$vault://1", false),
        ("$env:", false),
    ] {
        let config = json!({"key": "k", "secret": secret, "base64_secret": true});
        assert_eq!(catalog.check("jwt-auth", &config, SchemaType::Consumer).is_ok(), fits, "{secret}");
    }
}

#[test]
fn an_unlisted_plugin_is_distinguished_from_an_unknown_one() {
    for (name, reason) in [
        ("key-auth", "unknown plugin [key-auth]: the list of plugins does not have it"),
        ("zipkin", "unknown plugin [zipkin]: it exists in APISIX but not in this version of Sluice"),
        ("ldap-auth", "unknown plugin [ldap-auth]: it exists in APISIX but not in this version of Sluice"),
        ("no-such", "unknown plugin [no-such]"),
    ] {
        assert_eq!(not_listed(name).reason, reason);
    }
}

#[test]
fn all_that_configurations_may_name_is_listed_once_from_high_to_low_priority() {
    let catalog = catalog();
    let all = catalog.about();
    assert!(all.is_sorted_by(|one, next| one.priority >= next.priority));
    let of = |subsystem, name: &str| {
        let found = all.iter().filter(|about| (about.subsystem, about.name) == (subsystem, name));
        found.map(|about| (about.priority, about.auth)).collect::<Vec<_>>()
    };
    for (subsystem, name, expected) in [
        (Subsystem::Http, "key-auth", &[(2500, true)][..]),
        (Subsystem::Http, "limit-count", &[(1002, false)]),
        (Subsystem::Http, "ip-restriction", &[(3000, false)]),
        // Not built.
        (Subsystem::Http, "ldap-auth", &[(2540, true)]),
        (Subsystem::Stream, "ip-restriction", &[(3000, false)]),
        (Subsystem::Stream, "mqtt-proxy", &[(1000, false)]),
        (Subsystem::Stream, "key-auth", &[]),
        (Subsystem::Http, "mqtt-proxy", &[]),
    ] {
        assert_eq!(of(subsystem, name), expected, "{subsystem:?} {name}");
    }
}

#[test]
fn names_are_those_of_either_subsystem_by_priority() {
    for (names, first, last) in [
        (crate::names(), "path-characters", "ocsp-stapling"),
        (crate::stream::names(), "ip-restriction", "syslog"),
    ] {
        assert_eq!((names.first(), names.last()), (Some(&first), Some(&last)), "{names:?}");
    }
}

#[test]
fn what_is_said_of_a_plugin_is_of_its_own_subsystem() {
    let catalog = catalog();
    let facts = |subsystem, name| catalog.facts(subsystem, name);
    let count = facts(Subsystem::Http, "limit-count").unwrap();
    assert_eq!(count.version, json!(0.5));
    assert_eq!(count.kind, None);
    assert!(count.metadata_schema.is_some() && count.consumer_schema.is_none());
    assert!(count.schema["properties"]["_meta"].is_object());
    assert_eq!(facts(Subsystem::Http, "key-auth").unwrap().kind.as_deref(), Some("auth"));
    assert!(facts(Subsystem::Http, "ldap-auth").unwrap().schema["properties"]["_meta"].is_object());
    assert!(facts(Subsystem::Stream, "mqtt-proxy").is_some());
    for (subsystem, name) in
        [(Subsystem::Stream, "key-auth"), (Subsystem::Http, "mqtt-proxy"), (Subsystem::Http, "no-such")]
    {
        assert!(facts(subsystem, name).is_none(), "{subsystem:?} {name}");
    }
}

/// Puts the plugins of its settings into itself, and lets everything pass.
struct Nest(&'static str);

impl Factory for Nest {
    fn name(&self) -> &'static str {
        self.0
    }

    fn priority(&self) -> i32 {
        7
    }

    fn phases(&self) -> Phases {
        Phases::ACCESS
    }

    fn schema(&self) -> Value {
        json!({"type": "object", "properties": {"inner": {"type": "object"}}})
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        if let Some(inner) = config.get("inner") {
            cx.plugin(self.0, inner, "inner")?;
        }
        Ok(fitting.stage(Passes))
    }
}

struct Passes;

impl sdk::Instance for Passes {
    fn phases(&self) -> Phases {
        Phases::ACCESS
    }
}

#[test]
fn hosted_plugins_come_and_go() {
    let catalog = catalog();
    let known = |name| catalog.check(name, &json!({}), SchemaType::Route).is_ok();
    let about = |name| catalog.about().iter().filter(|about| about.name == name).count();
    assert!(!known("nest"));
    let before = catalog.generation();
    catalog.register(Box::new(Nest("nest"))).unwrap();
    let there = catalog.generation();
    assert_ne!(there, before, "what names it is compiled again");
    assert!(known("nest"));
    assert_eq!((about("nest"), known("key-auth")), (1, true));
    assert_eq!(catalog.facts(Subsystem::Http, "nest").unwrap().version, json!(0.1));
    catalog.remove("nest");
    assert_ne!(catalog.generation(), there);
    assert!(!known("nest"));
    assert_eq!(about("nest"), 0);
    assert!(catalog.register(Box::new(Nest("key-auth"))).is_err(), "the name is taken");
}

#[test]
fn plugins_in_plugins_have_an_end() {
    let catalog = catalog();
    catalog.register(Box::new(Nest("nest"))).unwrap();
    let deep = |levels: usize| {
        let config = (0..levels).fold(json!({}), |inner, _| json!({ "inner": inner }));
        catalog.check("nest", &config, SchemaType::Route)
    };
    assert_eq!((deep(0), deep(MOST_NESTED)), (Ok(()), Ok(())));
    let reason = deep(MOST_NESTED + 1).unwrap_err().reason;
    assert!(reason.ends_with("plugins are nested too deeply"), "{reason}");
}

#[test]
fn a_group_of_limits_has_one_setting() {
    let catalog = catalog();
    let limit = |count: u32| json!({"count": count, "time_window": 60, "group": "g"});
    assert_eq!(catalog.check("limit-count", &limit(2), SchemaType::Route), Ok(()));
    let _in_use = chain(&catalog, &[("limit-count", limit(2))]).unwrap();
    assert_eq!(catalog.check("limit-count", &limit(2), SchemaType::Route), Ok(()));
    assert_eq!(catalog.check("limit-count", &limit(3), SchemaType::Route).unwrap_err().pointer, "/group");
}
