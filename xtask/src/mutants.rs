//! `cargo x mutants`: breaks the code in one place after another and tells which breaks no test
//! notices. What may survive, and why, stands in `.cargo/mutants.toml`.
//!
//! The breaks are those of cargo-mutants. Building a room anew for each of a thousand would take
//! hours, so all of them are built at once: every function is written down once for each of its
//! breaks, and a number in the environment chooses. It happens in a copy of the repository under
//! `target/mutants`; the files that are worked on are never touched.

mod cases;
mod known;
mod list;
mod reach;
mod report;
mod suite;
mod switch;
mod tree;

use crate::shell::root;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use cases::Cases;
use known::Known;
use list::Mutant;
use report::{Outcome, Report};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use suite::Suite;
use switch::Switched;
use tree::Tree;

/// The rooms that every request passes through.
const ROOMS: [&str; 6] = ["wire", "sdk", "cache", "snapshot", "plugins", "proxy"];

const USAGE: &str = "usage: cargo x mutants [ROOM...] [--file WORD]... [--since REVISION] [--shard K/N] [--with ROOM]... [--jobs N] [--continue] [--minutes N] [--missed] [--cases] [--quick] [--list]";

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
    /// These rooms' tests are asked as well.
    with: Vec<String>,
    /// Not those that an earlier run tried.
    going_on: bool,
    /// After so many the rest stays untried.
    minutes: Option<u64>,
    /// Only those that an earlier run missed.
    missed: bool,
    /// What the room's tests miss is put to the cases.
    cases: bool,
    /// Not those that take a build each.
    quick: bool,
    list: bool,
}

