//! Clients that may remove answers with `PURGE`.

use std::net::IpAddr;

use ipnet::IpNet;
use model::boot::Section;
use sdk::Reply;
use serde_json::{Value, json};

/// The clients whose `PURGE` is accepted. APISIX accepts all; here a stranger could so make the
/// gateway fetch every answer from the upstream again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MayPurge(Vec<IpNet>);

impl MayPurge {
    /// Reads `plugin_attr.proxy-cache.purge_allow`.
    pub(super) fn from_attr(attr: Option<&Value>) -> MayPurge {
        MayPurge(Section::attr("/plugin_attr/proxy-cache", attr).networks("/purge_allow"))
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
        let heard =
            |attr: Option<Value>, ip: &str| MayPurge::from_attr(attr.as_ref()).is_heard(ip.parse().unwrap());
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
}
