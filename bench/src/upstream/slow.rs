//! A slow upstream: 4,000 bytes with Content-Length, the second half some time after the first.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};

use super::origin::Origin;
use crate::machine::Cores;

/// Delay between the halves. The kernel adds about 60 microseconds.
pub const PAUSE: Duration = Duration::from_micros(200);

/// Maximum length of a request head, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// # Errors
/// The address is not available.
pub fn start(address: SocketAddr, cores: &Cores) -> Result<Origin> {
    Origin::start(address, cores, |socket| {
        // One thread per connection: only threads can sleep for such a short time. The gateway
        // reports failed connections.
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
