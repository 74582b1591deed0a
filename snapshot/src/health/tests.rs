use serde_json::json;

use super::*;

fn endpoint(n: u8, weight: u32) -> Endpoint {
    let addr = SocketAddr::from(([127, 0, 0, n], 80));
    Endpoint { addr, authority: addr.to_string().into(), weight, priority: 0 }
}

fn health(checks: serde_json::Value, endpoints: &[Endpoint]) -> Health {
    let value = json!({"nodes": {}, "checks": checks});
    let checks = model::Upstream::parse(&value).unwrap().checks.unwrap();
    Health::new(Some(&checks), None, endpoints, &PassHost::Pass).unwrap()
}

impl Health {
    fn target(&self, at: usize) -> &Arc<Target> {
        &self.checks.as_ref().unwrap().targets[at]
    }
}

fn state_of(target: &Target) -> (&'static str, [u8; 4]) {
    let Counters { success, http_failure, tcp_failure, timeout_failure } = target.counters();
    (target.status().as_str(), [success, http_failure, tcp_failure, timeout_failure])
}

#[test]
fn verdicts_follow_reports_as_in_apisix() {
    let health = health(
        json!({"active": {"healthy": {"successes": 2}, "unhealthy": {"tcp_failures": 2, "timeouts": 3, "http_failures": 2}}}),
        &[endpoint(1, 1)],
    );
    let target = health.target(0);
    for (probed, expected) in [
        // An event that confirms the verdict is not counted.
        (Probed::Connected, ("healthy", [0, 0, 0, 0])),
        (Probed::Status(200), ("healthy", [0, 0, 0, 0])),
        // Neither in one list nor in the other.
        (Probed::Status(201), ("healthy", [0, 0, 0, 0])),
        (Probed::Failed, ("mostly_healthy", [0, 0, 1, 0])),
        (Probed::TimedOut, ("mostly_healthy", [0, 0, 1, 1])),
        // One success is not enough, but it clears the failures.
        (Probed::Connected, ("mostly_healthy", [1, 0, 0, 0])),
        (Probed::Status(0), ("mostly_healthy", [0, 1, 0, 0])),
        (Probed::Status(500), ("unhealthy", [0, 2, 0, 0])),
        (Probed::Failed, ("unhealthy", [0, 2, 0, 0])),
        (Probed::Status(302), ("mostly_unhealthy", [1, 0, 0, 0])),
        (Probed::Failed, ("mostly_unhealthy", [0, 0, 1, 0])),
        (Probed::Status(200), ("mostly_unhealthy", [1, 0, 0, 0])),
        (Probed::Status(200), ("healthy", [2, 0, 0, 0])),
    ] {
        health.probed(target, probed);
        assert_eq!(state_of(target), expected, "{probed:?}");
    }
    assert_eq!(health.changes(), 2, "it went down once and came back once");
}

#[test]
fn traffic_counts_only_with_passive_checks() {
    let endpoints = [endpoint(1, 1)];
    let without = health(json!({"active": {}}), &endpoints);
    without.answered(0, 500, 0);
    without.failed(0, TryFailure::Connection, Some(502));
    assert_eq!(state_of(without.target(0)), ("healthy", [0; 4]));
    // An attempt followed by a retry counts anyway, with the default limit of 2.
    without.failed(0, TryFailure::Connection, None);
    without.failed(0, TryFailure::Connection, None);
    assert_eq!(state_of(without.target(0)), ("unhealthy", [0, 0, 2, 0]));

    let passive = json!({"unhealthy": {"http_statuses": [500, 504], "http_failures": 1, "timeouts": 0}});
    let with = health(json!({"active": {}, "passive": passive}), &endpoints);
    with.answered(0, 404, 0);
    with.failed(0, TryFailure::Timeout, None);
    assert_eq!(state_of(with.target(0)), ("healthy", [0; 4]), "a limit of zero disables counting");
    with.failed(0, TryFailure::Connection, Some(502));
    assert_eq!(state_of(with.target(0)), ("mostly_healthy", [0, 0, 1, 0]));
    with.failed(0, TryFailure::Timeout, Some(504));
    assert_eq!(state_of(with.target(0)), ("unhealthy", [0, 1, 1, 0]));
    // Statuses outside all sets.
    for status in [0, 999, u16::MAX] {
        with.answered(0, status, 0);
    }
}

