//! The memory of an instance. Every pointer and length of the module is checked.

use wasmtime::{AsContextMut, Caller, Memory};

pub(super) use super::status::{Outcome, Refusal, status};
use super::vm::Vm;

/// A pointer and a length.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub at: u32,
    pub size: u32,
}

/// Where a function writes the pointer and the length of its result.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReturnTo {
    pub at: u32,
    pub size: u32,
}

fn memory(caller: &mut Caller<'_, Vm>) -> Outcome<Memory> {
    if let Some(memory) = caller.data().memory {
        return Ok(memory);
    }
    // Code that runs while the instance is made.
    let found = caller.get_export("memory").and_then(wasmtime::Extern::into_memory);
    found.ok_or(Refusal::INVALID_MEMORY_ACCESS)
}

fn range(at: u32, size: usize) -> Outcome<std::ops::Range<usize>> {
    let at = at as usize;
    let end = at.checked_add(size).ok_or(Refusal::INVALID_MEMORY_ACCESS)?;
    Ok(at..end)
}

/// Bytes of the memory.
pub(super) fn bytes<'a>(caller: &'a mut Caller<'_, Vm>, slice: Slice) -> Outcome<&'a [u8]> {
    let memory = memory(caller)?;
    let range = range(slice.at, slice.size as usize)?;
    memory.data(&*caller).get(range).ok_or(Refusal::INVALID_MEMORY_ACCESS)
}

/// A copy of bytes of the memory, of at most `most`.
pub(super) fn copy(caller: &mut Caller<'_, Vm>, slice: Slice, most: usize) -> Outcome<Vec<u8>> {
    let found = bytes(caller, slice)?;
    if found.len() > most {
        return Err(Refusal::BAD_ARGUMENT);
    }
    Ok(found.to_vec())
}

pub(super) fn write(caller: &mut Caller<'_, Vm>, at: u32, data: &[u8]) -> Outcome {
    let memory = memory(caller)?;
    let range = range(at, data.len())?;
    let target = memory.data_mut(&mut *caller).get_mut(range);
    target.ok_or(Refusal::INVALID_MEMORY_ACCESS)?.copy_from_slice(data);
    Ok(())
}

pub(super) fn write_u32(caller: &mut Caller<'_, Vm>, at: u32, value: u32) -> Outcome {
    write(caller, at, &value.to_le_bytes())
}

pub(super) fn write_u64(caller: &mut Caller<'_, Vm>, at: u32, value: u64) -> Outcome {
    write(caller, at, &value.to_le_bytes())
}

pub(super) fn read_u32(caller: &mut Caller<'_, Vm>, at: u32) -> Outcome<u32> {
    let found = bytes(caller, Slice { at, size: 4 })?;
    let word = found.try_into().map_err(|_| Refusal::INVALID_MEMORY_ACCESS)?;
    Ok(u32::from_le_bytes(word))
}

/// Gives the module a copy of bytes, in memory that it provides. Nothing is a null pointer.
pub(super) fn give(caller: &mut Caller<'_, Vm>, data: &[u8], result: ReturnTo) -> Outcome {
    let size = u32::try_from(data.len()).map_err(|_| Refusal::INTERNAL_FAILURE)?;
    let at = match size {
        0 => 0,
        size => {
            // While it runs it is not there, so that functions which it calls cannot call it again and again.
            let allocate = caller.data_mut().allocate.take().ok_or(Refusal::INTERNAL_FAILURE)?;
            let at = allocate.call(caller.as_context_mut(), size).map_err(Refusal::Trap)?;
            caller.data_mut().allocate = Some(allocate);
            if at == 0 {
                return Err(Refusal::INTERNAL_FAILURE);
            }
            write(caller, at, data)?;
            at
        }
    };
    write_u32(caller, result.at, at)?;
    write_u32(caller, result.size, size)
}
