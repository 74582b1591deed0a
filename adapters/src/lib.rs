//! Others' protocols: service registries, secret managers, OCSP responders and ACME servers, one file each, and etcd as a store ([`etcd`]).
//!
//! Registries are configured under `discovery` in `config.yaml`, with APISIX's keys. Following, keeping and
//! showing what they know is `control::discovery`'s. Secret managers are resources of the kind `secrets`; when
//! they are asked, and what becomes of the answers, is for `control::secrets` to say.

#![forbid(unsafe_code)]

pub mod acme;
mod consul;
mod consul_kv;
mod dns;
pub mod etcd;
mod eureka;
pub mod files;
mod http;
mod kubernetes;
mod nacos;
pub mod ocsp;
mod polls;
#[cfg(feature = "redis")]
mod redis;
pub mod secrets;
mod service_account;
pub mod sinks;
pub mod stream;
#[cfg(test)]
mod testing;

use std::path::Path;
use std::sync::Arc;

use control::discovery::{Discovery, DumpFile};
pub use http::{Names, Secured, Trust};
use sdk::limit::Limits;
use sdk::storage::Storages;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The registries of the boot file. Their files are in the folder `data`, if nothing else is said.
///
/// # Errors
/// Settings that do not fit, with the place.
pub fn registries(
    discovery: &Map<String, Value>,
    trust: &Trust,
    env: &dyn Fn(&str) -> Option<String>,
    data: &Path,
) -> Result<Vec<Arc<dyn Discovery>>, String> {
    let mut all: Vec<Arc<dyn Discovery>> = Vec::new();
    for (kind, config) in discovery {
        let made: Result<Arc<dyn Discovery>, String> = match kind.as_str() {
            "consul" => consul::Consul::new(config, trust, data).map(|it| Arc::new(it) as _),
            "consul_kv" => consul_kv::ConsulKv::new(config, trust, data).map(|it| Arc::new(it) as _),
            "dns" => dns::Dns::new(config).map(|it| Arc::new(it) as _),
            "eureka" => eureka::Eureka::new(config, trust).map(|it| Arc::new(it) as _),
            "kubernetes" => kubernetes::Kubernetes::new(config, trust, env).map(|it| Arc::new(it) as _),
            "nacos" => nacos::Nacos::new(config, trust).map(|it| Arc::new(it) as _),
            _ => Err("this version does not have that registry".to_owned()),
        };
        match made {
            Ok(made) => all.push(made),
            Err(why) => return Err(format!("discovery.{kind} in config.yaml: {why}")),
        }
    }
    Ok(all)
}

/// The policies of limits that are counted on servers.
pub fn limits() -> Limits {
    let limits = Limits::default();
    #[cfg(feature = "redis")]
    let limits = redis::policies(limits);
    limits
}

/// The storages of values that several nodes share.
pub fn storages() -> Storages {
    let storages = Storages::default();
    #[cfg(feature = "redis")]
    let storages = redis::storages(storages);
    storages
}

/// Reads the settings of a registry, with the defaults of the boot file.
fn settings<T: DeserializeOwned>(kind: &str, config: &Value) -> Result<T, String> {
    let config = model::boot::with_defaults(&format!("discovery.{kind}"), config);
    T::deserialize(config).map_err(|error| error.to_string())
}

/// Puts a file with a relative path into a folder.
fn within(file: &mut Option<DumpFile>, folder: &Path) -> Result<(), String> {
    if let Some(file) = file {
        if file.path.as_os_str().is_empty() {
            return Err("dump.path: expected the path of a file".to_owned());
        }
        file.path = folder.join(&file.path);
    }
    Ok(())
}

/// A weight as registries write it, which may be a fraction or a text.
fn weight(value: Option<&Value>, default: u32) -> u32 {
    let number = match value {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .filter(|number| number.is_finite() && *number >= 0.0)
        .map_or(default, |number| number.round() as u32)
}

/// A port as registries write it, as a number or a text.
fn port(value: Option<&Value>) -> Option<u16> {
    match value? {
        Value::Number(number) => u16::try_from(number.as_u64()?).ok(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
