//! hot path
//!
//! real-ip: takes the client's address from a variable of the request.
//!
//! Settings and their effect as in APISIX 3.18. Later plugins, the
//! upstream and the logs see that address; `$realip_remote_addr` stays the other end of the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::Invalid;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ranges::{self, Ranges};

/// The stage.
pub struct RealIp {
    source: Source,
    trusted: Option<Ranges>,
    recursive: bool,
}

enum Source {
    /// The last address of X-Forwarded-For, or with `recursive` the last that is not trusted.
    ForwardedFor,
    Var(Var),
}

#[derive(Debug, Deserialize)]
pub struct Config {
    trusted_addresses: Option<Vec<String>>,
    source: String,
    recursive: bool,
}

impl Plugin for RealIp {
    const NAME: &'static str = "real-ip";
    const PRIORITY: i32 = 23000;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "trusted_addresses": {
                    "type": "array",
                    "items": {"anyOf": ranges::schemas()},
                    "minItems": 1,
                },
                "source": {"type": "string", "minLength": 1},
                "recursive": {"type": "boolean", "default": false},
            },
            "required": ["source"],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<RealIp, Invalid> {
        let trusted = config.trusted_addresses.map(|list| Ranges::parse(&list)).transpose();
        Ok(RealIp {
            source: match config.source.as_str() {
                "http_x_forwarded_for" => Source::ForwardedFor,
                name => Source::Var(Var::parse(name)),
            },
            trusted: trusted.map_err(|invalid| invalid.under("/trusted_addresses"))?,
            recursive: config.recursive,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if self.trusted.as_ref().is_some_and(|trusted| !trusted.contain(x.client().ip())) {
            return Step::Next;
        }
        let address = match &self.source {
            Source::ForwardedFor => self.forwarded_for(x).map(parse),
            Source::Var(var) => var.of(x).map(|value| parse(&value)),
        };
        match address {
            Some(Some((ip, port))) => x.set_client_address(ip, port),
            Some(None) => x.complain(Self::NAME, "the source holds no IP address"),
            None => {}
        }
        Step::Next
    }
}

impl RealIp {
    fn forwarded_for<'a>(&self, x: &'a Exchange<'_>) -> Option<&'a [u8]> {
        // Several lines are one list (RFC 9110 section 5.3): the last address is the nearest hop's.
        let lines = x.request().fields.all(b"x-forwarded-for").rev();
        let mut last = None;
        for address in lines.flat_map(|line| line.rsplit(|&byte| byte == b',')).map(<[u8]>::trim_ascii) {
            last = Some(address);
            let trusted = match (&self.trusted, self.recursive) {
                // The list may name a trusted hop with its port: as a client it would seem to come from within.
                (Some(trusted), true) => {
                    parse(address).is_some_and(|(ip, _)| trusted.contain(ip.to_canonical()))
                }
                _ => false,
            };
            if !trusted {
                break;
            }
        }
        last
    }
}

/// An address and its port, if it has one: `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]`, `[::1]:80`.
fn parse(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, after) = rest.split_once(']')?;
        let ip: Ipv6Addr = ip.parse().ok()?;
        return match after.strip_prefix(':') {
            Some(digits) => Some((ip.into(), port(digits)?)),
            None => after.is_empty().then_some((ip.into(), None)),
        };
    }
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return Some((ip.into(), None));
    }
    let (ip, port) = match text.split_once(':') {
        Some((ip, digits)) => (ip, port(digits)?),
        None => (text, None),
    };
    Some((ip.parse::<Ipv4Addr>().ok()?.into(), port))
}

