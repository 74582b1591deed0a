use std::ops::Range;

use proptest::prelude::*;
use sdk::template::Template;
use sdk::testing::Probe;
use sdk::vars::Var;

use super::*;

mod first;

/// Servers `10.0.0.1:80`, `10.0.0.2:80`, … with these weights and priorities.
fn servers(weights: &[(u32, i64)]) -> Vec<Endpoint> {
    (1u8..)
        .zip(weights)
        .map(|(n, &(weight, priority))| Endpoint {
            addr: SocketAddr::from(([10, 0, 0, n], 80)),
            authority: format!("10.0.0.{n}").into(),
            weight,
            priority,
        })
        .collect()
}

fn upstream(weights: &[u32], policy: Policy) -> Upstream {
    let weights: Vec<_> = weights.iter().map(|&weight| (weight, 0)).collect();
    Upstream::new("1", 0, servers(&weights), policy)
}

fn tried(indices: &[usize]) -> ExcludedServers {
    let mut tried = ExcludedServers::default();
    indices.iter().for_each(|&index| tried.insert(index));
    tried
}

/// How many of `picks` each server gets.
fn shares(upstream: &Upstream, state: &mut BalanceState, picks: usize) -> Vec<usize> {
    let mut probe = Probe::default();
    let x = probe.exchange();
    let mut shares = vec![0; upstream.endpoints.len()];
    for _ in 0..picks {
        shares[upstream.pick(state, &x, &ExcludedServers::default(), 0).expect("a server")] += 1;
    }
    shares
}

fn chash() -> Policy {
    Policy::Chash(HashOn::Var(Var::parse("arg_k")))
}

/// The server a key belongs to.
fn owner(upstream: &Upstream, key: u32, tried: &ExcludedServers) -> Option<SocketAddr> {
    owners(upstream, key..key + 1, tried)[0]
}

/// The servers that keys belong to. One exchange serves all keys: creating one takes far longer
/// than picking.
fn owners(upstream: &Upstream, keys: Range<u32>, tried: &ExcludedServers) -> Vec<Option<SocketAddr>> {
    let (mut probe, mut state) = (Probe::default(), upstream.state());
    let pick = |key: u32| {
        probe.ask("GET", &format!("/?k=key-{key}"), &[]);
        upstream.pick(&mut state, &probe.exchange(), tried, 0).map(|index| upstream.endpoints[index].addr)
    };
    keys.map(pick).collect()
}

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
fn hashing_is_stable_and_fair() {
    let upstream = upstream(&[1, 1, 2], chash());
    let mut keys = [0; 3];
    for addr in owners(&upstream, 0..20_000, &tried(&[])) {
        keys[upstream.endpoints.iter().position(|e| Some(e.addr) == addr).expect("a known server")] += 1;
    }
    for (keys, fair) in keys.into_iter().zip([5_000.0, 5_000.0, 10_000.0]) {
        assert!((f64::from(keys) / fair - 1.0).abs() < 0.2, "{keys} of {fair}");
    }
}

