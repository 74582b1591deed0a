//! What became of each break: a line now and then, and tables at the end.

use super::known::Known;
use super::list::Mutant;
use anyhow::Result;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// A test failed.
    Caught,
    /// No test failed.
    Missed,
    /// No test comes to the function it is in: missed as well.
    Unreached,
    /// It is no program.
    Unviable,
    /// A test did not end: as good as caught.
    Timeout,
    /// Not tried: it takes a build of its own in a run that was to be quick, or the time was over.
    Untried,
}

const OUTCOMES: [Outcome; 6] = [
    Outcome::Caught,
    Outcome::Missed,
    Outcome::Unreached,
    Outcome::Unviable,
    Outcome::Timeout,
    Outcome::Untried,
];

impl Outcome {
    pub fn named(word: &str) -> Option<Outcome> {
        OUTCOMES.into_iter().find(|outcome| format!("{outcome:?}") == word)
    }

    pub fn is_missed(self) -> bool {
        matches!(self, Outcome::Missed | Outcome::Unreached)
    }
}

pub struct Report<'a> {
    room: String,
    total: usize,
    results: Vec<(String, String, Outcome)>,
    known: &'a mut Known,
    /// Whether the cases are asked.
    cases: bool,
    start: Instant,
    told: Instant,
}

impl Report<'_> {
    pub fn new<'a>(room: &str, mutants: &[Mutant], known: &'a mut Known, cases: bool) -> Report<'a> {
        let now = Instant::now();
        Report {
            room: room.to_owned(),
            total: mutants.len(),
            results: Vec::new(),
            known,
            cases,
            start: now,
            told: now,
        }
    }

    /// Of this run: it is kept for the next.
    pub fn add(&mut self, mutant: &Mutant, outcome: Outcome) -> Result<()> {
        if outcome.is_missed() {
            println!("  {outcome:?}: {}", mutant.name);
        }
        if outcome != Outcome::Untried {
            self.known.add(mutant, outcome)?;
        }
        if outcome.is_missed() && self.cases {
            self.known.add_missed_by_cases(mutant)?;
        }
        self.add_known(mutant, outcome);
        if self.told.elapsed() > Duration::from_secs(20) {
            self.told = Instant::now();
            let missed = self.results.iter().filter(|(_, _, found)| found.is_missed()).count();
            let (done, seconds) = (self.results.len(), self.start.elapsed().as_secs());
            println!("  {done} of {} tried, {missed} missed, {seconds} s", self.total);
        }
        Ok(())
    }

    /// Of a run before.
    pub fn add_known(&mut self, mutant: &Mutant, outcome: Outcome) {
        self.results.push((mutant.file.clone(), mutant.name.clone(), outcome));
    }

    pub fn known(&mut self) -> &mut Known {
        self.known
    }

    /// Prints the tables; says whether nothing was missed.
    pub fn finish(&self) -> bool {
        let mut files: BTreeMap<&str, [usize; OUTCOMES.len()]> = BTreeMap::new();
        for (file, _, outcome) in &self.results {
            files.entry(file).or_default()[*outcome as usize] += 1;
        }
        println!("\n| file | breaks | caught | missed | unreached | unviable | time-out | untried |");
        println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
        let mut sums = [0; OUTCOMES.len()];
        for (file, counts) in &files {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            println!("{}", row(file, counts));
        }
        println!("{}", row(&format!("{}, {} files", self.room, files.len()), &sums));
        for outcome in [Outcome::Timeout, Outcome::Unreached, Outcome::Missed] {
            let found = self.results.iter().filter(|(_, _, found)| *found == outcome);
            let mut names: Vec<_> = found.map(|(_, name, _)| name).collect();
            names.sort();
            names.iter().for_each(|name| println!("{outcome:?}: {name}"));
        }
        println!("{}: {} s", self.room, self.start.elapsed().as_secs());
        !self.results.iter().any(|(_, _, outcome)| outcome.is_missed())
    }
}

fn row(name: &str, counts: &[usize]) -> String {
    let cells: String = counts.iter().map(|count| format!(" {count} |")).collect();
    format!("| {name} | {} |{cells}", counts.iter().sum::<usize>())
}
