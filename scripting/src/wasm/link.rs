//! The functions that modules import.

use std::rc::Rc;

use wasmtime::{Caller, ExternType, Linker, Val, ValType};

use super::callouts::{Arguments, http_call};
use super::grpc::open::Event;
use super::headers::{Change, change_value, get_pairs, get_size, get_value, set_pairs};
use super::memory::{Outcome, Refusal, ReturnTo, Slice, give, status, write_u32, write_u64};
use super::vm::{Begun, Vm};
use super::{buffers, context, grpc, logs, properties, reply, respond, stores, wasi};

/// The module of the ABI's functions.
const NAME: &str = "env";

/// The status of functions that are not supported.
const UNIMPLEMENTED: i32 = 12;

type Cx<'a> = Caller<'a, Vm>;

fn slice(at: u32, size: u32) -> Slice {
    Slice { at, size }
}

fn return_to(at: u32, size: u32) -> ReturnTo {
    ReturnTo { at, size }
}

/// A linker with all functions.
///
/// # Errors
/// A name is there twice.
pub(super) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<Vm>> {
    let mut linker = Linker::new(engine);
    wasi::add(&mut linker)?;
    add_context(&mut linker)?;
    add_headers(&mut linker)?;
    add_buffers(&mut linker)?;
    add_shared(&mut linker)?;
    add_calls(&mut linker)?;
    add_grpc(&mut linker)?;
    Ok(linker)
}

fn add_context(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(NAME, "proxy_log", |mut cx: Cx<'_>, level: u32, at: u32, size: u32| {
        status(logs::log(&mut cx, level, slice(at, size)))
    })?;
    linker.func_wrap(NAME, "proxy_get_log_level", |mut cx: Cx<'_>, result: u32| {
        status(logs::get_level(&mut cx, result))
    })?;
    linker.func_wrap(NAME, "proxy_get_current_time_nanoseconds", |mut cx: Cx<'_>, result: u32| {
        status(write_u64(&mut cx, result, wasi::wall_clock()))
    })?;
    linker.func_wrap(NAME, "proxy_set_tick_period_milliseconds", |mut cx: Cx<'_>, period: u32| {
        status(set_tick(cx.data_mut(), period))
    })?;
    linker.func_wrap(NAME, "proxy_set_effective_context", |mut cx: Cx<'_>, id: u32| {
        status(set_effective(cx.data_mut(), id))
    })?;
    linker.func_wrap(NAME, "proxy_done", |mut cx: Cx<'_>| status(done(cx.data_mut())))?;
    linker.func_wrap(NAME, "proxy_continue_stream", |mut cx: Cx<'_>, direction: u32| {
        status(stream(cx.data_mut(), direction, false))
    })?;
    linker.func_wrap(NAME, "proxy_close_stream", |mut cx: Cx<'_>, direction: u32| {
        status(stream(cx.data_mut(), direction, true))
    })?;
    // Of version 0.1.0.
    linker.func_wrap(NAME, "proxy_continue_request", |mut cx: Cx<'_>| {
        status(stream(cx.data_mut(), 0, false))
    })?;
    linker.func_wrap(NAME, "proxy_continue_response", |mut cx: Cx<'_>| {
        status(stream(cx.data_mut(), 1, false))
    })?;
    // The route is decided before plugins run.
    linker.func_wrap(NAME, "proxy_clear_route_cache", |_: Cx<'_>| 0_u32)?;
    linker.func_wrap(NAME, "proxy_get_configuration", |mut cx: Cx<'_>, at: u32, size: u32| {
        status(buffers::get_bytes(&mut cx, 7, 0, u32::MAX, return_to(at, size)))
    })?;
    linker.func_wrap(
        NAME,
        "proxy_get_property",
        |mut cx: Cx<'_>, path: u32, path_size: u32, at: u32, size: u32| {
            status(properties::get(&mut cx, slice(path, path_size), return_to(at, size)))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_set_property",
        |mut cx: Cx<'_>, path: u32, path_size: u32, at: u32, size: u32| {
            status(properties::set(&mut cx, slice(path, path_size), slice(at, size)))
        },
    )?;
    Ok(())
}

