//! Sockets of scripts: connections of the worker, whose bytes, number and times are bounded.
//!
//! A socket belongs to the exchange or timer that made it, and is closed with it at the latest.

mod input;
mod receive;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hashbrown::HashMap;
use mlua::LuaString;
use sdk::chain::LocalFuture;
use sdk::connection::{
    Addresses, AsyncRead, AsyncWrite, Connect, ConnectError, Connection, Server, Tls, Trust,
};

use super::access;
use super::flow::{Owner, pause};
use super::machine::{self, Out};
use input::Input;
pub(super) use receive::{Wanted, receive};

/// The results of an operation, as Lua gets them.
pub(super) type Results = Result<Vec<Out>, String>;

/// Longer texts of servers and pools are not remembered.
const LONGEST_KEY: usize = 512;

/// Pools whose TLS is remembered, and settings of TLS of each.
const MOST_POOLS: usize = 256;
const MOST_TLS: usize = 4;

/// Datagrams are at most as long as this.
const LONGEST_DATAGRAM: usize = 65_507;

/// The state that all sockets of a machine share.
#[derive(Default)]
pub(super) struct Shared {
    /// Open connections.
    open: Cell<usize>,
    /// Bytes that were received and not taken.
    buffered: Cell<usize>,
    /// The TLS of connections that were kept, the latest last.
    secured: RefCell<HashMap<String, Vec<Secured>>>,
}

/// A name that was sent in a handshake, and whether the certificate was verified for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Secured {
    name: Arc<str>,
    verified: bool,
}

impl Secured {
    fn tls(&self) -> Tls {
        let trust = if self.verified { Trust::Common } else { Trust::Any };
        Tls { server_name: self.name.clone(), trust }
    }
}

/// The sockets of one exchange or timer.
#[derive(Default)]
pub(super) struct Sockets {
    open: Cell<usize>,
    sockets: RefCell<Vec<Weak<Socket>>>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for socket in self.sockets.take() {
            if let Some(socket) = socket.upgrade() {
                socket.close();
            }
        }
    }
}

/// One of the connections that may be open.
struct Permit {
    shared: Rc<Shared>,
    owner: Weak<Sockets>,
}

impl Permit {
    fn new(shared: &Rc<Shared>, owner: &Rc<Sockets>, most: usize) -> Option<Permit> {
        // One exchange has at most a quarter.
        if shared.open.get() >= most || owner.open.get() >= most.div_ceil(4) {
            return None;
        }
        shared.open.set(shared.open.get() + 1);
        owner.open.set(owner.open.get() + 1);
        Some(Permit { shared: shared.clone(), owner: Rc::downgrade(owner) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.open.set(self.shared.open.get() - 1);
        if let Some(owner) = self.owner.upgrade() {
            owner.open.set(owner.open.get() - 1);
        }
    }
}

struct Open {
    connection: Connection,
    permit: Permit,
    to: Connect,
    /// Under which the TLS of its pool is remembered.
    key: String,
    secured: Option<Secured>,
    /// Whether it came from the pool with its TLS.
    is_pooled: bool,
}

/// Times of connecting, sending and receiving.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub connect: Duration,
    pub send: Duration,
    pub receive: Duration,
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: DEFAULT_TIMEOUT, send: DEFAULT_TIMEOUT, receive: DEFAULT_TIMEOUT }
    }
}

/// The socket of a script.
pub(super) struct Socket {
    owner: Weak<Sockets>,
    pub timeouts: Cell<Timeouts>,
    open: RefCell<Option<Open>>,
    input: RefCell<Input>,
    reading: Cell<bool>,
    writing: Cell<bool>,
}

/// A wait that uses a direction of a socket, or both.
struct Busy {
    socket: Rc<Socket>,
    reads: bool,
    writes: bool,
}

impl Busy {
    fn reading(socket: &Rc<Socket>) -> Option<Busy> {
        Busy::begin(socket, true, false)
    }

    fn writing(socket: &Rc<Socket>) -> Option<Busy> {
        Busy::begin(socket, false, true)
    }

