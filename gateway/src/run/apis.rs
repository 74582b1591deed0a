//! The listeners that carry no traffic of clients: the Admin API, the control API, metrics and status.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use admin::metrics::Pages;
use admin::{Admin, ControlApi};
use model::boot::{Boot, Role};
use rustls::ServerConfig;
use tokio::net::TcpListener;

use crate::listeners::cannot_listen;
use crate::metrics;
use crate::program::Running;
use crate::upgrade::{Inherited, Side};

/// Bound, not yet served.
pub struct ApiListeners {
    admin: Option<TcpListener>,
    control: Option<TcpListener>,
    metrics: Option<TcpListener>,
    status: Option<TcpListener>,
}

impl ApiListeners {
    /// # Errors
    /// An address is in use, or not one of this machine.
    ///
    /// With `optional`, an API whose address is in use is not served: nothing was written that asks for it.
    pub async fn open(
        boot: &Boot,
        optional: bool,
        inherited: &mut Inherited,
    ) -> anyhow::Result<ApiListeners> {
        let mut listen = async |address: Option<SocketAddr>, name: &str, setting: &str| {
            let in_use = |error: &std::io::Error| optional && error.kind() == ErrorKind::AddrInUse;
            match listen(address, inherited).await {
                Ok(listener) => Ok(listener),
                Err((address, error)) if in_use(&error) => {
                    tracing::warn!("{name} is not served: {address} is in use");
                    Ok(None)
                }
                Err((address, error)) => Err(cannot_listen(address, name, setting, &error)),
            }
        };
        let admin = (boot.admin.enabled && boot.role != Role::DataPlane).then_some(boot.admin.listen);
        Ok(ApiListeners {
            admin: listen(admin, "the Admin API", "deployment.admin.admin_listen").await?,
            control: listen(boot.control, "the control API", "apisix.control").await?,
            metrics: {
                let export = boot.prometheus.export;
                listen(export, "metrics", "plugin_attr.prometheus.export_addr").await?
            },
            status: listen(boot.status, "the status page", "apisix.status").await?,
        })
    }

    pub fn serves_admin(&self) -> bool {
        self.admin.is_some()
    }

    /// Each with its address, for the log and the status.
    pub fn names(&self, boot: &Boot) -> impl Iterator<Item = String> {
        let admin_scheme = if boot.admin.tls.is_some() { "https" } else { "http" };
        [
            (&self.admin, "Admin API", admin_scheme, ""),
            (&self.control, "control API", "http", ""),
            (&self.metrics, "metrics", "http", boot.prometheus.export_uri.as_str()),
            (&self.status, "status", "http", "/status"),
        ]
        .into_iter()
        .filter_map(|(listener, name, scheme, path)| {
            let address = listener.as_ref()?.local_addr().ok()?;
            Some(format!("{name} {scheme}://{address}{path}"))
        })
    }

    /// The address of the dashboard, if it is served.
    pub fn dashboard(&self, boot: &Boot) -> Option<String> {
        let address = self.admin.as_ref()?.local_addr().ok()?;
        let scheme = if boot.admin.tls.is_some() { "https" } else { "http" };
        boot.admin.ui.then(|| format!("{scheme}://{address}/ui/"))
    }

    /// Serves on all of them.
    ///
    /// # Errors
    /// No descriptors are left.
    pub async fn serve(
        self,
        program: &Arc<Running>,
        apis: Apis,
        admin_tls: Option<Arc<ServerConfig>>,
    ) -> anyhow::Result<Vec<Side>> {
        let boot = &program.boot;
        let Apis { admin, control, pages } = apis;
        let mut sides = Vec::new();
        if let Some(listener) = self.admin {
            prepare_admin(boot, program, &admin).await;
            let serve =
                move |listener| control::tasks::spawn(admin.clone().serve_over(listener, admin_tls.clone()));
            sides.push(Side::start(listener, serve)?);
        }
        let limits = admin::Limits::of(&boot.admin.limits);
        if let Some(listener) = self.control {
            let limits = limits.clone();
            let serve =
                move |listener| control::tasks::spawn(control.clone().serve(listener, limits.clone()));
            sides.push(Side::start(listener, serve)?);
        }
        if let Some(listener) = self.status {
            let program = program.clone();
            let serve = move |listener| {
                control::tasks::spawn(admin::status::serve(listener, limits.clone(), program.clone()))
            };
            sides.push(Side::start(listener, serve)?);
        }
        if let Some(listener) = self.metrics {
            let limits = metrics::limits(&boot.prometheus);
            let (uri, hosts) = (boot.prometheus.export_uri.clone(), boot.admin.hosts.clone());
            let serve = move |listener| {
                let (uri, hosts, limits, pages) = (uri.clone(), hosts.clone(), limits.clone(), pages.clone());
                let serving =
                    async move { admin::metrics::serve(listener, uri, &hosts, limits, pages).await };
                control::tasks::spawn(serving)
            };
            sides.push(Side::start(listener, serve)?);
        }
        Ok(sides)
    }
}

/// The APIs behind the listeners. The status page needs only the program.
pub struct Apis {
    pub admin: Admin,
    pub control: ControlApi,
    pub pages: Arc<Pages>,
}

/// Before the Admin API is served: the list of plugins it shows, and the guard of unconfirmed changes.
async fn prepare_admin(boot: &Boot, program: &Running, admin: &Admin) {
    if !boot.admin.key_required {
        tracing::warn!(
            "the Admin API requires no key: anyone who can reach it controls the gateway \
             (deployment.admin.admin_key_required)"
        );
    }
    if let Err(error) = admin.sync_plugins().await {
        tracing::error!("the list of plugins could not be stored: {error}");
    }
    if program.store.writable() {
        control::tasks::spawn(admin.clone().guard());
    }
}

async fn listen(
    address: Option<SocketAddr>,
    inherited: &mut Inherited,
) -> Result<Option<TcpListener>, (SocketAddr, std::io::Error)> {
    let Some(address) = address else { return Ok(None) };
    let bound = match inherited.tcp(address).into_iter().next() {
        Some(kept) => TcpListener::from_std(kept),
        None => TcpListener::bind(address).await,
    };
    bound.map(Some).map_err(|error| (address, error))
}
