//! Protocols that are understood within streams (APISIX's xRPC): what a stream route says of one.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::field::{self, take, typed};
use crate::{Invalid, Schema};

/// The protocols there are.
pub const PROTOCOLS: &[&str] = &["redis", "dubbo"];

/// `protocol` of a stream route.
#[derive(Debug, Clone, PartialEq)]
pub struct Protocol {
    pub settings: Settings,
    /// The stream route that this one stands below of: no connection is matched against this one.
    pub superior_id: Option<String>,
    pub loggers: Vec<Logger>,
    /// `metric.enable`
    pub counts: bool,
}

/// `conf`, by protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Settings {
    Redis {
        /// In the order written; of two for the same command and key the later one counts.
        faults: Vec<Fault>,
    },
    Dubbo,
}

/// Commands that are held back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Fault {
    /// In any case.
    pub commands: Vec<String>,
    /// Those with this key; `None` is all.
    pub key: Option<String>,
    /// Seconds.
    pub delay: f64,
}

/// A plugin that logs calls.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Logger {
    pub name: Option<String>,
    /// The calls that are logged; without a filter, or with an empty one, all.
    #[serde(default)]
    pub filter: Value,
    #[serde(default)]
    pub conf: Value,
}

#[derive(Deserialize)]
struct Raw {
    name: String,
    #[serde(default, deserialize_with = "field::id_opt")]
    superior_id: Option<String>,
    #[serde(default)]
    logger: Vec<Logger>,
    #[serde(default)]
    metric: Value,
}

static REDIS: LazyLock<Schema> = LazyLock::new(|| {
    let fault = json!({
        "type": "object",
        "properties": {
            "commands": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "key": {"type": "string", "minLength": 1},
            "delay": {"type": "number"},
        },
        "required": ["commands", "delay"],
    });
    let faults = json!({"type": "array", "minItems": 1, "items": fault});
    let schema = json!({"type": "object", "properties": {"faults": faults}});
    Schema::new(&schema).expect("the schema above is one")
});

impl Protocol {
    /// Types a value that has passed the schema of stream routes. Pointers begin at the value.
    ///
    /// # Errors
    /// `unknown protocol [mqtt]`, or settings that do not fit their protocol.
    pub(crate) fn read(mut value: Value) -> Result<Protocol, Invalid> {
        let conf = take(&mut value, "conf");
        let written: Raw = typed(value)?;
        let settings = match written.name.as_str() {
            "redis" => Settings::Redis { faults: conf.map_or(Ok(Vec::new()), faults)? },
            "dubbo" => Settings::Dubbo,
            name => return Err(unknown(name).expected(PROTOCOLS.join(" or "))),
        };
        Ok(Protocol {
            settings,
            superior_id: written.superior_id,
            loggers: written.logger,
            counts: written
                .metric
                .get("enable")
                .is_some_and(|enable| !matches!(enable, Value::Null | Value::Bool(false))),
        })
    }

    pub fn name(&self) -> &'static str {
        match self.settings {
            Settings::Redis { .. } => "redis",
            Settings::Dubbo => "dubbo",
        }
    }

    /// # Errors
    /// `unknown protocol [redis]`: `xrpc.protocols` of config.yaml, which is `listed`, does not have it.
    pub fn check_listed(&self, listed: &[String]) -> Result<(), Invalid> {
        match listed.iter().any(|name| name == self.name()) {
            true => Ok(()),
            false => Err(unknown(self.name()).under("/protocol").hint(format!(
                "add `- name: {}` to `xrpc.protocols` in config.yaml and restart",
                self.name()
            ))),
        }
    }
}

fn unknown(name: &str) -> Invalid {
    Invalid::new(format!("unknown protocol [{name}]")).at("/name").got(name)
}

fn faults(conf: Value) -> Result<Vec<Fault>, Invalid> {
    let in_conf = |invalid: Invalid| invalid.under("/conf");
    REDIS.check(&conf).map_err(in_conf)?;
    #[derive(Deserialize)]
    struct Conf {
        #[serde(default)]
        faults: Vec<Fault>,
    }
    typed::<Conf>(conf).map(|conf| conf.faults).map_err(in_conf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Resource};

    fn read(protocol: Value) -> Result<Protocol, Invalid> {
        match Resource::parse(Kind::StreamRoute, "1", &json!({"protocol": protocol}))? {
            Resource::StreamRoute(route) => Ok(route.protocol.expect("it was written")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_said_of_a_protocol() {
        let redis = read(json!({
            "name": "redis", "superior_id": 7, "metric": {"enable": true}, "logger": [{"name": "syslog", "conf": {}}],
            "conf": {"faults": [{"commands": ["GET"], "key": "k", "delay": 0.5}, {"commands": ["ping"], "delay": 1}]},
        }))
        .unwrap();
        assert_eq!((redis.superior_id.as_deref(), redis.counts, redis.loggers.len()), (Some("7"), true, 1));
        let Settings::Redis { faults } = &redis.settings else { panic!("{redis:?}") };
        assert_eq!((faults.len(), faults[0].key.as_deref(), faults[1].delay), (2, Some("k"), 1.0));
        for metric in [json!({}), json!({"enable": false}), json!(null)] {
            assert!(!read(json!({"name": "dubbo", "metric": metric, "conf": {"x": 1}})).unwrap().counts);
        }
    }

    #[test]
    fn mistakes_are_apisix_s_words_with_their_place() {
        let none = read(json!({"name": "mqtt"})).unwrap_err();
        assert_eq!(
            (none.reason.as_str(), none.pointer.as_str()),
            ("unknown protocol [mqtt]", "/protocol/name")
        );
        for (conf, reason, pointer) in [
            (
                json!({"faults": []}),
                "property \"faults\" validation failed: expect array to have at least 1 items",
                "/protocol/conf/faults",
            ),
            (
                json!({"faults": [{"commands": ["get"]}]}),
                "property \"faults\" validation failed: failed to validate item 1: property \"delay\" is required",
                "/protocol/conf/faults/0",
            ),
        ] {
            let invalid = read(json!({"name": "redis", "conf": conf})).unwrap_err();
            assert_eq!((invalid.reason.as_str(), invalid.pointer.as_str()), (reason, pointer));
        }
        let redis = read(json!({"name": "redis"})).unwrap();
        assert_eq!(redis.check_listed(&["redis".to_owned()]), Ok(()));
        let invalid = redis.check_listed(&["dubbo".to_owned()]).unwrap_err();
        assert_eq!(
            (invalid.reason.as_str(), invalid.pointer.as_str()),
            ("unknown protocol [redis]", "/protocol/name")
        );
    }
}
