//! consumer-restriction: accepts or refuses requests by consumer, consumer group, service or route.
//!
//! Settings, order and messages as in APISIX 3.18: first the blacklist, then the whitelist;
//! `allowed_by_methods` applies to those not on the whitelist.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The configured plugin.
pub struct ConsumerRestriction {
    config: Config,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(rename = "type")]
    by: By,
    #[serde(default)]
    blacklist: Vec<String>,
    #[serde(default)]
    whitelist: Vec<String>,
    #[serde(default)]
    allowed_by_methods: Vec<Allowed>,
    #[serde(deserialize_with = "crate::any_status")]
    rejected_code: u16,
    rejected_msg: Option<String>,
}

/// The kind of name in the lists.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum By {
    ConsumerName,
    ServiceId,
    RouteId,
    ConsumerGroupId,
}

#[derive(Debug, Deserialize)]
struct Allowed {
    user: Option<String>,
    #[serde(default)]
    methods: Vec<String>,
}

impl Plugin for ConsumerRestriction {
    const NAME: &'static str = "consumer-restriction";
    const PRIORITY: i32 = 2400;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "type": {
                    "type": "string",
                    "enum": ["consumer_name", "service_id", "route_id", "consumer_group_id"],
                    "default": "consumer_name",
                },
                "blacklist": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                "whitelist": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                "allowed_by_methods": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "user": {"type": "string"},
                            "methods": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "description": "HTTP method",
                                    "type": "string",
                                    "enum": [
                                        "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD",
                                        "OPTIONS", "CONNECT", "TRACE", "PURGE",
                                    ],
                                },
                            },
                        },
                    },
                },
                "rejected_code": {"type": "integer", "minimum": 200, "default": 403},
                "rejected_msg": {"type": "string"},
            },
            "anyOf": [
                {"required": ["blacklist"]},
                {"required": ["whitelist"]},
                {"required": ["allowed_by_methods"]},
            ],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<ConsumerRestriction, Invalid> {
        if config.rejected_code > 599 {
            return Err(Invalid::new("rejected_code is not an HTTP status")
                .at("/rejected_code")
                .expected("200 to 599")
                .got(config.rejected_code.to_string()));
        }
        Ok(ConsumerRestriction { config })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let config = &self.config;
        let Some(who) = config.by.of(x) else {
            let by = config.by.name();
            let message = format!("The request is rejected, please check the {by} for this request");
            return Step::Reply(
                Reply::json(401, &json!({ "message": message }))
                    .because("the request has no consumer, route or service to compare"),
            );
        };
        let names = |list: &[String]| list.iter().any(|name| name == who);
        if names(&config.blacklist) {
            return self.reject();
        }
        if names(&config.whitelist) {
            return Step::Next;
        }
        if !config.whitelist.is_empty() || !self.may_use_method(who, x.request().method_bytes()) {
            return self.reject();
        }
        Step::Next
    }
}

impl ConsumerRestriction {
    /// Users without an entry may use every method; of several entries for a user, the first counts.
    fn may_use_method(&self, who: &str, method: &[u8]) -> bool {
        let entry = self.config.allowed_by_methods.iter().find(|entry| entry.user.as_deref() == Some(who));
        entry.is_none_or(|entry| entry.methods.iter().any(|allowed| allowed.as_bytes() == method))
    }

