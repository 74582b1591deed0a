//! R10: a real etcd of three members, with everything done to it that lost changes elsewhere.
//!
//! Routes are written and deleted, by the Admin API and past it, while members stand still, die and come back, the
//! way to them is cut, history is compacted and the gateway is killed. Each answer must show a version that
//! was written and none older than one seen before; in the end what is served is what etcd holds, and no
//! write is missing that was acknowledged.

use super::site::Site;
use super::{Row, Trial, ms};
use crate::etcd::{Etcd, Wanted};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

const ROUTES: usize = 24;
/// What is not the same by then never will be.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done to the cluster or the gateway.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Stop,
    Kill,
    Cut,
    CutAndCompact,
    Compact,
    Defragment,
    KillGateway,
}

const FAULTS: [Fault; 7] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Cut,
    Fault::CutAndCompact,
    Fault::Compact,
    Fault::Defragment,
    Fault::KillGateway,
];

/// What is known of a route.
#[derive(Default, Clone, Copy)]
struct Known {
    /// The newest version that was sent; a deletion is one, too.
    sent: u64,
    /// The newest that was acknowledged.
    acknowledged: u64,
    /// The newest that was served.
    seen: u64,
    /// A write was answered by nobody and may still be made, so that nothing is written for so many rounds:
    /// what comes late would be older than what came after it.
    rests: u8,
}

struct Run {
    site: Site,
    etcd: Etcd,
    ctl: String,
    routes: Vec<Known>,
    probes: u64,
    failed: Vec<String>,
    /// When the connection of the probes was used last: how long it was idle belongs to a failure.
    asked: Instant,
    /// Versions that nobody wrote, or older than one seen before.
    wrong: Vec<String>,
}

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let count = trial.pick(FAULTS.len(), 120);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::Builder::new().prefix("sluice-etcd-").tempdir()?;
    let etcd = Etcd::start(&Wanted { members: 3, relay: true, ..Wanted::default() }, folder.path())?;
    let config = json!({"deployment": {
        "role_traditional": {"config_provider": "etcd"},
        "etcd": {"host": etcd.hosts()},
    }});
    let site = Site::start(trial.program, config, "")?;
    let ctl = format!("{} --command-timeout=1s", etcd.ctl()?);
    let routes = vec![Known::default(); ROUTES];
    let mut run = Run {
        site,
        etcd,
        ctl,
        routes,
        probes: 0,
        failed: Vec::new(),
        asked: Instant::now(),
        wrong: Vec::new(),
    };
    let mut slowest = Duration::ZERO;
    for round in 0..count {
        // Each at least once, then by chance.
        let fault = FAULTS.get(round).copied().unwrap_or_else(|| FAULTS[random.usize(..FAULTS.len())]);
        run.suffer(fault, &mut random).with_context(|| format!("{fault:?}, seed {seed}"))?;
        let same = run.settle().with_context(|| format!("after {fault:?}, seed {seed}"))?;
        slowest = slowest.max(same);
        trial.progress(round as f64 / count as f64, &format!("{fault:?}, {} probes", run.probes));
    }
    let missing = run.missing()?;
    let Run { probes, failed, wrong, routes, .. } = run;
    let acknowledged = routes.iter().filter(|route| route.acknowledged > 0).count();
    let first = wrong.first().cloned().unwrap_or_default();
    Ok(vec![
        Row::new(
            "R10",
            "failed requests",
            "0",
            format!("{} of {probes} {}", failed.len(), failed.first().cloned().unwrap_or_default()),
            failed.is_empty() && probes > 0,
        ),
        Row::new(
            "R10",
            "versions nobody wrote, or older than one seen",
            "0",
            format!("{}, seed {seed} {first}", wrong.len()),
            wrong.is_empty(),
        ),
        Row::new(
            "R10",
            "routes without an acknowledged write",
            "0",
            format!("{missing} of {acknowledged}"),
            missing == 0 && acknowledged > 0,
        ),
        Row::figure(
            "R10",
            &format!("served as in etcd again after {count} faults"),
            "2 s",
            ms(slowest),
            slowest <= Duration::from_secs(2),
        ),
    ])
}

impl Run {
    fn suffer(&mut self, fault: Fault, random: &mut fastrand::Rng) -> Result<()> {
        let member = random.usize(1..=3);
        let lasts = Duration::from_millis(random.u64(500..3500));
        match fault {
            Fault::Stop => {
                self.etcd.command(&format!("stop {member}"))?;
                self.work(lasts, random);
                self.etcd.command(&format!("cont {member}"))
            }
            Fault::Kill => {
                self.etcd.command(&format!("kill {member}"))?;
                self.work(lasts, random);
                self.etcd.command(&format!("start {member}"))
            }
            Fault::Cut | Fault::CutAndCompact => {
                self.etcd.command("cut")?;
                self.work(lasts, random);
                if matches!(fault, Fault::CutAndCompact) {
                    self.compact()?;
                }
                self.etcd.command("heal")
            }
            Fault::Compact => {
                self.work(lasts / 4, random);
                self.compact()?;
                self.work(lasts / 4, random);
                Ok(())
            }
            Fault::Defragment => {
                self.work(lasts / 4, random);
                self.ctl("defrag")?;
                Ok(())
            }
            Fault::KillGateway => {
                self.work(lasts / 4, random);
                self.site.kill()?;
                self.write(random);
                // The copy it starts from may be some milliseconds old.
                self.routes.iter_mut().for_each(|route| route.seen = 0);
                self.site.resume().map(drop)
            }
        }
    }

