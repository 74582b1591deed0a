//! R3: routes changed a hundred times a second under load.
//!
//! The load goes to the very routes that are changed, so every request meets a fresh snapshot.

use super::load::{Load, RATE};
use super::site::{Site, growth, settled};
use super::{Row, Trial, ms, quantile};
use crate::etcd::{Etcd, Wanted};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const ROUTES: u64 = 7;
const EVERY: Duration = Duration::from_millis(10);
/// Connections that are asked for the new version: they are spread over the workers.
const PROBES: usize = 4;
/// A version not seen by then is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    load_and_change(trial, "", json!(null), 50)
}

/// The same where the store is a real etcd.
pub fn run_with_etcd(trial: &Trial) -> Result<Vec<Row>> {
    let folder = tempfile::Builder::new().prefix("sluice-etcd-").tempdir()?;
    let etcd = Etcd::start(&Wanted::default(), folder.path())?;
    load_and_change(trial, " with etcd", etcd.provides(), 200)
}

/// `soon`: how many milliseconds after its answer 99 % of the changes are to be seen everywhere.
fn load_and_change(trial: &Trial, store: &str, config: Value, soon: u64) -> Result<Vec<Row>> {
    let count: u64 = trial.pick(300, 6000);
    let mut site = Site::start(trial.program, config, "")?;
    for number in 0..ROUTES {
        site.put(&path(number), &version(&site, number, 0))?;
    }
    let paths: Vec<String> = (0..ROUTES).map(|number| format!("/v{number}")).collect();
    let load = Load::start(&site.proxy, &paths, RATE);
    // Warm: some changes under load, then a quiet time to compare with.
    change(&mut site, trial.pick(100, 700), 0, |_| ())?;
    load.take();
    std::thread::sleep(Duration::from_secs(trial.pick(2, 15)));
    let mut quiet = load.take();
    let rss = site.rss_kib()?;

    let began = Instant::now();
    let mut changes = change(&mut site, count, 1_000_000, |done| {
        trial.progress(done as f64 / count as f64, &format!("{done} changes"));
    })?;
    let took = began.elapsed();
    let mut busy = load.take();
    std::thread::sleep(Duration::from_secs(trial.pick(2, 10)));
    let most = trial.pick(20.0, 5.0);
    let grown = settled(most, || Ok(growth(rss, site.rss_kib()?)))?;
    let after = load.stop();

    let failed = quiet.failed + busy.failed + after.failed;
    let (calm, under) = (quantile(&mut quiet.times, 0.99), quantile(&mut busy.times, 0.99));
    let (seen_half, seen) = (quantile(&mut changes.seen, 0.5), quantile(&mut changes.seen, 0.99));
    // In the short form a single stall of the machine is one of few requests: it shows that nothing
    // hangs, the long one how little it takes.
    let allowed = (calm * 2).max(trial.pick(Duration::from_secs(1), Duration::from_millis(2)));
    let soon = Duration::from_millis(trial.pick(500, soon));
    let what = format!("failed requests, {count} changes in {:.0} s{store}", took.as_secs_f64());
    Ok(vec![
        Row::new("R3", &what, "0", busy.verdict(), failed == 0),
        Row::new(
            "R3",
            &format!("failed writes{store}"),
            "0",
            format!("{} of {count}", changes.failed),
            changes.failed == 0,
        ),
        Row::figure(
            "R3",
            &format!("a change seen on all workers{store}"),
            &format!("99 % in {}", ms(soon)),
            format!("half in {}, 99 % in {}", ms(seen_half), ms(seen)),
            seen <= soon,
        ),
        Row::figure(
            "R3",
            &format!("time of a request, 99 %{store}"),
            &format!("2 x {}", ms(calm)),
            ms(under),
            under <= allowed,
        ),
        Row::new("R3", &format!("memory afterwards{store}"), "+5 %", format!("{grown:+.1} %"), grown <= most),
    ])
}

#[derive(Default)]
struct Changes {
    failed: u64,
    /// From a write's answer to the last probe that saw it.
    seen: Vec<Duration>,
}

/// Makes `count` changes, one every 10 ms, and checks each with every probe.
fn change(site: &mut Site, count: u64, first: u64, mut tell: impl FnMut(u64)) -> Result<Changes> {
    let mut writer = site.writer();
    let mut changes = Changes::default();
    let began = Instant::now();
    for done in 0..count {
        let due = began + EVERY * u32::try_from(done)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let number = done % ROUTES;
        let wanted = first + done + 1;
        if writer.put(&path(number), &version(site, number, wanted)).is_err() {
            changes.failed += 1;
            continue;
        }
        let answered = Instant::now();
        for probe in 0..PROBES {
            while seen(site, number, probe)? != wanted {
                ensure!(answered.elapsed() < PATIENCE, "version {wanted} is not live after {PATIENCE:?}");
            }
        }
        changes.seen.push(answered.elapsed());
        if done % 50 == 0 {
            tell(done);
        }
    }
    Ok(changes)
}

fn path(number: u64) -> String {
    format!("routes/v{number}")
}

fn version(site: &Site, number: u64, version: u64) -> Value {
    let plugins = json!({"response-rewrite": {"headers": {"set": {"X-Version": version.to_string()}}}});
    site.route(&format!("/v{number}/*"), json!({ "plugins": plugins }))
}

fn seen(site: &mut Site, number: u64, probe: usize) -> Result<u64> {
    let answer = site.get(&format!("/v{number}/probe"), &format!("probe {probe}"))?;
    ensure!(answer.message.status() == 200, "a probe got {}", answer.message.line);
    Ok(answer.message.first("x-version").and_then(|text| text.parse().ok()).unwrap_or(0))
}
