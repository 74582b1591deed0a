//! Servers that fail, hang or refuse.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sdk::limit::{Hit, Rule};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::engine::Engine;
use super::{LONG, Real, hit, limiter, merge, run, until};

#[test]
fn a_server_that_dies_and_comes_back() {
    run(async {
        let mut redis = Engine::start(&[]);
        let (limiter, world) = (limiter("redis", "1", &redis.settings()), Real::default());
        assert_eq!(hit(&*limiter, &world, LONG).await, Ok(999));
        redis.kill();
        let refused = "the Redis server refused the connection";
        for _ in 0..3 {
            assert_eq!(hit(&*limiter, &world, LONG).await, Err(refused));
        }
        redis.begin();
        // Its scripts and its data are lost; soon a connection is tried again.
        let left = until("a hit", async || hit(&*limiter, &world, LONG).await.ok()).await;
        assert_eq!(left, 999);
    });
}

#[test]
fn a_connection_that_the_server_closed_costs_no_request() {
    run(async {
        let redis = Engine::start(&[]);
        let (limiter, world) = (limiter("redis", "1", &redis.settings()), Real::default());
        for left in [999, 998, 997] {
            assert_eq!(hit(&*limiter, &world, LONG).await, Ok(left));
            redis.cli(&["client", "kill", "type", "normal"]);
        }
    });
}

#[test]
fn a_server_that_hangs_costs_a_request_its_timeout() {
    run(async {
        let redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"redis_timeout": 200}));
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        assert_eq!(hit(&*limiter, &world, LONG).await, Ok(999));
        redis.signal("-STOP");
        let started = Instant::now();
        // They come one by one, so that each deadline meets requests that still wait.
        let (limiter, world) = (&*limiter, &world);
        let one = async |late| {
            tokio::time::sleep(Duration::from_millis(late)).await;
            hit(limiter, world, LONG).await
        };
        let many = futures_util::future::join_all((0..100).map(one)).await;
        assert!(many.iter().all(|got| *got == Err("the Redis server did not answer in time")), "{many:?}");
        // Far less than one after the other.
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        redis.signal("-CONT");
        until("a hit", async || hit(limiter, world, LONG).await.ok()).await;
        until("one connection", async || (redis.stat("connected_clients") == 2).then_some(())).await;
    });
}

#[test]
fn a_sentinel_that_hangs_leaves_time_for_the_next_one() {
    run(async {
        let redis = Engine::start(&[]);
        let listen = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [hanging, sentinel] = [listen().await, listen().await];
        let [first, second] = [&hanging, &sentinel].map(|it| it.local_addr().unwrap().port());
        let master = redis.port;
        tokio::task::spawn_local(async move {
            while let Ok((mut stream, _)) = sentinel.accept().await {
                tokio::task::spawn_local(async move {
                    let mut asked = [0; 4096];
                    while let Ok(bytes @ 1..) = stream.read(&mut asked).await {
                        let commands = asked[..bytes].windows(8).filter(|part| part == b"SENTINEL").count();
                        let reply = format!("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n{master}\r\n").repeat(commands);
                        let _ = stream.write_all(reply.as_bytes()).await;
                    }
                });
            }
        });
        let settings = json!({
            "redis_sentinels": [{"host": "127.0.0.1", "port": first}, {"host": "127.0.0.1", "port": second}],
            "redis_master_name": "m", "redis_connect_timeout": 400, "redis_read_timeout": 400,
        });
        let (limiter, world) = (limiter("redis-sentinel", "1", &settings), Real::default());
        let (limiter, world) = (&*limiter, &world);
        let one = async |late| {
            tokio::time::sleep(Duration::from_millis(late)).await;
            hit(limiter, world, LONG).await
        };
        // The first two give up; the others ask the second sentinel in the time that they have left.
        let many = futures_util::future::join_all((0..15).map(|n| one(n * 20))).await;
        assert!(many[14].is_ok(), "{many:?}");
        assert!(hit(limiter, world, LONG).await.is_ok());
    });
}

#[test]
fn a_request_whose_answer_is_late_does_not_stay_in() {
    run(async {
        let redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"redis_timeout": 200}));
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        let rule = Rule::Concurrent { most: 2, ttl_s: 600 };
        let enter = || limiter.take(&world, Hit { key: b"k", cost: 1, rule });
        let first = enter().await.unwrap();
        redis.signal("-STOP");
        assert!(enter().await.is_err());
        redis.signal("-CONT");
        let within =
            || redis.cli(&["eval", "return redis.call('zcard', redis.call('keys', 'limit_conn*')[1])", "0"]);
        until("only one within", async || (within().trim() == "1").then_some(())).await;
        let second = until("a hit", async || enter().await.ok()).await;
        assert!(second.allowed && second.remaining == 0, "{second:?}");
        drop((first, second));
        until("none within", async || redis.cli(&["keys", "limit_conn*"]).trim().is_empty().then_some(()))
            .await;
    });
}

