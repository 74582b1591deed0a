//! Plugins that only show their configuration, and snapshots as text.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "writing to a string cannot fail")]

pub mod any_expression;
pub mod any_rules;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::declarative::{Declarative, Format};
use model::{Desired, Entry, Fault, Invalid, Key, Kind, Rejected, Resource, Served};
use sdk::build::Names;
use sdk::catalog::{About, Facts, SchemaType, Scope, Subsystem};
use sdk::chain::Fitting;
use sdk::consumers::Credential;
use sdk::{Catalog, Chain, Instance, Phase, Phases, UpstreamHandle};
use serde_json::{Value, json};
use snapshot::compile::Settings;
use snapshot::{Compiled, Compiler, Endpoint, Plan, Snapshot, Touched, Upstream};

/// Knows the plugins of [`NAMES`]; `key` is an auth plugin, `mirror` resolves its `host`. Each
/// reads its metadata unless `"alone": true`, is refused with `"bad": true`, and simulates a bug of
/// the gateway with `"panic": true`.
#[derive(Debug)]
pub struct Plugins;

pub const NAMES: [&str; 5] = ["cors", "key", "limit", "log", "mirror"];

/// An instance that does nothing.
pub struct Shown {
    pub text: String,
    /// The upstreams of `to` and `to_id` in its settings.
    pub upstreams: Vec<UpstreamHandle>,
}

/// The instances of a chain, in the order of their names.
pub fn shown(chain: &Chain) -> Vec<&Shown> {
    chain.stages().filter_map(|stage| (stage.instance() as &dyn Any).downcast_ref()).collect()
}

fn check(name: &str, config: &Value) -> Result<&'static str, Invalid> {
    let Some(known) = NAMES.into_iter().find(|known| *known == name) else {
        return Err(Invalid::new(format!("unknown plugin [{name}]")));
    };
    if config["bad"] == json!(true) {
        return Err(Invalid::new("it is bad").at("/bad"));
    }
    assert!(config["panic"] != json!(true), "simulated by a test");
    Ok(known)
}

impl Catalog for Plugins {
    fn check(&self, name: &str, config: &Value, _: SchemaType) -> Result<(), Invalid> {
        check(name, config).map(drop)
    }

    fn chain(
        &self,
        entries: &[sdk::catalog::Configured<'_>],
        scope: &Scope<'_>,
    ) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::new();
        for entry in entries {
            let mut upstreams = Vec::new();
            if scope.enabled.is_some_and(|enabled| !enabled(entry.name)) {
                return Err(Invalid::new(format!("{} is not listed", entry.name)).within(entry.name));
            }
            let name = check(entry.name, entry.config).map_err(|invalid| invalid.within(entry.name))?;
            let mut text = format!("{name}{} of {}/{}", entry.config, entry.owner.collection, entry.owner.id);
            if entry.config["alone"] != json!(true)
                && let Some(metadata) = (scope.metadata)(name)
            {
                write!(text, " with {metadata}").unwrap();
            }
            if let Some(host) = entry.config["host"].as_str() {
                write!(text, " to {:?}", scope.names.addresses(host)).unwrap();
            }
            if let Some(makers) = scope.upstreams {
                if let Some(to) = entry.config.get("to") {
                    upstreams.push(makers.inline(&model::Upstream::parse(to)?)?);
                }
                upstreams.extend(entry.config["to_id"].as_str().map(|id| makers.by_id(id)));
            }
            let fitting = Fitting { name, priority: 0, meta: None };
            stages.push(fitting.stage(Shown { text, upstreams }));
        }
        stages.sort_by_key(|stage| stage.name());
        Ok(Arc::new(Chain::new(stages, Vec::new())))
    }

