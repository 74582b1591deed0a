//! Memory without load: of a gateway at rest, and of each idle keep-alive connection.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::counters::Memory;
use crate::load::Target;
use crate::probe::Session;
use crate::process::Process;

/// Number of open connections.
const CONNECTIONS: usize = 10_000;

/// Enough time for a gateway to release memory.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Resident memory at rest, after a single request, summed over its processes, in KiB (RSS).
    pub rest_rss_kib: u64,
    /// The same as PSS, in KiB.
    pub rest_pss_kib: u64,
    /// With all connections open and idle, as PSS, in KiB.
    pub held_pss_kib: u64,
    pub connections: usize,
    /// User memory per connection, in KiB, without the kernel's memory for the socket.
    pub kib_per_connection: f64,
}

/// Opens connections one by one, sends one request on each, and keeps them open. Returns the memory
/// at rest, before the first.
///
/// # Errors
/// A connection fails or a response is wrong.
pub fn measure(process: &mut Process, target: &Target) -> Result<(Memory, Sample)> {
    std::thread::sleep(SETTLE);
    let pids = process.pids();
    let rest = Memory::read(&pids);
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for index in 0..CONNECTIONS {
        let mut client = Session::connect(target).with_context(|| format!("connection {index}"))?;
        let response = client.ask(target, 0).with_context(|| format!("connection {index}"))?;
        anyhow::ensure!(response.status == 200 && response.body == target.body, "answered {response:?}");
        clients.push(client);
    }
    std::thread::sleep(SETTLE);
    let held = Memory::read(&pids);
    process.must_run()?;
    let sample = Sample {
        rest_rss_kib: rest.rss_kib,
        rest_pss_kib: rest.pss_kib,
        held_pss_kib: held.pss_kib,
        connections: CONNECTIONS,
        kib_per_connection: (held.pss_kib as f64 - rest.pss_kib as f64) / CONNECTIONS as f64,
    };
    // The connections must stay open until memory was read, and this is verified.
    let mut last = clients.pop().context("no connection")?;
    last.ask(target, 0).context("the last connection did not stay open")?;
    Ok((rest, sample))
}
