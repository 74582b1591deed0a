//! Lines of scripts and modules in the error log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use model::boot::LogLevel;
use scripting::log::{Level, Log};

use crate::logging::REQUEST;

/// Lines of scripts per second; further ones are counted, and one line has their number.
const LINES_A_SECOND: u64 = 1000;

/// Hands lines to a thread that writes them: workers never wait for the log.
pub struct Lines {
    level: Level,
}

impl Lines {
    pub fn new(level: LogLevel) -> Lines {
        let level = match level {
            LogLevel::Debug => Level::Debug,
            LogLevel::Info | LogLevel::Notice => Level::Info,
            LogLevel::Warn => Level::Warn,
            LogLevel::Error | LogLevel::Crit | LogLevel::Alert | LogLevel::Emerg => Level::Error,
        };
        Lines { level }
    }
}

static LOST: AtomicU64 = AtomicU64::new(0);

impl Log for Lines {
    fn level(&self) -> Level {
        self.level
    }

    fn line(&self, level: Level, text: String) {
        static WRITER: OnceLock<Option<SyncSender<(Level, String)>>> = OnceLock::new();
        let writer = WRITER.get_or_init(|| {
            let (sender, lines) = sync_channel::<(Level, String)>(1024);
            let spawned = std::thread::Builder::new().name("script-log".into()).spawn(move || {
                let (mut second, mut written) = (Instant::now(), 0);
                for (level, text) in lines {
                    if second.elapsed().as_secs() >= 1 {
                        (second, written) = (Instant::now(), 0);
                        let lost = LOST.swap(0, Ordering::Relaxed);
                        if lost > 0 {
                            tracing::warn!(target: REQUEST, "{lost} more lines of scripts were not logged");
                        }
                    }
                    written += 1;
                    if written > LINES_A_SECOND {
                        LOST.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    match level {
                        Level::Error => tracing::error!(target: REQUEST, "{text}"),
                        Level::Warn => tracing::warn!(target: REQUEST, "{text}"),
                        Level::Info => tracing::info!(target: REQUEST, "{text}"),
                        Level::Debug => tracing::debug!(target: REQUEST, "{text}"),
                    }
                }
            });
            spawned.ok().map(|_| sender)
        });
        if writer.as_ref().is_none_or(|writer| writer.try_send((level, text)).is_err()) {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
}