    fn stream_chain(
        &self,
        entries: &[sdk::catalog::Configured<'_>],
        scope: &Scope<'_>,
    ) -> Result<Arc<Chain>, Invalid> {
        self.chain(entries, scope)
    }

    fn has_stream(&self, name: &str) -> bool {
        NAMES.contains(&name)
    }

    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        let known = check(name, config)?;
        let key = config["key"].as_str().filter(|_| known == "key");
        Ok(key.map(|key| (known, Credential { key: key.into(), secret: None })))
    }

    fn about(&self) -> Vec<About> {
        let about = |name| About {
            name,
            subsystem: Subsystem::Http,
            priority: 0,
            auth: name == "key",
            by_default: true,
            is_stored: false,
            needs_no_entry: false,
        };
        NAMES.into_iter().map(about).collect()
    }

    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts> {
        let known = subsystem == Subsystem::Http && NAMES.contains(&name);
        let secret = |field| json!({"encrypt_fields": [field]});
        known.then(|| Facts {
            version: json!(0.1),
            kind: None,
            scope: None,
            schema: secret("password"),
            consumer_schema: (name == "key").then(|| secret("key")),
            metadata_schema: Some(secret("deep.token")),
        })
    }
}

impl Instance for Shown {
    fn phases(&self) -> Phases {
        Phases::ACCESS
    }
}

/// Names from a table.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Table(pub BTreeMap<String, Vec<IpAddr>>);

impl Names for Table {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.0.get(host).cloned().unwrap_or_default()
    }
}

pub fn compiler() -> Compiler {
    let env = |name: &str| (name == "SECRET").then(|| "s3cret".to_owned());
    Compiler::new(Arc::new(Plugins), Settings { env: Arc::new(env), ..Settings::default() })
}

pub fn entry(kind: Kind, id: &str, value: Value) -> Arc<Entry> {
    let resource = Resource::parse(kind, id, &value).unwrap_or_else(|invalid| panic!("{invalid:?}"));
    Arc::new(Entry::of_text(Key::new(kind, id), resource, value.to_string().into(), 1, 1))
}

/// Releases the parsed entries that the last compile has read, as the pipeline does.
pub fn release_parsed(compiler: &mut Compiler, desired: &mut Desired) {
    for key in compiler.take_read() {
        let rested = desired.put_to_rest(&key);
        compiler.release_parsed(&key, rested.as_ref());
    }
}

/// Parses the resources of a declarative file.
pub fn desired(text: &str) -> Desired {
    let text = format!("{text}\n#END\n");
    let file = Declarative::parse("case", &text, Format::Yaml, &NAMES, &|_: &str| None)
        .unwrap_or_else(|diagnostic| panic!("{diagnostic}"));
    assert!(file.diagnostics.is_empty(), "{:?}", file.diagnostics);
    let mut desired = Desired::default();
    desired.plugins = file.plugins;
    desired.stream_plugins = file.stream_plugins;
    for item in file.items {
        let (key, resource) = (item.key, item.resource);
        desired.put(Arc::new(Entry::new(key, resource, 1, 1)));
    }
    desired
}

/// The difference that a watch of a store would report; equal entries stay the same.
pub fn difference(old: &Desired, new: &mut Desired) -> Touched {
    let mut touched = Touched::default();
    for entry in old.iter() {
        match new.get(entry.key.kind, &entry.key.id) {
            Some(now) if now.resource() == entry.resource() => _ = new.put(entry.clone()),
            _ => _ = touched.keys.insert(entry.key.clone()),
        }
    }
    let added = new.iter().filter(|entry| old.get(entry.key.kind, &entry.key.id).is_none());
    touched.keys.extend(added.map(|entry| entry.key.clone()));
    touched
}

/// Whether the report depends on earlier compiles: the resource keeps an older version, or is
/// refused because that version lacked a secret.
pub fn depends_on_history(rejected: &Rejected) -> bool {
    rejected.kept() || (rejected.served == Served::Refusal && rejected.invalid.fault != Fault::Unread)
}

