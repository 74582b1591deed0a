//! Explains how a request would be handled, and why.
//!
//! The request is parsed by `wire`, looked up in a snapshot's router, and shown to the plugin
//! instances of its chains: the same code that serves. The desired state from which the snapshot
//! was compiled tells which resources are involved. Nothing is sent, counted or stored: an instance
//! with side effects ([`sdk::Plugin::is_pure`]) is not called and is listed as decided at request
//! time.

mod candidates;
mod chains;
mod target;
mod text;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

use model::{Desired, Key, Kind, Rejected, Resource, Served, gaps};
use sdk::engine::Messages;
use sdk::exchange::Body;
use sdk::inert::InertWorld;
use sdk::{Client, Doubtful, Exchange};
use serde_json::{Value, json};
use wire::Method;
use wire::h1::decode::{self, Limits, Progress};

use crate::Snapshot;
use crate::router::RouteLookup;
pub use candidates::{Candidate, CandidateOutcome};
pub use chains::{LocalReply, Stage, StageOutcome};
pub use target::{Server, UpstreamSummary};

/// A request to explain, as the user describes it.
#[derive(Debug, Clone, Default)]
pub struct Question {
    pub method: String,
    /// `http://host/path?query`, `https://…`, or only the part after the host.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// The client's address as routes and plugins see it; 127.0.0.1 by default.
    pub remote_addr: Option<IpAddr>,
    pub body: Option<Vec<u8>>,
}

/// The configuration that explains a request.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub snapshot: &'a Snapshot,
    /// The desired state that the snapshot was compiled from.
    pub desired: &'a Desired,
    /// Rejected resources, which are not served as configured.
    pub rejected: &'a [Rejected],
    /// Resources that need a secret which was not looked up for this explanation: whether they are served is unknown.
    pub not_asked: &'a [Rejected],
    /// Milliseconds since 1970, for expiry times.
    pub now_ms: u64,
    /// Limits of request heads.
    pub limits: Limits,
}

/// How a request would be handled.
#[derive(Debug, Default)]
pub struct Explanation {
    pub revision: u64,
    /// Method, scheme, host and path as the gateway understands them, and the client's address.
    pub request: RequestSummary,
    /// Why it is refused before routing: status and reason.
    pub refused: Option<(u16, String)>,
    /// The candidates, in the order they are tried.
    pub candidates: Vec<Candidate>,
    pub more_candidates: usize,
    /// Routes that are not tried, the closest first.
    pub others: Vec<Candidate>,
    pub more_others: usize,
    pub route: Option<ChosenRoute>,
    /// The plugins, in the order in which they run.
    pub stages: Vec<Stage>,
    /// The response of a plugin, or of the gateway if no route serves the request.
    pub answer: Option<LocalReply>,
    /// The chosen route, if it needs a secret which was not looked up: its plugins and its answer are unknown.
    pub not_asked: Option<String>,
    /// The consumer that the request is identified as, if known.
    pub consumer: Option<String>,
    pub upstream: Option<UpstreamSummary>,
    /// Further remarks.
    pub notes: Vec<String>,
}

/// The request as the gateway understands it.
#[derive(Debug, Default)]
pub struct RequestSummary {
    pub method: String,
    pub scheme: &'static str,
    pub host: String,
    pub path: String,
    pub remote_addr: String,
}

/// The route that was chosen.
#[derive(Debug)]
pub struct ChosenRoute {
    pub id: String,
    pub name: String,
    pub uri: String,
    pub host: Option<String>,
    pub service: Option<String>,
}

/// The most candidates, and the most other routes, that are listed.
pub const MOST_CANDIDATES: usize = 50;
pub const MOST_OTHERS: usize = 10;

