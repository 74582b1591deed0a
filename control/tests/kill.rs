//! `kill -9` at random moments loses no acknowledged write.
//!
//! The test runs itself as a child that writes and prints each acknowledgement;
//! the parent kills it, opens the store and compares. The child also has several
//! writes under way at once, so commits are shared.

// Test code, which clippy cannot see outside of test functions.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use control::store::{Embedded, Expect, Store};
use model::{Key, Kind};
use serde_json::json;

const FOLDER: &str = "SLUICE_TEST_KILL_FOLDER";
const ROUNDS: u64 = 25;
/// Acknowledgements before most of the kills.
const FEWEST: u64 = 10;
const WRITERS: u64 = 4;
/// Keys of each writer: few, so that most writes replace.
const KEYS: u64 = 7;

#[test]
fn no_acknowledged_write_is_lost() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_forever(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut random = RandomState::new().hash_one(0);
    // The newest acknowledged number of each key, over all rounds.
    let mut acknowledged = [[0_u64; KEYS as usize]; WRITERS as usize];
    let mut total = 0;
    for round in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["no_acknowledged_write_is_lost", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (acked, acks) = channel();
        let pass = move |line: &String| {
            if line.starts_with("ack ") {
                let _ = acked.send(());
            }
        };
        let reader =
            std::thread::spawn(move || lines.map_while(Result::ok).inspect(pass).collect::<Vec<_>>());
        // A round in five ends by the clock, maybe before the store is open; the others while writes go on.
        let (wanted, most) = if round % 5 == 0 { (0, 160) } else { (FEWEST + (random >> 40) % 30, 20) };
        for _ in 0..wanted {
            acks.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        std::thread::sleep(Duration::from_millis((random >> 33) % most));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in reader.join().unwrap() {
            let mut numbers = line.strip_prefix("ack ").into_iter().flat_map(|line| line.split(' '));
            let mut number = || numbers.next().and_then(|text| text.parse::<u64>().ok());
            // The last line may be cut off in the middle: then it was not acknowledged whole.
            let (Some(writer), Some(key), Some(value), Some(0)) = (number(), number(), number(), number())
            else {
                continue;
            };
            let newest = &mut acknowledged[writer as usize][key as usize];
            *newest = value.max(*newest);
            total += 1;
        }
        let store = Embedded::open(folder.path()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for writer in 0..WRITERS {
            for key in 0..KEYS {
                let wanted = acknowledged[writer as usize][key as usize];
                let stored = runtime.block_on(store.get(&name(writer, key))).unwrap();
                let there = stored.map_or(0, |stored| stored.value["n"].as_u64().unwrap());
                assert!(there >= wanted, "round {round}: {writer}/{key} is {there}, not {wanted}");
            }
        }
    }
    assert!(total >= ROUNDS * 4 / 5 * FEWEST, "only {total} writes were acknowledged");
}

fn name(writer: u64, key: u64) -> Key {
    Key::new(Kind::Route, format!("{writer}-{key}"))
}

/// Each writer counts up from what is there.
fn write_forever(folder: &Path) {
    let store = std::sync::Arc::new(Embedded::open(folder).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let first = 1 + runtime.block_on(store.revision()).unwrap();
    runtime.block_on(async {
        let writers = (0..WRITERS).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in first.. {
                    let key = n % KEYS;
                    let value = json!({ "n": n, "padding": "x".repeat((n % 900) as usize) });
                    store.put(name(writer, key), value, Expect::Any, None).await.unwrap();
                    // In one write, and with an end mark, so that a cut line is seen as such.
                    let line = format!("ack {writer} {key} {n} 0\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    });
}
