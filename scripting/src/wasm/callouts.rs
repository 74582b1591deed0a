//! HTTP calls to other servers (`proxy_http_call`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sdk::build::split_authority;
use sdk::world::{Fetch, FetchTimeouts, Keep, Target};
use sdk::{Fields, Method};
use wasmtime::Caller;

use super::call::Call;
use super::headers::pairs;
use super::memory::{Outcome, Refusal, Slice, copy, write_u32};
use super::vm::{Begun, Vm};
use crate::lent;

/// The longest time that a call may take.
const LONGEST: Duration = Duration::from_secs(600);

/// Bytes of a call's headers.
const LONGEST_HEADERS: usize = 1 << 20;

/// Calls of one exchange that are waited for.
const MOST_CALLS: usize = 32;

/// The arguments of `proxy_http_call`.
pub(super) struct Arguments {
    pub upstream: Slice,
    pub headers: Slice,
    pub body: Slice,
    pub timeout: u32,
    /// Where the call's number is written.
    pub number: u32,
}

/// Begins a call. The upstream is a host and a port, as in APISIX; `:scheme` of the headers decides about TLS.
pub(super) fn http_call(caller: &mut Caller<'_, Vm>, arguments: &Arguments) -> Outcome {
    let most = caller.data().host.settings.max_body();
    let upstream =
        String::from_utf8(copy(caller, arguments.upstream, 1024)?).map_err(|_| Refusal::BAD_ARGUMENT)?;
    let headers = copy(caller, arguments.headers, LONGEST_HEADERS)?;
    let headers = pairs(&headers)?;
    let body = copy(caller, arguments.body, most)?;
    let timeout = Duration::from_millis(u64::from(arguments.timeout)).min(LONGEST);
    let (fetch, host, port) = request(&upstream, &headers, body, timeout, most)?;
    let vm = caller.data_mut();
    let effective = vm.effective;
    let (plugin, _) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
    if vm.https.get(&effective).is_some_and(|http| http.calls.len() >= MOST_CALLS) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    let id = vm.call_number().ok_or(Refusal::INTERNAL_FAILURE)?;
    let mut fetch = fetch;
    // A loop of calls back to this gateway ends, no matter which context makes them.
    lent::with(|x| x.count_hop(&mut fetch.fields));
    let call = vm.world(|world| Call::begin(world, fetch, &host, port, timeout));
    let call = call.ok_or(Refusal::INTERNAL_FAILURE)?;
    vm.calls += 1;
    match vm.https.get_mut(&effective).filter(|http| !http.is_over) {
        Some(http) => {
            http.calls.push((id, call));
            // Its exchange may be another one than that which runs, and wait.
            http.wake();
        }
        None => vm.begun.push(Begun::Call { plugin, id, call }),
    }
    write_u32(caller, arguments.number, id)
}

/// The request of a call, and the host and port to which it goes.
fn request(
    upstream: &str,
    headers: &[(&[u8], &[u8])],
    body: Vec<u8>,
    timeout: Duration,
    max_body: usize,
) -> Outcome<(Fetch, String, u16)> {
    let (mut method, mut uri, mut tls, mut authority) = (None, None, false, None);
    let mut fields = Fields::new();
    for (name, value) in headers {
        match *name {
            b":method" => method = Some(*value),
            b":path" => uri = Some(*value),
            b":scheme" => tls = value.eq_ignore_ascii_case(b"https"),
            b":authority" => authority = Some(*value),
            name if name.eq_ignore_ascii_case(b"host") => authority = Some(*value),
            // Framing is the sender's, and hops are counted here.
            name if [&b"content-length"[..], b"transfer-encoding", b"connection", b"sluice-hops"]
                .iter()
                .any(|framing| name.eq_ignore_ascii_case(framing)) => {}
            name => fields.append(name, value).map_err(|_| Refusal::BAD_ARGUMENT)?,
        }
    }
    let default_port = if tls { 443 } else { 80 };
    let (host, port) = split_authority(upstream, default_port).ok_or(Refusal::BAD_ARGUMENT)?;
    let authority = authority
        .map_or(Ok(upstream), |text| std::str::from_utf8(text).map_err(|_| Refusal::BAD_ARGUMENT))?;
    if authority.is_empty() || !authority.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let method = method.unwrap_or(b"GET");
    if wire_token(method).is_none() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let uri = match uri {
        None | Some(b"") => b"/".to_vec(),
        Some(uri) if uri.starts_with(b"/") => uri.to_vec(),
        Some(uri) => [b"/", uri].concat(),
    };
    if !uri.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let fetch = Fetch {
        target: Target { authority: authority.to_owned(), addresses: Arc::new([]), tls },
        method: Method::from_bytes(method),
        method_name: method.to_vec(),
        uri,
        fields,
        body: Bytes::from(body),
        verify: true,
        timeouts: FetchTimeouts { connect: timeout, send: timeout, read: timeout },
        max_body,
        repeatable: false,
        http2: false,
        keep: Keep::default(),
        tunnel: None,
    };
    Ok((fetch, host.trim_matches(['[', ']']).to_owned(), port))
}

/// The method, if it is a token.
fn wire_token(method: &[u8]) -> Option<&[u8]> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!method.is_empty() && method.len() <= 64 && method.iter().all(is_token)).then_some(method)
}
