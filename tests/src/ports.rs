//! Free ports for gateways: outside the range the kernel hands out by itself.

use anyhow::{Result, bail};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 21_000;
const COUNT: u16 = 1_000;

/// Where the next search starts; processes start at different places.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback port without a listener, given out once per round. Not tried by listening: a process that is being started
/// meanwhile would hold that listener for a moment, and the port would take connections.
pub fn free() -> Result<u16> {
    for _ in 0..COUNT {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (std::process::id() as u16 % 37).wrapping_mul(27).wrapping_add(turn) % COUNT;
        let port = FIRST + offset;
        if TcpStream::connect(("127.0.0.1", port)).is_err() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}
