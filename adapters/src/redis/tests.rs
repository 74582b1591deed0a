//! Over real Redis servers: the suite of all limiters, and every way in which servers fail.

mod engine;
mod failures;
mod world;

use std::time::Duration;

use engine::{Engine, cluster, sentinels};
use sdk::build::{Build, Extensions, Owner};
use sdk::limit::{Hit, Kind, Limit, Limiter, Limits, Rule, Unavailable, Wanted, suite};
use sdk::storage::Storages;
use sdk::testing::{FixedNames, Probe};
use serde_json::{Map, Value, json};
use tokio::task::LocalSet;
use world::Real;

/// A limiter of a plugin instance on the route `id`, as another gateway or another plugin instance has it.
fn limiter(policy: &str, id: &str, settings: &Value) -> std::sync::Arc<dyn Limiter> {
    let mut probe = Probe::default();
    probe.services.extensions =
        Extensions::default().with(std::sync::Arc::new(super::policies(Limits::default())));
    let owner = Owner { collection: "routes", id: id.to_owned() };
    let names = FixedNames::default();
    let settings: Map<String, Value> = settings.as_object().unwrap().clone();
    let wanted = Wanted {
        plugin: "limit-count",
        kind: Kind::Windows,
        rules: &Value::Null,
        group: None,
        policy,
        settings: &settings,
    };
    match Build::new(&owner, &probe.services, &names).limit(&wanted) {
        Ok(Limit::Shared(limiter)) => limiter,
        Ok(Limit::Local(_)) => panic!("a local limit"),
        Err(invalid) => panic!("{invalid}"),
    }
}

/// Runs a test on a runtime like a worker's.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(test));
}

const LONG: Rule = Rule::Fixed { limit: 1_000, window_ms: 600_000 };

/// One hit; what is left of the limit, or why it could not be counted.
async fn hit(limiter: &dyn Limiter, world: &Real, rule: Rule) -> Result<u64, &'static str> {
    match limiter.take(world, Hit { key: b"k", cost: 1, rule }).await {
        Ok(decision) if decision.allowed => Ok(decision.remaining),
        Ok(_) => Err("rejected"),
        Err(Unavailable(reason)) => Err(reason),
    }
}

async fn behaves_as_all_do(policy: &str, settings: &Value) {
    let (limiter, world) = (limiter(policy, "1", settings), Real::default());
    let pass = |ms| world.pass(ms);
    suite::run(&*limiter, &world, &pass).await.unwrap();
}

#[test]
fn one_server_behaves_as_all_limiters_do() {
    run(async {
        let redis = Engine::start(&[]);
        behaves_as_all_do("redis", &redis.settings()).await;
        let with_database = merge(redis.settings(), json!({"redis_database": 3}));
        behaves_as_all_do("redis", &with_database).await;
    });
}

#[test]
fn a_cluster_behaves_as_all_limiters_do() {
    run(async {
        let nodes = cluster(3, 3);
        behaves_as_all_do("redis-cluster", &nodes.settings()).await;
        nodes.moves_and_fails_over().await;
    });
}

#[test]
fn the_master_of_sentinels_behaves_as_all_limiters_do() {
    run(async {
        let all = sentinels();
        behaves_as_all_do("redis-sentinel", &all.settings()).await;
        all.fails_over().await;
    });
}

#[test]
fn nodes_share_one_limit_exactly() {
    run(async {
        let redis = Engine::start(&[]);
        let gateways = [0, 1, 2].map(|_| (limiter("redis", "1", &redis.settings()), Real::default()));
        let rule = Rule::Fixed { limit: 100, window_ms: 600_000 };
        let all = (0..150).flat_map(|_| &gateways).map(|(limiter, world)| hit(&**limiter, world, rule));
        let got = futures_util::future::join_all(all).await;
        assert_eq!(got.iter().filter(|got| got.is_ok()).count(), 100);
        assert_eq!(got.iter().filter(|got| **got == Err("rejected")).count(), 350);
        // Another resource has a limit of its own.
        assert_eq!(hit(&*limiter("redis", "2", &redis.settings()), &Real::default(), rule).await, Ok(99));
    });
}

