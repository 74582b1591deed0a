//! Requests that stages make themselves, through the worker's own connections.

use std::time::Duration;

use sdk::world::{Fetch, FetchError, Fetched};
use wire::h1::Progress;
use wire::h1::encode::check_target;
use wire::{Framing, Method, Name, ResponseHead};

use crate::buffers::Lent;
use crate::clock::Waiter;
use crate::exchange::answer::write_decimal;
use crate::exchange::body::Incoming;
use crate::exchange::fault::FaultKind;
use crate::exchange::io::{self, Failed};
use crate::exchange::receive::MAX_INTERIM;
use crate::up::connect::connect;
use crate::up::pool::UpConn;
use crate::worker::Worker;

/// How idle connections of fetches are kept.
const KEEPALIVE: snapshot::upstream::Keepalive =
    snapshot::upstream::Keepalive { size: 32, idle_timeout: Duration::from_secs(30), requests: 10_000 };

/// Sends the request to the target's first address that can be reached and reads the whole answer.
pub(crate) async fn run(worker: &Worker, request: Fetch) -> Result<Fetched, FetchError> {
    if request.target.tls {
        // There is no TLS towards upstreams yet.
        return Err(FetchError::Broken);
    }
    let waiter = worker.clock.waiter();
    let mut last = FetchError::Unresolved;
    for &addr in request.target.addresses.iter() {
        let pooled = worker.pools.take(addr, worker.clock.coarse_ms(), true);
        let mut conn = match pooled {
            Some(conn) => conn,
            None => match connect(worker, &waiter, addr, request.timeout).await {
                Ok(conn) => conn,
                Err(fault) => {
                    last = match fault.kind {
                        FaultKind::ConnectTimeout => FetchError::Timeout,
                        _ => FetchError::Refused,
                    };
                    continue;
                }
            },
        };
        conn.requests += 1;
        let (fetched, keep) = exchange(worker, &waiter, &mut conn, &request).await?;
        if keep {
            worker.pools.give(addr, conn, &KEEPALIVE, worker.clock.coarse_ms());
        }
        return Ok(fetched);
    }
    Err(last)
}

async fn exchange(
    worker: &Worker,
    waiter: &Waiter,
    conn: &mut UpConn,
    request: &Fetch,
) -> Result<(Fetched, bool), FetchError> {
    let deadline = worker.clock.after(request.timeout);
    // Whatever made the target, it cannot end the request line (CVE-2023-25690).
    check_target(&request.uri).map_err(|_| FetchError::Broken)?;
    let mut out = Vec::with_capacity(512 + request.body.len());
    write_request(request, &mut out);
    let (mut from, mut to) = conn.stream.split();
    io::write_all(worker, waiter, &mut to, &out, request.timeout).await.map_err(failed)?;

    let mut lent = Lent::none(&worker.buffers);
    let buffer = lent.get();
    let mut head = ResponseHead::default();
    let mut progress = Progress::default();
    let mut interim = 0;
    loop {
        if !buffer.is_empty() {
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
                        return Err(FetchError::Broken);
                    }
                    continue;
                }
                Ok(None) if buffer.space().is_empty() => buffer.grow(limits.head),
                Ok(None) => {}
                Err(_) => return Err(FetchError::Broken),
            }
        }
        if io::read_until(waiter, &mut from, buffer, deadline).await.map_err(failed)? == 0 {
            return Err(FetchError::Broken);
        }
    }
    let mut incoming = Incoming::new(head.framing);
    let mut body = Vec::new();
    let mut done = incoming.is_done();
    while !done {
        let taken = incoming.decode(buffer.data_mut()).map_err(|_| FetchError::Broken)?;
        if body.len() + taken.emit > request.max_body {
            return Err(FetchError::TooLarge);
        }
        body.extend_from_slice(&buffer.data()[..taken.emit]);
        buffer.consume(taken.consumed);
        done = taken.done;
        if !done && io::read_until(waiter, &mut from, buffer, deadline).await.map_err(failed)? == 0 {
            if !matches!(incoming, Incoming::UntilClose) {
                return Err(FetchError::Broken);
            }
            done = true;
        }
    }
    let keep = head.keep_alive && head.framing != Framing::UntilClose && buffer.is_empty();
    Ok((Fetched { status: head.status, fields: head.fields, body }, keep))
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
        write_decimal(request.body.len() as u64, out);
        out.extend_from_slice(b"\r\n");
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
