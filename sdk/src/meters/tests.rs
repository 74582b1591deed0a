//! Tests of shards and scrapes together.

use std::net::SocketAddr;

use super::*;
use crate::exchange::Source;

fn labels(route: &str) -> Labels {
    Labels {
        route: route.into(),
        status: format!("code=\"200\",route=\"{route}\""),
        latency: format!("route=\"{route}\""),
        bandwidth: format!("route=\"{route}\""),
    }
}

fn count(shard: &Shard, route: &str, sample: Sample) {
    let make = |overflow| labels(if overflow { OVERFLOW } else { route });
    shard.http(None, |key| key.extend_from_slice(route.as_bytes()), make, &sample);
}

fn scrape(meters: &Meters) -> String {
    scrape_at(meters, 1)
}

/// The counts, one line each.
fn scrape_at(meters: &Meters, now_ms: u64) -> String {
    meters.read(now_ms, |reading| {
        let mut text: String =
            reading.status().map(|(labels, requests)| format!("status{{{labels}}} {requests}\n")).collect();
        text += &format!("errors {}\n", reading.totals().metric_errors);
        text += &format!("lines {}\nevicted {}\n", reading.lines(), reading.evicted());
        text
    })
}

fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn label_sets_beyond_the_bound_share_a_series() {
    let meters = Meters::new(Settings { max_series: 2 * (1 + 2 + 3 * 18), ..Settings::default() });
    let shard = meters.shard(0);
    for route in ["1", "2", "3", "4", "3"] {
        count(&shard, route, Sample::default());
    }
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"2\"}"), Some(1.0));
    assert_eq!(value(&text, "status{code=\"200\",route=\"__overflow__\"}"), Some(3.0));
    assert_eq!(value(&text, "errors"), Some(3.0));
    assert!(!text.contains("route=\"3\""));
    // The shared series belongs to no route, so it is not removed with one.
    meters.retain_routes(|_| false);
    let text = scrape(&meters);
    assert!(text.contains(OVERFLOW) && !text.contains("route=\"2\""), "{text}");
}

/// Meters with room for `sets` label sets.
fn room_for(sets: usize) -> Meters {
    Meters::new(Settings { max_series: sets * (1 + 2 + 3 * 18), ..Settings::default() })
}

#[test]
fn the_bound_holds_over_all_workers() {
    let meters = room_for(10);
    let shards = [0, 1, 2].map(|worker| meters.shard(worker));
    // The same labels on all workers are the same series.
    for route in 0..8 {
        shards.iter().for_each(|shard| count(shard, &route.to_string(), Sample::default()));
    }
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"7\"}"), Some(3.0));
    assert_eq!(value(&text, "lines"), Some(8.0 * 57.0));
    assert_eq!(meters.overflowed(), 0);
    // Different labels on each worker, unknown to the others, do not exceed the bound.
    for (worker, shard) in shards.iter().enumerate() {
        (0..2).for_each(|route| count(shard, &format!("{worker}-{route}"), Sample::default()));
    }
    let text = scrape(&meters);
    assert_eq!(value(&text, "lines"), Some(10.0 * 57.0));
    assert_eq!(value(&text, "evicted"), Some(4.0 * 3.0));
    // Label sets without room are counted in the shared series from then on.
    count(&shards[2], "2-0", Sample::default());
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"__overflow__\"}"), Some(1.0));
    assert_eq!(meters.overflowed(), 1);
}

#[test]
fn idle_series_are_evicted_for_new_ones() {
    let meters = room_for(8);
    let shard = meters.shard(0);
    let seen = |text: &str, route: &str| text.contains(&format!("code=\"200\",route=\"{route}\""));
    for route in ["a", "b", "c", "d", "e", "f", "g"] {
        count(&shard, route, Sample::default());
        meters.tidy(1_000);
    }
    count(&shard, "b", Sample::default());
    meters.tidy(2_000);
    count(&shard, "h", Sample::default());
    // Nothing was idle long enough.
    let text = scrape_at(&meters, 60_999);
    assert!(seen(&text, "a") && seen(&text, "h"));
    count(&shard, "new", Sample::default());
    assert_eq!(meters.overflowed(), 1);
    // Series idle longest are evicted, together; the others stay.
    let text = scrape_at(&meters, 61_000);
    assert!(!seen(&text, "a") && !seen(&text, "g"), "{text}");
    assert!(seen(&text, "b") && seen(&text, "h"));
    // Six label sets are evicted, each of three series, and the two lines of the unused bandwidth
    // of b. Beside b and h, the shared series remains.
    assert_eq!((value(&text, "evicted"), value(&text, "lines")), (Some(19.0), Some(3.0 * 57.0 - 2.0)));
    count(&shard, "new", Sample::default());
    count(&shard, "a", Sample::default());
    let text = scrape_at(&meters, 61_001);
    assert!(seen(&text, "new"));
    assert_eq!(value(&text, "status{code=\"200\",route=\"a\"}"), Some(1.0), "counted from 0");
    assert_eq!(meters.overflowed(), 1);
    // The shared series may be evicted, too, and is made again.
    scrape_at(&meters, 10_000_000);
    for round in 0..40 {
        count(&shard, &format!("r{round}"), Sample::default());
    }
    let text = scrape_at(&meters, 10_000_001);
    let overflow = value(&text, "status{code=\"200\",route=\"__overflow__\"}");
    assert!(overflow.is_some_and(|requests| requests >= 30.0), "{overflow:?}");
}

