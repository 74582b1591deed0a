//! gRPC calls to other servers: `proxy_grpc_call` for one message each way, and streams of messages.
//!
//! A call that a request's context begins belongs to the request, and ends with it. While the request waits for its
//! filter, it drives its calls, so that callbacks may change it; at other times a task of the worker does ([`drive`]).

pub(super) mod drive;
pub(super) mod open;

use std::time::Duration;

use bytes::Bytes;
use sdk::world::{Fetch, FetchTimeouts, Keep};
use sdk::{Method, grpc};
use wasmtime::Caller;

use self::open::{Open, Rpc};
use super::callouts::{LONGEST, LONGEST_HEADERS, LONGEST_UPSTREAM, MOST_CALLS};
use super::headers::pairs;
use super::memory::{Outcome, Refusal, Slice, copy, write_u32};
use super::onward::{self, Headers};
use super::vm::{Begun, Vm};
use crate::lent;

/// Bytes of the name of a service or a method.
const LONGEST_NAME: usize = 1024;

/// The time to connect for a stream, and between two writes.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments that `proxy_grpc_call` and `proxy_grpc_stream` have in common.
pub(super) struct Arguments {
    pub upstream: Slice,
    pub service: Slice,
    pub method: Slice,
    pub metadata: Slice,
    /// Where the number of the call is written.
    pub number: u32,
}

/// `proxy_grpc_call`: sends one message, and waits for one.
pub(super) fn call(
    caller: &mut Caller<'_, Vm>,
    arguments: &Arguments,
    message: Slice,
    timeout: u32,
) -> Outcome {
    let most = caller.data().host.settings.max_body();
    let message = copy(caller, message, most)?;
    let timeout = Duration::from_millis(u64::from(timeout)).min(LONGEST);
    let number = begin(caller, arguments, Some((message, timeout)))?;
    numbered(caller, arguments, number)
}

/// `proxy_grpc_stream`: opens a stream.
pub(super) fn stream(caller: &mut Caller<'_, Vm>, arguments: &Arguments) -> Outcome {
    let number = begin(caller, arguments, None)?;
    numbered(caller, arguments, number)
}

/// Reports the number of a call that has begun. Without it, the module could not end the call.
fn numbered(caller: &mut Caller<'_, Vm>, arguments: &Arguments, number: u32) -> Outcome {
    write_u32(caller, arguments.number, number).or_else(|refusal| {
        cancel(caller.data_mut(), number)?;
        Err(refusal)
    })
}

/// Begins a call with its message and its time, or a stream.
fn begin(
    caller: &mut Caller<'_, Vm>,
    arguments: &Arguments,
    message: Option<(Vec<u8>, Duration)>,
) -> Outcome<u32> {
    let most = caller.data().host.settings.max_body();
    let upstream = copy(caller, arguments.upstream, LONGEST_UPSTREAM)?;
    let service = copy(caller, arguments.service, LONGEST_NAME)?;
    let method = copy(caller, arguments.method, LONGEST_NAME)?;
    let metadata = copy(caller, arguments.metadata, LONGEST_HEADERS)?;
    let headers = onward::headers(&pairs(&metadata)?)?;
    let server = onward::server(upstream, &headers)?;
    let timeout = message.as_ref().map(|(_, timeout)| *timeout);
    let mut fetch = request(headers, server.target, &service, &method, timeout)?;
    let framed =
        message.map(|(message, _)| grpc::framed(&message).ok_or(Refusal::BAD_ARGUMENT)).transpose()?;
    let vm = caller.data_mut();
    let (plugin, _) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
    let context = vm.effective;
    let owner = vm.https.get(&context).filter(|http| !http.is_over);
    if owner.is_some_and(|http| http.open_calls() >= MOST_CALLS) {
        return Err(Refusal::INTERNAL_FAILURE);
    }
    let context = owner.map_or(0, |_| context);
    let number = vm.call_number().ok_or(Refusal::INTERNAL_FAILURE)?;
    // A loop of calls back to this gateway ends, no matter which context makes them.
    lent::with(|x| x.count_hop(&mut fetch.fields));
    let is_call = framed.is_some();
    let rpc = vm.world(|world| Rpc::begin(world, fetch, &server.host, server.port, timeout, most));
    let mut rpc = rpc.ok_or(Refusal::INTERNAL_FAILURE)?;
    if let Some(framed) = framed {
        vm.world(|world| rpc.send(world, Bytes::from(framed), true))
            .unwrap_or(Err(Refusal::INTERNAL_FAILURE))?;
    }
    vm.rpcs.insert(number, Open::new(plugin, context, is_call, rpc));
    vm.begun.push(Begun::Rpc { plugin, number });
    if let Some(http) = vm.https.get_mut(&context) {
        http.rpcs.push((number, is_call));
        // Its exchange may be another one than that which runs, and wait.
        http.wake();
    }
    Ok(number)
}

