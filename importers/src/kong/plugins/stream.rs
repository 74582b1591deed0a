//! Plugins of stream routes.

use std::collections::BTreeMap;

use super::super::entities::{Instance, Kong};
use super::assign::{Scopes, level};
use super::convert::{CHANGERS, OBSERVERS};
use super::{Notes, Plugins, access};
use crate::finding::{Finding, Severity};

/// Plugins that Kong runs for requests alone, not for connections.
const OF_REQUESTS: [&str; 44] = [
    "acl",
    "ai-prompt-guard",
    "ai-rate-limiting-advanced",
    "ai-semantic-prompt-guard",
    "basic-auth",
    "bot-detection",
    "canary",
    "correlation-id",
    "cors",
    "graphql-proxy-cache-advanced",
    "graphql-rate-limiting-advanced",
    "grpc-web",
    "header-cert-auth",
    "hmac-auth",
    "injection-protection",
    "json-threat-protection",
    "jwe-decrypt",
    "jwt",
    "jwt-signer",
    "key-auth",
    "key-auth-enc",
    "ldap-auth",
    "ldap-auth-advanced",
    "mocking",
    "mtls-auth",
    "oas-validation",
    "oauth2",
    "oauth2-introspection",
    "opa",
    "openid-connect",
    "proxy-cache",
    "proxy-cache-advanced",
    "rate-limiting",
    "rate-limiting-advanced",
    "request-size-limiting",
    "request-termination",
    "request-transformer",
    "request-transformer-advanced",
    "request-validator",
    "response-ratelimiting",
    "response-transformer",
    "response-transformer-advanced",
    "saml",
    "xml-threat-protection",
];

/// Plugins that log or count connections and have a counterpart for requests alone.
const LOGGERS: [&str; 4] = ["file-log", "http-log", "prometheus", "tcp-log"];

/// The plugins of a stream route, and findings whose resources are not known yet.
pub(in crate::kong) fn of_stream(kong: &Kong<'_>, scopes: &Scopes, index: usize) -> (Plugins, Vec<Finding>) {
    let mut winners: BTreeMap<&str, &Instance<'_>> = BTreeMap::new();
    let instances = scopes.of_route(kong, index).into_iter().map(|number| &kong.plugins[number]);
    // Connections have no consumers.
    for instance in instances.filter(|instance| {
        instance.consumer.is_none() && instance.group.is_none() && of_connections(instance)
    }) {
        let best = winners.entry(&instance.name).or_insert(instance);
        if level(instance) > level(best) {
            *best = instance;
        }
    }
    let mut plugins = Plugins::new();
    let mut notes = Notes::default();
    for (name, instance) in winners {
        let effect = format!("`{name}` is not carried over to stream routes");
        if name == "ip-restriction" {
            let mut own = Notes::default();
            let converted = access::ip_restriction(&instance.config, &instance.node, &mut own);
            // Refused connections get no status, so differences in it are none.
            notes.0.extend(own.0.into_iter().filter(|finding| finding.severity == Severity::Guard));
            plugins.extend(converted.map(|(name, value)| (name.to_owned(), value)));
        } else if LOGGERS.contains(&name)
            || OBSERVERS.contains(&name)
            || CHANGERS.contains(&name)
            || OF_REQUESTS.contains(&name)
        {
            // Global ones concern requests in the first place.
            if level(instance) > 0 {
                notes.behaviour(&instance.node, effect);
            }
        } else {
            notes.guard(&instance.node, format!("{effect}, and may protect them"));
        }
    }
    (plugins, notes.0)
}

/// Whether its `protocols`, by default all that it can serve, include one of connections.
fn of_connections(instance: &Instance<'_>) -> bool {
    let protocols = instance.node.some("protocols").map(|node| node.texts()).unwrap_or_default();
    let stream = ["tcp", "tls", "udp", "tls_passthrough"];
    protocols.is_empty() || protocols.iter().any(|protocol| stream.contains(&protocol.as_str()))
}
