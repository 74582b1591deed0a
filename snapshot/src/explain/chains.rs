//! Which plugins would run, where each is configured, and the responses of those that can be
//! called.

use model::{Desired, Entry, Key, Kind, Resource};
use sdk::{Chain, Exchange, Phase, Reply, Step, SureAnswer, Undecidable};
use serde_json::{Value, json};

use super::{Explanation, Input, Question, printable, read_body, shown};
use crate::plan::Plan;

/// A plugin instance of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    pub name: &'static str,
    pub priority: i32,
    /// The resource whose settings apply, such as `routes/1`.
    pub from: String,
    /// The phases it runs in.
    pub phases: Vec<&'static str>,
    pub ran: StageOutcome,
}

/// The result of calling a plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum StageOutcome {
    /// It lets the request pass.
    Passes,
    /// It answers instead of the upstream.
    Answers(u16),
    /// A condition on the request is undecidable.
    Refuses(Undecidable),
    /// It has side effects, such as counting or subrequests, so its result is decided at request
    /// time.
    Undecided,
    /// Its `_meta.filter` does not hold.
    Filtered,
    /// An earlier plugin has answered.
    NotReached,
    /// It only runs on the response or later.
    Later,
}

/// A response that does not come from the upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalReply {
    /// `None` if it is decided at request time.
    pub status: Option<u16>,
    pub body: String,
    /// Why the plugin refuses the request; empty otherwise.
    pub reason: &'static str,
    /// The plugin, and the resource that configures it; `None` for the gateway itself.
    pub by: Option<(String, String)>,
}

impl Stage {
    pub(super) fn to_json(&self) -> Value {
        let status = match &self.ran {
            StageOutcome::Answers(status) => Some(*status),
            StageOutcome::Refuses(why) => Some(why.status()),
            _ => None,
        };
        json!({
            "name": self.name,
            "priority": self.priority,
            "from": self.from,
            "phases": self.phases,
            "outcome": self.ran.as_str(),
            "status": status,
        })
    }
}

impl StageOutcome {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            StageOutcome::Passes => "passes",
            StageOutcome::Answers(_) => "answers",
            StageOutcome::Refuses(_) => "refuses",
            StageOutcome::Undecided => "undecided",
            StageOutcome::Filtered => "filtered",
            StageOutcome::NotReached => "not_reached",
            StageOutcome::Later => "response",
        }
    }
}

impl LocalReply {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "status": self.status,
            "body": self.body,
            "reason": Some(self.reason).filter(|reason| !reason.is_empty()),
            "plugin": self.by.as_ref().map(|(plugin, _)| plugin),
            "from": self.by.as_ref().map(|(_, from)| from),
        })
    }
}

/// The phases before the upstream, with the chains of each, in the proxy's order.
const EARLY: [Phase; 3] = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy];

struct Walk<'a, 'q> {
    of: Input<'a>,
    question: &'q Question,
    route: Option<String>,
    stages: Vec<Stage>,
    answer: Option<LocalReply>,
    /// A plugin was not called, so the results of later plugins hold only if it lets the request
    /// pass.
    undecided: bool,
}

pub(super) fn explain(
    of: Input<'_>,
    plan: Option<&Plan>,
    question: &Question,
    x: &mut Exchange<'_>,
    out: &mut Explanation,
) {
    let global = of.snapshot.global.as_deref();
    let chain = plan.and_then(|plan| plan.chain.as_deref());
    let route = plan.map(|plan| plan.info.id.to_string());
    let mut walk = Walk { of, question, route, stages: Vec::new(), answer: None, undecided: false };
    walk.phase(global, Phase::Rewrite, ChainOwner::Global, x);
    walk.phase(chain, Phase::Rewrite, ChainOwner::Route, x);
    let brought = x.consumer().and_then(|consumer| consumer.chain.clone());
    let consumer = x.consumer().map(|consumer| consumer.name.clone());
    let merged = match (&brought, chain) {
        (Some(brought), Some(chain)) => Some(chain.overlay(brought)),
        (Some(brought), None) => Some(Chain::default().overlay(brought)),
        (None, _) => None,
    };
    if let (Some(brought), Some(name)) = (&brought, &consumer) {
        walk.phase(Some(brought), Phase::Rewrite, ChainOwner::Consumer(name), x);
    }
    let later = match (&merged, &consumer) {
        (Some(_), Some(name)) => ChainOwner::Consumer(name),
        _ => ChainOwner::Route,
    };
    let chain = merged.as_ref().or(chain);
    walk.phase(global, Phase::Access, ChainOwner::Global, x);
    walk.phase(chain, Phase::Access, later, x);
    if plan.is_some() {
        walk.phase(global, Phase::BeforeProxy, ChainOwner::Global, x);
        walk.phase(chain, Phase::BeforeProxy, later, x);
    }
    walk.rest(global, ChainOwner::Global);
    walk.rest(chain, later);
    out.consumer = consumer;
    out.stages = walk.stages;
    out.answer = walk.answer;
}

