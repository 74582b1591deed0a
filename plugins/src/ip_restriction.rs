//! hot path
//!
//! ip-restriction: allows or refuses clients by address.
//!
//! Settings and messages as in APISIX 3.18; `except` is ours. The address is the client's as the
//! gateway knows it: the peer's, or what a trusted proxy named.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ranges::{self, Ranges};

/// The stage.
pub struct IpRestriction {
    whitelist: Option<Ranges>,
    blacklist: Option<Ranges>,
    except: Option<Ranges>,
    refusal: Reply,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    message: String,
    response_code: u16,
    whitelist: Option<Vec<String>>,
    blacklist: Option<Vec<String>>,
    except: Option<Vec<String>>,
}

impl Plugin for IpRestriction {
    const NAME: &'static str = "ip-restriction";
    const PRIORITY: i32 = 3000;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let list = json!({"type": "array", "items": {"anyOf": ranges::schemas()}, "minItems": 1});
        json!({
            "type": "object",
            "properties": {
                "message": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "default": "Your IP address is not allowed",
                },
                "response_code": {"type": "integer", "minimum": 403, "maximum": 404, "default": 403},
                "whitelist": list,
                "blacklist": list,
                "except": list,
            },
            "oneOf": [{"required": ["whitelist"]}, {"required": ["blacklist"]}],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<IpRestriction, Invalid> {
        let ranges = |list: Option<Vec<String>>, name: &str| {
            list.map(|list| Ranges::parse(&list).map_err(|invalid| invalid.within(name))).transpose()
        };
        if config.except.is_some() && config.whitelist.is_none() {
            return Err(Invalid::new("except needs a whitelist").at("/except"));
        }
        Ok(IpRestriction {
            whitelist: ranges(config.whitelist, "whitelist")?,
            blacklist: ranges(config.blacklist, "blacklist")?,
            except: ranges(config.except, "except")?,
            refusal: Reply::json(config.response_code, &json!({ "message": config.message }))
                .because("the client's address is not allowed"),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let ip = x.client().ip();
        let kept_out = match (&self.whitelist, &self.blacklist) {
            (Some(whitelist), _) => {
                !whitelist.contain(ip) || self.except.as_ref().is_some_and(|except| except.contain(ip))
            }
            (None, Some(blacklist)) => blacklist.contain(ip),
            (None, None) => false,
        };
        if kept_out { Step::Reply(self.refusal.clone()) } else { Step::Next }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn allowed(config: &Value, ip: &str) -> bool {
        let mut probe = Probe::get("/").from_ip(ip);
        let stage: IpRestriction = probe.stage(config.clone()).unwrap();
        match stage.access(&mut probe.exchange()) {
            Step::Next => true,
            Step::Reply(reply) => {
                assert_eq!(reply.status, 403);
                assert_eq!(&reply.body[..], b"{\"message\":\"Your IP address is not allowed\"}\n");
                false
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn a_whitelist_may_have_exceptions() {
        let config = json!({"whitelist": ["10.0.0.0/8", "::1"], "except": ["10.1.0.0/16"]});
        let allowed = ["10.0.0.1", "10.1.0.1", "::1", "11.0.0.1"].map(|ip| allowed(&config, ip));
        assert_eq!(allowed, [true, false, true, false]);
        let probe = Probe::get("/");
        for lists in [json!({"except": ["::1"]}), json!({"blacklist": ["::1"], "except": ["::2"]})] {
            assert!(probe.stage::<IpRestriction>(lists).is_err());
        }
        assert_eq!(
            probe
                .stage::<IpRestriction>(json!({"whitelist": ["::1"], "except": ["x"]}))
                .map(|_| ())
                .unwrap_err()
                .pointer,
            "/except/0"
        );
    }

    #[test]
    fn a_whitelist_lets_in_what_it_holds() {
        let config = json!({"whitelist": ["10.255.254.0/24", "192.168.0.0/16", "::1", "fe80::/32"]});
        for ip in ["10.255.254.0", "10.255.254.255", "192.168.7.7", "::1", "fe80::1:1"] {
            assert!(allowed(&config, ip), "{ip}");
        }
        for ip in ["10.255.253.255", "10.255.255.0", "127.0.0.1", "::2", "fe80:1::", "0.0.0.1"] {
            assert!(!allowed(&config, ip), "{ip}");
        }
    }

    #[test]
    fn mapped_networks_hold_ipv4() {
        let all = json!({"blacklist": ["::ffff:0:0/96"]});
        for ip in ["1.2.3.4", "255.255.255.255", "::ffff:10.1.1.1"] {
            assert!(!allowed(&all, ip), "{ip}");
        }
        assert!(allowed(&all, "2001:db8::1"));
        assert!(!allowed(&json!({"blacklist": ["::ffff:10.1.1.1"]}), "10.1.1.1"));
    }

    #[test]
    fn a_blacklist_keeps_out_what_it_holds() {
        let config = json!({"blacklist": ["127.0.0.1", "10.0.0.0/8", "10.1.0.0/16", "::ffff:102:300/120"]});
        for ip in ["127.0.0.1", "10.200.0.1", "1.2.3.4", "::ffff:10.1.1.1"] {
            assert!(!allowed(&config, ip), "{ip}");
        }
        for ip in ["127.0.0.2", "9.255.255.255", "11.0.0.0", "1.2.4.0", "::1"] {
            assert!(allowed(&config, ip), "{ip}");
        }
        assert!(!allowed(&json!({"blacklist": ["0.0.0.0/0"]}), "255.255.255.255"));
        assert!(!allowed(&json!({"blacklist": ["::/0", "ffff::"]}), "ffff::1"));
    }

    #[test]
    fn message_and_status_can_be_chosen() {
        let mut probe = Probe::get("/");
        let config = json!({"blacklist": ["127.0.0.1"], "message": "Do you want to do something bad?", "response_code": 404});
        let stage: IpRestriction = probe.stage(config).unwrap();
        let Step::Reply(reply) = stage.access(&mut probe.exchange()) else { panic!("let in") };
        assert_eq!(reply.status, 404);
        assert_eq!(&reply.body[..], b"{\"message\":\"Do you want to do something bad?\"}\n");
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let item = |name, index| {
            format!(
                "property \"{name}\" validation failed: failed to validate item {index}: \
                 object matches none of the required"
            )
        };
        for (config, reason) in [
            (json!({}), "value should match only one schema, but matches none".to_owned()),
            (
                json!({"whitelist": ["::1"], "blacklist": ["::1"]}),
                "value should match only one schema, but matches both schemas 1 and 2".to_owned(),
            ),
            (json!({"whitelist": ["10.255.256.0/24"]}), item("whitelist", 1)),
            (json!({"blacklist": ["::1", "10.0.0.0/38"]}), item("blacklist", 2)),
            (
                json!({"blacklist": []}),
                "property \"blacklist\" validation failed: expect array to have at least 1 items".to_owned(),
            ),
            (json!({"blacklist": ["::1/129"]}), "invalid ip address: ::1/129".to_owned()),
            (
                json!({"blacklist": ["::1"], "response_code": 405}),
                "property \"response_code\" validation failed: expected 405 to be at most 404".to_owned(),
            ),
        ] {
            assert_eq!(
                probe.stage::<IpRestriction>(config.clone()).err().unwrap().reason,
                reason,
                "{config}"
            );
        }
    }
}