#[test]
fn requests_with_equal_labels_are_bounded() {
    let meters = Meters::new(Settings { max_series: 200, ..Settings::default() });
    let shard = meters.shard(0);
    for request in 0..1000u32 {
        let labels = |_| Labels { route: "1".into(), status: "route=\"1\"".into(), ..Labels::default() };
        shard.http(None, |key| key.extend_from_slice(&request.to_le_bytes()), labels, &Sample::default());
    }
    assert!(shard.label_sets() <= 200);
}

#[test]
fn series_are_removed_with_their_routes() {
    let meters = Meters::new(Settings { max_series: 2 * (1 + 2 + 3 * 18), ..Settings::default() });
    let shard = meters.shard(0);
    count(&shard, "1", Sample::default());
    count(&shard, "2", Sample::default());
    meters.retain_routes(|route| route == "2");
    let text = scrape(&meters);
    assert!(!text.contains("route=\"1\"") && text.contains("route=\"2\""));
    // A retired series restarts from 0 when it is needed again, and others may use its room.
    count(&shard, "1", Sample::default());
    count(&shard, "2", Sample::default());
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"1\"}"), Some(1.0));
    assert_eq!(value(&text, "status{code=\"200\",route=\"2\"}"), Some(2.0));
    assert_eq!(value(&text, "errors"), Some(0.0));
}

#[test]
fn removed_routes_leave_no_series() {
    let meters = room_for(1000);
    let shard = meters.shard(0);
    for round in 0..200 {
        let route = format!("r{round}");
        count(&shard, &route, Sample::default());
        count(&shard, "stays", Sample::default());
        stream(&shard, &route, 200);
        shard.redis_command(&route, "get", 1);
        scrape(&meters);
        meters.retain_routes(|kept| kept == "stays");
    }
    assert!(shard.label_sets() <= 10 && shard.known_series() <= 40, "{}", shard.known_series());
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"stays\"}"), Some(200.0));
}

#[test]
fn idle_series_expire_if_configured() {
    let attr = serde_json::json!({"metrics": {"http_status": {"expire": 10}}});
    let meters = Meters::new(Settings::from_attr(Some(&attr)));
    let shard = meters.shard(0);
    let at = |now_ms| scrape_at(&meters, now_ms).contains("status{");
    count(&shard, "1", Sample::default());
    assert!(at(1_000));
    count(&shard, "1", Sample::default());
    assert!(at(9_000));
    assert!(at(18_999));
    assert!(!at(19_000));
    assert!(!at(30_000));
    count(&shard, "1", Sample::default());
    assert!(at(40_000));
}

#[test]
fn scrapes_and_counts_run_concurrently() {
    let meters = Meters::default();
    let shards: Vec<_> = (0..2).map(|worker| meters.shard(worker)).collect();
    const HITS: u64 = 20_000;
    std::thread::scope(|scope| {
        for shard in shards {
            scope.spawn(move || {
                for hit in 0..HITS {
                    count(&shard, &(hit % 50).to_string(), Sample { total_us: 10, ..Sample::default() });
                }
            });
        }
        let mut last = 0.0;
        for _ in 0..20 {
            let now = value(&scrape(&meters), "status{code=\"200\",route=\"7\"}").unwrap_or(0.0);
            assert!(now >= last, "a counter decreased from {last} to {now}");
            last = now;
        }
    });
    let text = scrape(&meters);
    let sum: f64 = (0..50)
        .map(|route| value(&text, &format!("status{{code=\"200\",route=\"{route}\"}}")).unwrap())
        .sum();
    assert_eq!(sum, 2.0 * HITS as f64);
}

