//! Upstream nodes whose host cannot be a server.

use model::Resource;
use model::upstream::fault_of_host;

use super::{Analysis, Code, Input};

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.iter() {
        let Some(upstream) = entry.resource().upstream() else { continue };
        let pointer = match entry.resource() {
            Resource::Upstream(_) => "/nodes",
            _ => "/upstream/nodes",
        };
        for invalid in upstream.nodes.iter().filter_map(|node| fault_of_host(&node.host)) {
            found.add(Code::NoHost, &entry.key, invalid.at(pointer));
        }
    }
}
