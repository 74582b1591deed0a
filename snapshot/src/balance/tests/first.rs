//! Choice of the first server: subsets, sticky clients, ejected servers and slow start.

use super::*;

/// The first server for `/?z=` and this value, and the servers excluded from the exchange.
fn first(upstream: &Upstream, z: &str, stays: Option<usize>) -> (Option<usize>, ExcludedServers) {
    let mut probe = Probe::get(&format!("/?z={z}"));
    upstream.pick_first(&mut upstream.state(), &probe.exchange(), 0, stays)
}

#[test]
fn a_request_leaves_its_subset_only_if_allowed() {
    let with = |weights: &[u32], required| {
        let mut upstream = upstream(weights, Policy::RoundRobin);
        let others = [(b"a"[..].into(), tried(&[1, 2])), (b"b"[..].into(), tried(&[0]))];
        let subset = Subset { on: Var::parse("arg_z"), others: others.into_iter().collect(), required };
        upstream.servers_mut().subset = Some(Box::new(subset));
        upstream
    };
    let (required, preferred) = (with(&[1, 1, 1], true), with(&[1, 1, 1], false));
    for _ in 0..8 {
        assert_eq!(first(&required, "a", None), (Some(0), tried(&[1, 2])));
        assert_eq!(first(&required, "c", None), (None, tried(&[0, 1, 2])));
        assert_eq!(first(&required, "a", Some(1)), (Some(0), tried(&[1, 2])));
        assert_eq!(first(&required, "b", Some(2)), (Some(2), tried(&[0])));
        assert_eq!(first(&preferred, "a", None), (Some(0), tried(&[])));
        assert_eq!(first(&preferred, "b", Some(1)), (Some(1), tried(&[])));
        assert!(first(&preferred, "c", None).0.is_some());
        assert_eq!(
            first(&preferred, "c", Some(1)),
            (Some(1), tried(&[])),
            "an empty subset excludes no server"
        );
    }
    // No server of the subset takes requests.
    let (required, preferred) = (with(&[0, 1, 1], true), with(&[0, 1, 1], false));
    assert_eq!(first(&required, "a", None), (None, tried(&[1, 2])));
    let (left, out) = first(&preferred, "a", None);
    assert!(left.is_some_and(|index| index > 0) && out == tried(&[]), "{left:?}");
}

#[test]
fn a_request_stays_with_a_usable_server() {
    let upstream = upstream(&[0, 1, 1], Policy::RoundRobin);
    for _ in 0..8 {
        assert_eq!(first(&upstream, "", Some(1)).0, Some(1));
        assert_ne!(first(&upstream, "", Some(0)).0, Some(0), "it has no weight");
        assert!(first(&upstream, "", Some(9)).0.is_some(), "the index is out of range");
    }
}

#[test]
fn ejected_servers_get_no_requests_and_warming_ones_few() {
    let mut upstream = upstream(&[1, 1, 1], Policy::RoundRobin);
    let written = serde_json::json!({"nodes": {}, "sluice": {
        "outlier": {"consecutive_failures": 5, "max_ejected_percent": 50}, "slow_start": 60}});
    let own = model::Upstream::parse(&written).unwrap().own.unwrap();
    let health = crate::health::Health::new(None, Some(&own), &upstream.endpoints, &upstream.pass_host);
    let health = std::sync::Arc::new(health.unwrap());
    upstream.health = Some(health.clone());
    let mut state = upstream.state();
    let mut shares = |picks: usize| {
        let mut probe = Probe::default();
        let (x, mut shares) = (probe.exchange(), [0; 3]);
        for _ in 0..picks {
            let (picked, _) = upstream.pick_first(&mut state, &x, 0, None);
            shares[picked.expect("a server")] += 1;
        }
        shares
    };
    assert_eq!(shares(30), [10, 10, 10]);
    assert!(health.eject(0, crate::health::Reason::ConsecutiveFailures));
    assert_eq!(shares(30), [0, 15, 15]);
    health.readmit(0);
    let warm = shares(600);
    assert!((0..60).contains(&warm[0]), "{warm:?}");
    health.set_cold(0, 0);
    assert_eq!(shares(30), [10, 10, 10]);
}
