//! Ports that are asked for twice in one file.

use std::net::SocketAddr;

use super::section::Section;
use super::{Boot, Role};
use crate::invalid::Invalid;

/// # Errors
/// Two listeners that cannot both have their address, in APISIX's words.
pub(super) fn check(boot: &Boot, file: Section<'_>) -> Result<(), Invalid> {
    let one = |what, pointer, addr: Option<SocketAddr>| addr.map(|addr| (what, pointer, addr));
    let admin = Some(boot.admin.listen).filter(|_| boot.admin.enabled);
    let own = [
        one("admin port", "/deployment/admin/admin_listen", admin),
        one("control port", "/apisix/control", boot.control),
        one("status port", "/apisix/status", boot.status),
        one("prometheus port", "/plugin_attr/prometheus/export_addr", boot.prometheus.export),
    ];
    let plain = boot.listen.iter().map(|listen| ("http listen port", "/apisix/node_listen", listen.address));
    let tls =
        boot.tls.listen.iter().map(|listen| ("https listen port", "/apisix/ssl/listen", listen.address));
    let tcp =
        boot.streams.tcp.iter().map(|port| ("tcp listen port", "/apisix/stream_proxy/tcp", port.address));
    // Those of traffic have been compared with each other.
    let own: Vec<_> = own.into_iter().flatten().collect();
    let later = own.iter().copied().enumerate();
    let traffic = plain.chain(tls).chain(tcp).filter(|_| boot.role != Role::ControlPlane);
    let traffic = traffic.map(|one| (own.len(), one));
    for (before, (what, pointer, addr)) in later.chain(traffic) {
        let other = own[..before].iter().find(|(_, _, other)| overlap(*other, addr));
        if let Some((before, place, _)) = other {
            // A default stands nowhere in the file.
            let at = if file.get(pointer).is_some() { pointer } else { place };
            return Err(Invalid::new(format!("{what} {} conflicts with {before}", addr.port()))
                .at(at)
                .expected("a port of its own")
                .got(addr.to_string()));
        }
    }
    Ok(())
}

/// Whether only one socket can listen on these.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = |addr: SocketAddr| addr.ip().is_unspecified();
    let same_family = one.is_ipv4() == other.is_ipv4();
    one.port() != 0
        && one.port() == other.port()
        && same_family
        && (one.ip() == other.ip() || all(one) || all(other))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::read::boot;

    #[test]
    fn a_port_of_two_listeners_is_reported_with_its_place() {
        let refused =
            |value| boot(&value, &|_| None).map(drop).map_err(|invalid| (invalid.reason, invalid.pointer));
        let conflict = |reason: &str, pointer: &str| Err((reason.to_owned(), pointer.to_owned()));
        assert_eq!(
            refused(json!({"apisix": {"node_listen": 9180}})),
            conflict("http listen port 9180 conflicts with admin port", "/apisix/node_listen")
        );
        assert_eq!(
            refused(json!({"deployment": {"admin": {"admin_listen": {"port": 9090}}}})),
            conflict("control port 9090 conflicts with admin port", "/deployment/admin/admin_listen"),
            "the other one is a default"
        );
        assert_eq!(
            refused(json!({"apisix": {
                "proxy_mode": "stream", "stream_proxy": {"tcp": [9091]}
            }})),
            conflict("tcp listen port 9091 conflicts with prometheus port", "/apisix/stream_proxy/tcp")
        );
        assert_eq!(
            refused(
                json!({"apisix": {"status": {"port": 9091}, "control": {"ip": "127.0.0.2", "port": 9091}}})
            ),
            conflict("prometheus port 9091 conflicts with status port", "/apisix/status")
        );
        assert_eq!(refused(json!({"apisix": {"node_listen": [{"ip": "127.0.0.2", "port": 9180}]}})), Ok(()));
        let plane = json!({"apisix": {"node_listen": 9180}, "deployment": {"role": "control_plane"}});
        assert_eq!(refused(plane), Ok(()), "which has no ports for traffic");
    }
}
