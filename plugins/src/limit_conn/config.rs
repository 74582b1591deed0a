//! The settings of limit-conn, as the Admin API shows them.

use model::Invalid;
use sdk::limit::Kind;
use sdk::template::Template;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Rule;
use crate::limits::fields::Fields;
use crate::limits::policy::{Policy, with_policies};
use crate::limits::{Amount, By};

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    pub(super) rules: Rules,
    #[serde(flatten)]
    pub(super) policy: Policy,
    #[serde(default)]
    pub(super) show_ratelimit_fields: bool,
}

/// The settings that decide what is counted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rules {
    conn: Option<Amount>,
    burst: Option<Amount>,
    pub(super) default_conn_delay: f64,
    /// Without effect, as in APISIX 3.18, which forgets what requests took.
    only_use_default_delay: bool,
    #[serde(default)]
    key: String,
    key_type: String,
    pub(super) rejected_code: u16,
    pub(super) rejected_msg: Option<String>,
    pub(super) rules: Option<Vec<RuleConfig>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RuleConfig {
    conn: Amount,
    burst: Amount,
    key: String,
}

pub(super) fn schema() -> Value {
    let conn = json!({"oneOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]});
    let burst = json!({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]});
    let schema = json!({
        "type": "object",
        "properties": {
            "conn": conn,
            "burst": burst,
            "default_conn_delay": {"type": "number", "exclusiveMinimum": 0},
            "only_use_default_delay": {"type": "boolean", "default": false},
            "key": {"type": "string"},
            "key_type": {"type": "string", "enum": ["var", "var_combination"], "default": "var"},
            "rejected_code": {"type": "integer", "minimum": 200, "maximum": 599, "default": 503},
            "rejected_msg": {"type": "string", "minLength": 1},
            "show_ratelimit_fields": {"type": "boolean"},
            "rules": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"conn": conn, "burst": burst, "key": {"type": "string"}},
                    "required": ["conn", "burst", "key"],
                },
            },
        },
        "oneOf": [
            {"required": ["conn", "burst", "default_conn_delay", "key"]},
            {"required": ["default_conn_delay", "rules"]},
        ],
    });
    with_policies(schema, Kind::Concurrency, &["redis", "redis-cluster", "local"])
}

impl Config {
    /// # Errors
    /// Fails for a text that is no number for any request.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let rules = &self.rules;
        let own = [(&rules.conn, "/conn", 1), (&rules.burst, "/burst", 0)];
        for (amount, at, least) in own {
            amount.as_ref().map_or(Ok(()), |amount| amount.check(at, least))?;
        }
        for (index, rule) in rules.rules.iter().flatten().enumerate() {
            rule.conn.check(&format!("/rules/{index}/conn"), 1)?;
            rule.burst.check(&format!("/rules/{index}/burst"), 0)?;
        }
        Ok(())
    }

    /// Of settings of a stream, which have no more than these.
    ///
    /// # Errors
    /// Fails for settings that the schema of streams rules out.
    pub(crate) fn of_stream(mut stream: Value) -> Result<Config, Invalid> {
        stream["rejected_code"] = 503.into();
        let rules = serde_json::from_value(stream).map_err(|error| Invalid::new(error.to_string()))?;
        Ok(Config { rules, policy: Policy::local(), show_ratelimit_fields: false })
    }

    /// How long a node that died keeps its requests counted, in seconds.
    pub(super) fn ttl_s(&self) -> u64 {
        self.policy.number("key_ttl").unwrap_or(3600)
    }
}

impl Rules {
    /// The rules in force: those written, or the one that the settings make.
    pub(super) fn in_force(self) -> Vec<Rule> {
        if let Some(rules) = self.rules {
            let rule = |(index, rule): (usize, RuleConfig)| Rule {
                by: By::Combination { template: Template::parse(&rule.key), optional: true },
                conn: rule.conn,
                burst: rule.burst,
                fields: Fields::new(&(index + 1).to_string()),
            };
            return rules.into_iter().enumerate().map(rule).collect();
        }
        // The schema sees to it that both are there when there are no rules.
        let amount = |amount: Option<Amount>| amount.unwrap_or(Amount::Fixed(0));
        let by = By::configured(&self.key, &self.key_type);
        vec![Rule { by, conn: amount(self.conn), burst: amount(self.burst), fields: Fields::new("default") }]
    }
}
