//! Lines of modules in the error log.

use wasmtime::Caller;

use super::memory::{Outcome, Refusal, Slice, bytes, read_u32, write_u32};
use super::vm::Vm;
use crate::lent;
use crate::log::Level;

/// Longer lines are cut, in bytes.
const LONGEST: usize = 4096;

/// Parts of one write to standard output.
const MOST_PARTS: u32 = 64;

fn level_of(number: u32) -> Outcome<Level> {
    Ok(match number {
        0 | 1 => Level::Debug,
        2 => Level::Info,
        3 => Level::Warn,
        4 | 5 => Level::Error,
        _ => return Err(Refusal::BAD_ARGUMENT),
    })
}

fn line(vm: &Vm, level: Level, text: &[u8]) {
    if level > vm.host.log.level() {
        return;
    }
    let text = String::from_utf8_lossy(&text[..text.len().min(LONGEST)]);
    // One call is one line.
    let text: String = text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let route = lent::with(|x| x.route().map(|route| route.id.to_string())).flatten();
    let route = route.map_or_else(String::new, |route| format!(" route={route}"));
    vm.host.log.line(level, format!("{text} plugin={}{route}", vm.plugin));
}

/// `proxy_log`.
pub(super) fn log(caller: &mut Caller<'_, Vm>, level: u32, text: Slice) -> Outcome {
    let level = level_of(level)?;
    let text = bytes(caller, text)?;
    let text = text[..text.len().min(LONGEST)].to_vec();
    line(caller.data(), level, &text);
    Ok(())
}

/// `proxy_get_log_level`.
pub(super) fn get_level(caller: &mut Caller<'_, Vm>, result: u32) -> Outcome {
    let level = match caller.data().host.log.level() {
        Level::Debug => 1,
        Level::Info => 2,
        Level::Warn => 3,
        Level::Error => 4,
    };
    write_u32(caller, result, level)
}

/// `fd_write` to standard output and error. A line is logged when it ends: programs write it in pieces.
pub(super) fn fd_write(
    caller: &mut Caller<'_, Vm>,
    level: Level,
    parts: u32,
    count: u32,
    written: u32,
) -> Outcome {
    let (mut text, mut total) = (Vec::new(), 0_u32);
    for part in 0..count.min(MOST_PARTS) {
        let at = parts.checked_add(part * 8).ok_or(Refusal::INVALID_MEMORY_ACCESS)?;
        let slice = Slice { at: read_u32(caller, at)?, size: read_u32(caller, at.saturating_add(4))? };
        let part = bytes(caller, slice)?;
        let room = LONGEST.saturating_sub(text.len());
        text.extend_from_slice(&part[..part.len().min(room)]);
        total = total.saturating_add(slice.size);
    }
    let vm = caller.data_mut();
    let mut begun = std::mem::take(&mut vm.output);
    begun.extend_from_slice(&text);
    let whole = match begun.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => end + 1,
        None if begun.len() >= LONGEST => begun.len(),
        None => 0,
    };
    for one in begun[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        line(vm, level, one);
    }
    begun.drain(..whole);
    vm.output = begun;
    write_u32(caller, written, total)
}
