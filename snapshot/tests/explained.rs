//! Questions in, explanations out.
//!
//! Each `explained/*.yaml` holds a configuration and, as lines `#? METHOD URL | …`, the questions
//! about it; after the URL come optional headers, `from ADDRESS`, `body TEXT`, and `json` for the
//! machine-readable form. The file of the same name with `.txt` holds the expected text. To rewrite
//! the expected texts after reviewing the difference: `BLESS=1 cargo test -p snapshot
//! explained`.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use crate::support::{self, NAMES, Table, desired};
use model::{Invalid, Rejected};
use sdk::catalog::{About, Configured, Facts, SchemaType, Scope, Subsystem};
use sdk::chain::{Fitting, Meta};
use sdk::consumers::Credential;
use sdk::exchange::Body;
use sdk::expr::Expr;
use sdk::{
    Catalog, Chain, Doubtful, Exchange, Instance, Phase, Phases, Reply, Step, Undecidable, UpstreamHandle,
};
use serde_json::Value;
use snapshot::compile::Settings;
use snapshot::explain::{Input, Question, explain};
use snapshot::health::Probed;
use snapshot::router::{Mode, Options};
use snapshot::{Compiler, Snapshot, Touched};
use wire::h1::decode::Limits;

/// The plugins of [`NAMES`] and traffic-split, each of which acts as its settings say.
#[derive(Debug)]
struct Acting;

/// An instance that acts as its settings say in the phases of `in`.
struct Actor {
    config: Value,
    upstream: Option<UpstreamHandle>,
}

impl Catalog for Acting {
    fn check(&self, _: &str, _: &Value, _: SchemaType) -> Result<(), Invalid> {
        Ok(())
    }

    fn chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::new();
        for entry in entries {
            let mut known = NAMES.into_iter().chain(["traffic-split"]);
            let name = known.find(|name| *name == entry.name).expect("a known plugin");
            if entry.config["bad"].is_boolean() {
                return Err(Invalid::new(format!("{name} is bad")).at(format!("/{name}/bad")));
            }
            let config = entry.config.clone();
            let of_meta = |field: &str| config.get("_meta").and_then(|meta| meta.get(field));
            let filter = of_meta("filter").map(Expr::compile).transpose()?;
            let priority = of_meta("priority").and_then(Value::as_i64).unwrap_or_default() as i32;
            let upstream = match (scope.upstreams, config.get("choose")) {
                (Some(makers), Some(Value::String(id))) => Some(makers.by_id(id)),
                (Some(makers), Some(written)) => Some(makers.inline(&model::Upstream::parse(written)?)?),
                _ => None,
            };
            let meta = filter.map(|filter| Box::new(Meta { filter: Some(filter), error_response: None }));
            stages.push(Fitting { name, priority, meta }.stage(Actor { config, upstream }));
        }
        stages.sort_by_key(|stage| std::cmp::Reverse(stage.priority()));
        Ok(Arc::new(Chain::new(stages, Vec::new())))
    }

    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        let key = config["key"].as_str().filter(|_| name == "key");
        Ok(key.map(|key| ("key", Credential { key: key.into(), secret: None })))
    }

    fn about(&self) -> Vec<About> {
        Vec::new()
    }

    fn facts(&self, _: Subsystem, _: &str) -> Option<Facts> {
        None
    }
}

impl Instance for Actor {
    fn phases(&self) -> Phases {
        let named = self.config["in"].as_array().into_iter().flatten().filter_map(Value::as_str);
        named.fold(Phases::NONE, |phases, name| {
            phases.with(match name {
                "rewrite" => Phases::REWRITE,
                "access" => Phases::ACCESS,
                "before_proxy" => Phases::BEFORE_PROXY,
                "header_filter" => Phases::HEADER_FILTER,
                "body_filter" => Phases::BODY_FILTER,
                "log" => Phases::LOG,
                other => panic!("{other} is no phase"),
            })
        })
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        self.config["strict"].is_boolean().then_some(Doubtful::SEMICOLON)
    }

