//! Servers of loggers that post to an API over HTTP.

use model::Invalid;
use sdk::build::split_authority;
use serde_json::{Map, Value, json};

/// Fields that the gateway sets itself, as they frame a request.
const FRAMING: [&str; 6] =
    ["content-length", "transfer-encoding", "connection", "trailer", "upgrade", "sluice-hops"];

/// Host names and ports, and the settings of the sink for each of them.
pub(crate) type Endpoints = (Vec<(String, u16)>, Vec<Value>);

/// The schema of the URI of a server.
pub(crate) fn uri_schema() -> Value {
    json!({"type": "string", "pattern": "^[^\\/]+:\\/\\/([\\da-zA-Z.-]+|\\[[\\da-fA-F:]+\\])(:\\d+)?"})
}

/// Reads the URIs of servers, each with its pointer in the configuration. `suffix` follows each of them.
///
/// # Errors
/// A URI that is not valid.
pub(crate) fn all<'a>(
    uris: impl IntoIterator<Item = (&'a str, String)>,
    suffix: &str,
    verify: bool,
) -> Result<Endpoints, Invalid> {
    let read = |(uri, pointer): (&str, String)| {
        let Server { https, host, port, path } = server(&format!("{uri}{suffix}")).ok_or_else(|| {
            Invalid::new("it has no valid server, or characters that are not allowed in a URI")
                .at(pointer)
                .expected("http://host[:port][/path][?query], or https://")
        })?;
        Ok(((host, port), json!({"uri": path, "tls": https.then(|| json!({"verify": verify}))})))
    };
    let both: Result<Vec<_>, Invalid> = uris.into_iter().map(read).collect();
    Ok(both?.into_iter().unzip())
}

/// Either the one address or the list of them, with their pointers.
pub(crate) fn either<'a>(one: Option<&'a str>, list: Option<&'a [String]>) -> Vec<(&'a str, String)> {
    match one {
        Some(one) => vec![(one, "/endpoint_addr".to_owned())],
        None => listed(list.unwrap_or_default()),
    }
}

/// The list of addresses, with their pointers.
pub(crate) fn listed(list: &[String]) -> Vec<(&str, String)> {
    list.iter().enumerate().map(|(at, one)| (&one[..], format!("/endpoint_addrs/{at}"))).collect()
}

/// Adds the fields of a configuration, which are at `parent`, to those of a plugin.
///
/// # Errors
/// A name or a value that no field can have, and fields that the gateway sets.
pub(crate) fn add_fields(to: &mut Value, headers: &Map<String, Value>, parent: &str) -> Result<(), Invalid> {
    for (name, value) in headers {
        let pointer = format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"));
        let is_framing = FRAMING.iter().any(|one| one.eq_ignore_ascii_case(name));
        if sdk::HeaderName::new(name).is_err() || is_framing {
            return Err(Invalid::new("this name of a header is invalid, or set by the gateway").at(pointer));
        }
        check_value(value.as_str().unwrap_or("\n"), &pointer)?;
        to[name] = value.clone();
    }
    Ok(())
}

/// # Errors
/// A text that cannot be the value of a field.
pub(crate) fn check_value(text: &str, pointer: &str) -> Result<(), Invalid> {
    if text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
        return Ok(());
    }
    Err(Invalid::new("it has characters that are not allowed in a header").at(pointer))
}

/// Where a URI leads.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    https: bool,
    host: String,
    port: u16,
    /// With the query.
    path: String,
}

fn server(uri: &str) -> Option<Server> {
    let (scheme, rest) = uri.split_once("://")?;
    let https = scheme.eq_ignore_ascii_case("https");
    if !https && !scheme.eq_ignore_ascii_case("http") {
        return None;
    }
    // A fragment is not sent to the server.
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = split_authority(authority, if https { 443 } else { 80 })?;
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    // The brackets of an IPv6 address belong to it in a URI and in Host.
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Some(Server { https, host, port, path: format!("{slash}{path}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_uris() {
        let found = |host: &str, port, path: &str| {
            Some(Server { https: false, host: host.to_owned(), port, path: path.to_owned() })
        };
        let over_tls = |server: Option<Server>| server.map(|server| Server { https: true, ..server });
        for (uri, expected) in [
            ("http://a.b", found("a.b", 80, "/")),
            ("HTTP://a.b:8080/log/in?a=b#c", found("a.b", 8080, "/log/in?a=b")),
            ("http://a?b=c", found("a", 80, "/?b=c")),
            ("http://[::1]:81/x", found("[::1]", 81, "/x")),
            ("https://a.b/in", over_tls(found("a.b", 443, "/in"))),
            ("HTTPS://a.b:8443", over_tls(found("a.b", 8443, "/"))),
            ("http://u:p@h/x", None),
            ("http://h:0/", None),
            ("http://h/a b", None),
            ("http://h/\u{e9}", None),
            ("ftp://h/", None),
        ] {
            assert_eq!(server(uri), expected, "{uri}");
        }
    }

    #[test]
    fn fields_that_frame_a_request_are_rejected() {
        let mut fields = json!({"Content-Type": "text/plain"});
        let all = json!({"X-A": "b", "Authorization": "Bearer c"});
        assert_eq!(add_fields(&mut fields, all.as_object().unwrap(), "/headers"), Ok(()));
        assert_eq!(fields, json!({"Content-Type": "text/plain", "X-A": "b", "Authorization": "Bearer c"}));
        for (wrong, pointer) in [
            (json!({"content-Length": "1"}), "/headers/content-Length"),
            (json!({"Transfer-Encoding": "chunked"}), "/headers/Transfer-Encoding"),
            (json!({"a/b": "1"}), "/headers/a~1b"),
            (json!({"a": "1\r\nb: 2"}), "/headers/a"),
        ] {
            let invalid = add_fields(&mut json!({}), wrong.as_object().unwrap(), "/headers").unwrap_err();
            assert_eq!(invalid.pointer, pointer);
        }
    }
}
