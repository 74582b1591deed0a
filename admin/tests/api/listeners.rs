//! The control API and the metrics listener, over sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::fixture::{Boot, Fixture, KEY, Plugins};
use admin::{ControlApi, Limits, NotServed, Program, Published, metrics, status};
use bytes::Bytes;
use control::store::{Expect, Memory, Store};
use model::{Key, Kind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn call(address: SocketAddr, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn the_control_api_shows_resources_and_schemas() {
    let store = Arc::new(Memory::default());
    let put = async |kind, id: &str, value: Value| {
        store.put(Key::new(kind, id), value, Expect::Any, None).await.unwrap();
    };
    put(Kind::Route, "1", json!({"id": "1", "upstream": {"nodes": {"name.test:80": 1, "[::1]:81": 2}}}))
        .await;
    put(Kind::Upstream, "u", json!({"id": "u", "nodes": [{"host": "127.0.0.1", "port": 1, "weight": 1}]}))
        .await;
    put(Kind::PluginMetadata, "cors", json!({"id": "cors"})).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        ControlApi::new(store.clone(), Arc::new(Plugins::new()), Arc::new(Boot))
            .serve(listener.into(), Limits::default()),
    );
    let get = async |path: &str| {
        let (status, body) = call(address, &format!("GET {path} HTTP/1.1")).await;
        (status, serde_json::from_str::<Value>(&body).unwrap_or(Value::Null))
    };

    let (status, snapshot) = get("/v1/snapshot").await;
    assert_eq!(
        (status, &snapshot["published"], &snapshot["workers"][1]["revision"]),
        (200, &json!(7), &json!(6))
    );
    let (_, route) = get("/v1/route/1").await;
    assert_eq!(
        route["value"]["upstream"]["nodes"],
        json!([{"host": "name.test", "port": 80, "weight": 1}, {"host": "[::1]", "port": 81, "weight": 2}])
    );
    assert_eq!((&route["has_domain"], &route["modifiedIndex"]), (&json!(true), &json!(1)));
    let (_, upstreams) = get("/v1/upstreams").await;
    assert_eq!(
        (&upstreams[0]["key"], &upstreams[0]["has_domain"]),
        (&json!("/apisix/upstreams/u"), &json!(false))
    );
    assert_eq!(get("/v1/services").await, (200, json!([])));
    // Other programs may have written any JSON to etcd.
    put(Kind::Service, "list", json!([1])).await;
    let (status, services) = get("/v1/services").await;
    assert_eq!((status, &services[0]["value"]), (200, &json!([1])));
    assert_eq!(get("/v1/service/list").await.0, 200);
    assert_eq!(get("/v1/route/2").await, (404, json!({"error_msg": "route[2] not found"})));
    for (path, status, reason) in [
        ("routes/1", 404, "no checker for routes[1]"),
        ("routes/2", 404, "routes[2] not found"),
        ("routes", 404, "missing src id for src type routes"),
        ("route/1", 400, "invalid src type route"),
    ] {
        let answer = get(&format!("/v1/healthcheck/{path}")).await;
        assert_eq!(answer, (status, json!({"error_msg": reason})), "{path}");
    }
    assert_eq!(get("/v1/healthcheck").await, (200, json!({})));
    assert_eq!(get("/v1/rejected").await, (200, json!({"total": 0, "list": []})));
    assert_eq!(get("/v1/plugin_metadatas").await, (200, json!([{"id": "cors"}])));
    assert_eq!(get("/v1/plugin_metadata/cors").await, (200, json!({"id": "cors"})));
    assert_eq!(
        get("/v1/plugin_metadata/x").await,
        (404, json!({"error_msg": "plugin metadata[x] not found"}))
    );
    // With the defaults of their schemas, and in the order of the plugins.
    let (_, upstream) = get("/v1/upstream/u").await;
    assert_eq!(
        (&upstream["value"]["scheme"], &upstream["value"]["pass_host"]),
        (&json!("http"), &json!("pass"))
    );
    assert_eq!(route["value"]["upstream"]["type"], "roundrobin");
    put(Kind::PluginMetadata, "unknown-plugin", json!({"id": "unknown-plugin"})).await;
    let (_, metadata) = get("/v1/plugin_metadatas").await;
    assert_eq!(metadata, json!([{"id": "cors"}, {"id": "unknown-plugin"}]));
    let (_, schema) = get("/v1/schema").await;
    assert_eq!(schema["main"]["route"]["type"], "object");
    assert_eq!(schema["plugins"]["key-auth"]["type"], "auth");
    assert_eq!(call(address, "PUT /v1/plugins/reload HTTP/1.1").await, (200, "done".to_owned()));
    assert_eq!(store.plugins().await.unwrap(), Some(vec!["cors".to_owned(), "key-auth".to_owned()]));
    assert_eq!(call(address, "POST /v1/gc HTTP/1.1").await.0, 200);
    for nowhere in ["GET /v1/gc", "PUT /v1/routes", "GET /apisix/admin/routes", "GET /v2"] {
        assert_eq!(call(address, &format!("{nowhere} HTTP/1.1")).await.0, 404, "{nowhere}");
    }
}

#[tokio::test]
async fn the_admin_api_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Fixture::new().admin.serve(listener));
    let with_key = format!("GET /apisix/admin/routes HTTP/1.1\r\nX-API-KEY: {KEY}");
    assert_eq!(call(address, &with_key).await, (200, "{\"list\":[],\"total\":0}\n".to_owned()));
    assert_eq!(call(address, "GET /apisix/admin/routes HTTP/1.1").await.0, 401);
    let absolute = format!("GET http://x/apisix/admin/routes HTTP/1.1\r\nX-API-KEY: {KEY}");
    assert_eq!(call(address, &absolute).await.0, 200);
}