    /// Writes and looks, for so long.
    fn work(&mut self, lasts: Duration, random: &mut fastrand::Rng) {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            self.write(random);
            for _ in 0..20 {
                let number = random.usize(..ROUTES);
                self.probe(number);
            }
        }
    }

    /// Puts or deletes a route, by the Admin API or past it. What becomes of it may stay unknown.
    fn write(&mut self, random: &mut fastrand::Rng) {
        let number = random.usize(..ROUTES);
        if self.routes[number].rests > 0 {
            return;
        }
        let (delete, past) = (random.u8(..4) == 0, random.bool());
        let version = self.routes[number].sent + 1;
        self.routes[number].sent = version;
        let route = version_of(&self.site, number, version);
        let done = match (delete, past) {
            (true, _) => self.ctl(&format!("del /apisix/routes/{}", id(number))).map(drop),
            (false, true) => self.ctl(&format!("put /apisix/routes/{} '{route}'", id(number))).map(drop),
            (false, false) => self.site.writer().put(&format!("routes/{}", id(number)), &route),
        };
        match done {
            Ok(()) => self.routes[number].acknowledged = version,
            Err(_) => self.routes[number].rests = 2,
        }
    }

    /// Looks at what is served; the version, if there is one.
    fn probe(&mut self, number: usize) -> Option<u64> {
        self.probes += 1;
        let idle = std::mem::replace(&mut self.asked, Instant::now()).elapsed();
        let served = match self.site.get(&format!("/{}", id(number)), "probe") {
            Ok(answer) if answer.message.status() == 404 => None,
            Ok(answer) if answer.message.status() == 200 => {
                answer.message.first("x-version").and_then(|text| text.parse().ok())
            }
            Ok(answer) => {
                self.failed.push(format!("{}: {}", id(number), answer.message.line));
                return None;
            }
            Err(error) => {
                self.failed.push(format!("{}: {error:#}, idle before for {}", id(number), ms(idle)));
                return None;
            }
        };
        let route = &mut self.routes[number];
        if let Some(version) = served {
            if version > route.sent || version < route.seen {
                let Known { sent, seen, .. } = route;
                self.wrong.push(format!("{}: {version}, seen {seen}, sent {sent}", id(number)));
            }
            route.seen = route.seen.max(version);
        }
        served
    }

    /// Waits until what is served is what etcd holds; how long that took.
    fn settle(&mut self) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let held = self.held()?;
            let mut differs = None;
            for number in 0..ROUTES {
                let served = self.probe(number);
                if served != held.get(&id(number)).copied() {
                    differs = Some((number, served, held.get(&id(number)).copied()));
                    break;
                }
            }
            let Some((number, served, held)) = differs else {
                self.routes.iter_mut().for_each(|route| route.rests = route.rests.saturating_sub(1));
                return Ok(began.elapsed());
            };
            ensure!(
                began.elapsed() < PATIENCE,
                "{} is served as {served:?}, etcd holds {held:?}:\n{}",
                id(number),
                self.site.log().lines().rev().take(20).collect::<Vec<_>>().join("\n")
            );
        }
    }

    /// Routes whose newest acknowledged write is not what etcd holds, nor a later one.
    fn missing(&self) -> Result<usize> {
        let held = self.held()?;
        let is_missing = |(number, route): &(usize, &Known)| match held.get(&id(*number)) {
            Some(version) => *version < route.acknowledged,
            // Deleted, by the newest write or by one of which nothing is known.
            None => false,
        };
        Ok(self.routes.iter().enumerate().filter(is_missing).count())
    }

    /// What etcd holds: versions by id.
    fn held(&self) -> Result<BTreeMap<String, u64>> {
        let until = Instant::now() + PATIENCE;
        let text = loop {
            match self.ctl("get --prefix --print-value-only /apisix/routes/") {
                Ok(text) => break text,
                // A member that has just come back asks for some patience.
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let read = |line: &str| {
            let value: Value = serde_json::from_str(line).ok()?;
            let version = value.pointer("/plugins/response-rewrite/headers/set/X-Version")?.as_str()?;
            Some((value.get("id")?.as_str()?.to_owned(), version.parse().ok()?))
        };
        Ok(text.lines().filter_map(read).collect())
    }

    fn compact(&self) -> Result<()> {
        let answer = self.ctl("get /apisix/none -w json")?;
        let answer: Value = serde_json::from_str(&answer)?;
        let revision = answer.pointer("/header/revision").and_then(Value::as_u64).context("no revision")?;
        // Nothing was written since the last time: that is no failure.
        let _ = self.ctl(&format!("compact {revision}"));
        Ok(())
    }

    fn ctl(&self, command: &str) -> Result<String> {
        let asked = Command::new("bash").arg("-c").arg(format!("{} {command}", self.ctl)).output()?;
        ensure!(asked.status.success(), "etcdctl {command}: {}", String::from_utf8_lossy(&asked.stderr));
        Ok(String::from_utf8(asked.stdout)?)
    }
}

fn id(number: usize) -> String {
    format!("n{number}")
}

fn version_of(site: &Site, number: usize, version: u64) -> Value {
    let plugins = json!({"response-rewrite": {"headers": {"set": {"X-Version": version.to_string()}}}});
    site.route(&format!("/{}", id(number)), json!({ "id": id(number), "plugins": plugins }))
}
