//! A request to the Admin API, taken apart.

use std::borrow::Cow;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::answer::{ErrorAnswer, said};

/// Method, path below `/apisix/admin` and query.
pub(crate) struct Call<'a> {
    pub method: &'a Method,
    segments: Vec<&'a str>,
    decoded: Vec<Cow<'a, str>>,
    query: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Call<'a> {
    /// `None` if the path is not one below `/apisix/admin`.
    pub fn read(head: &'a Parts) -> Option<Call<'a>> {
        let path = head.uri.path().strip_prefix("/apisix/admin/")?.trim_end_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        let decoded = segments
            .iter()
            .map(|segment| percent_decode_str(segment).decode_utf8().ok())
            .collect::<Option<Vec<_>>>()?;
        let query = head.uri.query().unwrap_or_default();
        Some(Call { method: &head.method, segments, decoded, query: pairs(query)? })
    }

    /// The path's segments as they were sent, for comparing with fixed words.
    pub fn segments(&self) -> &[&'a str] {
        &self.segments
    }

    /// The path's segments, percent-decoded.
    pub fn path(&self) -> Vec<&str> {
        self.decoded.iter().map(|segment| &**segment).collect()
    }

    /// The value of a query argument, the first if it stands there twice.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// `?force=true`, and nothing else.
    pub fn forced(&self) -> bool {
        self.query("force") == Some("true")
    }

    /// `?ttl=` in seconds.
    pub fn ttl(&self) -> Result<Option<Duration>, ErrorAnswer> {
        let Some(text) = self.query("ttl") else { return Ok(None) };
        let seconds = text.trim().parse::<f64>().ok().filter(|seconds| seconds.is_finite());
        let seconds = seconds.ok_or_else(|| said("invalid argument ttl: should be a number"))?;
        match Duration::try_from_secs_f64(seconds) {
            Ok(ttl) if !ttl.is_zero() => Ok(Some(ttl)),
            _ => Err(said("invalid argument ttl: should be greater than 0")),
        }
    }
}

/// The arguments of a query or a form, decoded; `None` if one is no UTF-8.
pub(crate) fn pairs(text: &str) -> Option<Vec<(Cow<'_, str>, Cow<'_, str>)>> {
    let decode = |part: &str| -> Option<String> {
        let spaced = part.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().ok().map(Cow::into_owned)
    };
    let parts = text.split('&').filter(|pair| !pair.is_empty());
    parts
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((Cow::Owned(decode(name)?), Cow::Owned(decode(value)?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(uri: &str) -> Parts {
        Request::builder().uri(uri).body(()).unwrap().into_parts().0
    }

    #[test]
    fn paths_are_split_and_decoded() {
        let request = request("/apisix/admin/routes/a%2Fb/?x=%31+2&y&x=3");
        let call = Call::read(&request).unwrap();
        assert_eq!(call.segments(), ["routes", "a%2Fb"]);
        assert_eq!(call.path(), ["routes", "a/b"]);
        assert_eq!((call.query("x"), call.query("y"), call.query("z")), (Some("1 2"), Some(""), None));
    }

    #[test]
    fn foreign_and_unreadable_paths_are_rejected() {
        for uri in ["/apisix/admin", "/apisix/adminx/routes", "/", "/apisix/admin/%ff", "/apisix/admin/x?%ff"]
        {
            assert!(Call::read(&request(uri)).is_none(), "{uri}");
        }
    }

    #[test]
    fn a_ttl_is_a_positive_number() {
        let ttl = |query: &str| {
            let request = request(&format!("/apisix/admin/routes{query}"));
            Call::read(&request).unwrap().ttl()
        };
        assert_eq!(ttl("").unwrap(), None);
        assert_eq!(ttl("?ttl=1.5").unwrap(), Some(Duration::from_millis(1500)));
        for bad in ["?ttl=", "?ttl=x", "?ttl=nan", "?ttl=-1", "?ttl=0", "?ttl=1e30"] {
            assert!(ttl(bad).is_err(), "{bad}");
        }
    }
}
