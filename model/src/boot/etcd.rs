//! `deployment.etcd`: the cluster that resources are kept in.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::section::Section;
use super::values;
use crate::Invalid;

/// `deployment.etcd`.
#[derive(Clone, PartialEq, Eq)]
pub struct Etcd {
    /// `http://host:port` or `https://host:port`; members of one cluster.
    pub hosts: Vec<String>,
    /// Begins with a slash and has none at its end.
    pub prefix: String,
    pub timeout: Duration,
    pub startup_retry: u32,
    /// Name and password.
    pub user: Option<(String, String)>,
    /// Certificate and key that are shown to etcd.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub verify: bool,
    /// The name asked for and expected; `None` is that of the address.
    pub sni: Option<String>,
    /// A watch on which nothing came for so long is asked whether it lives (ours).
    pub progress_interval: Duration,
    /// And is given up so long after that (ours).
    pub progress_timeout: Duration,
    /// The most bytes of keys and values that are taken (ours).
    pub max_size: u64,
    /// A copy is kept on disk (ours).
    pub keep_copy: bool,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Etcd").field("hosts", &self.hosts).field("user", &user).finish_non_exhaustive()
    }
}

pub(super) fn etcd(file: Section<'_>) -> Result<Etcd, Invalid> {
    let etcd = file.below("/deployment/etcd");
    let both = |one: &str, other: &str| -> Result<Option<(String, String)>, Invalid> {
        match (etcd.text(one), etcd.text(other)) {
            (Some(one), Some(other)) => Ok(Some((one.to_owned(), other.to_owned()))),
            (None, None) => Ok(None),
            (there, _) => {
                let (there, missing) = if there.is_some() { (one, other) } else { (other, one) };
                let name = |pointer: &str| format!("deployment.etcd{}", pointer.replace('/', "."));
                Err(Invalid::new(format!("`{}` without `{}`", name(there), name(missing)))
                    .at(format!("/deployment/etcd{there}"))
                    .expected("both, or neither"))
            }
        }
    };
    let time = |name: &str| match etcd.time(name) {
        Duration::ZERO => Err(Invalid::new("a time of 0 leaves etcd no chance to answer")
            .at(format!("/deployment/etcd{name}"))
            .expected("a time above 0")
            .got("0")),
        time => Ok(time),
    };
    Ok(Etcd {
        hosts: etcd.value("/host", hosts),
        prefix: etcd.value("/prefix", prefix).to_owned(),
        timeout: time("/timeout")?,
        startup_retry: u32::try_from(etcd.count("/startup_retry")).unwrap_or(u32::MAX),
        user: both("/user", "/password")?,
        certificate: both("/tls/cert", "/tls/key")?.map(|(cert, key)| (cert.into(), key.into())),
        verify: etcd.bool("/tls/verify"),
        sni: etcd.text("/tls/sni").map(str::to_owned),
        progress_interval: time("/progress_interval")?,
        progress_timeout: time("/progress_timeout")?,
        max_size: etcd.size("/max_size"),
        keep_copy: etcd.bool("/keep_copy"),
    })
}

/// A host, and a port or none: no user, no path.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, behind)) => match host.parse::<Ipv6Addr>() {
            Ok(_) => (host, behind),
            Err(_) => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    !host.is_empty()
        && host.bytes().all(is_part)
        && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// A list of addresses; one may be written without a list.
pub(super) fn hosts(value: &Value) -> Result<Vec<String>, Invalid> {
    let one = |value| {
        let text = values::text(value)?;
        match ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(rest) if is_authority(rest.trim_end_matches('/')) => Ok(text.to_owned()),
            with_scheme => {
                let wrong = Invalid::new("this is not the address of an etcd server")
                    .expected("http://host:port or https://host:port");
                // The part before an `@` may hold a password, so it is not repeated.
                if text.contains('@') {
                    let keys = "`deployment.etcd.user` and `deployment.etcd.password`";
                    return Err(wrong.hint(format!("give the user and the password as {keys}")));
                }
                let wrong = wrong.got(format!("`{text}`"));
                Err(match with_scheme.is_none() && is_authority(text) {
                    true => {
                        wrong.hint(format!("write `http://{text}`, or `https://{text}` for one with TLS"))
                    }
                    false => wrong,
                })
            }
        }
    };
    let hosts = match value {
        Value::String(_) => vec![one(value)?],
        value => values::list(value, one)?,
    };
    match hosts.is_empty() {
        true => Err(Invalid::new("the list has no address of an etcd server").expected("at least one")),
        false => Ok(hosts),
    }
}

/// `/apisix`, also with a slash at its end.
pub(super) fn prefix(value: &Value) -> Result<&str, Invalid> {
    let text = values::text(value)?;
    let trimmed = text.trim_end_matches('/');
    match trimmed.len() > 1 && trimmed.starts_with('/') && trimmed.is_ascii() {
        true => Ok(trimmed),
        false => Err(Invalid::new("this is not a prefix for keys")
            .expected("a path such as /apisix")
            .got(format!("`{text}`"))),
    }
}
