//! All cases: found, run side by side, reported.
//!
//! A case with the standard ports runs in a network namespace of its own, in a second process of
//! this program. Where the system refuses namespaces, those cases run one after the other.

use crate::case::{Case, Ports};
use crate::examples::{self, By};
use crate::run;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Gateways at once, unless `CASE_JOBS` says otherwise.
const JOBS: usize = 4;
/// Cases named at the end as the slowest.
const SLOWEST: usize = 20;
/// Folder of other cases than `tests/cases`, from the root of the repository.
const FOLDER: &str = "SLUICE_CASES";
/// Set in a process that runs one case in a namespace of its own.
const ALONE: &str = "SLUICE_CASE_ALONE";

struct Found {
    name: String,
    what: What,
    order: Order,
}

/// Beside which other cases a case can run.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    SideBySide,
    /// Side by side if it gets its own network, since it takes fixed ports.
    OwnNetwork,
    /// After all others, alone.
    Serial,
}

struct Outcome {
    name: String,
    time: Duration,
    failures: Vec<String>,
}

enum What {
    /// A case file.
    Case(PathBuf),
    /// The example on a plugin's page.
    Example(PathBuf, By),
}

/// Lists, runs, reports. Words on the command line are parts of names, or with `--exact` names.
pub fn main() -> ExitCode {
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let [list, exact] = ["--list", "--exact"].map(|flag| std::env::args().any(|arg| arg == flag));
    let mut cases = match std::env::var_os(FOLDER) {
        Some(folder) => cases(&crate::root().join(folder)).collect(),
        None => find(),
    };
    if !filters.is_empty() {
        let fits =
            |name: &str, filter: &String| if exact { name == filter } else { name.contains(filter.as_str()) };
        cases.retain(|case| filters.iter().any(|filter| fits(&case.name, filter)));
    }
    if list {
        cases.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    if cases.is_empty() {
        eprintln!("no case matches {filters:?}");
        return ExitCode::FAILURE;
    }
    let program = match program() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let start = Instant::now();
    let outcomes = run_all(&cases, &program);
    report(&outcomes, start.elapsed());
    if outcomes.iter().all(|outcome| outcome.failures.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the slowest cases, the failures and the counts.
fn report(outcomes: &[Outcome], total: Duration) {
    if outcomes.len() > SLOWEST {
        let mut slowest: Vec<_> = outcomes.iter().collect();
        slowest.sort_by_key(|outcome| std::cmp::Reverse(outcome.time));
        let slowest: Vec<_> = slowest
            .iter()
            .take(SLOWEST)
            .map(|outcome| format!("{} {:.1} s", outcome.name, outcome.time.as_secs_f64()))
            .collect();
        println!("\nslowest: {}", slowest.join(", "));
    }
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.failures.is_empty()).collect();
    for outcome in &failed {
        println!("\nFAILED {}", outcome.name);
        for failure in &outcome.failures {
            println!("    {}", failure.replace('\n', "\n    "));
        }
    }
    let passed = outcomes.len() - failed.len();
    println!("\n{passed} passed, {} failed ({:.1} s)", failed.len(), total.as_secs_f64());
}

/// The program of `SLUICE_BIN`, or the debug build, made now.
pub fn program() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SLUICE_BIN") {
        return Ok(path.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(crate::root())
        .args(["build", "--quiet", "--package", "gateway"])
        .status();
    match built {
        Ok(status) if status.success() => {
            let target = std::env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| crate::root().join("target"), PathBuf::from);
            Ok(target.join("debug/sluice"))
        }
        Ok(status) => Err(format!("building the gateway failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}

/// The cases of `tests/cases`, and the examples.
fn find() -> Vec<Found> {
    cases(&crate::root().join("tests/cases")).chain(examples()).collect()
}

/// The cases of a folder, with what the order of running needs to know.
fn cases(folder: &Path) -> impl Iterator<Item = Found> {
    files(folder).into_iter().map(|(name, path)| {
        // A file that does not read is run, and fails by name.
        let order = match Case::load(&path) {
            Ok(case) if case.serial => Order::Serial,
            Ok(case) if case.ports == Ports::Standard => Order::OwnNetwork,
            _ => Order::SideBySide,
        };
        Found { name, what: What::Case(path), order }
    })
}

/// The examples of all plugins' pages, by each of their two ways.
fn examples() -> impl Iterator<Item = Found> {
    // The generated pages hold these word for word.
    let pages = files_of(&crate::root().join("plugins/pages"), "md").into_iter();
    pages.flat_map(|(name, page)| {
        let name = name.replace('/', "-");
        [(By::Admin, "curl"), (By::Yaml, "yaml")].map(|(by, way)| Found {
            name: format!("examples/{name}-{way}"),
            what: What::Example(page.clone(), by),
            order: Order::SideBySide,
        })
    })
}

impl Found {
    /// Runs it; gives the failures, each a readable text.
    fn run(&self, program: &Path) -> Vec<String> {
        match &self.what {
            What::Case(path) => run::run(Case::load(path), path, program),
            What::Example(page, by) => run::run(examples::case(page, *by), page, program),
        }
    }

    /// Runs it by this program in a new network namespace; gives the failures.
    fn run_in_own_network(&self, program: &Path) -> Vec<String> {
        let output = std::env::current_exe().and_then(|this| {
            own_network(&this)
                .args(["--exact", &self.name])
                .env(ALONE, "1")
                .env("SLUICE_BIN", program)
                .output()
        });
        match output {
            Ok(output) if output.status.success() => Vec::new(),
            Ok(output) => {
                vec![String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()]
            }
            Err(error) => vec![format!("cannot start another process for this case: {error}")],
        }
    }
}

/// A command that runs `program` in a network namespace with a loopback device alone.
fn own_network(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]).arg(program);
    command
}

/// Every `*.yaml` below a folder, named by its path, in order.
pub fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    files_of(folder, "yaml")
}

fn files_of(folder: &Path, extension: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == extension) {
                let name =
                    path.strip_prefix(folder).unwrap_or(&path).with_extension("").display().to_string();
                found.push((name, path));
            }
        }
    }
    found.sort();
    found
}

