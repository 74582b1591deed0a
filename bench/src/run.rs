//! Runs one scenario: every arm in every round, in a random order per round, one arm at a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::admin::Admin;
use crate::churn::{self, Churn};
use crate::counters::{self, CpuTime, Memory, SyscallCounter};
use crate::gateways::{self, Gateway, Place, Setup, tools::Program};
use crate::load::{self, Driver, Load, Target};
use crate::machine::{Cores, Layout};
use crate::probe;
use crate::process::Process;
use crate::reload::RoutesFile;
use crate::scenario::{Kind, Scenario};
use crate::upstream::{Upstream, redis};
use crate::watching::Watching;
use crate::{idle, scale, stats::Spread};

/// Duration and number of passes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    pub duration: Duration,
    /// Load before each timed pass; zero in a quick run, where single requests warm up.
    pub warm: Duration,
    /// The same for gateways on a Java VM, once after their start.
    pub warm_java: Duration,
    /// Fraction of ab's number of requests.
    pub share: f64,
    /// Count system calls in a separate pass.
    pub syscalls: bool,
    /// No new round starts after this time.
    #[serde(skip)]
    pub deadline: Option<Instant>,
    /// First of the thousand ports of the run.
    pub port_base: u16,
}

impl Plan {
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// One line of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    pub label: String,
    pub gateway: Gateway,
    pub setup: Setup,
    pub churn: bool,
    #[serde(skip)]
    pub program: Program,
}

/// Results of one arm in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    pub load: Load,
    /// The gateway's CPU time per request, in microseconds; absent for `direct`.
    pub user_us: Option<f64>,
    pub system_us: Option<f64>,
    pub memory: Memory,
    pub churn: Option<churn::Sample>,
    pub idle: Option<idle::Sample>,
    pub scale: Option<scale::Sample>,
}

impl Sample {
    pub fn cpu_us(&self) -> Option<f64> {
        Some(self.user_us? + self.system_us?)
    }
}

/// All rounds of one arm.
#[derive(Clone, Debug, Serialize)]
pub struct ArmResult {
    pub arm: Arm,
    pub version: String,
    /// One entry per round; `None` when the round was not finished.
    pub samples: Vec<Option<Sample>>,
    pub syscalls_per_request: Option<f64>,
    /// Why its numbers are invalid, if they are.
    pub failure: Option<String>,
}

impl ArmResult {
    /// One number of each round.
    pub fn each(&self, number: impl Fn(&Sample) -> Option<f64>) -> Vec<Option<f64>> {
        self.samples.iter().map(|sample| sample.as_ref().and_then(&number)).collect()
    }

    pub fn spread(&self, number: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.each(number).into_iter().flatten())
    }
}

/// A scenario's results.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub scenario: Scenario,
    pub layout: Layout,
    pub arms: Vec<ArmResult>,
    /// Peers that were not measured, with the reason.
    pub absent: Vec<(String, String)>,
}

impl Outcome {
    /// The arm with this label, if its numbers are valid.
    pub fn arm(&self, label: &str) -> Option<&ArmResult> {
        self.arms.iter().find(|result| result.arm.label == label && result.failure.is_none())
    }
}

/// Measures `arms` in `scenario`. `folder` is emptied and used for all files.
///
/// # Errors
/// The upstream cannot be started. A failed arm is reported in the outcome.
pub fn scenario(
    scenario: &Scenario,
    arms: Vec<Arm>,
    plan: &Plan,
    available: &Cores,
    folder: &Path,
    bar: &ProgressBar,
) -> Result<Outcome> {
    let layout = Layout::new(available, scenario.setup.workers);
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let upstream = Upstream::start(&folder.join("upstream"), plan.port_base + 900, &layout.load)?;
    let _redis = match scenario.setup.redis {
        true => Some(redis::start(&folder.join("redis"), plan.port_base, &layout.load)?),
        false => None,
    };
    let mut run = ScenarioRun {
        scenario,
        driver: scenario.driver,
        plan,
        available,
        layout: &layout,
        folder,
        upstream: &upstream,
        bar,
        kept: Vec::new(),
    };
    let mut results: Vec<ArmResult> = arms
        .into_iter()
        .map(|arm| ArmResult {
            version: arm.program.version.clone(),
            arm,
            samples: Vec::new(),
            syscalls_per_request: None,
            failure: None,
        })
        .collect();
    run.kept.resize_with(results.len(), || None);
    if let Driver::Quarter { connections } = scenario.driver {
        let first = &results.first().context("no gateway")?.arm;
        let rate = run.highest_rate(connections, first)? / 4.0;
        // Rounded to a readable precision.
        run.driver = Driver::Paced { connections, rate: ((rate / 100.0) as u64 * 100).max(100) };
    }

    for round in 0..plan.rounds {
        if round > 0 && plan.is_over() {
            break;
        }
        let mut order: Vec<usize> = (0..results.len()).collect();
        fastrand::shuffle(&mut order);
        for index in order {
            let result = &mut results[index];
            bar.set_message(format!("{} · round {} · {}", scenario.id, round + 1, result.arm.label));
            if result.failure.is_none() {
                match run.measure(index, &result.arm) {
                    Ok(sample) => result.samples.push(Some(sample)),
                    Err(problem) => {
                        result.samples.push(None);
                        result.failure = Some(format!("{problem:#}"));
                        run.kept[index] = None;
                    }
                }
            }
            bar.inc(1);
        }
    }
    if plan.syscalls && scenario.kind == Kind::Load {
        for (index, result) in results.iter_mut().enumerate() {
            let countable = result.failure.is_none() && result.arm.gateway != Gateway::Direct;
            // Sluice first: if time runs out, at least its own number is there.
            if countable && (index == 0 || !plan.is_over()) {
                bar.set_message(format!("{} · system calls · {}", scenario.id, result.arm.label));
                result.syscalls_per_request = run.count_syscalls(index, &result.arm).ok();
            }
        }
    }
    let scenario = Scenario { driver: run.driver, ..scenario.clone() };
    Ok(Outcome { scenario, layout, arms: results, absent: Vec::new() })
}

