//! The access logs and the deliveries of logger plugins: started first, finished last.

use std::path::Path;
use std::sync::Arc;

use model::boot::Boot;
use sdk::sink::{Folders, Sink};

use crate::access_log::{self, AccessLog};
use crate::sinks::Deliveries;
use crate::{logging, wiring};

pub struct Logs {
    pub http: Option<AccessLog>,
    pub streams: Option<AccessLog>,
    pub deliveries: Deliveries,
}

impl Logs {
    pub fn start(boot: &Boot, data: &Path, folders: Arc<Folders>) -> anyhow::Result<Logs> {
        let held = usize::try_from(boot.http.held_log_entries).unwrap_or(usize::MAX);
        Ok(Logs {
            deliveries: Deliveries::start(held, wiring::SINKS, folders)?,
            http: AccessLog::start(boot, data)?,
            streams: AccessLog::start_for_streams(boot, data)?,
        })
    }

    /// Opens all files again, after another program has renamed them.
    pub fn reopen(&self) -> impl Fn() + use<> {
        let logs: Vec<_> = self.access_logs().map(AccessLog::sink).collect();
        let sinks = self.deliveries.sinks();
        move || {
            tracing::info!("reopening the log files");
            logging::reopen();
            logs.iter().for_each(Sink::reopen);
            sinks.reopen();
        }
    }

    /// Warns of lines that were dropped, for as long as the process runs.
    pub fn watch(&self) {
        for log in self.access_logs() {
            tracing::info!(file = %log.place(), "writing the access log");
            control::tasks::spawn(access_log::log_dropped(log.sink(), log.place().clone()));
        }
    }

    /// Writes what is queued.
    pub fn finish(self) {
        for log in [self.http, self.streams].into_iter().flatten() {
            log.finish();
        }
        self.deliveries.finish();
    }

    fn access_logs(&self) -> impl Iterator<Item = &AccessLog> {
        [&self.http, &self.streams].into_iter().flatten()
    }
}
