//! R17: the wall clock is set forward and back by an hour and by a year while the gateway runs with
//! traffic.
//!
//! Durations of the gateway (limits, bans, ages in memory, leases, the time to confirm a change)
//! are unaffected: none ends at once, and none lasts for ever. Dates follow the clock. The clock is
//! set for one process only: libfaketime replaces the system's clock.

use super::load::{Load, RATE};
use super::site::Site;
use super::{Row, Trial};
use crate::client::Call;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;
/// How far the clock is off, one after the other.
const STEPS: [i64; 8] = [-HOUR, 0, HOUR, 0, YEAR, 0, -YEAR, 0];
/// Timeout for durations to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How exactly a date has to follow: much less than any step, much more than any machine waits.
const EXACT: i64 = 900;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let library = crate::root().join("target/tools/libfaketimeMT.so.1");
    ensure!(
        library.is_file(),
        "there is no {}: `cargo x test` unpacks it from Debian's package",
        library.display()
    );
    let folder = tempfile::Builder::new().prefix("sluice-clock-").tempdir()?;
    let mut clock = Clock { path: folder.path().join("offset"), offset: 0 };
    clock.set(0)?;
    let mut site = Site::start(trial.program, json!(null), &clock.preload(&library))?;
    prepare(&mut site)?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE);
    let (mut lost, mut stuck, mut astray) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = trial.pick(1, 20);
    for round in 0..rounds {
        for (number, offset) in STEPS.into_iter().enumerate() {
            let done = (round * STEPS.len() + number) as f64 / (rounds * STEPS.len()) as f64;
            trial.progress(done, &format!("the clock is {offset} s off"));
            // Begun before the step, and over some time after it.
            let begun = Begun::at(&mut site)?;
            let before = clock.offset;
            clock.set(offset)?;
            let step = format!("from {before} to {offset} s");
            astray.extend(follows(&mut site, offset)?.map(|why| format!("{step}: {why}")));
            lost.extend(kept(&mut site)?.into_iter().map(|what| format!("{step}: {what}")));
            stuck.extend(begun.ends(&mut site)?.into_iter().map(|what| format!("{step}: {what}")));
            site.put("routes/live", &site.route("/live", json!({"desc": step})))?;
        }
    }
    let tally = load.stop();
    // A start by a clock that is off, with all that was kept.
    clock.set(-YEAR)?;
    site.kill()?;
    site.resume()?;
    let again = site.get("/lease", "one")?.message.status();
    let lives = site.lives() && again == 200;
    let steps = rounds * STEPS.len();
    let judged = |what: &str, wrong: Vec<String>| {
        let measured = if wrong.is_empty() { "0".to_owned() } else { wrong.join("; ") };
        Row::new("R17", &format!("{what}, {steps} steps of the clock"), "0", measured, wrong.is_empty())
    };
    Ok(vec![
        Row::new(
            "R17",
            &format!("failed requests, {steps} steps of the clock"),
            "0",
            tally.verdict(),
            tally.failed == 0 && tally.requests > 0,
        ),
        judged("limits, stored answers and leases lost", lost),
        judged("limits, bans, leases and changes that never end", stuck),
        judged("dates that do not follow", astray),
        Row::new("R17", "lives, and starts again by a clock a year behind", "yes", lives, lives),
    ])
}

/// The clock of the gateway.
struct Clock {
    path: PathBuf,
    offset: i64,
}

impl Clock {
    fn set(&mut self, offset: i64) -> Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, format!("{offset:+}\n"))?;
        // In one piece: it is read at any time.
        std::fs::rename(new, &self.path)?;
        self.offset = offset;
        Ok(())
    }

    /// Shell commands that put it in the place of the system's wall clock, and of no other.
    fn preload(&self, library: &Path) -> String {
        format!(
            "export LD_PRELOAD='{}' FAKETIME_TIMESTAMP_FILE='{}' FAKETIME_NO_CACHE=1 \
             FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1",
            library.display(),
            self.path.display()
        )
    }
}

