//! R10: a real etcd, of three members or of one that asks for a password and whose tokens end every second, with
//! everything done to it that lost changes elsewhere.
//!
//! Routes are written and deleted, by the Admin API and past it, one or two at once, while members stand still, die and
//! come back, the leader changes, the way to them is cut, half cut, slow or breaks, history is compacted and the gateway
//! is killed. Each answer must show a version that was written and none older than one seen before; in the end what is
//! served is what etcd holds, and no write is missing that was acknowledged.

use super::site::Site;
use super::{Row, Trial, ms};
use crate::client::Call;
use crate::etcd::{Etcd, Wanted};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// Timeout for the versions to agree.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fault of the cluster or the gateway.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Stop,
    Kill,
    Cut,
    CutAndCompact,
    /// Requests arrive, but responses are lost.
    HalfCut,
    Late,
    /// Answers come three bytes at a time.
    Crumbs,
    /// All connections are reset, and the new ones again.
    Reset,
    Compact,
    Defragment,
    KillGateway,
    /// Of three members: one alone does without this last one.
    MoveLeader,
}

const FAULTS: [Fault; 12] = [
    Fault::Stop,
    Fault::Kill,
    Fault::Cut,
    Fault::CutAndCompact,
    Fault::HalfCut,
    Fault::Late,
    Fault::Crumbs,
    Fault::Reset,
    Fault::Compact,
    Fault::Defragment,
    Fault::KillGateway,
    Fault::MoveLeader,
];

/// The known versions of a route.
#[derive(Default, Clone, Copy)]
struct Known {
    /// The newest version that was sent; a deletion is one, too.
    sent: u64,
    /// The newest that was acknowledged.
    acknowledged: u64,
    /// The newest that was served.
    seen: u64,
    /// Number of rounds without writes, after a write without a response that may still be applied:
    /// if it is applied late, it would be older than a later write.
    rests: u8,
}

struct Run {
    site: Site,
    etcd: Etcd,
    members: usize,
    /// How long a member may stand still, and anything else last.
    longest: [Duration; 2],
    ctl: String,
    routes: Vec<Known>,
    probes: u64,
    failed: Vec<String>,
    /// When the connection of the probes was used last: how long it was idle belongs to a failure.
    asked: Instant,
    /// Versions that were never written, or older than one seen before.
    wrong: Vec<String>,
}

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let wanted = Wanted { members: 3, relay: true, ..Wanted::default() };
    suffer_all(trial, &wanted, "", false)
}

/// One member, of users who have to say again and again who they are.
pub fn run_alone(trial: &Trial) -> Result<Vec<Row>> {
    let certs = crate::root().join("tests/certs").display().to_string();
    let token = format!(
        "--auth-token=jwt,pub-key={certs}/server-rsa.crt,priv-key={certs}/server-rsa.key,sign-method=RS256,ttl=1s"
    );
    let wanted = Wanted { relay: true, args: vec![token], ..Wanted::default() };
    suffer_all(trial, &wanted, ", one member with users", true)
}

/// A gateway over a cluster that all of it is done to, which may ask for a user and a password.
fn suffer_all(trial: &Trial, wanted: &Wanted, what: &str, users: bool) -> Result<Vec<Row>> {
    let faults = if wanted.members > 1 { &FAULTS[..] } else { &FAULTS[..FAULTS.len() - 1] };
    let count = trial.pick(faults.len(), 100);
    // A run can be had again, as far as that goes with several processes.
    let seed = std::env::var("SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::Builder::new().prefix("sluice-etcd-").tempdir()?;
    let etcd = Etcd::start(wanted, folder.path())?;
    let mut ctl = format!("{} --command-timeout=1s", etcd.ctl()?);
    let mut config = etcd.provides();
    if users {
        for command in ["user add root:secret", "user grant-role root root", "auth enable"] {
            asked(&format!("{ctl} {command}"))?;
        }
        ctl += " --user root:secret";
        config["deployment"]["etcd"]["user"] = "root".into();
        config["deployment"]["etcd"]["password"] = "secret".into();
    }
    let site = Site::start(trial.program, config, "")?;
    let routes = vec![Known::default(); trial.pick(24, 200)];
    let mut run = Run {
        site,
        etcd,
        members: wanted.members,
        longest: trial.pick([1500, 1500], [20_000, 3500]).map(Duration::from_millis),
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
        let fault = faults.get(round).copied().unwrap_or_else(|| faults[random.usize(..faults.len())]);
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
            &format!("failed requests{what}"),
            "0",
            format!("{} of {probes} {}", failed.len(), failed.first().cloned().unwrap_or_default()),
            failed.is_empty() && probes > 0,
        ),
        Row::new(
            "R10",
            &format!("versions that were never written, or older than one seen{what}"),
            "0",
            format!("{}, seed {seed} {first}", wrong.len()),
            wrong.is_empty(),
        ),
        Row::new(
            "R10",
            &format!("routes without an acknowledged write{what}"),
            "0",
            format!("{missing} of {acknowledged}"),
            missing == 0 && acknowledged > 0,
        ),
        Row::figure(
            "R10",
            &format!("served as in etcd again after {count} faults{what}"),
            "2 s",
            ms(slowest),
            slowest <= Duration::from_secs(2),
        ),
    ])
}

