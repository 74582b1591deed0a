//! The log: lines on standard error, as a process manager collects them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use model::boot::LogLevel;
use proxy::{Blame, FaultRecord};
use tracing_subscriber::EnvFilter;

/// Starts logging at the boot file's `error_log_level`; `RUST_LOG` overrides it. Start and
/// stop are told at every level that shows warnings.
pub fn start(level: LogLevel) {
    let directive = match level {
        LogLevel::Debug => "debug",
        // APISIX's default is `warn`, at which people still want to know what was started.
        LogLevel::Info | LogLevel::Notice | LogLevel::Warn => "info",
        LogLevel::Error | LogLevel::Crit | LogLevel::Alert | LogLevel::Emerg => "error",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("{directive},hyper=warn,hickory_resolver=error,hickory_proto=error"))
    });
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second start within one process (tests) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal)
        .with_target(false)
        .try_init();
}

/// Lines a second that failed exchanges may write; more are counted and told together.
const FAULTS_A_SECOND: u64 = 100;

/// Tells of a failed exchange. Called by workers: it hands the record to a writer thread and
/// never waits; what does not fit is counted.
pub fn fault(record: FaultRecord) {
    static WRITER: OnceLock<Option<SyncSender<FaultRecord>>> = OnceLock::new();
    static LOST: AtomicU64 = AtomicU64::new(0);
    let writer = WRITER.get_or_init(|| {
        let (sender, records) = sync_channel::<FaultRecord>(1024);
        let spawned = std::thread::Builder::new().name("fault-log".into()).spawn(move || {
            let mut second = Instant::now();
            let mut written = 0;
            for record in records {
                if second.elapsed().as_secs() >= 1 {
                    let lost = LOST.swap(0, Ordering::Relaxed);
                    if lost > 0 {
                        tracing::warn!("{lost} more failed requests were not written here");
                    }
                    (second, written) = (Instant::now(), 0);
                }
                written += 1;
                if written <= FAULTS_A_SECOND {
                    write_fault(&record);
                } else {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        spawned.ok().map(|_| sender)
    });
    if writer.as_ref().is_none_or(|writer| writer.try_send(record).is_err()) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_fault(record: &FaultRecord) {
    let FaultRecord { fault, status, client, upstream, route, request } = record;
    let words = fault.kind.words();
    let upstream = upstream.map(|addr| addr.to_string()).unwrap_or_default();
    match fault.blame {
        Blame::Client => tracing::info!(status, %client, route, request, "{words}"),
        Blame::Upstream => tracing::error!(status, upstream, %client, route, request, "{words}"),
        Blame::Gateway => tracing::error!(status, %client, route, request, "{words}"),
    }
}
