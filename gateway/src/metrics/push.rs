//! Metrics over OTLP: pushed to a collector at an interval (`plugin_attr.prometheus.otlp`), by the control side.
//!
//! Exports go through a sink of their own, as log entries do: it has the connection, the bounds of time and size, and the
//! messages about failures. It delivers one export after the other. A failed one is not kept for later, as values are
//! cumulative.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin::metrics::otlp::{self, Times};
use anyhow::Context as _;
use control::tasks;
use sdk::sink::{Addresses, Record, Sink, Sinks, Spec};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};

use super::Source;
use crate::otlp::Settings;

/// Time for gathering the last values; sending them is within the time of the last log entries.
const LAST: Duration = Duration::from_secs(2);

/// Time for the addresses of the collector; after it, those that it had last count.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Time between two looks at whether an export has been delivered.
const LOOK: Duration = Duration::from_millis(20);

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// Pushes metrics until it is finished.
pub struct Pusher {
    task: JoinHandle<()>,
    exporter: Arc<Exporter>,
}

struct Exporter {
    spec: Spec,
    every: Duration,
    source: Arc<Source>,
    sinks: Arc<Sinks>,
    names: adapters::Names,
    /// The addresses that names had last.
    last: Mutex<HashMap<String, Vec<IpAddr>>>,
    /// The gateway's start, in nanoseconds since 1970.
    start: u64,
}

impl Pusher {
    /// Starts to push the metrics of `source`, of the instance with this id.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn start(
        settings: &Settings,
        instance: &Value,
        source: Arc<Source>,
        names: adapters::Names,
        began: Instant,
    ) -> anyhow::Result<Pusher> {
        let exporter = Arc::new(Exporter {
            spec: settings.spec(Some(instance)).context("metrics over OTLP")?,
            every: settings.every,
            sinks: source.services.sinks.clone(),
            source,
            names,
            last: Mutex::default(),
            start: now().saturating_sub(began.elapsed().as_nanos() as u64),
        });
        let task = tasks::spawn(exporter.clone().run());
        Ok(Pusher { task, exporter })
    }

    /// Pushes the last values, once the workers have ended. Log entries are delivered after it, and these with them.
    pub async fn finish(self) {
        self.task.abort();
        let last = async {
            let sink = self.exporter.sink().await;
            for export in self.exporter.gather().await {
                sink.push_own(Record::from(export));
            }
        };
        if timeout(LAST, last).await.is_err() {
            tracing::warn!("the last metrics could not be sent within {} s", LAST.as_secs());
        }
    }
}

impl Exporter {
    async fn run(self: Arc<Exporter>) {
        let mut ticks = interval_at(tokio::time::Instant::now() + self.every, self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // Kept, as is its connection.
        let mut kept = self.sink().await;
        let mut skips = false;
        loop {
            ticks.tick().await;
            if kept.waiting() > 0 {
                if !std::mem::replace(&mut skips, true) {
                    tracing::warn!(
                        "metrics over OTLP: the previous export is not delivered yet; exports are skipped until it is"
                    );
                }
                continue;
            }
            skips = false;
            kept = self.sink().await;
            let exports = self.gather().await;
            // Later their values are out of date.
            if timeout(self.every, push(&kept, exports)).await.is_err() {
                tracing::warn!(
                    "metrics over OTLP: not all exports could be sent in time; the others are dropped"
                );
            }
        }
    }

    /// The sink, with the addresses of its server.
    async fn sink(&self) -> Sink {
        let all = self.spec.target.servers.iter().map(async |(host, port)| {
            let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
            let addresses = match bare.parse::<IpAddr>() {
                Ok(ip) => vec![ip],
                Err(_) => self.look_up(host).await,
            };
            addresses.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect()
        });
        let mut addresses: Vec<Vec<SocketAddr>> = Vec::new();
        for one in all {
            addresses.push(one.await);
        }
        self.sinks.open(self.spec.clone(), Addresses::from(addresses))
    }

    async fn look_up(&self, host: &str) -> Vec<IpAddr> {
        let resolved = timeout(LOOK_UP, self.names.0.resolve(host)).await.ok().flatten();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match resolved.map(|resolved| resolved.addresses) {
            Some(Ok(addresses)) => {
                let addresses = addresses.to_vec();
                last.insert(host.to_owned(), addresses.clone());
                addresses
            }
            // The delivery reports if there never were any.
            Some(Err(_)) | None => last.get(host).cloned().unwrap_or_default(),
        }
    }

    /// The values of now, encoded on a thread for such work.
    async fn gather(&self) -> Vec<Vec<u8>> {
        let (source, start) = (self.source.clone(), self.start);
        let gather = move || {
            let times = Times { start, now: now() };
            source.look(|meters, facts| otlp::exports(meters, facts, times))
        };
        tasks::blocking(gather).await.unwrap_or_default()
    }
}

/// Pushes one export after the other.
async fn push(sink: &Sink, exports: Vec<Vec<u8>>) {
    for export in exports {
        while sink.waiting() > 0 {
            sleep(LOOK).await;
        }
        sink.push_own(Record::from(export));
    }
}

fn now() -> u64 {
    super::now_ms().saturating_mul(NANOS / 1000)
}
