//! One case from its start to its end.

mod admin;
mod step;

use crate::case::Case;
use crate::client::Client;
use crate::etcd::Etcd;
use crate::fill::Names;
use crate::gateway::{Gateway, KEY, Listen};
use crate::upstream::{Spec, Upstream};
use anyhow::{Context, Result};
use indexmap::IndexMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A case stops after this many failures, since more are not useful.
const MOST_FAILURES: usize = 12;
/// Lines of the gateway's log shown with a failure.
const LOG_LINES: usize = 25;

/// State shared by the steps of a case.
pub struct World {
    pub names: Names,
    pub gateway: Gateway,
    pub upstreams: IndexMap<String, Upstream>,
    pub client: Client,
    /// Dropped after the gateway.
    pub etcd: Option<Etcd>,
    pub program: std::path::PathBuf,
    pub folder: std::path::PathBuf,
}

/// Runs a case that stands at `path`; gives the failures, each a readable text.
pub fn run(case: Result<Case>, path: &Path, program: &Path) -> Vec<String> {
    match case.and_then(|case| try_run(&case, path, program)) {
        Ok(failures) => failures,
        Err(error) => vec![format!("{error:#}")],
    }
}

fn try_run(case: &Case, path: &Path, program: &Path) -> Result<Vec<String>> {
    let folder = tempfile::Builder::new().prefix("sluice-case-").tempdir()?;
    let mut world = prepare(case, path, program, folder.path())?;
    let mut failures = Vec::new();
    if case.start {
        world.start()?;
        if !case.uses_yaml() {
            admin::put_all(&mut world, &case.resources)?;
        }
    }
    for (number, step) in (1..).zip(&case.steps) {
        if let Err(error) = step::run(&mut world, step) {
            let name = step.name.clone().unwrap_or_else(|| step::describe(step));
            failures.push(format!("step {number} ({name}): {error:#}"));
            if failures.len() == MOST_FAILURES {
                failures.push("and so on: the case was stopped here".into());
                break;
            }
        }
    }
    if !failures.is_empty() {
        failures.extend(world.evidence());
    }
    Ok(failures)
}

fn prepare(case: &Case, path: &Path, program: &Path, folder: &Path) -> Result<World> {
    let mut names = Names::default();
    let listen = Listen::choose(case.ports)?;
    listen.name(&mut names);
    names.set("ADMIN_KEY", KEY);
    names.set("DIR", folder.display());
    names.set("DATA", folder.join("data").display());
    names.set("SLUICE", program.display());
    names.set("CASE_DIR", path.parent().unwrap_or(path).display());
    names.set("ROOT", crate::root().display());

    let etcd = case.etcd.as_ref().map(|wanted| Etcd::start(wanted, folder)).transpose()?;
    if let Some(etcd) = &etcd {
        names.set("ETCD", etcd.hosts().join(","));
        names.set("ETCDCTL", etcd.ctl()?);
    }

    // Ports first: what an upstream answers may name another one's.
    let mut bound = Vec::new();
    for (name, value) in &case.upstreams {
        let spec = Spec::from_value(value.clone()).with_context(|| format!("upstream {name}"))?;
        let (port, listener) =
            Upstream::bind(spec.port, spec.closed).with_context(|| format!("upstream {name}"))?;
        names.set(format!("UPSTREAM.{name}"), format!("127.0.0.1:{port}"));
        names.set(format!("UPSTREAM_PORT.{name}"), port);
        bound.push((name.clone(), port, listener, value));
    }
    let mut upstreams = IndexMap::new();
    for (name, port, listener, value) in bound {
        let spec = Spec::from_value(names.fill_value(value)?).with_context(|| format!("upstream {name}"))?;
        upstreams.insert(name, Upstream::start(spec, port, listener));
    }
    let mut gateway = Gateway::prepare(case, program, folder, listen, &names)?;
    gateway.is_silent = case.is_control_plane();
    Ok(World {
        names,
        gateway,
        upstreams,
        client: Client::default(),
        etcd,
        program: program.into(),
        folder: folder.into(),
    })
}

impl World {
    /// Starts the gateway; `${PID}` is its process from then on.
    pub fn start(&mut self) -> Result<()> {
        self.names.set("PID", self.gateway.start()?);
        Ok(())
    }

    /// Information that helps to understand a failure: the end of the log, errors of upstreams.
    fn evidence(&mut self) -> Vec<String> {
        let log = self.gateway.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n        ");
        let mut notes = vec![format!("the gateway wrote:\n        {tail}")];
        for (name, upstream) in &self.upstreams {
            for problem in upstream.problems() {
                notes.push(format!("upstream {name}: {problem}"));
            }
        }
        notes
    }

    /// The address a step means.
    pub fn address(&self, to: Option<&str>) -> Result<String> {
        let filled = match to.unwrap_or("proxy") {
            "proxy" => self.names.fill("${PROXY}")?,
            "admin" => self.names.fill("${ADMIN}")?,
            "control" => self.names.fill("${CONTROL}")?,
            "metrics" => self.names.fill("${METRICS}")?,
            other => match other.strip_prefix("upstream.") {
                Some(name) => self.names.fill(&format!("${{UPSTREAM.{name}}}"))?,
                None => self.names.fill(other)?,
            },
        };
        Ok(filled)
    }
}

/// Answers of threads, in the order they came.
pub type Collected<T> = Arc<Mutex<Vec<T>>>;
