//! Retries: their budget, and the servers that are left for them.

use super::*;

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
