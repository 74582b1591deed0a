//! ab (Apache's HTTP bench): HTTP/1.0, a connection per request.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Load, Target};
use crate::machine::Cores;

pub fn run(connections: usize, requests: u64, target: &Target, cores: &Cores, folder: &Path) -> Result<Load> {
    let table = folder.join("ab.csv");
    let mut command = Command::new("taskset");
    command
        .args(["-c", &cores.list(), "ab", "-q", "-n", &requests.to_string(), "-c", &connections.to_string()])
        .arg("-e")
        .arg(&table);
    if let Some(key) = target.key {
        command.args(["-H", &format!("apikey: {key}")]);
    }
    let output = command.arg(target.url()).output().context("cannot start ab (Debian: apache2-utils)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("ab failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let percentiles = std::fs::read_to_string(&table).unwrap_or_default();
    read(&text, &percentiles, target)
}

/// Reads ab's report and its table of percentiles (`50,1.234` in milliseconds).
fn read(text: &str, table: &str, target: &Target) -> Result<Load> {
    let field = |name: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':')?.1.split_ascii_whitespace().next()?.parse().ok()
    };
    let (Some(requests), Some(seconds)) = (field("Complete requests"), field("Time taken for tests")) else {
        bail!("ab printed no result: {text}");
    };
    let length = field("Document Length").unwrap_or(0.0);
    let wrong_length = if length == target.body as f64 { 0.0 } else { requests };
    let errors =
        field("Failed requests").unwrap_or(0.0) + field("Non-2xx responses").unwrap_or(0.0) + wrong_length;
    let percentile = |wanted: &str| -> Option<f64> {
        let (_, milliseconds) =
            table.lines().filter_map(|line| line.split_once(',')).find(|(percent, _)| *percent == wanted)?;
        Some(milliseconds.trim().parse::<f64>().ok()? * 1e3)
    };
    Ok(Load {
        requests: requests as u64,
        seconds,
        errors: errors as u64,
        remark: (wrong_length > 0.0).then(|| format!("bodies of {length} bytes instead of {}", target.body)),
        mean_us: field("Time per request").map(|milliseconds| milliseconds * 1e3),
        p50_us: percentile("50"),
        p90_us: percentile("90"),
        p99_us: percentile("99"),
        // Its table goes in steps of one percent.
        p999_us: None,
        max_us: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Document Path:          /hello\nDocument Length:        4000 bytes\n\n\
        Concurrency Level:      200\nTime taken for tests:   5.021 seconds\nComplete requests:      50000\n\
        Failed requests:        0\nTime per request:       20.084 [ms] (mean)\n";

    #[test]
    fn reads_a_report() {
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 4000);
        let load = read(REPORT, "Percentage served,Time in ms\n50,19.5\n99,40.25\n", &target).unwrap();
        assert_eq!((load.requests, load.errors, load.p99_us), (50_000, 0, Some(40_250.0)));
        assert_eq!(load.per_second().round(), 9958.0);
    }

    #[test]
    fn answers_of_another_length_are_errors() {
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 12);
        assert_eq!(read(REPORT, "", &target).unwrap().errors, 50_000);
    }
}
