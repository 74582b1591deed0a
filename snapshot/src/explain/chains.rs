//! Which plugins would run, where each comes from, and what those answer that can be asked.

use model::{Desired, Entry, Key, Kind, Resource};
use sdk::{Chain, Exchange, Phase, Reply, Step, SureAnswer, Unjudged};
use serde_json::{Value, json};

use super::{Explanation, Of, Question, printable, read_body, shown};
use crate::plan::Plan;

/// A plugin of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    pub name: &'static str,
    pub priority: i32,
    /// The resource whose settings apply, as `routes/1`.
    pub from: String,
    /// Where it is asked.
    pub phases: Vec<&'static str>,
    pub ran: Ran,
}

/// What came of asking a plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum Ran {
    /// It lets the request pass.
    Passes,
    /// It answers instead of the upstream.
    Answers(u16),
    /// A condition on the request cannot be judged.
    Refuses(Unjudged),
    /// It counts, waits, draws or asks somebody: what it does is decided with the request.
    Undecided,
    /// Its `_meta.filter` does not hold.
    Filtered,
    /// A plugin before it has answered.
    NotReached,
    /// It has work with the response or behind it alone.
    Later,
}

/// An answer that the upstream does not give.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// `None` if it is decided with the request.
    pub status: Option<u16>,
    pub body: String,
    /// The plugin, and the resource it stands in; the gateway itself if there is none.
    pub by: Option<(String, String)>,
}

impl Stage {
    pub(super) fn to_json(&self) -> Value {
        let status = match &self.ran {
            Ran::Answers(status) => Some(*status),
            Ran::Refuses(why) => Some(why.status()),
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

impl Ran {
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Ran::Passes => "passes",
            Ran::Answers(_) => "answers",
            Ran::Refuses(_) => "refuses",
            Ran::Undecided => "undecided",
            Ran::Filtered => "filtered",
            Ran::NotReached => "not_reached",
            Ran::Later => "response",
        }
    }
}

impl Answer {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "status": self.status,
            "body": self.body,
            "plugin": self.by.as_ref().map(|(plugin, _)| plugin),
            "from": self.by.as_ref().map(|(_, from)| from),
        })
    }
}

/// The phases before the upstream, with the chains that run in each, as the proxy runs them.
const EARLY: [Phase; 3] = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy];

struct Walk<'a, 'q> {
    of: Of<'a>,
    question: &'q Question,
    route: Option<String>,
    stages: Vec<Stage>,
    answer: Option<Answer>,
    /// Something was not asked, so what is told of later plugins holds only if that lets the request pass.
    undecided: bool,
}

pub(super) fn tell(
    of: Of<'_>,
    plan: Option<&Plan>,
    question: &Question,
    x: &mut Exchange<'_>,
    out: &mut Explanation,
) {
    let global = of.snapshot.global.as_deref();
    let chain = plan.and_then(|plan| plan.chain.as_deref());
    let route = plan.map(|plan| plan.info.id.to_string());
    let mut walk = Walk { of, question, route, stages: Vec::new(), answer: None, undecided: false };
    walk.phase(global, Phase::Rewrite, Whose::Global, x);
    walk.phase(chain, Phase::Rewrite, Whose::Route, x);
    let brought = x.consumer().and_then(|consumer| consumer.chain.clone());
    let consumer = x.consumer().map(|consumer| consumer.name.clone());
    let merged = match (&brought, chain) {
        (Some(brought), Some(chain)) => Some(chain.overlay(brought)),
        (Some(brought), None) => Some(Chain::default().overlay(brought)),
        (None, _) => None,
    };
    if let (Some(brought), Some(name)) = (&brought, &consumer) {
        walk.phase(Some(brought), Phase::Rewrite, Whose::Consumer(name), x);
    }
    let later = match (&merged, &consumer) {
        (Some(_), Some(name)) => Whose::Consumer(name),
        _ => Whose::Route,
    };
    let chain = merged.as_ref().or(chain);
    walk.phase(global, Phase::Access, Whose::Global, x);
    walk.phase(chain, Phase::Access, later, x);
    if plan.is_some() {
        walk.phase(global, Phase::BeforeProxy, Whose::Global, x);
        walk.phase(chain, Phase::BeforeProxy, later, x);
    }
    walk.rest(global, Whose::Global);
    walk.rest(chain, later);
    out.consumer = consumer;
    out.stages = walk.stages;
    out.answer = walk.answer;
}

/// Whose chain it is.
#[derive(Debug, Clone, Copy)]
enum Whose<'a> {
    Global,
    Route,
    /// A consumer's of this name, over the route's.
    Consumer(&'a str),
}

