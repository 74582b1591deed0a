//! What became of each break: a line now and then, and tables at the end.

use super::list::Mutant;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// A test failed.
    Caught,
    /// No test failed.
    Missed,
    /// It is no program.
    Unviable,
    /// A test did not end: as good as caught.
    Timeout,
    /// It takes a build of its own, and the run was to be quick.
    Untried,
}

pub struct Report {
    room: String,
    total: usize,
    results: Vec<(String, String, Outcome)>,
    start: Instant,
    told: Instant,
}

impl Report {
    pub fn new(room: &str, mutants: &[Mutant]) -> Report {
        let now = Instant::now();
        Report { room: room.to_owned(), total: mutants.len(), results: Vec::new(), start: now, told: now }
    }

    pub fn add(&mut self, mutant: &Mutant, outcome: Outcome) {
        if outcome == Outcome::Missed {
            println!("  MISSED {}", mutant.name);
        }
        self.results.push((mutant.file.clone(), mutant.name.clone(), outcome));
        if self.told.elapsed() > Duration::from_secs(20) {
            self.told = Instant::now();
            let (done, seconds) = (self.results.len(), self.start.elapsed().as_secs());
            println!("  {done} of {} tried, {} missed, {seconds} s", self.total, self.count(Outcome::Missed));
        }
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.results.iter().filter(|(_, _, found)| *found == outcome).count()
    }

    /// Prints the tables and keeps the names of the missed ones; says whether there are none. A run
    /// over a part of them takes away from the list, and adds nothing.
    pub fn finish(&self, missed: &Path, part: bool) -> Result<bool> {
        let mut files: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
        for (file, _, outcome) in &self.results {
            files.entry(file).or_default()[*outcome as usize] += 1;
        }
        println!(
            "\n| file | breaks | caught | missed | unviable | time-out | untried |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
        );
        let mut sums = [0; 5];
        for (file, counts) in &files {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            println!("{}", row(file, counts));
        }
        println!("{}", row(&format!("{}, {} files", self.room, files.len()), &sums));
        for outcome in [Outcome::Timeout, Outcome::Missed] {
            let mut names: Vec<_> = self
                .results
                .iter()
                .filter(|(_, _, found)| *found == outcome)
                .map(|(_, name, _)| name)
                .collect();
            names.sort();
            names.iter().for_each(|name| println!("{outcome:?}: {name}"));
        }
        self.keep(missed, part).with_context(|| format!("cannot write {}", missed.display()))?;
        println!("{}: {} s", self.room, self.start.elapsed().as_secs());
        Ok(sums[Outcome::Missed as usize] == 0)
    }

    fn keep(&self, path: &Path, part: bool) -> std::io::Result<()> {
        let old = match part {
            true => std::fs::read_to_string(path)?,
            false => String::new(),
        };
        let tried = |name: &str| self.results.iter().any(|(_, found, _)| found == name);
        let mut lines: Vec<_> = old.lines().filter(|name| !tried(name)).collect();
        let missed = self.results.iter().filter(|(_, _, outcome)| *outcome == Outcome::Missed);
        lines.extend(missed.map(|(_, name, _)| name.as_str()));
        std::fs::write(path, lines.iter().map(|name| format!("{name}\n")).collect::<String>())
    }
}

fn row(name: &str, counts: &[usize; 5]) -> String {
    let [caught, missed, unviable, timeout, untried] = counts;
    let sum: usize = counts.iter().sum();
    format!("| {name} | {sum} | {caught} | {missed} | {unviable} | {timeout} | {untried} |")
}
