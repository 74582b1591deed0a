//! wrk, with a script that requests many paths and prints exact numbers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Load, Target};
use crate::machine::Cores;

const SCRIPT: &str = include_str!("../../load/wrk.lua");

/// The line the script prints at the end.
#[derive(Deserialize)]
struct Summary {
    requests: u64,
    seconds: f64,
    bytes: u64,
    /// Responses with a status above 399.
    status: u64,
    /// Refused connections, failed reads and writes, and timeouts.
    socket: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

pub fn run(
    threads: usize,
    connections: usize,
    target: &Target,
    duration: Duration,
    cores: &Cores,
    folder: &Path,
) -> Result<Load> {
    let script = folder.join("wrk.lua");
    std::fs::write(&script, SCRIPT)?;
    let seconds = duration.as_secs_f64().round().max(1.0) as u64;
    let output = Command::new("taskset")
        .args(["-c", &cores.list(), "wrk"])
        .args([
            "-t",
            &threads.to_string(),
            "-c",
            &connections.to_string(),
            "-d",
            &format!("{seconds}s"),
            "--timeout",
            "10s",
        ])
        .arg("-s")
        .arg(&script)
        .arg(target.url())
        .args(["--", &target.paths.to_string(), target.key.unwrap_or("")])
        .output()
        .context("cannot start wrk (Debian: wrk)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(line) = text.lines().find_map(|line| line.strip_prefix("BENCH ")) else {
        bail!("wrk printed no summary: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    let summary: Summary = serde_json::from_str(line).context("wrk's summary")?;
    Ok(Load {
        requests: summary.requests,
        seconds: summary.seconds,
        errors: summary.status + summary.socket + wrong_length(&summary, target),
        remark: (wrong_length(&summary, target) > 0)
            .then(|| format!("{} bytes in {} answers", summary.bytes, summary.requests)),
        mean_us: Some(summary.mean),
        p50_us: Some(summary.p50),
        p90_us: Some(summary.p90),
        p99_us: Some(summary.p99),
        p999_us: Some(summary.p999),
        max_us: Some(summary.max),
    })
}

/// wrk does not compare bodies, but counts bytes: an average response must be as long as a body
/// with a plausible head. Otherwise returns all requests as wrong.
fn wrong_length(summary: &Summary, target: &Target) -> u64 {
    if summary.requests == 0 {
        return 1;
    }
    let average = summary.bytes as f64 / summary.requests as f64;
    let least = target.body as f64 + 20.0;
    // The counter also includes responses that were incomplete at the end.
    let most = target.body as f64 * 1.05 + 1_500.0;
    if (least..most).contains(&average) { 0 } else { summary.requests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_answers_are_wrong_answers() {
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 4000);
        let mut summary: Summary = serde_json::from_str(
            r#"{"requests":10,"seconds":1.0,"bytes":41600,"status":0,"socket":0,
                "mean":1,"p50":1,"p90":1,"p99":1,"p999":1,"max":1}"#,
        )
        .unwrap();
        assert_eq!(wrong_length(&summary, &target), 0);
        summary.bytes = 3_000;
        assert_eq!(wrong_length(&summary, &target), 10);
    }
}
