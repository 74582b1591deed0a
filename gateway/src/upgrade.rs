//! Replaces this process by a new one, perhaps of another binary, without losing connections.
//!
//! The old process starts the new one with its own arguments and passes it its listening sockets, so that
//! connections that wait to be accepted are not reset. The new one reads its files, asks for the store (which one
//! process at a time may have open), compiles, starts its workers and reports that it is ready. Only then does the
//! old one stop accepting traffic; it finishes its requests and ends. If the new one fails, the old one keeps
//! serving.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admin::Listener;
use control::store::{Released, Store};
use proxy::Workers;
use serde_json::{Value, json};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub mod inherited;
mod line;
pub mod notify;

pub use inherited::{Inherited, failed};
use line::Message;

/// How long a process that closed its line may take to end by itself.
const ENDING: Duration = Duration::from_secs(2);

/// How long connections to the APIs may finish what they are at: before the store is closed, so that writes that
/// come later on one of them are refused, and before this process ends.
const SETTLING: Duration = Duration::from_secs(2);

/// How long the workers may take to copy their sockets.
const COPYING: Duration = Duration::from_secs(5);

/// A listener of the control plane, and its server.
pub struct Side {
    socket: std::net::TcpListener,
    serve: Box<dyn Fn(Listener) -> JoinHandle<()> + Send + Sync>,
    /// While it accepts; dropped, it stops.
    accepting: Option<watch::Sender<()>>,
    /// Ends with the last connection after accepting has stopped.
    task: Option<JoinHandle<()>>,
}

impl Side {
    /// Begins to serve.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn start(
        listener: tokio::net::TcpListener,
        serve: impl Fn(Listener) -> JoinHandle<()> + Send + Sync + 'static,
    ) -> std::io::Result<Side> {
        let (socket, serve) = (listener.into_std()?, Box::new(serve));
        let mut side = Side { socket, serve, accepting: None, task: None };
        side.resume()?;
        Ok(side)
    }

    /// Stops accepting. Open connections get one more answer; new ones wait in the backlog.
    fn pause(&mut self) {
        self.accepting = None;
    }

    fn resume(&mut self) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.socket.try_clone()?)?;
        let (accepting, listener) = Listener::until_dropped(listener);
        self.task = Some((self.serve)(listener));
        self.accepting = Some(accepting);
        Ok(())
    }

    /// Waits until the last connection of a paused side has ended.
    async fn settle(&mut self) {
        if self.accepting.is_none()
            && let Some(task) = &mut self.task
        {
            // A task that panicked has no connections left either.
            let _ = task.await;
            self.task = None;
        }
    }
}

/// Failed upgrades, for the status of the control API.
#[derive(Debug, Default)]
pub struct Record {
    failed: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Record {
    fn fail(&self, why: &str) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.failed.fetch_add(1, Ordering::Release);
    }

    pub fn shown(&self) -> Value {
        let failed = self.failed.load(Ordering::Acquire);
        json!({ "failed": failed, "last_error": *self.last.lock().unwrap_or_else(PoisonError::into_inner) })
    }
}

/// All that is handed over.
pub struct Upgrade<'a> {
    pub workers: &'a Workers,
    pub sides: Vec<Side>,
    pub store: Arc<dyn Store>,
    pub record: Arc<Record>,
    /// How long the new process may take.
    pub patience: Duration,
}

