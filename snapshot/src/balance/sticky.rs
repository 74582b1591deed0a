//! hot path
//!
//! Sticky sessions: a cookie names the client's server (`sluice.sticky`).
//!
//! The cookie value is a keyed digest of the server's address: it does not reveal the address,
//! clients cannot forge one for another server, and every gateway with the same key understands it.
//! A request costs one look-up in a table built with the upstream.

use aws_lc_rs::hmac;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use model::upstream as written;
use sdk::Exchange;

use crate::upstream::Endpoint;

/// The servers of an upstream by cookie value, and the cookies by server.
#[derive(Debug, Clone, PartialEq)]
pub struct Sticky {
    name: Box<str>,
    servers: HashMap<Box<[u8]>, u32, FixedState>,
    /// The complete `Set-Cookie` value for each server.
    cookies: Box<[Box<[u8]>]>,
}

/// Digest bytes in a cookie value, which is hexadecimal.
const BYTES: usize = 16;

impl Sticky {
    pub(crate) fn new(from: &written::Sticky, secret: &str, endpoints: &[Endpoint]) -> Sticky {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let mut attributes = format!("; Path={}", from.path);
        if let Some(domain) = &from.domain {
            attributes.push_str(&format!("; Domain={domain}"));
        }
        if let Some(seconds) = from.max_age {
            attributes.push_str(&format!("; Max-Age={seconds}"));
        }
        if from.secure {
            attributes.push_str("; Secure");
        }
        if from.http_only {
            attributes.push_str("; HttpOnly");
        }
        attributes.push_str(match from.same_site {
            written::SameSite::Strict => "; SameSite=Strict",
            written::SameSite::Lax => "; SameSite=Lax",
            written::SameSite::None => "; SameSite=None",
        });
        let mut servers = HashMap::default();
        let cookies = endpoints.iter().enumerate().map(|(index, endpoint)| {
            let value = value(&key, endpoint);
            // Servers with one address are one server.
            servers.entry(value.as_bytes().into()).or_insert(index as u32);
            format!("{}={value}{attributes}", from.name).into_bytes().into()
        });
        let cookies = cookies.collect();
        Sticky { name: from.name.as_str().into(), servers, cookies }
    }

    /// The server that the request's cookie names.
    #[inline]
    pub fn find(&self, x: &Exchange<'_>) -> Option<usize> {
        self.servers.get(x.cookie(&self.name)?).map(|index| *index as usize)
    }

    /// The `Set-Cookie` value for a client that a server has answered.
    #[inline]
    pub fn cookie(&self, index: usize) -> Option<&[u8]> {
        self.cookies.get(index).map(|cookie| &**cookie)
    }
}

fn value(key: &hmac::Key, endpoint: &Endpoint) -> String {
    let digest = hmac::sign(key, format!("sticky {}", endpoint.addr).as_bytes());
    digest.as_ref()[..BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;
    use serde_json::{Value, json};

    use super::*;

    fn endpoint(n: u8) -> Endpoint {
        let addr = std::net::SocketAddr::from(([10, 0, 0, n], 80));
        Endpoint { addr, authority: addr.to_string().into(), weight: 1, priority: 0 }
    }

    fn sticky(settings: Value, servers: &[u8]) -> Sticky {
        let from: written::Sticky = serde_json::from_value(settings).unwrap();
        let endpoints: Vec<Endpoint> = servers.iter().map(|n| endpoint(*n)).collect();
        Sticky::new(&from, &from.secret, &endpoints)
    }

    fn text(sticky: &Sticky, index: usize) -> String {
        String::from_utf8(sticky.cookie(index).unwrap().to_vec()).unwrap()
    }

    fn found(sticky: &Sticky, cookie: &str) -> Option<usize> {
        let mut probe = Probe::request("GET", "/", &[("Cookie", cookie)]);
        sticky.find(&probe.exchange())
    }

    #[test]
    fn a_cookie_finds_its_server_at_any_index() {
        let before = sticky(json!({"secret": "12345678"}), &[1, 2, 3]);
        let pair = |index| text(&before, index).split(';').next().unwrap().to_owned();
        for index in 0..3 {
            assert_eq!(found(&before, &format!("a=b; {}; c=d", pair(index))), Some(index));
        }
        let after = sticky(json!({"secret": "12345678"}), &[9, 3, 1]);
        assert_eq!([0, 1, 2].map(|index| found(&after, &pair(index))), [Some(2), None, Some(1)]);
        // Another key, another name and a partial value match no server.
        assert_eq!(found(&sticky(json!({"secret": "87654321"}), &[1, 2, 3]), &pair(0)), None);
        let named = sticky(json!({"secret": "12345678", "name": "s"}), &[1]);
        assert_eq!(found(&named, &pair(0)), None);
        assert_eq!(found(&before, &pair(0)[..30]), None);
        assert_eq!(found(&before, "sluice_sticky="), None);
        assert!(!text(&before, 0).contains("10.0.0.1"));
    }

    #[test]
    fn cookie_attributes_follow_the_settings() {
        let end = |settings| {
            let cookie = text(&sticky(settings, &[1]), 0);
            cookie.split_once("; ").unwrap().1.to_owned()
        };
        assert_eq!(end(json!({"secret": "12345678"})), "Path=/; Secure; HttpOnly; SameSite=Lax");
        assert_eq!(
            end(json!({
                "secret": "12345678", "path": "/a", "domain": "a.com", "max_age": 60, "secure": false,
                "http_only": false, "same_site": "Strict",
            })),
            "Path=/a; Domain=a.com; Max-Age=60; SameSite=Strict"
        );
    }
}