const METRICS: &str = "GET /apisix/prometheus/metrics HTTP/1.1";

async fn metrics_listener(
    limits: Limits,
    print: impl Fn() -> Vec<Bytes> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let path = "/apisix/prometheus/metrics".to_owned();
    tokio::spawn(metrics::serve(
        listener.into(),
        path,
        &[],
        limits,
        Arc::new(metrics::Pages::new(Arc::new(print))),
    ));
    address
}

#[tokio::test]
async fn metrics_have_one_path_and_two_methods() {
    let pieces = || ["up 1\n", "down 0\n"].map(Bytes::from).to_vec();
    let address = metrics_listener(Limits::default(), pieces).await;
    assert_eq!(call(address, METRICS).await, (200, "up 1\ndown 0\n".to_owned()));
    assert_eq!(call(address, "HEAD /apisix/prometheus/metrics HTTP/1.1").await, (200, String::new()));
    assert_eq!(call(address, "GET /metrics HTTP/1.1").await.0, 404);
    assert_eq!(call(address, "POST /apisix/prometheus/metrics HTTP/1.1").await.0, 405);
}

/// The memory of a page; counts the pages in memory and the pages ever printed.
struct Counted {
    bytes: Vec<u8>,
    counts: Arc<[AtomicUsize; 2]>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts[0].fetch_sub(1, SeqCst);
    }
}

/// Prints pages that do not fit into a socket's buffers.
fn printer() -> (Arc<[AtomicUsize; 2]>, impl Fn() -> Vec<Bytes> + Send + Sync + 'static) {
    let counts = Arc::<[AtomicUsize; 2]>::default();
    let all = counts.clone();
    let print = move || {
        let counts = all.clone();
        for count in counts.iter() {
            count.fetch_add(1, SeqCst);
        }
        let whole = Bytes::from_owner(Counted { bytes: vec![b'x'; 32 << 20], counts });
        (0..512).map(|piece| whole.slice(piece << 16..(piece + 1) << 16)).collect()
    };
    (counts, print)
}

#[tokio::test]
async fn a_page_is_shared_as_one_text_and_counts_while_it_is_held() {
    let (counts, print) = printer();
    let pages = metrics::Pages::new(Arc::new(print));
    let texts = [pages.text().await.unwrap(), pages.text().await.unwrap(), pages.text().await.unwrap()];
    assert!(texts.iter().all(|text| text.len() == 32 << 20));
    assert_eq!(texts[1].as_ptr(), texts[2].as_ptr(), "the third has the page of the second");
    assert_eq!(counts[0].load(SeqCst), 2);
    drop(texts);
    assert_eq!(counts[0].load(SeqCst), 0);
}