#[test]
fn unhealthy_servers_are_avoided_unless_all_are_unhealthy() {
    let endpoints = [endpoint(1, 1), endpoint(2, 0), endpoint(3, 1)];
    let health = health(json!({"active": {"unhealthy": {"tcp_failures": 1}}}), &endpoints);
    let avoided = |health: &Health| {
        (0..3).filter(|&at| health.avoided(&endpoints).servers.contains(at)).collect::<Vec<_>>()
    };
    assert_eq!(avoided(&health), [0usize; 0]);
    health.probed(health.target(0), Probed::Failed);
    assert_eq!(avoided(&health), [0]);
    // The remaining server has no weight.
    health.probed(health.target(2), Probed::Failed);
    assert_eq!(avoided(&health), [0usize; 0]);
}

#[test]
fn health_survives_a_change_of_servers() {
    let checks = json!({"active": {"unhealthy": {"tcp_failures": 1}}});
    let before = health(checks.clone(), &[endpoint(1, 1), endpoint(2, 1)]);
    before.probed(before.target(1), Probed::Failed);
    let mut after = health(checks, &[endpoint(2, 1), endpoint(3, 1)]);
    assert_ne!(before, after);
    after.carry(&before);
    assert_eq!(state_of(after.target(0)), ("unhealthy", [0, 0, 1, 0]));
    assert_eq!(state_of(after.target(1)), ("healthy", [0; 4]));
    // A report on the older version reaches the newer one.
    let seen = after.changes();
    before.probed(before.target(1), Probed::Connected);
    before.probed(before.target(1), Probed::Connected);
    assert_eq!(state_of(after.target(0)).0, "healthy");
    assert!(after.changes() > seen);
}

#[test]
fn servers_probed_at_the_same_address_are_one_target() {
    let mut other = endpoint(1, 1);
    other.addr.set_port(81);
    let health = health(json!({"active": {"port": 9000, "host": "foo.com"}}), &[endpoint(1, 1), other]);
    let targets: Vec<_> = health.targets().map(|target| target.identity()).collect();
    assert_eq!(targets, [("127.0.0.1:9000".parse().unwrap(), "foo.com", None)]);
}

#[test]
fn healths_with_equal_checks_are_equal() {
    let endpoints = [endpoint(1, 1), endpoint(2, 1)];
    let made = |checks: serde_json::Value, own: serde_json::Value, endpoints: &[Endpoint]| {
        let value = json!({"nodes": {}, "checks": checks, "sluice": own});
        let written = model::Upstream::parse(&value).unwrap();
        Health::new(written.checks.as_deref(), written.own.as_deref(), endpoints, &PassHost::Pass).unwrap()
    };
    let checks = json!({"active": {"http_path": "/a"}, "passive": {"unhealthy": {"tcp_failures": 2}}});
    let own = json!({"outlier": {"consecutive_failures": 3}, "slow_start": 10});
    let first = made(checks.clone(), own.clone(), &endpoints);
    let same = made(checks.clone(), own.clone(), &endpoints);
    assert!(first == same, "{first:?}");
    // Results do not count.
    first.probed(first.target(0), Probed::Failed);
    assert!(first == same);
    let mut active = checks.clone();
    active["active"]["http_path"] = json!("/b");
    let mut passive = checks.clone();
    passive["passive"]["unhealthy"]["tcp_failures"] = json!(3);
    let moved = [endpoint(1, 1), endpoint(3, 1)];
    for (what, other) in [
        ("probes", made(active, own.clone(), &endpoints)),
        ("traffic", made(passive, own.clone(), &endpoints)),
        ("no traffic", made(json!({"active": {"http_path": "/a"}}), own.clone(), &endpoints)),
        (
            "outlier",
            made(
                checks.clone(),
                json!({"outlier": {"consecutive_failures": 4}, "slow_start": 10}),
                &endpoints,
            ),
        ),
        (
            "slow start",
            made(
                checks.clone(),
                json!({"outlier": {"consecutive_failures": 3}, "slow_start": 9}),
                &endpoints,
            ),
        ),
        ("fewer servers", made(checks.clone(), own.clone(), &endpoints[..1])),
        ("other servers", made(checks, own, &moved)),
    ] {
        assert!(first != other, "{what}");
    }
    let own = json!({"outlier": {"consecutive_failures": 3}});
    assert!(looked_at(own.clone(), &endpoints) == looked_at(own.clone(), &endpoints));
    assert!(looked_at(own.clone(), &endpoints) != looked_at(own.clone(), &moved));
    assert!(looked_at(own.clone(), &endpoints) != looked_at(own, &endpoints[..1]));
}

