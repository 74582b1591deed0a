//! The tests of one room: built once, run for each break.
//!
//! Each test is first run alone on the code as it is, which tells how long it takes and which functions
//! it comes to. For a break only the tests that come to its function are run: first those that noticed
//! breaks nearby, then the quick ones.

use super::list::Mutant;
use super::reach::{self, Reach, Runner};
use super::report::Outcome;
use super::switch::{Error, NOTES, VARIABLE};
use super::tree::Tree;
use crate::shell::{cargo, output, show};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Address space of a test, so that a loop that fills memory ends.
const MEMORY_KB: usize = 16 << 20;
/// A function that is there dozens of times has a large frame without optimisation.
const STACK: &str = "67108864";
/// A test that takes less is asked before the others.
const QUICK: Duration = Duration::from_millis(200);
/// So many of those that noticed something in the same file are asked first.
const FIRST: usize = 6;

pub struct Suite {
    programs: Vec<Program>,
    tests: Vec<Test>,
    /// Per file, which tests noticed its breaks; the last one first.
    noticed: Mutex<HashMap<String, Vec<usize>>>,
}

pub struct Program {
    pub path: PathBuf,
    /// The folder of its room.
    pub room: PathBuf,
}

impl Runner for Program {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut command = Command::new(&self.path);
        let listed = output(command.args(["--list", "--format", "terse"]).current_dir(&self.room))?;
        Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    fn one(&self, name: &str, number: usize, notes: &Path) -> Command {
        let mut command = program_command("exec \"$0\" \"$@\"", self, number);
        command.args(["--exact", name]).env(NOTES, notes);
        command
    }

    fn may_fail(&self) -> bool {
        false
    }
}

struct Test {
    /// Index of its program.
    program: usize,
    name: String,
    reach: Reach,
}

impl Suite {
    /// Builds the tests of these rooms, or says where the compiler found mistakes in the first.
    pub fn build(tree: &Tree, rooms: &[&str]) -> Result<Result<Suite, Vec<Error>>> {
        // Without tests first: half the work where it fails.
        if let Err(errors) = compile(tree, rooms[0], &["build", "--lib"], &rooms[..1])? {
            return Ok(Err(errors));
        }
        let messages = match compile(tree, rooms[0], &["test", "--no-run", "--lib", "--tests"], rooms)? {
            Ok(messages) => messages,
            Err(errors) => return Ok(Err(errors)),
        };
        let program = |message: &Value| {
            let tests = message["profile"]["test"].as_bool() == Some(true);
            let path = message["executable"].as_str().filter(|_| tests)?;
            let room = Path::new(message["manifest_path"].as_str()?).parent()?;
            Some(Program { path: path.into(), room: room.into() })
        };
        let programs: Vec<_> = messages.iter().filter_map(program).collect();
        if programs.is_empty() {
            bail!("{} has no tests", rooms.join(" and "));
        }
        Ok(Ok(Suite { programs, tests: Vec::new(), noticed: Mutex::default() }))
    }

    /// Runs each test on the code as it is, which they must pass. What a run over the same programs
    /// wrote to the file is taken from there.
    pub fn measured(mut self, file: &Path) -> Result<Suite> {
        let start = Instant::now();
        for (program, found) in reach::of(&self.programs, file)?.into_iter().enumerate() {
            self.tests.extend(found.into_iter().map(|(name, reach)| Test { program, name, reach }));
        }
        self.tests.sort_by_key(|test| test.reach.time);
        let seconds = start.elapsed().as_secs();
        println!("  {} tests in {} programs, measured in {seconds} s", self.tests.len(), self.programs.len());
        Ok(self)
    }

    /// For another build of the same tests.
    pub fn with_times_of(mut self, other: &Suite) -> Result<Suite> {
        for (program, built) in self.programs.iter().enumerate() {
            for name in built.names()? {
                let same = other.tests.iter().find(|test| test.name == name);
                let time = same.map_or(Duration::from_secs(5), |test| test.reach.time);
                self.tests.push(Test { program, name, reach: Reach { time, functions: Vec::new() } });
            }
        }
        self.tests.sort_by_key(|test| test.reach.time);
        Ok(self)
    }

    /// Runs the tests that come to this function, or all of them, until one fails.
    pub fn outcome(&self, number: usize, function: Option<u32>, mutant: &Mutant) -> Result<Outcome> {
        let comes = |test: &Test| function.is_none_or(|function| test.reach.functions.contains(&function));
        let mut left: Vec<_> = (0..self.tests.len()).filter(|at| comes(&self.tests[*at])).collect();
        if left.is_empty() {
            return Ok(Outcome::Unreached);
        }
        let mut first = self.noticed().get(&mutant.file).cloned().unwrap_or_default();
        first.retain(|at| left.contains(at));
        first.truncate(FIRST);
        left.retain(|at| !first.contains(at));
        let (quick, slow) = left.into_iter().partition(|at| self.tests[*at].reach.time < QUICK);
        for tests in [first, quick, slow] {
            for program in 0..self.programs.len() {
                let of_program: Vec<_> =
                    tests.iter().copied().filter(|at| self.tests[*at].program == program).collect();
                // Where a test loops, the others of its round wait for its end: small rounds.
                for round in of_program.chunks(40) {
                    match self.run(program, round, number, mutant)? {
                        Outcome::Missed => {}
                        outcome => return Ok(outcome),
                    }
                }
            }
        }
        Ok(Outcome::Missed)
    }

