//! Resource usage of a set of processes: CPU time, memory, system calls.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// CPU time used so far, summed over processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Nanoseconds on a core, from `/proc/PID/task/TID/schedstat`.
    run_ns: u64,
    /// Clock ticks in user and kernel mode, from `/proc/PID/stat`.
    user_ticks: u64,
    system_ticks: u64,
}

/// CPU time between two readings, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cpu {
    pub user_us: f64,
    pub system_us: f64,
}

impl CpuTime {
    /// Sums over every thread of `pids`; a process that has ended counts as 0.
    pub fn read(pids: &[u32]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Some((_, fields)) = stat.rsplit_once(')') else { continue };
            let mut fields = fields.split_ascii_whitespace().skip(11);
            let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            sum.user_ticks += ticks();
            sum.system_ticks += ticks();
            sum.run_ns += threads_run_ns(*pid);
        }
        sum
    }

    /// CPU time used since `earlier`. The sum is exact to the nanosecond; its division into user
    /// and system time is by the kernel's ticks.
    pub fn since(&self, earlier: &Self) -> Cpu {
        let user = self.user_ticks.saturating_sub(earlier.user_ticks) as f64;
        let system = self.system_ticks.saturating_sub(earlier.system_ticks) as f64;
        let by_ticks = (user + system) * 1e6 / rustix::param::clock_ticks_per_second() as f64;
        let by_threads = self.run_ns.saturating_sub(earlier.run_ns) as f64 / 1e3;
        // Nanoseconds of ended threads are lost, while the ticks include them.
        let total = if by_ticks > by_threads * 1.03 + 50_000.0 { by_ticks } else { by_threads };
        let user_share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
        Cpu { user_us: total * user_share, system_us: total * (1.0 - user_share) }
    }
}

fn threads_run_ns(pid: u32) -> u64 {
    run_ns(pid, |_| true)
}

/// CPU time of the threads of `pids` outside the data path so far, in microseconds: threads whose
/// names do not start with `worker-`, as Sluice's data path threads do.
pub fn control_us(pids: &[u32]) -> f64 {
    let control = |name: &str| !name.starts_with("worker-");
    pids.iter().map(|pid| run_ns(*pid, control) as f64 / 1e3).sum()
}

/// CPU time of processes and of their children that have ended, in milliseconds, by the kernel's
/// ticks.
pub fn with_children_ms(pids: &[u32]) -> f64 {
    let ticks = |pid: &u32| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
        Some(fields.filter_map(|field| field.parse::<u64>().ok()).sum())
    };
    let sum: u64 = pids.iter().filter_map(ticks).sum();
    sum as f64 * 1e3 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU time of the threads whose names satisfy `counted`.
fn run_ns(pid: u32, counted: impl Fn(&str) -> bool) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            if !counted(fs::read_to_string(task.join("comm")).ok()?.trim()) {
                return None;
            }
            let text = fs::read_to_string(task.join("schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        })
        .sum()
}

/// Resident memory, summed over processes, in KiB. `rss` counts a page once per process that maps
/// it, `pss` divides it among them, so for several processes of one program `pss` is the fairer
/// sum.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    pub rss_kib: u64,
    pub pss_kib: u64,
}

impl Memory {
    pub fn read(pids: &[u32]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let kib = |name: &str| -> u64 {
                text.lines()
                    .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
                    .unwrap_or(0)
            };
            sum.rss_kib += kib("Rss:");
            sum.pss_kib += kib("Pss:");
        }
        sum
    }
}

/// Counts the system calls of processes while it lives. Never used in a timed pass: both tools slow
/// the counted program down, strace by a factor.
pub struct SyscallCounter {
    child: Child,
    tool: Tool,
    output: std::path::PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    Perf,
    Strace,
}

impl SyscallCounter {
    /// Attaches `perf stat` if tracepoints work, else `strace`.
    ///
    /// # Errors
    /// Neither tool can be started.
    pub fn attach(pids: &[u32], folder: &Path) -> Result<Self> {
        let tool = if perf_works() { Tool::Perf } else { Tool::Strace };
        let output = folder.join("syscalls.txt");
        let mut command = match tool {
            Tool::Perf => {
                let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                let mut command = Command::new("perf");
                command
                    .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &list, "-o"])
                    .arg(&output);
                command
            }
            Tool::Strace => {
                let mut command = Command::new("strace");
                command.args(["-c", "-f", "-o"]).arg(&output);
                for pid in pids {
                    command.args(["-p", &pid.to_string()]);
                }
                command
            }
        };
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot count system calls: neither perf nor strace starts")?;
        // Neither tool reports when it has attached.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self { child, tool, output })
    }

    /// Detaches and returns the number of calls.
    ///
    /// # Errors
    /// The tool's output has no count.
    pub fn finish(mut self) -> Result<u64> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        self.child.wait()?;
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        let count = match self.tool {
            Tool::Perf => perf_count(&text),
            Tool::Strace => strace_count(&text),
        };
        count.with_context(|| format!("no count of system calls in {:?}", text.trim()))
    }
}

/// The first field of the line that names the event.
fn perf_count(text: &str) -> Option<u64> {
    text.lines().find(|line| line.contains("sys_enter"))?.split(',').next()?.parse().ok()
}

/// The calls column of the line `100.00  0.1  1  1234  5 total`.
fn strace_count(text: &str) -> Option<u64> {
    text.lines().find(|line| line.ends_with("total"))?.split_ascii_whitespace().nth(3)?.parse().ok()
}

fn perf_works() -> bool {
    Command::new("perf").args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "true"]).output().is_ok_and(
        |output| output.status.success() && perf_count(&String::from_utf8_lossy(&output.stderr)).is_some(),
    )
}

/// The version printed by a program: the first line with a digit.
///
/// # Errors
/// The program cannot be run or prints no version.
pub fn version_of(program: &Path, flag: &str) -> Result<String> {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output()?;
    let text =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit())) {
        // Some programs print their own path first.
        Some(line) => Ok(line.replace(&*program.to_string_lossy(), "").trim().chars().take(80).collect()),
        None => bail!("{} {flag} prints no version", program.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts_of_both_tools() {
        assert_eq!(perf_count("# started\n\n4211,,raw_syscalls:sys_enter,1000,100.00,,\n"), Some(4211));
        assert_eq!(perf_count("<not supported>,,raw_syscalls:sys_enter,0,0,,\n"), None);
        assert_eq!(
            strace_count("% time seconds usecs/call calls errors syscall\n100.00 0.1 1 4211 5 total"),
            Some(4211)
        );
    }

    #[test]
    fn own_cpu_time_grows_with_use() {
        let pids = [std::process::id()];
        let before = CpuTime::read(&pids);
        let started = std::time::Instant::now();
        let mut sum = 0u64;
        // Even on a busy machine, the thread gets a core at some time.
        let used = loop {
            for _ in 0..1_000_000 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
            }
            let used = CpuTime::read(&pids).since(&before);
            if used.user_us + used.system_us > 20_000.0 || started.elapsed() > Duration::from_secs(60) {
                break used;
            }
        };
        assert!(used.user_us + used.system_us > 20_000.0, "{used:?}");
    }

    #[test]
    fn own_memory_is_not_zero() {
        let memory = Memory::read(&[std::process::id()]);
        assert!(memory.rss_kib >= memory.pss_kib && memory.pss_kib > 100, "{memory:?}");
    }
}