pub fn command(args: &[String]) -> Result<()> {
    let choice = choice(args)?;
    tools::cargo_plugin("mutants")?;
    let folder = root().join("target/mutants");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut clean = true;
    for room in &choice.rooms {
        clean &= try_room(room, &choice, &Tree::new(folder.clone(), room))
            .with_context(|| format!("room {room}"))?;
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
            "--with" => choice.with.push(rest.next().context("--with needs a room")?.clone()),
            "--continue" => choice.going_on = true,
            "--minutes" => {
                let minutes = rest.next().and_then(|text| text.parse().ok());
                choice.minutes = Some(minutes.context("--minutes needs a number")?);
            }
            "--missed" => choice.missed = true,
            "--cases" => choice.cases = true,
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
    let mut known = Known::read(&tree.folder().join(format!("{room}.tried")))?;
    let mutants = chosen(room, choice, &mut known)?;
    if choice.list || mutants.is_empty() {
        mutants.iter().for_each(|mutant| println!("{}", mutant.name));
        println!("{room}: {} breaks", mutants.len());
        return Ok(true);
    }
    let end = choice.minutes.map(|minutes| Instant::now() + Duration::from_secs(minutes * 60));
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    println!("{room}: {} breaks; building them", mutants.len());
    let mut switched = Switched::new(mutants.clone(), &mut known)?;
    let mut report = Report::new(room, &mutants, &mut known, choice.cases);
    let mut rooms = vec![room];
    rooms.extend(choice.with.iter().map(String::as_str));
    let suite = loop {
        tree.write(&switched.files(room)?)?;
        match Suite::build(tree, &rooms)? {
            Ok(suite) => break suite,
            Err(errors) => {
                for mutant in switched.leave_out(&errors)? {
                    report.known().add(&mutant, Outcome::Unviable)?;
                }
            }
        }
    };
    for mutant in switched.alone() {
        report.known().add_alone(mutant)?;
    }
    let suite = suite.measured(&tree.folder().join(format!("{room}.reach")))?;
    let (mut together, mut alone) =
        (switched.together().collect::<Vec<_>>(), switched.alone().collect::<Vec<_>>());
    switched.unviable().for_each(|mutant| report.add_known(mutant, Outcome::Unviable));
    let cases = match choice.cases {
        true => Some(Cases::build(tree, room)?.measured(&tree.folder().join(format!("{room}.cases")))?),
        false => None,
    };
    if choice.going_on {
        let mut is_new = |mutant: &Mutant| match report.known().outcome(mutant) {
            Some(missed) if missed.is_missed() && cases.is_some() => {
                let asked = report.known().is_missed_by_cases(mutant);
                asked.then(|| report.add_known(mutant, missed));
                !asked
            }
            Some(outcome) => {
                report.add_known(mutant, outcome);
                false
            }
            None => true,
        };
        together.retain(|(_, _, mutant)| is_new(mutant));
        alone.retain(|mutant| is_new(mutant));
    }
    // Where no test of the room comes, a case is most likely to notice something.
    together.sort_by_key(|(_, _, mutant)| report.known().outcome(mutant) != Some(Outcome::Unreached));
    let ask = |number, function, mutant: &Mutant, known: Option<Outcome>| {
        let found = match known {
            Some(known) => known,
            None => suite.outcome(number, Some(function), mutant)?,
        };
        match &cases {
            Some(cases) if found.is_missed() => cases.outcome(number, function, mutant),
            _ => Ok(found),
        }
    };
    try_together(together, &ask, choice, &is_over, &mut report)?;
    for mutant in alone {
        if choice.quick || is_over() {
            report.add(mutant, Outcome::Untried)?;
            continue;
        }
        tree.write(&switched.files_with(room, mutant)?)?;
        let outcome = match Suite::build(tree, &rooms)? {
            Ok(built) => built.with_times_of(&suite)?.outcome(0, None, mutant)?,
            Err(_) => Outcome::Unviable,
        };
        report.add(mutant, outcome)?;
    }
    Ok(report.finish())
}

/// What becomes of a break: its number, that of its function, and what an earlier run found.
type Ask<'a> = dyn Fn(usize, u32, &Mutant, Option<Outcome>) -> Result<Outcome> + Sync + 'a;

/// Asks about each break that is in the build. What an earlier run with the same tests missed is only put to
/// the cases.
fn try_together(
    breaks: Vec<(usize, u32, &Mutant)>,
    ask: &Ask<'_>,
    choice: &Choice,
    is_over: &(dyn Fn() -> bool + Sync),
    report: &mut Report<'_>,
) -> Result<()> {
    let left = Mutex::new((breaks.into_iter(), report));
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || {
        let mut left = lock();
        let (number, function, mutant) = left.0.next()?;
        let missed = left.1.known().outcome(mutant).filter(|outcome| outcome.is_missed());
        Some((number, function, mutant, missed.filter(|_| choice.going_on)))
    };
    let work = || loop {
        let Some((number, function, mutant, known)) = next() else { return Ok(()) };
        let outcome = match is_over() {
            true => Outcome::Untried,
            false => ask(number, function, mutant, known)?,
        };
        lock().1.add(mutant, outcome)?;
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..choice.jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn chosen(room: &str, choice: &Choice, known: &mut Known) -> Result<Vec<Mutant>> {
    let mut mutants = list::of_room(room, &choice.files)?;
    if let Some(since) = &choice.since {
        let changes = list::changes(since)?;
        mutants.retain(|mutant| changes.touch(mutant));
    }
    if choice.missed {
        mutants.retain(|mutant| known.outcome(mutant).is_some_and(Outcome::is_missed));
    }
    if let Some((part, parts)) = choice.shard {
        mutants = mutants.into_iter().skip(part).step_by(parts).collect();
    }
    Ok(mutants)
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
            "--file h1 wire --since HEAD~1 --jobs 2 snapshot --continue --minutes 3 --with sdk --cases";
        let args: Vec<_> = args.split(' ').map(str::to_owned).collect();
        let found = choice(&args).expect("all are known");
        assert_eq!(found.rooms, ["wire", "snapshot"]);
        assert_eq!((found.files, found.since.as_deref()), (vec!["h1".to_owned()], Some("HEAD~1")));
        assert_eq!((found.going_on, found.minutes, found.with), (true, Some(3), vec!["sdk".to_owned()]));
        assert!(found.cases && !found.missed);
        assert_eq!((found.jobs, choice(&[]).expect("all rooms").jobs), (2, 1));
        assert!(choice(&["--jobs".to_owned(), "0".to_owned()]).is_err());
        assert_eq!(choice(&[]).expect("all rooms").rooms.len(), super::ROOMS.len());
        assert!(choice(&["kitchen".to_owned()]).is_err());
    }
}
