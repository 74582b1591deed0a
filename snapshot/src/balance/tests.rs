use proptest::prelude::*;
use sdk::template::Template;
use sdk::testing::Probe;
use sdk::vars::Var;

use super::*;

/// Servers `10.0.0.1:80`, `10.0.0.2:80`, … with these weights and priorities.
fn servers(weights: &[(u32, i64)]) -> Vec<Endpoint> {
    (1u8..)
        .zip(weights)
        .map(|(n, &(weight, priority))| Endpoint {
            addr: SocketAddr::from(([10, 0, 0, n], 80)),
            authority: format!("10.0.0.{n}"),
            weight,
            priority,
        })
        .collect()
}

fn upstream(weights: &[u32], policy: Policy) -> Upstream {
    let weights: Vec<_> = weights.iter().map(|&weight| (weight, 0)).collect();
    Upstream::new("1", 0, servers(&weights), policy)
}

fn tried(indices: &[usize]) -> Tried {
    let mut tried = Tried::default();
    indices.iter().for_each(|&index| tried.insert(index));
    tried
}

/// What each server got of so many picks.
fn shares(upstream: &Upstream, state: &mut BalanceState, picks: usize) -> Vec<usize> {
    let mut probe = Probe::default();
    let x = probe.exchange();
    let mut shares = vec![0; upstream.endpoints.len()];
    for _ in 0..picks {
        shares[upstream.pick(state, &x, &Tried::default(), 0).expect("a server")] += 1;
    }
    shares
}

fn chash() -> Policy {
    Policy::Chash(HashOn::Var(Var::parse("arg_k")))
}

/// The server a key belongs to.
fn owner(upstream: &Upstream, key: u32, tried: &Tried) -> Option<SocketAddr> {
    let mut probe = Probe::get(&format!("/?k=key-{key}"));
    let index = upstream.pick(&mut upstream.state(), &probe.exchange(), tried, 0)?;
    Some(upstream.endpoints[index].addr)
}

#[test]
fn round_robin_is_smooth() {
    let upstream = upstream(&[5, 1, 1], Policy::RoundRobin);
    let mut state = BalanceState(State::RoundRobin(roundrobin::State::at_start(&upstream.tiers, 3)));
    let mut probe = Probe::default();
    let x = probe.exchange();
    let turns: Vec<_> = (0..14).filter_map(|_| upstream.pick(&mut state, &x, &tried(&[]), 0)).collect();
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn equal_weights_take_turns_and_workers_begin_anywhere() {
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
        let mut gone = Tried::default();
        let mut order = Vec::new();
        while let Some(index) = upstream.pick(&mut state, &x, &gone, 0) {
            gone.insert(index);
            order.push(upstream.endpoints[index].priority);
        }
        assert_eq!(order, [9, 9, 0, -3]);
    }
}

