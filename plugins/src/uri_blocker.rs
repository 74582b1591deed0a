//! hot path
//!
//! uri-blocker: refuses requests whose path or query matches one of several patterns.
//!
//! Settings and messages as in APISIX 3.18. Patterns see the path in its normal form and the
//! query, so no other spelling of a path leads around them.

use model::Invalid;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rules::Rules;

/// The stage.
pub struct UriBlocker {
    rules: Rules,
    uri: Var,
    refusal: Reply,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    block_rules: Vec<String>,
    #[serde(deserialize_with = "crate::any_status")]
    rejected_code: u16,
    rejected_msg: Option<String>,
    case_insensitive: bool,
}

impl Plugin for UriBlocker {
    const NAME: &'static str = "uri-blocker";
    const PRIORITY: i32 = 2900;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "block_rules": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "maxLength": 4096},
                    "uniqueItems": true,
                },
                "rejected_code": {"type": "integer", "minimum": 200, "default": 403},
                "rejected_msg": {"type": "string", "minLength": 1},
                "case_insensitive": {"type": "boolean", "default": false},
            },
            "required": ["block_rules"],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<UriBlocker, Invalid> {
        crate::check_status(config.rejected_code, "/rejected_code")?;
        let rules = Rules::compile(&config.block_rules, config.case_insensitive)
            .map_err(|invalid| invalid.under("/block_rules"))?;
        Ok(UriBlocker {
            rules,
            uri: Var::parse("request_uri"),
            refusal: crate::refusal(
                config.rejected_code,
                config.rejected_msg.as_deref(),
                "the URI matches a block rule",
            ),
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match self.rules.judge(&self.uri.of(x).unwrap_or_default(), x.searches()) {
            Ok(false) => Step::Next,
            Ok(true) => Step::Reply(self.refusal.clone()),
            Err(why) => Step::Refuse(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn asked(config: &Value, target: &str) -> Option<Reply> {
        let mut probe = Probe::get(target);
        let stage: UriBlocker = probe.stage(config.clone()).unwrap();
        match stage.rewrite(&mut probe.exchange()) {
            Step::Next => None,
            Step::Reply(reply) => Some(reply),
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn path_and_query_are_searched() {
        let config = json!({"block_rules": ["root.exe", "root.m+", "^/secret/", "aa=1$"]});
        for target in ["/x?name=root.exe", "/root.mmm", "/secret/a", "/?aa=1"] {
            let reply = asked(&config, target).unwrap_or_else(|| panic!("{target} passed"));
            assert_eq!((reply.status, reply.body.len()), (403, 0));
        }
        for target in ["/hello?name=Root.exe", "/a/secret/", "/?aa=12", "/?a"] {
            assert!(asked(&config, target).is_none(), "{target}");
        }
        let config = json!({"block_rules": ["root.exe", "ab"], "case_insensitive": true});
        assert!(asked(&config, "/ROOT.EXE").is_some() && asked(&config, "/?aB").is_some());
        assert!(asked(&json!({"block_rules": []}), "/").is_none());
    }

    #[test]
    fn status_and_message_can_be_chosen() {
        let config = json!({"block_rules": ["^/"], "rejected_code": 404, "rejected_msg": "no \"way\""});
        let reply = asked(&config, "/").unwrap();
        assert_eq!(reply.status, 404);
        assert_eq!(&reply.body[..], b"{\"error_msg\":\"no \\\"way\\\"\"}\n");
    }

    #[test]
    fn an_undecided_search_lets_nobody_in() {
        let mut probe = Probe::get(&format!("/{}", "a".repeat(4096)));
        let stage: UriBlocker = probe.stage(json!({"block_rules": [r"(a|a)*(?=b)\1$"]})).unwrap();
        assert!(matches!(stage.rewrite(&mut probe.exchange()), Step::Refuse(_)));
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (json!({}), "property \"block_rules\" is required"),
            (json!({"block_rules": [".+("]}), "pcre_compile() failed: missing ) in \".+(\""),
            (
                json!({"block_rules": ["a", "a"]}),
                "property \"block_rules\" validation failed: expected unique items but items 1 and 2 are equal",
            ),
            (json!({"block_rules": ["a"], "rejected_code": 1000}), "a status must be at most 999"),
        ] {
            assert_eq!(probe.stage::<UriBlocker>(config.clone()).err().unwrap().reason, reason, "{config}");
        }
    }
}