impl Run {
    fn suffer(&mut self, fault: Fault, random: &mut fastrand::Rng) -> Result<()> {
        let member = random.usize(1..=self.members);
        let longest = self.longest[usize::from(!matches!(fault, Fault::Stop))];
        let lasts = longest.mul_f64(0.2 + 0.8 * random.f64());
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
            Fault::HalfCut | Fault::Late | Fault::Crumbs => {
                self.etcd.command(match fault {
                    Fault::HalfCut => "half-cut",
                    Fault::Late => "late",
                    _ => "crumbs",
                })?;
                self.work(lasts, random);
                self.etcd.command("heal")
            }
            Fault::Reset => {
                for _ in 0..4 {
                    self.etcd.command("reset")?;
                    self.work(lasts / 4, random);
                }
                Ok(())
            }
            Fault::MoveLeader => {
                self.work(lasts / 4, random);
                self.move_leader()?;
                self.work(lasts / 4, random);
                Ok(())
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
                let number = random.usize(..self.routes.len());
                self.probe(number);
            }
        }
    }

    /// Puts or deletes a route, through the Admin API or directly. The result may stay unknown.
    fn write(&mut self, random: &mut fastrand::Rng) {
        let number = random.usize(..self.routes.len());
        // Another one in the same transaction, or none.
        let other = (number + 1 + random.usize(..self.routes.len() - 1)) % self.routes.len();
        if [number, other].iter().any(|number| self.routes[*number].rests > 0) {
            return;
        }
        let [first, second] = [number, other].map(|number| (number, self.routes[number].sent + 1));
        let (path, past) = (|(number, _)| format!("/apisix/routes/{}", id(number)), random.bool());
        let route = |(number, version): (usize, u64)| version_of(&self.site, number, version);
        let (written, done) = match (random.u8(..4), past) {
            (0, _) => (&[first][..], self.ctl(&format!("del {}", path(first))).map(drop)),
            (1, true) => {
                // A text in double quotes, as etcdctl reads it there.
                let value = route(first).to_string();
                let steps = format!("put {} {value:?}\ndel {}", path(first), path(second));
                (
                    &[first, second][..],
                    asked(&format!("{} txn <<'TXN'\n\n{steps}\n\n\nTXN", self.ctl)).map(drop),
                )
            }
            (1, false) => {
                let put =
                    |it| json!({"method": "PUT", "path": path(it).replace("/apisix", ""), "body": route(it)});
                let batch = json!({"operations": [put(first), put(second)]});
                let call = Call::new("POST", "/apisix/admin/batch");
                (&[first, second][..], self.site.writer().send(call, &batch))
            }
            (_, true) => {
                (&[first][..], self.ctl(&format!("put {} '{}'", path(first), route(first))).map(drop))
            }
            (_, false) => {
                let route = route(first);
                (&[first][..], self.site.writer().put(&format!("routes/{}", id(number)), &route))
            }
        };
        for (number, version) in written {
            let known = &mut self.routes[*number];
            known.sent = *version;
            match done {
                Ok(()) => known.acknowledged = *version,
                Err(_) => known.rests = 2,
            }
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
            for number in 0..self.routes.len() {
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

    /// The versions in etcd, by id.
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

    /// Makes another member the leader, if there is one that leads.
    fn move_leader(&self) -> Result<()> {
        let answer: Value = serde_json::from_str(&self.ctl("endpoint status -w json")?)?;
        let states: Vec<&Value> =
            answer.as_array().into_iter().flatten().filter_map(|one| one.get("Status")).collect();
        let leader = states.first().and_then(|state| state["leader"].as_u64()).context("no leader")?;
        let ids = states.iter().filter_map(|state| state.pointer("/header/member_id")?.as_u64());
        let other = ids.into_iter().find(|id| *id != leader).context("no other member")?;
        self.ctl(&format!("move-leader {other:x}")).map(drop)
    }

    fn ctl(&self, command: &str) -> Result<String> {
        asked(&format!("{} {command}", self.ctl))
    }
}

/// The output of a shell command.
fn asked(command: &str) -> Result<String> {
    let asked = Command::new("bash").arg("-c").arg(command).output()?;
    ensure!(asked.status.success(), "{command}: {}", String::from_utf8_lossy(&asked.stderr));
    Ok(String::from_utf8(asked.stdout)?)
}

fn id(number: usize) -> String {
    format!("n{number}")
}

fn version_of(site: &Site, number: usize, version: u64) -> Value {
    let plugins = json!({"response-rewrite": {"headers": {"set": {"X-Version": version.to_string()}}}});
    site.route(&format!("/{}", id(number)), json!({ "id": id(number), "plugins": plugins }))
}
