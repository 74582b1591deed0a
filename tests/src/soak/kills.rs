//! R4: SIGKILL at random moments while routes are written.
//!
//! After each kill the gateway must start cleanly, soon, and with every write it had answered: at once where the store is
//! its own; where that is etcd, as soon as it has caught up with it.

use super::site::{Site, Writer};
use super::{Row, Trial, ms, quantile};
use crate::etcd::{Etcd, Wanted};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;
/// Routes of each writer: few, so that most writes replace.
const ROUTES: usize = 5;
/// From exec to the first right answer.
const START: Duration = Duration::from_millis(300);

/// Timeout for catching up.
const PATIENCE: Duration = Duration::from_secs(60);

/// For each route the newest version that was answered, and the newest that was sent.
type Versions = Vec<(AtomicU64, AtomicU64)>;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    kill(trial, "", json!(null), Duration::ZERO)
}

/// The same with a real etcd as the store.
pub fn run_with_etcd(trial: &Trial) -> Result<Vec<Row>> {
    let folder = tempfile::Builder::new().prefix("sluice-etcd-").tempdir()?;
    let etcd = Etcd::start(&Wanted::default(), folder.path())?;
    kill(trial, " with etcd", etcd.provides(), PATIENCE)
}

/// `patience`: for how long what is served may be older than what was answered.
fn kill(trial: &Trial, store: &str, config: Value, patience: Duration) -> Result<Vec<Row>> {
    let rounds: u32 = trial.pick(5, 100);
    let mut site = Site::start(trial.program, config, "")?;
    site.put("routes/anchor", &version(&site, "/anchor", 1))?;
    let versions: Versions = (0..WRITERS * ROUTES).map(|_| Default::default()).collect();
    let (mut starts, mut lost, mut wrong) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        let pause = Duration::from_millis(fastrand::u64(20..300));
        churn(&mut site, &versions, pause)?;
        let started = Instant::now();
        site.resume().with_context(|| format!("start after kill {}", round + 1))?;
        ensure!(
            served(&mut site, "/anchor")? == Some(1),
            "the first answer after kill {} is wrong",
            round + 1
        );
        starts.push(started.elapsed());
        for (number, (answered, sent)) in versions.iter().enumerate() {
            let answered = answered.load(Ordering::SeqCst);
            let there = loop {
                let there = served(&mut site, &format!("/w{number}"))?.unwrap_or(0);
                if there >= answered || started.elapsed() >= patience {
                    break there;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            lost += u64::from(there < answered);
            wrong += u64::from(there > sent.load(Ordering::SeqCst));
        }
        trial.progress(
            f64::from(round) / f64::from(rounds),
            &format!("{} kills, {lost} writes lost", round + 1),
        );
    }
    let total: u64 = versions.iter().map(|(answered, _)| answered.load(Ordering::SeqCst)).sum();
    let most = quantile(&mut starts, 1.0);
    let start = format!("half in {}, all in {}", ms(quantile(&mut starts, 0.5)), ms(most));
    Ok(vec![
        Row::new(
            "R4",
            &format!("clean starts after SIGKILL{store}"),
            &rounds.to_string(),
            starts.len(),
            true,
        ),
        Row::new(
            "R4",
            &format!("acknowledged writes lost{store}"),
            "0",
            format!("{lost} of about {total}"),
            lost == 0 && wrong == 0 && total > u64::from(rounds),
        ),
        // Debug builds, which the cases use, are slow at everything.
        Row::figure(
            "R4",
            &format!("exec to the first answer{store}"),
            "300 ms",
            start,
            most <= START * trial.pick(4, 1),
        ),
    ])
}

/// Writes from several threads for `pause`, then kills the gateway in the middle of it.
fn churn(site: &mut Site, versions: &Versions, pause: Duration) -> Result<()> {
    let shared = &*site;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || write(shared, shared.writer(), writer, versions));
        }
        std::thread::sleep(pause);
        shared.strike()
    })?;
    site.kill()
}

fn write(site: &Site, mut own: Writer, writer: usize, versions: &Versions) {
    for turn in 0.. {
        let number = writer * ROUTES + turn % ROUTES;
        let (answered, sent) = &versions[number];
        let next = sent.fetch_add(1, Ordering::SeqCst) + 1;
        let route = version(site, &format!("/w{number}"), next);
        match own.put(&format!("routes/w{number}"), &route) {
            Ok(()) => answered.store(next, Ordering::SeqCst),
            Err(_) => return,
        }
    }
}

fn version(site: &Site, uri: &str, version: u64) -> Value {
    let plugins = json!({"response-rewrite": {"headers": {"set": {"X-Version": version.to_string()}}}});
    site.route(uri, json!({ "plugins": plugins }))
}

/// The version of a route that is served; `None` for a route that is not there.
fn served(site: &mut Site, uri: &str) -> Result<Option<u64>> {
    let message = site.get(uri, "one")?.message;
    match message.status() {
        404 => Ok(None),
        200 => Ok(message.first("x-version").and_then(|text| text.parse().ok())),
        _ => anyhow::bail!("{uri}: {}", message.line),
    }
}
