//! The plugin runner (`ext-plugin.cmd`): started with the gateway, restarted when it ends, ended with the gateway.

use std::ffi::OsString;
use std::io::{PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use model::boot::Boot;
use plugins::ext_plugin::Runner;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Seconds for which a runner keeps a configuration, as in APISIX.
const CONF_EXPIRE_TIME: &str = "3600";

/// The pause before a runner is started again, and the time that it has to end with the gateway.
const PAUSE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of a runner's output in one line of the log.
const LINE: usize = 3800;

/// The runner of a gateway with this boot file.
pub fn of(boot: &Boot, data: &Path) -> Arc<Runner> {
    let path = match &boot.runner.path {
        Some(path) => path.into(),
        None => {
            let name = format!("runner-{}.sock", std::process::id());
            std::path::absolute(data.join(&name)).unwrap_or_else(|_| data.join(name))
        }
    };
    Arc::new(Runner::new(&path))
}

/// A runner that the gateway has started. Dropping it ends the process, and those that it has started.
pub struct Started {
    running: Arc<Mutex<Option<Pid>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the runner; `None` if there is no command.
///
/// # Errors
/// No thread can be started.
pub fn start(boot: &Boot, runner: Arc<Runner>) -> anyhow::Result<Option<Started>> {
    let Some((program, arguments)) = boot.runner.command.split_first() else { return Ok(None) };
    let (program, arguments) = (program.clone(), arguments.to_vec());
    let environment = environment(&boot.runner.environment);
    let running = Arc::new(Mutex::new(None));
    let (stop, stopped) = channel();
    let is_path_ours = boot.runner.path.is_none();
    let shared = running.clone();
    let supervise = move || {
        loop {
            let mut command = Command::new(&program);
            command
                .args(&arguments)
                .env_clear()
                .envs(environment.iter().cloned())
                .env("APISIX_LISTEN_ADDRESS", format!("unix:{}", runner.path().display()))
                .env("APISIX_CONF_EXPIRE_TIME", CONF_EXPIRE_TIME);
            if let Err(error) = run(command, &shared, &stopped) {
                tracing::error!("plugin runner cannot be started command={program} error={error}");
            }
            runner.forget_tokens();
            match stopped.recv_timeout(PAUSE) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => break,
            }
        }
        // At another path a new gateway's runner may listen already.
        if is_path_ours {
            let _ = std::fs::remove_file(runner.path());
        }
    };
    let thread = std::thread::Builder::new().name("runner".into()).spawn(supervise);
    let thread = thread.context("cannot start a thread for the plugin runner")?;
    Ok(Some(Started { running, stop: Some(stop), thread: Some(thread) }))
}

/// The environment of a runner: the gateway's own has secrets.
fn environment(more: &[String]) -> Vec<(OsString, OsString)> {
    let all = ["PATH", "HOME", "LANG", "TZ"].into_iter().chain(more.iter().map(String::as_str));
    let one = |entry: &str| match entry.split_once('=') {
        Some((name, value)) => Some((name.into(), value.into())),
        None => Some((entry.into(), std::env::var_os(entry)?)),
    };
    all.filter_map(one).collect()
}

/// Runs the process until it ends, and logs what it writes. Processes that it leaves behind end with it.
fn run(mut command: Command, running: &Mutex<Option<Pid>>, stopped: &Receiver<()>) -> std::io::Result<()> {
    let (output, theirs) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(theirs.try_clone()?).stderr(theirs).process_group(0);
    // Processes that the runner has started may keep the pipe open after its end.
    std::thread::Builder::new().name("runner-output".into()).spawn(move || log(output))?;
    let mut child: Child = command.spawn()?;
    // The command has copies of the pipe's other end, which would keep it open.
    drop(command);
    let pid = Pid::from_child(&child);
    *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(pid);
    tracing::info!("plugin runner started pid={}", pid.as_raw_nonzero());
    if !matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
        // The gateway ended meanwhile and has not seen this process.
        let _ = kill_process_group(pid, Signal::TERM);
    }
    // Its number is its own until it is reaped.
    let ends = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let _ = rustix::io::retry_on_intr(ends);
    let _ = kill_process_group(pid, Signal::KILL);
    *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let status = child.wait()?;
    tracing::warn!("plugin runner ended status=\"{status}\"");
    Ok(())
}

/// Logs what a runner writes.
fn log(mut output: PipeReader) {
    let mut line = vec![0; LINE];
    while let Ok(length @ 1..) = output.read(&mut line) {
        for text in String::from_utf8_lossy(&line[..length]).lines().filter(|text| !text.trim().is_empty()) {
            tracing::warn!("plugin runner output text={text:?}");
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.stop.take();
        self.signal(Signal::TERM);
        let Some(thread) = self.thread.take() else { return };
        let until = Instant::now() + PATIENCE;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !thread.is_finished() {
            self.signal(Signal::KILL);
        }
    }
}

impl Started {
    fn signal(&self, signal: Signal) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = *running {
            let _ = kill_process_group(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_ends_though_its_child_keeps_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $! > \"$0\""]).arg(&pid);
        let (_stop, stopped) = channel();
        run(command, &Mutex::new(None), &stopped).unwrap();
        let pid = std::fs::read_to_string(pid).unwrap();
        // It is killed; a container's first process may not reap it.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        while !state().is_empty() && !state().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_runner_gets_little_of_the_environment() {
        let name = std::env::vars().map(|(name, _)| name).find(|name| name.starts_with("CARGO_")).unwrap();
        let names = |more: &[String]| -> Vec<OsString> {
            environment(more).into_iter().map(|(name, _)| name).collect()
        };
        assert!(names(&[]).contains(&"PATH".into()) && !names(&[]).contains(&name.clone().into()));
        assert!(names(std::slice::from_ref(&name)).contains(&name.into()));
        assert_eq!(environment(&["A=b=c".to_owned()]).pop(), Some(("A".into(), "b=c".into())));
        assert!(!names(&["NO_SUCH_VARIABLE".to_owned()]).contains(&"NO_SUCH_VARIABLE".into()));
    }

    #[test]
    fn only_a_socket_of_its_own_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("runner.sock");
        std::fs::write(&socket, "").unwrap();
        for (path, stays) in [(Some(socket.display().to_string()), true), (None, false)] {
            let mut boot = Boot::default();
            boot.runner.command = vec!["true".to_owned()];
            boot.runner.path = path;
            let mut started = start(&boot, Arc::new(Runner::new(&socket))).unwrap().unwrap();
            started.stop.take();
            started.thread.take().unwrap().join().unwrap();
            assert_eq!(socket.exists(), stays);
        }
    }
}
