//! Checks of settings, credentials and metadata.

use super::*;

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
        reason("ldap-auth-advanced", json!({"base_dn": "o", "ldap_uri": "h"}), SchemaType::Route)
            .starts_with("unknown plugin [ldap-auth-advanced]: it exists")
    );
    let all = IndexMap::from([("key-auth".to_owned(), json!({"header": 1}))]);
    assert_eq!(catalog.check_all(&all, SchemaType::Route).unwrap_err().pointer, "/key-auth/header");
}

#[test]
fn what_is_switched_off_may_be_wrong() {
    let catalog = catalog();
    let off = json!({"header": 1, "_meta": {"disable": true}});
    assert_eq!(catalog.check("key-auth", &off, SchemaType::Route), Ok(()));
    assert_eq!(catalog.check("ldap-auth-advanced", &off, SchemaType::Route), Ok(()));
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
    let names = ["key-auth", "ldap-auth-advanced", unknown, "mqtt-proxy"];
    let entries = names.map(|name| (name, off.clone()));
    let chain = chain(&catalog, &entries).unwrap();
    assert_eq!(chain.names(), [""; 0]);
    assert_eq!(chain.phases(), Phases::NONE);
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
        ("loggly", "unknown plugin [loggly]: it exists in APISIX but not in this version of Sluice"),
        (
            "ldap-auth-advanced",
            "unknown plugin [ldap-auth-advanced]: it exists in APISIX but not in this version of Sluice",
        ),
        ("no-such", "unknown plugin [no-such]"),
    ] {
        assert_eq!(not_listed(name).reason, reason);
    }
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