/// Side by side first, then one by one those that need to be alone.
fn run_all(cases: &[Found], program: &Path) -> Vec<Outcome> {
    let jobs = std::env::var("CASE_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(JOBS);
    let alone = std::env::var_os(ALONE).is_some();
    let networks = !alone
        && cases.iter().any(|case| case.order == Order::OwnNetwork)
        && own_network(Path::new("true")).status().is_ok_and(|status| status.success());
    let run = |case: &Found| match case.order {
        Order::OwnNetwork if networks => case.run_in_own_network(program),
        _ => case.run(program),
    };
    let (side_by_side, serial): (Vec<_>, Vec<_>) = cases.iter().partition(|case| match case.order {
        Order::SideBySide => true,
        Order::OwnNetwork => networks,
        Order::Serial => false,
    });
    let mut outcomes = several(&side_by_side, run, jobs);
    outcomes.extend(several(&serial, run, 1));
    outcomes.sort_by(|a, b| a.name.cmp(&b.name));
    outcomes
}

fn several(cases: &[&Found], run: impl Fn(&Found) -> Vec<String> + Sync, jobs: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let start = Instant::now();
                    let failures = run(case);
                    let (name, time) = (case.name.clone(), start.elapsed());
                    let verdict = if failures.is_empty() { "ok    " } else { "FAILED" };
                    println!("{verdict} {name} ({:.2} s)", time.as_secs_f64());
                    outcomes.lock().expect("no holder panics").push(Outcome { name, time, failures });
                }
            });
        }
    });
    outcomes.into_inner().expect("no holder panics")
}