#[test]
fn requests_that_end_while_there_is_no_server_leave_with_the_next_connection() {
    run(async {
        let mut redis = Engine::start(&["--appendonly", "yes", "--appendfsync", "always"]);
        let (limiter, world) = (limiter("redis", "1", &redis.settings()), Real::default());
        let rule = Rule::Concurrent { most: 100, ttl_s: 600 };
        let enter = || limiter.take(&world, Hit { key: b"k", cost: 1, rule });
        let mut within = Vec::new();
        for _ in 0..50 {
            within.push(enter().await.unwrap());
        }
        redis.kill();
        until("no server", async || enter().await.is_err().then_some(())).await;
        drop(within);
        // Attempts fail, and leave more commands than may wait.
        for _ in 0..5_000 {
            assert!(enter().await.is_err());
        }
        redis.begin();
        let only = until("a hit", async || enter().await.ok()).await;
        until("the others left", async || {
            let count =
                redis.cli(&["eval", "return redis.call('zcard', redis.call('keys', 'limit_conn*')[1])", "0"]);
            (count.trim() == "1").then_some(())
        })
        .await;
        drop(only);
    });
}

#[test]
fn users_passwords_databases_and_memory_are_the_servers_to_refuse() {
    run(async {
        let redis = Engine::start(&["--requirepass", "secret", "--maxmemory", "100mb"]);
        let rejected = "the Redis server rejected the user, the password or the database";
        let wanted = "the Redis server wants another user or password";
        let own = merge(redis.settings(), json!({"redis_password": "secret"}));
        let acl = ["acl", "setuser", "u", "on", ">p", "~*", "+@all"];
        redis.cli(&[&["-a", "secret"][..], &acl].concat());
        for (more, expected) in [
            (json!({"redis_password": "secret"}), Ok(999)),
            (json!({"redis_username": "u", "redis_password": "p"}), Ok(998)),
            (json!({"redis_password": "wrong"}), Err(rejected)),
            (json!({"redis_username": "x", "redis_password": "p"}), Err(rejected)),
            (json!({"redis_password": "secret", "redis_database": 99}), Err(rejected)),
            (json!({}), Err(wanted)),
        ] {
            let limiter = limiter("redis", "1", &merge(redis.settings(), more.clone()));
            assert_eq!(hit(&*limiter, &Real::default(), LONG).await, expected, "{more}");
        }
        redis.cli(&["-a", "secret", "config", "set", "maxmemory", "1"]);
        let full = hit(&*limiter("redis", "2", &own), &Real::default(), LONG).await;
        assert_eq!(full, Err("the Redis server is out of memory"));
    });
}

#[test]
fn delayed_windows_count_on_this_node_while_there_is_no_server() {
    run(async {
        let mut redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"sync_interval": 0.1}));
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        redis.kill();
        let rule = Rule::Fixed { limit: 2, window_ms: 600_000 };
        for expected in [Ok(1), Ok(0), Err("rejected")] {
            assert_eq!(hit(&*limiter, &world, rule).await, expected);
        }
    });
}

/// A server that sends these bytes in pieces, again and again, after anything it reads.
async fn answering(bytes: Vec<u8>, piece: usize) -> serde_json::Value {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
                for piece in bytes.chunks(piece) {
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    json!({"redis_host": "127.0.0.1", "redis_port": port})
}

#[test]
fn answers_come_in_pieces_and_need_not_be_answers() {
    run(async {
        let (broken, unexpected) =
            ("the connection to the Redis server broke", "the Redis server gave an unexpected answer");
        let endless = [&b"$2000000000\r\n"[..], &[b'x'; 4 << 20]].concat();
        let many = [&b"*100000000\r\n"[..], &b":1\r\n".repeat(1 << 20)].concat();
        for (bytes, piece, expected) in [
            (b"*2\r\n$1\r\n1\r\n:60000\r\n".to_vec(), 1, Ok(999)),
            (b"*2\r\n:1\r\n:60000\r\n".to_vec(), 5, Ok(999)),
            (b"-ERR no\r\n".to_vec(), 3, Err("the Redis server answered with an error")),
            (b"-LOADING Redis is loading\r\n".to_vec(), 99, Err("the Redis server is loading its data")),
            (b":1\r\n".to_vec(), 9, Err(unexpected)),
            (b"*2\r\n$1\r\nx\r\n:1\r\n".to_vec(), 9, Err(unexpected)),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), 99, Err(broken)),
            (b"$-5\r\n".to_vec(), 9, Err(unexpected)),
            (b"*1\r\n".repeat(1_000), 4096, Err(broken)),
            (endless, 1 << 16, Err(broken)),
            (many, 1 << 16, Err(broken)),
        ] {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(30)]).into_owned();
            let limiter = limiter("redis", "1", &answering(bytes, piece).await);
            assert_eq!(hit(&*limiter, &Real::default(), LONG).await, expected, "{text}");
        }
    });
}

