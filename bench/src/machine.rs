//! The machine of a run: its cores, their assignment, and the facts needed to compare reports.

use std::fs;

use serde::Serialize;

/// A set of core numbers, as `taskset -c` takes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cores(pub Vec<usize>);

impl Cores {
    /// `0,2,3`
    pub fn list(&self) -> String {
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The cores of the gateway, and those of upstream and load driver.
#[derive(Clone, Debug, Serialize)]
pub struct Layout {
    pub gateway: Cores,
    pub load: Cores,
}

impl Layout {
    /// Assigns a gateway of `workers` workers that many cores of its own and the others to upstream
    /// and load. If no core would be left, the load shares all cores with the gateway.
    pub fn new(available: &Cores, workers: usize) -> Self {
        let workers = workers.min(available.0.len());
        let (gateway, rest) = available.0.split_at(workers);
        let load = if rest.is_empty() { available.0.clone() } else { rest.to_vec() };
        Self { gateway: Cores(gateway.to_vec()), load: Cores(load) }
    }

    /// Whether both sides use a core, so that latencies and rates depend on the driver.
    pub fn shared(&self) -> bool {
        self.gateway.0.iter().any(|core| self.load.0.contains(core))
    }
}

/// Facts about the machine in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub cpu: String,
    pub cores: Cores,
    pub memory_mib: u64,
    pub kernel: String,
    /// Load average over one minute when the run began: a value well above 0 distorts results.
    pub load_average: f64,
}

impl Machine {
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: available_cores(),
            memory_mib: field(&meminfo, "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load_average: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// The cores this process may run on.
fn available_cores() -> Cores {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => Cores((0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()),
        Err(_) => Cores(vec![0]),
    }
}

/// Pins the calling thread (a load driver) to `cores`.
///
/// # Errors
/// The kernel refuses, for instance because a core does not exist.
pub fn pin_this_thread(cores: &Cores) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for core in &cores.0 {
        set.set(*core);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

/// Raises the soft limit on open files to the hard one; children inherit it.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A run works with the lower limit, too, except for the scenario with idle connections, which
    // then reports the failed connection; so this failure is ignored.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_leaves_the_other_core_to_the_load() {
        let layout = Layout::new(&Cores(vec![0, 1]), 1);
        assert_eq!((layout.gateway.list(), layout.load.list()), ("0".to_owned(), "1".to_owned()));
        assert!(!layout.shared());
    }

    #[test]
    fn a_gateway_on_every_core_shares_them() {
        let layout = Layout::new(&Cores(vec![0, 1]), 2);
        assert_eq!((layout.gateway.list(), layout.load.list()), ("0,1".to_owned(), "0,1".to_owned()));
        assert!(layout.shared());
    }
}
