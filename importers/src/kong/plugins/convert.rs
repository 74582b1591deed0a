//! Converts an instance of a plugin.

use std::cell::Cell;
use std::collections::HashMap;

use serde_json::json;

use super::super::entities::{Entity, Instance, Kong};
use super::{Converted, Notes, Piece, access, auth, limits, observe, transform};

/// The entities that conversions look up.
pub(super) struct Context<'k> {
    pub usernames: &'k [String],
    /// The first consumer of each name and id.
    consumers: HashMap<String, usize>,
    /// The consumers of each group of `acls`.
    members: HashMap<&'k str, Vec<usize>>,
    /// How many names lists of `acl` may still have.
    names_left: Cell<usize>,
}

/// The most names of consumers in the lists of all instances of `acl`.
pub(crate) const MAX_NAMES: usize = 1_000_000;

/// Plugins that only log, trace or count.
pub(super) const OBSERVERS: [&str; 12] = [
    "udp-log",
    "loggly",
    "statsd",
    "statsd-advanced",
    "datadog",
    "zipkin",
    "opentelemetry",
    "kafka-log",
    "request-callout",
    "app-dynamics",
    "header-cert-auth-log",
    "syslog",
];

/// Plugins that change requests or answers and protect nothing.
pub(super) const CHANGERS: [&str; 17] = [
    "ai-proxy",
    "ai-proxy-advanced",
    "ai-prompt-template",
    "ai-prompt-decorator",
    "ai-request-transformer",
    "ai-response-transformer",
    "aws-lambda",
    "azure-functions",
    "degraphql",
    "forward-proxy",
    "grpc-gateway",
    "jq",
    "kafka-upstream",
    "route-by-header",
    "session",
    "standard-webhooks-sign",
    "acme",
];

impl<'k> Context<'k> {
    pub(super) fn of(kong: &'k Kong<'_>, usernames: &'k [String]) -> Context<'k> {
        let mut consumers = HashMap::new();
        for (index, consumer) in kong.consumers.iter().enumerate() {
            for name in ["username", "id", "custom_id"] {
                if let Some(name) = consumer.entity.node.some(name).and_then(|node| node.text()) {
                    consumers.entry(name).or_insert(index);
                }
            }
        }
        let mut members: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, consumer) in kong.consumers.iter().enumerate() {
            for group in &consumer.acls {
                members.entry(group).or_default().push(index);
            }
        }
        Context { usernames, consumers, members, names_left: Cell::new(MAX_NAMES) }
    }

    /// The names of the consumers in any of these groups, in their order; `None` where all lists of the file together
    /// would be too long.
    pub(super) fn members(&self, groups: &[String]) -> Option<Vec<&'k String>> {
        let of = |group: &String| self.members.get(group.as_str()).map_or(&[][..], Vec::as_slice);
        if groups.iter().map(|group| of(group).len()).sum::<usize>() > MAX_NAMES {
            return None;
        }
        let mut found: Vec<usize> = groups.iter().flat_map(of).copied().collect();
        found.sort_unstable();
        found.dedup();
        self.names_left.set(self.names_left.get().checked_sub(found.len())?);
        Some(found.into_iter().map(|index| &self.usernames[index]).collect())
    }

    /// Converts an instance. One without a counterpart is a finding: a guard unless it protects nothing.
    pub(super) fn convert(&self, instance: &Instance<'_>) -> Converted {
        let mut notes = Notes::default();
        let pieces = self.pieces(instance, &mut notes);
        Converted { pieces, notes }
    }

    fn pieces(&self, instance: &Instance<'_>, notes: &mut Notes) -> Vec<Piece> {
        let (config, node) = (&instance.config, &instance.node);
        let plugin = |plugin: Option<(&'static str, serde_json::Value)>| {
            plugin.map(|(name, value)| Piece::Plugin(name, value)).into_iter().collect()
        };
        match instance.name.as_str() {
            "key-auth" | "key-auth-enc" => vec![Piece::Auth(auth::key_auth(self, config, notes))],
            "basic-auth" => vec![Piece::Auth(auth::basic_auth(self, config, notes))],
            "jwt" => vec![Piece::Auth(auth::jwt(self, config, notes))],
            "hmac-auth" => vec![Piece::Auth(auth::hmac_auth(self, config, node, notes))],
            "rate-limiting" => {
                limits::rate_limiting(config, node, notes).map(Piece::Limit).into_iter().collect()
            }
            "rate-limiting-advanced" => {
                limits::advanced(config, node, notes).map(Piece::Limit).into_iter().collect()
            }
            "request-size-limiting" => plugin(Some(limits::body_size(config, notes))),
            "acl" => plugin(Some(access::acl(self, config, node, notes))),
            "ip-restriction" => plugin(access::ip_restriction(config, node, notes)),
            "bot-detection" => plugin(Some(access::bot_detection(config, notes))),
            "cors" => plugin(Some(access::cors(config, notes))),
            "request-termination" => plugin(Some(access::termination(config, notes))),
            "request-transformer" | "request-transformer-advanced" => {
                vec![Piece::Rewrite(transform::request(config, notes))]
            }
            "response-transformer" | "response-transformer-advanced" => {
                plugin(transform::response(config, notes))
            }
            "correlation-id" => plugin(Some(transform::correlation_id(config, notes))),
            "proxy-cache" | "proxy-cache-advanced" => plugin(Some(observe::proxy_cache(config, node, notes))),
            "prometheus" => {
                config.node.whole();
                notes.cosmetic(node, "metrics have the names of APISIX: `apisix_http_status` and others");
                plugin(Some(("prometheus", json!({}))))
            }
            "http-log" => plugin(observe::http_log(config, node, notes)),
            "tcp-log" => plugin(observe::tcp_log(config, node, notes)),
            "file-log" => plugin(observe::file_log(config, node, notes)),
            "grpc-web" => {
                for name in ["allow_origin_header", "pass_stripped_path", "proto"] {
                    if let Some(part) = config.get(name) {
                        part.whole();
                        notes.behaviour(&part, "not supported by grpc-web here");
                    }
                }
                plugin(Some(("grpc-web", json!({}))))
            }
            name => {
                config.node.whole();
                self.unsupported(name, config, instance, notes);
                Vec::new()
            }
        }
    }

    fn unsupported(&self, name: &str, _config: &Entity<'_>, instance: &Instance<'_>, notes: &mut Notes) {
        let node = &instance.node;
        if OBSERVERS.contains(&name) {
            notes.behaviour(node, format!("`{name}` has no counterpart: nothing is sent to its server"));
        } else if CHANGERS.contains(&name) {
            notes
                .behaviour(node, format!("`{name}` has no counterpart: requests and answers pass unchanged"));
        } else {
            notes.guard(node, format!("`{name}` has no counterpart, and may protect its routes"));
        }
    }

    /// The name of the consumer that `anonymous` refers to.
    pub(super) fn anonymous(&self, config: &Entity<'_>, notes: &mut Notes) -> Option<String> {
        let node = config.get("anonymous")?;
        let text = node.text().filter(|text| !text.is_empty())?;
        match self.consumers.get(&text) {
            Some(index) => Some(self.usernames[*index].clone()),
            None => {
                notes.behaviour(
                    &node,
                    format!(
                        "no consumer `{text}` is in the file, so requests without a credential are refused"
                    ),
                );
                None
            }
        }
    }
}
