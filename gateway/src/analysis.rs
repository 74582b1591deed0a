//! Likely mistakes in a valid configuration, for `sluice check` and the control API.

use std::sync::Arc;

use admin::Report;
use model::Desired;
use model::boot::{Boot, Provider};
use sdk::Catalog;
use sdk::sink::Folders;
use snapshot::analysis::{Analysis, Input, analyse};
use snapshot::router::Options;

use crate::wiring;

/// Looks at what is desired, as this boot file has it served and stored.
pub fn of(desired: &Desired, boot: &Boot, catalog: &Arc<plugins::Catalog>) -> Analysis {
    let encryption = &boot.data_encryption;
    let streams = &boot.streams;
    let stream_ports: Vec<u16> = streams
        .tcp
        .iter()
        .map(|port| port.address)
        .chain(streams.udp.iter().copied())
        .map(|at| at.port())
        .collect();
    let is_store = matches!(boot.provider, Provider::Embedded | Provider::Etcd);
    analyse(Input {
        desired,
        mode: wiring::router_mode(boot),
        options: Options {
            delete_uri_tail_slash: boot.uri.delete_tail_slash,
            normalize_uri_like_servlet: boot.uri.normalize_like_servlet,
        },
        paths: wiring::path_rules(boot),
        catalog: &**catalog as &dyn Catalog,
        encrypts: is_store && encryption.enabled && !encryption.keyring.is_empty(),
        stream_ports: &stream_ports,
        now: crate::now(),
    })
}

/// The analysis as a report for people and programs.
///
/// # Errors
/// A plugin's schema that does not compile.
pub fn report(desired: &Desired, boot: &Boot, folders: &Arc<Folders>) -> anyhow::Result<Report> {
    let analysis = of(desired, boot, &wiring::checking(boot, folders)?);
    Ok(Report { text: analysis.to_string(), value: analysis.to_json() })
}