#[test]
fn a_server_is_ejected_for_one_reason_at_a_time() {
    let mut names = std::collections::BTreeSet::new();
    for reason in [Reason::ConsecutiveFailures, Reason::SuccessRate, Reason::Latency] {
        let health = looked_at(json!({"outlier": {}}), &[endpoint(1, 1)]);
        let node = &health.nodes[0];
        assert!(node.set_out(Some(reason)), "it was in");
        assert_eq!(node.ejected(), Some(reason));
        assert!(!node.set_out(Some(Reason::Latency)), "it was out already");
        names.insert(reason.as_str());
    }
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["consecutive_failures", "latency", "success_rate"]);
}

#[test]
fn servers_are_cold_only_with_slow_start() {
    let endpoints = [endpoint(1, 1), endpoint(2, 1), endpoint(3, 1)];
    let value = json!({"nodes": {}, "checks": {"active": {"healthy": {"successes": 1}, "unhealthy": {"tcp_failures": 1}}},
        "sluice": {"outlier": {"consecutive_failures": 3, "max_ejected_percent": 50}}});
    let written = model::Upstream::parse(&value).unwrap();
    let made = |endpoints: &[Endpoint]| {
        Health::new(written.checks.as_deref(), written.own.as_deref(), endpoints, &PassHost::Pass).unwrap()
    };
    let before = made(&endpoints[..2]);
    before.probed(before.target(0), Probed::Failed);
    assert_eq!(state_of(before.target(0)).0, "unhealthy");
    before.probed(before.target(0), Probed::Connected);
    assert_eq!(state_of(before.target(0)).0, "healthy");
    let mut after = made(&endpoints);
    after.carry(&before);
    assert_eq!(after.nodes.iter().map(|node| node.cold()).collect::<Vec<_>>(), [0, 0, 0]);
    // Exchanges on the older version count for the newer one.
    (0..3).for_each(|_| before.failed(0, TryFailure::Timeout, None));
    assert_eq!(after.nodes[0].ejected(), Some(Reason::ConsecutiveFailures));
    // The first servers of an upstream start without a slow start.
    let mut slow = looked_at(json!({"slow_start": 10}), &endpoints);
    slow.carry(&health(json!({"active": {}}), &[]));
    assert_eq!(slow.nodes.iter().map(|node| node.cold()).collect::<Vec<_>>(), [0, 0, 0]);
}

#[test]
fn which_settings_need_probes_and_response_times() {
    let endpoints = [endpoint(1, 1)];
    assert!(health(json!({"active": {"http_path": "/a"}}), &endpoints).active().is_some());
    let takes = |own| {
        let health = looked_at(own, &endpoints);
        assert!(health.active().is_none());
        health.needs_response_times()
    };
    assert!(takes(json!({"outlier": {"latency": 3}})));
    assert!(!takes(json!({"outlier": {"consecutive_failures": 3}})));
    assert!(!takes(json!({"slow_start": 3})));
}

#[test]
fn a_set_of_statuses() {
    assert!(Statuses::of(&[]).is_empty());
    let some = Statuses::of(&[200, 503]);
    assert!(!some.is_empty() && some.contains(503) && !some.contains(502));
}

fn looked_at(own: serde_json::Value, endpoints: &[Endpoint]) -> Health {
    let own = model::Upstream::parse(&json!({"nodes": {}, "sluice": own})).unwrap().own.unwrap();
    Health::new(None, Some(&own), endpoints, &PassHost::Pass).unwrap()
}

