//! workflow: runs the action of the first rule whose case is true: an answer, or a limit.
//!
//! Settings, order and words as in APISIX 3.18. Stricter in one point: a case that is no condition is
//! refused, where APISIX takes the rule to hold always.

use std::sync::Arc;

use model::Invalid;
use sdk::chain::{Phase, Phases, Stage};
use sdk::expr::Expr;
use sdk::{Build, Chain, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

/// The stage.
pub struct Workflow {
    rules: Vec<Rule>,
}

struct Rule {
    case: Option<Expr>,
    action: Action,
}

enum Action {
    Return(Reply),
    /// A chain of the one plugin that does the work; the same on the route is left out.
    Plugin(&'static str, Arc<Chain>),
}

#[derive(Debug, Deserialize)]
pub struct Config {
    rules: Vec<RuleConfig>,
}

#[derive(Debug, Deserialize)]
struct RuleConfig {
    case: Option<Value>,
    actions: Vec<Vec<Value>>,
}

/// The rules that held on an exchange: the plugin may stand on a global rule and on the route.
struct MatchedRules(SmallVec<[(usize, usize); 2]>);

impl Plugin for Workflow {
    const NAME: &'static str = "workflow";
    const PRIORITY: i32 = 1006;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "rules": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "case": {
                                "type": "array", "minItems": 1,
                                "items": {"anyOf": [{"type": "array"}, {"type": "string"}]},
                            },
                            "actions": {
                                "type": "array",
                                "items": {"type": "array", "minItems": 1},
                            },
                        },
                        "required": ["actions"],
                    },
                },
            },
            "required": ["rules"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Workflow, Invalid> {
        let mut rules = Vec::new();
        for (index, rule) in config.rules.into_iter().enumerate() {
            rules.push(Rule::build(index, rule, cx).map_err(|error| error.within(index).under("/rules"))?);
        }
        Ok(Workflow { rules })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        for (index, rule) in self.rules.iter().enumerate() {
            let holds = rule.case.as_ref().map_or(Ok(true), |case| case.decide(x));
            match holds {
                Ok(true) => return self.act(index, x),
                Ok(false) => {}
                Err(step) => return step,
            }
        }
        Step::Next
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match self.held(x).and_then(|rule| self.rules.get(rule)).and_then(Rule::stage) {
            Some(stage) => stage.instance().wait(phase, x).await,
            None => Step::Next,
        }
    }
}

impl Workflow {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The rule that held on this exchange.
    fn held(&self, x: &Exchange<'_>) -> Option<usize> {
        let MatchedRules(all) = x.note::<MatchedRules>()?;
        all.iter().find(|(id, _)| *id == self.id()).map(|(_, rule)| *rule)
    }

    fn act(&self, index: usize, x: &mut Exchange<'_>) -> Step {
        let (name, stage) = match &self.rules[index].action {
            Action::Return(reply) => return Step::Reply(reply.clone()),
            Action::Plugin(name, chain) => (*name, chain.stages().next()),
        };
        x.skip_plugin(name);
        let Some(stage) = stage else { return Step::Next };
        if self.held(x).is_none() {
            let entry = (self.id(), index);
            match x.note_mut::<MatchedRules>() {
                Some(MatchedRules(all)) => all.push(entry),
                None => x.set_note(MatchedRules(SmallVec::from_iter([entry]))),
            }
        }
        stage.instance().ask(Phase::Access, x)
    }
}

impl Rule {
    fn build(index: usize, config: RuleConfig, cx: &Build<'_>) -> Result<Rule, Invalid> {
        let case = config.case.as_ref().map(Expr::compile).transpose().map_err(|error| {
            Invalid::new(format!("failed to validate the 'case' expression: {error}")).at("/case")
        })?;
        // Only the first action is taken, but all of them must be right.
        let mut first = None;
        for (at, action) in config.actions.iter().enumerate() {
            let action =
                Action::build(index, action, cx).map_err(|error| error.within(at).under("/actions"))?;
            first = first.or(Some(action));
        }
        let action = first.ok_or_else(|| {
            Invalid::new("a rule needs an action")
                .at("/actions")
                .expected("[\"return\", {\"code\": 403}] or the like")
        })?;
        Ok(Rule { case, action })
    }

    fn stage(&self) -> Option<&Stage> {
        match &self.action {
            Action::Plugin(_, chain) => chain.stages().next(),
            Action::Return(_) => None,
        }
    }
}