/// A server that treats its connections so; its settings, and how many it accepted.
async fn accepting<F: Future<Output = ()> + 'static>(
    serve: impl Fn(TcpStream, u16) -> F + 'static,
) -> (serde_json::Value, Rc<Cell<usize>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Rc::<Cell<usize>>::default();
    let count = accepted.clone();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.set(count.get() + 1);
            tokio::task::spawn_local(serve(stream, port));
        }
    });
    (json!({"redis_host": "127.0.0.1", "redis_port": port, "redis_timeout": 200}), accepted)
}

#[test]
fn an_answer_that_trickles_in_costs_the_timeout() {
    run(async {
        let (settings, accepted) = accepting(|mut stream, _| async move {
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
                for byte in b"*2\r\n$1\r\n1\r\n:60000\r\n" {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        for _ in 0..3 {
            assert_eq!(hit(&*limiter, &world, LONG).await, Err("the Redis server did not answer in time"));
        }
        // The next command has a connection of its own: the rest of an answer is not taken for the next one.
        assert_eq!(accepted.get(), 3);
    });
}

#[test]
fn a_server_that_reads_nothing_holds_bounded_commands_and_connections() {
    run(async {
        let (settings, accepted) = accepting(|stream, _| async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(stream);
        })
        .await;
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        let started = Instant::now();
        let many = futures_util::future::join_all((0..6_000).map(|_| hit(&*limiter, &world, LONG))).await;
        let count = |reason| many.iter().filter(|got| **got == Err(reason)).count();
        // The first one whose time is over closes the connection; others are sent once more with what is left of theirs.
        let late = count("the Redis server did not answer in time");
        let broken = count("the connection to the Redis server broke");
        assert_eq!(count("too many requests wait for the Redis server"), 6_000 - 4_096);
        assert!(late > 0 && late + broken == 4_096, "{late} {broken}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert!(accepted.get() <= 3, "{}", accepted.get());
    });
}

#[test]
fn a_server_that_closes_each_connection_is_tried_twice() {
    run(async {
        let (settings, accepted) = accepting(|stream, _| async move { drop(stream) }).await;
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        assert_eq!(hit(&*limiter, &world, LONG).await, Err("the connection to the Redis server broke"));
        assert_eq!(accepted.get(), 2);
    });
}

#[test]
fn redirections_without_an_end_are_bounded() {
    run(async {
        let (settings, accepted) = accepting(|mut stream, port| async move {
            let mut read = [0; 4096];
            while let Ok(bytes @ 1..) = stream.read(&mut read).await {
                let asks = read[..bytes].windows(5).any(|window| window == b"SLOTS");
                let answer = match asks {
                    true => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n"),
                    false => format!("-MOVED 1 127.0.0.1:{port}\r\n"),
                };
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        })
        .await;
        let node = format!("127.0.0.1:{}", settings["redis_port"]);
        let settings = json!({"redis_cluster_nodes": [node], "redis_cluster_name": "c"});
        let (limiter, world) = (limiter("redis-cluster", "1", &settings), Real::default());
        let none = "no node of the Redis cluster has the key's slot";
        for _ in 0..3 {
            assert_eq!(hit(&*limiter, &world, LONG).await, Err(none));
        }
        assert_eq!(accepted.get(), 1);
    });
}

#[test]
fn an_unused_connection_is_given_back() {
    run(async {
        let redis = Engine::start(&[]);
        let settings = merge(redis.settings(), json!({"redis_keepalive_timeout": 1000}));
        let (limiter, world) = (limiter("redis", "1", &settings), Real::default());
        let enter = Hit { key: b"k", cost: 1, rule: Rule::Concurrent { most: 9, ttl_s: 60 } };
        let within = limiter.take(&world, enter).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(world.kept.get(), 0, "a request is counted out over it");
        drop(within);
        until("a connection that is given back", async || (world.kept.get() == 1).then_some(())).await;
        assert_eq!(redis.cli(&["keys", "limit_conn*"]).trim(), "");
    });
}
