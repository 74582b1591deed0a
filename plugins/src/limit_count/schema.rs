//! The schemas of limit-count, as the Admin API shows them, and what they cannot say.

use model::Invalid;
use sdk::template::Template;
use serde_json::{Value, json};

use super::Config;
use super::rule::{Headers, Rule};
use crate::limits::{self, Amount, By};

pub(super) fn config() -> Value {
    let amount = json!({"oneOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]});
    json!({
        "type": "object",
        "properties": {
            "count": amount,
            "time_window": amount,
            "window_type": {"type": "string", "enum": ["fixed", "sliding"], "default": "fixed"},
            "rules": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "count": amount,
                        "time_window": amount,
                        "key": {"type": "string"},
                        "header_prefix": {
                            "type": "string",
                            "description": "prefix for rate limit headers",
                        },
                    },
                    "required": ["count", "time_window", "key"],
                },
            },
            "group": {"type": "string"},
            "key": {"type": "string", "default": "remote_addr"},
            "key_type": {
                "type": "string",
                "enum": ["var", "var_combination", "constant"],
                "default": "var",
            },
            "rejected_code": {"type": "integer", "minimum": 200, "maximum": 599, "default": 503},
            "rejected_msg": {"type": "string", "minLength": 1},
            "policy": {
                "type": "string",
                "enum": ["local", "redis", "redis-cluster", "redis-sentinel"],
                "default": "local",
            },
            "allow_degradation": {"type": "boolean", "default": false},
            "show_limit_quota_header": {"type": "boolean", "default": true},
            "sync_interval": {"type": "number", "default": -1},
        },
        // One or the other. Both at once pass here and are refused below, in words of their own.
        "oneOf": [
            {"required": ["count", "time_window"]},
            {"required": ["rules"], "not": {"required": ["count", "time_window"]}},
        ],
        "encrypt_fields": ["redis_password", "sentinel_password"],
    })
}

pub(super) fn metadata() -> Value {
    json!({
        "type": "object",
        "properties": {
            "limit_header": {"type": "string", "default": "X-RateLimit-Limit"},
            "remaining_header": {"type": "string", "default": "X-RateLimit-Remaining"},
            "reset_header": {"type": "string", "default": "X-RateLimit-Reset"},
        },
    })
}

impl Config {
    /// Checks the rules that the schema cannot express.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.rules.is_some() && (self.count.is_some() || self.time_window.is_some()) {
            return Err(
                Invalid::new("count/time_window and rules cannot be specified at the same time").at("/rules")
            );
        }
        if self.group.is_some() && self.rules.is_some() {
            return Err(Invalid::new("group and rules cannot be specified at the same time").at("/group"));
        }
        limits::only_local(&self.policy)?;
        for (amount, at) in [(&self.count, "/count"), (&self.time_window, "/time_window")] {
            amount.as_ref().map_or(Ok(()), |amount| amount.check(at, 1))?;
        }
        let rules = self.rules.as_deref().unwrap_or_default();
        for (index, rule) in rules.iter().enumerate() {
            rule.count.check(&format!("/rules/{index}/count"), 1)?;
            rule.time_window.check(&format!("/rules/{index}/time_window"), 1)?;
            if rules[..index].iter().any(|other| other.key == rule.key) {
                return Err(Invalid::new(format!("duplicate key '{}' in rules", rule.key))
                    .at(format!("/rules/{index}/key")));
            }
        }
        Ok(())
    }

    /// The rules in force: those written, or the one that count and window make.
    pub(super) fn rules(&self, metadata: Option<&Value>) -> Vec<Rule> {
        let headers = |prefix: Option<&str>| Headers::new(metadata, prefix);
        if let Some(rules) = &self.rules {
            let rule = |(index, rule): (usize, &super::RuleConfig)| {
                let number = (index + 1).to_string();
                Rule {
                    count: rule.count.clone(),
                    window: rule.time_window.clone(),
                    by: By::Combination { template: Template::parse(&rule.key), optional: true },
                    headers: headers(Some(rule.header_prefix.as_deref().unwrap_or(&number))),
                }
            };
            return rules.iter().enumerate().map(rule).collect();
        }
        let by = match self.key_type.as_str() {
            "constant" => By::Constant(self.key.clone()),
            key_type => By::configured(&self.key, key_type),
        };
        // The schema sees to it that both are there when there are no rules.
        let amount = |amount: &Option<Amount>| amount.clone().unwrap_or(Amount::Fixed(0));
        vec![Rule {
            count: amount(&self.count),
            window: amount(&self.time_window),
            by,
            headers: headers(None),
        }]
    }
}
