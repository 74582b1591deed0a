//! Streams: connections of bytes and sessions of datagrams, passed on as they are.
//!
//! A stream is found its route when it begins, by addresses, port and the server name of a TLS client; the
//! plugins' preread phase follows, then an upstream, and bytes both ways until it ends. To plugins, variables
//! and logs it is an exchange without messages. It holds its route's plan, and no snapshot: one that
//! lasts for days keeps nothing else of an old configuration alive.

mod filtered;
mod first;
mod forward;
mod preread;
mod protocol;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::rc::Rc;

use sdk::meters::live::Finished;
use sdk::{Client, Exchange, Phase};
use snapshot::streams::StreamPlan;

use crate::exchange::fault::{Blame, Fault};
use crate::exchange::fault_log;
use crate::relay::{Ended, Side};
use crate::worker::Worker;

/// The outcome of a stream.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Relayed(Ended),
    /// A plugin refused it, with this status.
    Refused(u16),
    Failed(Fault),
}

impl Outcome {
    /// The status nginx gives such a session, which knows no others than these.
    fn status(self) -> u16 {
        match self {
            Outcome::Relayed(Ended::Closed | Ended::Idle) => 200,
            Outcome::Relayed(Ended::Broken(Side::Client)) => 400,
            Outcome::Relayed(Ended::Broken(Side::Upstream)) => 502,
            Outcome::Refused(status) => status,
            Outcome::Failed(Fault { blame: Blame::Client, .. }) => 400,
            Outcome::Failed(Fault { blame: Blame::Upstream, .. }) => 502,
            Outcome::Failed(fault) => match fault.kind.status() {
                status @ (502 | 503) => status,
                _ => 500,
            },
        }
    }
}

impl Worker {
    /// Takes a client's address from the PROXY protocol, where the peer is trusted to tell it.
    pub(crate) fn believe_stream(&self, client: &mut Client) {
        if let (Some(from), Some(ends)) = (&self.settings.streams.real_ip_from, client.ends())
            && from(client.peer.ip().to_canonical())
        {
            *client = client.with_address(ends.source.ip(), Some(ends.source.port()));
        }
    }
}

/// Counts a stream for its route, and each attempt for its node. Only connecting is timed: a stream may last for days.
fn count(worker: &Worker, x: &Exchange<'_>, plan: Option<&StreamPlan>) {
    let (live, timing) = (&worker.shard.live, x.timing());
    let took_us = x.engine().stream.as_ref().and_then(|stream| stream.connect_us);
    let finished = Finished { status: x.status(), took_us, received: timing.received, sent: timing.sent };
    live.stream(plan.map_or("", |plan| &*plan.plan.info.id), &finished);
    if let Some(node) = x.upstream_addr() {
        live.node(node, &finished);
        for attempt in x.tried() {
            live.node(attempt.addr, &Finished { status: attempt.status, ..Finished::default() });
        }
    }
}

/// The end of every stream: the log phase, the access log, and what failed.
fn end(worker: &Rc<Worker>, x: &mut Exchange<'_>, plan: Option<&StreamPlan>, outcome: Outcome, began: u64) {
    x.engine_mut().messages.holds.clear();
    x.engine_mut().messages.response.status = outcome.status();
    let ended = worker.clock.micros();
    x.engine_mut().timing.total_us = ended.saturating_sub(began);
    count(worker, x, plan);
    if let Outcome::Failed(fault) = outcome {
        fault_log::report(worker, x, fault);
    }
    if let Some(chain) = plan.and_then(|plan| plan.plan.chain.as_deref())
        && chain.phases().has(Phase::Log)
    {
        let logged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| chain.log(x)));
        if logged.is_err() {
            worker.shard.panicked();
        }
    }
    if let Some(log) = &worker.stream_log {
        log.add(x, worker.clock.unix_ms(ended));
    }
}
