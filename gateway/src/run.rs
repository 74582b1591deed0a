//! `sluice run`: from files to a serving gateway, and to its end.

mod apis;
mod data_plane;
mod logs;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use adapters::etcd::{Etcd, Settings};
use admin::live::Live;
use admin::metrics::Pages;
use admin::{Admin, ControlApi, Program};
use anyhow::Context;
use control::names::Resolver;
use control::store::{Embedded, File, Store};
use control::{Handle, Pipeline};
use model::Diagnostic;
use model::boot::{Boot, Provider};
use model::declarative::Format;
use sdk::Catalog;
use sdk::build::Services;
use sdk::endpoint::MetricsPage;
use sdk::upstream::RuntimeUpstreams;
use snapshot::compile::Compiler;
use snapshot::{Maker, Publisher};
use tokio::sync::mpsc;

use self::apis::{ApiListeners, Apis};
use self::data_plane::DataPlane;
use self::logs::Logs;
use crate::access_log::AccessLog;
use crate::cli::Start;
use crate::files::{self, Found};
use crate::handoff::AdminOnDataPort;
use crate::imports::Job;
use crate::lifecycle::Signals;
use crate::metrics::push::Pusher;
use crate::program::{OneAtATime, Running};
use crate::runner;
use crate::server_info::ServerInfo;
use crate::upgrade::{self, Inherited, Upgrade, notify};
use crate::{
    acme, check, etcd, expiry, forward, lifecycle, logging, memory, metrics, process, say, server_info, tls,
    wiring,
};

/// How long a start waits for the first snapshot before it serves without one.
const FIRST_SNAPSHOT: Duration = Duration::from_secs(5);

/// Runs the gateway in the foreground. False if the files are wrong.
///
/// # Errors
/// The gateway cannot start, and the error names a remedy; or a worker has failed.
pub fn run(start: &Start) -> anyhow::Result<bool> {
    let began = Instant::now();
    let inherited = Inherited::receive()?;
    let found = match files::of_start(&start.files, &start.forward, &start.import) {
        Ok(found) => found,
        Err(diagnostics) => {
            upgrade::failed(&diagnostics.iter().map(Diagnostic::one_line).collect::<Vec<_>>().join("; "));
            return Ok(check::report(diagnostics, false));
        }
    };
    // The control side apart from the workers: two threads, so that a long scrape or
    // compile does not hold up an Admin request.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control threads")?;
    // Before the first line is logged: the log may be the file that may grow no more.
    {
        let _within = runtime.enter();
        lifecycle::survive_size_limit().context("cannot install signal handlers")?;
    }
    logging::start(&found.boot, &found.data)?;
    for warning in &found.warnings {
        tracing::warn!("{}", warning.one_line());
    }
    let result = runtime.block_on(serve(found, start.reuse_port, began, inherited));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result.map(|()| true)
}

