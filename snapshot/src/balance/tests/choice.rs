//! Which server each policy chooses.

use super::*;

#[test]
fn round_robin_is_smooth() {
    let upstream = upstream(&[5, 1, 1], Policy::RoundRobin);
    let mut state =
        BalanceState::of(PolicyState::RoundRobin(roundrobin::State::at_start(&upstream.tiers, 3)));
    let mut probe = Probe::default();
    let x = probe.exchange();
    let turns: Vec<_> = (0..14).filter_map(|_| upstream.pick(&mut state, &x, &tried(&[]), 0)).collect();
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn equal_weights_take_turns_and_workers_start_at_different_servers() {
    let upstream = upstream(&[7, 7, 7], Policy::RoundRobin);
    assert_eq!(shares(&upstream, &mut upstream.state(), 30), [10, 10, 10]);
    let begins: std::collections::BTreeSet<_> =
        (0..100).map(|_| shares(&upstream, &mut upstream.state(), 1)).collect();
    assert_eq!(begins.len(), 3);
}

#[test]
fn tiers_are_used_from_high_to_low() {
    for policy in [Policy::RoundRobin, Policy::LeastConn, Policy::Ewma, chash()] {
        let upstream = Upstream::new("1", 0, servers(&[(1, 0), (1, 9), (1, -3), (1, 9)]), policy);
        let priorities: Vec<_> = upstream.endpoints.iter().map(|endpoint| endpoint.priority).collect();
        assert_eq!(priorities, [9, 9, 0, -3]);
        let mut state = upstream.state();
        let mut probe = Probe::default();
        let x = probe.exchange();
        let mut gone = ExcludedServers::default();
        let mut order = Vec::new();
        while let Some(index) = upstream.pick(&mut state, &x, &gone, 0) {
            gone.insert(index);
            order.push(upstream.endpoints[index].priority);
        }
        assert_eq!(order, [9, 9, 0, -3]);
    }
}

#[test]
fn weight_zero_gets_no_requests_unless_it_is_alone() {
    for policy in [Policy::RoundRobin, Policy::LeastConn, Policy::Ewma, chash()] {
        let both = upstream(&[0, 3], policy.clone());
        assert_eq!(shares(&both, &mut both.state(), 10), [0, 10]);
        let mut probe = Probe::default();
        let x = probe.exchange();
        assert_eq!(both.pick(&mut both.state(), &x, &tried(&[1]), 0), None);
        let none = upstream(&[0, 0], policy.clone());
        assert_eq!(none.pick(&mut none.state(), &x, &tried(&[]), 0), None);
        let alone = upstream(&[0], policy.clone());
        assert_eq!(alone.pick(&mut alone.state(), &x, &tried(&[]), 0), Some(0));
        assert_eq!(alone.pick(&mut alone.state(), &x, &tried(&[0]), 0), None);
        let empty = upstream(&[], policy);
        assert_eq!(empty.pick(&mut empty.state(), &x, &tried(&[]), 0), None);
    }
}

#[test]
fn least_conn_weighs_requests_in_flight() {
    let upstream = upstream(&[1, 2], Policy::LeastConn);
    let mut state = upstream.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    let mut in_flight = [0, 0];
    for _ in 0..30 {
        let index = upstream.pick(&mut state, &x, &tried(&[]), 0).expect("a server");
        state.begin(index, upstream.endpoints[index].addr);
        in_flight[index] += 1;
    }
    assert_eq!(in_flight, [10, 20]);
    for _ in 0..10 {
        state.done(0, upstream.endpoints[0].addr, 1, true);
    }
    assert_eq!(upstream.pick(&mut state, &x, &tried(&[]), 0), Some(0));
}

#[test]
fn ewma_prefers_the_faster_server_and_decays() {
    let upstream = upstream(&[1, 1], Policy::Ewma);
    let mut state = upstream.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    let pick = |state: &mut BalanceState, now| upstream.pick(state, &x, &tried(&[]), now).expect("a server");
    pick(&mut state, 60_000);
    state.done(0, upstream.endpoints[0].addr, 200_000, true);
    state.done(1, upstream.endpoints[1].addr, 5_000, true);
    for _ in 0..50 {
        assert_eq!(pick(&mut state, 60_000), 1);
    }
    // A quick failure is not a quick response.
    pick(&mut state, 120_000);
    state.done(1, upstream.endpoints[1].addr, 10, false);
    state.done(0, upstream.endpoints[0].addr, 200_000, true);
    assert_eq!(pick(&mut state, 120_000), 0);
    // Server 0 is measured again and again, 1 gets no requests: its average fades below.
    pick(&mut state, 180_000);
    state.done(0, upstream.endpoints[0].addr, 200_000, true);
    assert_eq!(pick(&mut state, 180_000), 1);
}

#[test]
fn turns_stay_within_their_tier() {
    let upstream = Upstream::new("1", 0, servers(&[(1, 1), (1, 1), (1, 0)]), Policy::RoundRobin);
    assert_eq!(shares(&upstream, &mut upstream.state(), 30), [15, 15, 0]);
    let (mut state, mut probe) = (upstream.state(), Probe::default());
    for _ in 0..8 {
        assert_eq!(upstream.pick(&mut state, &probe.exchange(), &tried(&[0]), 0), Some(1));
    }
}

#[test]
fn among_idle_servers_the_heavier_wins_and_equals_take_turns() {
    for policy in [Policy::LeastConn, Policy::P2c] {
        let upstream = upstream(&[1, 10], policy);
        assert_eq!(shares(&upstream, &mut upstream.state(), 20), [0, 20]);
    }
    let equal = upstream(&[1, 1, 1], Policy::LeastConn);
    assert_eq!(shares(&equal, &mut equal.state(), 30), [10, 10, 10]);
}

#[test]
fn the_last_usable_of_many_servers_is_found() {
    let upstream = upstream(&[1; 200], Policy::P2c);
    let (mut state, mut probe) = (upstream.state(), Probe::default());
    let mut gone = ExcludedServers::default();
    (0..200).filter(|index| *index != 77).for_each(|index| gone.insert(index));
    for _ in 0..100 {
        assert_eq!(upstream.pick(&mut state, &probe.exchange(), &gone, 0), Some(77));
    }
}

#[test]
fn scoring_policies_record_attempts() {
    for (policy, alone, together) in [
        (Policy::RoundRobin, false, false),
        (chash(), false, false),
        // In-flight exchanges of a single server count once there are more servers.
        (Policy::LeastConn, true, true),
        (Policy::Ewma, false, true),
    ] {
        assert_eq!(upstream(&[1], policy.clone()).keeps_score(), alone, "{policy:?}");
        assert_eq!(upstream(&[1, 1], policy.clone()).keeps_score(), together, "{policy:?}");
    }
}

#[test]
fn a_failed_attempt_counts_as_at_least_one_second() {
    let upstream = upstream(&[1, 1], Policy::Ewma);
    for (failed, answered, better) in [(1, 900_000, 1), (1, 1_100_000, 0), (3_000_000, 2_000_000, 1)] {
        let mut state = upstream.state();
        let mut probe = Probe::default();
        let x = probe.exchange();
        upstream.pick(&mut state, &x, &tried(&[]), 60_000);
        state.done(0, upstream.endpoints[0].addr, failed, false);
        state.done(1, upstream.endpoints[1].addr, answered, true);
        for _ in 0..20 {
            assert_eq!(
                upstream.pick(&mut state, &x, &tried(&[]), 60_000),
                Some(better),
                "{failed} {answered}"
            );
        }
    }
}

#[test]
fn p2c_follows_requests_in_flight_and_skips_excluded_servers() {
    fastrand::seed(7);
    let endpoint = |n: u8, weight: u32| Endpoint {
        addr: SocketAddr::from(([10, 0, 0, n], 80)),
        authority: Box::default(),
        weight,
        priority: 0,
    };
    let upstream = Upstream::new(
        "u",
        0,
        vec![endpoint(1, 1), endpoint(2, 1), endpoint(3, 2), endpoint(4, 0)],
        Policy::P2c,
    );
    let mut probe = Probe::get("/");
    let x = probe.exchange();
    let mut state = upstream.state();
    let mut busy = [0u32; 4];
    for _ in 0..400 {
        let index = upstream.pick(&mut state, &x, &tried(&[]), 0).unwrap();
        state.begin(index, upstream.endpoints[index].addr);
        busy[index] += 1;
    }
    assert_eq!(busy[3], 0);
    assert!(busy[0].abs_diff(busy[1]) < 20 && busy[2].abs_diff(200) < 25, "{busy:?}");
    assert_eq!(upstream.pick(&mut state, &x, &tried(&[0, 2]), 0), Some(1));
    assert_eq!(upstream.pick(&mut state, &x, &tried(&[0, 1, 2]), 0), None);
    // Finished exchanges no longer count, and those in flight survive a change.
    (0..busy[0]).for_each(|_| state.done(0, upstream.endpoints[0].addr, 0, true));
    let mut other = Upstream::new("u", 0, vec![endpoint(1, 1), endpoint(2, 1)], Policy::P2c);
    other.slot = 0;
    state.carry(&upstream, &other);
    let picks: Vec<_> = (0..20).filter_map(|_| other.pick(&mut state, &x, &tried(&[]), 0)).collect();
    assert_eq!(picks, [0; 20]);
}
