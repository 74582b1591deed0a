//! Explains the decisions about a live request in a header of its answer (`sluice.explain`).
//!
//! Only for a request that brings the key; for all others nothing of this runs. An account has a bound, and
//! holds nothing but names of the configuration and addresses.

use sdk::exchange::Source;
use sdk::{Chain, Exchange, Named};
use snapshot::router::trace::{Miss, Outcome};
use snapshot::{Plan, Snapshot};
use subtle::ConstantTimeEq;
use wire::RequestHead;

use super::phases::Chains;
use crate::settings::Explain;
use crate::worker::Worker;

/// Candidates that are named.
const CANDIDATES: usize = 16;

/// The account so far.
struct Account(Vec<u8>);

/// Takes the header from a request, before a route, a plugin or the upstream can see the key; whether it was
/// the right one.
pub(super) fn take(explain: &Explain, head: &mut RequestHead) -> bool {
    let (id, name) = (explain.header.id(), explain.header.text());
    let mut values = head.fields.all_checked(id, name);
    let is_right = values.any(|value| bool::from(value.ct_eq(&explain.key)));
    drop(values);
    head.fields.remove_checked(id, name);
    is_right
}

/// Notes how the route was found.
pub(super) fn begin(x: &mut Exchange<'_>, snapshot: &Snapshot, plan: Option<&Plan>) {
    let mut account = Account(Vec::with_capacity(256));
    account.part("route", plan.map_or("none", |plan| &*plan.info.id));
    if plan.is_some() {
        account.part("uri", x.matched_uri());
        account.part("host", x.matched_host());
    }
    let trace = snapshot.router.trace(x, CANDIDATES, false);
    let tried = trace.tried.iter().filter_map(|tried| match tried.outcome {
        Outcome::Missed(miss) => Some((tried.id, miss)),
        Outcome::Matched(_) => None,
    });
    let mut missed = String::new();
    for (id, miss) in tried {
        if !missed.is_empty() {
            missed.push(',');
        }
        missed.push_str(id);
        missed.push(':');
        missed.push_str(match miss {
            Miss::Method => "methods",
            Miss::RemoteAddr => "remote_addr",
            Miss::Host => "host",
            Miss::Vars => "vars",
            Miss::Code => "filter_func",
            Miss::Path => "uri",
        });
    }
    account.part("missed", &missed);
    account.part("revision", &snapshot.revision.to_string());
    x.set_note(account);
}

/// Puts the account into the head of the answer, behind all filters: what they store is without it.
#[cold]
pub(super) fn add_to_head(worker: &Worker, x: &mut Exchange<'_>, chains: Chains<'_>) {
    let Some(explain) = worker.settings.explain.as_deref() else { return };
    let Some(mut account) = x.take_note::<Account>() else { return };
    let names = |chain: Option<&Chain>| chain.map(Chain::names).unwrap_or_default().join(",");
    account.part("global", &names(chains.global));
    account.part("plugins", &names(chains.plan));
    if let Some(consumer) = x.consumer() {
        account.part("consumer", &consumer.name);
    }
    let by = match x.source() {
        Source::Plugin if x.engine().answered_by.is_empty() => "a plugin",
        Source::Plugin => x.engine().answered_by,
        Source::Upstream => "upstream",
        Source::Gateway | Source::None => "gateway",
    };
    account.part("by", by);
    account.part("reason", x.engine().reason);
    if let Some(address) = x.upstream_addr() {
        account.part("server", &address.to_string());
        account.part("tries", &(x.tried().len() + 1).to_string());
    }
    account.limit(explain.most);
    // It holds only printable ASCII.
    let _ = x.engine_mut().messages.response.fields.set(explain.header.text(), &account.0);
}

impl Account {
    fn part(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        if !self.0.is_empty() {
            self.0.extend_from_slice(b"; ");
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'=');
        self.0.extend(value.bytes().map(|byte| match byte {
            b';' => b'?',
            b' '..=b'~' => byte,
            _ => b'?',
        }));
    }

    /// Cuts it to at most `most` bytes. A header must not end with a space (RFC 9113 section 8.2.1).
    fn limit(&mut self, most: usize) {
        self.0.truncate(most);
        self.0.truncate(self.0.trim_ascii_end().len());
    }
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn a_name_can_neither_end_its_part_nor_the_line() {
        let mut account = Account(Vec::new());
        account.part("route", "a;b\r\nc \u{e9}");
        account.part("service", "");
        account.part("by", "gateway");
        assert_eq!(account.0, b"route=a?b??c ??; by=gateway");
    }

    #[test]
    fn a_limited_account_does_not_end_with_a_space() {
        for (most, left) in [(100, "route=a  b; by=c"), (12, "route=a  b;"), (9, "route=a"), (3, "rou")] {
            let mut account = Account(Vec::new());
            account.part("route", "a  b");
            account.part("by", "c");
            account.limit(most);
            assert_eq!(account.0, left.as_bytes(), "{most}");
        }
    }
}