/// Everything in a snapshot that a request can observe.
pub fn print(compiled: &Compiled, desired: &Desired) -> String {
    let mut out = String::new();
    let snapshot = &compiled.snapshot;
    let Snapshot { router, consumers, global, .. } = snapshot;
    let mut printed = 0;
    for entry in desired.of(Kind::Route) {
        let id = &entry.key.id;
        let (Some(rule), Some(plan)) = (router.rule(id), router.plan(id)) else { continue };
        printed += 1;
        writeln!(out, "route {} {}", rule.id, rule.uris.join(" ")).unwrap();
        for (word, set) in [
            ("hosts", (!rule.hosts.is_empty()).then(|| rule.hosts.join(" "))),
            ("methods", (rule.methods != 0).then(|| format!("{:b}", rule.methods))),
            ("from", (!rule.remote_addrs.is_empty()).then(|| format!("{:?}", rule.remote_addrs))),
            ("priority", (rule.priority != 0).then(|| rule.priority.to_string())),
            ("if", rule.vars.is_some().then(|| "vars".to_owned())),
        ] {
            if let Some(set) = set {
                writeln!(out, "  {word} {set}").unwrap();
            }
        }
        print_plan(&mut out, snapshot, plan);
    }
    assert_eq!(printed, router.len(), "a rule without a route");
    for entry in desired.of(Kind::Consumer) {
        let Some(consumer) = consumers.by_name(&entry.key.id) else { continue };
        write!(out, "consumer {}", consumer.name).unwrap();
        for (word, set) in [("group", &consumer.group_id), ("custom id", &consumer.custom_id)] {
            if let Some(set) = set {
                write!(out, ", {word} {set}").unwrap();
            }
        }
        out.push('\n');
        print_chain(&mut out, snapshot, consumer.chain.as_deref());
    }
    for key in ["k1", "k2", "k3", "s3cret"] {
        if let Some(found) = consumers.find("key", key.as_bytes()) {
            let by = found.credential_id.as_ref().map(|id| format!(" by {id}")).unwrap_or_default();
            writeln!(out, "key {key} is {}{by}", found.consumer.name).unwrap();
        }
    }
    if consumers.any("key") {
        writeln!(out, "there are keys").unwrap();
    }
    if consumers.bring(Phase::Access) {
        writeln!(out, "consumers bring plugins").unwrap();
    }
    if let Some(global) = global {
        writeln!(out, "global").unwrap();
        print_chain(&mut out, snapshot, Some(&**global));
    }
    for rejected in compiled.rejected.iter() {
        let kept = match rejected.served {
            Served::LastGoodForm => "kept",
            Served::Refusal => "refused",
            Served::Nothing | Served::Incomplete => "left out",
        };
        writeln!(
            out,
            "rejected {} ({kept}) at {:?}: {}",
            rejected.key, rejected.invalid.pointer, rejected.invalid.reason
        )
        .unwrap();
    }
    if !compiled.wanted_hosts.is_empty() {
        let hosts: Vec<&str> = compiled.wanted_hosts.iter().map(String::as_str).collect();
        writeln!(out, "wanted {}", hosts.join(" ")).unwrap();
    }
    out
}

