//! Configuration as operators write it: resources, the boot file, declarative files; parsing, checking, defaults.
//!
//! This room turns text and JSON into typed values, or returns mistakes with their places. It never opens a file or
//! a socket, reads a clock or the environment, or knows a plugin's own schema.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

pub mod apisix_plugins;
pub mod boot;
mod conceal;
pub mod consumer;
pub mod consumer_group;
pub mod cost_decoration;
pub mod credential;
pub mod declarative;
pub mod desired;
pub mod diagnostic;
pub mod document;
pub mod entry;
mod field;
pub mod gaps;
pub mod global_rule;
pub mod invalid;
pub mod json;
pub mod key;
pub mod kind;
pub mod lookaround;
pub mod network;
pub mod parallel;
pub mod plugin_config;
pub mod plugin_metadata;
pub mod private_keys;
pub mod proto;
pub mod references;
pub mod rejected;
pub mod resource;
pub mod route;
pub mod schema;
pub mod script;
pub mod secret;
pub mod service;
pub mod ssl;
pub mod stream_route;
pub mod upstream;
mod variables;
pub mod xrpc;
pub mod yaml;

pub use boot::Boot;
pub use consumer::Consumer;
pub use consumer_group::ConsumerGroup;
pub use cost_decoration::CostDecoration;
pub use credential::Credential;
pub use declarative::Declarative;
pub use desired::Desired;
pub use diagnostic::{Diagnostic, Severity, Source};
pub use document::{Document, Position, SyntaxError};
pub use entry::Entry;
pub use field::{Meta, Plugins, Timeout};
pub use global_rule::GlobalRule;
pub use invalid::{Fault, Invalid};
pub use key::Key;
pub use kind::Kind;
pub use plugin_config::PluginConfig;
pub use plugin_metadata::PluginMetadata;
pub use proto::Proto;
pub use rejected::{Rejected, Served};
pub use resource::Resource;
pub use route::Route;
pub use schema::Schema;
pub use script::Script;
pub use secret::Secret;
pub use service::Service;
pub use ssl::{CertificatePair, ClientVerification, Ssl, SslType, fault_of_sni};
pub use stream_route::StreamRoute;
pub use upstream::{Node, Upstream};
