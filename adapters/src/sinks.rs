//! Where log entries go: a file for each kind of sink.
//!
//! A sink is a [`Kind`], which the gateway lists in `wiring.rs` and finds by the name in a plugin's
//! [`Destination`]. Batching and retries are before it, in `gateway::sinks`.

mod api;
pub mod elasticsearch;
pub mod file;
mod folders;
pub mod google;
pub mod http;
pub mod kafka;
pub mod loki;
pub mod otlp;
mod place;
pub mod splunk;
pub mod tcp;
pub mod udp;

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use sdk::sink::{Deliver, Destination, Folders, Taken};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::Trust;

pub use place::LogDestination;

/// A kind of sink.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// As in [`Destination::sink`].
    pub name: &'static str,
    /// Its deliveries block and are complete when first polled, so each sink has a thread.
    pub blocks: bool,
    pub make: Make,
}

/// Makes the sink of a destination; the error is the reason that it cannot be made.
pub type Make = fn(&Destination, &Context) -> Result<Box<dyn Deliver>, String>;

/// The parts of the gateway that sinks use.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The servers that are trusted. Until it is set, none is reached over TLS.
    pub trust: Arc<OnceLock<Trust>>,
    /// The folders to which plugins may write.
    pub folders: Arc<Folders>,
}

/// How the entries of a batch become bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// One after the other.
    Plain,
    /// An entry per line, without a final line end.
    Lines,
    /// Entries are JSON; a batch is an array.
    Array,
    /// Entries with a space between two.
    Spaces,
    /// Messages of RFC 5424, each with a line end.
    Syslog,
}

impl Format {
    /// Whether entries are JSON, which a cut would spoil.
    fn is_json(self) -> bool {
        !matches!(self, Format::Syslog)
    }

    fn text(self, records: &[Taken]) -> Vec<u8> {
        let mut text = Vec::with_capacity(records.iter().map(|record| record.size() + 64).sum());
        let (before, between, after): (&[u8], &[u8], &[u8]) = match self {
            Format::Array => (b"[", b",", b"]"),
            Format::Lines => (b"", b"\n", b""),
            Format::Spaces => (b"", b" ", b""),
            Format::Plain | Format::Syslog => (b"", b"", b""),
        };
        text.extend_from_slice(before);
        for (at, record) in records.iter().enumerate() {
            if at > 0 {
                text.extend_from_slice(between);
            }
            match self {
                Format::Syslog => {
                    syslog(record.field("time"), record.field("host"), record.bytes(), &mut text);
                }
                _ => text.extend_from_slice(record.bytes()),
            }
        }
        text.extend_from_slice(after);
        text
    }
}

/// A message of RFC 5424 section 6: of facility 5 (syslogd) and severity 6 (informational).
fn syslog(time: Option<&[u8]>, host: Option<&[u8]>, entry: &[u8], out: &mut Vec<u8>) {
    let present = |value: Option<&[u8]>| value.filter(|value| !value.is_empty()).unwrap_or(b"-").to_vec();
    out.extend_from_slice(b"<46>1 ");
    out.extend_from_slice(&present(time));
    out.push(b' ');
    // The name ends at a space, and so must not hold one.
    out.extend(present(host).into_iter().map(|byte| if byte.is_ascii_graphic() { byte } else { b'?' }));
    // Writing to memory does not fail.
    let _ = write!(out, " apisix {} - - ", std::process::id());
    out.extend_from_slice(entry);
    out.push(b'\n');
}

/// TLS with a server.
#[derive(Debug, Deserialize)]
struct Tls {
    /// The server name in the handshake; the host if absent.
    #[serde(default)]
    name: Option<String>,
    /// Whether the certificate must be valid for that name.
    verify: bool,
}

/// A connection, over TLS or not.
trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection for T {}

type Stream = Box<dyn Connection>;

/// A server that connections are opened to.
struct Server {
    host: String,
    port: u16,
    tls: Option<Tls>,
    timeout: Duration,
    trust: Arc<OnceLock<Trust>>,
    /// HTTP/2 is offered in the TLS handshake.
    http2: bool,
}

impl Server {
    fn new(
        to: &Destination,
        tls: Option<Tls>,
        timeout: Duration,
        context: &Context,
    ) -> Result<Server, String> {
        let (host, port) = server(to)?;
        Ok(Server::of(host, port, tls, timeout, context))
    }

    fn of(host: String, port: u16, tls: Option<Tls>, timeout: Duration, context: &Context) -> Server {
        Server { host, port, tls, timeout, trust: context.trust.clone(), http2: false }
    }