#[test]
fn a_scrape_sums_all_workers() {
    let meters = Meters::default();
    let (one, two) = (meters.shard(0), meters.shard(1));
    count(&one, "1", Sample { total_us: 1_500, upstream_us: Some(1_000), received: 100, sent: 200 });
    count(&two, "1", Sample { total_us: 70_000_000, upstream_us: None, received: 1, sent: 2 });
    one.connection_opened();
    two.connection_opened();
    meters.read(1, |reading| {
        assert_eq!(reading.totals().accepted, 2);
        assert_eq!(reading.bandwidth().collect::<Vec<_>>(), [("route=\"1\"", 101, 202)]);
        let of = |kind| reading.latency(kind).next().unwrap().1;
        assert_eq!((of(Kind::Request).sum_us, of(Kind::Own).sum_us), (70_001_500, 70_000_500));
        let upstream = of(Kind::Upstream);
        assert_eq!((upstream.counts[0], upstream.counts.iter().sum::<u64>()), (1, 1));
        assert_eq!(upstream.counts.len(), reading.settings().buckets_ms.len() + 1);
    });
}

#[test]
fn commands_of_redis_are_counted_by_route_and_name() {
    let meters = Meters::default();
    let (one, two) = (meters.shard(0), meters.shard(1));
    for (shard, command, us) in
        [(&one, "get", 1_000), (&two, "get", 1_001), (&one, "get", 2_000_000), (&one, "ping", 3)]
    {
        shard.redis_command("1\"", command, us);
    }
    let found = || {
        meters.read(1, |reading| {
            let rows = reading.redis_commands().map(|(text, histogram)| (text.to_owned(), histogram));
            (rows.collect::<Vec<_>>(), reading.lines())
        })
    };
    let (rows, lines) = found();
    assert_eq!((rows.len(), lines), (2, 28));
    assert_eq!(rows[0].0, "route=\"1\\\"\",command=\"get\"");
    assert_eq!((rows[0].1.counts[0], rows[0].1.counts[1], rows[0].1.counts[10]), (1, 1, 1));
    assert_eq!(rows[0].1.sum_us, 2_002_001);
    meters.retain_routes(|_| false);
    assert!(found().0.is_empty());
    one.redis_command("2", "get", 5);
    assert_eq!(found().0.len(), 1);
    let full = Meters::new(Settings { max_series: 14, ..Settings::default() });
    let shard = full.shard(0);
    for command in ["get", "set", "get"] {
        shard.redis_command("1", command, 1);
    }
    full.read(1, |reading| {
        assert_eq!((reading.redis_commands().count(), reading.totals().metric_errors), (1, 1));
    });
}

/// Each counter changes on its own, and a scrape sums the workers.
#[test]
fn counters_without_labels() {
    let meters = Meters::default();
    let shards = [0, 1].map(|worker| meters.shard(worker));
    let totals = || meters.read(1, |reading| reading.totals());
    type Case = (fn(&Shard), fn(&Totals) -> u64);
    let cases: [Case; 20] = [
        (Shard::connection_opened, |totals| totals.accepted),
        (Shard::connection_closed, |totals| totals.closed),
        (|shard| shard.waiting(1), |totals| totals.waiting),
        (Shard::request_began, |totals| totals.began),
        (Shard::request_ended, |totals| totals.ended),
        (Shard::request_refused, |totals| totals.refused),
        (Shard::fault, |totals| totals.faults),
        (Shard::upstream_retried, |totals| totals.retries),
        (Shard::panicked, |totals| totals.panics),
        (Shard::fetch_dropped, |totals| totals.fetches_dropped),
        (Shard::fetch_began, |totals| totals.fetches),
        (|shard| shard.idle_clients_closed(1), |totals| totals.idle_clients_closed),
        (|shard| shard.idle_upstreams_closed(1), |totals| totals.idle_upstreams_closed),
        (Shard::out_of_descriptors, |totals| totals.shortages),
        (Shard::datagram_dropped, |totals| totals.datagrams_dropped),
        (Shard::call_unwatched, |totals| totals.calls_unwatched),
        (|shard| shard.handshake(true, false), |totals| totals.handshakes),
        (|shard| shard.handshake(true, true), |totals| totals.handshakes_resumed),
        (|shard| shard.handshake(false, true), |totals| totals.handshakes_failed),
        (|shard| shard.handshake(false, false), |totals| totals.handshakes_failed),
    ];
    for (at, (count, read)) in cases.into_iter().enumerate() {
        let before = totals();
        shards.iter().for_each(count);
        let after = totals();
        assert_eq!(read(&after), read(&before) + 2, "{at}");
        // No other counter changes.
        let (before, after) = (format!("{before:?}"), format!("{after:?}"));
        let moved = before.split(',').zip(after.split(',')).filter(|(before, after)| before != after);
        assert_eq!(moved.count(), 1, "{at}");
    }
    shards[0].fetch_ended();
    shards[1].waiting(-1);
    let now = totals();
    assert_eq!((now.fetches, now.waiting), (1, 1));
}

