//! The new process's side: the sockets it receives, and the messages it sends to the old one.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;

use super::line::{self, Message};

/// Set in the environment of a process that another one has started to take its place.
pub const STARTED_BY: &str = "SLUICE_UPGRADE_FROM";

/// How long the old process may take to answer. It kills the new one long before.
const PATIENCE: Duration = Duration::from_secs(600);

/// The line to the old process, until that has answered for the last time.
static LINE: OnceLock<OwnedFd> = OnceLock::new();

/// Listening sockets of the process that this one replaces; empty if it replaces none.
#[derive(Debug, Default)]
pub struct Inherited {
    tcp: Vec<(SocketAddr, TcpListener)>,
    udp: Vec<(SocketAddr, UdpSocket)>,
    /// By which datagrams for the old process's QUIC connections are passed on to it.
    lines: Vec<(SocketAddr, OwnedFd)>,
    from_another: bool,
}

impl Inherited {
    /// Takes what the old process gives, if this one was started by one.
    ///
    /// # Errors
    /// The old process is gone or speaks another version.
    pub fn receive() -> anyhow::Result<Inherited> {
        if std::env::var_os(STARTED_BY).is_none() {
            return Ok(Inherited::default());
        }
        // It stands where standard input does: so it can be passed on without unsafe code.
        let stdin = io::stdin();
        if !line::is_line(stdin.as_fd()) {
            bail!("{STARTED_BY} is set, but no other process has started this one: unset it");
        }
        let line = stdin.as_fd().try_clone_to_owned().context("cannot talk to the old process")?;
        let nothing = File::open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(nothing).context("cannot close standard input")?;
        line::bound(&line, PATIENCE)?;
        let line = LINE.get_or_init(|| line);
        let mut found = Inherited { from_another: true, ..Inherited::default() };
        match next(line)? {
            hello if hello.is_our_hello() => {}
            _ => bail!("the old process speaks another version: stop it and start this one instead"),
        }
        loop {
            match next(line)? {
                Message::Sockets(sockets) => sockets.into_iter().try_for_each(|one| found.add(one))?,
                Message::End => return Ok(found),
                other => bail!("the old process said {other:?} among its sockets"),
            }
        }
    }

    fn add(&mut self, socket: OwnedFd) -> anyhow::Result<()> {
        match socket_type(&socket)? {
            SocketType::STREAM => {
                let socket = TcpListener::from(socket);
                self.tcp.push((socket.local_addr()?, socket));
            }
            SocketType::DGRAM => {
                let socket = UdpSocket::from(socket);
                self.udp.push((socket.local_addr()?, socket));
            }
            // It comes behind the socket that it belongs to.
            SocketType::SEQPACKET => {
                if let Some((address, _)) = self.udp.last() {
                    self.lines.push((*address, socket));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether another process serves still.
    pub fn replaces_another(&self) -> bool {
        self.from_another
    }

    /// Those that listen on an address.
    pub fn tcp(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        self.tcp.extract_if(.., |(own, _)| *own == address).map(|(_, socket)| socket).collect()
    }

    /// Those that take an address's datagrams.
    pub fn udp(&mut self, address: SocketAddr) -> Vec<UdpSocket> {
        self.udp.extract_if(.., |(own, _)| *own == address).map(|(_, socket)| socket).collect()
    }

    /// The lines to the old process's sockets of HTTP/3.
    pub fn lines(&mut self) -> Vec<(SocketAddr, OwnedFd)> {
        std::mem::take(&mut self.lines)
    }

    /// Waits until the old process has closed the store.
    ///
    /// # Errors
    /// It is gone.
    pub fn ask_for_store(&self) -> anyhow::Result<()> {
        let Some(line) = self.line() else { return Ok(()) };
        let asked = line::send(line.as_fd(), &Message::Store).map_err(anyhow::Error::from);
        match asked.and_then(|()| next(line)) {
            Ok(Message::Store) => Ok(()),
            // Its end has closed the store, too.
            Err(_) => Ok(()),
            Ok(other) => bail!("the old process said {other:?} when it was asked for the store"),
        }
    }

    /// Reports that this process serves, and waits until the old one has handed over.
    pub fn ready(self) {
        let Some(line) = self.line() else { return };
        let who = format!("{} {}", env!("CARGO_PKG_VERSION"), std::process::id());
        let sent = line::send(line.as_fd(), &Message::Ready(who)).map_err(anyhow::Error::from);
        match sent.and_then(|()| next(line)) {
            Ok(Message::Yours) => tracing::info!("this process has taken over"),
            // Then it is the only one that serves, and must go on.
            Ok(_) | Err(_) => tracing::warn!("the old process has ended before this one took over"),
        }
    }

    fn line(&self) -> Option<&'static OwnedFd> {
        LINE.get().filter(|_| self.from_another)
    }
}

fn next(line: &OwnedFd) -> anyhow::Result<Message> {
    line::receive(line.as_fd())?.context("the old process has ended")
}

/// Reports to the old process, if there is one, why this one ends.
pub fn failed(why: &str) {
    if let Some(line) = LINE.get() {
        let _ = line::send(line.as_fd(), &Message::Failed(why.to_owned()));
    }
}
