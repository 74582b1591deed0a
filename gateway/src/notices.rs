//! Notices of workers, as lines in the log.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use proxy::Notice;

/// Notices that wait to be written, at most; workers send a few a second.
const WAITING: usize = 256;

/// Writes a line. Called by workers: it hands the notice to a thread of its own and never waits.
/// A notice that does not fit into the queue is dropped, as the log is not being written then.
pub fn log(worker: usize, notice: Notice) {
    static WRITER: OnceLock<Option<SyncSender<(usize, Notice)>>> = OnceLock::new();
    let writer = WRITER.get_or_init(|| {
        let (sender, notices) = sync_channel(WAITING);
        let spawned = std::thread::Builder::new().name("notices".into()).spawn(move || {
            for (worker, notice) in notices {
                write(worker, &notice);
            }
        });
        spawned.ok().map(|_| sender)
    });
    if let Some(writer) = writer {
        let _ = writer.try_send((worker, notice));
    }
}

fn write(worker: usize, notice: &Notice) {
    match notice {
        Notice::ConnectionsFull { closed, limit } => tracing::warn!(
            "worker {worker} reached its limit of {limit} connections and closed {closed} idle ones for new clients; raise nginx_config.event.worker_connections, or `ulimit -n` if that is lower"
        ),
        Notice::OutOfDescriptors { times, upstreams, clients } => tracing::error!(
            "worker {worker} ran out of file descriptors {times} times and closed {upstreams} idle upstream connections and {clients} idle clients; raise `ulimit -n` or LimitNOFILE"
        ),
        Notice::FetchesDropped { target, dropped, limit } if target.is_empty() => tracing::warn!(
            "worker {worker} dropped {dropped} plugin requests: {limit} are in flight, the maximum (nginx_config.http.max_plugin_requests, and `ulimit -n`)"
        ),
        Notice::FetchesDropped { target, dropped, limit } => tracing::warn!(
            "worker {worker} dropped {dropped} plugin requests to {target}: {limit} are waiting for it, the maximum (nginx_config.http.max_plugin_requests_per_target)"
        ),
        Notice::ProxyHeadersRefused { times, why } => tracing::warn!(
            "worker {worker} closed {times} connections to ports that ask for the PROXY protocol; the last one because {why}"
        ),
        Notice::DatagramsDropped { times } => tracing::warn!(
            "worker {worker} dropped {times} datagrams: as many UDP sessions as there may be are open (nginx_config.stream.max_udp_sessions), or a server does not keep up"
        ),
        Notice::Panicked { task, times } => tracing::error!(
            "bug in the gateway: task `{task}` of worker {worker} panicked {times} times and continues; please report the lines above"
        ),
    }
}