impl Upgrade<'_> {
    /// Starts the program again and hands over to it. False if that failed; this process then serves as before.
    pub async fn run(&mut self) -> bool {
        tracing::info!("upgrade: starting the new process");
        match self.attempt().await {
            Ok(who) => {
                tracing::info!("upgrade: {who} has taken over; this one finishes what it has begun");
                true
            }
            Err(why) => {
                for side in &mut self.sides {
                    if side.accepting.is_none()
                        && let Err(error) = side.resume()
                    {
                        tracing::error!("cannot go on with serving a listener: {error}");
                    }
                }
                tracing::error!("upgrade failed, this process goes on: {why}");
                self.record.fail(&why);
                false
            }
        }
    }

    /// Waits for connections to the APIs that accept no more, but not for ever.
    pub async fn settle(&mut self) {
        let all = async {
            for side in &mut self.sides {
                side.settle().await;
            }
        };
        let _ = tokio::time::timeout(SETTLING, all).await;
    }

    async fn attempt(&mut self) -> Result<String, String> {
        if std::process::id() == 1 {
            return Err("this process is the first one of its container, which ends with it: \
                        replace the container instead"
                .to_owned());
        }
        let mut sockets =
            self.workers.sockets(COPYING).map_err(|error| format!("cannot copy the sockets: {error}"))?;
        for side in &self.sides {
            let copy = side.socket.try_clone();
            sockets.push(copy.map_err(|error| format!("cannot copy a socket: {error}"))?.into());
        }
        // Taken back when it is dropped: after the new process, which holds it.
        let mut released = None;
        let mut new = New::start()?;
        let said = tokio::time::timeout(self.patience, self.converse(&mut new, sockets, &mut released)).await;
        match said {
            Ok(Ok(who)) => {
                new.let_go();
                Ok(who)
            }
            Ok(Err(Some(why))) => Err(why),
            Ok(Err(None)) => Err(new.how_it_ended().await),
            Err(_) => {
                let seconds = self.patience.as_secs();
                Err(format!("the new process was not ready in {seconds} s (sluice.upgrade_timeout)"))
            }
        }
    }

    /// Until the new process serves. `None` if it ended without a word.
    async fn converse(
        &mut self,
        new: &mut New,
        sockets: Vec<OwnedFd>,
        released: &mut Option<Released>,
    ) -> Result<String, Option<String>> {
        new.say(Message::hello()).await?;
        for message in Message::sockets(sockets) {
            new.say(message).await?;
        }
        loop {
            match new.hear().await? {
                Message::Store => {
                    // Clients that connect to write something wait for the new process.
                    self.sides.iter_mut().for_each(Side::pause);
                    // Requests on open connections need the store, so they end before it is closed.
                    self.settle().await;
                    let closed = self.store.release().await;
                    *released = closed.map_err(|error| Some(format!("cannot close the store: {error}")))?;
                    new.say(Message::Store).await?;
                }
                Message::Ready(who) => {
                    self.sides.iter_mut().for_each(Side::pause);
                    if let Some(released) = released.take() {
                        released.hand_over();
                    }
                    notify::send_state(&format!("MAINPID={}", new.process.id()));
                    // Should that fail, the new process goes on all the same.
                    let _ = new.say(Message::Yours).await;
                    let (version, pid) = who.split_once(' ').unwrap_or((&who, "?"));
                    return Ok(format!("sluice {version}, process {pid},"));
                }
                Message::Failed(why) => return Err(Some(why)),
                other => return Err(Some(format!("the new process said {other:?}"))),
            }
        }
    }
}

/// A new process, which is killed unless it has taken over.
struct New {
    process: Child,
    line: UnixDatagram,
    on_its_own: bool,
}

impl New {
    fn start() -> Result<New, String> {
        let no_line = |error| format!("no line to a new process: {error}");
        let (ours, theirs) = line::pair().map_err(no_line)?;
        // Any Unix socket is one to the runtime.
        let line = UnixDatagram::from_std(ours.into()).map_err(no_line)?;
        let mut arguments = std::env::args_os();
        // As it was called, so that it may be a link that points elsewhere by now.
        let program = arguments.next().ok_or("this process does not know its own name")?;
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::from(theirs));
        command.env(inherited::STARTED_BY, std::process::id().to_string());
        let process =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        Ok(New { process, line, on_its_own: false })
    }

    async fn say(&self, message: Message) -> Result<(), Option<String>> {
        let sent = self.line.async_io(Interest::WRITABLE, || line::send(self.line.as_fd(), &message)).await;
        // It may have said why it ends.
        match sent {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Some(error.to_string())),
            _ => Ok(()),
        }
    }

    async fn hear(&self) -> Result<Message, Option<String>> {
        match self.line.async_io(Interest::READABLE, || line::receive(self.line.as_fd())).await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(None),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Err(None),
            Err(error) => Err(Some(format!("the new process said something else: {error}"))),
        }
    }

    async fn how_it_ended(&mut self) -> String {
        let until = tokio::time::Instant::now() + ENDING;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => {
                    return format!("the new process ended before it was ready ({status})");
                }
                Ok(None) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(None) => {
                    return "the new process does not know how to take over: is it a version of sluice that can?"
                        .to_owned();
                }
                Err(error) => return format!("the new process is lost: {error}"),
            }
        }
    }

    fn let_go(mut self) {
        self.on_its_own = true;
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.on_its_own {
            let _ = self.process.kill();
            // It was killed, so this does not take long.
            let _ = self.process.wait();
        }
    }
}
