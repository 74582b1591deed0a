use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::testing::{ask, trust};

/// An API server on a real socket. Lists are answered from a queue, the last one for ever; lines of watches
/// are sent as the test says.
struct Server {
    addr: SocketAddr,
    lists: Arc<Mutex<VecDeque<(u16, Value)>>>,
    heads: Arc<Mutex<Vec<String>>>,
    watches: mpsc::UnboundedReceiver<Watch>,
}

/// A watch that a client has begun: what is sent goes out as a chunk, the end closes it.
type Watch = mpsc::UnboundedSender<String>;

impl Server {
    async fn start(lists: Vec<(u16, Value)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let lists = Arc::new(Mutex::new(VecDeque::from(lists)));
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (began, watches) = mpsc::unbounded_channel();
        let (all, seen) = (lists.clone(), heads.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (lists, seen, began) = (all.clone(), seen.clone(), began.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let head = String::from_utf8(head).unwrap();
                    let watches = head.contains("watch=true");
                    seen.lock().unwrap().push(head);
                    if watches {
                        let (send, mut lines) = mpsc::unbounded_channel::<String>();
                        began.send(send).unwrap();
                        let mut begun = false;
                        while let Some(line) = lines.recv().await {
                            // A status of its own, before anything else.
                            if let Some(status) = line.strip_prefix("status ") {
                                let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                                let _ = stream.write_all(answer.as_bytes()).await;
                                return;
                            }
                            if !std::mem::replace(&mut begun, true) {
                                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                                let _ = stream.write_all(head.as_bytes()).await;
                            }
                            let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                            let _ = stream.write_all(chunk.as_bytes()).await;
                        }
                        let _ = stream.write_all(b"0\r\n\r\n").await;
                        return;
                    }
                    let (status, body) = {
                        let mut lists = lists.lock().unwrap();
                        if lists.len() > 1 { lists.pop_front().unwrap() } else { lists[0].clone() }
                    };
                    let body = body.to_string();
                    let answer =
                        format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Server { addr, lists, heads, watches }
    }

    fn config(&self) -> Value {
        json!({
            "service": {"schema": "http", "host": "127.0.0.1", "port": self.addr.port().to_string()},
            "client": {"token": "hush"},
        })
    }

    fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }

    /// The next watch that begins.
    async fn watch(&mut self) -> Watch {
        tokio::time::timeout(Duration::from_secs(60), self.watches.recv()).await.unwrap().unwrap()
    }
}

fn kubernetes(config: &Value) -> Result<Kubernetes, String> {
    Kubernetes::new(config, &trust(), &|name| (name == "HOST").then(|| "127.0.0.1".to_owned()))
}

async fn found(kubernetes: &Kubernetes) -> Vec<String> {
    let asking = tokio::time::timeout(Duration::from_secs(60), ask(kubernetes, &[]));
    let found = asking.await.unwrap().unwrap();
    assert!(found.complete);
    let nodes = |nodes: &Vec<Node>| {
        nodes.iter().map(|node| format!("{}:{}", node.host, node.port)).collect::<Vec<_>>().join(",")
    };
    found.services.iter().map(|(name, all)| format!("{name} {}", nodes(all))).collect()
}

fn endpoints(namespace: &str, name: &str, ips: &[&str]) -> Value {
    let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "5"},
        "subsets": [{"addresses": addresses, "ports": [{"name": "http", "port": 80}, {"port": 81}]}],
    })
}

fn list(items: Vec<Value>, version: &str) -> (u16, Value) {
    (200, json!({"kind": "EndpointsList", "metadata": {"resourceVersion": version}, "items": items}))
}

fn line(change: &str, object: Value) -> String {
    format!("{}\n", json!({"type": change, "object": object}))
}

