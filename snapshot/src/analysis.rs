//! What of a configuration is worth a second look: routes that no request reaches, resources that nobody
//! uses, settings that nobody reads, secrets in the clear, weak TLS, doors without a lock.
//!
//! Pure, and in n log n of the routes. Nothing here changes what is served: each finding says what, where,
//! why and what to do, and is told where configurations are checked.

mod effects;
mod nodes;
mod open;
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

use crate::router::{Mode, Options};

/// What is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    pub desired: &'a Desired,
    pub mode: Mode,
    pub options: Options,
    pub catalog: &'a dyn Catalog,
    /// Whether the store keeps secrets encrypted (`apisix.data_encryption`).
    pub encrypts: bool,
    /// The ports on which streams come; none where they are not known.
    pub stream_ports: &'a [u16],
    /// In seconds since 1970.
    pub now: i64,
}

/// Something worth a second look.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub code: Code,
    pub key: Key,
    /// Where in the resource, why, and what to do.
    pub invalid: Invalid,
}

/// What kind of finding it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// No request reaches a route, or no connection a stream route.
    Unreachable,
    /// Some of a route's paths are taken by others.
    Shadowed,
    /// Only ids decide which of two routes takes a request.
    Ambiguous,
    /// Nothing refers to it.
    Unused,
    /// A setting that the plugin does not have.
    UnknownSetting,
    /// A variable without a value in this place.
    UnknownVariable,
    /// `:name` in a path under a router without parameters.
    LiteralParameter,
    /// A rewritten path whose percent-encoding is encoded again.
    DoubleEncoding,
    /// A plugin or a resource that this version is without.
    NoEffect,
    /// A server whose host is neither an address nor a name.
    NoHost,
    /// A secret is written as it is.
    ClearSecret,
    /// A certificate that no client accepts any more.
    ExpiredCertificate,
    /// A certificate that is not for a name it is served under.
    OtherName,
    /// TLS that does not protect.
    WeakTls,
    /// Every path, and nobody is asked who they are.
    NoAuthentication,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Analysis {
    /// By kind of finding, then by resource.
    pub findings: Vec<Finding>,
    /// How many more there are of a kind.
    pub more: BTreeMap<Code, usize>,
    told: BTreeMap<Code, usize>,
}

/// Findings of one kind that are told; the others are counted.
pub const MOST: usize = 100;

/// Looks at a configuration.
pub fn analyse(of: Of<'_>) -> Analysis {
    let mut found = Analysis::default();
    routes::look(of, &mut found);
    streams::look(of, &mut found);
    unused::look(of, &mut found);
    settings::look(of, &mut found);
    effects::look(of, &mut found);
    variables::look(of, &mut found);
    nodes::look(of, &mut found);
    secrets::look(of, &mut found);
    tls::look(of, &mut found);
    open::look(of, &mut found);
    found.findings.sort_by(|a, b| (a.code, &a.key).cmp(&(b.code, &b.key)));
    found
}

impl Analysis {
    fn add(&mut self, code: Code, key: &Key, invalid: Invalid) {
        let told = self.told.entry(code).or_default();
        if *told == MOST {
            *self.more.entry(code).or_default() += 1;
            return;
        }
        *told += 1;
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

/// Whether a plugin is among these, or named within the settings of one that builds others.
fn names(plugins: &Plugins, wanted: &dyn Fn(&str) -> bool) -> bool {
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