#[test]
fn requests_are_timed_while_watching() {
    let meters = Meters::default();
    let first = meters.shard(0);
    assert!(!first.is_watched());
    meters.watch(true);
    let second = meters.shard(1);
    assert!(first.is_watched() && second.is_watched());
    first.watched(1_000, false);
    second.watched(2_000, true);
    let seen = meters.watched();
    assert_eq!((seen.requests, seen.errors), (2, 1));
    meters.watch(false);
    assert!(!first.is_watched() && !second.is_watched() && !meters.shard(2).is_watched());
}

#[test]
fn settings_are_readable() {
    let settings = Settings { max_series: 7, ..Settings::default() };
    let meters = Meters::new(settings.clone());
    assert_eq!(meters.settings(), &settings);
    meters.read(1, |reading| assert_eq!(reading.settings(), &settings));
}

fn stream(shard: &Shard, route: &str, status: u16) {
    let listener = SocketAddr::from(([127, 0, 0, 1], 9100));
    let node = Some(SocketAddr::from(([10, 0, 0, 1], 80)));
    shard.stream(&StreamLabels { route, status, listener, node });
}

/// The counts of streams, by route and by status.
fn streams(meters: &Meters, now_ms: u64) -> (Vec<String>, Vec<String>) {
    let row = |(text, count): (&str, u64)| format!("{text} {count}");
    meters.read(now_ms, |reading| {
        (reading.streams().map(row).collect(), reading.stream_status().map(row).collect())
    })
}

#[test]
fn streams_are_counted_by_route_and_status() {
    let meters = Meters::new(Settings { max_series: 4, ..Settings::default() });
    let (one, two) = (meters.shard(0), meters.shard(1));
    stream(&one, "a\"", 200);
    stream(&two, "a\"", 200);
    stream(&one, "a\"", 502);
    let ended = |status: u16, count: u64| {
        format!("code=\"{status}\",listen_addr=\"127.0.0.1:9100\",node=\"10.0.0.1:80\" {count}")
    };
    let expected = (vec!["route=\"a\\\"\" 3".to_owned()], vec![ended(200, 2), ended(502, 1)]);
    assert_eq!(streams(&meters, 1), expected);
    // Beyond the bound only known labels are counted.
    stream(&one, "b", 200);
    assert_eq!(meters.overflowed(), 0);
    streams(&meters, 1);
    stream(&one, "c", 503);
    assert_eq!(meters.overflowed(), 2);
    stream(&one, "b", 502);
    assert_eq!(meters.overflowed(), 2);
    let of_routes = vec!["route=\"a\\\"\" 3".to_owned(), "route=\"b\" 2".to_owned()];
    assert_eq!(streams(&meters, 1), (of_routes, vec![ended(200, 3), ended(502, 2)]));
}

#[test]
fn idle_series_of_streams_are_evicted() {
    let meters = Meters::new(Settings { max_series: 40, ..Settings::default() });
    let shard = meters.shard(0);
    for (n, now_ms) in [1_000, 2_000, 3_000, 4_000].into_iter().enumerate() {
        stream(&shard, &n.to_string(), 200 + n as u16);
        meters.tidy(now_ms);
    }
    ["get", "set"].iter().for_each(|command| shard.redis_command("1", command, 5));
    meters.tidy(4_000);
    meters.read(100_000, |reading| {
        // Four streams of two lines and two commands of fourteen: six lines above the threshold.
        assert_eq!((reading.lines(), reading.evicted()), (30, 6));
        let left: Vec<&str> = reading.streams().map(|(text, _)| text).collect();
        assert_eq!((left, reading.stream_status().count()), (vec!["route=\"3\""], 1));
        assert_eq!(reading.redis_commands().count(), 2);
    });
    // The commands and the last stream are idle equally long, and are evicted together.
    let row = |n: u8| stream(&shard, &format!("new-{n}"), 300 + u16::from(n));
    (0..4).for_each(row);
    meters.read(200_000, |reading| {
        assert_eq!((reading.lines(), reading.evicted()), (8, 10));
        assert_eq!((reading.streams().count(), reading.redis_commands().count()), (4, 0));
    });
}