#[test]
fn a_hit_is_one_command_and_all_share_a_connection() {
    run(async {
        let redis = Engine::start(&[]);
        let (limiter, world) = (limiter("redis", "1", &redis.settings()), Real::default());
        for rule in [LONG, Rule::Sliding { limit: 9, window_ms: 60_000 }] {
            assert!(hit(&*limiter, &world, rule).await.is_ok());
            let before = redis.stat("total_commands_processed");
            assert!(hit(&*limiter, &world, rule).await.is_ok());
            // The commands of the script, its call and the INFO before.
            let calls = redis.stat("total_commands_processed") - before;
            assert!(calls <= 6, "{calls}");
        }
        let many = (0..500).map(|_| hit(&*limiter, &world, LONG));
        assert!(futures_util::future::join_all(many).await.iter().all(Result::is_ok));
        // The last connection is redis-cli's.
        assert_eq!(redis.stat("connected_clients"), 2);
        assert_eq!(world.opened.get(), 1);
    });
}

#[test]
fn keys_are_those_of_apisix() {
    run(async {
        let redis = Engine::start(&[]);
        let (limiter, world) = (limiter("redis", "1", &redis.settings()), Real::default());
        world.pass_to(1_700_000_001_000);
        for rule in [
            LONG,
            Rule::Sliding { limit: 9, window_ms: 60_000 },
            Rule::Pace(sdk::counters::Pace::new(1.0, 1.0)),
        ] {
            assert!(hit(&*limiter, &world, rule).await.is_ok(), "{rule:?}");
        }
        let entered =
            limiter.take(&world, Hit { key: b"k", cost: 1, rule: Rule::Concurrent { most: 1, ttl_s: 60 } });
        let entered = entered.await.unwrap();
        let mut keys: Vec<_> = redis.cli(&["keys", "*"]).lines().map(str::to_owned).collect();
        keys.sort();
        // The checksum is that of `null`.
        let scope = "/apisix/routes/1:634125391";
        let expected = [
            format!("limit_conn:{scope}:k"),
            format!("limit_req:{scope}:k"),
            format!("plugin-limit-count:{scope}:k.28333333.counter"),
            format!("plugin-limit-count:v1:{scope}:k"),
        ];
        assert_eq!(keys, expected);
        drop(entered);
    });
}

#[test]
fn delayed_windows_are_brought_together_at_each_interval() {
    run(async {
        let redis = Engine::start(&[]);
        for rule in [LONG, Rule::Sliding { limit: 1_000, window_ms: 600_000 }] {
            let id = format!("{rule:?}");
            let settings = merge(redis.settings(), json!({"sync_interval": 0.1}));
            let (limiter, world) = (limiter("redis", &id, &settings), Real::default());
            world.pass_to(1_700_000_001_000);
            assert_eq!(hit(&*limiter, &world, rule).await, Ok(999));
            let commands = redis.stat("total_commands_processed");
            for left in (900..999).rev() {
                assert_eq!(hit(&*limiter, &world, rule).await, Ok(left));
            }
            // Nothing is sent for a single one; another node sees all of them soon.
            assert!(redis.stat("total_commands_processed") - commands < 50);
            let key = redis.cli(&["keys", "*"]).lines().find(|key| key.contains(&id)).unwrap().to_owned();
            until("all are sent", async || (redis.cli(&["get", &key]).trim() == "100").then_some(())).await;
            let other = super::tests::limiter("redis", &id, &redis.settings());
            assert_eq!(hit(&*other, &world, rule).await, Ok(899));
            // And the other way round, where the window is seen again.
            until("the other node's", async || {
                tokio::time::sleep(Duration::from_millis(150)).await;
                (hit(&*limiter, &world, rule).await.unwrap() < 899).then_some(())
            })
            .await;
        }
    });
}

#[test]
fn delayed_windows_are_one_limit_for_the_workers_of_a_node() {
    run(async {
        let redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"sync_interval": 5}));
        for rule in
            [Rule::Fixed { limit: 7, window_ms: 600_000 }, Rule::Sliding { limit: 7, window_ms: 600_000 }]
        {
            let limiter = limiter("redis", &format!("{rule:?}"), &settings);
            let workers = [Real::default(), Real::default(), Real::default()];
            workers.iter().for_each(|world| world.pass_to(1_700_000_001_000));
            // Within one interval, each worker sees the server's count only once.
            for (worker, expected) in [
                (0, Ok(6)),
                (0, Ok(5)),
                (1, Ok(4)),
                (0, Ok(3)),
                (1, Ok(2)),
                (2, Ok(1)),
                (0, Ok(0)),
                (0, Err("rejected")),
                (1, Err("rejected")),
                (2, Err("rejected")),
            ] {
                assert_eq!(hit(&*limiter, &workers[worker], rule).await, expected, "{rule:?} {worker}");
            }
        }
    });
}

