//! Programs under measurement: started in a process group of their own and pinned to cores, paused,
//! resumed, and always ended, even if this program dies first.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::machine::Cores;

/// The command that starts a program.
#[derive(Clone, Debug)]
pub struct Launch {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
}

impl Launch {
    pub fn new(program: impl Into<PathBuf>, folder: &Path) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new(), folder: folder.to_owned() }
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }
}

/// A running program and its child processes.
pub struct Process {
    name: String,
    child: Child,
    group: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts `launch` on `cores`. Its output is written to `output.log` in its folder.
    ///
    /// # Errors
    /// The program, `taskset` or `setpriv` cannot be started.
    pub fn start(name: &str, launch: &Launch, cores: &Cores) -> Result<Self> {
        let log = launch.folder.join("output.log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        // `setpriv` makes the kernel kill the child when this program ends, for any reason.
        let child = Command::new("taskset")
            .args(["-c", &cores.list(), "setpriv", "--pdeathsig", "TERM", "--"])
            .arg(&launch.program)
            .args(&launch.args)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&launch.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} by taskset and setpriv (Debian: util-linux)"))?;
        let group = Pid::from_child(&child);
        Ok(Self { name: name.to_owned(), child, group, log })
    }

    /// The process IDs of the program and its children.
    pub fn pids(&self) -> Vec<u32> {
        members(self.child.id())
    }

    /// Fails with the end of its log if the program has ended.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} exited early ({status}); its log ends with:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// The last lines it printed, for messages.
    pub fn log_tail(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Stops it (SIGSTOP) without ending it, so that an idle rival uses no CPU.
    pub fn pause(&self) {
        let _ = kill_process_group(self.group, Signal::STOP);
    }

    pub fn leader(&self) -> Pid {
        self.group
    }

    /// Sends SIGHUP, to reload its configuration.
    pub fn hang_up(&self) {
        let _ = kill_process(self.group, Signal::HUP);
    }

    pub fn resume(&self) {
        let _ = kill_process_group(self.group, Signal::CONT);
    }
}

impl Drop for Process {
    /// Kills all processes at once: none has state to save, and some would drain for minutes.
    fn drop(&mut self) {
        let leader = self.child.id();
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
        // A worker that closes thousands of connections keeps listening until it has finished, on a
        // port that the next gateway may need.
        let deadline = Instant::now() + Duration::from_secs(5);
        while !members(leader).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The processes of a group that have not ended.
fn members(leader: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return vec![leader] };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| group_of(*pid) == Some(leader))
        .collect()
}

/// The process group of `pid`, the fifth field of its `stat`; `None` for a zombie.
fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain spaces, so count from the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_counted_and_killed() {
        let folder = std::env::temp_dir().join(format!("bench-process-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let launch = Launch::new("/bin/sh", &folder).arg("-c").arg("sleep 60 & echo started; sleep 60");
        let mut process = Process::start("a shell", &launch, &Cores(vec![0])).unwrap();
        while !process.log_tail().contains("started") || process.pids().len() < 3 {
            process.must_run().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let pids = process.pids();
        drop(process);
        // Children of a killed process are reaped by init, which takes a moment.
        let gone = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
                || !Path::new(&format!("/proc/{pid}")).exists()
        };
        while !pids.iter().all(gone) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_early_exit_is_reported_with_the_log() {
        let folder = std::env::temp_dir().join(format!("bench-process-end-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let launch = Launch::new("/bin/sh", &folder).arg("-c").arg("echo no such port; exit 3");
        let mut process = Process::start("a shell", &launch, &Cores(vec![0])).unwrap();
        let problem = loop {
            if let Err(problem) = process.must_run() {
                break problem.to_string();
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert!(problem.contains("no such port"), "{problem}");
        fs::remove_dir_all(folder).unwrap();
    }
}
