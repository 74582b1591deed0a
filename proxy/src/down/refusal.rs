//! Reports input that was no valid request, in both logs.

use std::rc::Rc;

use sdk::engine::Messages;
use sdk::{Client, Exchange};

use crate::access_log::AccessLog;
use crate::exchange::fault::{Fault, FaultKind, FaultRecord, TlsNames};
use crate::worker::Worker;

/// A refused request, which has no valid head.
pub(super) struct Refused<'a> {
    /// The bytes in the place of its first line.
    pub(super) line: &'a [u8],
    pub(super) status: u16,
    /// Why it was refused.
    pub(super) reason: &'static str,
    /// Bytes received and sent, and how many of those were a body.
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) body_sent: u64,
    /// Milliseconds since its first byte.
    pub(super) took_ms: u64,
}

/// Adds the line of a refused request to the access log. `messages` holds none.
#[cold]
pub(super) fn log(
    log: &AccessLog,
    worker: &Rc<Worker>,
    client: &Client,
    messages: &mut Messages,
    refused: &Refused<'_>,
) {
    let lease = worker.lease();
    let mut x = Exchange::new(messages, client, &lease.consumers, &**worker);
    let engine = x.engine_mut();
    engine.refused = Some(refused.line);
    engine.messages.response.status = refused.status;
    engine.reason = refused.reason;
    engine.timing.received = refused.received;
    engine.timing.sent = refused.sent;
    engine.timing.body_sent = refused.body_sent;
    engine.timing.total_us = refused.took_ms * 1000;
    log.add(&x, worker.clock.unix_ms(worker.clock.micros()));
}

/// Reports a refused request of `received` bytes, in a protocol without request lines.
#[cold]
pub(super) fn report(
    worker: &Rc<Worker>,
    client: &Client,
    kind: FaultKind,
    received: u64,
    messages: &mut Messages,
) {
    worker.shard.request_refused();
    report_end(worker, client, kind);
    if let Some(log) = &worker.access_log {
        let status = kind.status();
        let reason = kind.words();
        let refused = Refused { line: b"", status, reason, received, sent: 0, body_sent: 0, took_ms: 0 };
        self::log(log, worker, client, messages, &refused);
    }
}

/// Reports a connection that is refused as a whole.
#[cold]
pub(super) fn report_connection(worker: &Rc<Worker>, client: &Client, kind: FaultKind) {
    let mut scratch = worker.take_scratch();
    report(worker, client, kind, 0, &mut scratch.messages);
    worker.give_scratch(scratch);
}

/// Reports the fault that ended a connection outside of any request: in the error log only.
#[cold]
pub(super) fn report_end(worker: &Worker, client: &Client, kind: FaultKind) {
    (worker.settings.on_fault)(FaultRecord {
        fault: Fault::client(kind),
        status: kind.status(),
        limit: kind.limit(&worker.settings),
        client: client.ip(),
        upstream: None,
        route: String::new(),
        request: String::new(),
        tls: TlsNames::default(),
    });
}

/// Reports a client that was refused by its handshake. Only in the error log: there is no request.
#[cold]
pub(super) fn report_handshake(worker: &Worker, client: &Client, fault: Fault, tls: TlsNames) {
    (worker.settings.on_fault)(FaultRecord {
        fault,
        status: 0,
        limit: fault.kind.limit(&worker.settings),
        client: client.ip(),
        upstream: None,
        route: String::new(),
        request: String::new(),
        tls,
    });
}
