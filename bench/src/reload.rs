//! Configuration changes of nginx and Envoy: the whole configuration is rewritten and reloaded;
//! nginx gets SIGHUP, Envoy watches its file of routes.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::counters;
use crate::gateways::{Gateway, Place};
use crate::load::Target;
use crate::probe::Client;
use crate::process::Process;
use crate::scale::{Sample, Subject, milliseconds};
use crate::stats::Spread;

/// Number of measured reloads.
const RELOADS: u64 = 3;

/// Timeout of a reload.
const PATIENCE: Duration = Duration::from_secs(120);

/// The file that routes are added to.
#[derive(Clone)]
pub struct RoutesFile {
    file: PathBuf,
    /// The new route is inserted before this line.
    mark: &'static str,
    route: fn(u64) -> String,
    /// Whether it is reloaded only on SIGHUP.
    pub signalled: bool,
}

impl RoutesFile {
    /// `None` for a gateway that is not changed in this way.
    pub fn of(gateway: Gateway, place: &Place) -> Option<Self> {
        Some(match gateway {
            Gateway::Nginx => Self {
                file: place.folder.join("nginx.conf"),
                mark: "        # Changes.\n",
                route: |number| {
                    format!("        location = /hello/changed-{number} {{ proxy_pass http://hello; }}\n")
                },
                signalled: true,
            },
            Gateway::Envoy => Self {
                file: place.folder.join("routes.json"),
                mark: "          { \"match\": { \"path\": \"/changes\" }",
                route: |number| {
                    let path = format!("{{ \"path\": \"/hello/changed-{number}\" }}");
                    format!("          {{ \"match\": {path}, \"route\": {{ \"cluster\": \"hello\" }} }},\n")
                },
                signalled: false,
            },
            _ => return None,
        })
    }
}

/// Adds routes one after the other. There is no response to wait for: a change is live when a new
/// connection sees it.
///
/// # Errors
/// A change does not become live.
pub fn changes(
    process: &mut Process,
    subject: &Subject,
    routes_file: &RoutesFile,
    sample: &mut Sample,
) -> Result<()> {
    let address = ([127, 0, 0, 1], subject.place.port).into();
    let before = counters::with_children_ms(&process.pids());
    let mut live = Vec::new();
    for number in 0..RELOADS {
        let begun = Instant::now();
        add_route(routes_file, number)?;
        if routes_file.signalled {
            process.hang_up();
        }
        while !is_live(address, number)? {
            process.must_run()?;
            if begun.elapsed() > PATIENCE {
                bail!("a new route is not live after {PATIENCE:?}");
            }
        }
        live.push(milliseconds(begun.elapsed()));
        // The old workers of nginx end.
        while routes_file.signalled
            && process.pids().len() > 1 + subject.setup.workers
            && begun.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let used = counters::with_children_ms(&process.pids()) - before;
    sample.live_ms = Spread::of(live);
    sample.cpu_ms_per_change = Some(used / RELOADS as f64);
    Ok(())
}

/// Whether a new connection sees route `number`.
///
/// # Errors
/// The response is neither that of an existing route nor that of a missing one.
pub fn is_live(address: SocketAddr, number: u64) -> Result<bool> {
    let request = format!("GET /hello/changed-{number} HTTP/1.1\r\nHost: bench\r\n\r\n");
    let mut client = Client::connect(&Target::plain(address, 0))?;
    // nginx's workers do not respond while they load a large configuration.
    client.be_patient(PATIENCE)?;
    match client.ask(request.as_bytes())?.status {
        200 => Ok(true),
        404 => Ok(false),
        status => bail!("a new route was answered {status}"),
    }
}

/// Writes the configuration with one more route.
///
/// # Errors
/// The file cannot be read or written, or has unexpected content.
pub fn add_route(routes_file: &RoutesFile, number: u64) -> Result<()> {
    let RoutesFile { file, mark, route, .. } = routes_file;
    let text = fs::read_to_string(file)?;
    let (before, after) =
        text.split_once(mark).with_context(|| format!("no insertion point in {}", file.display()))?;
    // A reader must never see a partial file.
    let fresh = file.with_extension("new");
    fs::write(&fresh, [before, &route(number), mark, after].concat())?;
    Ok(fs::rename(fresh, file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_added_one_after_the_other() {
        let folder = std::env::temp_dir().join(format!("bench-reload-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let place = Place {
            folder: folder.clone(),
            port: 1,
            admin_port: 2,
            metrics_port: 3,
            spare_port: 4,
            control_port: 5,
            redis_port: 7,
            upstream_port: 6,
        };
        for (gateway, text) in [
            (Gateway::Nginx, "server {\n        # Changes.\n}\n"),
            (Gateway::Envoy, "[\n          { \"match\": { \"path\": \"/changes\" }, \"a\": 1 }\n]\n"),
        ] {
            let routes_file = RoutesFile::of(gateway, &place).unwrap();
            fs::write(&routes_file.file, text).unwrap();
            add_route(&routes_file, 1).unwrap();
            add_route(&routes_file, 2).unwrap();
            let text = fs::read_to_string(&routes_file.file).unwrap();
            assert!(text.find("changed-1").unwrap() < text.find("changed-2").unwrap(), "{text}");
            if gateway == Gateway::Envoy {
                let routes: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(routes.as_array().map(Vec::len), Some(3), "{text}");
            }
            fs::write(&routes_file.file, "nothing").unwrap();
            assert!(add_route(&routes_file, 3).is_err());
        }
        assert!(RoutesFile::of(Gateway::Sluice, &place).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