/// State shared by the arms of a scenario.
struct ScenarioRun<'s> {
    scenario: &'s Scenario,
    driver: Driver,
    plan: &'s Plan,
    available: &'s Cores,
    layout: &'s Layout,
    folder: &'s Path,
    upstream: &'s Upstream,
    bar: &'s ProgressBar,
    /// Gateways that start slowly, by arm: paused between their rounds instead of restarted.
    kept: Vec<Option<Process>>,
}

impl ScenarioRun<'_> {
    fn measure(&mut self, index: usize, arm: &Arm) -> Result<Sample> {
        let target = self.target(index, arm);
        if arm.gateway == Gateway::Direct {
            let load = self.load(&target, self.plan.duration, self.plan.share)?;
            return Ok(Sample { load: checked(load)?, ..Sample::default() });
        }
        if self.scenario.kind == Kind::Scale {
            return self.measure_scale(index, arm);
        }
        let mut process = match self.kept[index].take() {
            Some(process) => {
                process.resume();
                process
            }
            None => self.start(index, arm, &target)?,
        };
        let sample = if self.scenario.kind == Kind::Idle {
            idle::measure(&mut process, &target).map(|(memory, idle)| Sample {
                memory,
                idle: Some(idle),
                ..Sample::default()
            })
        } else {
            self.measure_load(&mut process, arm, &target, &self.place(index, arm))
        };
        if let Err(problem) = &sample {
            bail!("{problem:#}; its log ends with:\n{}", process.log_tail());
        }
        if keeps(arm) {
            process.pause();
            self.kept[index] = Some(process);
        }
        sample
    }

    fn measure_scale(&self, index: usize, arm: &Arm) -> Result<Sample> {
        let place = self.place(index, arm);
        let subject = scale::Subject {
            label: &arm.label,
            gateway: arm.gateway,
            setup: arm.setup,
            place: &place,
            cores: &Layout::new(self.available, arm.setup.workers).gateway,
            launch: &|setup| gateways::launch(arm.gateway, &arm.program.path, setup, &place),
        };
        Ok(Sample { scale: Some(scale::measure(&subject)?), ..Sample::default() })
    }

    fn measure_load(
        &self,
        process: &mut Process,
        arm: &Arm,
        target: &Target,
        place: &Place,
    ) -> Result<Sample> {
        probe::verify(target, 200)?;
        if !self.plan.warm.is_zero() {
            self.load(target, self.plan.warm, self.plan.share * 0.1)?;
        }
        let pids = process.pids();
        let per_second = match self.scenario.kind {
            Kind::Churn { per_second } if arm.churn => Some(per_second),
            _ => None,
        };
        let duration = self.plan.duration;
        let churn = match (per_second, RoutesFile::of(arm.gateway, place)) {
            (None, _) => None,
            (Some(_), Some(routes_file)) => {
                Some(Churn::start_reloads(process.leader(), routes_file, place.port, duration))
            }
            (Some(rate), None) => Some(Churn::start(target, &arm.setup, place, rate, duration)?),
        };
        let watching = match arm.setup.tap {
            Some(conditions) => Some(Watching::start(place.control_port, conditions)?),
            None => None,
        };
        let control = counters::control_us(&pids);
        let before = CpuTime::read(&pids);
        let load = self.load(target, self.plan.duration, self.plan.share)?;
        let used = CpuTime::read(&pids).since(&before);
        let control = counters::control_us(&pids) - control;
        watching.map(Watching::finish).transpose()?;
        let mut churn = churn.map(Churn::finish).transpose()?;
        if let Some(churn) = churn.as_mut().filter(|_| arm.gateway == Gateway::Sluice) {
            churn.control_us = Some(control / churn.changes.max(1) as f64);
        }
        let memory = Memory::read(&pids);
        process.must_run()?;
        let load = checked(load)?;
        probe::verify(target, 20).context("after the load")?;
        // CPU times of nginx workers that ended in a reload are counted with the parent.
        let known = per_second.is_none() || arm.gateway == Gateway::Sluice;
        let per_request = |us: f64| known.then_some(us / load.requests as f64);
        Ok(Sample {
            user_us: per_request(used.user_us),
            system_us: per_request(used.system_us),
            memory,
            load,
            churn,
            ..Sample::default()
        })
    }

    /// Starts an arm's gateway and waits until it responds correctly; warms up a Java VM.
    fn start(&self, index: usize, arm: &Arm, target: &Target) -> Result<Process> {
        let place = self.place(index, arm);
        let launch = gateways::launch(arm.gateway, &arm.program.path, &arm.setup, &place)?;
        let own = Layout::new(self.available, arm.setup.workers);
        let mut process = Process::start(&arm.label, &launch, &own.gateway)?;
        if arm.setup.admin && arm.gateway == Gateway::Sluice {
            let filled = Admin::await_connect(&mut process, &place)?.fill(&arm.setup, &place);
            filled.with_context(|| format!("its log ends with:\n{}", process.log_tail()))?;
        }
        let patience =
            if arm.gateway.is_java() || arm.setup.routes > 1 || arm.setup.consumers > 0 { 120 } else { 15 };
        probe::wait_ready(&mut process, target, Duration::from_secs(patience))?;
        if arm.gateway.is_java() {
            self.bar.set_message(format!("{} · warming up · {}", self.scenario.id, arm.label));
            let driver = Driver::Wrk { threads: 1, connections: 50 };
            load::run(&driver, target, self.plan.warm_java, 1.0, &self.layout.load, self.folder)?;
        }
        Ok(process)
    }

    /// The requests per second that `arm` could serve on a fully used core, closed loop.
    fn highest_rate(&self, connections: usize, arm: &Arm) -> Result<f64> {
        self.bar.set_message(format!("{} · highest rate", self.scenario.id));
        let target = self.target(0, arm);
        let process = self.start(0, arm, &target)?;
        probe::verify(&target, 200)?;
        let pids = process.pids();
        let before = CpuTime::read(&pids);
        let driver = Driver::Wrk { threads: 1, connections };
        let duration = self.plan.duration;
        let load = load::run(&driver, &target, duration, 1.0, &self.layout.load, self.folder)?;
        let used = CpuTime::read(&pids).since(&before);
        let requests = checked(load)?.requests as f64;
        Ok(requests * 1e6 / (used.user_us + used.system_us).max(1.0))
    }

    fn count_syscalls(&mut self, index: usize, arm: &Arm) -> Result<f64> {
        let target = self.target(index, arm);
        let process = match self.kept[index].take() {
            Some(process) => {
                process.resume();
                process
            }
            None => self.start(index, arm, &target)?,
        };
        probe::verify(&target, 200)?;
        let counter = SyscallCounter::attach(&process.pids(), self.folder)?;
        let load = self.load(&target, Duration::from_secs(1), self.plan.share * 0.1)?;
        let calls = counter.finish()?;
        Ok(calls as f64 / checked(load)?.requests as f64)
    }

    fn load(&self, target: &Target, duration: Duration, share: f64) -> Result<Load> {
        load::run(&self.driver, target, duration, share, &self.layout.load, self.folder)
    }

    fn target(&self, index: usize, arm: &Arm) -> Target {
        let upstream = self.upstream.address(arm.setup.answer);
        if arm.gateway == Gateway::Direct {
            return arm.setup.target(upstream);
        }
        arm.setup.target(([127, 0, 0, 1], self.place(index, arm).port).into())
    }

    fn place(&self, index: usize, arm: &Arm) -> Place {
        let port = self.plan.port_base + 100 + index as u16 * 5;
        Place {
            folder: absolute(self.folder).join(format!("{index}-{}", arm.gateway)),
            port,
            admin_port: port + 1,
            metrics_port: port + 2,
            spare_port: port + 3,
            control_port: port + 4,
            upstream_port: self.upstream.address(arm.setup.answer).port(),
            redis_port: redis::port(self.plan.port_base),
        }
    }
}

/// Whether a gateway starts so slowly that it is kept between rounds.
fn keeps(arm: &Arm) -> bool {
    arm.gateway.is_java() || arm.setup.routes > 10_000 || arm.setup.consumers > 10_000
}

/// Rejects a pass with wrong responses.
fn checked(load: Load) -> Result<Load> {
    if load.errors > 0 || load.requests == 0 {
        let remark = load.remark.map(|remark| format!(": {remark}")).unwrap_or_default();
        bail!(
            "{} responses were wrong, failed or missing, {} were counted{remark}",
            load.errors,
            load.requests
        );
    }
    Ok(load)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_with_wrong_responses_has_no_result() {
        assert!(checked(Load { requests: 10, errors: 1, ..Load::default() }).is_err());
        assert!(checked(Load::default()).is_err());
        assert!(checked(Load { requests: 10, ..Load::default() }).is_ok());
    }
}
