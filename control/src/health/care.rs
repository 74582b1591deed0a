//! Decisions from the traffic as a whole, not single tries: which server is ejected for a rate or a mean, when it
//! comes back, how fast it warms up, and the limits that follow how long answers take.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use model::Key;
use model::upstream::{AdaptiveConcurrency, Outlier};
use snapshot::Watched;
use snapshot::health::{Health, Reason, Tally};
use snapshot::load::InUse;
use tokio::time::Instant;

use super::report::Server;

/// How often servers that warm up and limits are looked at.
pub(super) const STEP: Duration = Duration::from_millis(250);
/// Answers it takes in a step for a limit to move.
const FEW_ANSWERS: u32 = 5;

/// The upstreams whose traffic is looked at.
#[derive(Debug, Default)]
pub(super) struct Care {
    upstreams: HashMap<Key, Upstream>,
}

#[derive(Debug)]
struct Upstream {
    watched: Watched,
    /// When rates and means are looked at next.
    look: Instant,
    /// By address, as verdicts are.
    servers: HashMap<SocketAddr, Kept>,
    /// How long answers usually take, in microseconds; 0 until that is known.
    usual: f64,
}

/// State of a server between two rounds.
#[derive(Debug, Default)]
struct Kept {
    /// It is out until then.
    until: Option<Instant>,
    /// How often in a row it was out.
    times: u32,
    back_since: Option<Instant>,
    warms_since: Option<Instant>,
}

