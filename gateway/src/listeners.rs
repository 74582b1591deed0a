//! The listeners for traffic that the boot file asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use anyhow::anyhow;
use model::boot::{Boot, Listen, Role};
use proxy::{Listener, StreamPort, Traffic, Versions, Workers};

use crate::upgrade::Inherited;

/// A listener, and what is known of it besides.
struct Wanted {
    listener: Listener,
    /// The IPv6 address of a port without an address, which may fail where there is no IPv6.
    optional: bool,
    /// The key of config.yaml that asks for it.
    setting: &'static str,
}

fn wanted(boot: &Boot) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    if boot.role == Role::ControlPlane {
        return wanted;
    }
    if boot.proxy_mode.serves_http() {
        wanted.extend(boot.listen.iter().map(|listen| Wanted {
            listener: of_http(listen.address, listen.http2),
            optional: listen.optional,
            setting: "apisix.node_listen",
        }));
        wanted.extend(boot.tls.listen.iter().map(|listen| Wanted {
            listener: of_https(listen),
            optional: listen.optional,
            setting: "apisix.ssl.listen",
        }));
        if let Some(port) = boot.proxy_protocol.https {
            for (ip, optional) in on_all(boot) {
                let listener = of_http(SocketAddr::new(ip, port), boot.http2);
                wanted.push(Wanted {
                    listener: Listener { tls: true, proxy_protocol: true, ..listener },
                    optional,
                    setting: "apisix.proxy_protocol.listen_https_port",
                });
            }
        }
        if let Some(port) = boot.proxy_protocol.http {
            for (ip, optional) in on_all(boot) {
                wanted.push(Wanted {
                    listener: Listener {
                        proxy_protocol: true,
                        ..of_http(SocketAddr::new(ip, port), boot.http2)
                    },
                    optional,
                    setting: "apisix.proxy_protocol.listen_http_port",
                });
            }
        }
    }
    for port in &boot.streams.tcp {
        let stream = StreamPort { proxy_protocol_to_upstream: port.proxy_protocol_to_upstream };
        let listener = Listener::stream(port.address, stream);
        wanted.push(Wanted {
            listener: Listener { proxy_protocol: port.proxy_protocol, tls: port.tls, ..listener },
            optional: false,
            setting: "apisix.stream_proxy.tcp",
        });
    }
    wanted
}

/// The addresses of a port that is written without one, and whether there may be none of the kind.
fn on_all(boot: &Boot) -> impl Iterator<Item = (IpAddr, bool)> {
    let v6 = boot.resolver.ipv6.then_some((IpAddr::from(Ipv6Addr::UNSPECIFIED), true));
    [(IpAddr::from(Ipv4Addr::UNSPECIFIED), false)].into_iter().chain(v6)
}

/// An address for requests.
fn of_http(address: SocketAddr, h2: bool) -> Listener {
    let traffic = Traffic::Http(Versions { h1: true, h2, h3: false });
    Listener { traffic, ..Listener::http(address) }
}

/// The same behind TLS.
fn of_https(listen: &Listen) -> Listener {
    let traffic = Traffic::Http(Versions { h1: true, h2: listen.http2, h3: listen.http3 });
    Listener { traffic, tls: true, ..Listener::http(listen.address) }
}

/// Opens every worker's sockets, and notes in the settings what they are for.
///
/// # Errors
/// An address that cannot be had, and what to do about it.
pub fn open(
    boot: &Boot,
    settings: &mut proxy::Settings,
    workers: usize,
    inherited: &mut Inherited,
) -> anyhow::Result<Vec<Vec<TcpListener>>> {
    let mut all: Vec<Vec<std::net::TcpListener>> = (0..workers).map(|_| Vec::new()).collect();
    for Wanted { listener, optional, setting } in wanted(boot) {
        let one = proxy::Settings { listen: vec![listener], ..settings.clone() };
        let kept = inherited.tcp(listener.address);
        let opened = match kept.is_empty() {
            true => {
                Workers::listen(&one, workers).map(|sockets| vec![sockets.into_iter().flatten().collect()])
            }
            false => spread(kept, workers, TcpListener::try_clone, || {
                let shared = proxy::Settings { reuse_port: true, ..one.clone() };
                Ok(Workers::listen(&shared, 1)?.into_iter().flatten().next())
            }),
        };
        match opened {
            Ok(rows) => {
                for row in rows {
                    settings.listen.push(listener);
                    for (worker, socket) in all.iter_mut().zip(row) {
                        worker.push(socket);
                    }
                }
            }
            // No IPv6 here. If another program has the port, that is to be known.
            Err((_, error)) if optional && error.kind() != io::ErrorKind::AddrInUse => {}
            Err((addr, error)) if setting == "apisix.ssl.listen" && boot.tls.is_default => {
                tracing::warn!(
                    "HTTPS is not served on {addr}: {error}; to serve it elsewhere, set {setting}; to serve none, \
                     apisix.ssl.enable: false"
                );
            }
            Err((addr, error)) => {
                let failed = cannot_listen(addr, "traffic", setting, &error);
                return Err(match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        anyhow!("{failed}; to take over from a running gateway, use --reuse-port")
                    }
                    _ => failed,
                });
            }
        }
    }
    Ok(all)
}

