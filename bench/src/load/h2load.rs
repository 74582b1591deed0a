//! h2load of nghttp2: HTTP/2, many concurrent requests on each connection.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Call, Load, Target, grpc_message};
use crate::machine::Cores;

pub fn run(
    connections: usize,
    streams: usize,
    target: &Target,
    duration: Duration,
    cores: &Cores,
    folder: &Path,
) -> Result<Load> {
    let seconds = duration.as_secs_f64().round().max(1.0) as u64;
    let mut command = Command::new("taskset");
    command
        .args(["-c", &cores.list(), "h2load", "-t", "1", "-c", &connections.to_string()])
        .args(["-m", &streams.to_string(), "-D", &seconds.to_string()])
        // The name is for the certificate, and must not resolve to another address.
        .arg(format!("--connect-to={}", target.address));
    if target.call == Call::Grpc {
        let body = folder.join("grpc-message");
        std::fs::write(&body, grpc_message())?;
        command.arg("-d").arg(body).args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    }
    if let Some(key) = target.key {
        command.args(["-H", &format!("apikey: {key}")]);
    }
    let output =
        command.arg(target.url()).output().context("cannot start h2load (Debian: nghttp2-client)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("h2load failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    read(&text, target, streams * connections)
}

/// Parses h2load's report. h2load does not compare bodies, but counts their bytes: up to
/// `under_way` responses may be cut off at the end.
fn read(text: &str, target: &Target, under_way: usize) -> Result<Load> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let counts = |name: &str| -> Option<Vec<(u64, String)>> {
        line(name)?
            .split(',')
            .map(|part| {
                let (number, what) = part.trim().split_once(' ')?;
                Some((number.parse().ok()?, what.to_owned()))
            })
            .collect()
    };
    let count = |counts: &[(u64, String)], what: &str| {
        counts.iter().find(|(_, name)| name == what).map_or(0, |(number, _)| *number)
    };
    let (Some(requests), Some(statuses)) = (counts("requests: "), counts("status codes: ")) else {
        bail!("h2load printed no result: {text}");
    };
    let done = count(&requests, "done");
    let data: u64 = line("traffic: ")
        .and_then(|line| line.rsplit_once('(')?.1.split_once(')')?.0.parse().ok())
        .context("h2load's count of bytes")?;
    let seconds = line("finished in ")
        .and_then(|line| duration_us(line.split(',').next()?))
        .context("h2load's duration")?
        / 1e6;
    let whole = done * target.body..=(done + under_way as u64) * target.body;
    let wrong_length = if whole.contains(&data) { 0 } else { done };
    let errors = count(&requests, "failed")
        + count(&requests, "errored")
        + count(&requests, "timeout")
        + done.saturating_sub(count(&statuses, "2xx"))
        + wrong_length;
    // min, max, mean and two more; Debian's h2load prints no percentiles.
    let times: Vec<f64> = line("time for request:")
        .map(|line| line.split_ascii_whitespace().filter_map(duration_us).collect())
        .unwrap_or_default();
    Ok(Load {
        requests: done,
        seconds,
        errors,
        remark: (errors > 0).then(|| format!("{data} bytes in {done} answers; {text}")),
        mean_us: times.get(2).copied(),
        max_us: times.get(1).copied(),
        ..Load::default()
    })
}

/// `3.00s`, `1.5ms` or `86us` in microseconds.
fn duration_us(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "starting benchmark...\n\nfinished in 1.02s, 9.80 req/s, 40.10KB/s\n\
        requests: 10 total, 12 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 10 2xx, 0 3xx, 0 4xx, 0 5xx\n\
        traffic: 41.00KB (41984) total, 300B (300) headers (space savings 95.00%), 40.00KB (41000) data\n\
        \x20                    min         max         mean         sd        +/- sd\n\
        time for request:      109us      5.95ms      1.20ms       300us    70.00%\n";

    #[test]
    fn reads_a_report() {
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 4_000);
        let load = read(REPORT, &target, 2).unwrap();
        assert_eq!((load.requests, load.errors), (10, 0));
        assert_eq!((load.seconds, load.mean_us, load.max_us), (1.02, Some(1_200.0), Some(5_950.0)));
    }

    #[test]
    fn answers_of_another_length_or_status_are_errors() {
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 5_000);
        assert_eq!(read(REPORT, &target, 2).unwrap().errors, 10);
        let target = Target::plain(([127, 0, 0, 1], 1).into(), 4_000);
        let text = REPORT.replace("10 2xx, 0 3xx", "7 2xx, 3 3xx");
        assert_eq!(read(&text, &target, 2).unwrap().errors, 3);
    }
}
