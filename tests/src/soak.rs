//! Long-running checks of the gateway's reliability: each goal of `docs/reliability.md`.
//!
//! A goal starts its own gateway, puts it under the conditions of the goal, and compares
//! measurements with the goal. There are two sizes. The short form (`--short`, in CI) judges only
//! what is true or false on any machine: nothing lost, nothing leaked, other requests served. Times
//! and rates are figures: the long form judges them, on a machine that is otherwise idle.

mod bulk;
mod changes;
mod clients;
mod clock;
mod etcd;
mod fair;
mod faults;
mod idle;
mod kills;
mod load;
mod mutations;
mod origin;
mod origins;
mod overload;
mod reloads;
mod scripts;
mod sick;
mod site;
mod start;
mod steady;
mod streams;
mod unread;

use crate::suite;
use anyhow::Result;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Every goal, in the order they are run.
pub static GOALS: [Goal; 22] = [
    Goal { name: "mutations", about: "malformed requests reach no upstream", run: mutations::run },
    Goal { name: "changes", about: "configuration changes under load affect no request", run: changes::run },
    Goal {
        name: "changes-with-etcd",
        about: "changes through etcd affect no request",
        run: changes::run_with_etcd,
    },
    Goal { name: "kills", about: "SIGKILL loses nothing and the start is quick", run: kills::run },
    Goal {
        name: "kills-with-etcd",
        about: "SIGKILL loses nothing where etcd is the store",
        run: kills::run_with_etcd,
    },
    Goal { name: "etcd", about: "etcd fails in every way and nothing is lost", run: etcd::run },
    Goal { name: "etcd-alone", about: "so it does with one member, whose tokens end", run: etcd::run_alone },
    Goal { name: "start", about: "a large store is served soon", run: start::run },
    Goal { name: "reloads", about: "reading files again and ending fail nothing", run: reloads::run },
    Goal { name: "scripts", about: "a plugin in Lua is loaded again and again", run: scripts::run },
    Goal { name: "origins", about: "an origin that dies and comes back", run: origins::run },
    Goal { name: "sick", about: "what an origin breaks off does not look whole", run: sick::run },
    Goal { name: "faults", about: "requests that go wrong leave nothing behind", run: faults::run },
    Goal { name: "idle", about: "idle connections are cheap and live", run: idle::run },
    Goal { name: "clients", about: "slow clients, and clients that leave", run: clients::run },
    Goal { name: "clock", about: "a clock that is set ends nothing and holds nothing", run: clock::run },
    Goal { name: "bulk", about: "large bodies take no memory", run: bulk::run },
    Goal { name: "streams", about: "streams are complete during changes", run: streams::run },
    Goal { name: "fair", about: "a large stream does not starve others", run: fair::run },
    Goal { name: "unread", about: "clients that do not read use no memory", run: unread::run },
    Goal { name: "overload", about: "too much is refused, the rest served", run: overload::run },
    Goal { name: "steady", about: "steady traffic fails nothing and grows nothing", run: steady::run },
];

pub struct Goal {
    pub name: &'static str,
    pub about: &'static str,
    run: fn(&Trial) -> Result<Vec<Row>>,
}

/// One thing promised, and what was measured of it.
pub struct Row {
    /// As `docs/reliability.md` names it.
    pub id: &'static str,
    pub what: String,
    pub wanted: String,
    pub measured: String,
    pub met: bool,
    /// A time or a rate, which depends on what else the machine does.
    pub figure: bool,
}

/// How a goal is run.
pub struct Trial<'a> {
    pub program: &'a Path,
    pub long: bool,
    began: Instant,
    shown: bool,
}

impl Goal {
    /// Runs the goal; with `shown`, telling on the way how far it is.
    pub fn run(&self, program: &Path, long: bool, shown: bool) -> Result<Vec<Row>> {
        let trial = Trial { program, long, began: Instant::now(), shown };
        let rows = (self.run)(&trial);
        trial.wipe();
        rows
    }
}

impl Row {
    pub fn new(id: &'static str, what: &str, wanted: &str, measured: impl ToString, met: bool) -> Row {
        Row {
            id,
            what: what.into(),
            wanted: wanted.into(),
            measured: measured.to_string(),
            met,
            figure: false,
        }
    }

