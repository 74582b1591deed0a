//! A worker's world over real sockets, whose clock a test sets.

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use sdk::budget::{Budget, Reservation};
use sdk::chain::LocalFuture;
use sdk::client::Client;
use sdk::connection::{
    Addresses, AsyncRead, AsyncWrite, Connect, ConnectError, Connection, Server, Socket, TooManyTasks,
};
use sdk::exchange::Exchange;
use sdk::meters::Shard;
use sdk::offload::{Job, Output};
use sdk::resolve::ResolveError;
use sdk::state::WorkerStates;
use sdk::testing::FakeWorld;
use sdk::world::{Fetch, FetchError, Fetched, World};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

/// The clock of the wall stands still but for [`Real::pass`]; sleeps and the steady clock are real.
pub struct Real {
    fake: FakeWorld,
    started: Instant,
    now_ms: Rc<Cell<u64>>,
    /// Connections that were opened.
    pub opened: Rc<Cell<usize>>,
    /// Connections given back, which are closed.
    pub kept: Rc<Cell<usize>>,
}

impl Default for Real {
    fn default() -> Real {
        Real {
            fake: FakeWorld::default(),
            started: Instant::now(),
            now_ms: Rc::new(Cell::new(1_700_000_000_000)),
            opened: Rc::default(),
            kept: Rc::default(),
        }
    }
}

impl Real {
    pub fn pass_to(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
    }

    /// Lets time pass: for servers, too, if it is short.
    pub fn pass(&self, ms: u64) -> LocalFuture<'static, ()> {
        let now_ms = self.now_ms.clone();
        Box::pin(async move {
            if ms < 5_000 {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            now_ms.set(now_ms.get() + ms);
        })
    }
}

impl World for Real {
    fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    fn steady_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn clock_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn sleep(&self, time: Duration) -> LocalFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn connect(&self, to: Connect) -> LocalFuture<'static, Result<Connection, ConnectError>> {
        let (opened, kept) = (self.opened.clone(), self.kept.clone());
        Box::pin(async move {
            let Server::Tcp { at, tls: None } = to.server else {
                return Err(ConnectError::Untrusted("no TLS here"));
            };
            let at = match at {
                Addresses::Known(all) => all[0],
                Addresses::Host { .. } => return Err(ConnectError::Unresolved),
            };
            let connecting = tokio::time::timeout(to.timeout, TcpStream::connect(at)).await;
            let stream = connecting.map_err(|_| ConnectError::Timeout)?.map_err(|_| ConnectError::Refused)?;
            opened.set(opened.get() + 1);
            Ok(Connection::new(Tcp { stream, kept }))
        })
    }

    fn resolve(
        &self,
        host: &str,
        timeout: Duration,
    ) -> LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>> {
        self.fake.resolve(host, timeout)
    }

    fn run(&self, task: LocalFuture<'static, ()>) -> Result<(), TooManyTasks> {
        tokio::task::spawn_local(task);
        Ok(())
    }

    fn states(&self) -> &WorkerStates {
        self.fake.states()
    }

    fn run_job(&self, job: Job, held: Reservation) -> LocalFuture<'static, (Output, Reservation)> {
        self.fake.run_job(job, held)
    }

    fn fetch(&self, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        self.fake.fetch(request)
    }

    fn dispatch(&self, client: &Client, request: Fetch) -> LocalFuture<'static, Result<Fetched, FetchError>> {
        self.fake.dispatch(client, request)
    }

    fn send(&self, request: Fetch) {
        self.fake.send(request);
    }

    fn meters(&self) -> &Shard {
        self.fake.meters()
    }

    fn budget(&self) -> &Budget {
        self.fake.budget()
    }

    fn complain(&self, x: &Exchange<'_>, plugin: &'static str, reason: &'static str) {
        self.fake.complain(x, plugin, reason);
    }
}

struct Tcp {
    stream: TcpStream,
    kept: Rc<Cell<usize>>,
}

impl Socket for Tcp {
    fn is_reused(&self) -> bool {
        false
    }

    fn keep(self: Box<Self>, _idle: Duration) {
        self.kept.set(self.kept.get() + 1);
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
