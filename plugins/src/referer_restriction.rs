//! hot path
//!
//! referer-restriction: allows or refuses requests by the host in their Referer.
//!
//! Settings and messages as in APISIX 3.18. A Referer that is no `http` or `https` address counts
//! as missing; hosts are compared without regard to case (RFC 3986 section 3.2.2).

use hashbrown::HashSet;
use model::Invalid;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

/// The stage.
pub struct RefererRestriction {
    hosts: Hosts,
    /// Those on the list are let in, and no others; else they are kept out.
    allows: bool,
    bypass_missing: bool,
    referer: Var,
    refusal: Reply,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    bypass_missing: bool,
    whitelist: Option<Vec<String>>,
    blacklist: Option<Vec<String>>,
    message: String,
}

impl Plugin for RefererRestriction {
    const NAME: &'static str = "referer-restriction";
    const PRIORITY: i32 = 2990;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        let list = json!({
            "type": "array",
            "items": {"type": "string", "pattern": "^\\*$|^\\*?[0-9a-zA-Z-._\\[\\]:]+$"},
            "minItems": 1,
        });
        json!({
            "type": "object",
            "properties": {
                "bypass_missing": {"type": "boolean", "default": false},
                "whitelist": list,
                "blacklist": list,
                "message": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "default": "Your referer host is not allowed",
                },
            },
            "oneOf": [{"required": ["whitelist"]}, {"required": ["blacklist"]}],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<RefererRestriction, Invalid> {
        let (list, allows) = match (&config.whitelist, &config.blacklist) {
            (Some(list), _) => (&list[..], true),
            (None, list) => (list.as_deref().unwrap_or_default(), false),
        };
        Ok(RefererRestriction {
            hosts: Hosts::new(list),
            allows,
            bypass_missing: config.bypass_missing,
            referer: Var::parse("http_referer"),
            refusal: Reply::json(403, &json!({ "message": config.message }))
                .because("the Referer is not allowed"),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let let_in = match self.referer.of(x).as_deref().and_then(host_of) {
            None => self.bypass_missing,
            Some(host) => self.hosts.have(&host) == self.allows,
        };
        if let_in { Step::Next } else { Step::Reply(self.refusal.clone()) }
    }
}

/// Hosts, and ends of hosts where `*` stood before them; all in lower case.
#[derive(Debug, Default)]
struct Hosts {
    whole: HashSet<Box<[u8]>>,
    ends: Vec<Box<[u8]>>,
}

impl Hosts {
    fn new(list: &[String]) -> Hosts {
        let mut hosts = Hosts::default();
        for host in list {
            let host = host.to_ascii_lowercase().into_bytes();
            match host.strip_prefix(b"*") {
                Some(end) => hosts.ends.push(end.into()),
                None => _ = hosts.whole.insert(host.into()),
            }
        }
        hosts
    }

    fn have(&self, host: &[u8]) -> bool {
        self.whole.contains(host) || self.ends.iter().any(|end| host.ends_with(end))
    }
}

/// The longest name DNS has, and the longest address.
const LONGEST: usize = 253;

/// The host of `http://host[:port]…`, in lower case; `None` without a host that a list could name.
fn host_of(referer: &[u8]) -> Option<SmallVec<[u8; 64]>> {
    let scheme = ["http://", "https://"].into_iter().find(|scheme| {
        referer.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    })?;
    let rest = &referer[scheme.len()..];
    let host = if rest.first() == Some(&b'[') {
        let end = rest.iter().position(|&byte| byte == b']')?;
        &rest[..=end]
    } else {
        let end = rest.iter().position(|byte| matches!(byte, b':' | b'/' | b'?'));
        &rest[..end.unwrap_or(rest.len())]
    };
    // A host with other bytes in it is not what a browser would go to: `good.com#.evil.com`.
    let sound =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'[' | b']' | b':');
    if host.is_empty() || host.len() > LONGEST || !host.iter().all(sound) {
        return None;
    }
    Some(host.iter().map(u8::to_ascii_lowercase).collect())
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn let_in(config: &Value, referer: Option<&str>) -> bool {
        let headers: Vec<_> = referer.map(|referer| ("Referer", referer)).into_iter().collect();
        let mut probe = Probe::request("GET", "/", &headers);
        let stage: RefererRestriction = probe.stage(config.clone()).unwrap();
        match stage.access(&mut probe.exchange()) {
            Step::Next => true,
            Step::Reply(reply) => {
                assert_eq!(reply.status, 403);
                assert_eq!(&reply.body[..], b"{\"message\":\"Your referer host is not allowed\"}\n");
                false
            }
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn lists_let_in_or_keep_out() {
        let white = json!({"whitelist": ["*.xx.com", "yy.com", "[::1]"]});
        let black = json!({"blacklist": ["*.xx.com", "yy.com", "[::1]"]});
        for (referer, listed) in [
            ("http://www.xx.com", true),
            ("https://yy.com/am", true),
            ("http://YY.com:8080?x", true),
            ("HTTPS://a.b.xx.com/", true),
            ("http://[::1]:80/", true),
            ("http://xx.com", false),
            ("https://www.yy.com/am", false),
            ("http://yy.com.evil/", false),
            ("http://evil/yy.com", false),
        ] {
            assert_eq!(let_in(&white, Some(referer)), listed, "{referer}");
            assert_eq!(let_in(&black, Some(referer)), !listed, "{referer}");
        }
        assert!(let_in(&json!({"whitelist": ["*"]}), Some("http://anywhere/")));
        for (length, listed) in [(LONGEST, true), (LONGEST + 1, false)] {
            let host = format!("{}.xx.com", "a".repeat(length - ".xx.com".len()));
            assert_eq!(let_in(&white, Some(&format!("http://{host}/"))), listed, "{length}");
        }
    }

    #[test]
    fn what_is_no_address_counts_as_missing() {
        let long = format!("http://{}.xx.com", "a".repeat(1 << 16));
        for referer in [
            None,
            Some(""),
            Some("www.xx.com"),
            Some("ftp://www.xx.com"),
            Some("http://"),
            Some("http:///www.xx.com"),
            Some("http://evil#.xx.com"),
            Some("http://evil\\.xx.com"),
            Some("http://evil@www.xx.com"),
            Some("http://[::1"),
            Some(&long),
        ] {
            for list in ["whitelist", "blacklist"] {
                let mut config = json!({ list: ["*.xx.com"] });
                assert!(!let_in(&config, referer), "{referer:?}");
                config["bypass_missing"] = json!(true);
                assert!(let_in(&config, referer), "{referer:?}");
            }
        }
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let error = |config| probe.stage::<RefererRestriction>(config).err().unwrap().reason;
        assert_eq!(error(json!({})), "value should match only one schema, but matches none");
        assert!(error(json!({"blacklist": ["a/b"]})).contains("failed to match pattern"));
    }
}