impl Walk<'_, '_> {
    fn phase(&mut self, chain: Option<&Chain>, phase: Phase, whose: Whose<'_>, x: &mut Exchange<'_>) {
        for stage in chain.into_iter().flat_map(|chain| chain.of_phase(phase)) {
            let from = self.origin(stage.name(), whose);
            let known = self.stages.iter().position(|own| own.name == stage.name() && own.from == from);
            let ran = self.ask(stage, phase, &from, x);
            let has_work = stage.instance().phases().has(phase);
            if !has_work && !matches!(ran, Ran::Refuses(_) | Ran::Undecided) {
                // It is here for its filter alone, which lets the request pass.
                continue;
            }
            match known {
                // What it came to in an earlier phase stands, unless this says more.
                Some(at) => {
                    if !matches!(ran, Ran::NotReached) && matches!(self.stages[at].ran, Ran::Passes) {
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

    fn ask(&mut self, stage: &sdk::chain::Stage, phase: Phase, from: &str, x: &mut Exchange<'_>) -> Ran {
        if self.answer.is_some() {
            return Ran::NotReached;
        }
        // A body is read once at most, so this ends.
        for _ in 0..3 {
            let mut ran = Ran::Filtered;
            let mut sure = None;
            let step = stage.run(phase, x, |instance, x| {
                if instance.is_pure() {
                    ran = Ran::Passes;
                    return instance.ask(phase, x);
                }
                ran = Ran::Undecided;
                sure = instance.phases().has(phase).then(|| instance.sure_answer(x)).flatten();
                Step::Next
            });
            match step {
                Step::Next => {
                    let Some(sure) = sure else {
                        self.undecided |= ran == Ran::Undecided;
                        return ran;
                    };
                    let status = match sure {
                        SureAnswer::Status(status) => Some(status),
                        SureAnswer::Unknown => None,
                    };
                    let by = Some((stage.name().to_owned(), from.to_owned()));
                    self.answer = Some(Answer { status, body: String::new(), by });
                    return status.map_or(ran, Ran::Answers);
                }
                Step::Reply(reply) => {
                    self.answer = Some(answer(&reply, stage.name(), from));
                    return Ran::Answers(reply.status);
                }
                Step::Refuse(why) => {
                    let body = why.as_str().to_owned();
                    let by = Some((stage.name().to_owned(), from.to_owned()));
                    self.answer = Some(Answer { status: Some(why.status()), body, by });
                    return Ran::Refuses(why);
                }
                Step::Body(_) => read_body(x, self.question),
                Step::Wait => break,
            }
        }
        self.undecided = true;
        Ran::Undecided
    }

    /// The stages that have no work before the upstream.
    fn rest(&mut self, chain: Option<&Chain>, whose: Whose<'_>) {
        for stage in chain.into_iter().flat_map(Chain::stages) {
            if EARLY.iter().any(|phase| stage.instance().phases().has(*phase)) {
                continue;
            }
            let from = self.origin(stage.name(), whose);
            if self.stages.iter().any(|own| own.name == stage.name() && own.from == from) {
                continue;
            }
            let (name, priority) = (stage.name(), stage.priority());
            self.stages.push(Stage { name, priority, from, phases: phases(stage), ran: Ran::Later });
        }
    }

    /// The resource whose settings of a plugin apply: the order in which chains are merged.
    fn origin(&self, plugin: &str, whose: Whose<'_>) -> String {
        let desired = self.of.desired;
        let has = |key: &Key| {
            let entry = desired.get(key.kind, &key.id)?;
            entry.resource().plugins()?.contains_key(plugin).then(|| key.to_string())
        };
        let of_route = || self.route.iter().flat_map(|id| of_route(desired, id)).find_map(|key| has(&key));
        let found = match whose {
            Whose::Global => desired
                .of(Kind::GlobalRule)
                .find(|entry| entry.resource().plugins().is_some_and(|plugins| plugins.contains_key(plugin)))
                .map(|entry| entry.key.to_string()),
            Whose::Route => of_route(),
            Whose::Consumer(name) => {
                of_consumer(desired, name).into_iter().find_map(|key| has(&key)).or_else(of_route)
            }
        };
        found.unwrap_or_else(|| match whose {
            Whose::Global => "a global rule in its last good form".to_owned(),
            Whose::Route | Whose::Consumer(_) => "a resource in its last good form".to_owned(),
        })
    }
}

/// The resources that a route takes plugins from, the first that has one counts.
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

fn answer(reply: &Reply, plugin: &str, from: &str) -> Answer {
    let location = reply.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location"));
    let body = match location {
        Some((_, to)) => format!("Location: {}", shown(to)),
        None => printable(String::from_utf8_lossy(&reply.body).trim_end()),
    };
    Answer { status: Some(reply.status), body, by: Some((plugin.to_owned(), from.to_owned())) }
}
