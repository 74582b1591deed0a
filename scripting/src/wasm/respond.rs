//! `proxy_send_local_response`.

use sdk::Fields;
use wasmtime::Caller;

use super::headers::pairs;
use super::memory::{Outcome, Refusal, Slice, bytes, copy};
use super::reply::LocalReply;
use super::vm::Vm;

/// Responds to the request. The first response counts.
pub(super) fn send_local_response(
    caller: &mut Caller<'_, Vm>,
    status: u32,
    body: Slice,
    headers: Slice,
    grpc_status: i32,
) -> Outcome {
    let most = caller.data().host.settings.max_body();
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
    let status = status.ok_or(Refusal::BAD_ARGUMENT)?;
    let body = copy(caller, body, most)?;
    let mut fields = Fields::new();
    for (name, value) in pairs(bytes(caller, headers)?)? {
        let is_framing = [&b"content-length"[..], b"transfer-encoding", b"connection"]
            .iter()
            .any(|framing| name.eq_ignore_ascii_case(framing));
        if name.first() != Some(&b':') && !is_framing {
            fields.append(name, value).map_err(|_| Refusal::BAD_ARGUMENT)?;
        }
    }
    if grpc_status >= 0 {
        fields
            .append(b"grpc-status", grpc_status.to_string().as_bytes())
            .map_err(|_| Refusal::BAD_ARGUMENT)?;
    }
    let http = caller.data_mut().http()?;
    if http.is_over || http.stream.is_some() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    http.reply.get_or_insert(LocalReply { status, fields, body });
    http.wake();
    Ok(())
}
