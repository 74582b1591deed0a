//! The error log: lines on standard error, as a process manager collects them, or in a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use adapters::sinks::LogDestination;
use anyhow::Context;
use model::boot::{Boot, LogLevel};
use proxy::{Blame, Fault, FaultKind, FaultRecord};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};

/// Lines about single requests, which clients cause and which no level but theirs shows.
pub(crate) const REQUEST: &str = "request";

/// Starts logging as the boot file says; `RUST_LOG` overrides the level.
///
/// # Errors
/// A file that cannot be opened.
pub fn start(boot: &Boot, data: &Path) -> anyhow::Result<()> {
    let directive = match boot.log_level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        // Start, end and changes of the configuration are what nginx calls notices. APISIX's
        // default is `warn`, at which people still want to know what was started.
        LogLevel::Notice | LogLevel::Warn => "info,request=warn",
        LogLevel::Error | LogLevel::Crit | LogLevel::Alert | LogLevel::Emerg => "error",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("{directive},hyper=warn,hickory_resolver=error,hickory_proto=error,h2=error"))
    });
    let place = boot
        .error_log
        .as_deref()
        .map_or(LogDestination::Stderr, |written| LogDestination::new(written, data));
    let (writer, terminal) = match place {
        LogDestination::Stderr => {
            (BoxMakeWriter::new(io::stderr), io::IsTerminal::is_terminal(&io::stderr()))
        }
        place => {
            let file = place
                .open()
                .with_context(|| format!("cannot open {place} (nginx_config.error_log in config.yaml)"))?;
            eprintln!("the error log is in {place}");
            let log = FILE.get_or_init(|| ErrorFile { place, file: Mutex::new(file) });
            (BoxMakeWriter::new(move || log), false)
        }
    };
    let writer = writer.and(crate::error_log::Lines);
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // A second start within one process (tests) keeps the first.
    let _ = match boot.error_log_json {
        true => lines.json().flatten_event(true).try_init(),
        false => lines.with_ansi(terminal).try_init(),
    };
    Ok(())
}

/// Reopens the log's file, if it has one, as it may have been renamed.
pub fn reopen() {
    let Some(log) = FILE.get() else { return };
    match log.place.open() {
        Ok(file) => *log.file.lock().unwrap_or_else(PoisonError::into_inner) = file,
        Err(error) => {
            tracing::error!("cannot reopen {}, still writing to the old file: {error}", log.place)
        }
    }
}

static FILE: OnceLock<ErrorFile> = OnceLock::new();

struct ErrorFile {
    place: LogDestination,
    file: Mutex<File>,
}

impl Write for &ErrorFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The most lines per second about failed exchanges; further ones are counted, and one line has their number.
const FAULTS_A_SECOND: u64 = 100;

/// Those of them that clients alone cause, so that they cannot crowd out the others.
const REFUSALS_A_SECOND: u64 = 10;

/// Logs a failed exchange. Called by workers: it hands the record to a writer thread and never waits; records that
/// do not fit are counted.
pub fn fault(record: FaultRecord) {
    static WRITER: OnceLock<Option<SyncSender<FaultRecord>>> = OnceLock::new();
    static LOST: AtomicU64 = AtomicU64::new(0);
    let writer = WRITER.get_or_init(|| {
        let (sender, records) = sync_channel::<FaultRecord>(1024);
        let spawned = std::thread::Builder::new().name("fault-log".into()).spawn(move || {
            let mut second = Instant::now();
            let mut written = LineCount::default();
            for record in records {
                if second.elapsed().as_secs() >= 1 {
                    log_lost(&LOST);
                    (second, written) = (Instant::now(), LineCount::default());
                }
                if written.admits(record.fault) {
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

/// Lines that were written in the current second.
#[derive(Debug, Default)]
struct LineCount {
    faults: u64,
    refusals: u64,
    departures: u64,
}

impl LineCount {
    /// Whether there is room for one more. Clients that leave have their own, as one that attacks often
    /// leaves many requests behind: its refusal must not be lost among them.
    fn admits(&mut self, fault: Fault) -> bool {
        let (count, most) = match (fault.blame, fault.kind) {
            (Blame::Client, FaultKind::ClientGone | FaultKind::ClientSlow) => {
                (&mut self.departures, REFUSALS_A_SECOND)
            }
            (Blame::Client, _) | (_, FaultKind::NoRoute) => (&mut self.refusals, REFUSALS_A_SECOND),
            (Blame::Upstream | Blame::Gateway, _) => (&mut self.faults, FAULTS_A_SECOND),
        };
        *count += 1;
        *count <= most
    }
}

fn log_lost(lost: &AtomicU64) {
    let lost = lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        tracing::warn!(target: REQUEST, "{lost} more failed requests were not logged");
    }
}

fn write_fault(record: &FaultRecord) {
    let FaultRecord { fault, status, limit, client, upstream, route, request, tls } = record;
    // Fields of TLS stand in the line where they are known.
    let sni = tls.server.as_deref();
    let (subject, issuer) = match &tls.certificate {
        Some((subject, issuer)) => (Some(&**subject), Some(&**issuer)),
        None => (None, None),
    };
    let mut words = fault.kind.words().to_owned();
    if let FaultKind::Skipped { plugin, .. } = fault.kind {
        tracing::warn!(target: REQUEST, plugin, %client, route, request, "{words}");
        return;
    }
    match (limit, fault.kind) {
        (Some((name, bound)), _) => words.push_str(&format!(": the limit is {bound} ({name})")),
        (None, FaultKind::BadResponse(refusal)) => words.push_str(&format!(": {refusal}")),
        _ => {}
    }
    let upstream = upstream.map(|addr| addr.to_string()).unwrap_or_default();
    match (fault.blame, fault.kind) {
        // Every impatient reader does that.
        (Blame::Client, FaultKind::ClientGone | FaultKind::ClientSlow) => {
            tracing::info!(target: REQUEST, status, %client, route, request, "{words}");
        }
        (Blame::Client, _) | (_, FaultKind::NoRoute) => {
            tracing::warn!(
                target: REQUEST, status, %client, route, request, sni, subject, issuer, "refused: {words}"
            );
        }
        (Blame::Upstream, _) => {
            tracing::error!(target: REQUEST, status, upstream, %client, route, request, sni, "{words}");
        }
        (Blame::Gateway, _) => {
            tracing::error!(target: REQUEST, status, %client, route, request, sni, "{words}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_leave_hide_no_refusal_and_neither_hides_a_fault() {
        let fault = |blame, kind| Fault { blame, kind };
        let mut written = LineCount::default();
        let left = (0..1000).filter(|_| written.admits(fault(Blame::Client, FaultKind::ClientGone))).count();
        let refused = (0..1000)
            .filter(|_| {
                written.admits(fault(Blame::Client, FaultKind::BodyTooLarge(proxy::BodyLimit::Client)))
            })
            .count();
        let failed =
            (0..1000).filter(|_| written.admits(fault(Blame::Upstream, FaultKind::ConnectRefused))).count();
        assert_eq!((left, refused, failed), (10, 10, 100));
        let mut written = LineCount::default();
        let lost = (0..1000).filter(|_| written.admits(fault(Blame::Gateway, FaultKind::NoRoute))).count();
        assert_eq!(lost, 10, "connections to a port without a route are the clients' to make");
    }
}
