//! The data plane of a process before it starts: the settings of the workers and the sockets for traffic.

use std::net::TcpListener;
use std::sync::Arc;

use adapters::Trust;
use anyhow::Context;
use model::boot::Boot;
use proxy::{Datagrams, Workers};
use sdk::meters::Meters;
use snapshot::Reader;

use super::logs::Logs;
use crate::access_log::AccessLog;
use crate::handoff::{AdminOnDataPort, OnDataPort};
use crate::upgrade::Inherited;
use crate::{acme, listeners, pool, static_files, wiring};

pub struct DataPlane {
    pub settings: proxy::Settings,
    /// The number of workers.
    pub workers: usize,
    sockets: Vec<Vec<TcpListener>>,
    datagrams: Datagrams,
}

impl DataPlane {
    /// Opens the listeners for traffic.
    ///
    /// # Errors
    /// An address in use, or threads that cannot be started.
    pub fn open(
        boot: &Boot,
        logs: &Logs,
        trust: &Trust,
        tls: snapshot::certs::CommonTls,
        reuse_port: bool,
        inherited: &mut Inherited,
    ) -> anyhow::Result<DataPlane> {
        let workers = wiring::worker_count(boot);
        let mut settings = wiring::proxy_settings(boot, Vec::new(), workers);
        settings.reuse_port = reuse_port;
        settings.pool = pool::start(wiring::background_threads(boot, workers))?;
        settings.file_pool = pool::start_for_files(static_files::Settings::of(boot).threads)?;
        settings.access_log = logs.http.as_ref().map(AccessLog::for_workers);
        settings.streams.access_log = logs.streams.as_ref().map(AccessLog::for_workers);
        settings.tls = tls;
        settings.resolver = trust.names.as_ref().map(|names| names.0.clone());
        let sockets = listeners::open(boot, &mut settings, workers, inherited)?;
        let datagrams = Datagrams {
            sockets: listeners::open_udp(boot, &mut settings, workers, inherited)?,
            lines: inherited.lines(),
        };
        Ok(DataPlane { settings, workers, sockets, datagrams })
    }

    /// The addresses, as the log names them.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses: Vec<String> = self.settings.listen.iter().map(listeners::named).collect();
        addresses.dedup();
        let datagrams = self.settings.streams.udp.iter();
        addresses.extend(datagrams.map(|address| format!("traffic udp://{address}")));
        addresses
    }

    /// Requests on the listeners for traffic that the control side answers.
    pub fn hand_over(&mut self, admin: Option<AdminOnDataPort>, acme: Option<&acme::Running>) {
        let answers = acme.map(|acme| acme.answers.clone());
        if let Some(answers) = answers.clone() {
            self.settings.proofs = Some(Arc::new(move |name| answers.proof(name)));
        }
        if admin.is_some() || answers.is_some() {
            self.settings.handoff = Some(Arc::new(OnDataPort { admin, answers }));
        }
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn start(self, readers: Vec<Reader>, meters: &Arc<Meters>) -> anyhow::Result<Workers> {
        let settings = Arc::new(self.settings);
        Workers::start_with(settings, self.sockets, self.datagrams, readers, meters).context(
            "cannot start the workers; the process may need more descriptors (`ulimit -n`) or threads",
        )
    }
}