#[test]
fn weight_zero_gets_nothing_unless_it_is_alone() {
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
fn least_conn_counts_what_is_in_flight_by_weight() {
    let upstream = upstream(&[1, 2], Policy::LeastConn);
    let mut state = upstream.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    let mut in_flight = [0, 0];
    for _ in 0..30 {
        let index = upstream.pick(&mut state, &x, &tried(&[]), 0).expect("a server");
        upstream.begin(&mut state, index);
        in_flight[index] += 1;
    }
    assert_eq!(in_flight, [10, 20]);
    for _ in 0..10 {
        upstream.done(&mut state, 0, 1, true);
    }
    assert_eq!(upstream.pick(&mut state, &x, &tried(&[]), 0), Some(0));
}

#[test]
fn ewma_prefers_the_faster_and_forgets() {
    let upstream = upstream(&[1, 1], Policy::Ewma);
    let mut state = upstream.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    let pick = |state: &mut BalanceState, now| upstream.pick(state, &x, &tried(&[]), now).expect("a server");
    pick(&mut state, 60_000);
    upstream.done(&mut state, 0, 200_000, true);
    upstream.done(&mut state, 1, 5_000, true);
    for _ in 0..50 {
        assert_eq!(pick(&mut state, 60_000), 1);
    }
    // A quick failure is no quick answer.
    pick(&mut state, 120_000);
    upstream.done(&mut state, 1, 10, false);
    upstream.done(&mut state, 0, 200_000, true);
    assert_eq!(pick(&mut state, 120_000), 0);
    // Server 0 is measured again and again, 1 is not asked: its average fades below.
    pick(&mut state, 180_000);
    upstream.done(&mut state, 0, 200_000, true);
    assert_eq!(pick(&mut state, 180_000), 1);
}

#[test]
fn hashing_is_stable_and_fair() {
    let upstream = upstream(&[1, 1, 2], chash());
    let mut keys = [0; 3];
    for key in 0..20_000 {
        let addr = owner(&upstream, key, &tried(&[])).expect("a server");
        keys[upstream.endpoints.iter().position(|e| e.addr == addr).expect("known")] += 1;
    }
    for (keys, fair) in keys.into_iter().zip([5_000.0, 5_000.0, 10_000.0]) {
        assert!((f64::from(keys) / fair - 1.0).abs() < 0.2, "{keys} of {fair}");
    }
    // Fixed for good: other nodes of a cluster must agree, also while they are being upgraded.
    let owners: Vec<_> =
        (0..8).filter_map(|key| Some(owner(&upstream, key, &tried(&[]))?.ip().to_string())).collect();
    assert_eq!(owners, FIXED_OWNERS);
}

const FIXED_OWNERS: [&str; 8] =
    ["10.0.0.3", "10.0.0.1", "10.0.0.3", "10.0.0.3", "10.0.0.3", "10.0.0.3", "10.0.0.3", "10.0.0.1"];

#[test]
fn only_the_keys_of_servers_that_go_move() {
    let before = upstream(&[1, 1, 1, 1], chash());
    let after = Upstream::new("1", 0, servers(&[(1, 0); 3]), chash());
    let gone = before.endpoints[3].addr;
    let mut moved = 0;
    for key in 0..4_000 {
        let old = owner(&before, key, &tried(&[]));
        let new = owner(&after, key, &tried(&[]));
        assert!(old == new || old == Some(gone));
        moved += u32::from(old != new);
    }
    assert!((700..1_300).contains(&moved), "{moved}");
}

#[test]
fn a_huge_weight_does_not_make_a_huge_ring() {
    let upstream = upstream(&[u32::MAX, 1_000_000, 1], chash());
    let format = format!("{:?}", upstream.rings);
    let points: u64 = format.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
    assert!(points <= 2 << 17, "{format}");
    assert!(owner(&upstream, 1, &tried(&[0, 1])).is_some());
}

#[test]
fn what_is_hashed_falls_back_to_the_clients_address() {
    let key = |on: HashOn, target: &str, ip: &str| {
        let mut probe = Probe::get(target).from_ip(ip);
        on.hash(&probe.exchange(), &mut Vec::new())
    };
    let var = || HashOn::Var(Var::parse("arg_k"));
    let both = || HashOn::Combination(Template::parse("$arg_k-$arg_l"));
    let address = key(HashOn::Var(Var::parse("remote_addr")), "/", "10.1.1.1");
    assert_eq!(key(var(), "/", "10.1.1.1"), address);
    assert_eq!(key(both(), "/", "10.1.1.1"), address);
    assert_eq!(key(HashOn::Consumer, "/", "10.1.1.1"), address);
    assert_ne!(key(var(), "/?k=1", "10.1.1.1"), address);
    assert_eq!(key(var(), "/?k=1", "10.1.1.1"), key(var(), "/?k=1", "10.1.1.2"));
    assert_eq!(key(both(), "/?k=1&l=2", "10.1.1.1"), key(var(), "/?k=1-2", "10.1.1.2"));
}

#[test]
fn state_is_carried_by_address() {
    let old = upstream(&[1, 1, 1], Policy::LeastConn);
    let new = Upstream::new("1", 0, servers(&[(1, 0); 4])[1..].to_vec(), Policy::LeastConn);
    let mut state = old.state();
    for (index, busy) in [(0, 9), (1, 5), (2, 2)] {
        (0..busy).for_each(|_| old.begin(&mut state, index));
    }
    state.carry(&old, &new);
    let State::LeastConn(inside) = &state.0 else { panic!("another policy") };
    assert_eq!(format!("{inside:?}").split(']').next(), Some("State { in_flight: [5, 2, 0"));
    // Another policy begins anew; one server needs nothing.
    let single = upstream(&[1], Policy::LeastConn);
    state.carry(&new, &single);
    assert!(matches!(state.0, State::Single));
    state.carry(&single, &upstream(&[1, 2], Policy::RoundRobin));
    assert!(matches!(state.0, State::RoundRobin(_)));
}

#[test]
fn carried_turns_do_not_stick_to_one_server() {
    let heavy = upstream(&[1_000_000, 1], Policy::RoundRobin);
    let light = upstream(&[2, 1], Policy::RoundRobin);
    let mut state = heavy.state();
    shares(&heavy, &mut state, 1_000);
    state.carry(&heavy, &light);
    let shares = shares(&light, &mut state, 30);
    assert!((17..=23).contains(&shares[0]), "{shares:?}");
}

#[test]
fn more_servers_than_a_word_are_remembered() {
    let tried = tried(&[3, 64, 300]);
    assert!([3, 64, 300].iter().all(|&index| tried.contains(index)));
    assert!([0, 4, 63, 65, 299, 301, 5_000].iter().all(|&index| !tried.contains(index)));
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::RoundRobin), Just(Policy::LeastConn), Just(Policy::Ewma), Just(chash())]
}

