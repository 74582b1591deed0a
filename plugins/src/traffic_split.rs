//! traffic-split: sends parts of the traffic to other upstreams, by weight and by conditions.
//!
//! Settings, order, words and shares as in APISIX 3.18, whose wheel is lua-resty-balancer's weighted
//! round robin; here one wheel turns for all workers, so that the shares are exact. An upstream in
//! these settings may have all that an upstream resource has.

use std::sync::atomic::{AtomicU64, Ordering};

use model::{Invalid, Kind};
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::{Build, Exchange, Plugin, Reply, Step, UpstreamHandle};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct TrafficSplit {
    rules: Vec<Rule>,
}

struct Rule {
    /// Any of them must hold; none at all is different from an empty list.
    matches: Option<Vec<Expr>>,
    /// The upstreams that are named, each with its id.
    named: Vec<(String, UpstreamHandle)>,
    wheel: Wheel,
}

enum Goal {
    /// The route's own upstream.
    Own,
    Named(String, UpstreamHandle),
    Written(UpstreamHandle),
}

/// Weighted round robin: turns round the goals once for each level of weight, from the highest down,
/// and takes those that reach the level. Shared by all workers.
struct Wheel {
    goals: Vec<(Goal, u32)>,
    step: u32,
    highest: u32,
    /// The level, and how many goals were looked at on it.
    state: AtomicU64,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(default)]
    rules: Vec<RuleConfig>,
}

#[derive(Debug, Deserialize)]
struct RuleConfig {
    #[serde(rename = "match")]
    matches: Option<Vec<MatchConfig>>,
    weighted_upstreams: Vec<WeightedConfig>,
}

#[derive(Debug, Deserialize)]
struct MatchConfig {
    #[serde(default)]
    vars: Value,
}

#[derive(Debug, Deserialize)]
struct WeightedConfig {
    upstream_id: Option<Value>,
    upstream: Option<Value>,
    weight: u64,
}