/// Uses up what is to stay used up through all steps, and stores what is to stay stored.
fn prepare(site: &mut Site) -> Result<()> {
    let day = 24 * HOUR;
    let count =
        |count: u32, seconds: i64| json!({"count": count, "time_window": seconds, "rejected_code": 429});
    let cache = json!({"cache_strategy": "memory", "cache_zone": "memory_cache", "cache_ttl": day});
    let breaker = json!({"break_response_code": 599, "max_breaker_sec": 3, "unhealthy": {"http_statuses": [502], "failures": 1}});
    let dead = json!({"type": "roundrobin", "nodes": {"127.0.0.1:1": 1}});
    for (id, value) in [
        ("load", site.route("/load/*", json!({}))),
        ("day", site.route("/day", json!({"plugins": {"limit-count": count(1, day)}}))),
        ("second", site.route("/second", json!({"plugins": {"limit-count": count(1, 1)}}))),
        ("pace", site.route("/pace", json!({"plugins": {"limit-req": {"rate": 1, "burst": 0, "key": "remote_addr", "rejected_code": 429}}}))),
        ("cached", site.route("/cached", json!({"plugins": {"proxy-cache": cache}}))),
        ("ban", json!({"uri": "/ban", "upstream": dead, "plugins": {"api-breaker": breaker}})),
        ("lease?ttl=864000", site.route("/lease", json!({}))),
    ] {
        site.put(&format!("routes/{id}"), &value)?;
    }
    ensure!(
        status(site, "/day")? == 200 && status(site, "/day")? == 429,
        "a limit of one a day does not limit"
    );
    status(site, "/cached")?;
    ensure!(kept(site)?.is_empty(), "before any step: {:?}", kept(site)?);
    Ok(())
}

fn status(site: &mut Site, target: &str) -> Result<u16> {
    Ok(site.get(target, "one")?.message.status())
}

/// Lists the durations that should continue and have ended.
fn kept(site: &mut Site) -> Result<Vec<String>> {
    let mut gone = Vec::new();
    let mut look = |what: &str, there: bool| {
        if !there {
            gone.push(what.to_owned());
        }
    };
    look("the limit of a day", status(site, "/day")? == 429);
    let cached = site.get("/cached", "one")?.message;
    look("the stored answer", cached.first("apisix-cache-status") == Some("HIT"));
    look("the route with a lease of ten days", status(site, "/lease")? == 200);
    Ok(gone)
}

/// Waits until the dates of answers are those of the gateway's clock.
fn follows(site: &mut Site, offset: i64) -> Result<Option<String>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let message = site.get("/load/date", "one")?.message;
        let date = message.first("date").context("an answer without a date")?;
        let date = httpdate::parse_http_date(date)?.duration_since(UNIX_EPOCH)?.as_secs().cast_signed();
        let real = UNIX_EPOCH.elapsed()?.as_secs().cast_signed();
        if (date - real - offset).abs() < EXACT {
            return Ok(None);
        }
        if Instant::now() > until {
            return Ok(Some(format!("the date is {} s off", date - real)));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Things that end by themselves a little later.
struct Begun;

impl Begun {
    fn at(site: &mut Site) -> Result<Begun> {
        // Each of them is used up by now, if it was not before.
        for target in ["/second", "/pace", "/ban"] {
            status(site, target)?;
        }
        site.put("routes/short?ttl=1", &site.route("/short", json!({})))?;
        let change = Call::new("PUT", "/apisix/admin/routes/unconfirmed").header("X-Sluice-Confirm", "1s");
        site.admin(change, &site.route("/unconfirmed", json!({})))?;
        Ok(Begun)
    }

    /// Lists the durations that do not end.
    fn ends(self, site: &mut Site) -> Result<Vec<&'static str>> {
        let mut stuck = Vec::new();
        for (what, target, end) in [
            ("the limit of a second", "/second", 200),
            ("the pace of one a second", "/pace", 200),
            ("the ban of a broken upstream", "/ban", 502),
            ("the route with a lease of a second", "/short", 404),
            ("the unconfirmed change", "/unconfirmed", 404),
        ] {
            let until = Instant::now() + PATIENCE;
            while status(site, target)? != end {
                if Instant::now() > until {
                    stuck.push(what);
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(stuck)
    }
}
