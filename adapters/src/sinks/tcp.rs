//! A TCP server: each batch is written to a connection, over TLS if wanted.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sdk::chain::LocalFuture;
use sdk::sink::{Batch, Deliver, Destination, Outcome};
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use super::{Context, Format, Kind, Server, Stream, Tls, is_open, within};

pub const KIND: Kind = Kind { name: "tcp", blocks: false, make };

/// Batches of one sink that are under way at the same time.
const AT_ONCE: usize = 8;

#[derive(Debug, Deserialize)]
struct Settings {
    format: Format,
    tls: Option<Tls>,
    /// Milliseconds for connecting, and for writing.
    timeout: u64,
    /// The connection is kept for the next batch; otherwise each batch has its own.
    #[serde(default)]
    keep: bool,
}

struct Tcp {
    server: Server,
    format: Format,
    keep: bool,
    /// Entries stay in order, so there is one connection.
    kept: RefCell<Option<Stream>>,
}

fn make(to: &Destination, context: &Context) -> Result<Box<dyn Deliver>, String> {
    let Settings { format, tls, timeout, keep } = super::settings(to)?;
    let server = Server::new(to, tls, Duration::from_millis(timeout), context)?;
    Ok(Box::new(Tcp { server, format, keep, kept: RefCell::default() }))
}

impl Deliver for Tcp {
    fn at_once(&self) -> usize {
        if self.keep { 1 } else { AT_ONCE }
    }

    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            let text = self.format.text(batch.records);
            self.send(batch.addresses, &text).await.map_or_else(Outcome::retry, |()| Outcome::Delivered)
        })
    }
}

impl Tcp {
    async fn send(&self, addresses: &[SocketAddr], text: &[u8]) -> Result<(), String> {
        let Server { host, port, timeout, tls, .. } = &self.server;
        let mut idle = self.kept.take();
        if let Some(mut stream) = idle.take_if(is_open)
            && within(*timeout, write(&mut stream, text)).await.is_ok()
        {
            self.kept.replace(Some(stream));
            return Ok(());
        }
        let place = format!("host[{host}] port[{port}] err: ");
        let connected = self.server.connect(addresses).await;
        let mut stream =
            connected.map_err(|error| format!("failed to connect to TCP server: {place}{error}"))?;
        let sent = async {
            write(&mut stream, text).await?;
            if self.keep { Ok(()) } else { stream.shutdown().await }
        };
        within(*timeout, sent)
            .await
            .map_err(|error| format!("failed to send data to TCP server: {place}{error}"))?;
        if self.keep {
            self.kept.replace(Some(stream));
        } else if tls.is_some() {
            // Closing with unread session tickets would reset the connection, and lose the bytes that the server has
            // not read yet.
            let _ = within(*timeout, tokio::io::copy(&mut stream, &mut tokio::io::sink())).await;
        }
        Ok(())
    }
}

async fn write(stream: &mut Stream, text: &[u8]) -> io::Result<()> {
    stream.write_all(text).await?;
    stream.flush().await
}
