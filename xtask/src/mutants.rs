//! `cargo x mutants`: breaks the code in one place after another and tells which breaks no test
//! notices. What may survive, and why, stands in `.cargo/mutants.toml`.
//!
//! The breaks are those of cargo-mutants. Building a room anew for each of a thousand would take
//! hours, so all of them are built at once: every function is written down once for each of its
//! breaks, and a number in the environment chooses. It happens in a copy of the repository under
//! `target/mutants`; the files that are worked on are never touched.

mod list;
mod report;
mod suite;
mod switch;
mod tree;

use crate::shell::root;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use list::Mutant;
use report::{Outcome, Report};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use suite::Suite;
use switch::Switched;
use tree::Tree;

/// The rooms that every request passes through.
const ROOMS: [&str; 6] = ["wire", "sdk", "cache", "snapshot", "plugins", "proxy"];

const USAGE: &str = "usage: cargo x mutants [ROOM...] [--file WORD]... [--since REVISION] [--shard K/N] [--jobs N] [--missed] [--quick] [--list]";

/// Which breaks are tried.
#[derive(Default)]
struct Choice {
    rooms: Vec<String>,
    /// Parts of the paths of files; none: all.
    files: Vec<String>,
    since: Option<String>,
    /// This part, counted from 0, of so many.
    shard: Option<(usize, usize)>,
    /// So many are tried at a time. One, unless said otherwise: some tests wait for the clock.
    jobs: usize,
    /// Only those the last run of their room missed.
    missed: bool,
    /// Not those that take a build each.
    quick: bool,
    list: bool,
}

pub fn command(args: &[String]) -> Result<()> {
    let choice = choice(args)?;
    tools::cargo_plugin("mutants")?;
    let folder = root().join("target/mutants");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let tree = Tree::new(folder);
    let mut clean = true;
    for room in &choice.rooms {
        clean &= try_room(room, &choice, &tree).with_context(|| format!("room {room}"))?;
    }
    ensure!(clean, "some breaks were noticed by no test; each gets a test, or a line in .cargo/mutants.toml");
    Ok(())
}

fn choice(args: &[String]) -> Result<Choice> {
    let mut choice = Choice { jobs: 1, ..Choice::default() };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--file" => choice.files.push(rest.next().context("--file needs a part of a path")?.clone()),
            "--since" => {
                choice.since = Some(rest.next().context("--since needs a revision, such as HEAD~1")?.clone())
            }
            "--shard" => choice.shard = Some(shard(rest.next().map_or("", String::as_str))?),
            "--jobs" => {
                let jobs = rest.next().and_then(|text| text.parse().ok()).filter(|&jobs| jobs > 0);
                choice.jobs = jobs.context("--jobs needs a number from 1 on")?;
            }
            "--missed" => choice.missed = true,
            "--quick" => choice.quick = true,
            "--list" => choice.list = true,
            room if root().join(room).join("Cargo.toml").is_file() => choice.rooms.push(room.to_owned()),
            _ => bail!("{USAGE}"),
        }
    }
    if choice.rooms.is_empty() {
        choice.rooms.extend(ROOMS.map(str::to_owned));
    }
    Ok(choice)
}

fn shard(text: &str) -> Result<(usize, usize)> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    match parts {
        Some((k, n)) if k < n => Ok((k, n)),
        _ => bail!("--shard {text:?}: expected K/N with K from 0 to N-1, such as 0/4"),
    }
}

/// Tries the chosen breaks of a room; says whether each was noticed.
fn try_room(room: &str, choice: &Choice, tree: &Tree) -> Result<bool> {
    let mutants = chosen(room, choice, tree)?;
    if choice.list || mutants.is_empty() {
        mutants.iter().for_each(|mutant| println!("{}", mutant.name));
        println!("{room}: {} breaks", mutants.len());
        return Ok(true);
    }
    println!("{room}: {} breaks; building them", mutants.len());
    let mut report = Report::new(room, &mutants);
    let mut switched = Switched::new(mutants)?;
    let suite = loop {
        tree.write(&switched.files(room)?)?;
        match Suite::build(tree, room)? {
            Ok(suite) => break suite,
            Err(errors) => {
                let unviable = switched.leave_out(&errors)?;
                unviable.iter().for_each(|mutant| report.add(mutant, Outcome::Unviable));
            }
        }
    };
    let suite = suite.measured()?;
    try_together(&switched, &suite, choice.jobs, &mut report)?;
    for mutant in switched.alone() {
        if choice.quick {
            report.add(mutant, Outcome::Untried);
            continue;
        }
        tree.write(&switched.files_with(room, mutant)?)?;
        report.add(
            mutant,
            match Suite::build(tree, room)? {
                Ok(built) => built.with_times_of(&suite).outcome(0, mutant)?,
                Err(_) => Outcome::Unviable,
            },
        );
    }
    report.finish(&missed_file(room, tree), choice.missed)
}

/// Runs the tests for each break that is in the build.
fn try_together(switched: &Switched, suite: &Suite, jobs: usize, report: &mut Report) -> Result<()> {
    let left = Mutex::new((switched.together(), report));
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || loop {
        let Some((number, mutant)) = lock().0.next() else { return Ok(()) };
        let outcome = suite.outcome(number, mutant)?;
        lock().1.add(mutant, outcome);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn chosen(room: &str, choice: &Choice, tree: &Tree) -> Result<Vec<Mutant>> {
    let mut mutants = list::of_room(room, &choice.files)?;
    if let Some(since) = &choice.since {
        let changes = list::changes(since)?;
        mutants.retain(|mutant| changes.touch(mutant));
    }
    if choice.missed {
        let path = missed_file(room, tree);
        let names = std::fs::read_to_string(&path)
            .with_context(|| format!("--missed needs a run before it: cannot read {}", path.display()))?;
        mutants.retain(|mutant| names.lines().any(|name| name == mutant.name));
    }
    if let Some((part, parts)) = choice.shard {
        mutants = mutants.into_iter().skip(part).step_by(parts).collect();
    }
    Ok(mutants)
}

fn missed_file(room: &str, tree: &Tree) -> PathBuf {
    tree.folder().join(format!("{room}.missed"))
}

#[cfg(test)]
mod tests {
    use super::{choice, shard};

    #[test]
    fn a_shard_is_one_of_so_many() {
        assert_eq!(shard("0/4").ok(), Some((0, 4)));
        assert_eq!(shard("3/4").ok(), Some((3, 4)));
        for wrong in ["4/4", "0/0", "1", "a/b", ""] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rooms_and_options_in_any_order() {
        let args =
            ["--file", "h1", "wire", "--since", "HEAD~1", "--jobs", "2", "snapshot"].map(str::to_owned);
        let found = choice(&args).expect("all are known");
        assert_eq!(found.rooms, ["wire", "snapshot"]);
        assert_eq!((found.files, found.since.as_deref()), (vec!["h1".to_owned()], Some("HEAD~1")));
        assert_eq!((found.jobs, choice(&[]).expect("all rooms").jobs), (2, 1));
        assert!(choice(&["--jobs".to_owned(), "0".to_owned()]).is_err());
        assert_eq!(choice(&[]).expect("all rooms").rooms.len(), super::ROOMS.len());
        assert!(choice(&["kitchen".to_owned()]).is_err());
    }
}
