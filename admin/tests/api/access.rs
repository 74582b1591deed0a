//! Access to the API: keys, roles and addresses, and the headers of each response.

use std::sync::Arc;

use admin::{AdminKey, AdminRole, Config};
use bytes::Bytes;
use control::store::Memory;
use http::Request;
use serde_json::{Value, json};

use crate::fixture::{Fixture, KEY, PEER, config, route};

/// Every path of the API, including those that answer 404 with a key.
const WALK: &[(&str, &str)] = &[
    ("GET", ""),
    ("GET", "/"),
    ("GET", "/nope"),
    ("GET", "/plugins/list"),
    ("GET", "/plugins/cors"),
    ("GET", "/plugins?all=true"),
    ("PUT", "/plugins/reload"),
    ("GET", "/plugins/reload"),
    ("GET", "/schema/route"),
    ("GET", "/schema/plugins/cors"),
    ("POST", "/schema/validate/routes"),
    ("POST", "/configs/validate"),
    ("PUT", "/configs"),
    ("GET", "/../admin/routes"),
    ("GET", "/%2e%2e/x"),
    ("OPTIONS", "/routes"),
    ("TRACE", "/routes"),
    ("HEAD", "/routes"),
];

#[tokio::test]
async fn without_a_key_every_route_says_401() {
    let api = Fixture::over(Arc::new(Memory::default()), Config { cors: false, ..config() });
    let mut paths: Vec<(String, String)> =
        WALK.iter().map(|(method, path)| ((*method).to_owned(), format!("/apisix/admin{path}"))).collect();
    paths.push(("GET".to_owned(), "/v1/snapshot".to_owned()));
    for kind in model::Kind::ALL {
        for method in ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD"] {
            for path in
                ["", "/1", "/1/credentials", "/1/credentials/2", "/1/graphql_cost_decorations/2", "/1/a/b"]
            {
                paths.push((method.to_owned(), format!("/apisix/admin/{}{path}", kind.collection())));
            }
        }
    }
    for (method, path) in paths {
        for key in [None, Some("wrong"), Some("edd1c9f034335f136f87ad84b625c8f1")] {
            let mut request = Request::builder().method(method.as_str()).uri(path.as_str());
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let request = request.body(Bytes::from_static(b"{\"canary\":1}")).unwrap();
            let response = api.admin.handle(PEER.parse().unwrap(), request).await;
            assert_eq!(response.status(), 401, "{method} {path}");
            let said = String::from_utf8_lossy(response.body()).into_owned();
            assert!(said.contains("failed to check token") && !said.contains("canary"), "{said}");
        }
    }
    // The one exception is ADC's ping.
    let ping = Request::head("/apisix/admin").body(Bytes::new()).unwrap();
    assert_eq!(api.admin.handle(PEER.parse().unwrap(), ping).await.status(), 200);
}

#[tokio::test]
async fn addresses_and_roles_are_kept() {
    let viewer = AdminKey { name: "v".into(), key: "look".into(), role: AdminRole::Viewer };
    let mut own = config();
    own.keys.push(viewer);
    let api = Fixture::over(Arc::new(Memory::default()), own);
    let send = async |peer: &str, method: &str, key: &str| {
        let request = Request::builder()
            .method(method)
            .uri("/apisix/admin/routes")
            .header("x-api-key", key)
            .header("x-forwarded-for", "127.0.0.1")
            .header("x-real-ip", "127.0.0.1")
            .body(Bytes::new())
            .unwrap();
        api.admin.handle(peer.parse().unwrap(), request).await.status().as_u16()
    };
    assert_eq!(send("127.0.0.1", "GET", "look").await, 200);
    assert_eq!(send("127.0.0.1", "POST", "look").await, 401);
    assert_eq!(send("10.1.1.1", "GET", KEY).await, 403);
    assert_eq!(send("::ffff:127.0.0.1", "GET", KEY).await, 200);

    let open = Config { key_required: false, keys: Vec::new(), ..config() };
    let api = Fixture::over(Arc::new(Memory::default()), open);
    let request = Request::put("/apisix/admin/routes/1").body(Bytes::from(route().to_string())).unwrap();
    assert_eq!(api.admin.handle(PEER.parse().unwrap(), request).await.status(), 201);
}

#[tokio::test]
async fn headers_are_those_tools_look_for() {
    let api = Fixture::new();
    let response = api.raw("GET", "/apisix/admin/routes", "").await;
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert!(header("server").unwrap().starts_with("APISIX/3."));
    assert_eq!(header("x-api-version").as_deref(), Some("v3"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    assert_eq!(header("access-control-allow-origin").as_deref(), Some("*"));
    assert_eq!(header("access-control-max-age").as_deref(), Some("3600"));
    let request = Request::options("/apisix/admin/routes").body(Bytes::new()).unwrap();
    let preflight = api.admin.handle(PEER.parse().unwrap(), request).await;
    assert_eq!(preflight.status(), 200);
    assert!(preflight.headers()["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
}

#[tokio::test]
async fn the_snapshot_is_shown_with_a_key() {
    let api = Fixture::new();
    let response = api.raw("GET", "/v1/snapshot", "").await;
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(
        body,
        json!({"published": 7, "workers": [{"revision": 7}, {"revision": 6}], "rejected": [], "rejected_total": 0})
    );
}
