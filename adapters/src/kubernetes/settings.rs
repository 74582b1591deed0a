//! The settings of clusters in the boot file: one object, or a list of them with ids.

use std::path::Path;
use std::sync::{Arc, Mutex};

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{Cluster, State};
use crate::http::{Server, TlsSettings, Trust};

/// Files that a cluster gives to its pods.
const TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const CA_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

#[derive(Debug, Deserialize)]
struct Raw {
    id: Option<String>,
    service: WrittenService,
    #[serde(default)]
    client: WrittenClient,
    #[serde(default)]
    namespace_selector: Selector,
    #[serde(default)]
    label_selector: String,
    default_weight: u32,
    watch_endpoint_slices: bool,
}

#[derive(Debug, Deserialize)]
struct WrittenService {
    schema: String,
    host: String,
    port: Value,
    ssl_verify: Option<bool>,
    /// Ours.
    ssl_trusted_certificate: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenClient {
    token: Option<String>,
    token_file: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    equal: Option<String>,
    not_equal: Option<String>,
    #[serde(rename = "match")]
    matches: Option<Vec<String>>,
    not_match: Option<Vec<String>>,
}

/// The credentials for the API server.
pub(super) enum Client {
    Token(String),
    /// Read for each connection, as tokens of pods change.
    File(String),
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Client::Token(_) => f.write_str("Token"),
            Client::File(path) => write!(f, "File({path})"),
        }
    }
}

impl Client {
    pub async fn token(&self) -> Result<String, String> {
        match self {
            Client::Token(token) => Ok(token.clone()),
            Client::File(path) => {
                let file = path.clone();
                let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(file)).await;
                let read = read.map_err(|error| error.to_string())?;
                read.map(|token| token.trim().to_owned())
                    .map_err(|error| format!("token_file {path}: {error}"))
            }
        }
    }
}

/// The namespaces whose services are taken.
#[derive(Debug)]
pub(super) enum Namespaces {
    All,
    Equal(String),
    NotEqual(String),
    /// Whole names.
    Match(Vec<Regex>),
    NotMatch(Vec<Regex>),
}

impl Namespaces {
    /// The selector by which the cluster itself leaves out namespaces.
    pub fn fields(&self) -> Option<String> {
        match self {
            Namespaces::Equal(name) => Some(format!("metadata.namespace={name}")),
            Namespaces::NotEqual(name) => Some(format!("metadata.namespace!={name}")),
            _ => None,
        }
    }

    pub fn has(&self, namespace: &str) -> bool {
        let any = |patterns: &[Regex]| {
            let whole = |pattern: &Regex| pattern.find(namespace).is_some_and(|m| m.as_str() == namespace);
            patterns.iter().any(whole)
        };
        match self {
            Namespaces::All => true,
            Namespaces::Equal(name) => namespace == name,
            Namespaces::NotEqual(name) => namespace != name,
            Namespaces::Match(patterns) => any(patterns),
            Namespaces::NotMatch(patterns) => !any(patterns),
        }
    }
}

/// The clusters.
pub(super) fn read(
    config: &Value,
    trust: &Trust,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Arc<Cluster>>, String> {
    let all = match config {
        Value::Array(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    let mut clusters: Vec<Arc<Cluster>> = Vec::with_capacity(all.len());
    for (at, one) in all.iter().enumerate() {
        let place = |why: String| if config.is_array() { format!("[{at}]: {why}") } else { why };
        let cluster = cluster(one, config.is_array(), trust, env).map_err(place)?;
        if clusters.iter().any(|other| other.id == cluster.id) {
            return Err(place("duplicate id value".to_owned()));
        }
        clusters.push(Arc::new(cluster));
    }
    if clusters.is_empty() { Err("expected a cluster".to_owned()) } else { Ok(clusters) }
}

fn cluster(
    config: &Value,
    of_several: bool,
    trust: &Trust,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Cluster, String> {
    let written: Raw = crate::settings("kubernetes", config)?;
    let id = match (of_several, written.id) {
        (false, _) => String::new(),
        (true, Some(id)) if !id.is_empty() && !id.contains('/') => id,
        (true, _) => return Err("expected an `id`, of small letters and digits".to_owned()),
    };
    let service = written.service;
    let host = variable(&service.host, env)?;
    let port = match &service.port {
        Value::String(text) => variable(text, env)?,
        other => other.to_string(),
    };
    let port: u16 = port.trim().parse().map_err(|_| format!("invalid port value: {port}"))?;
    if !matches!(service.schema.as_str(), "http" | "https") {
        return Err(format!("service.schema should set to one of [http,https] but {}", service.schema));
    }
    let secure = service.schema == "https";
    let in_pod = || Path::new(CA_FILE).exists().then(|| CA_FILE.to_owned());
    let ca = service.ssl_trusted_certificate.or_else(|| match service.ssl_verify {
        Some(false) => None,
        _ => in_pod(),
    });
    // As in APISIX the server is not verified by default; but it is if the authority is known.
    let verify = service.ssl_verify.unwrap_or(ca.is_some());
    if secure && !verify {
        tracing::warn!(
            "discovery.kubernetes: {host}:{port} is sent a token and not verified\n  help: set \
             service.ssl_trusted_certificate, or service.ssl_verify"
        );
    }
    let tls = match secure {
        true => trust.of(&TlsSettings { ssl_verify: verify, ssl_trusted_certificate: ca })?,
        false => trust.verifying.clone(),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let host = if bare.contains(':') { format!("[{bare}]") } else { bare.to_owned() };
    let server = Server::parse(&format!("{}://{host}:{port}", service.schema), &tls)?;
    let server = server.resolved_by(trust.names.clone());
    let client = match (written.client.token, written.client.token_file) {
        (Some(token), _) => Client::Token(variable(&token, env)?.trim().to_owned()),
        (None, Some(file)) => Client::File(variable(&file, env)?),
        (None, None) => Client::File(TOKEN_FILE.to_owned()),
    };
    if let Client::Token(token) = &client
        && token.is_empty()
        && secure
    {
        return Err("apiserver.token should set to non-empty string when service.schema is https".to_owned());
    }
    let patterns = |all: Vec<String>| {
        let all: Result<Vec<Regex>, _> = all.iter().map(|pattern| Regex::new(pattern)).collect();
        all.map_err(|error| format!("namespace_selector: {error}"))
    };
    let namespaces = match written.namespace_selector {
        Selector { equal: Some(name), .. } => Namespaces::Equal(name),
        Selector { not_equal: Some(name), .. } => Namespaces::NotEqual(name),
        Selector { matches: Some(all), .. } => Namespaces::Match(patterns(all)?),
        Selector { not_match: Some(all), .. } => Namespaces::NotMatch(patterns(all)?),
        _ => Namespaces::All,
    };
    Ok(Cluster {
        id,
        server,
        client,
        slices: written.watch_endpoint_slices,
        namespaces,
        labels: written.label_selector,
        weight: written.default_weight,
        most: super::MOST_KEPT,
        state: Mutex::new(State::default()),
    })
}

/// `${NAME}` is the environment variable.
fn variable(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => env(name).ok_or_else(|| format!("not found environment variable {name}")),
        None => Ok(text.to_owned()),
    }
}
