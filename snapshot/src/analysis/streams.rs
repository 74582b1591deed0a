//! Stream routes that no connection reaches.

use model::{Invalid, Kind, Resource};

use super::{Analysis, Code, Input};

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    if of.stream_ports.is_empty() {
        return;
    }
    for entry in of.desired.of(Kind::StreamRoute) {
        let Resource::StreamRoute(route) = entry.resource() else { continue };
        if let Some(port) = route.server_port.filter(|port| !of.stream_ports.contains(port)) {
            let invalid = Invalid::new(format!(
                "no connection reaches this stream route: nothing listens on port {port} for streams"
            ))
            .at("/server_port")
            .hint("add the port to apisix.stream_proxy in config.yaml, or use a port that is configured");
            found.add(Code::Unreachable, &entry.key, invalid);
        }
    }
}