/// The owner of a chain.
#[derive(Debug, Clone, Copy)]
enum ChainOwner<'a> {
    Global,
    Route,
    /// The consumer of this name; its chain includes the route's.
    Consumer(&'a str),
}

impl Walk<'_, '_> {
    fn phase(&mut self, chain: Option<&Chain>, phase: Phase, whose: ChainOwner<'_>, x: &mut Exchange<'_>) {
        for stage in chain.into_iter().flat_map(|chain| chain.of_phase(phase)) {
            let from = self.origin(stage.name(), whose);
            let known = self.stages.iter().position(|own| own.name == stage.name() && own.from == from);
            let ran = self.ask(stage, phase, &from, x);
            let has_work = stage.instance().phases().has(phase);
            if !has_work && !matches!(ran, StageOutcome::Refuses(_) | StageOutcome::Undecided) {
                // It is listed only for its filter, which lets the request pass.
                continue;
            }
            match known {
                // The result of an earlier phase stays, unless this one adds to it.
                Some(at) => {
                    if !matches!(ran, StageOutcome::NotReached)
                        && matches!(self.stages[at].ran, StageOutcome::Passes)
                    {
                        self.stages[at].ran = ran;
                    }
                }
                None => {
                    let (name, priority) = (stage.name(), stage.priority());
                    self.stages.push(Stage { name, priority, from, phases: phases(stage), ran });
                }
            }
        }
    }

    fn ask(
        &mut self,
        stage: &sdk::chain::Stage,
        phase: Phase,
        from: &str,
        x: &mut Exchange<'_>,
    ) -> StageOutcome {
        if self.answer.is_some() {
            return StageOutcome::NotReached;
        }
        // A body is read at most once, so this loop ends.
        for _ in 0..3 {
            let mut ran = StageOutcome::Filtered;
            let mut sure = None;
            let step = stage.run(phase, x, |instance, x| {
                if instance.is_pure() {
                    ran = StageOutcome::Passes;
                    return instance.ask(phase, x);
                }
                ran = StageOutcome::Undecided;
                sure = instance.phases().has(phase).then(|| instance.sure_answer(x)).flatten();
                Step::Next
            });
            match step {
                Step::Next => {
                    let Some(sure) = sure else {
                        self.undecided |= ran == StageOutcome::Undecided;
                        return ran;
                    };
                    let status = match sure {
                        SureAnswer::Status(status) => Some(status),
                        SureAnswer::Unknown => None,
                    };
                    let by = Some((stage.name().to_owned(), from.to_owned()));
                    self.answer = Some(LocalReply { status, body: String::new(), reason: "", by });
                    return status.map_or(ran, StageOutcome::Answers);
                }
                Step::Reply(reply) => {
                    self.answer = Some(answer(&reply, stage.name(), from));
                    return StageOutcome::Answers(reply.status);
                }
                Step::Refuse(why) => {
                    let body = why.as_str().to_owned();
                    let by = Some((stage.name().to_owned(), from.to_owned()));
                    self.answer =
                        Some(LocalReply { status: Some(why.status()), body, reason: why.as_str(), by });
                    return StageOutcome::Refuses(why);
                }
                Step::Body(_) => read_body(x, self.question),
                Step::Wait => break,
            }
        }
        self.undecided = true;
        StageOutcome::Undecided
    }