#[tokio::test]
async fn pages_are_printed_one_at_a_time_even_after_a_scraper_disconnects() {
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (gate, running, most) =
        (std::sync::Mutex::new(gate), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let together = most.clone();
    let print = move || {
        together.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
        begun.send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        running.fetch_sub(1, SeqCst);
        vec![Bytes::from("up 1\n")]
    };
    let pages = Arc::new(metrics::Pages::new(Arc::new(print)));
    let ask = || {
        let pages = pages.clone();
        tokio::spawn(async move { pages.text().await })
    };
    let gone = ask();
    began.recv().await.unwrap();
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let next = ask();
    // Long enough for a second print to begin, if it were not held back.
    tokio::time::sleep(Duration::from_millis(200)).await;
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(next.await.unwrap().as_deref(), Some(&b"up 1\n"[..]));
    assert_eq!(most.load(SeqCst), 1);
}

#[tokio::test]
async fn scrapers_that_do_not_read_hold_at_most_two_pages() {
    let (counts, print) = printer();
    let address =
        metrics_listener(Limits { send: Duration::from_secs(3600), ..Limits::default() }, print).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{METRICS}\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        // The head has come, so it has its page.
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        idle.push(stream);
    }
    assert_eq!(counts.each_ref().map(|count| count.load(SeqCst)), [2, 2], "pages there are, and were");
    // A scraper that reads gets the newest of them.
    let (status, page) = call(address, METRICS).await;
    assert_eq!((status, page.len()), (200, 32 << 20));
    assert_eq!(counts[1].load(SeqCst), 2);
    // It gets a new page once the others have disconnected.
    drop(idle);
    while counts[0].load(SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(call(address, METRICS).await.0, 200);
    assert_eq!(counts[1].load(SeqCst), 3);
}

#[tokio::test]
async fn a_scraper_that_does_not_read_is_disconnected() {
    let (counts, print) = printer();
    let limits = Limits { send: Duration::from_millis(50), connections: 1, ..Limits::default() };
    let address = metrics_listener(limits, print).await;
    let mut stalls = TcpStream::connect(address).await.unwrap();
    stalls.write_all(format!("{METRICS}\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    // With one permit, the next client is served once the first is disconnected.
    let mut next = TcpStream::connect(address).await.unwrap();
    next.write_all(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut byte = [0];
    next.read_exact(&mut byte).await.unwrap();
    assert_eq!(counts[0].load(SeqCst), 0);
    drop(stalls);
}

/// A program whose second worker holds a given revision of 7.
struct Lagging(u64);

impl Program for Lagging {
    fn use_plugins(&self, _: Option<Vec<String>>) {}

    fn published(&self) -> Published {
        Published { revision: 7, workers: vec![7, self.0], not_served: NotServed::default() }
    }

    fn read_plugins(&self) -> Result<Option<Vec<String>>, String> {
        Err("not asked for here".to_owned())
    }

    fn reload(&self) -> admin::Reloading<'_> {
        Box::pin(async { Err("there are no files".to_owned()) })
    }

    fn about(&self) -> serde_json::Map<String, Value> {
        serde_json::Map::from_iter([("program".to_owned(), Value::from("a test"))])
    }
}

#[tokio::test]
async fn ready_requires_all_workers_on_the_newest_snapshot() {
    for (held, wanted) in [(6, 503), (7, 200)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(status::serve(listener.into(), Limits::default(), Arc::new(Lagging(held))));
        assert_eq!(call(address, "GET /status HTTP/1.1").await, (200, "{\"status\":\"ok\"}\n".to_owned()));
        let (status, body) = call(address, "GET /status/ready HTTP/1.1").await;
        assert_eq!(status, wanted);
        assert_eq!(body.contains("worker id: 1 has not received configuration"), held == 6, "{body}");
        assert_eq!(call(address, "GET /apisix/admin/routes HTTP/1.1").await.0, 404);
    }
}