impl Plugin for TrafficSplit {
    const NAME: &'static str = "traffic-split";
    const PRIORITY: i32 = 966;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let upstream = model::schema::document(Kind::Upstream);
        let id = json!({"anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$"},
            {"type": "integer", "minimum": 1},
        ]});
        json!({
            "type": "object",
            "properties": {
                "rules": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "match": {
                                "type": "array",
                                "items": {"type": "object", "properties": {"vars": {"type": "array"}}},
                            },
                            "weighted_upstreams": {
                                "type": "array", "minItems": 1, "maxItems": 20,
                                "default": [{"weight": 1}],
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        "upstream_id": id,
                                        "upstream": upstream,
                                        "weight": {
                                            "description": "used to split traffic between differentupstreams for plugin configuration",
                                            "type": "integer", "default": 1, "minimum": 0,
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<TrafficSplit, Invalid> {
        let mut rules = Vec::new();
        for (index, rule) in config.rules.into_iter().enumerate() {
            rules.push(Rule::build(rule, cx).map_err(|error| error.within(index).under("/rules"))?);
        }
        Ok(TrafficSplit { rules })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        // As in APISIX, an empty list of matches holds as the rule before did.
        let mut holds = true;
        for rule in &self.rules {
            for (id, upstream) in &rule.named {
                if upstream.slot().is_none() {
                    let text = format!("failed to fetch upstream info by upstream id: {id}");
                    // APISIX answers 500. Nothing failed here: the configuration lacks the upstream for now.
                    return Step::Reply(
                        Reply::text(503, text).because("the upstream of a traffic-split rule does not exist"),
                    );
                }
            }
            let matches = match &rule.matches {
                Some(matches) => matches,
                None => return rule.choose(x),
            };
            for condition in matches {
                holds = match condition.decide(x) {
                    Ok(holds) => holds,
                    Err(step) => return step,
                };
                if holds {
                    break;
                }
            }
            if holds {
                return rule.choose(x);
            }
        }
        Step::Next
    }
}

impl Rule {
    fn build(config: RuleConfig, cx: &mut Build<'_>) -> Result<Rule, Invalid> {
        let matches = config.matches.map(|matches| {
            let compile = |(index, single): (usize, MatchConfig)| {
                Expr::compile(&single.vars).map_err(|error| {
                    let words = format!("failed to validate the 'vars' expression: {error}");
                    Invalid::new(words).at("/vars").within(index).under("/match")
                })
            };
            matches.into_iter().enumerate().map(compile).collect::<Result<Vec<_>, _>>()
        });
        let matches = matches.transpose()?;
        let (mut goals, mut named) = (Vec::<(Goal, u64)>::new(), Vec::new());
        for (index, weighted) in config.weighted_upstreams.into_iter().enumerate() {
            let id = weighted.upstream_id.map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
            let goal =
                match (id, weighted.upstream) {
                    (Some(id), _) => {
                        let upstream = cx.upstream_by_id(&id);
                        named.push((id.clone(), upstream.clone()));
                        Goal::Named(id, upstream)
                    }
                    (None, Some(written)) => Goal::Written(cx.upstream(&written).map_err(|error| {
                        error.under("/upstream").within(index).under("/weighted_upstreams")
                    })?),
                    (None, None) => Goal::Own,
                };
            // An upstream named twice counts once, with the last weight.
            match goals.iter_mut().find(|(known, _)| known.is_same(&goal)) {
                Some((_, weight)) => *weight = weighted.weight,
                None => goals.push((goal, weighted.weight)),
            }
        }
        Ok(Rule { matches, named, wheel: Wheel::new(goals) })
    }

    fn choose(&self, x: &mut Exchange<'_>) -> Step {
        if let Some(Goal::Named(_, upstream) | Goal::Written(upstream)) = self.wheel.turn() {
            x.choose_upstream(upstream);
        }
        Step::Next
    }
}

impl Goal {
    fn is_same(&self, other: &Goal) -> bool {
        match (self, other) {
            (Goal::Own, Goal::Own) => true,
            (Goal::Named(one, _), Goal::Named(other, _)) => one == other,
            _ => false,
        }
    }
}

impl Wheel {
    fn new(goals: Vec<(Goal, u64)>) -> Wheel {
        let goals: Vec<_> = goals
            .into_iter()
            .map(|(goal, weight)| (goal, u32::try_from(weight).unwrap_or(u32::MAX)))
            .collect();
        let weights = || goals.iter().map(|(_, weight)| *weight);
        let highest = weights().max().unwrap_or_default();
        let step = weights().fold(0, divisor).max(1);
        Wheel { step, highest, state: AtomicU64::new(u64::from(highest) << 32), goals }
    }

    fn turn(&self) -> Option<&Goal> {
        if let [(only, _)] = &self.goals[..] {
            return Some(only);
        }
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (index, next) = self.after(state)?;
            match self.state.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.goals.get(index).map(|(goal, _)| goal),
                Err(other) => state = other,
            }
        }
    }

    /// The goal that comes next, and the state behind it. Within one turn, which may begin on one level and end
    /// on the next, there is one, as the heaviest goal reaches every level.
    fn after(&self, state: u64) -> Option<(usize, u64)> {
        let (mut level, mut at) = ((state >> 32) as u32, state as u32 as usize);
        for _ in 0..=self.goals.len() {
            if let Some((_, weight)) = self.goals.get(at) {
                at += 1;
                if *weight >= level {
                    return Some((at - 1, u64::from(level) << 32 | at as u64));
                }
            } else {
                at = 0;
                level = level.saturating_sub(self.step);
                if level == 0 {
                    level = self.highest;
                }
            }
        }
        None
    }
}

/// The greatest common divisor.
fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn shares(weights: &[u64], turns: usize) -> Vec<usize> {
        let goals = weights.iter().enumerate();
        let goals =
            goals.map(|(index, weight)| (Goal::Named(index.to_string(), Default::default()), *weight));
        let wheel = Wheel::new(goals.collect());
        let mut counts = vec![0; weights.len()];
        for _ in 0..turns {
            match wheel.turn() {
                Some(Goal::Named(index, _)) => counts[index.parse::<usize>().unwrap()] += 1,
                _ => panic!("no goal"),
            }
        }
        counts
    }

    #[test]
    fn shares_are_exact() {
        assert_eq!(shares(&[1, 1], 10), [5, 5]);
        assert_eq!(shares(&[2, 4], 6), [2, 4]);
        assert_eq!(shares(&[3, 2, 1], 600), [300, 200, 100]);
        assert_eq!(shares(&[1, 0], 10), [10, 0]);
        assert_eq!(shares(&[0, 5, 0], 10), [0, 10, 0]);
        assert_eq!(shares(&[0], 3), [3], "a single goal is taken even with weight 0");
        assert_eq!(shares(&[0, 0], 10), [5, 5], "as with lua-resty-balancer");
        assert_eq!(shares(&[1_000_000, 1], 1000), [1000, 0]);
        assert_eq!(shares(&[u64::MAX, 1], 1000), [1000, 0]);
        // Wherever the heaviest one stands, all that do not reach its level are passed over.
        for heaviest in 0..10 {
            let mut weights = [1; 10];
            weights[heaviest] = 3;
            let expected: Vec<usize> = weights.iter().map(|weight| *weight as usize * 2).collect();
            assert_eq!(shares(&weights, 24), expected, "{heaviest}");
        }
        // Weights with a common divisor take turns as often as without it.
        assert_eq!(shares(&[40, 20], 3), [2, 1]);
    }

    #[test]
    fn workers_share_the_wheel() {
        let goals = (0..2).map(|index| (Goal::Named(index.to_string(), Default::default()), 1 + 2 * index));
        let wheel = Wheel::new(goals.collect());
        let count =
            || (0..1000).filter(|_| matches!(wheel.turn(), Some(Goal::Named(id, _)) if id == "1")).count();
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 3000);
    }

    #[test]
    fn what_is_named_twice_is_one_with_the_last_weight() {
        let probe = Probe::get("/");
        let weights = |config: Value| {
            let stage: TrafficSplit =
                probe.stage(json!({"rules": [{"weighted_upstreams": config}]})).unwrap();
            stage.rules[0].wheel.goals.iter().map(|(_, weight)| *weight).collect::<Vec<_>>()
        };
        let written = json!({"nodes": {"127.0.0.1:1": 1}, "type": "roundrobin"});
        assert_eq!(weights(json!([{"weight": 1}, {"weight": 2}])), [2]);
        assert_eq!(
            weights(
                json!([{"upstream_id": 1, "weight": 1}, {"upstream_id": 2, "weight": 2}, {"upstream_id": 1, "weight": 3}])
            ),
            [3, 2]
        );
        assert_eq!(
            weights(
                json!([{"upstream": written, "weight": 1}, {"upstream": written, "weight": 2}, {"weight": 3}])
            ),
            [1, 2, 3]
        );
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut probe = Probe::get("/?a=1");
        let rules = |first: Value| {
            json!({"rules": [
                {"match": first, "weighted_upstreams": [{"upstream_id": 7}]},
                {"weighted_upstreams": [{"weight": 1}]},
            ]})
        };
        for (first, taken) in [
            (json!([{"vars": [["arg_a", "==", "1"]]}]), true),
            (json!([{"vars": [["arg_a", "==", "2"]]}, {"vars": [["arg_a", "==", "1"]]}]), true),
            (json!([{"vars": [["arg_a", "==", "2"]]}]), false),
            (json!([]), true),
        ] {
            let stage: TrafficSplit = probe.stage(rules(first)).unwrap();
            // It stands for an upstream that compile has made.
            stage.rules[0].named[0].1.place(3);
            let mut x = probe.exchange();
            assert!(matches!(stage.access(&mut x), Step::Next));
            assert_eq!(x.engine().forward.upstream.is_some(), taken);
        }
    }

    #[test]
    fn an_upstream_that_is_missing_is_reported() {
        let mut probe = Probe::get("/");
        let stage: TrafficSplit =
            probe.stage(json!({"rules": [{"weighted_upstreams": [{"upstream_id": "x"}, {}]}]})).unwrap();
        let Step::Reply(reply) = stage.access(&mut probe.exchange()) else { panic!("no reply") };
        assert_eq!(reply.status, 503);
        assert_eq!(&reply.body[..], b"failed to fetch upstream info by upstream id: x");
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::get("/");
        let wrong = |config: Value| probe.stage::<TrafficSplit>(config).err().unwrap();
        let error = wrong(json!({"rules": [{"match": [{"vars": [["arg_a", "~", "1"]]}]}]}));
        assert!(error.to_string().starts_with("failed to validate the 'vars' expression: "), "{error}");
        assert_eq!(error.pointer, "/rules/0/match/0/vars");
        assert!(probe.stage::<TrafficSplit>(json!({})).is_ok());
        assert!(wrong(json!({"rules": [{"weighted_upstreams": []}]})).to_string().contains("at least 1"));
    }
}
