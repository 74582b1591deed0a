//! `instructions`: user instructions per request, counted by callgrind.
//!
//! The count does not depend on the machine's load, so it shows changes of a percent on a busy machine.
//! It leaves out the kernel: read it beside CPU time and system calls. Each count is the difference of
//! two series on one connection each, so connecting, handshakes and start-up do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::gateways::alone::{LUA_HEADERS, LUA_NOTHING, PRICED, UNSAMPLED};
use crate::gateways::tools::{Program, Tools};
use crate::gateways::{self, Gateway, Place, Setup};
use crate::load::{Call, Front};
use crate::machine::Machine;
use crate::probe;
use crate::process::{Launch, Process};
use crate::upstream::{Answer, Upstream};

/// Valgrind runs a program some fifty times slower.
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests before the first count, so that pools, caches and lazily bound symbols are warm.
const WARM: usize = 300;

/// Requests of the shorter series.
const SHORT: usize = 100;

/// The file of the profile dumped last.
const LAST: &str = "last-profile";

/// The scenarios, by what is switched on.
const SCENARIOS: [(&str, Setup); 12] = {
    let plain = Setup { answer: Answer::Length4000, ..Setup::PLAIN };
    [
        ("plain", plain),
        ("key-auth", Setup { key: true, ..plain }),
        ("limit-count", Setup { limit: true, ..plain }),
        ("prometheus", Setup { metrics: true, ..plain }),
        ("all three", Setup { key: true, limit: true, metrics: true, ..plain }),
        ("ten plugins", Setup { key: true, limit: true, metrics: true, ten: true, ..plain }),
        ("lua-nothing", Setup { plugin: Some(LUA_NOTHING), ..plain }),
        ("lua-headers", Setup { plugin: Some(LUA_HEADERS), ..plain }),
        ("TLS", Setup { front: Front::Https, ..plain }),
        ("HTTP/2", Setup { front: Front::H2, ..plain }),
        ("h2c", Setup { front: Front::H2c, ..plain }),
        ("gRPC unary", Setup { front: Front::H2c, call: Call::Grpc, answer: Answer::Grpc, ..plain }),
    ]
};

const GATEWAYS: [Gateway; 3] = [Gateway::Sluice, Gateway::Nginx, Gateway::Haproxy];

/// Options of a count.
pub struct Count {
    /// Only scenarios and plugins whose name contains one of these, if there are any.
    pub words: Vec<String>,
    /// Where the profiles of Sluice are kept.
    pub keep: Option<PathBuf>,
    /// Instead of building Sluice.
    pub binary: Option<PathBuf>,
    /// Leave out nginx and HAProxy.
    pub alone: bool,
    /// Requests that are counted in each scenario.
    pub requests: usize,
    pub port_base: u16,
}

/// Counts every scenario and prints a table.
///
/// # Errors
/// When a program is missing, or a gateway answers wrong.
pub fn run(count: &Count) -> Result<()> {
    let tools = Tools::new(true);
    tools.basics()?;
    tools.valgrind()?;
    let gateways = if count.alone { &GATEWAYS[..1] } else { &GATEWAYS[..] };
    let programs = gateways
        .iter()
        .map(|&gateway| {
            let program = match (&count.binary, gateway) {
                (Some(binary), Gateway::Sluice) => tools.given(binary),
                _ => tools.obtain(gateway),
            };
            Ok((gateway, program?))
        })
        .collect::<Result<Vec<_>>>()?;
    for (gateway, program) in &programs {
        println!("{gateway}: {} ({})", program.version, program.path.display());
    }
    let folder = tools.root().join(format!("target/bench-run/{}", count.port_base));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let upstream = Upstream::start(&folder.join("upstream"), count.port_base + 900, &Machine::read().cores)?;
    println!("\nUser instructions per request over {} requests on one connection.\n", count.requests);
    let names: String = programs.iter().map(|(gateway, _)| format!("{:>12}", gateway.name())).collect();
    println!("{:<14}{names}", "scenario");
    let mut counted = BTreeMap::new();
    let wanted =
        |name: &str| count.words.is_empty() || count.words.iter().any(|word| name.contains(word.as_str()));
    let plugins: Vec<_> =
        PRICED.into_iter().chain(UNSAMPLED).enumerate().filter(|(_, plugin)| wanted(plugin.name)).collect();
    let is_counted = |name: &str| wanted(name) || name == "plain" && !plugins.is_empty();
    for (index, (name, setup)) in SCENARIOS.iter().enumerate().filter(|(_, (name, _))| is_counted(name)) {
        let mut line = format!("{name:<14}");
        for (number, (gateway, program)) in programs.iter().enumerate() {
            let place = place(count, &folder, *gateway, index * GATEWAYS.len() + number, setup, &upstream);
            let cell = match gateway.unable(setup) {
                Some(_) => "-".to_owned(),
                None => {
                    let found = per_request(*gateway, program, setup, &place, count.requests)
                        .with_context(|| format!("{gateway}, {name}"))?;
                    if *gateway == Gateway::Sluice {
                        keep(count, &place.folder, name)?;
                        counted.insert(*name, found);
                    }
                    found.to_string()
                }
            };
            line += &format!("{cell:>12}");
        }
        println!("{line}");
    }
    if plugins.is_empty() {
        return Ok(());
    }
    println!("\nplugin alone: instructions over plain\n");
    let plain = counted.get("plain").copied().unwrap_or_default();
    let added = |counted: u64| counted.saturating_sub(plain);
    let of_scenarios =
        OF_SCENARIOS.iter().filter_map(|(name, plugin)| Some((*plugin, added(*counted.get(name)?))));
    let (mut prices, mut unsampled) = (of_scenarios.collect::<BTreeMap<_, _>>(), BTreeMap::new());
    let (sluice, program) = programs.first().context("sluice is measured first")?;
    for (index, plugin) in plugins {
        let setup = Setup { plugin: Some(plugin), answer: Answer::Length4000, ..Setup::PLAIN };
        let number = SCENARIOS.len() * GATEWAYS.len() + index;
        let place = place(count, &folder, *sluice, number, &setup, &upstream);
        let found = per_request(*sluice, program, &setup, &place, count.requests)
            .with_context(|| plugin.name.to_owned())?;
        keep(count, &place.folder, plugin.name)?;
        let is_priced = index < PRICED.len();
        let (into, how) = if is_priced { (&mut prices, "") } else { (&mut unsampled, " (not sampled)") };
        into.insert(plugin.name, added(found));
        println!("{:<24}{:>8}{how}", plugin.name, added(found));
    }
    // The prices in the dashboard are those of this tree.
    if count.binary.is_none() && count.words.is_empty() {
        let path = tools.root().join("bench/instructions.json");
        let written = json!({ "scenarios": counted, "plugins": prices, "unsampled": unsampled });
        fs::write(&path, serde_json::to_string_pretty(&written)? + "\n")?;
        println!("\nwritten to {}; `cargo x gen` takes the plugins into the dashboard", path.display());
    }
    Ok(())
}

