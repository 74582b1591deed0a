//! The whole-program cases, asked about the breaks that no test of the room noticed.
//!
//! The gateway is built with all breaks in it; a case hands the number on to it through the environment.
//! As with tests, each case is run once on the code as it is, which tells the functions it comes to.

use super::list::Mutant;
use super::reach::{Reach, Runner};
use super::report::Outcome;
use super::suite::wait;
use super::switch::{NOTES, VARIABLE};
use super::tree::Tree;
use crate::shell::{cargo, output, root, run};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A break is put to so many cases at most, the quick ones of those that come to it.
const MOST: usize = 12;
/// So many of those that noticed something in the same file are asked first.
const FIRST: usize = 6;
/// So many run at a time.
const ROUND: usize = 4;
/// Cases that take longer are asked last, and only where few cases come to the function.
const QUICK: Duration = Duration::from_secs(2);
const FEW: usize = 60;
/// So many of them at most; what takes longer still is not asked.
const MOST_SLOW: usize = 6;
const SLOW: Duration = Duration::from_secs(13);

/// Seconds of processor time of a process: what loops ends.
const LIMIT: usize = 4;

pub struct Cases {
    /// What runs the cases.
    runner: PathBuf,
    gateway: PathBuf,
    all: Vec<(String, Reach)>,
    /// Per file, which cases noticed its breaks; the last one first.
    noticed: Mutex<HashMap<String, Vec<usize>>>,
}

impl Cases {
    /// Builds the gateway of the copy; what runs the cases is that of the repository itself.
    pub fn build(tree: &Tree, room: &str) -> Result<Cases> {
        let mut gateway = cargo();
        gateway
            .args(["build", "--quiet", "--package", "gateway"])
            .args(["--config", &format!("profile.dev.package.{room}.opt-level=1")])
            .current_dir(tree.root())
            .env("CARGO_TARGET_DIR", tree.build())
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        run(&mut gateway)?;
        let mut cases = cargo();
        cases.args(["test", "--no-run", "--package", "tests", "--test", "cases", "--message-format=json"]);
        let messages = output(cases.current_dir(root()))?;
        let program = |line: &str| {
            let message: Value = serde_json::from_str(line).ok()?;
            // The folder has other programs, too.
            message["profile"]["test"].as_bool().filter(|is_test| *is_test)?;
            Some(PathBuf::from(message["executable"].as_str()?))
        };
        Ok(Cases {
            runner: messages.lines().find_map(program).context("cargo names no program of the cases")?,
            gateway: tree.build().join("debug/sluice"),
            all: Vec::new(),
            noticed: Mutex::default(),
        })
    }

    /// Runs each case on the code as it is. What a run with the same gateway wrote to the file is taken from there.
    pub fn measured(mut self, file: &Path) -> Result<Cases> {
        let start = Instant::now();
        let mut all = super::reach::of(std::slice::from_ref(&self), file)?.pop().unwrap_or_default();
        all.retain(|(_, reach)| reach.time < SLOW);
        all.sort_by_key(|(_, reach)| reach.time);
        self.all = all;
        println!("  {} cases, measured in {} s", self.all.len(), start.elapsed().as_secs());
        Ok(self)
    }

    /// Runs cases that come to this function until one fails with the break, and passes without it.
    pub fn outcome(&self, number: usize, function: u32, mutant: &Mutant) -> Result<Outcome> {
        let comes = |at: &usize| self.all[*at].1.functions.contains(&function);
        let mut asked = self.noticed().get(&mutant.file).cloned().unwrap_or_default();
        asked.retain(comes);
        asked.truncate(FIRST);
        let others = (0..self.all.len()).filter(|at| comes(at) && !asked.contains(at));
        let (quick, slow): (Vec<_>, Vec<_>) = others.partition(|at| self.all[*at].1.time < QUICK);
        let few = asked.len() + quick.len() + slow.len() <= FEW;
        asked.extend(spread(&quick, MOST.saturating_sub(asked.len())));
        asked.extend(spread(&slow, if few { MOST_SLOW } else { 0 }));
        if asked.is_empty() {
            return Ok(Outcome::Unreached);
        }
        for round in asked.chunks(ROUND) {
            let failing = self.failing(round, number)?;
            // Neither chance nor a busy machine: two fail at once, or one does so twice.
            let fails = match failing[..] {
                [] => false,
                [one] => !self.failing(&[one], number)?.is_empty(),
                _ => true,
            };
            if fails && self.failing(&failing, 0)?.is_empty() {
                failing.iter().for_each(|at| self.notice(&mutant.file, *at));
                return Ok(Outcome::Caught);
            }
        }
        Ok(Outcome::Missed)
    }

    /// Which of these cases fail, or do not end.
    fn failing(&self, cases: &[usize], number: usize) -> Result<Vec<usize>> {
        let time: Duration = cases.iter().map(|at| self.all[*at].1.time).sum();
        let names: Vec<_> = cases.iter().map(|at| self.all[*at].0.as_str()).collect();
        let said = std::env::temp_dir().join(format!("cases-{}-{number}-{}", std::process::id(), cases[0]));
        let out = std::fs::File::create(&said).with_context(|| format!("cannot write {}", said.display()))?;
        let child = self.command(number).args(&names).stdout(out).spawn()?;
        let group = child.id();
        let ended = wait(child, time * 3 + Duration::from_secs(6))?;
        if ended.is_none() {
            // Its gateways would go on.
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
        }
        let text = std::fs::read(&said).unwrap_or_default();
        let _ = std::fs::remove_file(&said);
        let text = String::from_utf8_lossy(&text);
        let passed = |name: &str| text.lines().any(|line| line.starts_with(&format!("ok     {name} (")));
        Ok(match ended {
            Some(status) if status.success() => Vec::new(),
            _ => cases.iter().copied().filter(|at| !passed(&self.all[*at].0)).collect(),
        })
    }

    fn command(&self, number: usize) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -c 0; ulimit -t {LIMIT}; exec \"$0\" \"$@\"")])
            .arg(&self.runner)
            .arg("--exact")
            .process_group(0)
            .current_dir(root().join("tests"))
            .env("SLUICE_BIN", &self.gateway)
            .env("CASE_JOBS", ROUND.to_string())
            .env(VARIABLE, number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn notice(&self, file: &str, at: usize) {
        let mut noticed = self.noticed();
        let of_file = noticed.entry(file.to_owned()).or_default();
        of_file.retain(|other| *other != at);
        of_file.insert(0, at);
    }

    fn noticed(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<usize>>> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner for Cases {
    fn path(&self) -> &Path {
        &self.gateway
    }

    /// Goals measure, and take long.
    fn names(&self) -> Result<Vec<String>> {
        let listed = output(Command::new(&self.runner).arg("--list"))?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.filter(|name| !name.starts_with("soak/")).map(str::to_owned).collect())
    }

    fn one(&self, name: &str, number: usize, notes: &Path) -> Command {
        let mut command = self.command(number);
        command.arg(name).env(NOTES, notes);
        command
    }

    /// One that needs more than the build of the breaks can do: a size, an allocation less.
    fn may_fail(&self) -> bool {
        true
    }
}

/// So many of them, from all over the list.
fn spread(list: &[usize], count: usize) -> Vec<usize> {
    let count = count.min(list.len());
    (0..count).map(|at| list[at * list.len() / count]).collect()
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn some_of_many_are_spread_over_all() {
        assert_eq!(spread(&[1, 2, 3, 4, 5, 6], 3), [1, 3, 5]);
        assert_eq!(spread(&[1, 2], 24), [1, 2]);
        assert!(spread(&[], 3).is_empty());
    }
}
