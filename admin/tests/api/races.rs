//! Concurrent writes leave a consistent store, in any order.

use std::sync::Arc;

use control::store::Embedded;
use serde_json::{Value, json};

use crate::fixture::{Fixture, config};

/// Enough rounds to hit every race many times, if there is one.
const ROUNDS: usize = 40;

struct Site {
    api: Arc<Fixture>,
    _folder: tempfile::TempDir,
}

fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    Site { api: Arc::new(Fixture::over(Arc::new(store), config())), _folder: folder }
}

impl Site {
    /// Sends all at once and returns the statuses in the order of the requests.
    async fn race(&self, requests: Vec<(&'static str, String, Value)>) -> Vec<u16> {
        let together = Arc::new(tokio::sync::Barrier::new(requests.len()));
        let running: Vec<_> = requests
            .into_iter()
            .map(|(method, path, body)| {
                let (api, together) = (self.api.clone(), together.clone());
                tokio::spawn(async move {
                    together.wait().await;
                    api.call(method, &path, body).await.0
                })
            })
            .collect();
        let mut statuses = Vec::new();
        for request in running {
            statuses.push(request.await.unwrap());
        }
        statuses
    }

    async fn exists(&self, path: &str) -> bool {
        self.api.call("GET", path, Value::Null).await.0 == 200
    }

    async fn set(&self, path: &str, body: Value) {
        let (status, answer) = self.api.call("PUT", path, body).await;
        assert!(status < 300, "{path}: {status} {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_gets_one_holder() {
    let site = site();
    for round in 0..ROUNDS {
        let owner = format!("owner{round}");
        site.set(&format!("consumers/{owner}"), json!({ "username": owner })).await;
        let plugins = json!({"key-auth": {"key": format!("k{round}")}});
        let mut requests: Vec<_> = (0..6)
            .map(|n| {
                let name = format!("c{round}x{n}");
                ("PUT", format!("consumers/{name}"), json!({ "username": name, "plugins": plugins }))
            })
            .collect();
        for n in 0..3 {
            let path = format!("consumers/{owner}/credentials/{n}");
            requests.push(("PUT", path, json!({ "plugins": plugins })));
        }
        let statuses = site.race(requests).await;
        let stored = statuses.iter().filter(|status| **status == 201).count();
        let refused = statuses.iter().filter(|status| **status == 400).count();
        assert_eq!((stored, refused), (1, 8), "round {round}: {statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_plugin_gets_one_global_rule() {
    let site = site();
    for round in 0..ROUNDS {
        let put = |id: String| ("PUT", format!("global_rules/{id}"), json!({"plugins": {"cors": {}}}));
        let statuses = site.race((0..6).map(|n| put(format!("{round}x{n}"))).collect()).await;
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
        for n in 0..6 {
            site.api.call("DELETE", &format!("global_rules/{round}x{n}"), Value::Null).await;
        }
    }
}

/// For every kind that names another, and every way to write it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn references_stay_valid_when_writes_race_with_deletes() {
    let nodes = json!({"nodes": {"127.0.0.1:80": 1}});
    let limit = json!({"plugins": {"limit-count": {"count": 1}}});
    let route = |field: &str| json!({"uri": "/", field: "it"});
    let named = [
        ("upstreams/it", &nodes, "routes", "PUT", route("upstream_id")),
        ("upstreams/it", &nodes, "routes", "POST", route("upstream_id")),
        ("upstreams/it", &nodes, "routes", "PATCH", json!({"upstream_id": "it"})),
        ("upstreams/it", &nodes, "services", "PUT", json!({"upstream_id": "it"})),
        ("upstreams/it", &nodes, "services", "PATCH", json!({"upstream_id": "it"})),
        ("services/it", &nodes, "routes", "PUT", route("service_id")),
        ("plugin_configs/it", &limit, "routes", "PUT", route("plugin_config_id")),
        ("consumer_groups/it", &limit, "consumers", "PUT", json!({"username": "user", "group_id": "it"})),
    ];
    let site = site();
    for (name, body, users, method, user) in named {
        let body = if name.starts_with("services") { json!({ "upstream": body }) } else { body.clone() };
        let path = if users == "consumers" { "consumers/user" } else { &format!("{users}/user") };
        for round in 0..ROUNDS {
            site.set(name, body.clone()).await;
            if method == "PATCH" {
                let before = json!({"uri": "/", "plugins": {"cors": {}}});
                site.set(path, if users == "routes" { before } else { json!({}) }).await;
            }
            let target = if method == "POST" { users } else { path };
            let statuses = site
                .race(vec![
                    (method, target.to_owned(), user.clone()),
                    ("DELETE", name.to_owned(), Value::Null),
                ])
                .await;
            // One of them came first, and the other was refused for it.
            let context = format!("{method} {target} beside DELETE {name}, round {round}: {statuses:?}");
            match (statuses[0], statuses[1]) {
                (200 | 201, 400) => assert!(site.exists(name).await, "{context}"),
                (400, 200) => assert!(!site.exists(name).await, "{context}"),
                _ => panic!("{context}"),
            }
            let (_, list) = site.api.call("GET", users, Value::Null).await;
            for entry in list["list"].as_array().unwrap() {
                let own = entry["key"].as_str().unwrap().trim_start_matches("/apisix/").to_owned();
                site.api.call("DELETE", &own, Value::Null).await;
            }
        }
        site.api.call("DELETE", name, Value::Null).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_consumer_leaves_no_credential_behind() {
    let site = site();
    for round in 0..ROUNDS {
        site.set("consumers/jack", json!({"username": "jack"})).await;
        site.set("consumers/jack/credentials/old", json!({})).await;
        let put = |n: usize| ("PUT", format!("consumers/jack/credentials/{n}"), json!({}));
        let mut requests: Vec<_> = (0..4).map(put).collect();
        requests.push(("DELETE", "consumers/jack".to_owned(), Value::Null));
        let statuses = site.race(requests).await;
        assert_eq!(statuses[4], 200);
        let (status, left) = site.api.call("GET", "consumers/jack/credentials", Value::Null).await;
        assert_eq!(status, 404, "round {round}: {statuses:?} {left}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_that_race_all_count() {
    let site = site();
    for (round, racers) in [8, 8, 8, 100, 100].into_iter().enumerate() {
        let path = format!("routes/{round}");
        site.set(&path, json!({"uri": "/", "plugins": {"cors": {}}})).await;
        let patch = |n: usize| ("PATCH", path.clone(), json!({"labels": {format!("l{n}"): "x"}}));
        let statuses = site.race((0..racers).map(patch).collect()).await;
        assert_eq!(statuses, vec![200; racers], "round {round}");
        let (_, route) = site.api.call("GET", &path, Value::Null).await;
        assert_eq!(route["value"]["labels"].as_object().unwrap().len(), racers, "round {round}: {route}");
    }
    let invalid = ("PATCH", "routes/0".to_owned(), json!({"plugins": {"limit-count": {"count": "x"}}}));
    let gone = ("DELETE", "routes/0".to_owned(), Value::Null);
    let statuses = site.race(vec![invalid.clone(), gone, invalid]).await;
    let refused = |status: u16| [400, 404].contains(&status);
    assert!(statuses[1] == 200 && refused(statuses[0]) && refused(statuses[2]), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ids_that_are_made_are_revisions() {
    let site = site();
    for _ in 0..ROUNDS {
        let post = ("POST", "routes".to_owned(), json!({"uri": "/", "plugins": {"cors": {}}}));
        assert_eq!(site.race(vec![post; 8]).await, [201; 8]);
    }
    let (_, list) = site.api.call("GET", "routes", Value::Null).await;
    let routes = list["list"].as_array().unwrap();
    assert_eq!(routes.len(), ROUNDS * 8);
    for route in routes {
        let id = route["value"]["id"].as_str().unwrap();
        assert_eq!(id, format!("{:020}", route["createdIndex"].as_u64().unwrap()));
    }
}
