//! A Redis server for shared limits, without files.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::machine::Cores;
use crate::process::{Launch, Process};

/// The port of the server, of the thousand of a run.
pub fn port(port_base: u16) -> u16 {
    port_base + 950
}

/// Starts the server on `cores`.
///
/// # Errors
/// It does not start, or does not listen within ten seconds.
pub fn start(folder: &Path, port_base: u16, cores: &Cores) -> Result<Process> {
    std::fs::create_dir_all(folder)?;
    let port = port(port_base);
    let launch = Launch::new("/usr/bin/redis-server", folder)
        .arg("--bind")
        .arg("127.0.0.1")
        .arg("--port")
        .arg(port.to_string())
        .arg("--save")
        .arg("");
    let mut process = Process::start("Redis", &launch, cores)?;
    for _ in 0..200 {
        process.must_run()?;
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(process);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("Redis does not listen on port {port}; its log ends with:\n{}", process.log_tail());
}