/// The request of a call.
fn request(
    headers: Headers<'_>,
    target: sdk::world::Target,
    service: &[u8],
    method: &[u8],
    timeout: Option<Duration>,
) -> Outcome<Fetch> {
    let is_name = |name: &[u8]| {
        !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
    };
    if !is_name(service) || !is_name(method) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let mut fields = headers.fields;
    let is_grpc = |kind: &[u8]| kind.starts_with(b"application/grpc");
    if !fields.get_named(b"content-type").is_some_and(is_grpc) {
        fields.set(b"Content-Type", b"application/grpc").map_err(|_| Refusal::BAD_ARGUMENT)?;
    }
    if let Some(timeout) = timeout.filter(|_| fields.get_named(b"grpc-timeout").is_none()) {
        let deadline = format!("{}m", timeout.as_millis());
        fields.set(b"grpc-timeout", deadline.as_bytes()).map_err(|_| Refusal::BAD_ARGUMENT)?;
    }
    let timeout = timeout.unwrap_or(STREAM_TIMEOUT);
    Ok(Fetch {
        target,
        method: Method::Post,
        method_name: Vec::new(),
        uri: [b"/", service, b"/", method].concat(),
        fields,
        body: Bytes::new(),
        verify: true,
        timeouts: FetchTimeouts { connect: timeout, send: timeout, read: timeout },
        max_body: 0,
        repeatable: false,
        http2: true,
        keep: Keep::default(),
        tunnel: None,
    })
}

/// `proxy_grpc_send`: sends a message of a stream.
pub(super) fn send(caller: &mut Caller<'_, Vm>, number: u32, message: Slice, ends: bool) -> Outcome {
    let most = caller.data().host.settings.max_body();
    let open = caller.data().rpcs.get(&number).ok_or(Refusal::NOT_FOUND)?;
    if open.is_call || open.rpc.is_finished() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let message = copy(caller, message, most)?;
    let framed = grpc::framed(&message).ok_or(Refusal::BAD_ARGUMENT)?;
    with_rpc(caller.data_mut(), number, |world, rpc| rpc.send(world, Bytes::from(framed), ends))
}

/// `proxy_grpc_close`: sends nothing more. A call ends, as its message is sent.
pub(super) fn close(vm: &mut Vm, number: u32) -> Outcome {
    match vm.rpcs.get(&number).ok_or(Refusal::NOT_FOUND)?.is_call {
        true => cancel(vm, number),
        false => with_rpc(vm, number, |_, rpc| {
            rpc.finish();
            Ok(())
        }),
    }
}

/// `proxy_grpc_cancel`: ends a call without a callback.
pub(super) fn cancel(vm: &mut Vm, number: u32) -> Outcome {
    let open = vm.end_rpc(number).ok_or(Refusal::NOT_FOUND)?;
    // A filter that begins and cancels calls in a loop leaves nothing.
    vm.begun.retain(|begun| !matches!(begun, Begun::Rpc { number: begun, .. } if *begun == number));
    if let Some(http) = vm.https.get_mut(&open.context) {
        http.wake();
    }
    Ok(())
}

/// Changes an open call, and has it driven.
fn with_rpc(vm: &mut Vm, number: u32, change: impl FnOnce(&dyn sdk::World, &mut Rpc) -> Outcome) -> Outcome {
    // Taken out, as the worker is another part of the same state.
    let mut open = vm.rpcs.remove(&number).ok_or(Refusal::NOT_FOUND)?;
    let changed = vm.world(|world| change(world, &mut open.rpc)).unwrap_or(Err(Refusal::INTERNAL_FAILURE));
    open.wake();
    if let Some(http) = vm.https.get_mut(&open.context) {
        http.wake();
    }
    vm.rpcs.insert(number, open);
    changed
}
