//! The metrics page: what it is made of, and what keeps it short.

pub mod push;

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use adapters::etcd::Etcd;
use admin::Program;
use admin::metrics::Pages;
use admin::metrics::facts::{Certificate, Facts, Health, Zone};
use admin::metrics::text;
use control::acme::Standings;
use control::look::Look;
use control::tasks::Task;
use control::{Handle, Report};
use model::key::DEFAULT_PREFIX;
use model::{Entry, Kind, Resource, Served};
use sdk::build::Services;
use sdk::counters::Table;
use sdk::endpoint::MetricsPage;
use sdk::meters::Meters;
use sdk::sink::Sink;
use tokio::sync::oneshot;

use crate::program::Running;

/// How often new series are taken in and idle ones looked for, where none expire sooner.
const TIDY: Duration = Duration::from_secs(5);

/// Certificates whose days until they expire are shown: those with the fewest. All are counted.
const MOST_CERTIFICATES: usize = 1000;

/// Offers the pages to plugins: they are printed on the control threads, while the request waits on its worker.
pub fn offer(pages: Arc<Pages>, page: &MetricsPage) {
    let control = tokio::runtime::Handle::current();
    page.set_source(move || {
        let pages = pages.clone();
        let (mut written, page) = oneshot::channel();
        let task: Task = Box::pin(async move {
            tokio::select! {
                // In this order: nothing is printed for requests that ended before it began.
                biased;
                // The request has ended.
                () = written.closed() => {}
                text = pages.text() => { let _ = written.send(text); }
            }
        });
        control.spawn(task);
        Box::pin(async move { page.await.ok().flatten() })
    });
}

/// The parts of the gateway that metrics are about.
pub struct Source {
    pub services: Services,
    pub access_log: Option<Sink>,
    pub handle: Handle,
    pub etcd: Option<Arc<Etcd>>,
    pub program: Arc<Running>,
}

/// Prints the page.
pub fn printer(source: Arc<Source>) -> admin::metrics::Print {
    Arc::new(move || source.look(text::page))
}

