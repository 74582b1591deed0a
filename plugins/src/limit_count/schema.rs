//! The schemas of limit-count, as the Admin API shows them, and what they cannot say.

use model::Invalid;
use sdk::Build;
use sdk::limit::{Group, Kind};
use sdk::template::Template;
use serde_json::{Value, json};

use super::rule::{Headers, Rule};
use super::{Config, Rules};
use crate::limits::fields::Fields;
use crate::limits::policy::with_policies;
use crate::limits::{Amount, By};

pub(super) fn config() -> Value {
    let amount = json!({"oneOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string"}]});
    let schema = json!({
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
            "show_limit_quota_header": {"type": "boolean", "default": true},
            // Without a default: the checksum in the keys of Redis is that of the settings with their defaults, as in APISIX.
            "show_ratelimit_fields": {"type": "boolean"},
            "sync_interval": {"type": "number", "default": -1},
        },
        // One or the other. Both at once pass here and are refused below, in words of their own.
        "oneOf": [
            {"required": ["count", "time_window"]},
            {"required": ["rules"], "not": {"required": ["count", "time_window"]}},
        ],
    });
    with_policies(schema, Kind::Windows, &["local", "redis", "redis-cluster", "redis-sentinel"])
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
        let Config { rules, policy } = self;
        if rules.rules.is_some() && (rules.count.is_some() || rules.time_window.is_some()) {
            return Err(
                Invalid::new("count/time_window and rules cannot be specified at the same time").at("/rules")
            );
        }
        if rules.group.is_some() && rules.rules.is_some() {
            return Err(Invalid::new("group and rules cannot be specified at the same time").at("/group"));
        }
        for (amount, at) in [(&rules.count, "/count"), (&rules.time_window, "/time_window")] {
            amount.as_ref().map_or(Ok(()), |amount| amount.check(at, 1))?;
        }
        let window = match rules.time_window {
            Some(Amount::Fixed(seconds)) => Some(seconds),
            _ => None,
        };
        policy.check(window)?;
        let rules = rules.rules.as_deref().unwrap_or_default();
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

    /// Joins the group, if there is one. A configuration that is only checked has no owner and joins none.
    ///
    /// # Errors
    /// The group is in use with other settings.
    pub(super) fn join_group(&self, cx: &Build<'_>) -> Result<Option<Group>, Invalid> {
        let Some(name) = &self.rules.group else { return Ok(None) };
        let settings = serde_json::to_value(self).map_err(|error| Invalid::new(error.to_string()))?;
        let groups = cx.groups();
        if !cx.owner.collection.is_empty() {
            return Ok(Some(groups.join(name, &settings)));
        }
        if groups.conflicts(name, &settings) {
            return Err(Invalid::new("group conf mismatched").at("/group").hint(
                "all members of a group need the same settings; take another group name for new ones",
            ));
        }
        Ok(None)
    }
}

impl Rules {
    /// The rules in force: those written, or the one that count and window make.
    pub(super) fn in_force(&self, metadata: Option<&Value>) -> Vec<Rule> {
        let headers = |prefix: Option<&str>, count: &Amount| Headers::new(metadata, prefix, count);
        if let Some(rules) = &self.rules {
            let rule = |(index, rule): (usize, &super::RuleConfig)| {
                let number = (index + 1).to_string();
                let name = rule.header_prefix.as_deref().unwrap_or(&number);
                Rule {
                    count: rule.count.clone(),
                    window: rule.time_window.clone(),
                    by: By::Combination { template: Template::parse(&rule.key), optional: true },
                    headers: headers(Some(name), &rule.count),
                    fields: Fields::new(name),
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
        let count = amount(&self.count);
        vec![Rule {
            headers: headers(None, &count),
            count,
            window: amount(&self.time_window),
            by,
            fields: Fields::new("default"),
        }]
    }
}