fn add_headers(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(
        NAME,
        "proxy_get_header_map_pairs",
        |mut cx: Cx<'_>, map: u32, at: u32, size: u32| status(get_pairs(&mut cx, map, return_to(at, size))),
    )?;
    linker.func_wrap(NAME, "proxy_get_header_map_size", |mut cx: Cx<'_>, map: u32, result: u32| {
        status(get_size(&mut cx, map, result))
    })?;
    linker.func_wrap(
        NAME,
        "proxy_set_header_map_pairs",
        |mut cx: Cx<'_>, map: u32, at: u32, size: u32| status(set_pairs(&mut cx, map, slice(at, size))),
    )?;
    linker.func_wrap(
        NAME,
        "proxy_get_header_map_value",
        |mut cx: Cx<'_>, map: u32, name: u32, name_size: u32, at: u32, size: u32| {
            status(get_value(&mut cx, map, slice(name, name_size), return_to(at, size)))
        },
    )?;
    let changes =
        [("proxy_add_header_map_value", Change::Add), ("proxy_replace_header_map_value", Change::Replace)];
    for (name, how) in changes {
        linker.func_wrap(
            NAME,
            name,
            move |mut cx: Cx<'_>, map: u32, name: u32, name_size: u32, at: u32, size: u32| {
                status(change_value(&mut cx, how, map, slice(name, name_size), slice(at, size)))
            },
        )?;
    }
    linker.func_wrap(
        NAME,
        "proxy_remove_header_map_value",
        |mut cx: Cx<'_>, map: u32, name: u32, size: u32| {
            status(change_value(&mut cx, Change::Remove, map, slice(name, size), slice(0, 0)))
        },
    )?;
    Ok(())
}

fn add_buffers(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(
        NAME,
        "proxy_get_buffer_bytes",
        |mut cx: Cx<'_>, buffer: u32, start: u32, most: u32, at: u32, size: u32| {
            status(buffers::get_bytes(&mut cx, buffer, start, most, return_to(at, size)))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_get_buffer_status",
        |mut cx: Cx<'_>, buffer: u32, size: u32, flags: u32| {
            status(buffers::get_status(&mut cx, buffer, size, flags))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_set_buffer_bytes",
        |mut cx: Cx<'_>, buffer: u32, start: u32, most: u32, at: u32, size: u32| {
            status(buffers::set_bytes(&mut cx, buffer, start, most, slice(at, size)))
        },
    )?;
    // Its second name is that of older SDKs.
    for name in ["proxy_send_local_response", "proxy_send_http_response"] {
        linker.func_wrap(
            NAME,
            name,
            |mut cx: Cx<'_>,
             code: u32,
             _: u32,
             _: u32,
             body: u32,
             body_size: u32,
             headers: u32,
             headers_size: u32,
             grpc: i32| {
                let (body, headers) = (slice(body, body_size), slice(headers, headers_size));
                status(respond::send_local_response(&mut cx, code, body, headers, grpc))
            },
        )?;
    }
    Ok(())
}

fn add_shared(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(
        NAME,
        "proxy_get_shared_data",
        |mut cx: Cx<'_>, key: u32, key_size: u32, at: u32, size: u32, cas: u32| {
            status(stores::get_shared(&mut cx, slice(key, key_size), return_to(at, size), cas))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_set_shared_data",
        |mut cx: Cx<'_>, key: u32, key_size: u32, at: u32, size: u32, cas: u32| {
            status(stores::set_shared(&mut cx, slice(key, key_size), slice(at, size), cas))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_register_shared_queue",
        |mut cx: Cx<'_>, name: u32, size: u32, result: u32| {
            status(stores::register(&mut cx, slice(name, size), result))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_resolve_shared_queue",
        |mut cx: Cx<'_>, vm_id: u32, vm_id_size: u32, name: u32, size: u32, result: u32| {
            status(stores::resolve(&mut cx, slice(vm_id, vm_id_size), slice(name, size), result))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_enqueue_shared_queue",
        |mut cx: Cx<'_>, queue: u32, at: u32, size: u32| {
            status(stores::enqueue(&mut cx, queue, slice(at, size)))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_dequeue_shared_queue",
        |mut cx: Cx<'_>, queue: u32, at: u32, size: u32| {
            status(stores::dequeue(&mut cx, queue, return_to(at, size)))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_define_metric",
        |mut cx: Cx<'_>, kind: u32, name: u32, size: u32, result: u32| {
            status(stores::define_metric(&mut cx, kind, slice(name, size), result))
        },
    )?;
    linker.func_wrap(NAME, "proxy_record_metric", |mut cx: Cx<'_>, metric: u32, value: u64| {
        status(stores::record_metric(&mut cx, metric, value))
    })?;
    linker.func_wrap(NAME, "proxy_increment_metric", |mut cx: Cx<'_>, metric: u32, delta: i64| {
        status(stores::increment_metric(&mut cx, metric, delta))
    })?;
    linker.func_wrap(NAME, "proxy_get_metric", |mut cx: Cx<'_>, metric: u32, result: u32| {
        status(stores::get_metric(&mut cx, metric, result))
    })?;
    Ok(())
}