    fn run(&self, program: usize, tests: &[usize], number: usize, mutant: &Mutant) -> Result<Outcome> {
        let time: Duration = tests.iter().map(|at| self.tests[*at].reach.time).sum();
        // By processor time a loop is told from a busy machine; what only waits is ended by the clock.
        let seconds = time.as_secs() * 3 + 2;
        let script = format!("ulimit -c 0; ulimit -t {seconds}; ulimit -v {MEMORY_KB}; exec \"$0\" \"$@\"");
        let said = std::env::temp_dir().join(format!("mutant-{}-{number}", std::process::id()));
        let out = File::create(&said).with_context(|| format!("cannot write {}", said.display()))?;
        let child = program_command(&script, &self.programs[program], number)
            .arg("--exact")
            .args(tests.iter().map(|at| &self.tests[*at].name))
            // An end at the first failure is not stable yet in the test harness.
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["-Z", "unstable-options", "--fail-fast"])
            .stdout(out)
            .spawn()?;
        let status = wait(child, time * 5 + Duration::from_secs(10))?;
        let text = std::fs::read(&said).unwrap_or_default();
        let _ = std::fs::remove_file(&said);
        Ok(match status {
            Some(status) if status.success() => Outcome::Missed,
            Some(status) if !ended_by_limit(status) => {
                let failed = failed(&String::from_utf8_lossy(&text));
                let found = tests.iter().copied().find(|at| Some(&self.tests[*at].name) == failed.as_ref());
                found.into_iter().for_each(|at| self.notice(&mutant.file, at));
                Outcome::Caught
            }
            _ => Outcome::Timeout,
        })
    }

    fn notice(&self, file: &str, test: usize) {
        let mut noticed = self.noticed();
        let of_file = noticed.entry(file.to_owned()).or_default();
        of_file.retain(|at| *at != test);
        of_file.insert(0, test);
    }

    fn noticed(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<usize>>> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first test that a test program says has failed.
fn failed(text: &str) -> Option<String> {
    let name = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.trim_end_matches(" - should panic").to_owned())
    };
    text.lines().find_map(name)
}

/// What cargo says while it builds, or the mistakes.
fn compile(tree: &Tree, room: &str, what: &[&str], rooms: &[&str]) -> Result<Result<Vec<Value>, Vec<Error>>> {
    let mut command = cargo();
    command
        .args(what)
        .arg("--message-format=json")
        .args(rooms.iter().flat_map(|room| ["--package", *room]))
        // The tests run a thousand times, the compiler once.
        .args(["--config", &format!("profile.dev.package.{room}.opt-level=1")])
        .current_dir(tree.root())
        .env("CARGO_TARGET_DIR", tree.build())
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    let shown = show(&command);
    let output =
        command.stderr(Stdio::piped()).output().with_context(|| format!("cannot start `{shown}`"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if output.status.success() {
        return Ok(Ok(messages));
    }
    let errors: Vec<_> = messages.iter().filter_map(|message| error(message, room)).flatten().collect();
    if errors.is_empty() {
        bail!("`{shown}` failed:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(Err(errors))
}

/// A shell that runs a test program.
fn program_command(script: &str, program: &Program, number: usize) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(&program.path)
        .current_dir(&program.room)
        .env("CARGO_MANIFEST_DIR", &program.room)
        .env("RUST_MIN_STACK", STACK)
        .env("RUST_BACKTRACE", "0")
        .env(VARIABLE, number.to_string())
        // A tenth of the usual: a break that only the rest would find is called missed, and looked at.
        .env("PROPTEST_CASES", "25")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Waits so long at most, then ends the program.
pub fn wait(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// SIGXCPU, or the SIGKILL that follows it.
fn ended_by_limit(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    matches!(status.signal(), Some(24 | 9))
}

/// The places of a compiler's message, if it is an error.
fn error(message: &Value, room: &str) -> Option<Vec<Error>> {
    let message = message.get("message").filter(|message| message["level"] == "error")?;
    let text = message["rendered"].as_str().unwrap_or_default().to_owned();
    let spans = message["spans"].as_array()?;
    let mut places = Vec::new();
    for span in spans.iter().filter(|span| span["is_primary"] == true) {
        // In a macro, the outermost call is what lies in the function.
        let mut span = span;
        loop {
            let file = span["file_name"].as_str().unwrap_or_default();
            let line = span["line_start"].as_u64().unwrap_or(0) as usize;
            if file.starts_with(room) {
                places.push(Error { file: file.to_owned(), line, text: text.clone() });
            }
            match span["expansion"]["span"].as_object() {
                Some(_) => span = &span["expansion"]["span"],
                None => break,
            }
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::failed;

    #[test]
    fn a_test_program_says_which_test_failed() {
        let text = "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest d ... FAILED\n";
        assert_eq!(failed(text).as_deref(), Some("a::c"));
        assert_eq!(failed("test a - should panic ... FAILED").as_deref(), Some("a"));
        assert_eq!(failed("test a ... ok\ntest result: FAILED. 0 passed"), None);
    }
}