    /// A time or a rate: judged by the long form alone.
    pub fn figure(id: &'static str, what: &str, wanted: &str, measured: impl ToString, met: bool) -> Row {
        Row { figure: true, ..Row::new(id, what, wanted, measured, met) }
    }
}

impl Trial<'_> {
    /// The number for this size.
    pub fn pick<T>(&self, short: T, long: T) -> T {
        if self.long { long } else { short }
    }

    /// Shows how far it is, on a terminal, over what stood there.
    pub fn progress(&self, done: f64, text: &str) {
        if self.shown && std::io::stderr().is_terminal() {
            let seconds = self.began.elapsed().as_secs();
            eprint!("\r\x1b[K  {:3.0} %  {seconds} s  {text}", done * 100.0);
            let _ = std::io::stderr().flush();
        }
    }

    fn wipe(&self) {
        self.progress_line("");
    }

    fn progress_line(&self, text: &str) {
        if self.shown && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{text}");
        }
    }
}

/// `soak [--short] [NAME...]`: runs goals, prints a table, fails if one is missed.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with('-'));
    if options.iter().any(|option| ["--help", "-h"].contains(option)) {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let is_unknown_goal = |name: &&&str| GOALS.iter().all(|goal| goal.name != **name);
    let unknown = options.iter().find(|option| **option != "--short").or(names.iter().find(is_unknown_goal));
    if let Some(unknown) = unknown {
        eprint!("there is no goal or option {unknown:?}\n\n{}", help());
        return ExitCode::FAILURE;
    }
    let long = options.is_empty();
    let program = match suite::program() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut rows = Vec::new();
    let mut failed = false;
    for goal in GOALS.iter().filter(|goal| names.is_empty() || names.contains(&goal.name)) {
        println!("{}: {}", goal.name, goal.about);
        match goal.run(&program, long, true) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                println!("  failed: {error:#}");
                failed = true;
            }
        }
    }
    print!("\n{}", table(&rows));
    failed |= rows.iter().any(|row| !row.met && (long || !row.figure));
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// How the command is used, and every goal.
fn help() -> String {
    let goals: String = GOALS.iter().map(|goal| format!("  {:18} {}\n", goal.name, goal.about)).collect();
    format!(
        "Measures the goals of docs/reliability.md, all or those named, and prints a table.\n\n\
         Usage: cargo x soak [--short] [GOAL]...\n\n  --short            Smaller numbers on the debug build; times \
         and rates are not judged\n\nGoals:\n{goals}"
    )
}

/// A Markdown table whose columns line up.
pub fn table(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let met = if row.met { "yes" } else { "**no**" };
        [row.id.to_owned(), row.what.clone(), row.wanted.clone(), row.measured.clone(), met.to_owned()]
    };
    let head = ["id", "what", "promised", "measured", "met"].map(str::to_owned);
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(widths) {
            out.push_str(&format!("| {cell:width$} "));
        }
        out.push_str("|\n");
        if number == 0 {
            out.push_str(&widths.map(|width| format!("| {} ", "-".repeat(width))).concat());
            out.push_str("|\n");
        }
    }
    out
}

/// The value below which so much of them lie; sorts them.
fn quantile(values: &mut [Duration], part: f64) -> Duration {
    values.sort_unstable();
    let at = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    values.get(at).copied().unwrap_or_default()
}

/// A short time as people read it.
fn ms(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        small if small < 10.0 => format!("{small:.2} ms"),
        large => format!("{large:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, quantile, table};
    use std::time::Duration;

    #[test]
    fn quantiles_are_of_those_measured() {
        let mut times: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut times, 0.5), Duration::from_millis(50));
        assert_eq!(quantile(&mut times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&mut times, 1.0), Duration::from_millis(100));
        assert_eq!(quantile(&mut [], 0.5), Duration::ZERO);
    }

    #[test]
    fn a_miss_is_seen_in_the_table() {
        let text = table(&[Row::new("R1", "x", "0", 3, false)]);
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("| R1 | x    | 0        | 3        | **no** |"), "{text}");
    }
}
