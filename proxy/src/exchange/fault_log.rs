//! Failed exchanges in the error log.

use sdk::Exchange;

use super::fault::{Fault, FaultKind, FaultRecord, TlsNames};
use crate::worker::Worker;

/// Reports a failed exchange.
#[cold]
pub(crate) fn report(worker: &Worker, x: &Exchange<'_>, fault: Fault) {
    // Requests get 404 and a line in the access log; streams get no answer, so the fault is reported.
    if fault.kind == FaultKind::NoRoute && x.stream().is_none() {
        return;
    }
    worker.shard.fault();
    (worker.settings.on_fault)(record(worker, x, fault));
}

/// Returns the record of a failed exchange.
#[cold]
pub(crate) fn record(worker: &Worker, x: &Exchange<'_>, fault: Fault) -> FaultRecord {
    let request = match x.stream() {
        Some(stream) => format!("{} {}", stream.protocol.as_str(), x.client().local),
        None => {
            let mut request = String::from_utf8_lossy(x.request().method_bytes()).into_owned();
            request.push(' ');
            // CONNECT names a server and no path.
            let place = if x.path().is_empty() { x.request().target() } else { x.path() };
            request.extend(String::from_utf8_lossy(place).chars().take(200));
            request
        }
    };
    FaultRecord {
        fault,
        status: x.status(),
        limit: fault.kind.limit(&worker.settings),
        client: x.client().ip(),
        upstream: x.upstream_addr(),
        route: x.route().map(|route| route.id.to_string()).unwrap_or_default(),
        request,
        tls: tls(x, fault.kind),
    }
}

/// The names of a handshake that a refusal follows from, and the server that the client of a stream asked for.
fn tls(x: &Exchange<'_>, kind: FaultKind) -> TlsNames {
    if let Some(stream) = x.stream() {
        return TlsNames { server: stream.server_name.clone(), certificate: None };
    }
    match (kind, x.client().session.as_deref()) {
        (FaultKind::NotProven(_) | FaultKind::RulesChanged | FaultKind::Misdirected, Some(session)) => {
            TlsNames::of(session)
        }
        _ => TlsNames::default(),
    }
}