/// Each resource is served or rejected, and each rejected one exists.
pub fn nothing_is_lost(compiled: &Compiled, desired: &Desired) {
    let rejected = |key: &Key| compiled.rejected.iter().any(|rejected| rejected.key == *key);
    for entry in desired.iter() {
        let key = &entry.key;
        let consumers = &compiled.snapshot.consumers;
        let served = match entry.resource() {
            Resource::Route(route) => !route.enabled || compiled.snapshot.router.rule(&key.id).is_some(),
            Resource::Consumer(consumer) => {
                let identity = consumer.plugins.get("key").and_then(|config| config["key"].as_str());
                let found = identity.and_then(|key| consumers.find("key", key.as_bytes()));
                let has = |name: &str| found.is_some_and(|found| found.consumer.name == name);
                consumers.by_name(&key.id).is_some() && (identity.is_none() || has(&key.id))
            }
            Resource::Credential(_) => {
                let owner = key.owner().expect("a credential has an owner");
                let config = entry.resource().plugins().and_then(|plugins| plugins.get("key"));
                let identity = config.and_then(|config| config["key"].as_str());
                let found = identity.and_then(|key| consumers.find("key", key.as_bytes()));
                let has = found.is_some_and(|found| found.credential_id.as_deref() == Some(key.leaf()));
                consumers.by_name(owner).is_none() || identity.is_none() || has
            }
            Resource::GlobalRule(_) if desired.plugins.is_none() => {
                let plugins = entry.resource().plugins().into_iter().flat_map(|plugins| plugins.keys());
                let names = compiled.snapshot.global.as_ref().map(|chain| chain.names()).unwrap_or_default();
                plugins.into_iter().all(|plugin| names.contains(&plugin.as_str()))
            }
            _ => true,
        };
        assert!(served || rejected(key), "{key} is neither served nor rejected");
    }
    for one in &*compiled.rejected {
        assert!(desired.get(one.key.kind, &one.key.id).is_some(), "{} is rejected, but gone", one.key);
    }
}

fn print_plan(out: &mut String, snapshot: &Snapshot, plan: &Plan) {
    let info = &plan.info;
    for (word, set) in [("name", &info.name), ("service", &info.service_id), ("named", &info.service_name)] {
        if !set.is_empty() {
            writeln!(out, "  {word} {set}").unwrap();
        }
    }
    print_chain(out, snapshot, plan.chain.as_deref());
    let upstream = snapshot.upstream(plan);
    match upstream {
        Ok(upstream) => print_upstream(out, upstream),
        Err(failure) => writeln!(out, "  no upstream: {failure:?}").unwrap(),
    }
    let timeouts = upstream.map_or(plan.timeouts.as_deref().copied(), |up| Some(*plan.timeouts(up)));
    let timeouts = timeouts.unwrap_or_default();
    let seconds = [timeouts.connect, timeouts.send, timeouts.read].map(|t| t.as_secs());
    if seconds != [60, 60, 60] {
        writeln!(out, "  timeouts {seconds:?}").unwrap();
    }
    if plan.websocket {
        writeln!(out, "  websocket").unwrap();
    }
}

fn print_chain(out: &mut String, snapshot: &Snapshot, chain: Option<&Chain>) {
    for shown in chain.map(shown).into_iter().flatten() {
        writeln!(out, "  {}", shown.text).unwrap();
        for handle in &shown.upstreams {
            match snapshot.chosen(handle.slot()) {
                Ok(upstream) => print_upstream(out, upstream),
                Err(failure) => writeln!(out, "  chosen: {failure:?}").unwrap(),
            }
        }
    }
}

fn print_upstream(out: &mut String, upstream: &Upstream) {
    let policy = format!("{:?}", upstream.policy);
    let policy = policy.split('(').next().unwrap_or_default();
    let keepalive = &upstream.keepalive;
    writeln!(
        out,
        "  upstream {} {:?} {policy} {:?} retries {} within {:?} keep {} {:?} {}",
        upstream.id,
        upstream.scheme,
        upstream.pass_host,
        upstream.retries,
        upstream.retry_timeout,
        keepalive.size,
        keepalive.idle_timeout,
        keepalive.requests,
    )
    .unwrap();
    for Endpoint { addr, authority, weight, priority } in &upstream.endpoints {
        writeln!(out, "    {addr} as {authority} weight {weight} priority {priority}").unwrap();
    }
}

/// The YAML files of a folder, in order.
pub fn cases(folder: &Path) -> Vec<PathBuf> {
    let mut cases: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    cases
}

/// Compares a text with the expected file, or writes the file if `BLESS` is set.
pub fn compare(expected: &Path, text: &str) {
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(expected, text).expect("written");
    }
    let wanted = std::fs::read_to_string(expected).unwrap_or_default();
    assert_eq!(text, wanted, "{}", expected.display());
}