proptest! {
    #[test]
    fn every_usable_server_is_tried_once(
        weights in prop::collection::vec((0u32..5, -1i64..2), 0..80),
        policy in policies(),
    ) {
        let upstream = Upstream::new("1", 0, servers(&weights), policy);
        let mut state = upstream.state();
        let mut probe = Probe::default();
        let x = probe.exchange();
        let mut gone = Tried::default();
        let mut picked = Vec::new();
        while let Some(index) = upstream.pick(&mut state, &x, &gone, 7) {
            prop_assert!(!gone.contains(index));
            gone.insert(index);
            picked.push(upstream.endpoints[index].priority);
        }
        prop_assert!(picked.is_sorted_by(|a, b| a >= b));
        let usable = weights.iter().filter(|(weight, _)| *weight > 0).count();
        prop_assert_eq!(picked.len(), if weights.len() == 1 { 1 } else { usable });
    }

    #[test]
    fn round_robin_gives_exact_shares(weights in prop::collection::vec(1u32..9, 2..12)) {
        let upstream = upstream(&weights, Policy::RoundRobin);
        let round: u32 = weights.iter().sum();
        let picks = 50 * round as usize;
        for (got, weight) in shares(&upstream, &mut upstream.state(), picks).into_iter().zip(&weights) {
            prop_assert!(got.abs_diff(50 * *weight as usize) <= 1);
        }
    }

    #[test]
    fn the_order_of_servers_does_not_move_keys(
        weights in prop::collection::vec(1u32..5, 2..8),
        turn in 0usize..8,
        key in any::<u32>(),
    ) {
        let weights: Vec<_> = weights.into_iter().map(|weight| (weight, 0)).collect();
        let mut turned = servers(&weights);
        turned.rotate_left(turn % weights.len());
        let one = Upstream::new("1", 0, servers(&weights), chash());
        let other = Upstream::new("1", 0, turned, chash());
        prop_assert_eq!(owner(&one, key, &tried(&[])), owner(&other, key, &tried(&[])));
    }

    #[test]
    fn carrying_never_breaks_picking(
        old in prop::collection::vec((0u32..4, 0i64..2), 0..6),
        new in prop::collection::vec((0u32..4, 0i64..2), 0..6),
        before in policies(),
        after in policies(),
    ) {
        let old = Upstream::new("1", 0, servers(&old), before);
        let new = Upstream::new("1", 0, servers(&new), after);
        let mut state = old.state();
        let mut probe = Probe::default();
        let x = probe.exchange();
        for _ in 0..5 {
            for upstream in [&old, &new] {
                if let Some(index) = upstream.pick(&mut state, &x, &Tried::default(), 1) {
                    prop_assert!(index < upstream.endpoints.len());
                    upstream.begin(&mut state, index);
                    upstream.done(&mut state, index, 10, true);
                }
            }
            state.carry(&old, &new);
            state.carry(&new, &old);
        }
    }
}
