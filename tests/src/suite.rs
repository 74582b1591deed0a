//! All cases and the short forms of the goals: found, run side by side, reported.

use crate::case::Case;
use crate::examples::{self, By};
use crate::run;
use crate::soak::{GOALS, Goal, Row};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Gateways at once, unless `CASE_JOBS` says otherwise.
const JOBS: usize = 4;

struct Found {
    name: String,
    what: What,
    serial: bool,
}

enum What {
    /// A case file.
    Case(PathBuf),
    /// The example on a plugin's page.
    Example(PathBuf, By),
    /// A goal, in its short form.
    Goal(&'static Goal),
}

/// Lists, runs, reports. Words on the command line are parts of names, or with `--exact` names.
pub fn main() -> ExitCode {
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let [list, exact] = ["--list", "--exact"].map(|flag| std::env::args().any(|arg| arg == flag));
    let mut cases = find(&root().join("tests/cases"));
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
    let failed = run_all(&cases, &program);
    for (name, failures) in &failed {
        println!("\nFAILED {name}");
        for failure in failures {
            println!("    {}", failure.replace('\n', "\n    "));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\n{} passed, {} failed ({seconds:.1} s)", cases.len() - failed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// The program of `SLUICE_BIN`, or the debug build, made now.
pub fn program() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SLUICE_BIN") {
        return Ok(path.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built =
        Command::new(cargo).current_dir(root()).args(["build", "--quiet", "--package", "gateway"]).status();
    match built {
        Ok(status) if status.success() => {
            let target =
                std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
            Ok(target.join("debug/sluice"))
        }
        Ok(status) => Err(format!("building the gateway failed ({status})")),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}

/// Every case, with what the order of running needs to know.
fn find(folder: &Path) -> Vec<Found> {
    let cases = files(folder).into_iter().map(|(name, path)| {
        // A file that does not read is run, and fails by name.
        let serial = Case::load(&path).is_ok_and(|case| case.serial);
        Found { name, what: What::Case(path), serial }
    });
    // What is measured wants the machine for itself.
    let goals = GOALS.iter().map(|goal| {
        let name = format!("soak/{}", goal.name);
        Found { name, what: What::Goal(goal), serial: true }
    });
    cases.chain(examples()).chain(goals).collect()
}

/// The examples of all plugins' pages, by each of their two ways.
fn examples() -> impl Iterator<Item = Found> {
    // The generated pages hold these word for word.
    let pages = files_of(&root().join("plugins/pages"), "md").into_iter();
    pages.flat_map(|(name, page)| {
        let name = name.replace('/', "-");
        [(By::Admin, "curl"), (By::Yaml, "yaml")].map(|(by, way)| Found {
            name: format!("examples/{name}-{way}"),
            what: What::Example(page.clone(), by),
            serial: false,
        })
    })
}

impl Found {
    /// Runs it; gives the failures, each a readable text.
    fn run(&self, program: &Path) -> Vec<String> {
        match &self.what {
            What::Case(path) => run::run(Case::load(path), path, program),
            What::Example(page, by) => run::run(examples::case(page, *by), page, program),
            What::Goal(goal) => match goal.run(program, false, false) {
                // Figures belong to `cargo x soak`: here the machine may be busy with anything.
                Ok(rows) => rows.iter().filter(|row| !row.met && !row.figure).map(missed).collect(),
                Err(error) => vec![format!("{error:#}")],
            },
        }
    }
}

fn missed(row: &Row) -> String {
    format!("{}, {}: promised {}, measured {}", row.id, row.what, row.wanted, row.measured)
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
fn run_all(cases: &[Found], program: &Path) -> Vec<(String, Vec<String>)> {
    let jobs = std::env::var("CASE_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(JOBS);
    let (serial, side_by_side): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.serial);
    let mut failed = several(&side_by_side, program, jobs);
    failed.extend(several(&serial, program, 1));
    failed.sort();
    failed
}

fn several(cases: &[&Found], program: &Path, jobs: usize) -> Vec<(String, Vec<String>)> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(cases.len()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let start = Instant::now();
                    let failures = case.run(program);
                    let verdict = if failures.is_empty() { "ok    " } else { "FAILED" };
                    println!("{verdict} {} ({:.2} s)", case.name, start.elapsed().as_secs_f64());
                    if !failures.is_empty() {
                        failed.lock().expect("no holder panics").push((case.name.clone(), failures));
                    }
                }
            });
        }
    });
    failed.into_inner().expect("no holder panics")
}
