//! The plugin runner (`ext-plugin.cmd`): started with the gateway, restarted when it ends, ended with the gateway.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use model::boot::Boot;
use plugins::ext_plugin::Runner;
use rustix::process::{Pid, Signal, kill_process};

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

/// A runner that the gateway has started. Dropping it ends the process.
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
    let running = Arc::new(Mutex::new(None));
    let (stop, stopped) = channel();
    let shared = running.clone();
    let supervise = move || {
        loop {
            let mut command = Command::new(&program);
            command
                .args(&arguments)
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
        let _ = std::fs::remove_file(runner.path());
    };
    let thread = std::thread::Builder::new().name("runner".into()).spawn(supervise);
    let thread = thread.context("cannot start a thread for the plugin runner")?;
    Ok(Some(Started { running, stop: Some(stop), thread: Some(thread) }))
}

/// Runs the process until it ends, and logs what it writes.
fn run(mut command: Command, running: &Mutex<Option<Pid>>, stopped: &Receiver<()>) -> std::io::Result<()> {
    let (mut output, theirs) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(theirs.try_clone()?).stderr(theirs);
    let mut child: Child = command.spawn()?;
    // The command has copies of the pipe's other end, which would keep it open.
    drop(command);
    let pid = Pid::from_child(&child);
    *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(pid);
    tracing::info!("plugin runner started pid={}", pid.as_raw_nonzero());
    if !matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
        // The gateway ended meanwhile and has not seen this process.
        let _ = kill_process(pid, Signal::TERM);
    }
    let mut line = vec![0; LINE];
    while let Ok(length @ 1..) = output.read(&mut line) {
        for text in String::from_utf8_lossy(&line[..length]).lines().filter(|text| !text.trim().is_empty()) {
            tracing::warn!("plugin runner: {text}");
        }
    }
    let status = child.wait()?;
    *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    tracing::warn!("plugin runner ended {status}");
    Ok(())
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
        let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = running {
            let _ = kill_process(pid, signal);
        }
    }
}
