//! Where calls to other servers go, and their headers: in common to calls of HTTP and gRPC.

use std::sync::Arc;

use sdk::Fields;
use sdk::build::split_authority;
use sdk::world::Target;

use super::memory::{Outcome, Refusal};

/// The headers of a call. Those whose names begin with `:` decide where it goes.
pub(super) struct Headers<'a> {
    pub method: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    tls: bool,
    authority: Option<&'a [u8]>,
    pub fields: Fields,
}

/// The server of a call, whose addresses are not known yet.
pub(super) struct Server {
    pub target: Target,
    pub host: String,
    pub port: u16,
}

/// Reads the headers of a call. Framing is the sender's, and hops are counted here.
pub(super) fn headers<'a>(pairs: &[(&'a [u8], &'a [u8])]) -> Outcome<Headers<'a>> {
    const IGNORED: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"connection", b"sluice-hops"];
    let mut found = Headers { method: None, path: None, tls: false, authority: None, fields: Fields::new() };
    for &(name, value) in pairs {
        match name {
            b":method" => found.method = Some(value),
            b":path" => found.path = Some(value),
            b":scheme" => found.tls = value.eq_ignore_ascii_case(b"https"),
            b":authority" => found.authority = Some(value),
            name if name.eq_ignore_ascii_case(b"host") => found.authority = Some(value),
            name if IGNORED.iter().any(|ignored| name.eq_ignore_ascii_case(ignored)) => {}
            name => found.fields.append(name, value).map_err(|_| Refusal::BAD_ARGUMENT)?,
        }
    }
    Ok(found)
}

/// The server of a call. The upstream is a host and a port, as in APISIX; `:scheme` of the headers decides about TLS.
pub(super) fn server(upstream: Vec<u8>, headers: &Headers<'_>) -> Outcome<Server> {
    let upstream = String::from_utf8(upstream).map_err(|_| Refusal::BAD_ARGUMENT)?;
    let tls = headers.tls;
    let default_port = if tls { 443 } else { 80 };
    let (host, port) = split_authority(&upstream, default_port).ok_or(Refusal::BAD_ARGUMENT)?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let authority = match headers.authority {
        None => upstream,
        Some(text) => String::from_utf8(text.to_vec()).map_err(|_| Refusal::BAD_ARGUMENT)?,
    };
    if authority.is_empty() || !authority.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    Ok(Server { target: Target { authority, addresses: Arc::new([]), tls }, host, port })
}