    fn reject(&self) -> Step {
        let message = match &self.config.rejected_msg {
            Some(message) => message.clone(),
            None => format!("The {} is forbidden.", self.config.by.name()),
        };
        Step::Reply(
            Reply::json(self.config.rejected_code, &json!({ "message": message }))
                .because("the client is not allowed"),
        )
    }
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::ConsumerName => "consumer_name",
            By::ServiceId => "service_id",
            By::RouteId => "route_id",
            By::ConsumerGroupId => "consumer_group_id",
        }
    }

    fn of<'x>(self, x: &'x Exchange<'_>) -> Option<&'x str> {
        let value = match self {
            By::ConsumerName => Some(x.consumer()?.name.as_str()),
            By::ConsumerGroupId => x.consumer()?.group_id.as_deref(),
            By::ServiceId => Some(x.route()?.service_id.as_str()),
            By::RouteId => Some(&*x.route()?.id),
        };
        value.filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;
    use crate::key_auth::KeyAuth;

    /// Status and message of a refusal of jack's request, or nothing.
    fn ask(method: &str, config: Value) -> Option<(u16, String)> {
        let mut probe = Probe::request(method, "/", &[]).consumer::<KeyAuth>("jack", json!({"key": "k"}));
        probe.route.service_id = "s".into();
        let stage: ConsumerRestriction = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        let identity = x.consumers().find("key-auth", b"k").unwrap().clone();
        x.authenticate(identity);
        match stage.access(&mut x) {
            Step::Next => None,
            Step::Reply(reply) => {
                let body: Value = serde_json::from_slice(&reply.body).unwrap();
                Some((reply.status, body["message"].as_str().unwrap().to_owned()))
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn lists_decide_in_apisix_order() {
        let no = Some((403, "The consumer_name is forbidden.".to_owned()));
        let get_only = json!([{"user": "jack", "methods": ["GET"]}, {"user": "jack", "methods": ["POST"]}]);
        for (config, get, post) in [
            (json!({"blacklist": ["jack"]}), false, false),
            (json!({"blacklist": ["rose"]}), true, true),
            (json!({"whitelist": ["jack"]}), true, true),
            (json!({"whitelist": ["rose"]}), false, false),
            (json!({"whitelist": ["jack"], "blacklist": ["jack"]}), false, false),
            (json!({ "allowed_by_methods": get_only }), true, false),
            (json!({"allowed_by_methods": [{"user": "rose", "methods": ["GET"]}]}), true, true),
            (json!({"whitelist": ["rose"], "allowed_by_methods": get_only}), false, false),
            (json!({"whitelist": ["jack"], "allowed_by_methods": get_only}), true, true),
            (json!({"blacklist": ["jack"], "allowed_by_methods": get_only}), false, false),
            (json!({"allowed_by_methods": [{"user": "jack"}]}), false, false),
            (json!({"allowed_by_methods": [{"methods": ["PUT"]}]}), true, true),
        ] {
            for (method, passes) in [("GET", get), ("POST", post)] {
                let expected = if passes { None } else { no.clone() };
                assert_eq!(ask(method, config.clone()), expected, "{method} {config}");
            }
        }
    }

    #[test]
    fn each_type_looks_at_its_own() {
        for (by, value) in [("route_id", "1"), ("service_id", "s"), ("consumer_name", "jack")] {
            assert_eq!(ask("GET", json!({"type": by, "whitelist": [value]})), None, "{by}");
            let refused = ask("GET", json!({"type": by, "blacklist": [value], "rejected_code": 401}));
            assert_eq!(refused, Some((401, format!("The {by} is forbidden."))));
        }
        let message = "The request is rejected, please check the consumer_group_id for this request";
        let refused = ask("GET", json!({"type": "consumer_group_id", "blacklist": ["g"]}));
        assert_eq!(refused, Some((401, message.into())), "jack is in no group");
        let answer = ask("GET", json!({"blacklist": ["jack"], "rejected_msg": "go away"}));
        assert_eq!(answer, Some((403, "go away".into())));
    }

    #[test]
    fn a_request_of_nobody_is_refused() {
        let mut probe = Probe::get("/");
        let stage: ConsumerRestriction = probe.stage(json!({"blacklist": ["rose"]})).unwrap();
        let Step::Reply(reply) = stage.access(&mut probe.exchange()) else { panic!("it passed") };
        assert_eq!(reply.status, 401);
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::default();
        let reason = |config| probe.stage::<ConsumerRestriction>(config).err().unwrap().reason;
        assert!(reason(json!({})).starts_with("object matches none of the required"));
        assert_eq!(
            reason(json!({"blacklist": ["a"], "rejected_code": 600})),
            "rejected_code is not an HTTP status"
        );
        assert!(
            probe.stage::<ConsumerRestriction>(json!({"blacklist": ["a"], "rejected_code": 599})).is_ok()
        );
        assert!(probe.stage::<ConsumerRestriction>(json!({"allowed_by_methods": []})).is_ok());
    }
}
