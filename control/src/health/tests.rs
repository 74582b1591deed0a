use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::{Value, json};
use snapshot::health::{Health, Status};
use snapshot::{Endpoint, PassHost};

use super::*;

/// The checks of an upstream with these servers.
pub(super) fn checked(checks: Value, nodes: &[&str]) -> Arc<Health> {
    let value = json!({"nodes": {}, "checks": checks});
    let checks = model::Upstream::parse(&value).unwrap().checks.unwrap();
    let endpoint = |node: &&str| Endpoint {
        addr: node.parse().unwrap(),
        authority: (*node).into(),
        weight: 1,
        priority: 0,
    };
    let endpoints: Vec<Endpoint> = nodes.iter().map(endpoint).collect();
    Arc::new(Health::new(Some(&checks), None, &endpoints, &PassHost::Pass).unwrap())
}

/// The same, going on from an earlier version.
fn after(before: &Health, checks: Value, nodes: &[&str]) -> Arc<Health> {
    let mut health = checked(checks, nodes);
    Arc::get_mut(&mut health).unwrap().carry(before);
    health
}

fn watched(id: &str, health: &Arc<Health>) -> Watched {
    Watched { key: Key::new(model::Kind::Upstream, id), health: Some(health.clone()), load: None }
}

/// Servers that are asked and answer from a table, each after so long.
#[derive(Debug, Default)]
struct Servers {
    answers: Mutex<HashMap<SocketAddr, Probed>>,
    /// When each was asked.
    asked: Mutex<Vec<(Duration, SocketAddr)>>,
    under_way: Arc<Mutex<(usize, usize)>>,
    takes: Duration,
    began: Mutex<Option<Instant>>,
}

impl Ask for Servers {
    fn ask(&self, _: &Active, target: &Target, _: Option<&ClientTls>) -> Probing {
        let began = *self.began.lock().unwrap().get_or_insert_with(Instant::now);
        self.asked.lock().unwrap().push((began.elapsed(), target.addr));
        let probed = self.answers.lock().unwrap().get(&target.addr).copied().unwrap_or(Probed::Connected);
        let (takes, under_way) = (self.takes, self.under_way.clone());
        Box::pin(async move {
            {
                let mut under_way = under_way.lock().unwrap();
                under_way.0 += 1;
                under_way.1 = under_way.1.max(under_way.0);
            }
            tokio::time::sleep(takes).await;
            under_way.lock().unwrap().0 -= 1;
            Outcome { probed: Some(probed), words: format!("{probed:?}") }
        })
    }
}

impl Servers {
    fn set(&self, addr: &str, probed: Probed) {
        self.answers.lock().unwrap().insert(addr.parse().unwrap(), probed);
    }

    fn times(&self, addr: &str) -> usize {
        let addr = addr.parse().unwrap();
        self.asked.lock().unwrap().iter().filter(|(_, asked)| *asked == addr).count()
    }
}

struct Bench {
    servers: Arc<Servers>,
    wanted: watch::Sender<Arc<[Watched]>>,
    monitor: Monitor,
}

fn start(takes: Duration, watched: Vec<Watched>) -> Bench {
    let servers = Arc::new(Servers { takes, ..Servers::default() });
    let (wanted, changes) = watch::channel(watched.into());
    let (prober, monitor) = Prober::of(servers.clone(), changes);
    tokio::spawn(prober.run());
    Bench { servers, wanted, monitor }
}

impl Bench {
    fn statuses(&self) -> Vec<(String, &'static str)> {
        let report = self.monitor.report();
        let nodes = report.iter().flat_map(|checker| &checker.nodes);
        nodes.map(|node| (node.addr.to_string(), node.status)).collect()
    }
}

const A: &str = "127.0.0.1:1";
const B: &str = "127.0.0.1:2";

async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn checks() -> Value {
    json!({"active": {
        "type": "tcp",
        "healthy": {"interval": 10, "successes": 2},
        "unhealthy": {"interval": 2, "tcp_failures": 2},
    }})
}

#[tokio::test(start_paused = true)]
async fn probing_begins_at_once_and_follows_the_verdict() {
    let health = checked(checks(), &[A, B]);
    let bench = start(Duration::from_millis(1), vec![watched("1", &health)]);
    bench.servers.set(B, Probed::Failed);
    pass(100).await;
    assert_eq!((bench.servers.times(A), bench.servers.times(B)), (1, 1), "without any request");
    assert_eq!(bench.statuses(), [(A.to_owned(), "healthy"), (B.to_owned(), "mostly_healthy")]);
    pass(11_000).await;
    assert_eq!(bench.statuses()[1].1, "unhealthy");
    // From now on it is asked every two seconds.
    let before = bench.servers.times(B);
    pass(10_000).await;
    assert!((4..=6).contains(&(bench.servers.times(B) - before)), "{}", bench.servers.times(B) - before);
    assert_eq!(bench.servers.times(A), 3);
    bench.servers.set(B, Probed::Connected);
    pass(5_000).await;
    assert_eq!(bench.statuses()[1].1, "healthy");
    let report = bench.monitor.report_of(&Key::new(model::Kind::Upstream, "1")).unwrap();
    assert_eq!(report.nodes[1].last_error.as_ref().unwrap().outcome, "Failed");
    assert_eq!(report.nodes[1].probes.len(), bench.servers.times(B).min(REMEMBERED));
    assert!(report.nodes[0].last_error.is_none());
    pass(300_000).await;
    assert_eq!(bench.monitor.report()[0].nodes[1].probes.len(), REMEMBERED, "it is bounded");
}