#[test]
fn a_shared_series_is_counted_once_against_the_bound() {
    let meters = Meters::new(Settings { max_series: 1 + 2 + 3 * 18 + 1, ..Settings::default() });
    let shard = meters.shard(0);
    for key in 0..5u8 {
        shard.http(None, |bytes| bytes.push(key), |_| labels("1"), &Sample::default());
    }
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"1\"}"), Some(5.0));
    assert_eq!((meters.overflowed(), value(&text, "lines")), (0, Some(57.0)));
}

#[test]
fn a_removed_label_set_is_made_again_once() {
    let meters = Meters::default();
    let shard = meters.shard(0);
    (0..20).for_each(|route| count(&shard, &route.to_string(), Sample::default()));
    scrape(&meters);
    meters.retain_routes(|route| route != "7");
    (0..10).for_each(|_| count(&shard, "7", Sample::default()));
    assert_eq!(shard.label_sets(), 20);
    assert_eq!(value(&scrape(&meters), "status{code=\"200\",route=\"7\"}"), Some(10.0));
}

#[test]
fn label_sets_are_found_by_address_until_they_are_removed() {
    let meters = Meters::default();
    let (shard, memo) = (meters.shard(0), SeriesMemo::default());
    let keys = std::cell::Cell::new(0);
    let addresses = |route: usize, code| Addresses {
        instance: 1,
        route: route << 6,
        matched_uri: 2,
        matched_host: 3,
        consumer: 0,
        code,
        source: Source::Upstream,
        node: Some([127, 0, 0, 1].into()),
    };
    let count = |name: &str, addresses| {
        let key = |bytes: &mut Vec<u8>| {
            keys.set(keys.get() + 1);
            bytes.extend_from_slice(name.as_bytes());
        };
        shard.http(Some((&memo, addresses)), key, |_| labels(name), &Sample::default());
        keys.take()
    };
    assert_eq!([count("1", addresses(1, 200)), count("1", addresses(1, 200))], [1, 0]);
    // The same place of the memo, but another label set.
    assert_eq!([count("2", addresses(65, 200)), count("1", addresses(1, 200))], [1, 1]);
    assert_eq!([count("1-404", addresses(1, 404)), count("1", addresses(1, 200))], [1, 0]);
    let first = addresses(1, 200);
    let others = [
        Addresses { instance: 9, ..first },
        Addresses { matched_uri: 9, ..first },
        Addresses { matched_host: 9, ..first },
        Addresses { consumer: 64 << 6, ..first },
        Addresses { source: Source::Gateway, ..first },
        Addresses { node: Some([127, 0, 0, 65].into()), ..first },
    ];
    for other in others {
        assert_eq!([count("other", other), count("1", first)], [1, 1], "{other:?}");
    }
    let without = Addresses { node: None, ..first };
    assert_eq!([count("other", without), count("1", first)], [1, 0]);
    // Servers in turn have places of their own.
    let second = Addresses { node: Some([127, 0, 0, 2].into()), ..first };
    assert_eq!([count("1", second), count("1", first), count("1", second)], [1, 0, 0]);
    let text = scrape(&meters);
    assert_eq!(value(&text, "status{code=\"200\",route=\"1\"}"), Some(14.0));
    assert_eq!(value(&text, "status{code=\"200\",route=\"2\"}"), Some(1.0));
    meters.retain_routes(|route| route != "1");
    assert_eq!([count("1", addresses(1, 200)), count("1", addresses(1, 200))], [1, 0]);
    assert_eq!(value(&scrape(&meters), "status{code=\"200\",route=\"1\"}"), Some(2.0));
}

/// Series that are written together may expire separately.
#[test]
fn expired_series_restart() {
    for metric in ["http_status", "http_latency", "bandwidth"] {
        let attr = serde_json::json!({"metrics": {metric: {"expire": 10}}});
        let meters = Meters::new(Settings::from_attr(Some(&attr)));
        let shard = meters.shard(0);
        let rows = |now_ms| {
            meters.read(now_ms, |reading| {
                [
                    reading.status().count(),
                    reading.latency(Kind::Request).count(),
                    reading.bandwidth().count(),
                ]
            })
        };
        count(&shard, "1", Sample::default());
        assert_eq!(rows(1_000), [1, 1, 1], "{metric}");
        assert_eq!(rows(11_000).iter().sum::<usize>(), 2, "{metric}");
        count(&shard, "1", Sample::default());
        assert_eq!(rows(11_001), [1, 1, 1], "{metric}");
    }
}