/// The same for datagrams.
///
/// # Errors
/// As there.
pub fn open_udp(
    boot: &Boot,
    settings: &mut proxy::Settings,
    workers: usize,
    inherited: &mut Inherited,
) -> anyhow::Result<Vec<Vec<UdpSocket>>> {
    let mut all: Vec<Vec<UdpSocket>> = (0..workers).map(|_| Vec::new()).collect();
    if boot.role == Role::ControlPlane {
        return Ok(all);
    }
    settings.streams.udp.clone_from(&boot.streams.udp);
    let streams = boot.streams.udp.iter().map(|address| (*address, "datagrams", "apisix.stream_proxy.udp"));
    let mut wanted: Vec<_> = streams.collect();
    for listener in settings.listen.iter().filter(|listener| listener.h3()) {
        if !wanted.iter().any(|(address, ..)| *address == listener.address) {
            wanted.push((listener.address, "HTTP/3", "apisix.ssl.listen"));
        }
    }
    for (address, what, setting) in wanted {
        let mut one = settings.clone();
        one.streams.udp = vec![address];
        let kept = inherited.udp(address);
        let opened = match kept.is_empty() {
            true => Workers::listen_udp(&one, workers)
                .map(|sockets| vec![sockets.into_iter().flatten().collect()]),
            false => spread(kept, workers, UdpSocket::try_clone, || {
                one.reuse_port = true;
                Ok(Workers::listen_udp(&one, 1)?.into_iter().flatten().next())
            }),
        };
        let rows = opened.map_err(|(addr, error)| cannot_listen(addr, what, setting, &error))?;
        for row in rows {
            for (worker, socket) in all.iter_mut().zip(row) {
                worker.push(socket);
            }
        }
    }
    Ok(all)
}

/// Distributes the inherited sockets of one address over the workers: each row has one for each worker. All are used,
/// as closing one would reset the connections that wait on it. Where the first row is too short, `open` makes sockets
/// for the other workers; in later rows they share the row's first socket.
fn spread<S>(
    kept: Vec<S>,
    workers: usize,
    share: impl Fn(&S) -> io::Result<S>,
    mut open: impl FnMut() -> Result<Option<S>, (SocketAddr, io::Error)>,
) -> Result<Vec<Vec<S>>, (SocketAddr, io::Error)> {
    let mut kept = kept.into_iter().peekable();
    let mut rows = Vec::new();
    while rows.is_empty() || kept.peek().is_some() {
        let mut row: Vec<S> = kept.by_ref().take(workers.max(1)).collect();
        while row.len() < workers {
            let one = match rows.is_empty() {
                true => open()?,
                false => row.first().and_then(|first| share(first).ok()),
            };
            match one {
                Some(one) => row.push(one),
                None => break,
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Describes a listener for logs and the status.
pub fn named(listener: &Listener) -> String {
    let proxied = if listener.proxy_protocol { " (PROXY protocol)" } else { "" };
    let scheme = match (listener.traffic, listener.tls) {
        (Traffic::Stream(_), false) => "tcp",
        (Traffic::Stream(_), true) => "tls",
        (Traffic::Http(_), false) => "http",
        (Traffic::Http(_), true) => "https",
    };
    let h3 = if listener.h3() { " with HTTP/3" } else { "" };
    format!("traffic {scheme}://{}{h3}{proxied}", listener.address)
}

/// Why an address cannot be had, and what to do about it.
pub fn cannot_listen(addr: SocketAddr, what: &str, setting: &str, error: &io::Error) -> anyhow::Error {
    let port = addr.port();
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another program uses that port (`ss -ltnp 'sport = :{port}'` names it): stop it, or set `{setting}`"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need the capability CAP_NET_BIND_SERVICE; or set `{setting}`")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("no interface of this machine has that address; see `{setting}`")
        }
        _ => format!("see `{setting}`"),
    };
    anyhow!("cannot listen on {addr} for {what}: {error}\n  help: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_another_process_are_spread_and_none_is_left_out() {
        let rows = |kept: Vec<i32>, workers| {
            let mut opened = 100;
            let open = || {
                opened += 1;
                Ok(Some(opened))
            };
            spread(kept, workers, |one| Ok(-one), open).unwrap()
        };
        assert_eq!(rows(vec![1, 2], 2), [[1, 2]]);
        assert_eq!(rows(vec![1], 3), [[1, 101, 102]], "more workers than before");
        assert_eq!(rows(vec![1, 2, 3], 2), [[1, 2], [3, -3]], "fewer");
        assert_eq!(rows(vec![1, 2, 3], 1), [[1], [2], [3]]);
    }
}
