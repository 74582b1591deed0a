//! traffic-split: sends parts of the traffic to other upstreams, by weight and by conditions.
//!
//! Settings, order, words and shares as in APISIX 3.18, whose wheel is lua-resty-balancer's weighted
//! round robin; here one wheel turns for all workers, so that the shares are exact. An upstream in
//! these settings may have all that an upstream resource has.

use model::{Invalid, Kind};
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::{Build, Exchange, Plugin, Reply, Step, UpstreamHandle};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::wheel::Wheel;

/// The stage.
pub struct TrafficSplit {
    rules: Vec<Rule>,
}

struct Rule {
    /// Any of them must hold; none at all is different from an empty list.
    matches: Option<Vec<Expr>>,
    /// The upstreams that are named, each with its id.
    named: Vec<(String, UpstreamHandle)>,
    goals: Vec<Goal>,
    wheel: Wheel,
}

enum Goal {
    /// The route's own upstream.
    Own,
    Named(String, UpstreamHandle),
    Written(UpstreamHandle),
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
        let (goals, weights): (Vec<_>, Vec<_>) = goals.into_iter().unzip();
        Ok(Rule { matches, named, goals, wheel: Wheel::new(&weights) })
    }

    fn choose(&self, x: &mut Exchange<'_>) -> Step {
        let goal = self.wheel.turn().and_then(|index| self.goals.get(index));
        if let Some(Goal::Named(_, upstream) | Goal::Written(upstream)) = goal {
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

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn what_is_named_twice_is_one_with_the_last_weight() {
        let probe = Probe::get("/");
        let weights = |config: Value| {
            let stage: TrafficSplit =
                probe.stage(json!({"rules": [{"weighted_upstreams": config}]})).unwrap();
            stage.rules[0].wheel.weights().to_vec()
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
