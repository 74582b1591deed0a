use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn a_dump_holds_no_secrets() {
    let config = json!({
        "servers": ["http://jack:s3c/r@t@10.0.0.1:8500/a", "https://10.0.0.2"],
        "token": "s3cret-token",
        "service": [{"client": {"token": "s3cret-too", "host": "h"}}],
        "db_conf": {"user": "a@b", "password": "s3cret"},
        "weight": 1,
    });
    let services = BTreeMap::from([("http://u:s3cret@h/v1/kv/up/web/".to_owned(), Vec::new())]);
    let expected = json!({
        "servers": ["http://***@10.0.0.1:8500/a", "https://10.0.0.2"],
        "token": "***",
        "service": [{"client": {"token": "***", "host": "h"}}],
        "db_conf": {"user": "a@b", "password": "***"},
        "weight": 1,
    });
    assert_eq!(
        dump(&config, &services),
        json!({"config": expected, "services": {"http://***@h/v1/kv/up/web/": []}})
    );
}

#[derive(Debug, Default)]
struct Script {
    asked: AtomicUsize,
    answers: Mutex<Vec<Result<ServiceNodes, String>>>,
    /// How long each answer takes.
    takes: Duration,
    file: Option<DumpFile>,
}

impl Discovery for Script {
    fn kind(&self) -> &'static str {
        "script"
    }
    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }
    fn ask<'a>(&'a self, _: &'a BTreeSet<Service>) -> Asking<'a> {
        let at = self.asked.fetch_add(1, Ordering::Relaxed);
        let answers = self.answers.lock().unwrap();
        let answer = answers.get(at).or(answers.last()).unwrap().clone();
        Box::pin(async move {
            tokio::time::sleep(self.takes).await;
            assert_ne!(answer, Err("panic".to_owned()));
            answer
        })
    }
    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&Value::Null, services)
    }
    fn file(&self) -> Option<&DumpFile> {
        self.file.as_ref()
    }
}

fn found(services: &[(&str, u16)], complete: bool) -> Result<ServiceNodes, String> {
    let node = |port| Node { host: "127.0.0.1".into(), port, weight: 1, priority: 0, metadata: None };
    let services = services.iter().map(|(name, port)| ((*name).to_owned(), vec![node(*port)])).collect();
    Ok(ServiceNodes { services, complete, failed: None, pause: Duration::from_secs(1) })
}

fn service(name: &str) -> Service {
    Service { service_name: name.to_owned(), kind: "script".to_owned(), namespace_id: None, group_name: None }
}

fn ports(known: &KnownServices, name: &str) -> Vec<u16> {
    known.nodes(&service(name)).iter().map(|node| node.port).collect()
}

#[test]
fn a_service_without_nodes_is_named_once() {
    let mut registry = Registry {
        source: Arc::new(Script::default()),
        services: found(&[("a", 1)], true).unwrap().services,
        answered: BTreeSet::new(),
        missing: BTreeSet::new(),
        settled: false,
        error: None,
    };
    let wanted = BTreeSet::from([service("a"), service("b")]);
    assert_eq!(registry.newly_missing(&wanted), [service("b")]);
    assert!(registry.newly_missing(&wanted).is_empty());
    registry.services = found(&[("b", 1)], true).unwrap().services;
    assert_eq!(registry.newly_missing(&wanted), [service("a")]);
}

#[test]
fn a_service_has_a_name_no_host_can_have() {
    let named = Service { namespace_id: Some("n".into()), ..service("a") };
    assert_eq!(Service::of_key(&named.key()), Some(named));
    assert_eq!(Service::of_key("example.com"), None);
}

