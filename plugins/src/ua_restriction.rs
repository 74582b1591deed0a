//! hot path
//!
//! ua-restriction: allows or refuses clients by their User-Agent.
//!
//! Settings and messages as in APISIX 3.18. Of several User-Agent fields one that is on the list
//! is enough.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Reply, Step, Undecidable};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rules::Rules;

/// The stage.
pub struct UaRestriction {
    list: Rules,
    /// Those on the list are let in, and no others; else they are kept out.
    allows: bool,
    bypass_missing: bool,
    refusal: Reply,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    bypass_missing: bool,
    allowlist: Option<Vec<String>>,
    denylist: Option<Vec<String>>,
    message: String,
}

impl Plugin for UaRestriction {
    const NAME: &'static str = "ua-restriction";
    const PRIORITY: i32 = 2999;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let list = json!({"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}});
        json!({
            "type": "object",
            "properties": {
                "bypass_missing": {"type": "boolean", "default": false},
                "allowlist": list,
                "denylist": list,
                "message": {"type": "string", "minLength": 1, "maxLength": 1024, "default": "Not allowed"},
            },
            "oneOf": [{"required": ["allowlist"]}, {"required": ["denylist"]}],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<UaRestriction, Invalid> {
        let (name, list, allows) = match (&config.allowlist, &config.denylist) {
            (Some(list), _) => ("/allowlist", &list[..], true),
            (None, list) => ("/denylist", list.as_deref().unwrap_or_default(), false),
        };
        Ok(UaRestriction {
            list: Rules::compile(list, false).map_err(|invalid| invalid.under(name))?,
            allows,
            bypass_missing: config.bypass_missing,
            refusal: Reply::json(403, &json!({ "message": config.message }))
                .because("the User-Agent is not allowed"),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let let_in = match self.listed(x) {
            None => self.bypass_missing,
            Some(Ok(listed)) => listed == self.allows,
            Some(Err(why)) => return Step::Refuse(why),
        };
        if let_in { Step::Next } else { Step::Reply(self.refusal.clone()) }
    }
}

impl UaRestriction {
    /// Whether one of the request's User-Agents is on the list; none if it has none.
    fn listed(&self, x: &Exchange<'_>) -> Option<Result<bool, Undecidable>> {
        let mut outcome = None;
        for agent in x.request().fields.all(b"user-agent") {
            match self.list.judge(agent.trim_ascii(), x.searches()) {
                Ok(true) => return Some(Ok(true)),
                Ok(false) => _ = outcome.get_or_insert(Ok(false)),
                Err(why) => outcome = Some(Err(why)),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn let_in(config: &Value, agents: &[&str]) -> bool {
        let headers: Vec<_> = agents.iter().map(|&agent| ("User-Agent", agent)).collect();
        let mut probe = Probe::request("GET", "/", &headers);
        let stage: UaRestriction = probe.stage(config.clone()).unwrap();
        match stage.access(&mut probe.exchange()) {
            Step::Next => true,
            Step::Reply(reply) => {
                assert_eq!(reply.status, 403);
                assert_eq!(&reply.body[..], b"{\"message\":\"Not allowed\"}\n");
                false
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn lists_let_in_or_keep_out() {
        let allow = json!({"allowlist": ["my-bot1", "(Baiduspider)/(\\d+)\\.(\\d+)"]});
        let deny = json!({"denylist": ["my-bot1", "(Baiduspider)/(\\d+)\\.(\\d+)"]});
        for (agents, listed) in [
            (&["my-bot1"][..], true),
            (&["  x my-bot1/2  "], true),
            (&["Baiduspider/3.0"], true),
            (&["Baiduspider/x"], false),
            (&["My-Bot1"], false),
            (&["other", "my-bot1"], true),
            (&["other", "another"], false),
            (&[""], false),
        ] {
            assert_eq!(let_in(&allow, agents), listed, "{agents:?}");
            assert_eq!(let_in(&deny, agents), !listed, "{agents:?}");
        }
        // Spaces around a User-Agent are no part of it.
        assert!(let_in(&json!({"allowlist": ["^bot$"]}), &[" bot\t"]));
    }

    #[test]
    fn a_request_without_one_passes_if_that_is_wanted() {
        for list in ["allowlist", "denylist"] {
            let mut config = json!({ list: ["x"] });
            assert!(!let_in(&config, &[]));
            config["bypass_missing"] = json!(true);
            assert!(let_in(&config, &[]));
        }
    }

    #[test]
    fn an_undecided_search_lets_nobody_in() {
        let agent = "a".repeat(4096);
        for list in ["allowlist", "denylist"] {
            let mut probe = Probe::request("GET", "/", &[("User-Agent", &agent)]);
            let stage: UaRestriction = probe.stage(json!({ list: [r"^(a|a)*(?=b)\1$"] })).unwrap();
            assert!(matches!(stage.access(&mut probe.exchange()), Step::Refuse(_)));
        }
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (json!({}), "value should match only one schema, but matches none"),
            (
                json!({"allowlist": ["a"], "denylist": ["b"]}),
                "value should match only one schema, but matches both schemas 1 and 2",
            ),
            (json!({"denylist": ["a", "("]}), "pcre_compile() failed: missing ) in \"(\""),
        ] {
            assert_eq!(
                probe.stage::<UaRestriction>(config.clone()).err().unwrap().reason,
                reason,
                "{config}"
            );
        }
    }
}
