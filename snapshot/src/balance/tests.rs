//! Balancers over servers with weights and priorities.

mod carried;
mod choice;
mod first;
mod hashing;
mod properties;
mod retries;

use std::ops::Range;

use sdk::testing::Probe;
use sdk::vars::Var;

use super::*;

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