    fn with_http2(self) -> Server {
        Server { http2: true, ..self }
    }

    /// Connects to the first address that takes it.
    async fn connect(&self, addresses: &[SocketAddr]) -> Result<Stream, String> {
        let mut last = UNRESOLVED.to_owned();
        for &address in addresses {
            let connected = within(self.timeout, TcpStream::connect(address)).await;
            let secured = match connected {
                Ok(stream) => within(self.timeout, self.secure(stream)).await,
                Err(error) => Err(error),
            };
            match secured {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn secure(&self, stream: TcpStream) -> Result<Stream, String> {
        // Whether small writes wait does not matter: a batch is one write.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let trust = self.trust.get().ok_or("it is not known yet which servers are trusted")?;
        let name = tls.name.as_deref().unwrap_or(&self.host);
        Ok(Box::new(trust.secure(stream, name, tls.verify, self.http2).await?))
    }
}

/// Whether the server has neither closed the connection nor sent bytes, which no request would read.
fn is_open(stream: &mut Stream) -> bool {
    let mut byte = [0; 1];
    let mut task = std::task::Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut task, &mut ReadBuf::new(&mut byte)).is_pending()
}

fn server(to: &Destination) -> Result<(String, u16), String> {
    to.servers.first().cloned().ok_or_else(|| "it has no server".to_owned())
}

fn settings<'de, T: Deserialize<'de>>(to: &'de Destination) -> Result<T, String> {
    T::deserialize(&to.settings).map_err(|error| error.to_string())
}

const UNRESOLVED: &str = "the host name has no address";

/// APISIX's word for it.
const TIMEOUT: &str = "timeout";

async fn within<T, E: std::fmt::Display>(
    timeout: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(timeout, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(TIMEOUT.to_owned()),
    }
}

fn unresolved() -> io::Error {
    io::Error::other(UNRESOLVED)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use sdk::sink::{Batching, Next, Record, Sinks, Spec};
    use sdk::testing::Probe;

    use super::*;

    /// The records as a sink receives them.
    pub(super) fn taken(records: Vec<Record>) -> Vec<Taken> {
        let (start, started) = channel();
        let sinks = Sinks::new(1 << 20, move |intake| start.send(intake).unwrap());
        let spec = Spec {
            plugin: "test",
            owner: None,
            target: Destination::file("/a"),
            batching: Batching::at_once("test"),
            max_entries: 100,
            max_bytes: 1 << 20,
        };
        let sink = sinks.open(spec, Arc::default());
        let mut probe = Probe::default();
        records.into_iter().for_each(|record| sink.push(&probe.exchange(), record));
        let intake = started.try_recv().unwrap();
        let next = || match intake.take()? {
            Next::Entries(taken) => Some(taken),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn entries_are_joined() {
        let records = taken([&b"{}"[..], b"1", b"x"].map(|entry| entry.to_vec().into()).into());
        for (format, all, one) in [
            (Format::Array, "[{},1,x]", "[{}]"),
            (Format::Lines, "{}\n1\nx", "{}"),
            (Format::Plain, "{}1x", "{}"),
            (Format::Spaces, "{} 1 x", "{}"),
        ] {
            assert_eq!(format.text(&records), all.as_bytes());
            assert_eq!(format.text(&records[..1]), one.as_bytes());
        }
    }

    #[test]
    fn a_syslog_message_is_that_of_rfc_5424() {
        let record = |host: &str| Record {
            fields: vec![("time", b"2023-11-14T22:13:20.000Z".to_vec()), ("host", host.into())],
            bytes: b"{}".to_vec(),
        };
        let text = Format::Syslog.text(&taken(vec![record("h.example"), record(""), record("a b\n")]));
        let pid = std::process::id();
        let line = |host| format!("<46>1 2023-11-14T22:13:20.000Z {host} apisix {pid} - - {{}}\n");
        let expected: String = ["h.example", "-", "a?b?"].map(line).concat();
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn settings_that_do_not_fit_make_no_sink() {
        let context = Context::default();
        let bare = |sink| Destination { sink, servers: Vec::new(), settings: serde_json::Value::Null };
        for kind in [
            file::KIND,
            http::KIND,
            google::KIND,
            loki::KIND,
            kafka::KIND,
            otlp::KIND,
            elasticsearch::KIND,
            splunk::KIND,
            tcp::KIND,
            udp::KIND,
        ] {
            assert!((kind.make)(&bare(kind.name), &context).is_err(), "{}", kind.name);
        }
    }
}
