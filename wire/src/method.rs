//! Request methods (RFC 9110 section 9; PURGE as APISIX routes use it).

/// A request method. `Other` keeps unknown but well-formed methods possible:
/// their spelling stays in the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Method {
    #[default]
    Get,
    Post,
    Put,
    Delete,
    Patch,
    Head,
    Options,
    Connect,
    Trace,
    Purge,
    Other,
}

impl Method {
    pub const KNOWN: [Method; 10] = [
        Method::Get,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Head,
        Method::Options,
        Method::Connect,
        Method::Trace,
        Method::Purge,
    ];

    /// The method with this exact (case-sensitive) spelling, else `Other`.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Method {
        match bytes {
            b"GET" => Method::Get,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"PATCH" => Method::Patch,
            b"HEAD" => Method::Head,
            b"OPTIONS" => Method::Options,
            b"CONNECT" => Method::Connect,
            b"TRACE" => Method::Trace,
            b"PURGE" => Method::Purge,
            _ => Method::Other,
        }
    }

    /// The spelling; empty for `Other`.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
            Method::Purge => "PURGE",
            Method::Other => "",
        }
    }

    /// One bit per method, for the method sets of routes.
    #[inline]
    pub fn bit(self) -> u16 {
        1 << self as u8
    }

    /// Whether the method is idempotent, so a request may be sent twice (RFC 9110 section 9.2.2).
    #[inline]
    pub fn is_idempotent(self) -> bool {
        matches!(
            self,
            Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_round_trips_and_is_case_sensitive() {
        for method in Method::KNOWN {
            assert_eq!(Method::from_bytes(method.as_str().as_bytes()), method);
        }
        assert_eq!(Method::from_bytes(b"get"), Method::Other);
    }

    #[test]
    fn each_method_has_its_own_bit() {
        let all = Method::KNOWN.into_iter().chain([Method::Other]);
        let set = all.clone().fold(0, |set, method| {
            assert_eq!((method.bit().count_ones(), set & method.bit()), (1, 0), "{method:?}");
            set | method.bit()
        });
        assert_eq!(set.count_ones() as usize, all.count());
    }

    #[test]
    fn only_idempotent_methods_may_be_repeated() {
        let idempotent = Method::KNOWN.into_iter().filter(|method| method.is_idempotent());
        let idempotent: Vec<_> = idempotent.map(Method::as_str).collect();
        assert_eq!(idempotent, ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"]);
        assert!(!Method::Other.is_idempotent());
    }
}
