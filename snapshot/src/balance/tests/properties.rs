//! Properties that hold for any servers, policies and keys.

use proptest::prelude::*;

use super::*;

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
