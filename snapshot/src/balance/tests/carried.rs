//! State that outlives a change of the upstream: requests in flight, response times and turns.

use super::*;

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