    /// The plugins that have no work before the upstream.
    fn rest(&mut self, chain: Option<&Chain>, whose: ChainOwner<'_>) {
        for stage in chain.into_iter().flat_map(Chain::stages) {
            if EARLY.iter().any(|phase| stage.instance().phases().has(*phase)) {
                continue;
            }
            let from = self.origin(stage.name(), whose);
            if self.stages.iter().any(|own| own.name == stage.name() && own.from == from) {
                continue;
            }
            let (name, priority) = (stage.name(), stage.priority());
            self.stages.push(Stage { name, priority, from, phases: phases(stage), ran: StageOutcome::Later });
        }
    }

    /// The resource that configures a plugin, in the order in which chains are merged.
    fn origin(&self, plugin: &str, whose: ChainOwner<'_>) -> String {
        let desired = self.of.desired;
        let has = |key: &Key| {
            let entry = desired.get(key.kind, &key.id)?;
            entry.resource().plugins()?.contains_key(plugin).then(|| key.to_string())
        };
        let of_route = || self.route.iter().flat_map(|id| of_route(desired, id)).find_map(|key| has(&key));
        let found = match whose {
            ChainOwner::Global => desired
                .of(Kind::GlobalRule)
                .find(|entry| entry.resource().plugins().is_some_and(|plugins| plugins.contains_key(plugin)))
                .map(|entry| entry.key.to_string()),
            ChainOwner::Route => of_route(),
            ChainOwner::Consumer(name) => {
                of_consumer(desired, name).into_iter().find_map(|key| has(&key)).or_else(of_route)
            }
        };
        found.unwrap_or_else(|| match whose {
            ChainOwner::Global => "a global rule in its last good form".to_owned(),
            ChainOwner::Route | ChainOwner::Consumer(_) => "a resource in its last good form".to_owned(),
        })
    }
}

/// The resources that a route takes plugins from; the first that has one applies.
pub(super) fn of_route(desired: &Desired, id: &str) -> Vec<Key> {
    let key = Key::new(Kind::Route, id);
    let mut keys = vec![key];
    if let Some(Resource::Route(route)) = desired.get(Kind::Route, id).map(resource) {
        keys.extend(route.plugin_config_id.as_ref().map(|id| Key::new(Kind::PluginConfig, id.as_str())));
        keys.extend(route.service_id.as_ref().map(|id| Key::new(Kind::Service, id.as_str())));
    }
    keys
}

fn of_consumer(desired: &Desired, name: &str) -> Vec<Key> {
    let mut keys = vec![Key::new(Kind::Consumer, name)];
    if let Some(Resource::Consumer(consumer)) = desired.get(Kind::Consumer, name).map(resource) {
        keys.extend(consumer.group_id.as_ref().map(|id| Key::new(Kind::ConsumerGroup, id.as_str())));
    }
    keys
}

fn resource(entry: &std::sync::Arc<Entry>) -> &Resource {
    entry.resource()
}

fn phases(stage: &sdk::chain::Stage) -> Vec<&'static str> {
    let own = stage.instance().phases();
    let named = [
        (Phase::Rewrite, "rewrite"),
        (Phase::Access, "access"),
        (Phase::BeforeProxy, "before_proxy"),
        (Phase::HeaderFilter, "header_filter"),
        (Phase::BodyFilter, "body_filter"),
        (Phase::Log, "log"),
    ];
    named.into_iter().filter(|(phase, _)| own.has(*phase)).map(|(_, name)| name).collect()
}

fn answer(reply: &Reply, plugin: &str, from: &str) -> LocalReply {
    let location = reply.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
    let body = match location {
        Some((_, to)) => format!("Location: {}", shown(to)),
        None => printable(String::from_utf8_lossy(&reply.body).trim_end()),
    };
    LocalReply {
        status: Some(reply.status),
        body,
        reason: reply.reason,
        by: Some((plugin.to_owned(), from.to_owned())),
    }
}
