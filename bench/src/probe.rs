//! Single requests that check a gateway before and after it is measured.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::load::Target;
use crate::load::response::{Response, ResponseReader};
use crate::process::Process;

/// One keep-alive connection to a gateway.
pub struct Client {
    stream: TcpStream,
    reader: ResponseReader,
}

impl Client {
    pub fn connect(target: &Target) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&target.address, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { stream, reader: ResponseReader::default() })
    }

    /// Sends one request and reads its answer.
    pub fn ask(&mut self, request: &[u8]) -> Result<Response> {
        self.stream.write_all(request)?;
        let mut bytes = [0; 16 * 1024];
        loop {
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                bail!("the connection was closed before the answer's end");
            }
            if let Some(response) = self.reader.feed(&bytes[..count])? {
                return Ok(response);
            }
        }
    }
}

/// Sends `count` requests over one connection; all must be answered 200 with the right length.
pub fn verify(target: &Target, count: usize) -> Result<()> {
    let mut client = Client::connect(target)?;
    for index in 0..count {
        // Spread over the whole routing table.
        let path = index * (target.paths / count.min(target.paths)).max(1);
        let response = client.ask(&target.request(path)).with_context(|| target.path(path))?;
        if response.status != 200 || response.body != target.body {
            bail!(
                "{} was answered {} with {} bytes, expected 200 with {}",
                target.path(path),
                response.status,
                response.body,
                target.body
            );
        }
    }
    Ok(())
}

/// Waits until `process` answers right.
///
/// # Errors
/// When it ends, or has not answered right within `patience`; says what it answered and logged.
pub fn wait_ready(process: &mut Process, target: &Target, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        process.must_run()?;
        match verify(target, 1) {
            Ok(()) => return Ok(()),
            Err(problem) if Instant::now() > deadline => {
                return Err(problem).context(format!(
                    "not ready after {} s; its log ends with:\n{}",
                    patience.as_secs(),
                    process.log_tail()
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