/// Recorded from lua-resty-balancer 0.05, which APISIX 3.18 calls: the ring's size, its first
/// points, and the servers of these keys.
#[test]
fn the_ring_is_that_of_apisix() {
    const KEYS: [&str; 10] =
        ["127.0.0.1", "jack", "tom", "custom-one", "cuscookie", "", "key-0", "key-1", "key-2", "key-3"];
    type Recorded = (&'static [(&'static str, u32)], usize, [(u32, u32); 3], [u32; 10]);
    let recorded: [Recorded; 4] = [
        (
            &[("127.0.0.1:1980", 1), ("127.0.0.1:1981", 1)],
            320,
            [(4_676_813, 0), (4_707_425, 0), (11_007_670, 1)],
            [0, 1, 0, 0, 1, 0, 0, 0, 1, 1],
        ),
        (
            &[("127.0.0.1:1980", 1), ("127.0.0.1:1981", 1), ("127.0.0.1:1982", 1)],
            480,
            [(3_619_986, 2), (4_676_813, 0), (4_707_425, 0)],
            [2, 1, 0, 0, 1, 2, 2, 2, 2, 2],
        ),
        // 1, 2 and 3 units.
        (
            &[("10.0.0.1:80", 3), ("10.0.0.2:80", 6), ("10.0.0.3:8080", 9)],
            960,
            [(3_751_338, 0), (6_728_359, 2), (10_255_997, 2)],
            [1, 1, 0, 2, 2, 0, 1, 2, 1, 1],
        ),
        (
            &[("[::1]:80", 1), ("[2001:db8::1]:80", 2)],
            480,
            [(9_493_754, 1), (10_718_788, 0), (37_027_071, 1)],
            [1, 1, 1, 1, 1, 1, 0, 0, 1, 1],
        ),
    ];
    for (servers, size, first, owners) in recorded {
        let endpoint = |&(addr, weight): &(&str, u32)| Endpoint {
            addr: addr.parse().expect("an address"),
            authority: addr.strip_suffix(":80").unwrap_or(addr).into(),
            weight,
            priority: 0,
        };
        let upstream = Upstream::new("1", 0, servers.iter().map(endpoint).collect(), chash());
        assert_eq!(upstream.rings[0].points().len(), size);
        assert_eq!(upstream.rings[0].points()[..3], first);
        for (key, owner) in KEYS.into_iter().zip(owners) {
            let mut probe = Probe::default();
            assert!(probe.exchange().set_header("k", key.as_bytes()).is_ok());
            let mut upstream = upstream.clone();
            upstream.settings_mut().policy = Policy::Chash(HashOn::Var(Var::parse("http_k")));
            let found = upstream.pick(&mut upstream.state(), &probe.exchange(), &tried(&[]), 0);
            assert_eq!(found, Some(owner as usize), "{key} of {servers:?}");
        }
    }
}

#[test]
fn a_duplicate_address_is_on_the_ring_once_with_its_last_weight() {
    let mut twice = servers(&[(5, 0), (2, 0), (1, 0)]);
    twice[2] = Endpoint { weight: 1, ..twice[0].clone() };
    let twice = Upstream::new("1", 0, twice, chash());
    let mut once = servers(&[(1, 0), (2, 0)]);
    once.rotate_left(1);
    let once = Upstream::new("1", 0, once, chash());
    assert_eq!(twice.rings[0].points().len(), 480);
    assert_eq!(owners(&twice, 0..200, &tried(&[])), owners(&once, 0..200, &tried(&[])));
}

/// A ring knows an address as the operator wrote it, as APISIX does.
#[test]
fn an_ipv6_address_is_hashed_as_configured() {
    let ring = |authority: &str| {
        let mut one = servers(&[(1, 0)]);
        one[0].addr = "[2001:db8::1]:80".parse().expect("an address");
        one[0].authority = authority.into();
        Upstream::new("1", 0, one, chash()).rings.clone()
    };
    assert_eq!(ring("[2001:db8::1]"), ring("node.test"));
    assert_eq!(ring("[2001:db8::1]"), ring("[2001:db8::1]:80"));
    assert_ne!(ring("[2001:db8::1]"), ring("[2001:DB8::1]"));
}