    fn both(socket: &Rc<Socket>) -> Option<Busy> {
        Busy::begin(socket, true, true)
    }

    /// `None` if a light thread waits with the same direction.
    fn begin(socket: &Rc<Socket>, reads: bool, writes: bool) -> Option<Busy> {
        if reads && socket.reading.get() || writes && socket.writing.get() {
            return None;
        }
        socket.reading.set(socket.reading.get() | reads);
        socket.writing.set(socket.writing.get() | writes);
        Some(Busy { socket: socket.clone(), reads, writes })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Busy { socket, reads, writes } = self;
        socket.reading.set(socket.reading.get() && !*reads);
        socket.writing.set(socket.writing.get() && !*writes);
    }
}

/// The time of an operation, from its last progress on.
pub(super) struct Patience {
    sleep: LocalFuture<'static, ()>,
    time: Duration,
    steps: u32,
}

/// Steps of an operation before other tasks of the worker run, which a fast server would keep from running.
const STEPS: u32 = 16;

impl Patience {
    pub(super) fn new(time: Duration) -> mlua::Result<Patience> {
        Ok(Patience { sleep: access::world(|world| world.sleep(time))?, time, steps: 0 })
    }

    async fn progressed(&mut self) {
        if let Some(worker) = machine::worker() {
            self.sleep = worker.sleep(self.time);
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS) {
            // A pause has no error.
            let _ = pause().await;
        }
    }
}

fn failed(error: &str) -> Vec<Out> {
    vec![Out::Nil, Out::Text(error.as_bytes().to_vec())]
}

fn text_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionReset => "connection reset by peer",
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::BrokenPipe => "broken pipe",
        io::ErrorKind::TimedOut => "timeout",
        io::ErrorKind::InvalidData => "invalid TLS record",
        _ => "closed",
    }
}

fn connect_error(error: ConnectError) -> &'static str {
    match error {
        ConnectError::Refused => "connection refused",
        ConnectError::Timeout => "timeout",
        ConnectError::Unresolved => "host not found",
        error => error.as_str(),
    }
}

const TOO_MANY: &str = "too many open sockets (sluice.lua.max_sockets, a quarter of it for one request)";

impl Socket {
    /// A socket of the code that runs.
    pub(super) fn new() -> Option<Rc<Socket>> {
        let machine = machine::current()?;
        let owner = machine.owner.borrow_mut().sockets()?;
        Some(Rc::new(Socket {
            owner: Rc::downgrade(&owner),
            timeouts: Cell::default(),
            open: RefCell::default(),
            input: RefCell::new(Input::new(&machine.sockets, machine.host.settings.max_memory)),
            reading: Cell::default(),
            writing: Cell::default(),
        }))
    }

    /// Whether it belongs to the code that runs.
    pub(super) fn is_own(&self) -> bool {
        machine::current().is_some_and(|machine| match &*machine.owner.borrow() {
            Owner::Code(Some(owner)) => std::ptr::eq(self.owner.as_ptr(), Rc::as_ptr(owner)),
            Owner::Code(None) | Owner::None => false,
        })
    }

    /// Returns false if it was closed before.
    pub(super) fn close(&self) -> bool {
        self.input.borrow_mut().clear();
        self.open.take().is_some()
    }

    pub(super) fn reused_times(&self) -> Option<u64> {
        Some(self.open.borrow().as_ref()?.connection.reused_times())
    }

    /// Gives the connection back to the worker's pool.
    pub(super) fn keep(&self, idle: Duration) -> Result<(), &'static str> {
        if self.reading.get() || self.writing.get() {
            return Err("socket busy");
        }
        if !self.input.borrow().is_empty() {
            return Err("unread data in buffer");
        }
        let Some(Open { connection, permit, key, secured, .. }) = self.open.take() else {
            return Err("closed");
        };
        if let Some(secured) = secured.filter(|secured| key.len() + secured.name.len() <= LONGEST_KEY) {
            let mut all = permit.shared.secured.borrow_mut();
            if all.len() >= MOST_POOLS && !all.contains_key(&key) {
                all.clear();
            }
            let known = all.entry(key).or_default();
            known.retain(|known| *known != secured);
            if known.len() >= MOST_TLS {
                known.remove(0);
            }
            known.push(secured);
        }
        connection.keep(idle);
        Ok(())
    }

    fn opened(self: &Rc<Socket>, open: Open) {
        let Some(owner) = self.owner.upgrade() else { return };
        let mut sockets = owner.sockets.borrow_mut();
        sockets.retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Rc::as_ptr(self)));
        sockets.push(Rc::downgrade(self));
        *self.open.borrow_mut() = Some(open);
    }
}