impl Action {
    fn build(rule: usize, action: &[Value], cx: &Build<'_>) -> Result<Action, Invalid> {
        let name = action.first().and_then(Value::as_str).unwrap_or_default();
        let empty = Value::Object(Default::default());
        let settings = action.get(1).unwrap_or(&empty);
        let named = |error: Invalid| {
            let words = format!("failed to validate the '{name}' action: {}", error.reason);
            Invalid { reason: words, ..error }.within(1)
        };
        let plugin = match name {
            "return" => {
                let schema = json!({
                    "type": "object",
                    "properties": {"code": {"type": "integer", "minimum": 100, "maximum": 599}},
                    "required": ["code"],
                });
                let settings = model::Schema::new(&schema)?.parse(settings.clone()).map_err(named)?;
                let code = settings["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                return Ok(Action::Return(
                    Reply::json(code, &json!({"error_msg": "rejected by workflow"}))
                        .because("rejected by workflow"),
                ));
            }
            "limit-count" => "limit-count",
            "limit-conn" => "limit-conn",
            _ => {
                return Err(Invalid::new(format!("unsupported action: {name}"))
                    .within(0)
                    .expected("return, limit-count or limit-conn"));
            }
        };
        // Each rule counts for itself.
        Ok(Action::Plugin(plugin, cx.plugin(plugin, settings, &rule.to_string()).map_err(named)?))
    }
}

#[cfg(test)]
mod tests {
    use sdk::build::Owner;
    use sdk::catalog::{Catalog as _, Configured, Scope};
    use sdk::testing::{FixedNames, Probe, now};

    use super::*;
    use crate::Catalog;

    fn chain(probe: &Probe, id: &str, delay: f64, last: bool) -> Arc<Chain> {
        let limit = json!({"conn": 1, "burst": 5, "default_conn_delay": delay, "key": "remote_addr"});
        let rule = |path: &str, action: Value| json!({"case": [["uri", "==", path]], "actions": [action]});
        let mut rules =
            [rule("/", json!(["limit-conn", limit])), rule("/closed", json!(["return", {"code": 403}]))];
        if last {
            rules.reverse();
        }
        let owner = Owner { collection: "routes", id: id.into() };
        let config = json!({ "rules": rules });
        let entries = [Configured { name: "workflow", config: &config, owner: &owner }];
        let names = FixedNames::default();
        let scope = Scope::of_names(&names);
        Catalog::new(probe.services.clone(), Default::default()).chain(&entries, &scope).unwrap()
    }

    /// As where one stands on the route and one is global: each waits for the rule that held in it.
    #[test]
    fn who_a_rule_makes_wait_waits_for_it() {
        let mut first = Probe::get("/");
        let mut second = Probe { services: first.services.clone(), ..Probe::get("/") };
        let chains = [chain(&first, "1", 0.1, true), chain(&first, "2", 0.02, false)];
        let instances = || chains.iter().map(|chain| chain.stages().next().unwrap().instance());
        let mut x = first.exchange();
        for instance in instances() {
            assert!(matches!(instance.ask(Phase::Access, &mut x), Step::Next));
        }
        let mut other = second.exchange();
        for instance in instances() {
            assert!(matches!(instance.ask(Phase::Access, &mut other), Step::Wait));
            assert!(matches!(now(instance.wait(Phase::Access, &mut other)), Step::Next));
        }
        drop((x, other));
        let slept: Vec<_> = second.world.slept.borrow().iter().map(|time| time.as_millis()).collect();
        assert_eq!(slept, [100, 20]);
    }

    #[test]
    fn all_actions_must_be_right() {
        let catalog = Catalog::new(sdk::build::Services::for_tests(), Default::default());
        let right = json!(["return", {"code": 403}]);
        for (action, wrong) in [
            (json!(["limit-count", {"count": 1, "time_window": 60}]), None),
            (json!(["limit-conn", {"conn": 1, "burst": 0, "default_conn_delay": 1, "key": "uri"}]), None),
            (json!(["limit-req", {}]), Some("unsupported action: limit-req")),
            (
                json!(["return", {"code": 99}]),
                Some("failed to validate the 'return' action: property \"code\""),
            ),
            (json!(["limit-count", {"count": 0}]), Some("failed to validate the 'limit-count' action: ")),
        ] {
            let config = json!({"rules": [{"actions": [right, action]}]});
            let result = catalog.check("workflow", &config, sdk::catalog::SchemaType::Route);
            match (result, wrong) {
                (Ok(()), None) => {}
                (Err(invalid), Some(words)) => {
                    assert!(invalid.reason.contains(words), "{invalid}");
                    assert!(invalid.pointer.starts_with("/rules/0/actions/1/"), "{}", invalid.pointer);
                }
                (result, _) => panic!("{action}: {result:?}"),
            }
        }
    }
}
