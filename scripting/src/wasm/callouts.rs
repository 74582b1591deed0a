//! HTTP calls to other servers (`proxy_http_call`).

use std::time::Duration;

use bytes::Bytes;
use sdk::Method;
use sdk::world::{Fetch, FetchTimeouts, Keep, Target};
use wasmtime::Caller;

use super::call::Call;
use super::headers::pairs;
use super::memory::{Outcome, Refusal, Slice, copy, write_u32};
use super::onward::{self, Headers};
use super::vm::{Begun, Vm};
use crate::lent;

/// The longest time that a call may take.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

/// Bytes of the name of an upstream.
pub(super) const LONGEST_UPSTREAM: usize = 1024;

/// Bytes of a call's headers.
pub(super) const LONGEST_HEADERS: usize = 1 << 20;

/// Calls of one exchange that are open, those of gRPC included.
pub(super) const MOST_CALLS: usize = 32;

/// The arguments of `proxy_http_call`.
pub(super) struct Arguments {
    pub upstream: Slice,
    pub headers: Slice,
    pub body: Slice,
    pub timeout: u32,
    /// Where the call's number is written.
    pub number: u32,
}

/// Begins a call.
pub(super) fn http_call(caller: &mut Caller<'_, Vm>, arguments: &Arguments) -> Outcome {
    let most = caller.data().host.settings.max_body();
    let upstream = copy(caller, arguments.upstream, LONGEST_UPSTREAM)?;
    let headers = copy(caller, arguments.headers, LONGEST_HEADERS)?;
    let headers = onward::headers(&pairs(&headers)?)?;
    let server = onward::server(upstream, &headers)?;
    let body = copy(caller, arguments.body, most)?;
    let timeout = Duration::from_millis(u64::from(arguments.timeout)).min(LONGEST);
    let mut fetch = request(headers, server.target, body, timeout, most)?;
    let vm = caller.data_mut();
    let effective = vm.effective;
    let (plugin, _) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
    if vm.https.get(&effective).is_some_and(|http| http.open_calls() >= MOST_CALLS) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    let id = vm.call_number().ok_or(Refusal::INTERNAL_FAILURE)?;
    // A loop of calls back to this gateway ends, no matter which context makes them.
    lent::with(|x| x.count_hop(&mut fetch.fields));
    let call = vm.world(|world| Call::begin(world, fetch, &server.host, server.port, timeout));
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

/// The request of a call.
fn request(
    headers: Headers<'_>,
    target: Target,
    body: Vec<u8>,
    timeout: Duration,
    max_body: usize,
) -> Outcome<Fetch> {
    let Headers { method, path, fields, .. } = headers;
    let method = method.unwrap_or(b"GET");
    if wire_token(method).is_none() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let uri = match path {
        None | Some(b"") => b"/".to_vec(),
        Some(uri) if uri.starts_with(b"/") => uri.to_vec(),
        Some(uri) => [b"/", uri].concat(),
    };
    if !uri.iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    Ok(Fetch {
        target,
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
    })
}

/// The method, if it is a token.
fn wire_token(method: &[u8]) -> Option<&[u8]> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!method.is_empty() && method.len() <= 64 && method.iter().all(is_token)).then_some(method)
}
