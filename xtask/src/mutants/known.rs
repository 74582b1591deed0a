//! What became of breaks in earlier runs, so that a run that was stopped can go on where it was.
//!
//! A line each, written at once. A line counts for as long as its file has the same text above its tests.

use super::list::Mutant;
use super::report::Outcome;
use crate::shell::root;
use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

/// Stands in the place of an outcome: it takes a build of its own.
const ALONE: &str = "Alone";
/// Stands beside a miss: the cases missed it as well.
const BY_CASES: &str = "Cases";

pub struct Known {
    file: File,
    outcomes: HashMap<(u64, String), Outcome>,
    marks: HashSet<(&'static str, (u64, String))>,
    texts: HashMap<String, u64>,
}

impl Known {
    pub fn read(path: &Path) -> Result<Known> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let mut known = Known {
            file: file.with_context(|| format!("cannot write {}", path.display()))?,
            outcomes: HashMap::new(),
            marks: HashSet::new(),
            texts: HashMap::new(),
        };
        for line in std::fs::read_to_string(path)?.lines() {
            let mut parts = line.splitn(3, ' ');
            let (Some(word), Some(text), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let Ok(text) = u64::from_str_radix(text, 16) else { continue };
            if let Some(outcome) = Outcome::named(word) {
                known.outcomes.insert((text, name.to_owned()), outcome);
            } else if let Some(mark) = [ALONE, BY_CASES].into_iter().find(|mark| *mark == word) {
                known.marks.insert((mark, (text, name.to_owned())));
            }
        }
        Ok(known)
    }

    pub fn outcome(&mut self, mutant: &Mutant) -> Option<Outcome> {
        let key = self.key(mutant);
        self.outcomes.get(&key).copied()
    }

    pub fn is_alone(&mut self, mutant: &Mutant) -> bool {
        let key = self.key(mutant);
        self.marks.contains(&(ALONE, key))
    }

    pub fn is_missed_by_cases(&mut self, mutant: &Mutant) -> bool {
        let key = self.key(mutant);
        self.marks.contains(&(BY_CASES, key))
    }

    pub fn add(&mut self, mutant: &Mutant, outcome: Outcome) -> Result<()> {
        let key = self.key(mutant);
        self.write(&format!("{outcome:?}"), &key)?;
        self.outcomes.insert(key, outcome);
        Ok(())
    }

    pub fn add_alone(&mut self, mutant: &Mutant) -> Result<()> {
        self.mark(ALONE, mutant)
    }

    pub fn add_missed_by_cases(&mut self, mutant: &Mutant) -> Result<()> {
        self.mark(BY_CASES, mutant)
    }

    fn mark(&mut self, mark: &'static str, mutant: &Mutant) -> Result<()> {
        let key = self.key(mutant);
        if self.marks.contains(&(mark, key.clone())) {
            return Ok(());
        }
        self.write(mark, &key)?;
        self.marks.insert((mark, key));
        Ok(())
    }

    fn write(&mut self, word: &str, (text, name): &(u64, String)) -> Result<()> {
        self.file.write_all(format!("{word} {text:x} {name}\n").as_bytes()).context("cannot keep an outcome")
    }

    fn key(&mut self, mutant: &Mutant) -> (u64, String) {
        let text = self.texts.entry(mutant.file.clone()).or_insert_with(|| {
            digest(&std::fs::read_to_string(root().join(&mutant.file)).unwrap_or_default())
        });
        (*text, mutant.name.clone())
    }
}

/// Of a file without the tests at its end: those change nothing about where its breaks are.
fn digest(text: &str) -> u64 {
    let end = text.rfind("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let mut hasher = DefaultHasher::new();
    text[..end].hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{Known, Outcome, digest};
    use crate::mutants::list::{Mutant, Place, Span};

    #[test]
    fn tests_at_the_end_of_a_file_do_not_count() {
        let with = |tests| digest(&format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n{tests}}}\n"));
        assert_eq!(with("a"), with("b"));
        assert_ne!(digest("fn f() {}\n"), digest("fn g() {}\n"));
    }

    #[test]
    fn what_one_run_writes_the_next_one_reads() {
        let path = std::env::temp_dir().join(format!("known-{}", std::process::id()));
        let mutant = |name: &str| {
            let place = Place { line: 1, column: 1 };
            let span = Span { start: place, end: place };
            let (name, file) = (name.to_owned(), "xtask/src/main.rs".to_owned());
            Mutant { file, name, replacement: String::new(), span, function: None }
        };
        let mut known = Known::read(&path).expect("an empty one");
        known.add(&mutant("a: b"), Outcome::Missed).expect("a line");
        known.add(&mutant("a: b"), Outcome::Caught).expect("a line");
        known.add_alone(&mutant("c")).expect("a line");
        let mut known = Known::read(&path).expect("three lines");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(known.outcome(&mutant("a: b")), Some(Outcome::Caught));
        assert_eq!((known.outcome(&mutant("c")), known.is_alone(&mutant("c"))), (None, true));
        assert!(!known.is_alone(&mutant("a: b")));
    }
}