#[test]
fn only_keys_of_removed_servers_move() {
    let before = upstream(&[1, 1, 1, 1], chash());
    let after = Upstream::new("1", 0, servers(&[(1, 0); 3]), chash());
    let gone = before.endpoints[3].addr;
    let mut moved = 0;
    let both = [&before, &after].map(|upstream| owners(upstream, 0..4_000, &tried(&[])));
    for (old, new) in both[0].iter().copied().zip(both[1].iter().copied()) {
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
    assert!(points <= 2 << 20, "{format}");
    assert!(owner(&upstream, 1, &tried(&[0, 1])).is_some());
}

#[test]
fn the_hash_key_falls_back_to_the_client_address() {
    let key = |on: HashOn, target: &str, ip: &str| {
        let mut probe = Probe::get(target).from_ip(ip);
        let hash = on.hash(&probe.exchange(), &mut Vec::new());
        assert_eq!(crc32fast::hash(&on.key(&probe.exchange())), hash, "the explained key is the hashed key");
        hash
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
        (0..busy).for_each(|_| state.begin(index, old.endpoints[index].addr));
    }
    state.carry(&old, &new);
    // The last one is the removed server, which still has exchanges in flight.
    assert_eq!(in_flight(&state), [5, 2, 0, 9]);
    // Another policy starts with a new state; a single server needs none.
    let single = upstream(&[1], Policy::RoundRobin);
    state.carry(&new, &single);
    assert!(matches!(state.state, PolicyState::Single));
    state.carry(&single, &upstream(&[1, 2], Policy::RoundRobin));
    assert!(matches!(state.state, PolicyState::RoundRobin(_)));
}

fn in_flight(state: &BalanceState) -> Vec<u32> {
    match &state.state {
        PolicyState::LeastConn(inside) => inside.in_flight(),
        PolicyState::P2c(inside) => inside.in_flight(),
        _ => panic!("another policy"),
    }
}

/// Regression: when a server was added while exchanges still ran on the old upstream, 40 requests
/// were shared 1, 1 and 38.
#[test]
fn exchanges_on_an_old_upstream_do_not_make_new_servers_look_idle() {
    let old = upstream(&[1, 1], Policy::LeastConn);
    let new = upstream(&[1, 1, 1], Policy::LeastConn);
    let mut state = old.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    let begin = |upstream: &Upstream, state: &mut BalanceState| {
        let index = upstream.pick(state, &x, &tried(&[]), 0).expect("a server");
        state.begin(index, upstream.endpoints[index].addr);
        index
    };
    let mut before: Vec<usize> = (0..40).map(|_| begin(&old, &mut state)).collect();
    assert_eq!(in_flight(&state), [20, 20]);
    state.carry(&old, &new);
    let mut shares = [0u32; 3];
    for _ in 0..40 {
        shares[begin(&new, &mut state)] += 1;
        // Meanwhile one of the old ones ends, and another tries the next server.
        let ended = before.pop().expect("one is left");
        state.done(ended, old.endpoints[ended].addr, 1, true);
        state.carry(&new, &old);
        let again = begin(&old, &mut state);
        state.done(again, old.endpoints[again].addr, 1, true);
        state.carry(&old, &new);
    }
    assert_eq!(in_flight(&state).iter().sum::<u32>(), 40);
    // All old exchanges have ended, so only new ones are in flight; the ends may leave a server one
    // below the others.
    assert_eq!(in_flight(&state), shares);
    assert!(shares.iter().all(|share| (12..=15).contains(share)), "{shares:?}");
}

#[test]
fn requests_in_flight_on_a_single_server_count_after_a_second_is_added() {
    let one = upstream(&[1], Policy::LeastConn);
    let two = upstream(&[1, 1], Policy::LeastConn);
    assert!(one.keeps_score());
    let mut state = one.state();
    (0..4).for_each(|_| state.begin(0, one.endpoints[0].addr));
    state.carry(&one, &two);
    assert_eq!(shares_begun(&two, &mut state, 4), [0, 4]);
    assert_eq!(in_flight(&state), [4, 4]);
}

/// How many of `picks`, all of which stay in flight, each server gets.
fn shares_begun(upstream: &Upstream, state: &mut BalanceState, picks: usize) -> Vec<usize> {
    let mut probe = Probe::default();
    let x = probe.exchange();
    let mut shares = vec![0; upstream.endpoints.len()];
    for _ in 0..picks {
        let index = upstream.pick(state, &x, &ExcludedServers::default(), 0).expect("a server");
        state.begin(index, upstream.endpoints[index].addr);
        shares[index] += 1;
    }
    shares
}

#[test]
fn servers_sharing_an_address_are_counted_separately() {
    let mut twice = servers(&[(1, 0), (1, 0)]);
    twice[1].addr = twice[0].addr;
    let twice = Upstream::new("1", 0, twice, Policy::LeastConn);
    let once = upstream(&[1], Policy::LeastConn);
    let addr = once.endpoints[0].addr;
    let mut state = twice.state();
    [0, 0, 0, 1].into_iter().for_each(|index| state.begin(index, addr));
    state.carry(&twice, &once);
    assert_eq!(in_flight(&state), [3, 1]);
    state.carry(&once, &twice);
    assert_eq!(in_flight(&state), [3, 1]);
    state.carry(&twice, &once);
    [1, 0, 0, 0].into_iter().for_each(|index| state.done(index, addr, 1, true));
    assert_eq!(in_flight(&state).iter().sum::<u32>(), 0);
}

#[test]
fn removed_servers_are_dropped_when_nothing_is_in_flight() {
    for policy in [Policy::LeastConn, Policy::P2c] {
        let single = upstream(&[1], policy);
        let mut state = single.state();
        for n in 0..100 {
            // Its address keeps changing, and a single server needs no choice.
            let addr = SocketAddr::from(([10, 1, 0, n], 80));
            state.begin(1, addr);
            state.done(1, addr, 1, true);
        }
        assert_eq!(in_flight(&state), [0]);
        state.done(7, SocketAddr::from(([10, 1, 0, 1], 80)), 1, true);
        assert_eq!(in_flight(&state), [0]);
    }
}

#[test]
fn a_score_is_found_by_address_at_any_index() {
    let mut endpoints = servers(&[(1, 0), (1, 0), (1, 0), (1, 0)]);
    endpoints[3].addr = endpoints[1].addr;
    let addr = |at: usize| endpoints[at].addr;
    let mut scores = scores::Scores::<least_conn::InFlight>::new(&endpoints);
    scores.find_or_add(0, addr(1)).add();
    let counts = |scores: &scores::Scores<least_conn::InFlight>| -> Vec<u32> {
        scores.iter().map(least_conn::InFlight::count).collect()
    };
    assert_eq!(counts(&scores), [0, 1, 0, 0]);
    assert!(scores.find(1, addr(2), scores::Score::matters).is_none(), "the score of another address");
    // Of two servers with one address, the one at the given index is found.
    scores.find_or_add(3, addr(3)).add();
    scores.find_or_add(3, addr(3)).add();
    let found = scores.find(3, addr(3), scores::Score::matters).map(|busy| busy.count());
    assert_eq!(found, Some(2));
    // A removed server's score stays while it matters.
    scores.trim(1);
    assert_eq!(counts(&scores), [0, 1, 2]);
}

#[test]
fn a_retry_needs_an_untried_server_with_weight_and_another_address() {
    let mut endpoints = servers(&[(1, 0), (1, 0), (0, 0)]);
    let different = Upstream::new("1", 0, endpoints.clone(), Policy::RoundRobin);
    assert!(different.has_another(&tried(&[]), 0));
    assert!(!different.has_another(&tried(&[1]), 0), "the remaining server has no weight");
    endpoints[1].addr = endpoints[0].addr;
    let same = Upstream::new("1", 0, endpoints, Policy::RoundRobin);
    assert!(!same.has_another(&tried(&[]), 0));
    assert!(
        upstream(&[1], Policy::RoundRobin).has_another(&tried(&[0]), 0),
        "a single server is tried again"
    );
}

#[test]
fn requests_fill_the_retry_budget() {
    let budget = Budget { for_each: 500, burst: 2 };
    let mut state = upstream(&[1, 1], Policy::RoundRobin).state();
    assert!(state.spend(budget), "the burst is available from the start");
    (0..10).for_each(|_| state.save(budget));
    assert_eq!(
        [(); 3].map(|()| state.spend(budget)),
        [true, true, false],
        "the budget never exceeds the burst"
    );
    state.save(budget);
    assert!(!state.spend(budget), "half a retry is not enough, and stays in the budget");
    state.save(budget);
    assert_eq!([(); 2].map(|()| state.spend(budget)), [true, false]);
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
fn an_address_is_tried_once_per_tier() {
    let mut endpoints = servers(&[(1, 1), (1, 1), (1, 1), (1, 0)]);
    endpoints[2].addr = endpoints[0].addr;
    endpoints[3].addr = endpoints[0].addr;
    for policy in [Policy::RoundRobin, Policy::LeastConn, Policy::Ewma, chash()] {
        let upstream = Upstream::new("1", 0, endpoints.clone(), policy);
        let mut gone = ExcludedServers::default();
        upstream.note(&mut gone, 2);
        assert!(gone.contains(0) && !gone.contains(1) && gone.contains(2) && !gone.contains(3));
        let mut probe = Probe::default();
        assert_eq!(upstream.pick(&mut upstream.state(), &probe.exchange(), &gone, 0), Some(1));
        upstream.note(&mut gone, 1);
        assert_eq!(upstream.pick(&mut upstream.state(), &probe.exchange(), &gone, 0), Some(3));
    }
}

#[test]
fn excluded_servers_may_exceed_one_word() {
    let tried = tried(&[3, 64, 300]);
    assert!([3, 64, 300].iter().all(|&index| tried.contains(index)));
    assert!([0, 4, 63, 65, 299, 301, 5_000].iter().all(|&index| !tried.contains(index)));
}

#[test]
fn a_key_belongs_to_the_first_point_at_or_after_it() {
    let upstream = upstream(&[1, 2, 1], chash());
    let (ring, none) = (&upstream.rings[0], tried(&[]));
    let choice = Choice { endpoints: &upstream.endpoints, tried: &none };
    let server = |point: &(u32, u32)| Some(point.1 as usize);
    for pair in ring.points().windows(2).filter(|pair| pair[0].0 != pair[1].0) {
        assert_eq!(ring.pick(pair[1].0, choice), server(&pair[1]), "at it");
        assert_eq!(ring.pick(pair[0].0 + 1, choice), server(&pair[1]), "before it");
    }
    assert!(ring.points().last().is_some_and(|point| point.0 < u32::MAX));
    assert_eq!(ring.pick(u32::MAX, choice), server(&ring.points()[0]), "behind the last comes the first");
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
fn response_times_follow_the_address() {
    let old = upstream(&[1, 1], Policy::Ewma);
    let mut reversed = servers(&[(1, 0), (1, 0)]);
    reversed.reverse();
    let new = Upstream::new("1", 0, reversed, Policy::Ewma);
    let mut state = old.state();
    let mut probe = Probe::default();
    let x = probe.exchange();
    old.pick(&mut state, &x, &tried(&[]), 60_000);
    state.done(0, old.endpoints[0].addr, 500_000, true);
    state.done(1, old.endpoints[1].addr, 1_000, true);
    state.carry(&old, &new);
    for now in [60_000, 61_000] {
        for _ in 0..20 {
            let index = new.pick(&mut state, &x, &tried(&[]), now).expect("a server");
            assert_eq!(new.endpoints[index].addr, old.endpoints[1].addr);
        }
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
fn turns_continue_after_a_change() {
    let mut probe = Probe::default();
    let x = probe.exchange();
    // Equal weights: the next turn follows the last one. Unequal weights: gains are carried over.
    for weights in [&[1, 1, 1][..], &[5, 1, 1]] {
        let upstream = upstream(weights, Policy::RoundRobin);
        let round: u32 = weights.iter().sum();
        for picks in 0..round {
            let start =
                || BalanceState::of(PolicyState::RoundRobin(roundrobin::State::at_start(&upstream.tiers, 3)));
            let (mut carried, mut straight) = (start(), start());
            for _ in 0..picks {
                upstream.pick(&mut carried, &x, &tried(&[]), 0);
                upstream.pick(&mut straight, &x, &tried(&[]), 0);
            }
            carried.carry(&upstream, &upstream);
            for _ in 0..round {
                let next = upstream.pick(&mut carried, &x, &tried(&[]), 0);
                assert_eq!(
                    next,
                    upstream.pick(&mut straight, &x, &tried(&[]), 0),
                    "{weights:?} after {picks}"
                );
            }
        }
    }
}

#[test]
fn a_long_hash_key_is_released() {
    let on = HashOn::Var(Var::parse("http_k"));
    let mut bytes = Vec::new();
    for length in [100, 100_000] {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        x.set_header("k", &vec![b'x'; length]).expect("a header");
        assert_eq!(on.hash(&x, &mut bytes), crc32fast::hash(&vec![b'x'; length]));
        assert!(bytes.capacity() <= 1024, "{length}");
        let long = vec![b'x'; length];
        let others = [(long.into(), tried(&[1]))].into_iter().collect();
        let subset = Subset { on: Var::parse("http_k"), others, required: true };
        assert_eq!(subset.excluded_by(&x, &mut bytes), Some(&tried(&[1])));
        assert!(bytes.capacity() <= 1024, "{length}");
    }
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
        let mut gone = ExcludedServers::default();
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
                if let Some(index) = upstream.pick(&mut state, &x, &ExcludedServers::default(), 1) {
                    prop_assert!(index < upstream.endpoints.len());
                    let addr = upstream.endpoints[index].addr;
                    state.begin(index, addr);
                    state.done(index, addr, 10, true);
                }
            }
            state.carry(&old, &new);
            state.carry(&new, &old);
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