#[test]
fn delayed_windows_exceed_the_limit_by_an_interval_of_each_node_at_most() {
    run(async {
        let redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"sync_interval": 0.2}));
        let nodes = [0, 1].map(|_| (limiter("redis", "1", &settings), [Real::default(), Real::default()]));
        let rule = Rule::Fixed { limit: 50, window_ms: 600_000 };
        let mut allowed = [0, 0];
        for round in 0..600 {
            for (count, (limiter, workers)) in allowed.iter_mut().zip(&nodes) {
                for world in workers {
                    *count += u64::from(hit(&**limiter, world, rule).await.is_ok());
                }
            }
            if round % 20 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        assert!(allowed.iter().all(|count| *count <= 50), "{allowed:?}");
        let total: u64 = allowed.iter().sum();
        assert!((50..=100).contains(&total), "{allowed:?}");
        let key = redis.cli(&["keys", "*"]).trim().to_owned();
        until("all are counted", async || {
            for (limiter, workers) in &nodes {
                for world in workers {
                    assert_eq!(hit(&**limiter, world, rule).await, Err("rejected"));
                }
            }
            (redis.cli(&["get", &key]).trim() == total.to_string()).then_some(())
        })
        .await;
    });
}

#[test]
fn delayed_windows_outlive_the_connection() {
    run(async {
        let redis = Engine::start(&[]);
        let more = json!({"sync_interval": 0.1, "redis_keepalive_timeout": 1000});
        let (limiter, world) = (limiter("redis", "1", &merge(redis.settings(), more)), Real::default());
        assert_eq!(hit(&*limiter, &world, LONG).await, Ok(999));
        until("the connection is given back", async || (redis.stat("connected_clients") == 1).then_some(()))
            .await;
        for left in (989..999).rev() {
            assert_eq!(hit(&*limiter, &world, LONG).await, Ok(left));
        }
        let key = redis.cli(&["keys", "*"]).trim().to_owned();
        until("all are sent", async || {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let total = 1000 - hit(&*limiter, &world, LONG).await.unwrap();
            let sent: u64 = redis.cli(&["get", &key]).trim().parse().unwrap();
            (sent >= 11 && total >= sent).then_some(())
        })
        .await;
    });
}

#[test]
fn values_are_kept_for_their_time() {
    run(async {
        let redis = Engine::start(&["--requirepass", "secret"]);
        let storage = |more: Value| {
            let settings = json!({
                "host": "127.0.0.1", "port": redis.port, "password": "secret", "database": 2, "ssl": false,
                "ssl_verify": true, "connect_timeout": 1000, "send_timeout": 1000, "read_timeout": 1000,
                "keepalive_timeout": 10_000,
            });
            let settings = merge(settings, more).as_object().unwrap().clone();
            let mut probe = Probe::default();
            probe.services.extensions =
                Extensions::default().with(std::sync::Arc::new(super::storages(Storages::default())));
            let owner = Owner { collection: "routes", id: "1".to_owned() };
            Build::new(&owner, &probe.services, &FixedNames::default()).storage("redis", &settings)
        };
        let (opened, world) = (storage(json!({})).unwrap(), Real::default());
        let get = async |key: &[u8]| opened.get(&world, key).await;
        let value = [0_u8, 10, 13, 255].repeat(50_000);
        assert_eq!(get(b"a").await, Ok(None));
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        assert_eq!(opened.replace(&world, b"a", &value, hour).await, Ok(false));
        assert_eq!(get(b"a").await, Ok(None), "nothing to replace");
        opened.set(&world, b"a", &value, hour).await.unwrap();
        assert_eq!(get(b"a").await, Ok(Some(value)));
        assert_eq!(opened.replace(&world, b"a", b"b", minute).await, Ok(true));
        let cli = |arguments: &[&str]| {
            redis
                .cli(&[&["-a", "secret", "--no-auth-warning", "-n", "2"][..], arguments].concat())
                .trim()
                .to_owned()
        };
        assert_eq!(cli(&["get", "a"]), "b");
        assert!((1..=60).contains(&cli(&["ttl", "a"]).parse().unwrap()));
        opened.remove(&world, b"a").await.unwrap();
        assert_eq!((get(b"a").await, opened.remove(&world, b"a").await), (Ok(None), Ok(())));
        cli(&["rpush", "list", "1"]);
        assert_eq!(get(b"list").await, Err("the Redis server answered with an error"));
        let stranger = storage(json!({"password": "wrong"})).unwrap();
        let refused = "the Redis server rejected the user, the password or the database";
        assert_eq!(stranger.get(&world, b"a").await, Err(refused));
        assert_eq!(storage(json!({"port": 70_000})).err().unwrap().pointer, "/port");
    });
}

fn merge(mut settings: Value, more: Value) -> Value {
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

/// Tries until it holds; a loaded machine may take its time.
async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = probe().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within 30 seconds");
}
