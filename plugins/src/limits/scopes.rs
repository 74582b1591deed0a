//! Keys of shared limits are APISIX's. The expected checksums are those of APISIX 3.18's code, run on the same configurations.

use std::sync::{Arc, Mutex};

use indexmap::IndexMap;
use model::Invalid;
use sdk::Build;
use sdk::build::{Extensions, Owner, Services};
use sdk::catalog::{Configured, Scope as Place};
use sdk::limit::{Limiter, Limits, Policy, Scope, Wanted};
use sdk::testing::FixedNames;
use serde_json::{Value, json};

use crate::Catalog;

/// Notes the scopes of the limiters that are made.
#[derive(Default)]
struct Scopes(Mutex<Vec<Scope>>);

impl Policy for Scopes {
    fn limiter(&self, scope: &Scope, _: &Wanted<'_>, _: &Build<'_>) -> Result<Arc<dyn Limiter>, Invalid> {
        self.0.lock().unwrap().push(scope.clone());
        Err(Invalid::new("only the scope matters"))
    }
}

fn scope(plugin: &str, config: &Value, collection: &'static str, id: &str) -> (String, String) {
    use sdk::Catalog as _;

    let scopes = Arc::new(Scopes::default());
    let limits = ["redis", "redis-cluster", "redis-sentinel"]
        .into_iter()
        .fold(Limits::default(), |limits, name| limits.with(name, scopes.clone()));
    let services =
        Services { extensions: Extensions::default().with(Arc::new(limits)), ..Services::for_tests() };
    let owner = Owner { collection, id: id.to_owned() };
    let names = FixedNames::default();
    let place = Place::of_names(&names);
    let entry = Configured { name: plugin, config, owner: &owner };
    let invalid = Catalog::new(services, IndexMap::new()).chain(&[entry], &place).unwrap_err();
    assert!(invalid.reason.ends_with("only the scope matters"), "{invalid}");
    let Scope { before, after } = scopes.0.lock().unwrap()[0].clone();
    (before, after)
}

#[test]
fn keys_have_the_checksums_of_apisix() {
    let count = json!({"count": 2, "time_window": 60, "policy": "redis", "redis_host": "127.0.0.1"});
    let with = |more: Value| {
        let mut config = count.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    for (plugin, config, collection, before, after) in [
        ("limit-count", count.clone(), "routes", "/apisix/routes/1:865169438:", ""),
        ("limit-count", with(json!({"_meta": {}})), "routes", "/apisix/routes/1:865169438:", ""),
        (
            "limit-count",
            with(json!({"_meta": {"priority": 5}, "other": "x", "redis_password": "s"})),
            "services",
            "/apisix/services/1:980678705:",
            "",
        ),
        ("limit-count", with(json!({"group": "g"})), "routes", "g:", ""),
        (
            "workflow",
            json!({"rules": [
                {"actions": [["return", {"code": 403}]]},
                {"actions": [["limit-count", count.clone()]]},
            ]}),
            "routes",
            "/apisix/routes/1:2037228125:",
            ":2",
        ),
        (
            "limit-count",
            json!({
                "count": 2, "time_window": 60, "policy": "redis-sentinel", "redis_master_name": "m",
                "redis_sentinels": [{"host": "127.0.0.1", "port": 1}],
            }),
            "routes",
            "/apisix/routes/1:455806087:",
            "",
        ),
        (
            "limit-req",
            json!({
                "rate": 0.5, "burst": 1, "key": "remote_addr", "policy": "redis-cluster",
                "redis_cluster_nodes": ["127.0.0.1:1"], "redis_cluster_name": "c",
            }),
            "global_rules",
            "/apisix/global_rules/1:3619732089:",
            "",
        ),
        (
            "limit-conn",
            json!({
                "conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr", "policy": "redis",
                "redis_host": "127.0.0.1",
            }),
            "consumers",
            "/apisix/consumers/1:2286495052:",
            "",
        ),
    ] {
        assert_eq!(scope(plugin, &config, collection, "1"), (before.into(), after.into()), "{config}");
    }
}
