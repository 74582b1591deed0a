//! Errors of requests that plugins make.

/// Why a [`Fetch`](crate::world::Fetch) or a [`Call`](crate::call::Call) failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchError {
    Unresolved,
    Refused,
    Timeout,
    /// TLS is not available, or the server's certificate is not trusted.
    Untrusted(&'static str),
    Broken,
    TooLarge,
    /// The proxy refused the tunnel.
    NoTunnel,
}

impl FetchError {
    pub fn as_str(self) -> &'static str {
        match self {
            FetchError::Unresolved => "the host name has no address",
            FetchError::Refused => "the connection was refused",
            FetchError::Timeout => "the request timed out",
            FetchError::Untrusted(why) => why,
            FetchError::Broken => "the response was invalid or incomplete HTTP",
            FetchError::TooLarge => "the response exceeds the size limit",
            FetchError::NoTunnel => "the proxy does not open a tunnel to the server",
        }
    }

    /// Returns the error to report after the next address of the server failed as well: a refused connection there does
    /// not hide that TLS failed here.
    #[must_use]
    pub fn or(self, next: FetchError) -> FetchError {
        match (self, next) {
            (FetchError::Untrusted(_), FetchError::Refused) => self,
            _ => next,
        }
    }
}

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::error::Error for FetchError {}

#[cfg(test)]
mod tests {
    use super::FetchError;

    #[test]
    fn a_refused_connection_does_not_hide_that_tls_failed() {
        use FetchError::{Refused, Timeout, Untrusted};
        assert_eq!(Untrusted("why").or(Refused), Untrusted("why"));
        assert_eq!((Untrusted("why").or(Timeout), Refused.or(Untrusted("why"))), (Timeout, Untrusted("why")));
    }

    #[test]
    fn fetch_errors_have_a_text() {
        use FetchError::{Broken, NoTunnel, Refused, Timeout, TooLarge, Unresolved, Untrusted};
        let words = [
            (Unresolved, "address"),
            (Refused, "refused"),
            (Timeout, "timed out"),
            (Untrusted("the TLS handshake failed"), "TLS"),
            (Broken, "incomplete HTTP"),
            (TooLarge, "size limit"),
            (NoTunnel, "tunnel"),
        ];
        for (error, word) in words {
            assert!(error.to_string().contains(word) && error.as_str().contains(word), "{error}");
        }
    }
}