#[tokio::test(start_paused = true)]
async fn an_interval_beyond_all_measure_ends_no_other_checks() {
    let endless = json!({"active": {"type": "tcp", "healthy": {"interval": u64::MAX}}});
    let (odd, health) = (checked(endless, &["127.0.0.1:9"]), checked(checks(), &[A, B]));
    let bench = start(Duration::from_millis(1), vec![watched("odd", &odd), watched("1", &health)]);
    pass(11_000).await;
    assert!(bench.servers.times(A) > 1);
    pass(86_400_000 * 2).await;
    assert!(bench.servers.times("127.0.0.1:9") > 1, "once a day");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_survives_other_nodes() {
    let health = checked(checks(), &[A, B]);
    let bench = start(Duration::from_millis(1), vec![watched("1", &health)]);
    bench.servers.set(B, Probed::Failed);
    pass(15_000).await;
    assert_eq!(bench.statuses()[1].1, "unhealthy");
    let third = "127.0.0.1:3";
    let newer = after(&health, checks(), &[B, third]);
    let (asked, of_third) = (bench.servers.times(B), bench.servers.times(third));
    bench.wanted.send_replace(vec![watched("1", &newer)].into());
    pass(100).await;
    assert_eq!(bench.statuses(), [(B.to_owned(), "unhealthy"), (third.to_owned(), "healthy")]);
    assert_eq!((bench.servers.times(third), of_third), (1, 0), "the new one is asked at once");
    assert!(bench.servers.times(B) - asked <= 1, "the old one keeps its rhythm");
    let (a, probes) = (bench.servers.times(A), bench.monitor.report()[0].nodes[0].probes.len());
    assert!(probes > 1, "and its log");
    pass(30_000).await;
    assert_eq!(bench.servers.times(A), a, "what is gone is not asked any more");
    // Other checks for the same servers begin at once, from what is known.
    let newest =
        after(&newer, json!({"active": {"type": "tcp", "unhealthy": {"interval": 900}}}), &[B, third]);
    let asked = bench.servers.times(B);
    bench.wanted.send_replace(vec![watched("1", &newest)].into());
    pass(100).await;
    assert_eq!((bench.servers.times(B) - asked, bench.statuses()[0].1), (1, "unhealthy"));
    bench.wanted.send_replace(Arc::new([]));
    pass(100).await;
    assert_eq!(bench.statuses(), []);
}

#[tokio::test(start_paused = true)]
async fn so_many_probes_at_a_time() {
    let nodes: Vec<String> = (1..=40).map(|port| format!("127.0.0.1:{port}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let active = json!({"active": {"type": "tcp", "concurrency": 3, "healthy": {"interval": 1000}}});
    let health = checked(active.clone(), &nodes);
    let bench = start(Duration::from_millis(100), vec![watched("1", &health)]);
    pass(30_000).await;
    assert_eq!(bench.servers.under_way.lock().unwrap().1, 3);
    assert!(nodes.iter().all(|node| bench.servers.times(node) == 1), "each has had its turn");
    // Many upstreams share a bound.
    let many: Vec<Watched> =
        (0..200).map(|id| watched(&format!("m{id}"), &checked(active.clone(), &nodes))).collect();
    bench.wanted.send_replace(many.into());
    pass(60_000).await;
    assert_eq!(bench.servers.under_way.lock().unwrap().1, MOST_PROBES);
    assert!(bench.servers.asked.lock().unwrap().len() > 200 * nodes.len());
}

#[tokio::test(start_paused = true)]
async fn our_own_shortage_is_no_verdict() {
    #[derive(Debug)]
    struct Short;
    impl Ask for Short {
        fn ask(&self, _: &Active, _: &Target, _: Option<&ClientTls>) -> Probing {
            Box::pin(async { Outcome { probed: None, words: "not probed".to_owned() } })
        }
    }
    let health = checked(checks(), &[A]);
    let (_wanted, changes) = watch::channel(vec![watched("1", &health)].into());
    let (prober, monitor) = Prober::of(Arc::new(Short), changes);
    tokio::spawn(prober.run());
    pass(60_000).await;
    let node = &monitor.report()[0].nodes[0];
    assert_eq!((node.status, node.probes.len() > 3), ("healthy", true));
    assert_eq!(health.targets().next().unwrap().status(), Status::Healthy);
}
