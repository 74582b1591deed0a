//! Runs test binaries side by side and prints one line for each.

use crate::build::TestBinary;
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Runs all of them, at most one per core at a time. The output of a binary is shown if it fails.
pub fn run(binaries: &[TestBinary]) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(binary) = binaries.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(error) = one(binary) {
                        println!("FAILED {}: {error:#}", binary.name);
                        failed.lock().expect("no holder panics").push(binary.name.clone());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no holder panics");
    if !failed.is_empty() {
        bail!("{} of {} test binaries failed: {}", failed.len(), binaries.len(), failed.join(", "));
    }
    Ok(())
}

fn one(binary: &TestBinary) -> Result<()> {
    let start = Instant::now();
    let mut command = Command::new(&binary.path);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    let output = command.output().with_context(|| format!("cannot start {}", binary.path.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let seconds = start.elapsed().as_secs_f64();
    let summary = text.lines().rev().find(|line| line.starts_with("test result: "));
    println!("{}: {} ({seconds:.1} s in all)", binary.name, summary.unwrap_or("passed"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::run;
    use crate::build::TestBinary;

    fn binary(path: &str) -> TestBinary {
        TestBinary { name: format!("room{path}"), path: path.into(), folder: "/".into() }
    }

    #[test]
    fn a_binary_that_fails_is_named() {
        assert!(run(&[binary("/bin/true"), binary("/bin/true")]).is_ok());
        let error = run(&[binary("/bin/true"), binary("/bin/false")]).unwrap_err().to_string();
        assert_eq!(error, "1 of 2 test binaries failed: room/bin/false");
    }
}