/// Explains a request.
///
/// # Errors
/// Invalid text: no request can contain it.
pub fn explain(of: Input<'_>, question: &Question) -> Result<Explanation, String> {
    let mut explanation = Explanation { revision: of.snapshot.revision, ..Explanation::default() };
    let RequestBytes { head, tls } = request_bytes(question)?;
    let mut messages = Messages::default();
    let decoded = decode::request(&head, &mut Progress::default(), &mut messages.request, &of.limits);
    let peer = SocketAddr::new(question.remote_addr.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), if tls { 443 } else { 80 });
    explanation.request = RequestSummary {
        method: question.method.clone(),
        scheme: if tls { "https" } else { "http" },
        host: shown(messages.request.authority()),
        path: shown(messages.request.path()),
        remote_addr: peer.ip().to_canonical().to_string(),
    };
    match decoded {
        Ok(Some(_)) => {}
        Ok(None) => return Err("the request is incomplete".to_owned()),
        Err(refusal) => {
            explanation.request.path = printable(&question.url);
            explanation.refused = Some((refusal.status(), refusal.as_str().to_owned()));
            return Ok(explanation);
        }
    }
    let upgrades = messages.request.upgrade;
    wire::h1::hop::strip_request(&mut messages.request, upgrades);
    if matches!(messages.request.method, Method::Connect | Method::Trace) {
        explanation.refused = Some((405, "the gateway takes neither CONNECT nor TRACE".to_owned()));
        return Ok(explanation);
    }
    let client = Client::new(peer, local, tls);
    let world = InertWorld::new(of.now_ms);
    let mut x = Exchange::new(&mut messages, &client, &of.snapshot.consumers, &world);
    if question.body.is_some() {
        x.engine_mut().body_state = Body::Streaming;
    }
    // A panic is a bug in a plugin or in the gateway; it only costs this explanation.
    catch_unwind(AssertUnwindSafe(|| walk(of, question, &mut x, &mut explanation)))
        .map_err(|_| "internal error: explaining this request panicked".to_owned())?;
    Ok(explanation)
}

fn walk<'s>(of: Input<'s>, question: &Question, x: &mut Exchange<'s>, out: &mut Explanation) {
    let router = &of.snapshot.router;
    if let Err(why) = router.normalize(x) {
        out.refused = Some((400, why.to_string()));
        return;
    }
    let mut found = router.find(x);
    if matches!(found, RouteLookup::NeedsBody) {
        read_body(x, question);
        found = router.find(x);
    }
    candidates::explain(of, x, out);
    let plan = match found {
        RouteLookup::Plan(plan) => Some(&**plan),
        RouteLookup::Nothing | RouteLookup::NeedsBody => None,
        RouteLookup::Refused(why) => {
            out.refused = Some((why.status(), why.as_str().to_owned()));
            return;
        }
    };
    let doubtful = x.request().doubtful;
    let chains = [plan.and_then(|plan| plan.chain.as_deref()), of.snapshot.global.as_deref()];
    let refused =
        chains.into_iter().flatten().find_map(sdk::Chain::refused_in_path).unwrap_or(Doubtful::REFUSED);
    if !doubtful.is_empty() && doubtful.meets(refused) {
        out.refused = Some((400, wire::h1::Refusal::BadPath.as_str().to_owned()));
        return;
    }
    if let Some(plan) = plan {
        out.route = Some(ChosenRoute {
            id: plan.info.id.to_string(),
            name: plan.info.name.clone(),
            uri: x.matched_uri().to_owned(),
            host: Some(x.matched_host().to_owned()).filter(|host| !host.is_empty()),
            service: Some(plan.info.service_id.clone()).filter(|id| !id.is_empty()),
        });
        let is_it = |one: &&Rejected| one.key.kind == Kind::Route && *one.key.id == *plan.info.id;
        if let Some(one) = of.not_asked.iter().find(is_it) {
            out.not_asked = Some(one.key.to_string());
            return;
        }
        if let Some(one) = of.rejected.iter().find(is_it) {
            let (key, reason) = (&one.key, &one.invalid.reason);
            if one.served == Served::Refusal {
                out.notes.push(format!("{key} is not served, and its requests get 503: {reason}"));
                out.answer =
                    Some(LocalReply { status: Some(503), body: String::new(), reason: "", by: None });
                return;
            }
            out.notes.push(format!("{key} is served in its last good form, not as configured: {reason}"));
        }
    }
    chains::explain(of, plan, question, x, out);
    without_effect(of.desired, out);
    match plan {
        None if out.answer.is_none() => {
            let body = "{\"error_msg\":\"404 Route Not Found\"}".to_owned();
            out.answer = Some(LocalReply { status: Some(404), body, reason: "", by: None });
        }
        Some(plan) if out.answer.is_none() => target::explain(of, plan, x, out),
        _ => {}
    }
    // The plugin that answers may be undecided itself.
    let by = out.answer.as_ref().map(|answer| answer.by.as_ref().map(|(plugin, _)| plugin.as_str()));
    if let Some(by) = by
        && out.stages.iter().any(|stage| stage.ran == StageOutcome::Undecided && by != Some(stage.name))
    {
        out.notes.push("an earlier plugin may answer instead; this is decided at request time".to_owned());
    }
}