impl Care {
    /// Replaces what is looked after; what stays keeps its memory.
    pub fn want(&mut self, wanted: &[Watched]) {
        let mut before = std::mem::take(&mut self.upstreams);
        let looks = |one: &&Watched| {
            one.load.is_some() || one.health.as_ref().is_some_and(|health| !health.nodes().is_empty())
        };
        for watched in wanted.iter().filter(looks) {
            let mut upstream = before.remove(&watched.key).unwrap_or_else(|| Upstream {
                watched: watched.clone(),
                look: Instant::now(),
                servers: HashMap::new(),
                usual: 0.0,
            });
            upstream.watched = watched.clone();
            let nodes = watched.health.iter().flat_map(|health| health.nodes());
            let addresses: std::collections::HashSet<SocketAddr> = nodes.map(|node| node.addr).collect();
            upstream.servers.retain(|addr, _| addresses.contains(addr));
            self.upstreams.insert(watched.key.clone(), upstream);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.upstreams.is_empty()
    }

    pub fn step(&mut self) {
        let now = Instant::now();
        for (key, upstream) in &mut self.upstreams {
            if let Some(load) = &upstream.watched.load
                && let Some(adaptive) = load.adaptive
            {
                upstream.usual = adapt(&load.in_use, adaptive, upstream.usual);
            }
            let Some(health) = upstream.watched.health.clone() else { continue };
            if let Some(outlier) = &health.outlier {
                if now >= upstream.look {
                    upstream.look = now + outlier.interval;
                    judge(&health, outlier);
                }
                let limits = (outlier.ejection_time, outlier.max_ejection_time);
                keep_out(key, &health, &mut upstream.servers, limits, now);
            }
            if let Some(time) = health.slow_start {
                warm(&health, &mut upstream.servers, time, now);
            }
        }
    }

    /// How the servers of an upstream are, if they are looked at.
    pub fn servers(&self, health: &Health, key: &Key) -> Vec<Server> {
        let now = Instant::now();
        let kept = self.upstreams.get(key).map(|upstream| &upstream.servers);
        let server = |node: &std::sync::Arc<snapshot::health::NodeHealth>| Server {
            addr: node.addr,
            ejected: node.ejected().map(Reason::as_str),
            remaining: kept
                .and_then(|kept| kept.get(&node.addr)?.until)
                .map(|until| until.saturating_duration_since(now)),
            share: 1.0 - f64::from(node.cold()) / 256.0,
        };
        health.nodes().iter().map(server).collect()
    }

    /// The limits that follow how long answers take, by upstream.
    pub fn adaptive_limit(&self, key: &Key) -> Option<u32> {
        let load = self.upstreams.get(key)?.watched.load.as_ref()?;
        load.adaptive.map(|adaptive| match load.in_use.adaptive.load(Ordering::Relaxed) {
            0 => adaptive.max,
            limit => limit,
        })
    }
}

/// Ejects servers that fail too often or take too long, the worst first.
fn judge(health: &Health, outlier: &Outlier) {
    if outlier.success_rate.is_none() && outlier.latency.is_none() {
        return;
    }
    let mut bad: Vec<(f64, usize, Reason)> = Vec::new();
    for (index, node) in health.nodes().iter().enumerate() {
        let Tally { requests, failures, micros } = node.take();
        if requests < outlier.min_requests || node.ejected().is_some() {
            continue;
        }
        let good = requests.saturating_sub(failures);
        let rate = f64::from(good) * 100.0 / f64::from(requests);
        let mean = Duration::from_micros(micros / u64::from(good.max(1)));
        if outlier.success_rate.is_some_and(|least| rate < least) {
            bad.push((rate - 100.0, index, Reason::SuccessRate));
        } else if outlier.latency.is_some_and(|most| good > 0 && mean > most) {
            bad.push((-mean.as_secs_f64(), index, Reason::Latency));
        }
    }
    bad.sort_by(|a, b| a.0.total_cmp(&b.0));
    bad.into_iter().for_each(|(_, index, reason)| _ = health.eject(index, reason));
}

/// Notes who is out since when, and takes in again whose time is over.
fn keep_out(
    key: &Key,
    health: &Health,
    servers: &mut HashMap<SocketAddr, Kept>,
    (once, most): (Duration, Duration),
    now: Instant,
) {
    for (index, node) in health.nodes().iter().enumerate() {
        let addr = node.addr;
        match (node.ejected(), servers.get_mut(&addr)) {
            (Some(reason), kept) if kept.as_ref().is_none_or(|kept| kept.until.is_none()) => {
                let kept = servers.entry(addr).or_default();
                kept.times = kept.times.saturating_add(1);
                let time = once.saturating_mul(kept.times).min(most.max(once));
                kept.until = Some(now + time);
                let (why, seconds) = (reason.as_str(), time.as_secs_f64());
                tracing::warn!("{key}: node {addr} is ejected for {seconds} s: {why}");
            }
            (Some(_), Some(kept)) if kept.until.is_some_and(|until| until <= now) => {
                kept.until = None;
                kept.back_since = Some(now);
                health.readmit(index);
                tracing::info!("{key}: node {addr} is no longer ejected");
                let _ = node.take();
            }
            // After staying in for the longest ejection time, a server starts afresh.
            (None, Some(kept)) if kept.back_since.is_some_and(|since| now - since >= most) => {
                *kept = Kept { warms_since: kept.warms_since, ..Kept::default() };
            }
            _ => {}
        }
    }
}

/// Gives more to servers that warm up.
fn warm(health: &Health, servers: &mut HashMap<SocketAddr, Kept>, time: Duration, now: Instant) {
    for (index, node) in health.nodes().iter().enumerate() {
        let kept = servers.entry(node.addr).or_default();
        match (node.cold(), kept.warms_since) {
            (0, _) => kept.warms_since = None,
            (u8::MAX, None) => kept.warms_since = Some(now),
            (_, since) => {
                let part = (now - since.unwrap_or(now)).as_secs_f64() / time.as_secs_f64().max(0.001);
                // Never nothing: it has to be asked to get warm.
                health.set_cold(index, (230.0 * (1.0 - part).clamp(0.0, 1.0)) as u8);
            }
        }
    }
}

/// Moves a limit by the gradient: how long answers usually take, over how long they take now. It grows
/// only where it is used, by the square root of itself, so that there is room to find out more.
fn adapt(in_use: &InUse, settings: AdaptiveConcurrency, usual: f64) -> f64 {
    let (answers, mean, peak) = in_use.take();
    if answers < FEW_ANSWERS {
        return usual;
    }
    let now = (mean as f64).max(1.0);
    let (least, most) = (f64::from(settings.min), f64::from(settings.max.max(settings.min)));
    let limit = match in_use.adaptive.load(Ordering::Relaxed) {
        0 => f64::from(settings.min).max(f64::from(peak)),
        limit => f64::from(limit),
    };
    // The usual time follows slowly, down faster than up: what is slow for a moment is not usual.
    let usual = match usual {
        0.0 => now,
        usual if now < usual => usual * 0.9 + now * 0.1,
        usual => usual * 0.99 + now * 0.01,
    };
    let gradient = (usual * settings.tolerance / now).clamp(0.5, 1.0);
    let wanted = limit * gradient + limit.sqrt();
    let wanted = if wanted > limit && f64::from(peak) < limit / 2.0 { limit } else { wanted };
    let next = (limit * 0.8 + wanted * 0.2).clamp(least, most);
    // Rounded away from where it is, or small steps would never add up.
    let next = if wanted > limit { next.ceil() } else { next.floor() };
    in_use.adaptive.store((next as u32).max(1), Ordering::Relaxed);
    usual
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use snapshot::health::TryFailure;
    use snapshot::{Endpoint, PassHost};

    use super::*;

    fn health(own: Value, nodes: usize) -> Arc<Health> {
        let own = model::Upstream::parse(&json!({"nodes": {}, "sluice": own})).unwrap().own.unwrap();
        let endpoint = |n: usize| {
            let addr = SocketAddr::from(([127, 0, 0, 1], n as u16 + 1));
            Endpoint { addr, authority: addr.to_string().into(), weight: 1, priority: 0 }
        };
        let endpoints: Vec<Endpoint> = (0..nodes).map(endpoint).collect();
        Arc::new(Health::new(None, Some(&own), &endpoints, &PassHost::Pass).unwrap())
    }

    fn care(health: &Arc<Health>) -> (Care, Key) {
        let key = Key::new(model::Kind::Upstream, "1");
        let mut care = Care::default();
        care.want(&[Watched { key: key.clone(), health: Some(health.clone()), load: None }]);
        (care, key)
    }

    async fn pass(care: &mut Care, seconds: u64) {
        for _ in 0..seconds * 4 {
            care.step();
            tokio::time::sleep(STEP).await;
        }
        care.step();
    }

    fn out(health: &Health) -> Vec<Option<&'static str>> {
        health.nodes().iter().map(|node| node.ejected().map(Reason::as_str)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_often_or_is_slow_is_out_for_a_while_and_longer_the_next_time() {
        let own = json!({"outlier": {
            "success_rate": 80, "latency": 0.1, "min_requests": 10, "interval": 1, "ejection_time": 5,
            "max_ejection_time": 8, "max_ejected_percent": 60,
        }});
        let health = health(own, 5);
        let (mut care, key) = care(&health);
        care.step();
        let traffic = |health: &Health| {
            for n in 0..20 {
                health.answered(0, if n < 5 { 500 } else { 200 }, 1_000);
                health.answered(1, 200, 200_000);
                health.answered(2, 200, 1_000);
                health.answered(3, if n < 4 { 503 } else { 200 }, 50_000);
            }
            // Too few to be judged.
            (0..9).for_each(|_| health.failed(4, TryFailure::Connection, None));
        };
        traffic(&health);
        pass(&mut care, 1).await;
        assert_eq!(out(&health), [Some("success_rate"), Some("latency"), None, None, None]);
        let servers = care.servers(&health, &key);
        assert!(servers[0].remaining.unwrap() > Duration::from_secs(3) && servers[2].remaining.is_none());
        pass(&mut care, 6).await;
        assert_eq!(out(&health), [None; 5]);
        traffic(&health);
        pass(&mut care, 6).await;
        assert_eq!(out(&health)[0], Some("success_rate"), "eight seconds now");
        pass(&mut care, 4).await;
        assert_eq!(out(&health), [None; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_gets_ever_more() {
        let health =
            health(json!({"slow_start": 10, "outlier": {"consecutive_failures": 1, "ejection_time": 1}}), 2);
        let (mut care, key) = care(&health);
        pass(&mut care, 1).await;
        health.failed(0, TryFailure::Connection, None);
        assert_eq!(out(&health)[0], Some("consecutive_failures"));
        pass(&mut care, 2).await;
        assert_eq!(out(&health)[0], None);
        let mut shares = Vec::new();
        for _ in 0..12 {
            pass(&mut care, 1).await;
            shares.push(care.servers(&health, &key)[0].share);
        }
        assert!(shares[0] < 0.4 && shares.is_sorted() && shares[11] == 1.0, "{shares:?}");
        assert_eq!(care.servers(&health, &key)[1].share, 1.0);
    }

    #[test]
    fn a_limit_falls_when_answers_take_longer_and_grows_where_it_is_used() {
        let settings = AdaptiveConcurrency { min: 5, max: 100, tolerance: 1.5 };
        let load = snapshot::load::Load {
            limits: Default::default(),
            adaptive: Some(settings),
            in_use: Arc::default(),
        };
        let run = |micros: u64, at_a_time: usize, steps: usize, mut usual: f64| {
            for _ in 0..steps {
                let places: Vec<_> = (0..at_a_time).filter_map(|_| load.request().ok()).collect();
                (0..20).for_each(|_| load.answered(micros));
                drop(places);
                usual = adapt(&load.in_use, settings, usual);
            }
            usual
        };
        let limit = || load.in_use.adaptive.load(Ordering::Relaxed);
        let usual = run(1_000, 200, 100, 0.0);
        assert_eq!(limit(), 100, "as high as it may");
        let usual = run(10_000, 200, 30, usual);
        assert!(limit() < 40, "{}", limit());
        let low = limit();
        let usual = run(1_000, 1, 30, usual);
        assert_eq!(limit(), low, "one request at a time shows nothing");
        run(1_000, 200, 100, usual);
        assert!(limit() > 80, "{}", limit());
    }
}