async fn serve(
    found: Found,
    reuse_port: bool,
    began: Instant,
    mut inherited: Inherited,
) -> anyhow::Result<()> {
    let folders = found.folders();
    let Found { boot, config, resources, import, given, data, .. } = found;
    let place = match (&resources, boot.provider) {
        (Some(file), _) => file.clone(),
        (None, Provider::Etcd) => etcd::place(&boot),
        (None, _) if given.is_some() => forward::ARGUMENTS.into(),
        (None, _) => data.clone(),
    };
    log_start(config.as_deref(), given.is_some(), &place);
    let logs = Logs::start(&boot, &data, folders.clone())?;
    let signals = Signals::new(logs.reopen()).context("cannot install signal handlers")?;
    let mut services = Services { sinks: logs.deliveries.sinks(), ..wiring::services(&boot, &folders)? };
    let runner = runner::of(&boot, &data);
    services.extensions = services.extensions.with(crate::error_log::log()).with(runner.clone());
    let (catalog, reload_scripts) = wiring::catalog_with(&boot, services.clone(), Some(&data));
    inherited.ask_for_store()?;
    // The certificates that the system trusts take as long to read as a store of ten thousand routes.
    let tls = control::tasks::blocking({
        let boot = boot.clone();
        move || tls::settings(&boot)
    });
    let names = wiring::names(&boot);
    let questions = wiring::questions(&boot, names.clone());
    let sources = Sources {
        resources: resources.as_deref(),
        import: import.as_ref(),
        given: given.as_deref(),
        names: adapters::Names(questions.clone()),
    };
    let Opened { store, file, etcd } = open_store(&boot, &*catalog, sources, &data)?;
    if let Some(given) = given.as_deref().filter(|_| store.writable()) {
        forward::keep(&*store, given).await?;
    }

    // All listeners first: an address in use is reported before anything runs.
    let apis = ApiListeners::open(&boot, given.is_some() || import.is_some(), &mut inherited).await?;
    let tls = tls.await.context("reading the trusted certificates failed")??;
    let names_of_adapters = adapters::Names(questions);
    let trust = wiring::trust(&tls.common, Some(names_of_adapters.clone()));
    logs.deliveries.trust(trust.clone());
    let admin_tls = tls::admin(&boot, &tls.common)?;
    let mut data_plane =
        DataPlane::open(&boot, &logs, &trust, tls.common.clone(), reuse_port, &mut inherited)?;
    let count = data_plane.workers;
    let listens: Vec<String> = data_plane.addresses().into_iter().chain(apis.names(&boot)).collect();

    if let Some(tickets) = &tls.tickets {
        control::tasks::spawn(tls::rotate(tickets.clone(), boot.tls.session_timeout));
    }
    let provider = tls.provider.clone();
    let compile_settings = wiring::compile_settings(&boot, tls);
    if let Some(upstreams) = services.extensions.get::<RuntimeUpstreams>() {
        upstreams.set_maker(Box::new(Maker::new(catalog.clone(), compile_settings.clone())));
    }
    let compiler = Compiler::new(catalog.clone(), compile_settings);
    let (publisher, readers) = Publisher::new(compiler.snapshot(0), count);
    let observer = publisher.observer();
    let registries = adapters::registries(&boot.discovery, &trust, &files::env, &data)
        .map_err(|why| anyhow::anyhow!(why))?;
    let mut acme = acme::start(&boot, &store, &trust, &provider)?;
    let secrets = wiring::secrets(&boot, trust.clone());
    let resolver = Resolver::of(names, boot.resolver.valid).with_registries(registries).with_secrets(secrets);
    let (pipeline, mut handle) = Pipeline::new(&*store, compiler, publisher, resolver);
    let program = Arc::new(Running {
        observer,
        pipeline: handle.clone(),
        config,
        store: store.clone(),
        file,
        place,
        began,
        upgrades: Arc::default(),
        acme: acme.as_ref().map(|acme| acme.standings.clone()),
        files_expire: expiry::of_files(&boot, apis.serves_admin()),
        listens: listens.clone(),
        workers: OnceLock::new(),
        drains: AtomicU64::new(0),
        boot: boot.clone(),
        listed: Mutex::new(boot.plugins.clone()),
        info: Arc::new(ServerInfo::new(&boot, data.clone(), etcd.clone())),
        meters: services.meters.clone(),
        live: Arc::new(Live::new(
            services.meters.clone(),
            count,
            boot.tap.then(|| data_plane.settings.taps.clone()),
        )),
        catalog: catalog.clone(),
        reload_scripts,
        folders,
        long: OneAtATime::default(),
    });
    control::tasks::spawn(pipeline.run());
    await_configuration(&mut handle, &inherited).await?;

    let key = admin_key(&boot, apis.serves_admin(), &data)?;
    let admin = Admin::new(
        store.clone(),
        catalog.clone(),
        program.clone(),
        wiring::admin_config(&boot, key.as_deref()),
    );
    let on_data_port = (boot.admin.on_node_listen && apis.serves_admin())
        .then(|| AdminOnDataPort { admin: admin.clone(), control: tokio::runtime::Handle::current() });
    data_plane.hand_over(on_data_port, acme.as_ref());
    let metered = Arc::new(metrics::Source {
        services: services.clone(),
        access_log: logs.http.as_ref().map(AccessLog::sink),
        handle: handle.clone(),
        etcd: etcd.clone(),
        program: program.clone(),
    });
    let pages = metrics_pages(&metered);
    let workers = data_plane.start(readers, &services.meters)?;
    // Set nowhere else.
    let _ = program.workers.set(workers.watch().clone());

    let runner = runner::start(&boot, runner)?;
    // From here on this process is the one that serves.
    inherited.ready();
    notify::send_state("READY=1");
    if let Some(acme) = &mut acme {
        acme.issue();
    }
    let control = ControlApi::new(store.clone(), catalog, program.clone()).known_as(&boot.admin.hosts);
    let dashboard = apis.dashboard(&boot);
    let sides = apis.serve(&program, Apis { admin, control, pages }, admin_tls).await?;
    control::tasks::spawn(adapters::ocsp::run(handle.clone(), trust, wiring::ocsp(&boot)));
    spawn_reports(&program, &handle, &services);
    control::tasks::spawn(program.live.clone().run(process::reader(count)));
    let pusher = match crate::otlp::Settings::read(&boot)? {
        Some(push) => {
            let instance = program.info.id().await;
            Some(Pusher::start(&push, &instance, metered, names_of_adapters, began)?)
        }
        None => None,
    };
    logs.watch();
    if let Some(page) = dashboard {
        tracing::info!(url = page, "dashboard");
    }
    let routes = count_of(&handle, model::Kind::Route);
    let start_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(listen = listens.join(", "), workers = count, routes, start_ms, "listening");

    // Signals are not kept waiting by a file, and several are one reading.
    let (reload, reloads) = mpsc::channel(1);
    let upgrade = Upgrade {
        workers: &workers,
        sides,
        store: store.clone(),
        record: program.upgrades.clone(),
        patience: boot.upgrade_timeout,
    };
    control::tasks::spawn(reload_on_signal(program, reloads));
    let ended = signals.run(upgrade, boot.shutdown_timeout, async || _ = reload.try_send(())).await;
    drop(runner);
    if let Some(pusher) = pusher {
        pusher.finish().await;
    }
    logs.finish();
    if let Some(etcd) = etcd {
        etcd.finish().await;
    }
    ended?;
    tracing::info!("stopped");
    Ok(())
}

