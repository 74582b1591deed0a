//! Whether a client has proved itself as the host it asks for demands (mutual TLS).
//!
//! A handshake is about one server name, and the requests behind it may be about any host. So each request
//! is judged by the certificate that is served for its host now.

use sdk::client::{TlsSession, Verdict};
use sdk::pattern::{Pattern, Searches};
use snapshot::Snapshot;
use snapshot::certs::ClientRules;
use wire::{RequestHead, Version};

use super::fault::{Fault, FaultKind, OTHER_HOST};

/// Refuses a request whose client has not proved itself. Only for connections with TLS.
pub(super) fn check(
    snapshot: &Snapshot,
    session: &TlsSession,
    head: &RequestHead,
    searches: &Searches,
) -> Result<(), Fault> {
    let certificates = &snapshot.certificates;
    if !certificates.ask_clients() {
        return Ok(());
    }
    let asked = session.server_name.as_deref();
    let rules = |name| certificates.find(name).and_then(|certificate| certificate.client.as_ref());
    let judged = rules(asked);
    if let Some(rules) = judged {
        judge(rules, session, head.path(), searches)?;
    }
    let Ok(host) = std::str::from_utf8(head.host()) else { return Ok(()) };
    match rules(Some(host)) {
        // Where a handshake named no server, it was about the fallback.
        Some(_) if !same(asked.or(certificates.fallback()), host) => {
            Err(Fault::client(match head.version {
                // A client that has put requests for several hosts on one connection asks again on another
                // (RFC 9110 section 15.5.20).
                Version::Http2 | Version::Http3 => FaultKind::Misdirected,
                // APISIX's answer.
                _ => FaultKind::NotProven(OTHER_HOST),
            }))
        }
        // Mostly it is the same certificate.
        Some(rules) if judged.is_none_or(|judged| !std::ptr::eq(judged, rules)) => {
            judge(rules, session, head.path(), searches)
        }
        _ => Ok(()),
    }
}

/// The same for a stream, which is about the server that was asked for in its handshake.
pub(crate) fn check_stream(snapshot: &Snapshot, session: &TlsSession) -> Result<(), Fault> {
    let certificate = snapshot.certificates.find(session.server_name.as_deref());
    match certificate.and_then(|certificate| certificate.client.as_ref()) {
        Some(rules) if !follows(session, rules) => Err(Fault::client(FaultKind::RulesChanged)),
        Some(_) if session.verdict != Verdict::Success => {
            Err(Fault::client(FaultKind::NotProven("client certificate verification is not passed")))
        }
        _ => Ok(()),
    }
}

/// Whether the handshake followed these rules. A verdict under other rules, such as those of an authority that was
/// withdrawn since, is worth nothing.
fn follows(session: &TlsSession, rules: &ClientRules) -> bool {
    session.rules.as_ref() == Some(rules.digest())
}

fn judge(rules: &ClientRules, session: &TlsSession, path: &[u8], searches: &Searches) -> Result<(), Fault> {
    let follows = follows(session, rules);
    if follows && session.verdict == Verdict::Success || skips(&rules.skip, path, searches) {
        return Ok(());
    }
    Err(Fault::client(match session.verdict {
        _ if !follows => FaultKind::RulesChanged,
        Verdict::Failed(_) => FaultKind::NotProven("client certificate verification is not passed"),
        _ => FaultKind::NotProven("client certificate was not present"),
    }))
}

/// Whether a path needs no certificate. It needs one where a search gives up.
fn skips(patterns: &[Pattern], path: &[u8], searches: &Searches) -> bool {
    patterns.iter().any(|pattern| pattern.judge(path, searches) == Ok(true))
}

fn same(name: Option<&str>, host: &str) -> bool {
    let bare = |name: &str| name.strip_suffix('.').unwrap_or(name).len();
    name.is_some_and(|name| name[..bare(name)].eq_ignore_ascii_case(&host[..bare(host)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_whose_search_comes_to_no_end_needs_a_certificate() {
        let patterns = |list: &[&str]| -> Vec<_> {
            list.iter().map(|pattern| Pattern::new(pattern, false).unwrap()).collect()
        };
        // Four of the first cost what the searches of one exchange may cost.
        let mut list = vec!["(?=.*b)c"; 4];
        list.push("(?=/a)/");
        let list = patterns(&list);
        for (length, skipped) in [(100, true), (8 << 10, false)] {
            let path = [b"/".as_slice(), &vec![b'a'; length - 1]].concat();
            let searches = Searches::default();
            assert_eq!(skips(&list, &path, &searches), skipped, "{length}");
            // A pattern that does not search costs nothing.
            assert!(skips(&patterns(&["^/a"]), &path, &searches));
        }
    }
}