/// A port from 1 on. A text that is not a number means no port, as with Lua's `tonumber`.
fn port(digits: &str) -> Option<Option<u16>> {
    if digits.is_empty() {
        return None;
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(None);
    }
    digits.parse().ok().filter(|&port| port != 0).map(Some)
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    /// `$remote_addr:$remote_port` after the stage, for a client at 127.0.0.1:40000.
    fn seen(config: Value, headers: &[(&str, &str)]) -> String {
        let mut probe = Probe::request("GET", "/", headers);
        let stage: RealIp = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Next));
        let var = |name| String::from_utf8(Var::parse(name).of(&x).unwrap().to_vec()).unwrap();
        assert_eq!(
            (var("realip_remote_addr"), var("realip_remote_port")),
            ("127.0.0.1".into(), "40000".into())
        );
        format!("{}|{}", var("remote_addr"), var("remote_port"))
    }

    #[test]
    fn an_address_is_taken_with_its_port() {
        for (header, expected) in [
            ("1.1.1.1", "1.1.1.1|"),
            ("1.1.1.1:80", "1.1.1.1|80"),
            ("1.1.1.1:65535", "1.1.1.1|65535"),
            ("1.1.1.1:x", "1.1.1.1|"),
            ("::2", "::2|"),
            ("[::2]", "::2|"),
            ("[::2]:7090", "::2|7090"),
            ("::ffff:1.2.3.4", "1.2.3.4|"),
        ] {
            assert_eq!(seen(json!({"source": "http_xff"}), &[("XFF", header)]), expected, "{header}");
        }
        for bad in [
            "",
            "x",
            "1.1.1.1.1",
            "1.1.1.1:65536",
            "1.1.1.1:0",
            "1.1.1.1:",
            "1.1.1",
            "[1.1.1.1]",
            "[::1]x",
            "[::1",
            " 1.1.1.1",
            "1.1.1.1 ",
            "::1:",
            "1.1.1.1, 2.2.2.2",
        ] {
            assert_eq!(seen(json!({"source": "http_xff"}), &[("XFF", bad)]), "127.0.0.1|40000", "{bad}");
        }
        assert_eq!(seen(json!({"source": "http_xff"}), &[]), "127.0.0.1|40000");
    }

    #[test]
    fn any_variable_may_be_the_source() {
        let mut probe = Probe::get("/?ip=10.1.1.1");
        let stage: RealIp = probe.stage(json!({"source": "arg_ip"})).unwrap();
        let mut x = probe.exchange();
        stage.rewrite(&mut x);
        assert_eq!(x.client().ip_text(), b"10.1.1.1");
    }

    #[test]
    fn the_last_forwarded_address_counts() {
        let config = json!({"source": "http_x_forwarded_for"});
        for (headers, expected) in [
            (&[("X-Forwarded-For", "::1, ::2")][..], "::2|"),
            (&[("X-Forwarded-For", "::1"), ("X-Forwarded-For", "::2")], "::2|"),
            (&[("X-Forwarded-For", "1.1.1.1:5,  2.2.2.2:6")], "2.2.2.2|6"),
            (&[("X-Forwarded-For", "1.1.1.1,")], "127.0.0.1|40000"),
            (&[("X-Forwarded-For", "1.1.1.1, 2.2.2.2 ")], "2.2.2.2|"),
        ] {
            assert_eq!(seen(config.clone(), headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn only_a_trusted_peer_is_believed() {
        let header = [("X-Forwarded-For", "1.1.1.1")];
        let config =
            |trusted: &str| json!({"source": "http_x_forwarded_for", "trusted_addresses": [trusted]});
        assert_eq!(seen(config("192.128.0.0/16"), &header), "127.0.0.1|40000");
        assert_eq!(seen(config("127.0.0.0/24"), &header), "1.1.1.1|");
    }

    #[test]
    fn recursion_goes_past_trusted_addresses() {
        let config = json!({
            "source": "http_x_forwarded_for", "recursive": true,
            "trusted_addresses": ["192.128.0.0/16", "127.0.0.0/24", "::1"],
        });
        for (header, expected) in [
            ("1.1.1.1, 192.128.1.1, 127.0.0.1", "1.1.1.1|"),
            ("1.1.1.1, 2.2.2.2,192.128.1.1,   ::1", "2.2.2.2|"),
            ("192.128.9.9, 127.0.0.1", "192.128.9.9|"),
            ("127.0.0.1", "127.0.0.1|"),
            ("1.1.1.1, x, 127.0.0.1", "127.0.0.1|40000"),
            ("1.1.1.1:7, 127.0.0.1:80", "1.1.1.1|7"),
            ("1.1.1.1, [::1]:80 , ::ffff:127.0.0.1,[::ffff:127.0.0.1]", "1.1.1.1|"),
            ("10.0.0.1, 1.1.1.1 , 127.0.0.1", "1.1.1.1|"),
            ("::ffff:1.1.1.1, 127.0.0.1", "1.1.1.1|"),
        ] {
            assert_eq!(seen(config.clone(), &[("X-Forwarded-For", header)]), expected, "{header}");
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let config = json!({
            "source": "http_x_forwarded_for", "recursive": true, "trusted_addresses": ["127.0.0.0/24", "192.0.2.0/24"],
        });
        for (lines, expected) in [
            (&["6.6.6.6, 1.1.1.1", "192.0.2.1"][..], "1.1.1.1|"),
            (&["6.6.6.6", "1.1.1.1", "192.0.2.2, 192.0.2.1"], "1.1.1.1|"),
            (&["192.0.2.9", "192.0.2.1"], "192.0.2.9|"),
            (&["1.1.1.1, x", "192.0.2.1"], "127.0.0.1|40000"),
        ] {
            let headers: Vec<_> = lines.iter().map(|line| ("X-Forwarded-For", *line)).collect();
            assert_eq!(seen(config.clone(), &headers), expected, "{lines:?}");
        }
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let error = |config| probe.stage::<RealIp>(config).err().unwrap().reason;
        assert_eq!(error(json!({"trusted_addresses": ["127.0.0.1"]})), "property \"source\" is required");
        assert_eq!(
            error(json!({"source": "http_xff", "trusted_addresses": ["::1/129"]})),
            "invalid ip address: ::1/129"
        );
    }
}
