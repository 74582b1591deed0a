//! Clients that are refused before they have asked anything: told of, but not all the time.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::rustls;

/// One of them is told of in so long.
const APART: Duration = Duration::from_secs(1);

/// Those of one listener.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    /// Since then.
    untold: u64,
}

impl Refusals {
    /// Logs that `peer` was refused, and how many were before it of whom nothing was said.
    pub fn tell(&self, peer: IpAddr, why: &dyn Display) {
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

impl Told {
    /// Whether it is time to tell of one, and how many were not told of.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < APART) {
            self.untold += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

/// Whether a handshake failed for the client's certificate. Whatever else fails there may be anybody who knocks.
pub(super) fn is_for_its_certificate(error: &io::Error) -> bool {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(of_tls, Some(rustls::Error::NoCertificatesPresented | rustls::Error::InvalidCertificate(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_of_in_a_second_and_the_others_are_counted() {
        let (mut told, now) = (Told::default(), Instant::now());
        assert_eq!(told.note(now), Some(0));
        assert_eq!([told.note(now), told.note(now + APART / 2)], [None, None]);
        assert_eq!(told.note(now + APART), Some(2));
        assert_eq!(told.note(now + APART), None);
        assert_eq!(told.note(now + APART * 5), Some(1));
        assert_eq!(told.note(now + APART * 9), Some(0));
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