#[test]
fn consecutive_failures_eject_at_once_up_to_the_limit() {
    let endpoints: Vec<Endpoint> = (1..=4).map(|n| endpoint(n, 1)).collect();
    let own = json!({"outlier": {"consecutive_failures": 3, "max_ejected_percent": 50}});
    let health = looked_at(own, &endpoints);
    let out = |health: &Health| {
        (0..4).filter(|&at| health.avoided(&endpoints).servers.contains(at)).collect::<Vec<_>>()
    };
    for (status, expected) in
        [(500, 0), (503, 0), (404, 0), (500, 0), (500, 0), (508, 0), (500, 0), (500, 0), (502, 1)]
    {
        health.answered(0, status, 0);
        assert_eq!(out(&health).len(), expected, "{status}");
    }
    assert_eq!(health.nodes()[0].ejected(), Some(Reason::ConsecutiveFailures));
    for at in 1..4 {
        (0..3).for_each(|_| health.failed(at, TryFailure::Timeout, None));
    }
    assert_eq!(out(&health), [0, 1], "half of them stay");
    health.readmit(0);
    assert_eq!(out(&health), [1]);
    assert!(health.eject(3, Reason::Latency) && !health.eject(2, Reason::Latency));
    assert_eq!(health.nodes()[0].take(), Tally { requests: 9, failures: 7, micros: 0 });
    assert_eq!(health.nodes()[0].take(), Tally::default());
}

#[test]
fn consecutive_connect_failures_of_streams_eject() {
    let endpoints: Vec<Endpoint> = (1..=2).map(|n| endpoint(n, 1)).collect();
    let health = looked_at(json!({"outlier": {"consecutive_failures": 2}}), &endpoints);
    for _ in 0..3 {
        health.failed(0, TryFailure::Connection, None);
        health.connected(0, 500);
    }
    assert_eq!(health.nodes()[0].ejected(), None, "never twice in a row");
    (0..2).for_each(|_| health.failed(0, TryFailure::Connection, None));
    assert_eq!(health.nodes()[0].ejected(), Some(Reason::ConsecutiveFailures));
    assert_eq!(health.nodes()[0].take(), Tally { requests: 8, failures: 5, micros: 1500 });
}

#[test]
fn added_servers_start_slowly() {
    let own = json!({"slow_start": 10});
    let endpoints: Vec<Endpoint> = (1..=3).map(|n| endpoint(n, 1)).collect();
    let before = looked_at(own.clone(), &endpoints[..2]);
    assert!(before.avoided(&endpoints[..2]).cold.is_empty(), "the first servers start warm");
    let mut after = looked_at(own, &endpoints);
    after.carry(&before);
    assert_eq!(after.avoided(&endpoints).cold, [(2, 255)]);
    after.set_cold(2, 100);
    assert_eq!(after.avoided(&endpoints).cold, [(2, 100)]);
    after.set_cold(2, 0);
    after.readmit(0);
    assert_eq!(after.avoided(&endpoints).cold, [(0, 255)]);
}

#[test]
fn removed_settings_end_ejections() {
    let endpoints: Vec<Endpoint> = (1..=2).map(|n| endpoint(n, 1)).collect();
    let (outlier, slow) = (json!({"outlier": {"consecutive_failures": 1}}), json!({"slow_start": 30}));
    let both = json!({"outlier": {"consecutive_failures": 1}, "slow_start": 30});
    let first = looked_at(both.clone(), &endpoints);
    first.nodes[0].set_out(Some(Reason::ConsecutiveFailures));
    first.nodes[1].set_cold(200);
    let after = |own| {
        let mut health = looked_at(own, &endpoints);
        health.carry(&first);
        let nodes = health.nodes.iter().map(|node| (node.ejected().is_some(), node.cold()));
        nodes.collect::<Vec<_>>()
    };
    assert_eq!(after(both), [(true, 0), (false, 200)]);
    assert_eq!(after(slow), [(false, 0), (false, 200)]);
    assert_eq!(after(outlier), [(true, 0), (false, 0)]);
}
