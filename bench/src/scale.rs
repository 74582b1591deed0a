//! Large configurations: how long one takes to load, what an object costs in memory, how long a
//! change takes to be live on every worker, and what it costs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::admin::Admin;
use crate::certificate;
use crate::counters::{CpuTime, Memory};
use crate::gateways::{Gateway, Place, Setup};
use crate::load::Target;
use crate::machine::Cores;
use crate::mixture::{self, Sign};
use crate::probe::Client;
use crate::process::{Launch, Process};
use crate::reload::{self, Written};
use crate::stats::Spread;

/// Changes whose way to every worker is watched, and as many whose CPU time is counted.
const CHANGES: u64 = 50;

/// Between two of them: 50 a second.
const PACE: Duration = Duration::from_millis(20);

/// Connections that see a change, so that each worker has some.
const WATCHERS: usize = 16;

/// Until a change, or a whole configuration, must be live.
const PATIENCE: Duration = Duration::from_secs(120);

/// Until memory is read: allocators give back what loading used a second or two later.
const SETTLE: Duration = Duration::from_secs(4);

/// Whose CPU time is counted, for names all over the table.
const HANDSHAKES: usize = 3_000;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Routes, consumers or certificates.
    pub objects: usize,
    /// From the start of the process to the first right answer of the last object, in milliseconds.
    pub load_ms: f64,
    /// CPU time until then: what a busy machine does not distort.
    pub load_cpu_ms: f64,
    /// Resident with everything loaded, and with one object, in KiB, summed over its processes (PSS).
    pub loaded_kib: u64,
    pub alone_kib: u64,
    pub kib_each: f64,
    /// From sending a change to its answer, in milliseconds.
    pub answer_ms: Option<Spread>,
    /// From the answer to the first use on every connection, in milliseconds.
    pub live_ms: Option<Spread>,
    /// CPU time of the whole gateway, without traffic, in milliseconds.
    pub cpu_ms_per_change: Option<f64>,
    /// A change of what every route depends on: from sending it until every worker has it; its CPU time.
    pub metadata_ms: Option<Spread>,
    pub metadata_cpu_ms: Option<f64>,
    /// CPU time of a full TLS handshake with one certificate, and with all of them, in microseconds.
    pub handshake_alone_us: Option<f64>,
    pub handshake_us: Option<f64>,
}

/// Where and how a gateway is started.
pub struct Subject<'s> {
    pub label: &'s str,
    pub gateway: Gateway,
    pub setup: Setup,
    pub place: &'s Place,
    pub cores: &'s Cores,
    /// Writes a configuration and says how the gateway is started with it.
    pub launch: &'s dyn Fn(&Setup) -> Result<Launch>,
}

impl Subject<'_> {
    /// Others are configured by files, whatever Sluice is.
    fn has_admin(&self) -> bool {
        self.setup.admin && self.gateway == Gateway::Sluice
    }

    fn start(&self, launch: &Launch) -> Result<Process> {
        Process::start(self.label, launch, self.cores)
    }
}

/// Measures one gateway; starts and ends it several times.
///
/// # Errors
/// When it does not start, or a change does not become live.
pub fn measure(subject: &Subject) -> Result<Sample> {
    let setup = &subject.setup;
    let mut sample =
        Sample { objects: setup.routes.max(setup.consumers).max(setup.certificates), ..Sample::default() };
    // Made beforehand: an Admin API does not wait for long.
    certificate::many(setup.certificates)?;
    alone(subject, &mut sample).context("with one object")?;
    let launch = (subject.launch)(&subject.setup)?;
    if subject.has_admin() {
        let mut process = subject.start(&launch)?;
        let filled = Admin::await_connect(&mut process, subject.place)?.fill(&subject.setup, subject.place);
        filled.with_context(|| format!("its log ends with:\n{}", process.log_tail()))?;
    }
    let started = Instant::now();
    let mut process = subject.start(&launch)?;
    until_loaded(&mut process, subject)?;
    sample.load_ms = milliseconds(started.elapsed());
    sample.load_cpu_ms = cpu_ms(&process.pids(), &CpuTime::default());
    std::thread::sleep(SETTLE);
    sample.loaded_kib = Memory::read(&process.pids()).pss_kib;
    sample.kib_each =
        (sample.loaded_kib as f64 - sample.alone_kib as f64) / sample.objects.saturating_sub(1).max(1) as f64;
    sample.handshake_us = handshake(&process, subject).context("a handshake")?;
    let changed = match Written::of(subject.gateway, subject.place) {
        _ if subject.has_admin() => changes(&mut process, subject, &mut sample),
        Some(written) => reload::changes(&mut process, subject, &written, &mut sample),
        None => Ok(()),
    };
    changed.with_context(|| format!("its log ends with:\n{}", process.log_tail()))?;
    process.must_run()?;
    Ok(sample)
}

/// With a single object.
fn alone(subject: &Subject, sample: &mut Sample) -> Result<()> {
    let Setup { consumers, certificates, .. } = subject.setup;
    let setup =
        Setup { routes: 1, consumers: consumers.min(1), certificates: certificates.min(1), ..subject.setup };
    let launch = (subject.launch)(&setup)?;
    let mut process = subject.start(&launch)?;
    if subject.has_admin() {
        Admin::await_connect(&mut process, subject.place)?.fill(&setup, subject.place)?;
    }
    let subject = Subject { setup, ..*subject };
    until_loaded(&mut process, &subject)?;
    std::thread::sleep(SETTLE);
    sample.alone_kib = Memory::read(&process.pids()).pss_kib;
    sample.handshake_alone_us = handshake(&process, &subject)?;
    Ok(())
}

