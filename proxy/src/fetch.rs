//! Requests that stages make themselves, through the worker's own connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;
use sdk::budget::Held;
use sdk::world::{Fetch, FetchError, FetchTimeouts, Fetched, Keep};
use snapshot::upstream::Keepalive;
use wire::h1::Progress;
use wire::h1::encode::check_target;
use wire::{Framing, Method, Name, ResponseHead};

use crate::buffers::Lent;
use crate::clock::Waiter;
use crate::exchange::body::Incoming;
use crate::exchange::fault::FaultKind;
use crate::exchange::io::{self, Failed};
use crate::exchange::receive::MAX_INTERIM;
use crate::notice::{Notice, count};
use crate::settings::Settings;
use crate::up::connect::connect_humbly;
use crate::up::pool::UpConn;
use crate::worker::Worker;

/// A kept connection is closed after so many requests.
const REQUESTS: u64 = 10_000;

/// Targets whose dropped requests are told of by name, in one second.
const TOLD_BY_NAME: usize = 8;

/// The requests in flight that no exchange waits for: bounded in all, and for each target, so that one
/// that hangs cannot take the place, or the descriptors, of everything else.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    in_flight: Cell<usize>,
    targets: RefCell<HashMap<Rc<str>, Rc<InFlight>, foldhash::fast::RandomState>>,
    /// Dropped past the bound of all.
    dropped: Cell<u64>,
}

/// Requests in flight to one target. It is forgotten with the last of them.
#[derive(Debug)]
struct InFlight {
    target: Rc<str>,
    count: Cell<usize>,
    dropped: Cell<u64>,
}

/// The right to send one request; counts it until it is over.
pub(crate) struct Permit {
    worker: Rc<Worker>,
    target: Rc<InFlight>,
}

impl Fetches {
    /// Hands out how many requests were dropped since the last time.
    pub(crate) fn tell(&self, settings: &Settings, tell: impl Fn(Notice)) {
        let mut others = self.dropped.take();
        let mut named = 0;
        for target in self.targets.borrow().values() {
            match target.dropped.take() {
                0 => {}
                dropped if named < TOLD_BY_NAME => {
                    named += 1;
                    let limit = settings.max_fetches_per_target;
                    tell(Notice::FetchesDropped { target: target.target.to_string(), dropped, limit });
                }
                dropped => others += dropped,
            }
        }
        self.targets.borrow_mut().retain(|_, target| target.count.get() > 0);
        if others > 0 {
            let target = String::new();
            tell(Notice::FetchesDropped { target, dropped: others, limit: settings.max_fetches });
        }
    }
}

impl Worker {
    /// Lets one more request go out, unless too many are in flight: then it is counted as dropped.
    pub(crate) fn permit_fetch(&self, authority: &str) -> Option<Permit> {
        let worker = self.strong()?;
        let all = &self.fetches;
        if all.in_flight.get() >= self.settings.max_fetches {
            count(&all.dropped, 1);
            self.shard.fetch_dropped();
            return None;
        }
        let mut targets = all.targets.borrow_mut();
        let target = match targets.get(authority) {
            Some(target) => target.clone(),
            None => {
                let name = Rc::<str>::from(authority);
                let target =
                    Rc::new(InFlight { target: name.clone(), count: Cell::new(0), dropped: Cell::new(0) });
                targets.insert(name, target.clone());
                target
            }
        };
        if target.count.get() >= self.settings.max_fetches_per_target {
            count(&target.dropped, 1);
            self.shard.fetch_dropped();
            return None;
        }
        all.in_flight.set(all.in_flight.get() + 1);
        target.count.set(target.count.get() + 1);
        self.shard.fetch_began();
        Some(Permit { worker, target })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let all = &self.worker.fetches;
        all.in_flight.set(all.in_flight.get() - 1);
        self.target.count.set(self.target.count.get() - 1);
        if self.target.count.get() == 0 && self.target.dropped.get() == 0 {
            all.targets.borrow_mut().remove(&self.target.target);
        }
        self.worker.shard.fetch_ended();
    }
}

impl Permit {
    /// Sends the request. The answer does not matter to whoever sent it.
    pub(crate) async fn run(self, request: Fetch) {
        let _ = run(&self.worker, request).await;
    }
}

