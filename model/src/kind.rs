//! The kinds of resource operators write, under APISIX's names.
//!
//! This table is the only place where a kind meets its spellings. It never
//! knows what a kind's fields are; those live in one file a kind.

use std::fmt;

/// A kind of resource, in APISIX 3.x's set; scripts are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Route,
    Service,
    Upstream,
    Consumer,
    Credential,
    ConsumerGroup,
    GlobalRule,
    PluginConfig,
    PluginMetadata,
    Ssl,
    StreamRoute,
    Secret,
    Proto,
    CostDecoration,
    Script,
}

impl Kind {
    /// Every kind, in the order they are declared.
    pub const ALL: [Kind; 15] = [
        Kind::Route,
        Kind::Service,
        Kind::Upstream,
        Kind::Consumer,
        Kind::Credential,
        Kind::ConsumerGroup,
        Kind::GlobalRule,
        Kind::PluginConfig,
        Kind::PluginMetadata,
        Kind::Ssl,
        Kind::StreamRoute,
        Kind::Secret,
        Kind::Proto,
        Kind::CostDecoration,
        Kind::Script,
    ];

    /// The name of the collection in paths, store keys and declarative files:
    /// `routes`, `consumer_groups`, `plugin_metadata`.
    pub fn collection(self) -> &'static str {
        match self {
            Kind::Route => "routes",
            Kind::Service => "services",
            Kind::Upstream => "upstreams",
            Kind::Consumer => "consumers",
            Kind::Credential => "credentials",
            Kind::ConsumerGroup => "consumer_groups",
            Kind::GlobalRule => "global_rules",
            Kind::PluginConfig => "plugin_configs",
            Kind::PluginMetadata => "plugin_metadata",
            Kind::Ssl => "ssls",
            Kind::StreamRoute => "stream_routes",
            Kind::Secret => "secrets",
            Kind::Proto => "protos",
            Kind::CostDecoration => "graphql_cost_decorations",
            Kind::Script => "scripts",
        }
    }

    /// The words APISIX's messages use for one of this kind:
    /// ``missing global rule id``, ``not supported `POST` method for plugin_metadata``.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Route => "route",
            Kind::Service => "service",
            Kind::Upstream => "upstream",
            Kind::Consumer => "consumer",
            Kind::Credential => "credential",
            Kind::ConsumerGroup => "consumer group",
            Kind::GlobalRule => "global rule",
            Kind::PluginConfig => "plugin config",
            Kind::PluginMetadata => "plugin_metadata",
            Kind::Ssl => "ssl",
            Kind::StreamRoute => "stream route",
            Kind::Secret => "secret",
            Kind::Proto => "proto",
            Kind::CostDecoration => "graphql cost decoration",
            Kind::Script => "script",
        }
    }

    /// The kind that one of this kind belongs to. Its id is then `owner/collection/id`, it lives in stores and paths
    /// below its owner, stands in files among its owner's kind, and goes with its owner.
    pub fn owner(self) -> Option<Kind> {
        match self {
            Kind::Credential => Some(Kind::Consumer),
            Kind::CostDecoration => Some(Kind::Service),
            _ => None,
        }
    }

    /// The kind that belongs to one of this kind.
    pub fn owned(self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.owner() == Some(self))
    }

    /// The kind whose collection has this name.
    pub fn from_collection(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.collection() == name)
    }

    /// This kind's place in [`Kind::ALL`], for tables indexed by kind.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collection_leads_back_to_its_kind() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(Kind::from_collection(kind.collection()), Some(kind));
        }
        assert_eq!(Kind::from_collection("route"), None);
    }
}