/// CPU time of a full TLS handshake, in microseconds.
fn handshake(process: &Process, subject: &Subject) -> Result<Option<f64>> {
    let count = subject.setup.certificates;
    if count == 0 {
        return Ok(None);
    }
    let (identities, address) = (certificate::many(count)?, target(subject).address);
    let before = CpuTime::read(&process.pids());
    for number in 0..HANDSHAKES {
        // A prime: each time another part of the table.
        let index = number * 7919 % count;
        let name = certificate::name_of(index);
        ensure!(certificate::shows(address, &name, &identities[index])?, "{name} got another certificate");
    }
    Ok(Some(cpu_ms(&process.pids(), &before) * 1e3 / HANDSHAKES as f64))
}

/// Waits until what the last object serves is served.
fn until_loaded(process: &mut Process, subject: &Subject) -> Result<()> {
    let sign = mixture::last(&subject.setup)?;
    let target = target(subject);
    let deadline = Instant::now() + PATIENCE;
    loop {
        process.must_run()?;
        let seen = match &sign {
            Sign::Request { text, .. } => Client::connect(&target)
                .and_then(|mut client| client.ask(text.as_bytes()))
                .map(|answer| answer.status == 200),
            Sign::Certificate { name, identity } => certificate::shows(target.address, name, identity),
        };
        match seen {
            Ok(true) => return Ok(()),
            _ if Instant::now() > deadline => bail!(
                "the last object is not served after {PATIENCE:?} ({seen:?}); its log ends with:\n{}",
                process.log_tail()
            ),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn target(subject: &Subject) -> Target {
    Target::plain(([127, 0, 0, 1], subject.place.port).into(), 0)
}

/// Who sees that a change is live: so many that each worker serves some of them.
enum Watchers {
    Connections(Vec<Client>),
    /// A certificate shows on new connections only.
    NewConnections(SocketAddr),
}

impl Watchers {
    fn new(subject: &Subject) -> Result<Self> {
        let target = target(subject);
        if subject.setup.certificates > 0 {
            return Ok(Self::NewConnections(target.address));
        }
        Ok(Self::Connections((0..WATCHERS).map(|_| Client::connect(&target)).collect::<Result<_>>()?))
    }

    /// How long after `answered` the last of them saw it. Those that are asked later and know of it
    /// at once say nothing about when they did.
    fn until_live(&mut self, sign: &Sign, answered: Instant) -> Result<Duration> {
        let mut last = None;
        let mut seen = |waited: bool| {
            if waited || last.is_none() {
                last = Some(answered.elapsed());
            }
        };
        match (self, sign) {
            (Self::Connections(clients), Sign::Request { text, before }) => {
                for client in clients {
                    seen(until(answered, || match client.ask(text.as_bytes())?.status {
                        200 => Ok(true),
                        status if status == *before => Ok(false),
                        status => bail!("{} was answered {status}", text.lines().next().unwrap_or_default()),
                    })?);
                }
            }
            (Self::NewConnections(address), Sign::Certificate { name, identity }) => {
                for _ in 0..WATCHERS {
                    seen(until(answered, || certificate::shows(*address, name, identity))?);
                }
            }
            _ => bail!("nobody watches for this"),
        }
        last.context("nobody watches")
    }
}

/// Asks until it is so, and says whether it was not at first.
fn until(answered: Instant, mut is_so: impl FnMut() -> Result<bool>) -> Result<bool> {
    let mut waited = false;
    while !is_so()? {
        waited = true;
        if answered.elapsed() > PATIENCE {
            bail!("a change is not live after {PATIENCE:?}");
        }
    }
    Ok(waited)
}

fn changes(process: &mut Process, subject: &Subject, sample: &mut Sample) -> Result<()> {
    let mut admin = Admin::await_connect(process, subject.place)?;
    let mut watchers = Watchers::new(subject)?;
    let (mut answers, mut live) = (Vec::new(), Vec::new());
    let mut number = 0;
    paced(CHANGES, || {
        let change = mixture::change(&subject.setup, number)?;
        number += 1;
        let sent = Instant::now();
        admin.put(&change.object)?;
        let answered = Instant::now();
        answers.push(milliseconds(answered - sent));
        live.push(milliseconds(watchers.until_live(&change.sign, answered)?));
        Ok(())
    })?;
    drop(watchers);
    sample.answer_ms = Spread::of(answers);
    sample.live_ms = Spread::of(live);

    let pids = process.pids();
    let before = CpuTime::read(&pids);
    paced(CHANGES, || {
        let change = mixture::change(&subject.setup, number)?;
        number += 1;
        admin.put(&change.object).map(drop)
    })?;
    // The last of them is live before the reading.
    let change = mixture::change(&subject.setup, number)?;
    let revision = admin.put(&change.object)?;
    admin.wait_for(revision, PATIENCE)?;
    sample.cpu_ms_per_change = Some(cpu_ms(&pids, &before) / (CHANGES + 1) as f64);

    if subject.setup.mixed {
        let mut took = Vec::new();
        let before = CpuTime::read(&pids);
        for number in 0..3 {
            let sent = Instant::now();
            let revision = admin.put(&mixture::metadata(number))?;
            admin.wait_for(revision, PATIENCE)?;
            took.push(milliseconds(sent.elapsed()));
        }
        sample.metadata_cpu_ms = Some(cpu_ms(&pids, &before) / took.len() as f64);
        sample.metadata_ms = Spread::of(took);
    }
    Ok(())
}

/// Makes `count` changes at the constant rate; a late one is followed by the next at once.
fn paced(count: u64, mut change: impl FnMut() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    for number in 0..count {
        let due = started + PACE.mul_f64(number as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        change()?;
    }
    Ok(())
}

fn cpu_ms(pids: &[u32], before: &CpuTime) -> f64 {
    let used = CpuTime::read(pids).since(before);
    (used.user_us + used.system_us) / 1e3
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
