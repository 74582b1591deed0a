//! traffic-label: sets headers of requests that meet conditions, with shares by weight.
//!
//! Settings, order and shares as in APISIX 3.18: the first rule that holds decides, and its actions take turns by weight.
//! An action sets headers or does nothing.

use std::sync::Arc;

use indexmap::IndexMap;
use model::Invalid;
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::edits::{self, Edit, Verb};
use crate::wheel::Wheel;

/// The configured plugin.
pub struct TrafficLabel {
    rules: Vec<Rule>,
}

struct Rule {
    condition: Expr,
    actions: Vec<Vec<Edit>>,
    wheel: Arc<Wheel>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    rules: Vec<RuleConfig>,
}

#[derive(Debug, Deserialize)]
struct RuleConfig {
    #[serde(rename = "match")]
    condition: Option<Value>,
    actions: Vec<Action>,
}

#[derive(Debug, Deserialize)]
struct Action {
    set_headers: Option<Map<String, Value>>,
    weight: u64,
    #[serde(flatten)]
    others: IndexMap<String, Value>,
}

impl Plugin for TrafficLabel {
    const NAME: &'static str = "traffic-label";
    const PRIORITY: i32 = 967;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<TrafficLabel, Invalid> {
        let mut rules = Vec::new();
        for (index, rule) in config.rules.into_iter().enumerate() {
            let place = |invalid: Invalid| invalid.within(index).under("/rules");
            let condition = rule.condition.unwrap_or_else(|| json!([]));
            let condition = Expr::compile(&condition).map_err(|error| {
                let words = format!("failed to validate the 'match' expression: {condition} err: {error}");
                place(Invalid::new(words).at("/match"))
            })?;
            let weights: Vec<u64> = rule.actions.iter().map(|action| action.weight).collect();
            let wheel = cx.node_state(&format!("rule {index}"), || Wheel::new(&weights));
            let mut actions = Vec::new();
            for (at, action) in rule.actions.into_iter().enumerate() {
                let place = |invalid: Invalid| place(invalid.within(at).under("/actions"));
                if let Some((name, _)) = action.others.first() {
                    return Err(place(
                        Invalid::new(format!("not supported action: {name}")).at(format!("/{name}")),
                    ));
                }
                actions.push(edits::plain(Verb::Set, &action.set_headers.unwrap_or_default()).map_err(
                    |error| {
                        place(
                            error.said("failed to validate the 'set_headers' action: ").under("/set_headers"),
                        )
                    },
                )?);
            }
            rules.push(Rule { condition, actions, wheel });
        }
        Ok(TrafficLabel { rules })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        for rule in &self.rules {
            match rule.condition.decide(x) {
                Ok(true) => {
                    if let Some(edits) = rule.wheel.turn().and_then(|index| rule.actions.get(index)) {
                        set(x, edits);
                    }
                    return Step::Next;
                }
                Ok(false) => {}
                Err(step) => return step,
            }
        }
        Step::Next
    }
}

fn set(x: &mut Exchange<'_>, edits: &[Edit]) {
    let mut room = Vec::new();
    for edit in edits {
        // The client's own header must not pass for this one, in any spelling.
        x.remove_lookalikes(&edit.name);
        x.remove_header(&edit.name);
        for template in &edit.values {
            let value = edits::rendered(template, x, &[], &mut room).to_vec();
            if x.add_header(&edit.name, &value).is_err() {
                x.complain(TrafficLabel::NAME, "a value cannot stand in a header and was left out");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    /// The value of `X-Label` for each of these requests.
    fn labels(config: Value, targets: &[&str]) -> Vec<Option<String>> {
        let mut probe = Probe::default();
        let plugin: TrafficLabel = probe.stage(config).unwrap();
        let run = |target: &&str| {
            probe.ask("GET", target, &[("Host", "a.test"), ("X-Label", "forged"), ("X_Label", "forged")]);
            let mut x = probe.exchange();
            assert!(matches!(plugin.access(&mut x), Step::Next));
            x.header("X-Label").map(|value| String::from_utf8_lossy(value).into_owned())
        };
        targets.iter().map(run).collect()
    }

    #[test]
    fn the_first_rule_that_holds_sets_its_headers() {
        let rules = json!({"rules": [
            {"match": [["arg_a", "==", "1"]], "actions": [{"set_headers": {"X-Label": "one-$arg_b"}}]},
            {"match": ["OR", ["uri", "==", "/two"], ["arg_a", "==", "1"]], "actions": [{"set_headers": {"X-Label": 2}}]},
        ]});
        let found = labels(rules, &["/?a=1&b=x", "/two?a=1", "/two", "/"]);
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(found, [Some("one-x"), Some("one-"), Some("2"), Some("forged")]);
    }

    #[test]
    fn actions_take_turns_by_weight() {
        let rules = json!({"rules": [{"actions": [
            {"set_headers": {"X-Label": "a"}, "weight": 2}, {"set_headers": {"X-Label": "b"}}, {"weight": 1},
        ]}]});
        let found = labels(rules, &["/"; 40]);
        let count = |label: &str| found.iter().filter(|own| own.as_deref() == Some(label)).count();
        assert_eq!([count("a"), count("b"), count("forged")], [20, 10, 10]);
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (rule, words) in [
            (
                json!({"match": [["arg_a", "!!", 1]], "actions": [{}]}),
                "failed to validate the 'match' expression",
            ),
            (json!({"actions": [{"set_header": {"a": "b"}}]}), "not supported action: set_header"),
            (
                json!({"actions": [{"set_headers": {"a b": "b"}}]}),
                "failed to validate the 'set_headers' action",
            ),
        ] {
            let error =
                Probe::default().stage::<TrafficLabel>(json!({"rules": [rule]})).map(drop).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