    fn is_pure(&self) -> bool {
        self.config.get("counts").is_none()
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        let text = |field: &str| self.config[field].as_str();
        if self.config["reads"].is_boolean() && x.body_state() == Body::Streaming {
            return Step::Body(100);
        }
        if text("only") == Some("access") && phase != Phase::Access {
            return Step::Next;
        }
        if text("refuses").is_some() {
            return Step::Refuse(Undecidable::TooLarge);
        }
        if let Some(header) = text("identifies_by") {
            let consumers = x.consumers();
            let key = x.request().fields.get_named(header.as_bytes()).unwrap_or_default().to_vec();
            match consumers.find("key", &key) {
                Some(identity) => x.authenticate(identity.clone()),
                None => return Step::Reply(Reply::text(401, "who are you?\n")),
            }
        }
        if self.config["until"].as_u64().is_some_and(|until| x.world().now_ms() > until) {
            return Step::Reply(Reply::text(401, "too late\n"));
        }
        if let Some(uri) = text("sends_uri") {
            x.set_upstream_uri(uri.as_bytes());
        }
        if let Some(method) = text("sends_method") {
            x.set_upstream_method(wire::Method::from_bytes(method.as_bytes()), method.as_bytes());
        }
        if let Some(host) = text("sends_host") {
            x.set_upstream_host(host.as_bytes());
        }
        if let Some(upstream) = &self.upstream {
            x.choose_upstream(upstream);
        }
        match (self.config["answers"].as_u64(), text("location")) {
            (Some(status), Some(to)) => Step::Reply(Reply::status(status as u16).header("Location", to)),
            (Some(status), None) => Step::Reply(Reply::text(status as u16, "an answer\n")),
            (None, _) => Step::Next,
        }
    }
}

/// Parses a question, and whether its answer is shown as JSON.
fn question(line: &str) -> (Question, bool) {
    let mut parts = line.split(" | ");
    let (method, url) = parts.next().and_then(|asked| asked.split_once(' ')).expect("a method and a URL");
    let mut question = Question { method: method.to_owned(), url: url.to_owned(), ..Question::default() };
    let mut json = false;
    for part in parts {
        match part.split_once(' ') {
            None => json = part == "json",
            Some(("from", address)) => question.remote_addr = Some(address.parse().expect("an address")),
            Some(("body", body)) => question.body = Some(body.as_bytes().to_vec()),
            Some((name, value)) => {
                question.headers.push((name.trim_end_matches(':').to_owned(), value.to_owned()))
            }
        }
    }
    (question, json)
}

/// Lines `# NAME = address …` set the addresses of names, `# down = address …` the failing servers,
/// `# mode = …` the router mode; `# servlet` enables `normalize_uri_like_servlet`.
fn settings(text: &str) -> (Table, Vec<String>, Mode) {
    let (mut names, mut down, mut mode) = (Table::default(), Vec::new(), Mode::HostUri);
    for (name, values) in text.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(" = ")) {
        match name {
            "down" => down.extend(values.split(' ').map(str::to_owned)),
            "mode" => mode = if values == "uri" { Mode::Uri } else { Mode::UriWithParameter },
            host => {
                let addresses: Vec<IpAddr> =
                    values.split(' ').map(|value| value.parse().expect("an address")).collect();
                names.0.insert(host.to_owned(), addresses);
            }
        }
    }
    (names, down, mode)
}

/// Makes the servers with these addresses fail their checks.
fn take_down(snapshot: &Snapshot, ids: &[String], down: &[String]) {
    for plan in ids.iter().filter_map(|id| snapshot.router.plan(id)) {
        let Ok(upstream) = snapshot.upstream(plan) else { continue };
        let Some(health) = &upstream.health else { continue };
        for (target, endpoint) in health.targets().zip(&upstream.endpoints) {
            let is_down = down.contains(&endpoint.addr.to_string());
            (0..9).filter(|_| is_down).for_each(|_| health.probed(target, Probed::Failed));
        }
    }
}

fn run(text: &str) -> String {
    let all = desired(text);
    let (names, down, mode) = settings(text);
    let servlet = text.contains("# servlet\n");
    let options = Options { normalize_uri_like_servlet: servlet, ..Options::default() };
    let mut compiler = Compiler::new(Arc::new(Acting), Settings { mode, options, ..Settings::default() });
    let compiled = compiler.compile(&all, &Touched::all(), &names, 7);
    let rejected: &[Rejected] = &compiled.rejected;
    let ids: Vec<String> = all.of(model::Kind::Route).map(|entry| entry.key.id.clone()).collect();
    take_down(&compiled.snapshot, &ids, &down);
    let of = Input {
        snapshot: &compiled.snapshot,
        desired: &all,
        rejected,
        not_asked: &[],
        now_ms: 1_700_000_000_000,
        limits: Limits::default(),
    };
    let mut out = String::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("#? ")) {
        let (question, json) = question(line);
        let explanation = match explain(of, &question) {
            Ok(explanation) if json => format!("{:#}\n", explanation.to_json()),
            Ok(explanation) => explanation.to_string(),
            Err(why) => format!("error: {why}\n"),
        };
        out.push_str(&format!("=== {line}\n{explanation}\n"));
    }
    out
}

#[test]
fn explanations_are_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explained");
    for case in support::cases(&folder) {
        let out = run(&std::fs::read_to_string(&case).expect("a case"));
        support::compare(&case.with_extension("txt"), &out);
    }
}