/// Sends the request to the target's first address that can be reached and reads the whole answer.
pub(crate) async fn run(worker: &Worker, request: Fetch) -> Result<Fetched, FetchError> {
    if request.target.tls {
        // There is no TLS towards upstreams yet.
        return Err(FetchError::Broken);
    }
    // Whatever made the target, it cannot end the request line (CVE-2023-25690).
    check_target(&request.uri).map_err(|_| FetchError::Broken)?;
    let waiter = worker.clock.waiter();
    let mut last = FetchError::Unresolved;
    for &addr in request.target.addresses.iter() {
        let mut pooled = worker.pools.take(addr, worker.clock.coarse_ms(), true);
        loop {
            let mut conn = match pooled.take() {
                Some(conn) => conn,
                None => match connect_humbly(worker, &waiter, addr, request.timeouts.connect).await {
                    Ok(conn) => conn,
                    Err(fault) => {
                        last = match fault.kind {
                            FaultKind::ConnectTimeout => FetchError::Timeout,
                            _ => FetchError::Refused,
                        };
                        break;
                    }
                },
            };
            conn.requests += 1;
            match exchange(worker, &waiter, &mut conn, &request).await {
                Ok((fetched, keep)) => {
                    if keep {
                        let Keep { connections, idle } = request.keep;
                        let keepalive =
                            Keepalive { size: connections, idle_timeout: idle, requests: REQUESTS };
                        worker.pools.give(addr, conn, &keepalive, worker.clock.coarse_ms());
                    }
                    return Ok(fetched);
                }
                // The other side had closed it meanwhile: nothing is wrong with the server.
                Err(failure) if conn.reused && failure.may_be_repeated(&request) => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
    Err(last)
}

/// Why an exchange came to nothing.
struct Failure {
    error: FetchError,
    /// No byte was taken by the connection.
    unsent: bool,
    /// The connection ended before the first byte of an answer.
    unanswered: bool,
}

impl Failure {
    fn may_be_repeated(&self, request: &Fetch) -> bool {
        self.unsent || self.unanswered && (request.repeatable || request.method.is_idempotent())
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Failure {
        Failure { error, unsent: false, unanswered: false }
    }
}

async fn exchange(
    worker: &Worker,
    waiter: &Waiter,
    conn: &mut UpConn,
    request: &Fetch,
) -> Result<(Fetched, bool), Failure> {
    let FetchTimeouts { send, read, .. } = request.timeouts;
    // For a server that sends a byte now and then.
    let end = worker.clock.after(send.saturating_add(read));
    let mut out = Vec::with_capacity(512 + request.body.len());
    write_request(request, &mut out);
    let (mut from, mut to) = conn.stream.split();
    if let Err(error) = io::write_all(worker, waiter, &mut to, &out, send).await {
        return Err(Failure { unsent: error == Failed::Closed, ..failed(error).into() });
    }

    let mut lent = Lent::none(&worker.buffers);
    let buffer = lent.get();
    let mut head = ResponseHead::default();
    let mut progress = Progress::default();
    let mut interim = 0;
    let mut heard = false;
    loop {
        if !buffer.is_empty() {
            heard = true;
            let limits = &worker.settings.response;
            match wire::h1::response(buffer.data(), &mut progress, &mut head, request.method, limits) {
                Ok(Some(n)) => {
                    buffer.consume(n);
                    if head.status >= 200 {
                        break;
                    }
                    interim += 1;
                    if head.status == 101 || interim > MAX_INTERIM {
                        // Nobody asked for another protocol, nor for news without end.
                        return Err(FetchError::Broken.into());
                    }
                    continue;
                }
                Ok(None) if buffer.space().is_empty() => buffer.grow(limits.head),
                Ok(None) => {}
                Err(_) => return Err(FetchError::Broken.into()),
            }
        }
        let deadline = end.min(worker.clock.after(read));
        match io::read_until(waiter, &mut from, buffer, deadline).await {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => {
                return Err(Failure { unanswered: !heard, ..FetchError::Broken.into() });
            }
            Ok(_) => {}
            Err(error @ Failed::Timeout) => return Err(failed(error).into()),
        }
    }
    let mut incoming = Incoming::new(head.framing);
    let (mut body, mut held) = (Vec::new(), Held::default());
    let mut done = incoming.is_done();
    while !done {
        let taken = incoming.decode(buffer.data_mut()).map_err(|_| FetchError::Broken)?;
        if body.len() + taken.emit > request.max_body {
            return Err(FetchError::TooLarge.into());
        }
        let room = held.reserve(&worker.budget, &mut body, taken.emit, request.max_body);
        room.map_err(|_| FetchError::TooLarge)?;
        body.extend_from_slice(&buffer.data()[..taken.emit]);
        buffer.consume(taken.consumed);
        done = taken.done;
        let deadline = end.min(worker.clock.after(read));
        if !done && io::read_until(waiter, &mut from, buffer, deadline).await.map_err(failed)? == 0 {
            if !matches!(incoming, Incoming::UntilClose) {
                return Err(FetchError::Broken.into());
            }
            done = true;
        }
    }
    let keep = head.keep_alive && head.framing != Framing::UntilClose && buffer.is_empty();
    Ok((Fetched { status: head.status, fields: head.fields, body, held }, keep))
}

fn write_request(request: &Fetch, out: &mut Vec<u8>) {
    match request.method {
        Method::Other => out.extend_from_slice(&request.method_name),
        method => out.extend_from_slice(method.as_str().as_bytes()),
    }
    out.push(b' ');
    out.extend_from_slice(&request.uri);
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    let host = request.fields.get(Name::Host).unwrap_or(request.target.authority.as_bytes());
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\n");
    for (name, value, id) in request.fields.iter() {
        // Framing and connection are this file's business; a copied head may hold them.
        if matches!(
            id,
            Name::Host
                | Name::ContentLength
                | Name::TransferEncoding
                | Name::Connection
                | Name::KeepAlive
                | Name::Upgrade
                | Name::Expect
                | Name::Te
                | Name::Trailer
        ) {
            continue;
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    if !request.body.is_empty() || matches!(request.method, Method::Post | Method::Put | Method::Patch) {
        out.extend_from_slice(b"Content-Length: ");
        wire::h1::encode::decimal(request.body.len() as u64, out);
        out.extend_from_slice(b"\r\n");
    }
    if request.keep.connections == 0 {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&request.body);
}

fn failed(failed: Failed) -> FetchError {
    match failed {
        Failed::Closed | Failed::Broken => FetchError::Broken,
        Failed::Timeout => FetchError::Timeout,
    }
}