#[tokio::test(start_paused = true)]
async fn the_last_nodes_stay_while_a_registry_is_gone() {
    let script = Arc::new(Script::default());
    *script.answers.lock().unwrap() = vec![
        found(&[("a", 1), ("b", 2)], true),
        found(&[("a", 1), ("b", 3)], true),
        Err("gone".to_owned()),
        Err("gone".to_owned()),
        found(&[("b", 3)], true),
    ];
    let mut registries = Registries::new(vec![script.clone()]);
    let known = registries.known();
    registries.want(&[service("a").key(), Service { kind: "other".into(), ..service("x") }.key()].into());
    assert!(!registries.is_settled());
    let (kind, changed) = (registries.changed().await, ports(&known, "a"));
    assert_eq!((kind, changed), (service("a").key(), vec![1]));
    assert!(registries.is_settled());
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(registries.failing(), [("discovery script".to_owned(), "gone".to_owned())]);
    assert_eq!((ports(&known, "a"), ports(&known, "b")), (vec![1], vec![3]));
    assert!(known.dump("script").unwrap()["last_error"] == "gone" && known.dump("other").is_none());
    // It is back, and the service is not there any more.
    assert_eq!(registries.changed().await, service("a").key());
    assert_eq!((ports(&known, "a"), registries.failing()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn another_reason_of_a_failure_is_reported_but_not_all_the_time() {
    let registry = Registry {
        source: Arc::new(Script::default()),
        services: BTreeMap::new(),
        answered: BTreeSet::new(),
        missing: BTreeSet::new(),
        settled: false,
        error: None,
    };
    let known = KnownServices::default();
    known.lock().insert("script", registry);
    let fail = |why: &str| {
        known.failed("script", why.to_owned());
        let all = known.lock();
        let failure = all["script"].error.as_ref().unwrap();
        assert_eq!(failure.why, why, "the last reason is what people are shown");
        failure.logged.clone()
    };
    assert_eq!(fail("refused"), "refused");
    for n in 0..10 {
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(fail(&format!("status {n}")), "refused");
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(fail("status 403"), "status 403");
    tokio::time::advance(LOG_AGAIN).await;
    assert_eq!(fail("status 403"), "status 403");
    known.take("script", ServiceNodes::default(), &BTreeSet::new(), &mpsc::unbounded_channel().0);
    assert_eq!(fail("refused"), "refused");
}

#[tokio::test(start_paused = true)]
async fn services_of_unknown_registries_are_named_once_while_they_are_wanted() {
    let mut registries = Registries::new(vec![Arc::new(Script::default())]);
    let of = |kind: &str, name: &str| Service { kind: kind.into(), ..service(name) };
    let (one, two) = (of("other", "1"), of("another", "2"));
    registries.want(&[one.key()].into());
    assert_eq!(registries.take_unknown(), std::slice::from_ref(&one));
    registries.want(&[one.key(), two.key()].into());
    assert_eq!(registries.take_unknown(), [two]);
    registries.want(&BTreeSet::new());
    registries.want(&[one.key()].into());
    assert_eq!(registries.take_unknown(), [one]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_over_an_answer_is_a_failure_like_any_other() {
    let script = Arc::new(Script::default());
    *script.answers.lock().unwrap() =
        vec![found(&[("a", 1)], true), Err("panic".to_owned()), found(&[("a", 2)], true)];
    let mut registries = Registries::new(vec![script]);
    let known = registries.known();
    registries.want(&[service("a").key()].into());
    registries.changed().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(registries.failing()[0].1.contains("panic"), "{:?}", registries.failing());
    assert_eq!(ports(&known, "a"), [1]);
    registries.changed().await;
    assert_eq!((ports(&known, "a"), registries.failing()), (vec![2], vec![]));
}

#[tokio::test(start_paused = true)]
async fn services_without_an_answer_keep_their_nodes() {
    let script = Arc::new(Script::default());
    *script.answers.lock().unwrap() = vec![found(&[("a", 1), ("b", 2)], false), found(&[("b", 3)], false)];
    let mut registries = Registries::new(vec![script]);
    let known = registries.known();
    registries.want(&[service("a").key(), service("b").key()].into());
    registries.changed().await;
    registries.changed().await;
    assert_eq!(registries.changed().await, service("b").key());
    assert_eq!((ports(&known, "a"), ports(&known, "b")), (vec![1], vec![3]));
}

#[tokio::test(start_paused = true)]
async fn why_a_part_is_missing_is_reported_until_all_is_there() {
    let script = Arc::new(Script::default());
    let part =
        |why: &str| Ok(ServiceNodes { failed: Some(why.to_owned()), ..found(&[("a", 1)], true).unwrap() });
    *script.answers.lock().unwrap() =
        vec![part("one is gone"), Err("all are gone".to_owned()), part("x"), found(&[("a", 2)], true)];
    let mut registries = Registries::new(vec![script]);
    let known = registries.known();
    registries.want(&[service("a").key()].into());
    registries.changed().await;
    assert_eq!((registries.failing()[0].1.as_str(), ports(&known, "a")), ("one is gone", vec![1]));
    assert_eq!(known.dump("script").unwrap()["last_error"], "one is gone");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!((registries.failing()[0].1.as_str(), ports(&known, "a")), ("all are gone", vec![1]));
    registries.changed().await;
    assert_eq!((registries.failing(), ports(&known, "a")), (vec![], vec![2]));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_wanted_later_gets_known_nodes() {
    let script = Arc::new(Script { takes: GRACE / 2, ..Script::default() });
    *script.answers.lock().unwrap() = vec![found(&[("a", 1), ("b", 2)], true)];
    let mut registries = Registries::new(vec![script]);
    registries.want(&[service("a").key()].into());
    tokio::time::sleep(GRACE / 4).await;
    // The answer that is under way holds it already, and no later one is different.
    registries.want(&[service("a").key(), service("b").key()].into());
    let changed = [registries.changed().await, registries.changed().await];
    assert_eq!(changed, [service("a").key(), service("b").key()]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_heard_while_the_configuration_changes_all_the_time() {
    let script = Arc::new(Script { takes: GRACE / 2, ..Script::default() });
    *script.answers.lock().unwrap() = vec![found(&[("a", 1)], true)];
    let mut registries = Registries::new(vec![script]);
    for other in 0..20 {
        registries.want(&[service("a").key(), service(&other.to_string()).key()].into());
        tokio::time::sleep(GRACE / 5).await;
    }
    assert_eq!(ports(&registries.known(), "a"), [1]);
}

#[tokio::test]
async fn a_registry_that_is_gone_at_the_start_is_known_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = DumpFile { path: folder.path().join("dump"), load_on_init: true, expire: 0 };
    let start = |file: &DumpFile, answer, wanted: &[&str]| {
        let script = Script { file: Some(file.clone()), ..Script::default() };
        script.answers.lock().unwrap().push(answer);
        let mut registries = Registries::new(vec![Arc::new(script)]);
        registries.want(&wanted.iter().map(|name| service(name).key()).collect());
        registries
    };
    let failed = async |registries: &Registries| {
        while registries.failing().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ports(&registries.known(), "a")
    };
    let registries = start(&file, found(&[("a", 1)], true), &["a"]);
    while !file.path.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let known = registries.known();
    assert_eq!((known.file("script"), known.file("other")), (Some(Some(file.clone())), None));

    let mut registries = start(&file, Err("gone".to_owned()), &["a", "b"]);
    assert_eq!(registries.changed().await, service("a").key());
    assert_eq!(failed(&registries).await, [1]);

    let unread = DumpFile { load_on_init: false, ..file };
    assert_eq!(failed(&start(&unread, Err("gone".to_owned()), &["a"])).await, [0; 0]);
}
