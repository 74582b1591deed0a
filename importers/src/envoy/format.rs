//! Envoy's command operators, `%REQ(X)%`, as variables of templates.

use crate::Variables;

/// Translates a text with `%…%`. The error names an operator without a counterpart.
pub(super) fn template(text: &str, variables: Variables<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        literal(&rest[..at], &mut out)?;
        let after = &rest[at + 1..];
        if let Some(more) = after.strip_prefix('%') {
            out.push('%');
            rest = more;
            continue;
        }
        let end = operator_end(after).ok_or_else(|| format!("the `%` in `{text}` is not closed"))?;
        let operator = &after[..end];
        out.push_str(
            &variable(operator, variables).ok_or_else(|| format!("`%{operator}%` has no counterpart"))?,
        );
        rest = &after[end + 1..];
    }
    literal(rest, &mut out)?;
    Ok(out)
}

/// Adds a text that is not to be read as a variable.
pub(super) fn literal(text: &str, out: &mut String) -> Result<(), String> {
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let begins = |next: &char| next.is_ascii_alphanumeric() || matches!(next, '_' | '{' | '.');
        if c == '$' && chars.peek().is_some_and(begins) {
            return Err(format!("`$` in `{text}` would begin a variable"));
        }
        out.push(c);
    }
    Ok(())
}

/// Whether a text has the address of the client, which headers of proxies may name.
pub(super) fn names_client(text: &str) -> bool {
    ["%DOWNSTREAM_REMOTE_", "%CLIENT_ADDRESS%"].iter().any(|operator| text.contains(operator))
}

/// The index of the `%` that ends an operator; one within its parentheses does not.
fn operator_end(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '%' if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

fn variable(operator: &str, variables: Variables<'_>) -> Option<String> {
    let (name, argument) = match operator.split_once('(') {
        Some((name, rest)) => (name, rest.rsplit_once(')').map(|(argument, _)| argument)),
        None => (operator.split(':').next().unwrap_or(operator), None),
    };
    let plain = match name {
        "REQ" => return header(argument?, "http_"),
        "RESP" => return header(argument?, "sent_http_"),
        "ENVIRONMENT" => {
            let value = variables(argument?).unwrap_or_default();
            let mut out = String::new();
            literal(&value, &mut out).ok()?;
            return Some(out);
        }
        "START_TIME" => "time_iso8601",
        "PROTOCOL" => "server_protocol",
        "RESPONSE_CODE" => "status",
        "BYTES_RECEIVED" => "request_length",
        "BYTES_SENT" => "body_bytes_sent",
        "DURATION" | "COMMON_DURATION" => "request_time",
        "RESPONSE_DURATION" | "RESP_TIME" => "upstream_response_time",
        "UPSTREAM_HOST" | "UPSTREAM_REMOTE_ADDRESS" => "upstream_addr",
        "HOSTNAME" => "hostname",
        "ROUTE_NAME" => "route_name",
        "STREAM_ID" => "request_id",
        "REQUESTED_SERVER_NAME" => "ssl_server_name",
        "DOWNSTREAM_TLS_VERSION" => "ssl_protocol",
        "DOWNSTREAM_TLS_CIPHER" => "ssl_cipher",
        "DOWNSTREAM_PEER_SUBJECT" => "ssl_client_s_dn",
        "DOWNSTREAM_PEER_ISSUER" => "ssl_client_i_dn",
        "DOWNSTREAM_PEER_SERIAL" => "ssl_client_serial",
        "DOWNSTREAM_PEER_CERT" => "ssl_client_escaped_cert",
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" | "CLIENT_ADDRESS" => "remote_addr",
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => "realip_remote_addr",
        "DOWNSTREAM_REMOTE_PORT" => "remote_port",
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT" => "server_addr",
        "DOWNSTREAM_LOCAL_PORT" => "server_port",
        "DOWNSTREAM_REMOTE_ADDRESS" => return Some("${remote_addr}:${remote_port}".to_owned()),
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => {
            return Some("${realip_remote_addr}:${realip_remote_port}".to_owned());
        }
        "DOWNSTREAM_LOCAL_ADDRESS" => return Some("${server_addr}:${server_port}".to_owned()),
        _ => return None,
    };
    Some(format!("${{{plain}}}"))
}

/// `X`, or `X?Y` for `Y` where the first is absent.
fn header(argument: &str, prefix: &str) -> Option<String> {
    let (first, other) = match argument.split_once('?') {
        Some((first, other)) => (first, Some(other)),
        None => (argument, None),
    };
    // Envoy keeps the path that it rewrote in a header of its own.
    if first.eq_ignore_ascii_case("x-envoy-original-path") {
        return Some("${real_request_uri}".to_owned());
    }
    if first.eq_ignore_ascii_case(":path") && other.is_none() {
        return Some("${real_request_uri}".to_owned());
    }
    let name = header_variable(first, prefix)?;
    // The second name cannot be a variable of a default.
    other.is_none().then(|| format!("${{{name}}}"))
}

/// The variable of a header or pseudo-header.
pub(super) fn header_variable(name: &str, prefix: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    Some(match lower.as_str() {
        ":path" => "request_uri".to_owned(),
        ":method" => "request_method".to_owned(),
        ":authority" | "host" => "http_host".to_owned(),
        ":scheme" => "scheme".to_owned(),
        ":status" => "status".to_owned(),
        "x-request-id" if prefix == "http_" => "http_x_request_id".to_owned(),
        _ => {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if lower.is_empty() || !lower.chars().all(fits) {
                return None;
            }
            format!("{prefix}{}", lower.replace('-', "_"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_variables() {
        let env = |name: &str| (name == "ZONE").then(|| "b".to_owned());
        for (from, to) in [
            ("plain", "plain"),
            ("%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "${request_method} ${real_request_uri}"),
            ("100%% of %REQ(X-Shop)%", "100% of ${http_x_shop}"),
            ("%START_TIME(%Y-%m)%", "${time_iso8601}"),
            ("%ENVIRONMENT(ZONE)%-%RESP(X-A)%", "b-${sent_http_x_a}"),
            ("5$ a", "5$ a"),
        ] {
            assert_eq!(template(from, &env).as_deref(), Ok(to), "{from}");
        }
        for from in ["%RESPONSE_FLAGS%", "%REQ(X?Y)%", "a % b", "$host"] {
            assert!(template(from, &env).is_err(), "{from}");
        }
    }
}