#[tokio::test]
async fn endpoints_are_listed_page_by_page_and_then_watched() {
    let mut first = list(vec![endpoints("a", "web", &["10.0.0.2", "10.0.0.1"])], "7");
    first.1["metadata"]["continue"] = json!("next&page");
    let second =
        list(vec![endpoints("b", "db", &["10.0.1.1"]), json!({"metadata": null, "subsets": null})], "8");
    let mut server = Server::start(vec![first, second]).await;
    let kubernetes = kubernetes(&server.config()).unwrap();
    let listed = [
        "a/web:81 10.0.0.1:81,10.0.0.2:81",
        "a/web:http 10.0.0.1:80,10.0.0.2:80",
        "b/db:81 10.0.1.1:81",
        "b/db:http 10.0.1.1:80",
    ];
    assert_eq!(found(&kubernetes).await, listed);
    let watch = server.watch().await;
    let heads = server.heads();
    assert!(heads[0].starts_with("GET /api/v1/endpoints?limit=500 HTTP/1.1\r\n"), "{heads:?}");
    assert!(
        heads[1].contains("&continue=next%26page")
            && heads[2].contains("allowWatchBookmarks=true&timeoutSeconds=")
    );
    assert!(heads[2].contains("&resourceVersion=8 "), "{heads:?}");
    assert!(heads.iter().all(|head| head.contains("authorization: Bearer hush\r\n")));
    // A line may come in two pieces, and two in one.
    let event = line("MODIFIED", endpoints("a", "web", &["10.0.0.3"]));
    let (one, two) = event.split_at(20);
    watch.send(one.to_owned()).unwrap();
    watch.send(format!("{two}{}", line("DELETED", endpoints("b", "db", &[])))).unwrap();
    assert_eq!(found(&kubernetes).await, ["a/web:81 10.0.0.3:81", "a/web:http 10.0.0.3:80"]);
    watch.send(line("BOOKMARK", json!({"metadata": {"resourceVersion": "99"}}))).unwrap();
    watch.send(line("SOMETHING", json!({}))).unwrap();
    drop(watch);
    // A watch that ended goes on from the bookmark, without a list.
    let _watch = server.watch().await;
    let heads = server.heads();
    assert_eq!(heads.len(), 1);
    assert!(heads[0].contains("&resourceVersion=99 "), "{heads:?}");
    let dump = kubernetes.dump(&BTreeMap::new());
    assert_eq!(dump["config"]["client"]["token"], "***");
    assert_eq!(dump["endpoints"][0]["endpoints"][0]["name"], "a/web");
    let value: Value =
        serde_json::from_str(dump["endpoints"][0]["endpoints"][0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(
        value,
        json!({"http": [{"host": "10.0.0.3", "port": 80, "weight": 50}], "81": [{"host": "10.0.0.3", "port": 81, "weight": 50}]})
    );
}

#[tokio::test]
async fn a_version_that_is_gone_is_listed_anew_and_the_last_nodes_stay_meanwhile() {
    let server = Server::start(vec![list(vec![endpoints("a", "web", &["10.0.0.1"])], "1")]).await;
    let mut server = server;
    let kubernetes = kubernetes(&server.config()).unwrap();
    assert_eq!(found(&kubernetes).await.len(), 2);
    for how in ["event", "status"] {
        let watch = server.watch().await;
        let ip = if how == "event" { "10.0.0.2" } else { "10.0.0.3" };
        *server.lists.lock().unwrap() = [list(vec![endpoints("a", "web", &[ip])], "9")].into();
        watch
            .send(match how {
                "event" => line("ERROR", json!({"kind": "Status", "code": 410, "reason": "Expired"})),
                _ => "status 410".to_owned(),
            })
            .unwrap();
        assert_eq!(found(&kubernetes).await, [format!("a/web:81 {ip}:81"), format!("a/web:http {ip}:80")]);
    }
    // A failed watch is reported, and the cluster recovers.
    let watch = server.watch().await;
    watch.send("nonsense\n".to_owned()).unwrap();
    let failed = tokio::time::timeout(Duration::from_secs(60), ask(&kubernetes, &[])).await.unwrap();
    assert!(failed.unwrap_err().contains("not an event"));
    let watch = server.watch().await;
    watch.send(line("ADDED", endpoints("c", "new", &["10.0.0.9"]))).unwrap();
    let mut now = found(&kubernetes).await;
    if now.len() == 2 {
        now = found(&kubernetes).await;
    }
    assert_eq!(now.len(), 4, "{now:?}");
}

#[tokio::test]
async fn slices_of_a_service_are_put_together() {
    let slice = |name: &str, endpoints: Value| {
        json!({
            "metadata": {"namespace": "a", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
            "endpoints": endpoints, "ports": [{"name": "", "port": 80}],
        })
    };
    let ready = |ip: &str, ready: Value| json!({"addresses": [ip], "conditions": {"ready": ready}});
    let mut server = Server::start(vec![list(
        vec![
            slice("web-1", json!([ready("10.0.0.1", json!(true)), ready("10.0.0.2", json!(false))])),
            slice(
                "web-2",
                json!([ready("10.0.0.3", json!(null)), ready("10.0.0.1", json!(true)), {"addresses": null}]),
            ),
            slice("none", json!(null)),
            json!({"metadata": {"namespace": "a", "name": "without-service"}}),
        ],
        "1",
    )])
    .await;
    let mut config = server.config();
    config["watch_endpoint_slices"] = json!(true);
    config["label_selector"] = json!("app=web,tier!=db");
    config["namespace_selector"] = json!({"not_equal": "kube-system"});
    config["default_weight"] = json!(3);
    let kubernetes = kubernetes(&config).unwrap();
    assert_eq!(found(&kubernetes).await, ["a/web:80 10.0.0.1:80,10.0.0.3:80"]);
    let watch = server.watch().await;
    let heads = server.heads();
    for head in &heads {
        assert!(head.starts_with("GET /apis/discovery.k8s.io/v1/endpointslices?"), "{head}");
        assert!(head.contains("&labelSelector=app%3Dweb%2Ctier%21%3Ddb&fieldSelector=metadata%2Enamespace%21%3Dkube%2Dsystem"), "{head}");
    }
    watch.send(line("DELETED", slice("web-2", json!([])))).unwrap();
    assert_eq!(found(&kubernetes).await, ["a/web:80 10.0.0.1:80"]);
}

#[tokio::test]
async fn several_clusters_have_ids_and_one_that_is_gone_leaves_the_others() {
    let one = Server::start(vec![list(vec![endpoints("a", "web", &["10.0.0.1"])], "1")]).await;
    let two = Server::start(vec![list(
        vec![endpoints("a", "web", &["10.0.0.2"]), endpoints("b", "web", &["10.0.0.3"])],
        "1",
    )])
    .await;
    let with = |server: &Server, id: &str, selector: Value| {
        let mut config = server.config();
        config["id"] = json!(id);
        config["namespace_selector"] = selector;
        config
    };
    let gone = json!({"id": "gone", "service": {"schema": "http", "host": "${HOST}", "port": "9"}, "client": {"token": "t"}});
    let config =
        json!([with(&one, "one", json!({})), with(&two, "two", json!({"match": ["[x-z]", "a+"]})), gone]);
    let kubernetes = kubernetes(&config).unwrap();
    assert_eq!(
        found(&kubernetes).await,
        [
            "one/a/web:81 10.0.0.1:81",
            "one/a/web:http 10.0.0.1:80",
            "two/a/web:81 10.0.0.2:81",
            "two/a/web:http 10.0.0.2:80"
        ]
    );
    let dump = kubernetes.dump(&BTreeMap::new());
    assert_eq!(
        (&dump["endpoints"][1]["id"], dump["endpoints"][2]["last_error"].is_string()),
        (&json!("two"), true)
    );
}

#[tokio::test]
async fn objects_that_come_one_by_one_are_bounded_together() {
    let first = || list(vec![endpoints("a", "web", &["10.0.0.1"])], "1");
    let mut server = Server::start(vec![first()]).await;
    let mut kubernetes = kubernetes(&server.config()).unwrap();
    Arc::get_mut(&mut kubernetes.clusters[0]).unwrap().most = 64 << 10;
    let kubernetes = kubernetes;
    found(&kubernetes).await;
    let watch = server.watch().await;
    let count = || kubernetes.clusters[0].lock().services.len();
    // The same objects again and again take nothing more, nor do those that went.
    for n in 0..2000 {
        let name = format!("n{}", n % 10);
        let change = if n % 3 == 2 { "DELETED" } else { "ADDED" };
        watch.send(line(change, endpoints("a", &name, &["10.0.0.1", "10.0.0.2"]))).unwrap();
    }
    for n in 0..1000 {
        watch.send(line("ADDED", endpoints("a", &format!("m{n}"), &["10.0.0.1"]))).unwrap();
    }
    // Everything is listed again after an event that did not fit, and the last nodes stay.
    let asking = async {
        loop {
            if let Err(error) = ask(&kubernetes, &[]).await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(60), asking).await.unwrap();
    assert!(error.contains("its endpoints take more than"), "{error}");
    assert!(kubernetes.clusters[0].lock().kept <= 64 << 10 && count() > 100, "{}", count());
    let _watch = server.watch().await;
    assert_eq!((count(), kubernetes.clusters[0].lock().error.clone()), (1, None));
    // A list is bounded likewise.
    let many = (0..1000).map(|n| endpoints("a", &format!("m{n}"), &["10.0.0.1"])).collect();
    let mut state = State::default();
    let full = parse::<objects::Page>(list(many, "1").1.to_string().as_bytes()).unwrap().items.into_iter();
    assert!(full.map(|object| kubernetes.clusters[0].put(&mut state, object)).any(|put| put.is_err()));
}

#[tokio::test]
async fn a_list_that_never_ends_is_given_up() {
    let mut page = list(vec![], "1");
    page.1["metadata"]["continue"] = json!("more");
    let server = Server::start(vec![page]).await;
    let kubernetes = kubernetes(&server.config()).unwrap();
    let why = ask(&kubernetes, &[]).await.unwrap_err();
    assert!(why.contains("the list holds more than 10000000 values"), "{why}");
    assert!(server.heads().len() >= 1000);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let with = |change: fn(&mut Value)| {
        let mut config = json!({"service": {"schema": "https", "host": "k8s.test", "port": "6443"}, "client": {"token": "t"}});
        change(&mut config);
        kubernetes(&config).err().unwrap_or_default()
    };
    assert_eq!(with(|_| {}), "");
    assert_eq!(with(|c| c["service"]["host"] = json!("${NONE}")), "not found environment variable NONE");
    assert!(with(|c| c["service"]["port"] = json!("port")).contains("invalid port value"));
    assert!(with(|c| c["service"]["schema"] = json!("ftp")).contains("service.schema"));
    assert!(with(|c| c["client"]["token"] = json!("")).contains("apiserver.token"));
    assert!(with(|c| c["namespace_selector"] = json!({"match": ["("]})).contains("namespace_selector"));
    assert!(with(|c| c["service"]["ssl_trusted_certificate"] = json!("/nowhere")).contains("/nowhere"));
    assert!(with(|c| *c = json!([c.clone()])).contains("expected an `id`"));
    assert!(with(|c| *c = json!([])).contains("expected a cluster"));
    let twice = json!([{"id": "a", "service": {"host": "h", "port": 1}, "client": {"token": "t"}}, {"id": "a", "service": {"host": "h", "port": 1}, "client": {"token": "t"}}]);
    assert!(kubernetes(&twice).unwrap_err().contains("duplicate id value"));
}
