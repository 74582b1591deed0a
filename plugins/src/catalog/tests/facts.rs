//! Facts of plugins: names, priorities and subsystems.

use super::*;

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
        (crate::names(), "path-characters", "ext-plugin-post-resp"),
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