fn add_calls(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(
        NAME,
        "proxy_http_call",
        |mut cx: Cx<'_>,
         upstream: u32,
         upstream_size: u32,
         headers: u32,
         headers_size: u32,
         body: u32,
         body_size: u32,
         _: u32,
         _: u32,
         timeout: u32,
         number: u32| {
            let arguments = Arguments {
                upstream: slice(upstream, upstream_size),
                headers: slice(headers, headers_size),
                body: slice(body, body_size),
                timeout,
                number,
            };
            status(http_call(&mut cx, &arguments))
        },
    )?;
    linker.func_wrap(NAME, "proxy_get_status", |mut cx: Cx<'_>, code: u32, at: u32, size: u32| {
        status(get_status(&mut cx, code, return_to(at, size)))
    })?;
    Ok(())
}

fn add_grpc(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    linker.func_wrap(
        NAME,
        "proxy_grpc_call",
        |mut cx: Cx<'_>,
         upstream: u32,
         upstream_size: u32,
         service: u32,
         service_size: u32,
         method: u32,
         method_size: u32,
         metadata: u32,
         metadata_size: u32,
         message: u32,
         message_size: u32,
         timeout: u32,
         number: u32| {
            let arguments = grpc::Arguments {
                upstream: slice(upstream, upstream_size),
                service: slice(service, service_size),
                method: slice(method, method_size),
                metadata: slice(metadata, metadata_size),
                number,
            };
            status(grpc::call(&mut cx, &arguments, slice(message, message_size), timeout))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_grpc_stream",
        |mut cx: Cx<'_>,
         upstream: u32,
         upstream_size: u32,
         service: u32,
         service_size: u32,
         method: u32,
         method_size: u32,
         metadata: u32,
         metadata_size: u32,
         number: u32| {
            let arguments = grpc::Arguments {
                upstream: slice(upstream, upstream_size),
                service: slice(service, service_size),
                method: slice(method, method_size),
                metadata: slice(metadata, metadata_size),
                number,
            };
            status(grpc::stream(&mut cx, &arguments))
        },
    )?;
    linker.func_wrap(
        NAME,
        "proxy_grpc_send",
        |mut cx: Cx<'_>, number: u32, message: u32, size: u32, ends: u32| {
            status(grpc::send(&mut cx, number, slice(message, size), ends != 0))
        },
    )?;
    linker.func_wrap(NAME, "proxy_grpc_close", |mut cx: Cx<'_>, number: u32| {
        status(grpc::close(cx.data_mut(), number))
    })?;
    linker.func_wrap(NAME, "proxy_grpc_cancel", |mut cx: Cx<'_>, number: u32| {
        status(grpc::cancel(cx.data_mut(), number))
    })?;
    Ok(())
}

