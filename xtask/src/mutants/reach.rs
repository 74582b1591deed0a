//! Which functions each test comes to, and how long it takes: each test is run alone once.

use super::suite::wait;
use super::switch::NOTE;
use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

#[derive(Clone, PartialEq, Debug)]
pub struct Reach {
    /// On the clock, by itself.
    pub time: Duration,
    /// By the numbers that their breaks have in the build.
    pub functions: Vec<u32>,
}

/// A program that runs tests by their names.
pub trait Runner: Sync {
    /// The file that tells one build from another.
    fn path(&self) -> &Path;

    /// The names of its tests.
    fn names(&self) -> Result<Vec<String>>;

    /// Runs one of them with this break; which functions are reached goes to the file.
    fn one(&self, name: &str, number: usize, notes: &Path) -> Command;

    /// Whether one that fails on the code as it is, is left out: otherwise that is an error.
    fn may_fail(&self) -> bool;
}

/// Longer than any test of a room takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Per program its tests. What a run over the same programs wrote to the file is taken from there.
pub fn of(programs: &[impl Runner], file: &Path) -> Result<Vec<Vec<(String, Reach)>>> {
    let old = read(&std::fs::read_to_string(file).unwrap_or_default());
    let mut all = Vec::new();
    let mut text = String::new();
    for program in programs {
        let key = key(program.path())?;
        let tests = match old.get(&key) {
            Some(tests) => tests.clone(),
            None => measure(program, file)?,
        };
        text += &written(&key, &tests);
        all.push(tests);
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(all)
}

/// Runs each test of a program.
fn measure(program: &impl Runner, beside: &Path) -> Result<Vec<(String, Reach)>> {
    let names = program.names()?;
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = |worker: usize| -> Result<()> {
        let notes = beside.with_extension(format!("notes{worker}"));
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(reach) = one(program, name, &notes)? {
                found.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), reach));
            }
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

fn one(program: &impl Runner, name: &str, notes: &PathBuf) -> Result<Option<Reach>> {
    let _ = std::fs::remove_file(notes);
    let run = |number: usize| -> Result<(bool, Duration)> {
        let start = Instant::now();
        let child = program.one(name, number, notes).spawn()?;
        Ok((wait(child, LIMIT)?.is_some_and(|status| status.success()), start.elapsed()))
    };
    let (mut passes, time) = run(NOTE as usize)?;
    if !passes {
        // A test that counts allocations or descriptors sees those of the notes as well.
        passes = run(0)?.0;
    }
    if !passes {
        if program.may_fail() {
            println!("  {name} fails without any break, and is not asked");
            return Ok(None);
        }
        bail!("{}: {name} fails without any break", program.path().display());
    }
    let noted = std::fs::read(notes).unwrap_or_default();
    let (numbers, _) = noted.as_chunks();
    let mut functions: Vec<_> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
    functions.sort_unstable();
    functions.dedup();
    Ok(Some(Reach { time, functions }))
}

/// Tells a build of a program from another one.
fn key(path: &Path) -> Result<String> {
    let changed = std::fs::metadata(path).and_then(|data| data.modified());
    let changed = changed.with_context(|| format!("cannot read {}", path.display()))?;
    let nanos = changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    Ok(format!("{} {nanos}", path.display()))
}

/// A line for the program, then one for each test.
fn written(key: &str, tests: &[(String, Reach)]) -> String {
    let line = |(name, reach): &(String, Reach)| {
        let functions: Vec<_> = reach.functions.iter().map(u32::to_string).collect();
        format!("\t{name}\t{}\t{}\n", reach.time.as_millis(), functions.join(" "))
    };
    format!("{key}\n{}", tests.iter().map(line).collect::<String>())
}

fn read(text: &str) -> HashMap<String, Vec<(String, Reach)>> {
    let mut programs: HashMap<String, Vec<(String, Reach)>> = HashMap::new();
    let mut key = "";
    for line in text.lines() {
        let parts: Vec<_> = line.split('\t').collect();
        match parts[..] {
            ["", name, millis, functions] => {
                let functions =
                    functions.split_whitespace().filter_map(|number| number.parse().ok()).collect();
                let time = Duration::from_millis(millis.parse().unwrap_or(0));
                let tests = programs.entry(key.to_owned()).or_default();
                tests.push((name.to_owned(), Reach { time, functions }));
            }
            _ => key = line,
        }
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::{Reach, read, written};
    use std::time::Duration;

    #[test]
    fn what_is_written_is_read_again() {
        let reach = |millis, functions| Reach { time: Duration::from_millis(millis), functions };
        let tests = [("a::b".to_owned(), reach(12, vec![1, 70_000])), ("c".to_owned(), reach(3, Vec::new()))];
        let text = written("x/y-1 77", &tests) + &written("x/z 1", &tests[..1]);
        let found = read(&text);
        assert_eq!(found["x/y-1 77"], tests);
        assert_eq!(found["x/z 1"].len(), 1);
    }
}
