//! A mistake of the gateway that one resource brings out costs no other resource anything.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

mod support;

use model::{Desired, Key, Kind};
use serde_json::{Value, json};
use snapshot::Touched;
use support::{Table, compiler, entry};

const ALL: [(Kind, &str); 8] = [
    (Kind::Route, "1"),
    (Kind::Service, "1"),
    (Kind::PluginConfig, "1"),
    (Kind::GlobalRule, "1"),
    (Kind::ConsumerGroup, "1"),
    (Kind::Consumer, "jack"),
    (Kind::Credential, "jill/credentials/1"),
    (Kind::PluginMetadata, "limit"),
];

fn value(kind: Kind, id: &str, config: &Value) -> Value {
    match kind {
        Kind::Route => json!({"uri": "/1", "plugins": {"limit": config}}),
        Kind::Consumer => json!({"username": id, "plugins": {"limit": config}}),
        Kind::Credential => json!({"plugins": {"key": config}}),
        Kind::PluginMetadata => config.clone(),
        _ => json!({"plugins": {"limit": config}}),
    }
}

#[test]
fn a_panic_is_told_and_costs_its_resource_alone() {
    for (kind, id) in ALL {
        let mut desired = Desired::default();
        desired.put(entry(Kind::Route, "beside", json!({"uri": "/beside", "plugins": {"log": {}}})));
        desired.put(entry(
            Kind::Consumer,
            "jill",
            json!({"username": "jill", "plugins": {"key": {"key": "k"}}}),
        ));
        desired.put(entry(kind, id, value(kind, id, &json!({"panic": true}))));
        let (mut compiler, names) = (compiler(), Table::default());
        let compiled = compiler.compile(&desired, &Touched::all(), &names, 0);
        let rejected: Vec<_> = compiled.rejected.iter().map(|one| (&one.key, one.kept())).collect();
        assert_eq!(rejected, [(&Key::new(kind, id), false)]);
        assert!(compiled.rejected[0].invalid.reason.contains("a mistake of the gateway"));
        assert!(compiled.snapshot.router.rule("beside").is_some());
        assert!(compiled.snapshot.consumers.find("key", b"k").is_some());
        support::nothing_is_lost(&compiled, &desired);

        // Mended, and broken again: then the last good form stays.
        for (config, kept) in [(json!({"key": "mine"}), None), (json!({"panic": true}), Some(true))] {
            desired.put(entry(kind, id, value(kind, id, &config)));
            let touched = Touched::from_iter([Key::new(kind, id)]);
            let compiled = compiler.compile(&desired, &touched, &names, 1);
            assert_eq!(compiled.rejected.first().map(|one| one.kept()), kept, "{kind:?}");
            assert!(compiled.snapshot.router.rule("beside").is_some());
        }
    }
}
