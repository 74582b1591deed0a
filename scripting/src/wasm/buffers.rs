//! Buffers: bodies, configurations, and responses to calls.

use sdk::exchange::NotSet;
use wasmtime::Caller;

use super::context::BodyOf;
use super::grpc::open::Event;
use super::memory::{Outcome, Refusal, ReturnTo, Slice, copy, give, write_u32};
use super::vm::Vm;

/// Which buffer, by its number in the ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    Body(BodyOf),
    Answer,
    /// A message of a gRPC call.
    Message,
    VmConfiguration,
    PluginConfiguration,
}

impl Buffer {
    fn of(number: u32) -> Outcome<Buffer> {
        Ok(match number {
            0 => Buffer::Body(BodyOf::Request),
            1 => Buffer::Body(BodyOf::Response),
            4 => Buffer::Answer,
            6 => Buffer::VmConfiguration,
            7 => Buffer::PluginConfiguration,
            5 => Buffer::Message,
            2 => Buffer::Body(BodyOf::Downstream),
            3 => Buffer::Body(BodyOf::Upstream),
            // Arguments of foreign functions.
            8 => return Err(Refusal::UNIMPLEMENTED),
            _ => return Err(Refusal::BAD_ARGUMENT),
        })
    }
}

/// Passes the bytes of a buffer on.
fn with<T>(vm: &Vm, buffer: Buffer, f: impl FnOnce(&[u8]) -> T) -> Outcome<T> {
    match buffer {
        Buffer::Body(of) => {
            let http = vm.https.get(&vm.effective).ok_or(Refusal::NOT_FOUND)?;
            match of {
                BodyOf::Request => vm.request(|x| f(x.body())),
                BodyOf::Response if http.body == Some(BodyOf::Response) => Ok(f(&http.chunks)),
                BodyOf::Response => Err(Refusal::NOT_FOUND),
                BodyOf::Downstream | BodyOf::Upstream => {
                    let stream = http.stream.as_ref().filter(|_| http.body == Some(of));
                    let stream = stream.ok_or(Refusal::NOT_FOUND)?;
                    Ok(f(&stream.data[usize::from(of == BodyOf::Upstream)]))
                }
            }
        }
        Buffer::Answer => vm.answer.as_ref().map(|answer| f(&answer.body)).ok_or(Refusal::NOT_FOUND),
        Buffer::Message => match &vm.event {
            Some(Event::Message(message)) => Ok(f(message)),
            _ => Err(Refusal::NOT_FOUND),
        },
        Buffer::VmConfiguration => Ok(f(b"")),
        Buffer::PluginConfiguration => {
            let (_, context) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
            Ok(f(&context.config))
        }
    }
}

/// `proxy_get_buffer_bytes`: a part that begins behind the end is empty.
pub(super) fn get_bytes(
    caller: &mut Caller<'_, Vm>,
    buffer: u32,
    start: u32,
    size: u32,
    result: ReturnTo,
) -> Outcome {
    let buffer = Buffer::of(buffer)?;
    let part = with(caller.data(), buffer, |data| {
        let start = (start as usize).min(data.len());
        let end = start.saturating_add(size as usize).min(data.len());
        data[start..end].to_vec()
    })?;
    give(caller, &part, result)
}

/// `proxy_get_buffer_status`.
pub(super) fn get_status(caller: &mut Caller<'_, Vm>, buffer: u32, size: u32, flags: u32) -> Outcome {
    let buffer = Buffer::of(buffer)?;
    let length = with(caller.data(), buffer, |data| data.len())?;
    write_u32(caller, size, length as u32)?;
    write_u32(caller, flags, 0)
}

/// `proxy_set_buffer_bytes`: replaces a part of a body.
pub(super) fn set_bytes(
    caller: &mut Caller<'_, Vm>,
    buffer: u32,
    start: u32,
    size: u32,
    value: Slice,
) -> Outcome {
    let Buffer::Body(of) = Buffer::of(buffer)? else { return Err(Refusal::BAD_ARGUMENT) };
    let most = caller.data().host.settings.max_body();
    let value = copy(caller, value, most)?;
    let spliced = |data: &[u8]| -> Outcome<Vec<u8>> {
        let start = (start as usize).min(data.len());
        let end = start.saturating_add(size as usize).min(data.len());
        if data.len() - (end - start) + value.len() > most {
            return Err(Refusal::BAD_ARGUMENT);
        }
        Ok([&data[..start], &value, &data[end..]].concat())
    };
    let vm = caller.data_mut();
    let http = vm.https.get_mut(&vm.effective).ok_or(Refusal::NOT_FOUND)?;
    if http.body != Some(of) {
        return Err(Refusal::NOT_FOUND);
    }
    match of {
        BodyOf::Response => {
            let chunks = spliced(&http.chunks)?;
            let (all, mut held) = (http.passed.len() + chunks.len(), std::mem::take(&mut http.held));
            let reserved = vm.world(|world| held.resize(world.budget(), all));
            let http = vm.http()?;
            http.held = held;
            if all > most || reserved != Some(Ok(())) {
                return Err(Refusal::INTERNAL_FAILURE);
            }
            http.chunks = chunks;
            Ok(())
        }
        BodyOf::Downstream | BodyOf::Upstream => {
            let side = usize::from(of == BodyOf::Upstream);
            let stream = http.stream.as_mut().ok_or(Refusal::NOT_FOUND)?;
            let data = spliced(&stream.data[side])?;
            let mut held = std::mem::take(&mut stream.held[side]);
            let reserved = vm.world(|world| held.resize(world.budget(), data.len()));
            let stream = vm.http()?.stream.as_mut().ok_or(Refusal::NOT_FOUND)?;
            stream.held[side] = held;
            if reserved != Some(Ok(())) {
                return Err(Refusal::INTERNAL_FAILURE);
            }
            stream.data[side] = data;
            Ok(())
        }
        BodyOf::Request => vm.request(|x| {
            let body = spliced(x.body())?;
            x.set_body(body).map_err(|error| match error {
                NotSet::Unread => Refusal::NOT_FOUND,
                NotSet::Spent => Refusal::INTERNAL_FAILURE,
            })
        })?,
    }
}
