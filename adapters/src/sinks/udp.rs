//! A UDP server: each entry is a datagram.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sdk::chain::LocalFuture;
use sdk::sink::{Batch, Deliver, Destination, Outcome};
use serde::Deserialize;
use tokio::net::UdpSocket;

use super::{Context, Format, Kind, unresolved, within};

pub const KIND: Kind = Kind { name: "udp", blocks: false, make };

/// The longest datagram there can be.
const DATAGRAM: usize = 65_507;

#[derive(Debug, Deserialize)]
struct Settings {
    format: Format,
    /// Milliseconds.
    timeout: u64,
}

struct Udp {
    host: String,
    port: u16,
    settings: Settings,
}

fn make(to: &Destination, _: &Context) -> Result<Box<dyn Deliver>, String> {
    let (host, port) = super::server(to)?;
    Ok(Box::new(Udp { host, port, settings: super::settings(to)? }))
}

impl Deliver for Udp {
    fn deliver<'a>(&'a self, batch: Batch<'a>) -> LocalFuture<'a, Outcome> {
        Box::pin(async move {
            let Udp { host, port, settings } = self;
            let sent = within(Duration::from_millis(settings.timeout), datagrams(settings.format, batch));
            sent.await.map_or_else(
                |error| {
                    let place = format!("host[{host}] port[{port}]");
                    Outcome::retry(format!("failed to send data to UDP server: {place} err: {error}"))
                },
                |()| Outcome::Delivered,
            )
        })
    }
}

/// Each entry is a datagram (RFC 5426 section 3.1).
async fn datagrams(format: Format, batch: Batch<'_>) -> io::Result<()> {
    let address = *batch.addresses.first().ok_or_else(unresolved)?;
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    for record in batch.records {
        let text = format.text(std::slice::from_ref(record));
        // One that is too long is cut, as many a syslog server would do itself.
        socket.send(&text[..text.len().min(DATAGRAM)]).await?;
    }
    Ok(())
}
