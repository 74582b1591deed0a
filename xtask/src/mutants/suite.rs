//! The tests of one room: built once, run for each break.

use super::list::Mutant;
use super::report::Outcome;
use super::switch::{Error, VARIABLE};
use super::tree::Tree;
use crate::shell::{cargo, show};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Address space of a test, so that a loop that fills memory ends.
const MEMORY_KB: usize = 16 << 20;
/// A function that is there dozens of times has a large frame without optimisation.
const STACK: &str = "67108864";

pub struct Suite {
    room: PathBuf,
    programs: Vec<Program>,
}

struct Program {
    path: PathBuf,
    /// The tests within the room's own files.
    within: bool,
    /// The names of the files that it takes in as modules of its own. It tests these and nothing else.
    takes_in: Vec<String>,
    /// Processor time that it takes on the code as it is.
    time: Duration,
}

impl Suite {
    /// Builds a room's tests, or says where the compiler found mistakes.
    pub fn build(tree: &Tree, room: &str) -> Result<Result<Suite, Vec<Error>>> {
        // Without tests first: half the work where it fails.
        if let Err(errors) = compile(tree, room, &["build", "--lib"])? {
            return Ok(Err(errors));
        }
        let messages = match compile(tree, room, &["test", "--no-run", "--lib", "--tests"])? {
            Ok(messages) => messages,
            Err(errors) => return Ok(Err(errors)),
        };
        let program = |message: &Value| {
            let tests = message["profile"]["test"].as_bool() == Some(true);
            let path = message["executable"].as_str().filter(|_| tests)?;
            let within =
                message["target"]["kind"].as_array().is_some_and(|kinds| kinds.contains(&"lib".into()));
            let source = message["target"]["src_path"].as_str().unwrap_or_default();
            let takes_in = if within { Vec::new() } else { taken_in(source) };
            Some(Program { path: path.into(), within, takes_in, time: Duration::ZERO })
        };
        let programs: Vec<_> = messages.iter().filter_map(program).collect();
        if programs.is_empty() {
            bail!("{room} has no tests");
        }
        Ok(Ok(Suite { room: tree.root().join(room), programs }))
    }

    /// Runs the tests on the code as it is, which they must pass; the quick ones go first from then on.
    pub fn measured(mut self) -> Result<Suite> {
        for program in &mut self.programs {
            let output =
                program_command("\"$0\" --quiet >&2; code=$?; times; exit $code", program, &self.room, 0)
                    .stdout(Stdio::piped())
                    .output()?;
            if !output.status.success() {
                bail!("{} fails without any break ({})", program.path.display(), output.status);
            }
            program.time = processor_time(&String::from_utf8_lossy(&output.stdout))
                .with_context(|| format!("cannot tell the time of {}", program.path.display()))?;
        }
        self.programs.sort_by_key(|program| program.time);
        let sum: Duration = self.programs.iter().map(|program| program.time).sum();
        println!("  {} test programs, {:.1} s without a break", self.programs.len(), sum.as_secs_f64());
        Ok(self)
    }

    /// For another build of the same tests.
    pub fn with_times_of(mut self, other: &Suite) -> Suite {
        let key = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.rsplit_once('-').map_or(name.clone(), |(name, _)| name.to_owned())
        };
        for program in &mut self.programs {
            let same = other.programs.iter().find(|old| key(&old.path) == key(&program.path));
            program.time = same.map_or(Duration::from_secs(60), |old| old.time);
        }
        self.programs.sort_by_key(|program| program.time);
        self
    }

    /// Runs the tests until one fails, those of the module that is broken first.
    pub fn outcome(&self, number: usize, mutant: &Mutant) -> Result<Outcome> {
        let module = format!("{}::", mutant.module());
        let tests = |program: &&Program| {
            let files = &program.takes_in;
            files.is_empty() || files.iter().any(|file| mutant.file.ends_with(file))
        };
        let (within, others): (Vec<_>, Vec<_>) =
            self.programs.iter().filter(tests).partition(|program| program.within);
        let own = within.iter().map(|program| (*program, vec![module.as_str()]));
        let rest = within.iter().map(|program| (*program, vec!["--skip", module.as_str()]));
        for (program, filter) in own.chain(others.iter().map(|program| (*program, vec![]))).chain(rest) {
            match self.run(program, &filter, number)? {
                Outcome::Missed => {}
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Missed)
    }

    fn run(&self, program: &Program, filter: &[&str], number: usize) -> Result<Outcome> {
        // By processor time a loop is told from a busy machine; what only waits is ended by the clock.
        let seconds = program.time.as_secs() * 3 + 2;
        let script =
            format!("ulimit -c 0; ulimit -t {seconds}; ulimit -v {MEMORY_KB}; exec \"$0\" --quiet \"$@\"");
        let mut command = program_command(&script, program, &self.room, number);
        if program.within {
            // An end at the first failure is not stable yet in the test harness.
            command.env("RUSTC_BOOTSTRAP", "1").args(["-Z", "unstable-options", "--fail-fast"]);
        }
        let child = command.args(filter).spawn()?;
        Ok(match wait(child, program.time * 10 + Duration::from_secs(20))? {
            Some(status) if status.success() => Outcome::Missed,
            Some(status) if !ended_by_limit(status) => Outcome::Caught,
            _ => Outcome::Timeout,
        })
    }
}

/// The files of a room that a test's source has as modules: `#[path = "../src/a/b.rs"]`.
fn taken_in(source: &str) -> Vec<String> {
    let text = std::fs::read_to_string(source).unwrap_or_default();
    let files = text.split("#[path = \"../src/").skip(1).filter_map(|rest| rest.split('"').next());
    files.map(|file| format!("/src/{file}")).collect()
}

/// What cargo says while it builds, or the mistakes.
fn compile(tree: &Tree, room: &str, what: &[&str]) -> Result<Result<Vec<Value>, Vec<Error>>> {
    let mut command = cargo();
    command
        .args(what)
        .args(["--message-format=json", "--package", room])
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
fn program_command(script: &str, program: &Program, room: &Path, number: usize) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(&program.path)
        .current_dir(room)
        .env("CARGO_MANIFEST_DIR", room)
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

/// Of what a shell's `times` prints: the second line is its children's, `0m0.97s 0m0.05s`.
fn processor_time(times: &str) -> Option<Duration> {
    let parts = times.lines().nth(1)?.split_whitespace().map(|part| {
        let (minutes, seconds) = part.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    });
    parts.sum::<Option<f64>>().map(Duration::from_secs_f64)
}

/// Waits so long at most, then ends the program.
fn wait(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
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
    use super::processor_time;
    use std::time::Duration;

    #[test]
    fn the_time_of_a_program_is_what_it_kept_a_processor_busy() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(processor_time("0m0.00s 0m0.00s\n1m0.50s 0m0.25s\n"), Some(seconds(60.75)));
        assert_eq!(processor_time("0m0.000000s 0m0.000000s\n0m0.930000s 0m0.070000s\n"), Some(seconds(1.0)));
        assert_eq!(processor_time("0m0.00s 0m0.00s\n"), None);
    }
}
