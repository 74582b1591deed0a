//! A dashboard that is open and a tap, during a load: the streams of the control API, read and thrown away.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The longest silence of a stream; both have an event each second.
const SILENCE: Duration = Duration::from_secs(10);

/// The open streams.
pub struct Watching {
    streams: Vec<Stream>,
}

struct Stream {
    connection: TcpStream,
    events: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl Watching {
    /// Opens the live view, and a tap with these conditions.
    ///
    /// # Errors
    /// The gateway refuses one of them.
    pub fn start(control_port: u16, conditions: &str) -> Result<Watching> {
        let paths = ["/v1/live".to_owned(), format!("/v1/tap?{conditions}")];
        let streams = paths
            .iter()
            .map(|path| Stream::open(control_port, path).with_context(|| format!("control API, {path}")));
        Ok(Watching { streams: streams.collect::<Result<_>>()? })
    }

    /// Closes the streams.
    ///
    /// # Errors
    /// One of them had no event: the load was not watched.
    pub fn finish(self) -> Result<()> {
        for Stream { connection, events, reader } in self.streams {
            let _ = connection.shutdown(Shutdown::Both);
            ensure!(reader.join().is_ok(), "a reader of events panicked");
            ensure!(events.load(Relaxed) > 0, "a stream of the control API had no event");
        }
        Ok(())
    }
}

impl Stream {
    fn open(port: u16, path: &str) -> Result<Stream> {
        let mut connection = TcpStream::connect(("127.0.0.1", port))?;
        connection.set_read_timeout(Some(SILENCE))?;
        write!(connection, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n")?;
        let mut lines = BufReader::new(connection.try_clone()?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        if line.split(' ').nth(1) != Some("200") {
            bail!("{}", line.trim_end());
        }
        let events = Arc::new(AtomicU64::new(0));
        let seen = events.clone();
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                seen.fetch_add(u64::from(line.starts_with(b"event: ")), Relaxed);
                line.clear();
            }
        });
        Ok(Stream { connection, events, reader })
    }
}
