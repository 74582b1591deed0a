//! hot path
//!
//! Whether a failed try may be made again elsewhere.

use super::fault::{Blame, Fault, FaultKind};

/// How far a try came before it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Try {
    /// The connection had carried a request before.
    pub(crate) reused: bool,
    /// It had to be a fresh one, after an idle one had gone. Of those that wait for the same new connection
    /// all but the first find it used.
    pub(crate) fresh: bool,
    /// Some bytes of the request may have reached the server.
    pub(crate) sent: bool,
    /// Bytes of the body were taken from the client that are not in memory any more.
    pub(crate) body_lost: bool,
}

/// The retry that may follow a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    No,
    /// On a fresh connection to the same server; not counted as a retry, since nothing was
    /// wrong but an idle connection that had gone.
    SameServer,
    /// On the next server, if one is left.
    NextServer,
}

/// Decides. Only failures of the upstream are tried again, only before a final response has
/// begun, and a request that may have been processed only if it is `repeatable`: the method it was sent
/// with is idempotent (RFC 9110 section 9.2.2).
#[inline]
pub(crate) fn decide(fault: Fault, tried: Try, repeatable: bool) -> Again {
    if fault.blame != Blame::Upstream || tried.body_lost {
        return Again::No;
    }
    let was_idle = tried.reused && !tried.fresh;
    match fault.kind {
        FaultKind::ConnectRefused
        | FaultKind::ConnectFailed
        | FaultKind::NoDescriptor
        | FaultKind::ConnectTimeout
        | FaultKind::TlsFailed(_) => Again::NextServer,
        // The server says itself that it did not look at it.
        FaultKind::Unprocessed if was_idle => Again::SameServer,
        FaultKind::Unprocessed => Again::NextServer,
        FaultKind::TurnedAway(_) if repeatable => Again::NextServer,
        FaultKind::ClosedEarly if !tried.sent || repeatable => {
            if was_idle {
                Again::SameServer
            } else {
                Again::NextServer
            }
        }
        // Shared connections end for other reasons than that they were idle.
        FaultKind::Ended(_) if !tried.sent || repeatable => Again::NextServer,
        FaultKind::ReadTimeout | FaultKind::SendTimeout if repeatable => Again::NextServer,
        _ => Again::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Method;

    fn decide(fault: Fault, tried: Try, method: Method) -> Again {
        super::decide(fault, tried, method.is_idempotent())
    }

    const FRESH: Try = Try { reused: false, fresh: false, sent: true, body_lost: false };

    #[test]
    fn a_post_is_never_sent_twice() {
        let closed = Fault::upstream(FaultKind::ClosedEarly);
        for tried in [FRESH, Try { reused: true, ..FRESH }] {
            assert_eq!(decide(closed, tried, Method::Post), Again::No);
        }
        let unsent = Try { reused: true, sent: false, ..FRESH };
        assert_eq!(decide(closed, unsent, Method::Post), Again::SameServer);
        for kind in [FaultKind::SendTimeout, FaultKind::ReadTimeout] {
            let late = Fault::upstream(kind);
            assert_eq!(decide(late, FRESH, Method::Post), Again::No);
            assert_eq!(decide(late, FRESH, Method::Put), Again::NextServer);
        }
        let refused = Fault::upstream(FaultKind::ConnectRefused);
        assert_eq!(decide(refused, Try { sent: false, ..FRESH }, Method::Post), Again::NextServer);
    }

    #[test]
    fn after_a_time_out_only_what_is_idempotent_goes_on() {
        for kind in [FaultKind::ReadTimeout, FaultKind::SendTimeout] {
            for (method, again) in [
                (Method::Get, Again::NextServer),
                (Method::Put, Again::NextServer),
                (Method::Post, Again::No),
                (Method::Patch, Again::No),
                (Method::Other, Again::No),
            ] {
                for tried in [FRESH, Try { reused: true, ..FRESH }] {
                    assert_eq!(decide(Fault::upstream(kind), tried, method), again, "{kind:?} {method:?}");
                }
            }
        }
        // Nothing was sent yet, so any method may.
        let connecting = Try { sent: false, ..FRESH };
        for kind in [
            FaultKind::ConnectRefused,
            FaultKind::ConnectFailed,
            FaultKind::NoDescriptor,
            FaultKind::ConnectTimeout,
            FaultKind::TlsFailed(""),
        ] {
            assert_eq!(decide(Fault::upstream(kind), connecting, Method::Post), Again::NextServer);
        }
    }

    #[test]
    fn what_was_not_looked_at_goes_elsewhere_whatever_it_is() {
        let refused = Fault::upstream(FaultKind::Unprocessed);
        assert_eq!(decide(refused, FRESH, Method::Post), Again::NextServer);
        assert_eq!(decide(refused, Try { reused: true, ..FRESH }, Method::Post), Again::SameServer);
        assert_eq!(decide(refused, Try { body_lost: true, ..FRESH }, Method::Post), Again::No);
    }

    #[test]
    fn what_ended_on_a_shared_connection_is_a_retry_like_others() {
        let ended = Fault::upstream(FaultKind::Ended("reset"));
        for tried in [FRESH, Try { reused: true, ..FRESH }] {
            assert_eq!(decide(ended, tried, Method::Get), Again::NextServer);
            assert_eq!(decide(ended, tried, Method::Post), Again::No);
            assert_eq!(decide(ended, Try { sent: false, ..tried }, Method::Post), Again::NextServer);
            assert_eq!(decide(Fault::upstream(FaultKind::BrokenStream), tried, Method::Get), Again::No);
        }
    }

    #[test]
    fn a_dead_idle_connection_is_replaced() {
        let closed = Fault::upstream(FaultKind::ClosedEarly);
        assert_eq!(decide(closed, Try { reused: true, ..FRESH }, Method::Get), Again::SameServer);
        assert_eq!(decide(closed, FRESH, Method::Get), Again::NextServer);
    }

    #[test]
    fn a_second_failure_in_a_row_counts_as_one() {
        let again = Try { reused: true, fresh: true, ..FRESH };
        for kind in [FaultKind::ClosedEarly, FaultKind::Unprocessed] {
            assert_eq!(decide(Fault::upstream(kind), again, Method::Get), Again::NextServer, "{kind:?}");
        }
    }

    #[test]
    fn nothing_is_tried_without_the_body_or_for_a_client_that_left() {
        let closed = Fault::upstream(FaultKind::ClosedEarly);
        assert_eq!(decide(closed, Try { body_lost: true, ..FRESH }, Method::Put), Again::No);
        assert_eq!(decide(Fault::client(FaultKind::ClientGone), FRESH, Method::Get), Again::No);
    }
}