fn log_start(config: Option<&Path>, given: bool, place: &Path) {
    let config = match config {
        Some(path) => path.display().to_string(),
        None if given => "arguments".to_owned(),
        None => "defaults".to_owned(),
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config,
        resources = &*place.to_string_lossy(),
        "starting"
    );
}

/// Serving begins with the configuration, not with 404s.
async fn await_configuration(handle: &mut Handle, inherited: &Inherited) -> anyhow::Result<()> {
    let first = async { while handle.report().published.is_none() && handle.changed().await {} };
    if tokio::time::timeout(FIRST_SNAPSHOT, first).await.is_ok() {
        return Ok(());
    }
    let seconds = FIRST_SNAPSHOT.as_secs();
    // Another process serves one.
    anyhow::ensure!(
        !inherited.replaces_another(),
        "no configuration after {seconds} s, and the old process has one"
    );
    tracing::error!("no configuration after {seconds} s; serving without one until it arrives");
    Ok(())
}

/// The pages of metrics, which plugins may serve as well.
fn metrics_pages(source: &Arc<metrics::Source>) -> Arc<Pages> {
    let pages = Arc::new(Pages::new(metrics::printer(source.clone())));
    if let Some(page) = source.services.extensions.get::<MetricsPage>() {
        metrics::offer(pages.clone(), &page);
    }
    pages
}