/// The scenarios that are `plain` with one plugin, and the plugin.
const OF_SCENARIOS: [(&str, &str); 4] = [
    ("key-auth", "key-auth"),
    ("limit-count", "limit-count"),
    ("prometheus", "prometheus"),
    ("lua-nothing", LUA_NOTHING.name),
];

fn place(
    count: &Count,
    folder: &Path,
    gateway: Gateway,
    index: usize,
    setup: &Setup,
    upstream: &Upstream,
) -> Place {
    let port = count.port_base + 100 + index as u16 * 5;
    Place {
        folder: folder.join(format!("{index}-{gateway}")),
        port,
        admin_port: port + 1,
        metrics_port: port + 2,
        spare_port: port + 3,
        control_port: port + 4,
        upstream_port: upstream.address(setup.answer).port(),
        // No scenario of this table has one.
        redis_port: 0,
    }
}

fn per_request(
    gateway: Gateway,
    program: &Program,
    setup: &Setup,
    place: &Place,
    requests: usize,
) -> Result<u64> {
    let launch = gateways::launch(gateway, &program.path, setup, place)?;
    let under = Launch { program: "valgrind".into(), args: Vec::new(), ..launch.clone() };
    let mut under = under
        .arg("--tool=callgrind")
        // Compressed names are defined in the first dump only, and the last one is kept.
        .arg("--compress-strings=no")
        .arg(format!("--callgrind-out-file={}/callgrind.%p", place.folder.display()))
        .arg(launch.program.display().to_string());
    under.args.extend(launch.args);
    if gateway == Gateway::Nginx {
        // callgrind_control does not find a process that was forked.
        under = under.arg("-g").arg("master_process off;");
    }
    let mut process = Process::start(gateway.name(), &under, &Machine::read().cores)?;
    let target = setup.target(([127, 0, 0, 1], place.port).into());
    probe::wait_ready(&mut process, &target, PATIENCE)?;
    probe::verify(&target, WARM)?;
    let series = |requests: usize| -> Result<u64> {
        probe::verify(&target, requests)?;
        totals(&process.pids(), &place.folder)
    };
    totals(&process.pids(), &place.folder)?;
    let short = series(SHORT)?;
    let long = series(SHORT + requests)?;
    Ok(long.saturating_sub(short) / requests as u64)
}

/// Copies the profile of the longer series to the folder for profiles, if there is one.
fn keep(count: &Count, folder: &Path, scenario: &str) -> Result<()> {
    let Some(keep) = &count.keep else { return Ok(()) };
    fs::create_dir_all(keep)?;
    fs::copy(folder.join(LAST), keep.join(format!("{}.callgrind", scenario.replace(['/', ' '], "-"))))?;
    Ok(())
}

/// The instructions of all processes since the last call, which starts their counters again at 0.
fn totals(pids: &[u32], folder: &Path) -> Result<u64> {
    for pid in pids {
        let control = Command::new("callgrind_control").arg("--dump").arg(pid.to_string()).output()?;
        if !control.status.success() {
            bail!("callgrind_control: {}", String::from_utf8_lossy(&control.stderr));
        }
    }
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("callgrind.")) {
            let dump = fs::read_to_string(&path)?;
            let total = dump.lines().rev().find_map(|line| line.strip_prefix("totals: "));
            sum += total.and_then(|total| total.trim().parse::<u64>().ok()).unwrap_or(0);
            // A profile stays until the next one.
            fs::rename(&path, folder.join(LAST))?;
        }
    }
    if sum == 0 {
        bail!("callgrind counted nothing in {}", folder.display());
    }
    Ok(sum)
}
