//! Reports input that was no valid request, in both logs.

use std::rc::Rc;

use sdk::Client;
use sdk::engine::Messages;

use crate::access_log::Refused;
use crate::exchange::fault::{Fault, FaultKind, FaultRecord, TlsNames};
use crate::worker::Worker;

/// Reports a refused request of `received` bytes, in a protocol without request lines.
#[cold]
pub(super) fn tell(
    worker: &Rc<Worker>,
    client: &Client,
    kind: FaultKind,
    received: u64,
    messages: &mut Messages,
) {
    worker.shard.request_refused();
    tell_of_end(worker, client, kind);
    if let Some(log) = &worker.access_log {
        let status = kind.status();
        let reason = kind.words();
        let refused = Refused { line: b"", status, reason, received, sent: 0, body_sent: 0, took_ms: 0 };
        log.add_refused(worker, client, messages, &refused);
    }
}

/// Reports a connection that is refused as a whole.
#[cold]
pub(super) fn tell_of_connection(worker: &Rc<Worker>, client: &Client, kind: FaultKind) {
    let mut scratch = worker.take_scratch();
    tell(worker, client, kind, 0, &mut scratch.messages);
    worker.give_scratch(scratch);
}

/// Reports the fault that ended a connection outside of any request: in the error log only.
#[cold]
pub(super) fn tell_of_end(worker: &Worker, client: &Client, kind: FaultKind) {
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
pub(super) fn tell_of_handshake(worker: &Worker, client: &Client, fault: Fault, tls: TlsNames) {
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