/// Work that goes on beside serving: reports, and memory given back.
fn spawn_reports(program: &Arc<Running>, handle: &Handle, services: &Services) {
    let lists = {
        let program = program.clone();
        move || program.lists(server_info::PLUGIN)
    };
    control::tasks::spawn(server_info::report(program.info.clone(), program.boot.clone(), lists));
    control::tasks::spawn(metrics::tidy(services.meters.clone()));
    control::tasks::spawn(memory::give_back(handle.clone()));
    control::tasks::spawn(metrics::forget_routes(handle.clone(), services.meters.clone()));
}

/// Where resources are read from, as the command line says, and how names are resolved.
struct Sources<'s> {
    resources: Option<&'s Path>,
    import: Option<&'s Arc<Job>>,
    given: Option<&'s str>,
    names: adapters::Names,
}

/// The store, and the same by its kind.
struct Opened {
    store: Arc<dyn Store>,
    file: Option<Arc<File>>,
    etcd: Option<Arc<Etcd>>,
}

fn open_store(
    boot: &Boot,
    catalog: &dyn Catalog,
    Sources { resources, import, given, names }: Sources<'_>,
    data: &Path,
) -> anyhow::Result<Opened> {
    match resources {
        None if let (Some(text), Provider::Json) = (given, boot.provider) => {
            let env = Box::new(files::env);
            let file = File::of_text(forward::ARGUMENTS, text, Format::Json, files::built_plugins(), env)?;
            Ok(Opened { store: Arc::new(file), file: None, etcd: None })
        }
        Some(path) => {
            // Secrets in a file are in the clear or, as in APISIX, as they were taken out of etcd.
            let file = Arc::new(match import {
                Some(job) => File::open_read(path, job.reader())?,
                None => File::open(path, files::built_plugins())?,
            });
            let store = Arc::new(wiring::opened(boot, catalog, file.clone())?);
            Ok(Opened { store, file: Some(file), etcd: None })
        }
        None if boot.provider == Provider::Etcd => {
            let settings = etcd::settings(boot, Some(data))?;
            let etcd = Arc::new(Etcd::start(Settings { names: Some(names), ..settings }));
            let store = Arc::new(wiring::sealed(boot, catalog, etcd.clone())?);
            Ok(Opened { store, file: None, etcd: Some(etcd) })
        }
        None => {
            let embedded = Embedded::open_with(data, wiring::history(boot))?;
            let store = Arc::new(wiring::sealed(boot, catalog, Arc::new(embedded))?);
            Ok(Opened { store, file: None, etcd: None })
        }
    }
}

/// The generated key, if the boot file leaves one empty. Shown once, when it is made.
fn admin_key(boot: &Boot, serves: bool, data: &Path) -> anyhow::Result<Option<String>> {
    let empty = boot.admin.keys.is_empty() || boot.admin.keys.iter().any(|key| key.key.is_empty());
    if !serves || !boot.admin.key_required || !empty {
        return Ok(None);
    }
    let made = admin::key::load_or_make(data)
        .with_context(|| format!("cannot keep the admin key in {}", data.display()))?;
    if made.new {
        tracing::info!(file = %made.path.display(), "admin key generated");
        // Logs are kept and collected, so the key itself is shown to people alone.
        if io::stderr().is_terminal() {
            say::err(format_args!("admin key: {}", made.key));
        }
    }
    Ok(Some(made.key))
}

fn count_of(handle: &Handle, kind: model::Kind) -> usize {
    handle.report().counts.iter().find(|(counted, _)| *counted == kind).map_or(0, |(_, count)| *count)
}

async fn reload_on_signal(program: Arc<Running>, mut signals: mpsc::Receiver<()>) {
    while signals.recv().await.is_some() {
        notify::reloading();
        match program.reload().await {
            Ok(message) => tracing::info!("{message}"),
            Err(reason) => tracing::error!("{reason}"),
        }
        // In any case: it serves as before if the files have errors.
        notify::send_state("READY=1");
    }
}
