//! The PROXY protocol header at the beginning of a connection: who may send one, how long it may take,
//! and what is made of it.
//!
//! Not a byte behind the header is taken from the socket, so that the protocol behind it (HTTP, a TLS
//! handshake, a stream) begins with its own first byte.

use std::future::Future;
use std::task::{Context, Poll, ready};

use sdk::Client;
use wire::proxy_protocol::{self, Header, MOST};

use crate::clock::Waiter;
use crate::rt;
use crate::worker::Worker;

/// Most of what is looked at in one turn: what nearly all headers fit into.
const LOOK: usize = 256;

/// Reads the header; returns the client that it names. `None` closes the connection: it is refused
/// without an answer, as the protocol of the other end is unknown.
pub(crate) async fn read(worker: &Worker, stream: &mut rt::Stream, client: Client) -> Option<Client> {
    match header(worker, stream, &client).await {
        Ok(header) => Some(match header.ends {
            Some(ends) => client.proxied(ends),
            None => client,
        }),
        Err(why) => {
            worker.shard.request_refused();
            worker.notices.refused_proxy_header(why);
            None
        }
    }
}

async fn header(worker: &Worker, stream: &mut rt::Stream, client: &Client) -> Result<Header, &'static str> {
    let settings = &worker.settings.proxy_protocol;
    if settings.trusted.as_ref().is_some_and(|trusted| !trusted(client.peer.ip().to_canonical())) {
        return Err("the peer is not in apisix.proxy_protocol.trusted_addresses");
    }
    let waiter = worker.clock.waiter();
    // Until there is a header, the connection may be closed to make room for others.
    waiter.rest();
    let mut reading = std::pin::pin!(gather(&waiter, stream));
    let deadline = worker.clock.after(settings.timeout);
    match waiter.until(deadline, |cx| reading.as_mut().poll(cx)).await {
        Ok(read) => read,
        Err(_) => Err("the PROXY protocol header did not arrive in time"),
    }
}

async fn gather(waiter: &Waiter, stream: &mut rt::Stream) -> Result<Header, &'static str> {
    let mut bytes = vec![0; LOOK];
    let mut have = 0;
    loop {
        if have == bytes.len() {
            // Longer than usual. Bytes that are no header were refused by then.
            bytes.resize(MOST, 0);
        }
        let seen = std::future::poll_fn(|cx| look(waiter, stream, &mut bytes[have..], cx)).await?;
        let header = proxy_protocol::parse(&bytes[..have + seen]).map_err(|refusal| refusal.as_str())?;
        // As long as it is not whole, all that was seen belongs to it.
        let own = header.map_or(seen, |header| header.len - have);
        take(stream, &mut bytes[have..have + own]).await?;
        have += own;
        if let Some(header) = header {
            return Ok(header);
        }
    }
}

fn look(
    waiter: &Waiter,
    stream: &rt::Stream,
    space: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<Result<usize, &'static str>> {
    if waiter.is_unwanted() {
        return Poll::Ready(Err("it was closed to make room for others"));
    }
    Poll::Ready(match ready!(stream.poll_peek(cx, space)) {
        Ok(0) => Err("the connection ended before its PROXY protocol header"),
        Ok(seen) => Ok(seen),
        Err(_) => Err("the connection broke before its PROXY protocol header"),
    })
}

/// Takes bytes that were seen already.
async fn take(stream: &mut rt::Stream, mut bytes: &mut [u8]) -> Result<(), &'static str> {
    let (mut from, _) = stream.split();
    while !bytes.is_empty() {
        match std::future::poll_fn(|cx| from.poll_read(cx, bytes)).await {
            Ok(0) | Err(_) => return Err("the connection broke in its PROXY protocol header"),
            Ok(taken) => bytes = &mut bytes[taken..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;
    use crate::testing::beside_worker;

    /// A header of version 2 for this client, with `more` bytes behind the addresses.
    fn version_2(source: SocketAddr, more: u16) -> Vec<u8> {
        let ends = proxy_protocol::Ends { source, destination: source };
        let mut bytes = Vec::new();
        proxy_protocol::write_v2(Some(&ends), &mut bytes);
        let length = u16::from_be_bytes([bytes[14], bytes[15]]) + more;
        bytes[14..16].copy_from_slice(&length.to_be_bytes());
        // One of no meaning: kind, length and value.
        bytes.extend_from_slice(&[0xea]);
        bytes.extend_from_slice(&(more - 3).to_be_bytes());
        bytes.resize(bytes.len() + usize::from(more) - 3, 7);
        bytes
    }

    #[test]
    fn a_header_is_taken_to_its_last_byte_and_what_follows_is_left() {
        let source: SocketAddr = "192.0.2.1:1234".parse().unwrap();
        let first = b"PROXY TCP4 192.0.2.1 127.0.0.1 1234 80\r\n".to_vec();
        for header in [
            first,
            version_2(source, 3),
            version_2(source, 228),
            version_2(source, 400),
            version_2(source, 3000),
        ] {
            beside_worker(crate::Settings::default(), async move |worker, _| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let listener = rt::Listener::new({
                    listener.set_nonblocking(true).unwrap();
                    listener
                });
                let (mut stream, _) = listener.unwrap().accept().await.unwrap();
                client.write_all(&header).unwrap();
                client.write_all(b"rest").unwrap();
                let waiter = worker.clock.waiter();
                let read = gather(&waiter, &mut stream).await.unwrap_or_else(|why| panic!("{why}"));
                assert_eq!((read.len, read.ends.map(|ends| ends.source)), (header.len(), Some(source)));
                let mut rest = [0; 8];
                let (mut from, _) = stream.split();
                let n = std::future::poll_fn(|cx| from.poll_read(cx, &mut rest)).await.unwrap();
                assert_eq!(&rest[..n], b"rest");
            });
        }
    }
}
