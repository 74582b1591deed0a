//! Information about this instance, as APISIX's plugin server-info has it: on the control API, and in etcd.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adapters::etcd::{Etcd, Presence};
use model::boot::{Boot, Role};
use serde_json::{Value, json};

/// The plugin that enables it.
pub const PLUGIN: &str = "server-info";

/// An instance.
pub struct ServerInfo {
    /// Known when it was first asked for.
    id: OnceLock<Value>,
    data: PathBuf,
    hostname: String,
    /// In seconds since 1970.
    booted: u64,
    etcd: Option<Arc<Etcd>>,
    etcd_version: OnceLock<String>,
}

impl ServerInfo {
    pub fn new(boot: &Boot, data: PathBuf, etcd: Option<Arc<Etcd>>) -> ServerInfo {
        let booted = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = boot.id.clone().map_or_else(OnceLock::new, OnceLock::from);
        ServerInfo { id, data, hostname: hostname(), booted, etcd, etcd_version: OnceLock::new() }
    }

    /// Returns the information as JSON.
    pub async fn value(&self) -> Value {
        json!({
            "boot_time": self.booted,
            "etcd_version": self.etcd_version().await,
            "hostname": self.hostname,
            "id": self.id().await,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    async fn id(&self) -> Value {
        if let Some(id) = self.id.get() {
            return id.clone();
        }
        let data = self.data.clone();
        let read = control::tasks::blocking(move || admin::key::instance_id(&data)).await;
        match read.unwrap_or_else(|| Err(std::io::Error::other("a mistake of the gateway"))) {
            Ok(id) => self.id.get_or_init(|| id.into()).clone(),
            Err(error) => {
                let data = self.data.display();
                tracing::warn!(%error, "the instance's id cannot be kept in {data}: set apisix.id");
                self.id.get_or_init(|| self.hostname.clone().into()).clone()
            }
        }
    }

    async fn etcd_version(&self) -> &str {
        const UNKNOWN: &str = "unknown";
        match (self.etcd_version.get(), &self.etcd) {
            (Some(version), _) => version,
            (None, None) => UNKNOWN,
            (None, Some(etcd)) => match etcd.version().await {
                Ok(version) => self.etcd_version.get_or_init(|| version),
                Err(_) => UNKNOWN,
            },
        }
    }
}

/// Keeps `info` in etcd while `is_listed` returns that the list of plugins has the plugin. Does nothing without etcd,
/// or on a data plane, which writes nothing there.
pub async fn report(info: Arc<ServerInfo>, boot: Boot, is_listed: impl Fn() -> bool) {
    let Some(etcd) = info.etcd.clone().filter(|_| boot.role != Role::DataPlane) else { return };
    // Seconds that it stays in etcd after the last report of an instance.
    let ttl = boot.attr("/plugin_attr/server-info").count("/report_ttl");
    let (mut presence, mut logged) = (Presence::default(), None);
    loop {
        if is_listed() {
            let value = info.value().await;
            let id = match &value["id"] {
                Value::String(id) => id.clone(),
                other => other.to_string(),
            };
            let why = etcd.present(&id, &value, ttl, &mut presence).await.err().map(|why| why.to_string());
            if let Some(why) = why.as_ref().filter(|why| logged.as_ref() != Some(*why)) {
                tracing::warn!("server-info: cannot register this instance in etcd: {why}");
            }
            logged = why;
        }
        tokio::time::sleep(Duration::from_secs(ttl) / 3).await;
    }
}

/// The machine's name.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
