//! Clients' connections: each has a task of its own, and is counted for as long as that runs.

use std::net::SocketAddr;
use std::rc::Rc;

use sdk::Client;

use super::Worker;
use crate::listener::Front;
use crate::settings::RealIpSource;
use crate::{down, proxy_header, rt, stream};

impl Worker {
    #[cfg(feature = "testing")]
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// It holds as many connections as it may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.connections.get() >= self.settings.limits.connections
    }

    /// Serves a connection, as its listener says.
    pub(crate) fn begin(
        self: &Rc<Worker>,
        stream: rt::Stream,
        peer: SocketAddr,
        listener: SocketAddr,
        front: Front,
        proxy_protocol: bool,
    ) {
        // The listener's own address says enough unless it is a wildcard.
        let local =
            if listener.ip().is_unspecified() { stream.local_addr().unwrap_or(listener) } else { listener };
        let client = Client::new(peer, local, front.is_tls());
        if proxy_protocol {
            return self.hold(move |worker| async move {
                let mut stream = stream;
                let Some(mut client) = proxy_header::read(&worker, &mut stream, client).await else { return };
                worker.believe(&mut client, front);
                match front {
                    Front::Http { h2, tls: false } => {
                        down::h1::serve(worker, rt::Io::Plain(stream), client, h2).await;
                    }
                    Front::Http { h2, tls: true } => {
                        down::tls::serve(worker, rt::Io::Plain(stream), client, h2).await;
                    }
                    Front::Stream { port, tls: false } => {
                        stream::tcp::serve(worker, rt::Io::Plain(stream), client, listener, port).await;
                    }
                    Front::Stream { port, tls: true } => {
                        down::tls::serve_stream(worker, rt::Io::Plain(stream), client, listener, port).await;
                    }
                }
            });
        }
        match front {
            Front::Http { h2, tls: false } => {
                self.hold(move |worker| down::h1::serve(worker, rt::Io::Plain(stream), client, h2));
            }
            Front::Http { h2, tls: true } => {
                self.hold(move |worker| down::tls::serve(worker, rt::Io::Plain(stream), client, h2));
            }
            Front::Stream { port, tls: false } => {
                self.hold(move |worker| {
                    stream::tcp::serve(worker, rt::Io::Plain(stream), client, listener, port)
                });
            }
            Front::Stream { port, tls: true } => {
                self.hold(move |worker| {
                    down::tls::serve_stream(worker, rt::Io::Plain(stream), client, listener, port)
                });
            }
        }
    }

    /// Takes the client's address from the PROXY protocol, where `real_ip_header` says so and the peer is
    /// trusted.
    fn believe(&self, client: &mut Client, front: Front) {
        if let Front::Stream { .. } = front {
            return self.believe_stream(client);
        }
        let real_ip = self.settings.real_ip.as_ref();
        if let (Some(real_ip), Some(ends)) = (real_ip, client.ends())
            && matches!(real_ip.source, RealIpSource::ProxyProtocol)
            && (real_ip.from)(client.peer.ip().to_canonical())
        {
            *client = client.with_address(ends.source.ip(), Some(ends.source.port()));
        }
    }

    /// Refuses a connection that has waited too long. With TLS there is nothing to say before a handshake,
    /// which is what there is no time for.
    pub(crate) fn turn_away(self: &Rc<Worker>, stream: rt::Stream, client: Client, front: Front) {
        if let Front::Stream { .. } = front {
            return stream.abort();
        }
        if client.tls {
            self.shard.handshake(false, false);
            return;
        }
        self.hold(move |worker| down::h1::turn_away(worker, rt::Io::Plain(stream), client));
    }

    /// Gives a connection its task, and counts it for as long as that runs.
    pub(crate) fn hold<F: Future<Output = ()> + 'static>(
        self: &Rc<Worker>,
        serve: impl FnOnce(Rc<Worker>) -> F + 'static,
    ) {
        self.connections.set(self.connections.get() + 1);
        self.shard.connection_opened();
        let worker = self.clone();
        let guard = Connected(self.clone());
        rt::spawn(async move {
            let _guard = guard;
            serve(worker).await;
        });
    }
}

/// Counts a connection until its task ends, however it ends.
struct Connected(Rc<Worker>);

impl Drop for Connected {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shard.panicked();
        }
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.shard.connection_closed();
    }
}
