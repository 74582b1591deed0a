//! Lints a configuration: unreachable routes, unused resources, settings that no plugin reads,
//! secrets in clear text, weak TLS, routes without authentication.
//!
//! Pure, and O(n log n) in the number of routes. The lints never change behaviour: each finding
//! says what is wrong, where, why and how to fix it, and is reported wherever configurations are
//! checked.

mod effects;
mod guards;
mod nodes;
mod open;
mod paths;
mod routes;
mod secrets;
mod settings;
mod streams;
mod tls;
mod unused;
mod variables;

use std::collections::BTreeMap;

use model::{Desired, Invalid, Key, Plugins};
use sdk::Catalog;
use serde_json::{Value, json};
use wire::target::PathRules;

use crate::router::{Mode, Options};

/// The input of an analysis.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub desired: &'a Desired,
    pub mode: Mode,
    pub options: Options,
    /// How request paths are normalised (`sluice.path`).
    pub paths: PathRules,
    pub catalog: &'a dyn Catalog,
    /// Whether the store keeps secrets encrypted (`apisix.data_encryption`).
    pub encrypts: bool,
    /// Ports of the stream listeners; empty if they are unknown.
    pub stream_ports: &'a [u16],
    /// Seconds since 1970.
    pub now: i64,
}

/// A likely mistake.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub code: Code,
    pub key: Key,
    /// Pointer into the resource, reason and hint.
    pub invalid: Invalid,
}

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A route that no request reaches, or a stream route that no connection reaches.
    Unreachable,
    /// A route some of whose paths other routes take.
    Shadowed,
    /// Two routes that only their ids put in order.
    Ambiguous,
    /// A resource that nothing refers to.
    Unused,
    /// A setting that the plugin does not have.
    UnknownSetting,
    /// A variable without a value in this place.
    UnknownVariable,
    /// `:name` in a path under a router without parameters.
    LiteralParameter,
    /// A rewritten path that is percent-encoded twice.
    DoubleEncoding,
    /// A plugin or a resource that this version does not implement.
    NoEffect,
    /// A node whose host is neither an address nor a host name, or an SNI that is not a host name.
    NoHost,
    /// A secret in clear text.
    ClearSecret,
    /// An expired certificate.
    ExpiredCertificate,
    /// A certificate that does not cover a name it is served for.
    OtherName,
    /// TLS that does not protect the connection.
    WeakTls,
    /// A route for every path that requires no authentication.
    NoAuthentication,
    /// A guard that another spelling of its paths bypasses.
    PathBypass,
}

/// The findings of an analysis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Analysis {
    /// By kind of finding, then by resource.
    pub findings: Vec<Finding>,
    /// By kind, the number of findings beyond [`MOST`].
    pub more: BTreeMap<Code, usize>,
    counts: BTreeMap<Code, usize>,
}

/// The most findings listed per kind; the rest are only counted.
pub const MOST: usize = 100;

/// Analyses a configuration.
pub fn analyse(of: Input<'_>) -> Analysis {
    let mut found = Analysis::default();
    routes::check(of, &mut found);
    streams::check(of, &mut found);
    unused::check(of, &mut found);
    settings::check(of, &mut found);
    effects::check(of, &mut found);
    variables::check(of, &mut found);
    nodes::check(of, &mut found);
    secrets::check(of, &mut found);
    tls::check(of, &mut found);
    open::check(of, &mut found);
    paths::check(of, &mut found);
    found.findings.sort_by(|a, b| (a.code, &a.key).cmp(&(b.code, &b.key)));
    found
}

impl Analysis {
    fn add(&mut self, code: Code, key: &Key, invalid: Invalid) {
        let counts = self.counts.entry(code).or_default();
        if *counts == MOST {
            *self.more.entry(code).or_default() += 1;
            return;
        }
        *counts += 1;
        self.findings.push(Finding { code, key: key.clone(), invalid });
    }

    pub fn to_json(&self) -> Value {
        let findings = self.findings.iter().map(|Finding { code, key, invalid }| {
            json!({
                "code": code.as_str(),
                "key": key.to_string(),
                "pointer": invalid.pointer,
                "reason": invalid.reason,
                "hint": invalid.hint,
            })
        });
        let more = self.more.iter().map(|(code, count)| (code.as_str().to_owned(), json!(count)));
        json!({
            "total": self.findings.len() + self.more.values().sum::<usize>(),
            "list": findings.collect::<Vec<_>>(),
            "more": Value::Object(more.collect()),
        })
    }
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Unreachable => "unreachable",
            Code::Shadowed => "shadowed",
            Code::Ambiguous => "ambiguous",
            Code::Unused => "unused",
            Code::UnknownSetting => "unknown-setting",
            Code::UnknownVariable => "unknown-variable",
            Code::LiteralParameter => "literal-parameter",
            Code::DoubleEncoding => "double-encoding",
            Code::NoEffect => "no-effect",
            Code::NoHost => "no-host",
            Code::ClearSecret => "clear-secret",
            Code::ExpiredCertificate => "expired-certificate",
            Code::OtherName => "other-name",
            Code::WeakTls => "weak-tls",
            Code::NoAuthentication => "no-authentication",
            Code::PathBypass => "path-bypass",
        }
    }
}

impl std::fmt::Display for Analysis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.findings.is_empty() {
            return writeln!(f, "nothing found");
        }
        for Finding { code, key, invalid } in &self.findings {
            writeln!(f, "{}: {key}{}: {}", code.as_str(), invalid.pointer, invalid.reason)?;
            if let Some(hint) = &invalid.hint {
                writeln!(f, "  help: {hint}")?;
            }
        }
        for (code, count) in &self.more {
            writeln!(f, "and {count} more of {}", code.as_str())?;
        }
        Ok(())
    }
}

/// Whether a plugin is configured here, or within the settings of a plugin that runs other plugins.
fn uses_plugin(plugins: &Plugins, wanted: &dyn Fn(&str) -> bool) -> bool {
    fn within(value: &Value, wanted: &dyn Fn(&str) -> bool) -> bool {
        match value {
            Value::Array(items) => items.iter().any(|item| within(item, wanted)),
            Value::Object(fields) => fields.iter().any(|(name, field)| wanted(name) || within(field, wanted)),
            _ => false,
        }
    }
    plugins.iter().any(|(name, config)| {
        let is_off = config.pointer("/_meta/disable").and_then(Value::as_bool) == Some(true);
        let builds = matches!(name.as_str(), "multi-auth" | "workflow");
        !is_off && (wanted(name) || builds && within(config, wanted))
    })
}