/// Connects a socket, which closes the connection that it has. `key` names server and pool.
pub(super) fn connect(
    socket: Rc<Socket>,
    server: Server,
    pool: &str,
) -> mlua::Result<LocalFuture<'static, Results>> {
    let done = |results: Vec<Out>| -> mlua::Result<LocalFuture<'static, Results>> {
        Ok(Box::pin(async { Ok(results) }))
    };
    let Some(busy) = Busy::both(&socket) else { return done(failed("socket busy")) };
    socket.close();
    let (Some(machine), Some(owner)) = (machine::current(), socket.owner.upgrade()) else {
        return done(failed("closed"));
    };
    let Some(permit) = Permit::new(&machine.sockets, &owner, machine.host.settings.max_sockets) else {
        return done(failed(TOO_MANY));
    };
    let key = format!("{pool}|{server:?}");
    // Pools of scripts are none of other plugins.
    let to = Connect { server, pool: format!("lua:{pool}").into(), timeout: socket.timeouts.get().connect };
    // A connection that was kept after its handshake comes from the pool with its TLS.
    let known = machine.sockets.secured.borrow().get(&key).cloned().unwrap_or_default();
    if let Server::Tcp { at, .. } = &to.server {
        for secured in known.into_iter().rev() {
            let server = Server::Tcp { at: at.clone(), tls: Some(secured.tls()) };
            let with_tls = Connect { server, ..to.clone() };
            if let Some(connection) = access::world(|world| world.idle(&with_tls))? {
                let secured = Some(secured);
                socket.opened(Open { connection, permit, to, key, secured, is_pooled: true });
                return done(vec![Out::Number(1.0)]);
            }
        }
    }
    let connecting = access::world(|world| world.connect(to.clone()))?;
    Ok(Box::pin(async move {
        let _busy = busy;
        match connecting.await {
            Ok(connection) => {
                socket.opened(Open { connection, permit, to, key, secured: None, is_pooled: false });
                Ok(vec![Out::Number(1.0)])
            }
            Err(error) => Ok(failed(connect_error(error))),
        }
    }))
}

/// Does a TLS handshake. A pooled connection that was set up with other settings is replaced by a new one.
pub(super) fn secure(
    socket: Rc<Socket>,
    name: &str,
    verified: bool,
) -> mlua::Result<LocalFuture<'static, Results>> {
    let done = |results: Vec<Out>| -> mlua::Result<LocalFuture<'static, Results>> {
        Ok(Box::pin(async { Ok(results) }))
    };
    let Some(busy) = Busy::both(&socket) else { return done(failed("socket busy")) };
    if !socket.input.borrow().is_empty() {
        // Bytes that came before the handshake must not count as bytes of the verified server.
        socket.close();
        return done(failed("unread data in buffer"));
    }
    let Some(mut open) = socket.open.take() else { return done(failed("closed")) };
    let wanted = Secured { name: name.into(), verified };
    let timeout = socket.timeouts.get().connect;
    let mut connecting = None;
    if let Some(has) = &open.secured {
        if *has == wanted || !verified {
            socket.opened(open);
            return done(vec![Out::Bool(true)]);
        }
        if !std::mem::take(&mut open.is_pooled) {
            return done(failed("the connection has TLS with other settings"));
        }
        connecting = Some(access::world(|world| world.connect(open.to.clone()))?);
    }
    Ok(Box::pin(async move {
        let _busy = busy;
        let Open { connection, permit, to, key, .. } = open;
        let connection = match connecting {
            Some(connecting) => {
                drop(connection);
                connecting.await
            }
            None => Ok(connection),
        };
        let shaken = match connection {
            Ok(connection) => connection.secure(wanted.tls(), timeout).await,
            Err(error) => Err(error),
        };
        match shaken {
            Ok(connection) => {
                let secured = Some(wanted);
                socket.opened(Open { connection, permit, to, key, secured, is_pooled: false });
                Ok(vec![Out::Bool(true)])
            }
            Err(error) => Ok(failed(connect_error(error))),
        }
    }))
}

