//! Checks the files that a start opens besides resources: the certificates, keys and logs that `config.yaml` names. Also
//! the settings of metrics over OTLP, with which a start would end.
//!
//! It creates nothing and connects to nothing.

use std::io;

use adapters::sinks::LogDestination;
use model::boot::{AccessLog, Provider, Role};
use model::{Diagnostic, Invalid, Severity};

use crate::files::{self, Found};
use crate::{etcd, otlp, tls};

/// Returns the errors that would end a start, each at its key.
pub fn check(found: &Found) -> Vec<Diagnostic> {
    let Some(config) = &found.config else { return Vec::new() };
    let otlp = otlp::Settings::read(&found.boot).err();
    let wrong = certificates(found).into_iter().chain(logs(found)).chain(otlp.as_ref().map(at_its_key));
    files::placed(config, wrong.map(|invalid| (Severity::Error, invalid)).collect())
}

fn certificates(found: &Found) -> Vec<Invalid> {
    let boot = &found.boot;
    let of_etcd = boot.provider == Provider::Etcd;
    // Those that the system trusts take a while to read.
    if boot.tls.trusted.is_none() && boot.admin.tls.is_none() && !of_etcd {
        return Vec::new();
    }
    let common = match tls::settings(boot) {
        Ok(settings) => settings.common,
        Err(error) => return vec![at_its_key(&error)],
    };
    let admin = tls::admin(boot, &common).err();
    let etcd = of_etcd.then(|| etcd::settings(boot, None).err()).flatten();
    admin.iter().chain(&etcd).map(at_its_key).collect()
}

/// Errors of a start begin with the key they are about.
fn at_its_key(error: &anyhow::Error) -> Invalid {
    let reason = format!("{error:#}");
    let key = reason.split([':', ' ']).next().unwrap_or_default();
    let pointer = format!("/{}", key.replace('.', "/"));
    Invalid::new(reason).at(pointer)
}

fn logs(found: &Found) -> Vec<Invalid> {
    let boot = &found.boot;
    // A gateway whose default log cannot be opened serves without it.
    let named = |log: &Option<AccessLog>| {
        log.as_ref()
            .filter(|log| !log.is_default && boot.role != Role::ControlPlane)
            .map(|log| log.path.clone())
    };
    let streams = named(&boot.streams.access_log).filter(|_| boot.proxy_mode.serves_streams());
    let logs = [
        ("/nginx_config/error_log", boot.error_log.clone()),
        ("/nginx_config/http/access_log", named(&boot.http.access_log)),
        ("/nginx_config/stream/access_log", streams),
    ];
    let look = |(pointer, path): (&str, Option<String>)| {
        let place = LogDestination::new(&path?, &found.data);
        let error: io::Error = place.look().err()?;
        Some(Invalid::new(format!("cannot open {place}: {error}")).at(pointer).expected(
            "a file that this user may write, in a folder that is there, or a path in the data folder",
        ))
    };
    logs.into_iter().filter_map(look).collect()
}
