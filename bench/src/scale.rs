//! Large configurations: load time, memory per object, and how long a change takes to be live on
//! every worker and how much CPU time it costs.

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
use crate::mixture::{self, Evidence};
use crate::probe::Client;
use crate::process::{Launch, Process};
use crate::reload::{self, RoutesFile};
use crate::stats::Spread;

/// Changes timed until every worker has them, and further ones whose CPU time is counted.
const CHANGES: u64 = 50;

/// Interval between changes: 50 per second.
const PACE: Duration = Duration::from_millis(20);

/// Connections that verify a change, enough to reach each worker.
const WATCHERS: usize = 16;

/// Timeout for a change, or a whole configuration, to be live.
const PATIENCE: Duration = Duration::from_secs(120);

/// Delay before memory is read: allocators release memory used for loading a second or two later.
const SETTLE: Duration = Duration::from_secs(4);

/// Handshakes whose CPU time is counted, with names from the whole table.
const HANDSHAKES: usize = 3_000;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Routes, consumers or certificates.
    pub objects: usize,
    /// From the start of the process to the first correct response of the last object, in
    /// milliseconds.
    pub load_ms: f64,
    /// CPU time until then, which load of other programs does not distort.
    pub load_cpu_ms: f64,
    /// Resident memory with everything loaded, and with one object, in KiB, summed over its
    /// processes (PSS).
    pub loaded_kib: u64,
    pub alone_kib: u64,
    pub kib_each: f64,
    /// From sending a change to its response, in milliseconds.
    pub answer_ms: Option<Spread>,
    /// From the response to the first use on every connection, in milliseconds.
    pub live_ms: Option<Spread>,
    /// CPU time of the whole gateway per change, without traffic, in milliseconds.
    pub cpu_ms_per_change: Option<f64>,
    /// A change that affects every route: time from sending it until every worker has it, and its
    /// CPU time.
    pub metadata_ms: Option<Spread>,
    pub metadata_cpu_ms: Option<f64>,
    /// CPU time of a full TLS handshake with one certificate, and with all of them, in microseconds.
    pub handshake_alone_us: Option<f64>,
    pub handshake_us: Option<f64>,
}

/// How a gateway is started.
pub struct Subject<'s> {
    pub label: &'s str,
    pub gateway: Gateway,
    pub setup: Setup,
    pub place: &'s Place,
    pub cores: &'s Cores,
    /// Writes a configuration and returns the command that starts the gateway with it.
    pub launch: &'s dyn Fn(&Setup) -> Result<Launch>,
}

impl Subject<'_> {
    /// Other gateways are always configured by files.
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
/// It does not start, or a change does not become live.
pub fn measure(subject: &Subject) -> Result<Sample> {
    let setup = &subject.setup;
    let mut sample =
        Sample { objects: setup.routes.max(setup.consumers).max(setup.certificates), ..Sample::default() };
    // Generated in advance: the Admin API's timeout is short.
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
    let changed = match RoutesFile::of(subject.gateway, subject.place) {
        _ if subject.has_admin() => changes(&mut process, subject, &mut sample),
        Some(routes_file) => reload::changes(&mut process, subject, &routes_file, &mut sample),
        None => Ok(()),
    };
    changed.with_context(|| format!("its log ends with:\n{}", process.log_tail()))?;
    process.must_run()?;
    Ok(sample)
}

/// Measures with a single object.
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
        // A prime step, to cover the whole table.
        let index = number * 7919 % count;
        let name = certificate::name_of(index);
        ensure!(certificate::shows(address, &name, &identities[index])?, "{name} got another certificate");
    }
    Ok(Some(cpu_ms(&process.pids(), &before) * 1e3 / HANDSHAKES as f64))
}

/// Waits until the last object is served.
fn until_loaded(process: &mut Process, subject: &Subject) -> Result<()> {
    let evidence = mixture::last(&subject.setup)?;
    let target = target(subject);
    let deadline = Instant::now() + PATIENCE;
    loop {
        process.must_run()?;
        let seen = match &evidence {
            Evidence::Request { text, .. } => Client::connect(&target)
                .and_then(|mut client| client.ask(text.as_bytes()))
                .map(|answer| answer.status == 200),
            Evidence::Certificate { name, identity } => certificate::shows(target.address, name, identity),
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

/// Connections that verify a change, enough to reach each worker.
enum Watchers {
    Connections(Vec<Client>),
    /// A new certificate is visible on new connections only.
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

    /// Time from `answered` until the last connection saw the change. Connections that see it at
    /// the first try give no measurement.
    fn until_live(&mut self, evidence: &Evidence, answered: Instant) -> Result<Duration> {
        let mut last = None;
        let mut seen = |waited: bool| {
            if waited || last.is_none() {
                last = Some(answered.elapsed());
            }
        };
        match (self, evidence) {
            (Self::Connections(clients), Evidence::Request { text, before }) => {
                for client in clients {
                    seen(until(answered, || match client.ask(text.as_bytes())?.status {
                        200 => Ok(true),
                        status if status == *before => Ok(false),
                        status => bail!("{} was answered {status}", text.lines().next().unwrap_or_default()),
                    })?);
                }
            }
            (Self::NewConnections(address), Evidence::Certificate { name, identity }) => {
                for _ in 0..WATCHERS {
                    seen(until(answered, || certificate::shows(*address, name, identity))?);
                }
            }
            _ => bail!("no connections watch this kind of change"),
        }
        last.context("no connections watch for changes")
    }
}

/// Repeats `is_so` until true; returns whether it was false at first.
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
        live.push(milliseconds(watchers.until_live(&change.evidence, answered)?));
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
    // The last change must be live before the reading.
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

/// Makes `count` changes at the constant rate; after a late one, the next follows at once.
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