impl Source {
    /// Gathers the values of now, and passes them on.
    pub fn look<R>(&self, look: impl FnOnce(&Meters, &Facts<'_>) -> R) -> R {
        let Source { services, access_log, handle, etcd, program } = self;
        let hostname = crate::server_info::hostname();
        let tables: [(&str, &Table); 4] = [
            ("plugin-limit-count", &services.counters),
            ("plugin-limit-req", &services.paces),
            ("plugin-limit-conn", &services.gauges),
            ("plugin-api-breaker", &services.tallies),
        ];
        let zones = tables.map(|(name, table)| Zone {
            name,
            capacity: table.capacity_bytes(),
            free: table.free_bytes(),
        });
        // An address may be checked by several names; a series is there once.
        let mut nodes: BTreeMap<(String, String, u16), bool> = BTreeMap::new();
        for checker in handle.health().report() {
            for node in checker.nodes {
                let ip = node.addr.ip().to_string();
                let series = (checker.key.path(DEFAULT_PREFIX), ip, node.addr.port());
                *nodes.entry(series).or_insert(true) &= node.usable;
            }
        }
        let upstreams: Vec<Health<'_>> = nodes
            .iter()
            .map(|((name, ip, port), healthy)| Health { name, ip, port: *port, healthy: *healthy })
            .collect();
        let report = handle.report();
        let now = i64::try_from(now_ms() / 1000).unwrap_or(i64::MAX);
        let (expiring, certificates_in_use) = program.certificates(MOST_CERTIFICATES);
        let certificates: Vec<Certificate> = program
            .acme
            .iter()
            .flat_map(Standings::all)
            .map(|one| Certificate {
                days_left: one.not_after.map(|end| u64::try_from((end - now) / 86_400).unwrap_or(0)),
                failures: u64::from(one.failures),
                id: one.id,
            })
            .collect();
        #[cfg(feature = "wasm")]
        let plugin_metrics = crate::wasm::metrics(services);
        #[cfg(not(feature = "wasm"))]
        let plugin_metrics = Vec::new();
        let facts = Facts {
            plugin_metrics: &plugin_metrics,
            certificates: &certificates,
            certificates_in_use,
            expiring: &expiring,
            hostname: &hostname,
            version: env!("CARGO_PKG_VERSION"),
            steady_ms: steady_ms(),
            zones: &zones,
            etcd_reachable: etcd.as_ref().map(|etcd| etcd.status().connected),
            modify_indexes: &etcd.as_ref().map(|etcd| etcd.indexes()).unwrap_or_default(),
            upstreams: &upstreams,
            counters_evicted: tables.iter().map(|(_, table)| table.evicted()).sum(),
            cache_reads_late: services
                .extensions
                .get::<cache::Caches>()
                .map_or(0, |caches| caches.late_reads()),
            access_log_dropped: access_log.as_ref().map_or(0, Sink::dropped),
            entries_gathered: &services.sinks.gathered(),
            entries_dropped: &services.sinks.dropped(),
            entries_bytes: services.sinks.waiting_bytes(),
            unseen_plugins: &report.unseen_plugins,
            rejected: &rejected(&report),
            secrets: report.secrets,
        };
        look(&services.meters, &facts)
    }
}

/// How many resources are not served as they are written, by what is served in their place.
fn rejected(report: &Report) -> [(Served, usize); 4] {
    Served::ALL.map(|served| {
        let all = report.rejected.iter().chain(&*report.dangling);
        let of_file = if served == Served::Nothing { report.findings.len() } else { 0 };
        (served, all.filter(|one| one.served == served).count() + of_file)
    })
}

/// Limits on the connections of scrapers.
pub fn limits(settings: &model::boot::Prometheus) -> admin::Limits {
    admin::Limits {
        connections: settings.connections,
        send: settings.send_timeout,
        // A page stays in memory while a scraper reads it.
        connection: Duration::from_secs(60),
        ..admin::Limits::default()
    }
}

/// Keeps the number of series within its bound even without scrapes; warns once when it is reached.
pub async fn tidy(meters: Arc<Meters>) {
    let mut warned = false;
    let every = meters.settings().tidy_interval(TIDY);
    loop {
        tokio::time::sleep(every).await;
        meters.tidy(steady_ms());
        if !warned && meters.overflowed() > 0 {
            warned = true;
            tracing::warn!(
                "the metrics reached their limit of {} series: requests with new label sets are counted under the route {} (nginx_metric_errors_total counts them)\n  help: raise \
                 plugin_attr.prometheus.max_series, or disable labels in the plugin's metadata",
                meters.settings().max_series,
                sdk::meters::OVERFLOW,
            );
        }
    }
}

/// Drops the metrics of deleted routes. It waits for `forget_after`, so that they can be scraped once more and a
/// burst of changes is one sweep.
pub async fn forget_routes(mut handle: Handle, meters: Arc<Meters>) {
    while handle.changed().await {
        tokio::time::sleep(meters.settings().forget_after).await;
        let Some(Look { desired, snapshot, .. }) = handle.look().await else { return };
        let written = |entry: &Arc<Entry>| match &*entry.peek() {
            Resource::Route(route) => route.meta.name.clone(),
            Resource::StreamRoute(route) => route.meta.name.clone(),
            _ => None,
        };
        // Most labels are ids, so that names are not needed. The plan of a served route has its name; only other
        // routes are parsed again.
        let name_of = |entry: &Arc<Entry>| match snapshot.router.plan(&entry.key.id) {
            Some(plan) => Some(plan.info.name.clone()),
            None => written(entry),
        };
        let names: LazyCell<HashSet<String>, _> = LazyCell::new(|| {
            let routes = desired.of(Kind::Route).filter_map(name_of);
            routes.chain(desired.of(Kind::StreamRoute).filter_map(written)).collect()
        });
        let is_id = |label: &str| {
            [Kind::Route, Kind::StreamRoute].iter().any(|kind| desired.get(*kind, label).is_some())
        };
        meters.retain_routes(|label| is_id(label) || names.contains(label));
    }
}

/// Milliseconds by a clock that is never set back, by which unused series expire.
fn steady_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Not from 0, the initial time of series that were not swept yet.
    1 + u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Context, Waker};

    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn for_those_who_have_gone_nothing_is_printed() {
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let (gate, count) = (std::sync::Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let printed = count.clone();
        let print = move || {
            printed.fetch_add(1, SeqCst);
            gate.lock().unwrap().recv().unwrap();
            vec![Bytes::from("up 1\n")]
        };
        let page = MetricsPage::default();
        offer(Arc::new(Pages::new(Arc::new(print))), &page);
        for _ in 0..20 {
            let mut asked = Box::pin(page.get());
            assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (0..30).for_each(|_| go.send(()).unwrap());
        assert_eq!(page.get().await.as_deref(), Some(&b"up 1\n"[..]));
        assert!(count.load(SeqCst) <= 2, "{count:?}");
    }
}