/// Sends a text. The socket is closed if that fails.
pub(super) fn send(socket: Rc<Socket>, text: LuaString, patience: Patience) -> LocalFuture<'static, Results> {
    match Busy::writing(&socket) {
        Some(busy) => Box::pin(send_all(busy, text, patience)),
        None => Box::pin(async { Ok(failed("socket busy writing")) }),
    }
}

async fn send_all(busy: Busy, text: LuaString, mut patience: Patience) -> Results {
    let socket = &busy.socket;
    let (mut sent, mut written) = (0, false);
    loop {
        let step = poll_fn(|cx| {
            let open = &mut *socket.open.borrow_mut();
            let Some(open) = open else { return Poll::Ready(Err("closed")) };
            let (connection, bytes) = (Pin::new(&mut open.connection), text.as_bytes());
            // An empty datagram is written, too.
            let polled = match written && sent == bytes.len() {
                true => connection.poll_flush(cx).map_ok(|()| None),
                false => connection.poll_write(cx, &bytes[sent..]).map_ok(Some),
            };
            match polled {
                Poll::Ready(Ok(Some(0))) if sent < bytes.len() => Poll::Ready(Err("closed")),
                Poll::Ready(step) => Poll::Ready(step.map_err(|error| text_of(&error))),
                Poll::Pending => patience.sleep.as_mut().poll(cx).map(|()| Err("timeout")),
            }
        });
        match step.await {
            Ok(Some(n)) => {
                (sent, written) = (sent + n, true);
                patience.progressed().await;
            }
            Ok(None) => return Ok(vec![Out::Number(sent as f64)]),
            Err(error) => {
                socket.close();
                return Ok(failed(error));
            }
        }
    }
}

/// Receives a datagram; the end of a longer one is lost.
pub(super) fn receive_datagram(
    socket: Rc<Socket>,
    size: usize,
    patience: Patience,
) -> LocalFuture<'static, Results> {
    match Busy::reading(&socket) {
        Some(busy) => Box::pin(read_datagram(busy, size, patience)),
        None => Box::pin(async { Ok(failed("socket busy reading")) }),
    }
}

async fn read_datagram(busy: Busy, size: usize, mut patience: Patience) -> Results {
    let socket = &busy.socket;
    let mut datagram = vec![0; size.clamp(1, LONGEST_DATAGRAM)];
    let received = poll_fn(|cx| {
        let open = &mut *socket.open.borrow_mut();
        let Some(open) = open else { return Poll::Ready(Err("closed")) };
        match Pin::new(&mut open.connection).poll_read(cx, &mut datagram) {
            Poll::Ready(read) => Poll::Ready(read.map_err(|error| text_of(&error))),
            Poll::Pending => patience.sleep.as_mut().poll(cx).map(|()| Err("timeout")),
        }
    });
    match received.await {
        Ok(n) => {
            datagram.truncate(n);
            Ok(vec![Out::Text(datagram)])
        }
        Err(error) => Ok(failed(error)),
    }
}

/// The server of a host or address and a port.
pub(super) fn server(host: &str, port: u16) -> Result<Addresses, String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse() {
        return Ok(Addresses::Known([std::net::SocketAddr::new(ip, port)].into()));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match !host.is_empty() && host.len() <= 253 && host.bytes().all(is_name) {
        true => Ok(Addresses::Host { name: host.into(), port }),
        false => Err("invalid host name".to_owned()),
    }
}
