//! Logs clients that fail the TLS handshake for their certificate, at most one a second.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::rustls;

/// The least time between two log lines.
const APART: Duration = Duration::from_secs(1);

/// The refused clients of one listener.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// When the last one was logged.
    last: Option<Instant>,
    /// Refusals since then that were not logged.
    left_out: u64,
}

impl Refusals {
    /// Logs that `peer` was refused, and how many refusals before it were left out.
    pub fn log(&self, peer: IpAddr, why: &dyn Display) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).note(Instant::now());
        match before {
            Some(0) => tracing::warn!("{peer} is refused by the Admin API: {why}"),
            Some(more) => {
                tracing::warn!("{peer} is refused by the Admin API: {why} (and {more} more before)")
            }
            None => tracing::debug!(%peer, %why, "a TLS handshake failed"),
        }
    }
}

impl Counted {
    /// Returns how many refusals were left out before, if this one may be logged.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < APART) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Returns whether a handshake failed for the client's certificate. Other failures, such as those of port
/// scanners, are logged for debugging only.
pub(super) fn is_for_its_certificate(error: &io::Error) -> bool {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(of_tls, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_is_logged_and_others_are_counted() {
        let (mut counted, now) = (Counted::default(), Instant::now());
        assert_eq!(counted.note(now), Some(0));
        assert_eq!([counted.note(now), counted.note(now + APART / 2)], [None, None]);
        assert_eq!(counted.note(now + APART), Some(2));
        assert_eq!(counted.note(now + APART), None);
        assert_eq!(counted.note(now + APART * 5), Some(1));
        assert_eq!(counted.note(now + APART * 9), Some(0));
    }

    #[test]
    fn only_certificates_count() {
        let of =
            |error: rustls::Error| is_for_its_certificate(&io::Error::new(io::ErrorKind::InvalidData, error));
        assert!(of(rustls::Error::NoCertificatesPresented));
        assert!(of(rustls::CertificateError::Expired.into()));
        assert!(!of(rustls::Error::DecryptError));
        assert!(!is_for_its_certificate(&io::ErrorKind::ConnectionReset.into()));
    }
}
