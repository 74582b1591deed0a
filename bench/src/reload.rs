//! A change as nginx takes it: the whole configuration is written anew and read again.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::counters;
use crate::load::Target;
use crate::probe::Client;
use crate::process::Process;
use crate::scale::{Sample, Subject, milliseconds};
use crate::stats::Spread;

/// Reloads that are measured.
const RELOADS: u64 = 3;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Adds routes one after the other. There is no answer to wait for: it is live when a new connection
/// sees it.
///
/// # Errors
/// When a change does not become live.
pub fn changes(process: &mut Process, subject: &Subject, sample: &mut Sample) -> Result<()> {
    let file = subject.place.folder.join("nginx.conf");
    let address = ([127, 0, 0, 1], subject.place.port).into();
    let before = counters::with_children_ms(&process.pids());
    let mut live = Vec::new();
    for number in 0..RELOADS {
        let begun = Instant::now();
        add_route(&file, number)?;
        process.hang_up();
        while !is_live(address, number)? {
            process.must_run()?;
            if begun.elapsed() > PATIENCE {
                bail!("a new route is not live after {PATIENCE:?}");
            }
        }
        live.push(milliseconds(begun.elapsed()));
        // The old workers end.
        while process.pids().len() > 1 + subject.setup.workers && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let used = counters::with_children_ms(&process.pids()) - before;
    sample.live_ms = Spread::of(live);
    sample.cpu_ms_per_change = Some(used / RELOADS as f64);
    Ok(())
}

/// Whether a new connection sees route `number`.
///
/// # Errors
/// When it is answered neither as one that is there nor as one that is not.
pub fn is_live(address: SocketAddr, number: u64) -> Result<bool> {
    let request = format!("GET /hello/changed-{number} HTTP/1.1\r\nHost: bench\r\n\r\n");
    let mut client = Client::connect(&Target::plain(address, 0))?;
    // Its workers answer nobody while they take a large configuration in.
    client.be_patient(PATIENCE)?;
    match client.ask(request.as_bytes())?.status {
        200 => Ok(true),
        404 => Ok(false),
        status => bail!("a new route was answered {status}"),
    }
}

/// Writes the configuration with one more route.
///
/// # Errors
/// When the file cannot be read or written, or is not as expected.
pub fn add_route(file: &std::path::Path, number: u64) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let mark = "        # Changes.\n";
    let (before, after) = text.split_once(mark).context("no place for changes in nginx.conf")?;
    let route = format!("        location = /hello/changed-{number} {{ proxy_pass http://hello; }}\n");
    // A reader never finds half a file.
    let fresh = file.with_extension("new");
    fs::write(&fresh, [before, mark, &route, after].concat())?;
    Ok(fs::rename(fresh, file)?)
}
