//! Information about this instance, as APISIX's plugin server-info has it: on the control API, and in etcd.

use std::net::SocketAddr;
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
    /// The address of the dashboard, if it is served.
    dashboard: Option<String>,
    etcd: Option<Arc<Etcd>>,
    etcd_version: OnceLock<String>,
}

impl ServerInfo {
    pub fn new(boot: &Boot, data: PathBuf, etcd: Option<Arc<Etcd>>) -> ServerInfo {
        let booted = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = boot.id.clone().map_or_else(OnceLock::new, OnceLock::from);
        let hostname = hostname();
        let dashboard = dashboard(boot, &hostname);
        ServerInfo { id, data, hostname, booted, dashboard, etcd, etcd_version: OnceLock::new() }
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

    /// The other instances that stand in etcd, each with the address of its dashboard if this machine can reach it.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn others(&self) -> Result<Vec<Value>, String> {
        let Some(etcd) = &self.etcd else { return Ok(Vec::new()) };
        let own = self.id().await;
        let all = etcd.instances().await.map_err(|error| error.to_string())?;
        let shown = |info: &Value| {
            let link = info["dashboard"].as_str();
            let link = link.filter(|link| leads_to(link, info["hostname"] == self.hostname.as_str()));
            json!({
                "id": info["id"],
                "hostname": info["hostname"],
                "version": info["version"],
                "boot_time": info["boot_time"],
                "dashboard": link,
            })
        };
        Ok(all.iter().filter(|info| info["id"] != own).map(shown).collect())
    }

    /// The instance's id, a text.
    pub async fn id(&self) -> Value {
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
            let mut value = info.value().await;
            if let Some(dashboard) = &info.dashboard {
                value["dashboard"] = dashboard.as_str().into();
            }
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

/// The address of the dashboard: that of the Admin API, with the machine's name if it listens on all addresses.
fn dashboard(boot: &Boot, hostname: &str) -> Option<String> {
    let admin = &boot.admin;
    if !admin.enabled || !admin.ui {
        return None;
    }
    let scheme = if admin.tls.is_some() { "https" } else { "http" };
    let port = admin.listen.port();
    let host = match admin.listen.ip() {
        ip if ip.is_unspecified() && hostname.is_empty() => return None,
        ip if ip.is_unspecified() => format!("{hostname}:{port}"),
        _ => admin.listen.to_string(),
    };
    Some(format!("{scheme}://{host}/ui/"))
}

/// Whether browsers may follow a link that another instance wrote: a page, not a script, and an address of the
/// loopback only if it is that of the same machine.
fn leads_to(link: &str, same_machine: bool) -> bool {
    let Some(rest) = link.strip_prefix("http://").or_else(|| link.strip_prefix("https://")) else {
        return false;
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let is_loopback = match authority.parse::<SocketAddr>() {
        Ok(addr) => addr.ip().is_loopback(),
        Err(_) => authority.starts_with("localhost"),
    };
    same_machine || !is_loopback
}

/// The machine's name.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_other_instances_are_pages_that_can_be_reached() {
        for (link, here, elsewhere) in [
            ("http://10.0.0.1:9180/ui/", true, true),
            ("https://gateway-2:9180/ui/", true, true),
            ("http://127.0.0.1:9180/ui/", true, false),
            ("http://[::1]:9180/ui/", true, false),
            ("http://localhost:9180/ui/", true, false),
            ("javascript:alert(1)", false, false),
            ("", false, false),
        ] {
            assert_eq!((leads_to(link, true), leads_to(link, false)), (here, elsewhere), "{link}");
        }
    }
}