/// Notes settings without effect in the resources that the request involves.
fn without_effect(desired: &Desired, out: &mut Explanation) {
    let mut keys: Vec<Key> = desired.of(Kind::GlobalRule).map(|entry| entry.key.clone()).collect();
    if let Some(route) = &out.route {
        keys.push(Key::new(Kind::Route, route.id.as_str()));
        keys.extend(route.service.iter().map(|id| Key::new(Kind::Service, id.as_str())));
        if let Some(entry) = desired.get(Kind::Route, &route.id)
            && let Resource::Route(route) = entry.resource()
        {
            keys.extend(route.plugin_config_id.iter().map(|id| Key::new(Kind::PluginConfig, id.as_str())));
        }
    }
    keys.extend(out.consumer.iter().map(|name| Key::new(Kind::Consumer, name.as_str())));
    for entry in keys.iter().filter_map(|key| desired.get(key.kind, &key.id)) {
        let ignored = gaps::ignored_by(&entry.key, entry.resource());
        out.notes.extend(ignored.iter().map(|invalid| gaps::line(&entry.key, invalid)));
    }
}

/// Puts the body into the exchange, as the proxy does when a plugin requests it.
fn read_body(x: &mut Exchange<'_>, question: &Question) {
    if x.body_state() == Body::None {
        return;
    }
    x.engine_mut().messages.body = question.body.clone().unwrap_or_default().into();
    x.engine_mut().body_state = Body::Whole;
}

/// The bytes of a request.
struct RequestBytes {
    head: Vec<u8>,
    tls: bool,
}

/// Writes the head of the request, as a client would send it.
fn request_bytes(question: &Question) -> Result<RequestBytes, String> {
    let (tls, rest) = match (question.url.strip_prefix("http://"), question.url.strip_prefix("https://")) {
        (Some(rest), _) => (false, Some(rest)),
        (_, Some(rest)) => (true, Some(rest)),
        _ => (false, None),
    };
    let (host, target) = match rest {
        Some(rest) => {
            let at = rest.find(['/', '?']).unwrap_or(rest.len());
            (Some(&rest[..at]), &rest[at..])
        }
        None => (None, question.url.as_str()),
    };
    // Browsers do not send the fragment.
    let target = target.split('#').next().unwrap_or_default();
    let target = match target.starts_with('/') || target == "*" {
        true => target.to_owned(),
        false if target.is_empty() || target.starts_with('?') => format!("/{target}"),
        false => return Err(format!("`{}` is neither a URL nor a path", question.url)),
    };
    let mut head = format!("{} {target} HTTP/1.1\r\n", question.method);
    let has = |name: &str| question.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    if !has("host") {
        head.push_str(&format!("Host: {}\r\n", host.unwrap_or("localhost")));
    }
    for (name, value) in &question.headers {
        if name.contains(['\r', '\n', ':']) || value.contains(['\r', '\n']) {
            return Err(format!(
                "`{}` cannot be a header: it holds a line break or a colon",
                printable(name)
            ));
        }
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = &question.body
        && !has("content-length")
        && !has("transfer-encoding")
    {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    if question.method.contains([' ', '\r', '\n']) || target.contains([' ', '\r', '\n']) {
        return Err("the method and the URL must not contain spaces or line breaks".to_owned());
    }
    head.push_str("\r\n");
    Ok(RequestBytes { head: head.into_bytes(), tls })
}

/// Makes bytes printable: escapes control characters and truncates long texts.
pub(crate) fn shown(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

fn printable(text: &str) -> String {
    const MOST: usize = 500;
    let visible = |c: char| if c.is_control() { '\u{FFFD}' } else { c };
    let mut out: String = text.chars().take(MOST).map(visible).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}

impl Explanation {
    pub fn to_json(&self) -> Value {
        json!({
            "revision": self.revision,
            "request": {
                "method": self.request.method,
                "scheme": self.request.scheme,
                "host": self.request.host,
                "path": self.request.path,
                "remote_addr": self.request.remote_addr,
            },
            "refused": self.refused.as_ref().map(|(status, why)| json!({"status": status, "reason": why})),
            "candidates": self.candidates.iter().map(Candidate::to_json).collect::<Vec<_>>(),
            "more_candidates": self.more_candidates,
            "others": self.others.iter().map(Candidate::to_json).collect::<Vec<_>>(),
            "more_others": self.more_others,
            "route": self.route.as_ref().map(|route| json!({
                "id": route.id,
                "name": route.name,
                "uri": route.uri,
                "host": route.host,
                "service_id": route.service,
            })),
            "plugins": self.stages.iter().map(Stage::to_json).collect::<Vec<_>>(),
            "answer": self.answer.as_ref().map(LocalReply::to_json),
            "not_asked": self.not_asked,
            "consumer": self.consumer,
            "upstream": self.upstream.as_ref().map(UpstreamSummary::to_json),
            "notes": self.notes,
        })
    }
}
