//! A UDP server: each entry is a datagram, or as many as fit into one are an array.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sdk::chain::LocalFuture;
use sdk::sink::{Batch, Deliver, Destination, Outcome, Taken};
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
            let place = format!("host[{host}] port[{port}]");
            match sent.await {
                Ok(0) => Outcome::Delivered,
                Ok(rejected) => Outcome::Partial {
                    again: Vec::new(),
                    rejected,
                    reason: format!("{rejected} entries are longer than a datagram to UDP server: {place}"),
                },
                Err(error) => {
                    Outcome::retry(format!("failed to send data to UDP server: {place} err: {error}"))
                }
            }
        })
    }
}

/// Sends the datagrams of a batch; a message of syslog is one (RFC 5426 section 3.1). Returns how many entries are too
/// long to be sent.
async fn datagrams(format: Format, batch: Batch<'_>) -> io::Result<usize> {
    let address = *batch.addresses.first().ok_or_else(unresolved)?;
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    let mut rejected = 0;
    for records in groups(format, batch.records) {
        let text = format.text(records);
        if text.len() > DATAGRAM && format.is_json() {
            rejected += records.len();
            continue;
        }
        // A message that is too long is cut, as many a syslog server would do itself.
        socket.send(&text[..text.len().min(DATAGRAM)]).await?;
    }
    Ok(rejected)
}

/// The records of each datagram.
fn groups(format: Format, mut records: &[Taken]) -> impl Iterator<Item = &[Taken]> {
    std::iter::from_fn(move || {
        let mut size = records.first()?.bytes().len() + 2;
        let fits = |record: &&Taken| {
            size += record.bytes().len() + 1;
            size <= DATAGRAM
        };
        let more =
            if matches!(format, Format::Array) { records[1..].iter().take_while(fits).count() } else { 0 };
        let (group, rest) = records.split_at(1 + more);
        records = rest;
        Some(group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_as_many_entries_as_a_datagram_holds() {
        let entry = |size: usize| vec![b'1'; size].into();
        let records = super::super::tests::taken(vec![
            entry(32_752),
            entry(32_752),
            entry(1),
            entry(DATAGRAM),
            entry(10),
            entry(10),
        ]);
        let sizes = |format| groups(format, &records).map(<[Taken]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(Format::Array), [2, 1, 1, 2]);
        assert_eq!(Format::Array.text(&records[..2]).len(), DATAGRAM);
        assert_eq!(sizes(Format::Syslog), [1; 6]);
    }
}
