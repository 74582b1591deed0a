//! `Host` values that are accepted where no key is required.
//!
//! The owner of a name can point it at this machine once a browser has loaded a page from it (DNS rebinding).
//! To the browser the gateway's answers are then the page's own, and it sends no `Origin` with a GET. But it sends
//! the name, as `Host`. Addresses are safe, and so are names without a dot (`localhost`, the name of a container),
//! since they cannot be registered.

use http::header::{self, HeaderMap};
use http::{StatusCode, Uri};
use std::net::IpAddr;

use crate::answer::ErrorAnswer;

/// Checks the `Host` of a request.
///
/// # Errors
/// 403 for a name that a web page may have. Requests without a name pass, since every browser sends one.
pub(crate) fn check(known: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorAnswer> {
    let fields = headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("?.?"));
    let mut asked = fields.chain(uri.authority().map(|authority| authority.as_str()));
    match asked.find(|host| !is_known(known, host)) {
        None => Ok(()),
        Some(host) => {
            let reason = format!(
                "the host {host} is not known here: without a key, a web page whose name points at this gateway could \
                 read its answers. Use an IP address, localhost or a name without a dot, or add the name to \
                 deployment.admin.hosts"
            );
            Err(ErrorAnswer::new(StatusCode::FORBIDDEN, reason))
        }
    }
}

fn is_known(known: &[String], host: &str) -> bool {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().is_some_and(|ip| ip.parse::<IpAddr>().is_ok());
    }
    let name = host.split(':').next().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_given = |given: &String| given == "*" || given.eq_ignore_ascii_case(name);
    let is_local =
        name.as_bytes().last_chunk().is_some_and(|end: &[u8; 10]| end.eq_ignore_ascii_case(b".localhost"));
    !name.contains('.') || is_local || name.parse::<IpAddr>().is_ok() || known.iter().any(is_given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_bare_names_and_names_that_are_given_are_known() {
        let given = ["Gate.example.com".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:9090",
            "[::1]:9090",
            "10.0.0.7:1",
            "localhost:9090",
            "LOCALHOST",
            "a.localhost:1",
            "sluice:9180",
            "gate.example.com:9180",
            "gate.example.com.",
            "",
        ] {
            assert!(is_known(&given, host), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:9090",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "x.gate.example.com",
            "127.0.0.1@evil.test",
            "[evil.test]",
            "é.localhostx",
        ] {
            assert!(!is_known(&given, host), "{host}");
        }
        assert!(is_known(&["*".to_owned()], "evil.test"));
    }
}
