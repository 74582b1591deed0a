//! Clients that may remove answers with `PURGE`.

use std::net::IpAddr;

use ipnet::IpNet;
use model::{Invalid, network};
use sdk::Reply;
use serde_json::{Value, json};

/// The clients whose `PURGE` is accepted. APISIX accepts all; here a stranger could so make the
/// gateway fetch every answer from the upstream again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MayPurge(Vec<IpNet>);

impl MayPurge {
    /// Reads `plugin_attr.proxy-cache.purge_allow`.
    pub(super) fn from_attr(attr: Option<&Value>) -> Result<MayPurge, Invalid> {
        const AT: &str = "plugin_attr.proxy-cache.purge_allow";
        let Some(value) = attr.and_then(|attr| attr.get("purge_allow")) else {
            let loopback = ["127.0.0.0/8", "::1/128"].into_iter().filter_map(network::parse);
            return Ok(MayPurge(loopback.collect()));
        };
        let wrong = |got: &Value| {
            Invalid::new(format!("{AT} in config.yaml must be a list of addresses"))
                .expected("IPv4 or IPv6 addresses, alone or with a prefix length")
                .got(got.to_string())
                .hint("an empty list means that no client may purge")
        };
        let list = value.as_array().ok_or_else(|| wrong(value))?;
        let nets = list.iter().map(|one| one.as_str().and_then(network::parse).ok_or_else(|| wrong(one)));
        Ok(MayPurge(nets.collect::<Result<_, _>>()?))
    }

    pub(super) fn is_heard(&self, client: IpAddr) -> bool {
        self.0.iter().any(|net| net.contains(&client))
    }

    pub(super) fn refusal(&self) -> Reply {
        Reply::json(403, &json!({"message": "Your IP address is not allowed to purge"}))
            .because("the client's address may not purge")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_heard_unless_said_otherwise() {
        let heard = |attr: Option<Value>, ip: &str| {
            MayPurge::from_attr(attr.as_ref()).unwrap().is_heard(ip.parse().unwrap())
        };
        for (ip, expected) in [("127.0.0.1", true), ("127.9.9.9", true), ("::1", true), ("10.0.0.1", false)] {
            assert_eq!(heard(None, ip), expected, "{ip}");
            assert_eq!(heard(Some(json!({})), ip), expected, "{ip}");
            assert!(!heard(Some(json!({"purge_allow": []})), ip), "{ip}");
        }
        let own = json!({"purge_allow": ["10.0.0.0/8", "2001:db8::1"]});
        for (ip, expected) in
            [("10.9.9.9", true), ("2001:db8::1", true), ("2001:db8::2", false), ("127.0.0.1", false)]
        {
            assert_eq!(heard(Some(own.clone()), ip), expected, "{ip}");
        }
    }

    #[test]
    fn a_list_that_is_none_is_an_error() {
        for wrong in [json!("127.0.0.1"), json!([1]), json!(["localhost"]), json!(["10.0.0.0/33"])] {
            let error = MayPurge::from_attr(Some(&json!({ "purge_allow": wrong }))).unwrap_err();
            assert!(error.to_string().contains("purge_allow"), "{error}");
        }
    }
}
