//! Providers of `jwt_authn` whose tokens are verified by a set of keys alone: settings of jwks-auth.

use serde_json::{Map, Value, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::value::{boolean, items, number, seconds, text, texts};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// The settings of a provider; `None` if its tokens cannot be verified so.
pub(super) fn read(
    context: &Context<'_>,
    clusters: &Clusters,
    node: &Node<'_>,
    report: &mut Report,
) -> Option<Map<String, Value>> {
    if ["subjects", "max_lifetime"].iter().any(|name| node.some(name).is_some()) {
        return None;
    }
    let mut settings = Map::new();
    let mut set = |name: &str, value: Value| _ = settings.insert(name.to_owned(), value);
    if let Some(local) = node.some("local_jwks") {
        let text = context.data(&local).ok()?;
        let keys: Value = serde_json::from_str(text.trim()).ok()?;
        keys.get("keys").and_then(Value::as_array).filter(|keys| !keys.is_empty())?;
        set("jwks", json!(text.trim()));
    } else {
        remote(&node.some("remote_jwks")?, clusters, &mut set, report)?;
    }
    if let Some(issuer) = text(node, "issuer").filter(|issuer| !issuer.is_empty()) {
        set("issuer", json!(issuer));
    }
    let audiences = texts(node, "audiences");
    if !audiences.is_empty() {
        set("audiences", json!(audiences));
    }
    let headers = items(node, "from_headers");
    for (at, header) in headers.iter().enumerate() {
        let (name, prefix) = (text(header, "name"), text(header, "value_prefix"));
        if at > 0 {
            report.behaviour(header, "from_headers", "a token is looked for in the first header alone");
            continue;
        }
        set("header", json!(name.unwrap_or("Authorization")));
        set("prefix", json!(prefix.unwrap_or_default()));
    }
    let (parameters, cookies) = (texts(node, "from_params"), texts(node, "from_cookies"));
    for (list, name, default) in [(&parameters, "query", "access_token"), (&cookies, "cookie", "")] {
        let by_default = headers.is_empty() && parameters.is_empty() && cookies.is_empty();
        match list.first() {
            Some(first) => set(name, json!(first)),
            None if by_default && !default.is_empty() => set(name, json!(default)),
            None => {}
        }
        if list.len() > 1 {
            report.behaviour(
                node,
                format!("from_{name}"),
                "a token is looked for under the first name alone",
            );
        }
    }
    if boolean(node, "forward") != Some(true) {
        set("hide_credentials", json!(true));
    }
    if boolean(node, "require_expiration") == Some(true) {
        set("require_expiration", json!(true));
    }
    if let Some(skew) = number(node, "clock_skew_seconds") {
        set("clock_skew", json!(skew.min(86_400)));
    }
    if let Some(header) = text(node, "forward_payload_header").filter(|header| !header.is_empty()) {
        set("payload_header", json!(header));
    }
    let mut claims = Map::new();
    for claim in items(node, "claim_to_headers") {
        let (header, name) = (text(&claim, "header_name"), text(&claim, "claim_name").unwrap_or_default());
        if name.contains('.') {
            report.behaviour(&claim, "claim_to_headers", "a claim within another one is not passed on");
        } else if let Some(header) = header.filter(|_| !name.is_empty()) {
            claims.insert(header.to_owned(), json!(name));
        }
    }
    if !claims.is_empty() {
        set("claim_headers", Value::Object(claims));
    }
    report.fields(
        node,
        &[("pad_forward_payload_header", Cosmetic, "the payload is sent as it stands in the token")],
    );
    Some(settings)
}

/// The address of the keys.
fn remote(
    node: &Node<'_>,
    clusters: &Clusters,
    set: &mut impl FnMut(&str, Value),
    report: &mut Report,
) -> Option<()> {
    let http = node.some("http_uri")?;
    let uri = text(&http, "uri")?;
    let (_, rest) = uri.split_once("://")?;
    let path = rest.find(['/', '?']).map_or("/", |at| &rest[at..]);
    let cluster = clusters.get(text(&http, "cluster").unwrap_or_default())?;
    let url = cluster.url()?;
    set("jwks_uri", json!(format!("{url}{path}")));
    if cluster.tls && !cluster.verifies {
        set("ssl_verify", json!(false));
    }
    if cluster.hosts.len() > 1 {
        report.behaviour(&http, "remote_jwks", format!("one server of the cluster is asked, {url}"));
    }
    if let Some(timeout) = seconds(&http, "timeout") {
        set("timeout", json!(((timeout * 1000.0) as u64).clamp(1, 60_000)));
    }
    // Envoy's default is ten minutes.
    let ttl = seconds(node, "cache_duration").unwrap_or(600.0);
    set("cache_ttl", json!((ttl as u64).clamp(1, 86_400)));
    report.fields(
        node,
        &[
            ("async_fetch", Cosmetic, "keys are fetched with the first request that needs them"),
            ("retry_policy", Behaviour, "the server is asked once at a time"),
        ],
    );
    Some(())
}
