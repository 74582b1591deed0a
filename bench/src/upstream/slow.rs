//! An upstream that takes its time: 4,000 bytes with Content-Length, the second half of them some
//! time after the first.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::origin::Origin;
use crate::machine::Cores;

/// Between the halves. The kernel adds about 60 microseconds of its own.
pub const PAUSE: Duration = Duration::from_micros(200);

/// Longest request head that is read, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// # Errors
/// When nothing can listen on `address`.
pub fn start(address: SocketAddr, cores: &Cores) -> Result<Origin> {
    Origin::start(address, cores, |socket| {
        // A thread each: only they can sleep for so short a time. A connection that fails is the
        // gateway's to report.
        std::thread::spawn(move || serve(socket));
    })
}

fn serve(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let half = "x".repeat(2_000);
    let first = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4000\r\n\r\n{half}");
    let mut bytes = [0; 4096];
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let count = socket.read(&mut bytes)?;
            ensure!(count > 0 && head.len() < LONGEST_HEAD, "no request");
            head.extend_from_slice(&bytes[..count]);
        }
        socket.write_all(first.as_bytes())?;
        std::thread::sleep(PAUSE);
        socket.write_all(half.as_bytes())?;
    }
}
