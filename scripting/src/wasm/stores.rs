//! Functions for the values that instances share: shared data, queues and metrics.

use wasmtime::Caller;

use super::memory::{Outcome, Refusal, ReturnTo, Slice, copy, give, write_u32, write_u64};
use super::metrics::{Kind, LONGEST_NAME as LONGEST_METRIC, Metric};
use super::queues::{LONGEST_NAME, Queues};
use super::shared::LONGEST_KEY;
use super::vm::{Begun, Vm};

/// `proxy_get_shared_data`.
pub(super) fn get_shared(caller: &mut Caller<'_, Vm>, key: Slice, result: ReturnTo, cas: u32) -> Outcome {
    let key = copy(caller, key, LONGEST_KEY)?;
    let vm = caller.data();
    let (value, number) = vm.shared.get(&key).ok_or(Refusal::NOT_FOUND)?;
    give(caller, &value, result)?;
    write_u32(caller, cas, number)
}

/// `proxy_set_shared_data`.
pub(super) fn set_shared(caller: &mut Caller<'_, Vm>, key: Slice, value: Slice, cas: u32) -> Outcome {
    let most = caller.data().host.settings.max_shared;
    let key = copy(caller, key, LONGEST_KEY)?;
    let value = copy(caller, value, most)?;
    let vm = caller.data();
    vm.shared.set(key, value, cas)
}

/// `proxy_register_shared_queue`.
pub(super) fn register(caller: &mut Caller<'_, Vm>, name: Slice, result: u32) -> Outcome {
    let name = copy(caller, name, LONGEST_NAME)?;
    let vm = caller.data_mut();
    let queue = vm.host.queues.register(vm.plugin, name)?;
    let (context, _) = vm.plugin_context().ok_or(Refusal::NOT_FOUND)?;
    if let Some(plugin) = vm.plugins.get_mut(&context)
        && !plugin.queues.contains(&queue)
    {
        plugin.queues.push(queue);
        vm.begun.push(Begun::Queue { context, queue });
    }
    write_u32(caller, result, queue)
}

/// `proxy_resolve_shared_queue`. The identifier of a VM is the name of its plugin; none is the module's own.
pub(super) fn resolve(caller: &mut Caller<'_, Vm>, vm_id: Slice, name: Slice, result: u32) -> Outcome {
    let vm_id = copy(caller, vm_id, LONGEST_NAME)?;
    let name = copy(caller, name, LONGEST_NAME)?;
    let vm = caller.data();
    let plugin = if vm_id.is_empty() { vm.plugin.as_bytes() } else { &vm_id };
    let queue = Queues::find(&vm.host.queues.lock(), plugin, &name).ok_or(Refusal::NOT_FOUND)?;
    write_u32(caller, result, queue)
}

/// `proxy_enqueue_shared_queue`.
pub(super) fn enqueue(caller: &mut Caller<'_, Vm>, queue: u32, item: Slice) -> Outcome {
    let most = caller.data().host.settings.max_shared;
    let item = copy(caller, item, most)?;
    caller.data().host.queues.push(queue, item)
}

/// `proxy_dequeue_shared_queue`.
pub(super) fn dequeue(caller: &mut Caller<'_, Vm>, queue: u32, result: ReturnTo) -> Outcome {
    let item = caller.data().host.queues.pop(queue)?;
    give(caller, &item, result)
}

/// The name on the metrics page: other characters become `_`.
fn page_name(name: &[u8]) -> Outcome<String> {
    let name = std::str::from_utf8(name).map_err(|_| Refusal::BAD_ARGUMENT)?;
    if name.is_empty() {
        return Err(Refusal::BAD_ARGUMENT);
    }
    Ok(name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect())
}

/// `proxy_define_metric`. Metrics have the same number whenever an instance defines them again.
pub(super) fn define_metric(caller: &mut Caller<'_, Vm>, kind: u32, name: Slice, result: u32) -> Outcome {
    let kind = match kind {
        0 => Kind::Counter,
        1 => Kind::Gauge,
        2 => Kind::Histogram,
        _ => return Err(Refusal::BAD_ARGUMENT),
    };
    let name = page_name(&copy(caller, name, LONGEST_METRIC)?)?;
    let vm = caller.data_mut();
    let known = vm.metrics.iter().position(|known| known.name == name && known.kind == kind);
    let at = match known {
        Some(at) => at,
        None => {
            let metric = vm.host.metrics.define(vm.plugin, &name, kind)?;
            vm.metrics.push(metric);
            vm.metrics.len() - 1
        }
    };
    write_u32(caller, result, at as u32 + 1)
}

fn metric(vm: &Vm, number: u32) -> Outcome<&Metric> {
    let found = vm.metrics.get((number as usize).wrapping_sub(1));
    found.map(|metric| &**metric).ok_or(Refusal::NOT_FOUND)
}

/// `proxy_record_metric`.
pub(super) fn record_metric(caller: &mut Caller<'_, Vm>, number: u32, value: u64) -> Outcome {
    metric(caller.data(), number).map(|metric| metric.record(value))
}

/// `proxy_increment_metric`.
pub(super) fn increment_metric(caller: &mut Caller<'_, Vm>, number: u32, delta: i64) -> Outcome {
    metric(caller.data(), number)?.increment(delta)
}

/// `proxy_get_metric`.
pub(super) fn get_metric(caller: &mut Caller<'_, Vm>, number: u32, result: u32) -> Outcome {
    let value = metric(caller.data(), number)?.value();
    write_u64(caller, result, value)
}