/// The status of the call whose callback runs, and its message.
fn get_status(cx: &mut Cx<'_>, code: u32, message: ReturnTo) -> Outcome {
    let vm = cx.data();
    let (status, text) = match (&vm.answer, &vm.event) {
        (Some(answer), _) => (u32::from(answer.status), Vec::new()),
        (None, Some(Event::Close(status, text))) => (*status, text.clone()),
        (None, Some(_)) => (sdk::grpc::OK, Vec::new()),
        (None, None) => return Err(Refusal::NOT_FOUND),
    };
    write_u32(cx, code, status)?;
    give(cx, &text, message)
}

fn set_effective(vm: &mut Vm, id: u32) -> Outcome {
    if !vm.https.contains_key(&id) && !vm.plugins.contains_key(&id) {
        return Err(Refusal::BAD_ARGUMENT);
    }
    vm.effective = id;
    Ok(())
}

fn set_tick(vm: &mut Vm, period: u32) -> Outcome {
    let (id, _) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
    if let Some(plugin) = vm.plugins.get_mut(&id)
        && plugin.tick != period
    {
        plugin.tick = period;
        // The timer before this one ends.
        plugin.timer = Rc::default();
        if !std::mem::replace(&mut plugin.begins_timer, true) {
            vm.begun.push(Begun::Tick(id));
        }
    }
    Ok(())
}

/// A context that was over, and kept by the module, is deleted.
fn done(vm: &mut Vm) -> Outcome {
    let id = vm.effective;
    match vm.release(id) {
        true => {
            vm.begun.push(Begun::Delete(id));
            Ok(())
        }
        false => Err(Refusal::NOT_FOUND),
    }
}

/// Continues or closes a direction of an exchange, or of a TCP stream; closing ends all of it.
fn stream(vm: &mut Vm, direction: u32, closes: bool) -> Outcome {
    let http = vm.http()?;
    let direction = match (direction, http.stream.is_some()) {
        (0, false) => context::REQUEST,
        (1, false) => context::RESPONSE,
        (2, true) => context::DOWNSTREAM,
        (3, true) => context::UPSTREAM,
        _ => return Err(Refusal::BAD_ARGUMENT),
    };
    if closes {
        let is_stream = http.stream.is_some();
        http.reply.get_or_insert_with(|| reply::LocalReply::closed(is_stream));
    }
    http.resume(direction);
    Ok(())
}

/// Defines the imports of a module that this host does not know, if these are functions of the ABI or of WASI: they say
/// so when they are called.
pub(super) fn define_unknown(linker: &mut Linker<Vm>, module: &wasmtime::Module) {
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let code = match from {
            NAME if name.starts_with("proxy_") => UNIMPLEMENTED,
            wasi::NAME => wasi::NOSYS,
            _ => continue,
        };
        let ExternType::Func(ty) = import.ty() else { continue };
        if ty.results().len() != 1 || !ty.results().all(|ty| matches!(ty, ValType::I32)) {
            continue;
        }
        let answer = move |_: Cx<'_>, _: &[Val], results: &mut [Val]| {
            results[0] = Val::I32(code);
            Ok(())
        };
        // One that is defined already stays as it is.
        let _ = linker.func_new(from, name, ty, answer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::context::{HttpContext, PluginContext};
    use super::super::host::{Host, Settings};
    use super::super::tests::Lines;
    use super::*;

    #[test]
    fn work_that_one_call_begins_is_bounded() {
        let host = Host::new(Settings::default(), Box::new(Lines::default())).unwrap();
        let mut vm = Vm::new(host, "a");
        vm.plugins.insert(1, PluginContext::new(Arc::new([])));
        vm.https.insert(2, HttpContext { plugin: 1, is_over: true, ..HttpContext::default() });
        vm.effective = 2;
        let first = Rc::downgrade(&vm.plugins[&1].timer);
        for period in 0..1000 {
            assert!(set_tick(&mut vm, period + 1).is_ok());
            assert!(done(&mut vm).is_err(), "the context is not kept");
        }
        assert!(matches!(vm.begun[..], [Begun::Tick(1)]));
        assert_eq!(first.strong_count(), 0, "the timer before has ended");
        assert!(vm.keep(2));
        assert!(done(&mut vm).is_ok());
        assert!(done(&mut vm).is_err());
        assert!(matches!(vm.begun[..], [Begun::Tick(1), Begun::Delete(2)]));
    }
}
