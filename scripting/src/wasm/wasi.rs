//! The functions of `wasi_snapshot_preview1` that compilers for WASI need: no files, no environment, no arguments.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use wasmtime::{Caller, Linker};

use super::logs::fd_write;
use super::memory::{Outcome, Refusal, Slice, bytes, write, write_u32, write_u64};
use super::vm::Vm;
use crate::log::Level;

/// The module of these functions.
pub(super) const NAME: &str = "wasi_snapshot_preview1";

/// Errors of WASI.
const BADF: u32 = 8;
const FAULT: u32 = 21;
const INVAL: u32 = 28;
pub(super) const NOSYS: i32 = 52;

/// Random bytes of one call, and subscriptions of one poll.
const MOST_RANDOM: u32 = 64 << 10;
const MOST_SUBSCRIPTIONS: u32 = 64;

fn errno(outcome: Outcome) -> wasmtime::Result<u32> {
    match outcome {
        Ok(()) => Ok(0),
        Err(Refusal::Status(6)) => Ok(FAULT),
        Err(Refusal::Status(_)) => Ok(INVAL),
        Err(Refusal::Trap(error)) => Err(error),
    }
}

/// The module has called `proc_exit`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exited(pub i32);

impl std::fmt::Display for Exited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the module exited with code {}", self.0)
    }
}

impl std::error::Error for Exited {}

/// Nanoseconds of the wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "modules measure in nanoseconds; reading the clock is no system call"
)]
pub(super) fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Nanoseconds since a module first read this clock, and never 0.
#[expect(clippy::disallowed_methods, reason = "see above")]
fn steady_clock() -> u64 {
    static BEGAN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Adds the functions.
///
/// # Errors
/// A name is there twice.
pub(super) fn add(linker: &mut Linker<Vm>) -> wasmtime::Result<()> {
    for name in ["args_sizes_get", "environ_sizes_get"] {
        linker.func_wrap(NAME, name, |mut caller: Caller<'_, Vm>, count: u32, size: u32| {
            errno(write_u32(&mut caller, count, 0).and_then(|()| write_u32(&mut caller, size, 0)))
        })?;
    }
    for name in ["args_get", "environ_get"] {
        linker.func_wrap(NAME, name, |_: Caller<'_, Vm>, _: u32, _: u32| 0_u32)?;
    }
    linker.func_wrap(
        NAME,
        "clock_time_get",
        |mut caller: Caller<'_, Vm>, clock: u32, _: u64, result: u32| {
            let time = match clock {
                0 => wall_clock(),
                1..=3 => steady_clock(),
                _ => return Ok(INVAL),
            };
            errno(write_u64(&mut caller, result, time))
        },
    )?;
    linker.func_wrap(NAME, "clock_res_get", |mut caller: Caller<'_, Vm>, _: u32, result: u32| {
        errno(write_u64(&mut caller, result, 1))
    })?;
    linker.func_wrap(NAME, "random_get", |mut caller: Caller<'_, Vm>, at: u32, size: u32| {
        errno(random(&mut caller, at, size))
    })?;
    linker.func_wrap(
        NAME,
        "fd_write",
        |mut caller: Caller<'_, Vm>, fd: u32, parts: u32, count: u32, written: u32| {
            let level = match fd {
                1 => Level::Info,
                2 => Level::Error,
                _ => return Ok(BADF),
            };
            errno(fd_write(&mut caller, level, parts, count, written))
        },
    )?;
    // Standard output and error are character devices that can be written.
    linker.func_wrap(NAME, "fd_fdstat_get", |mut caller: Caller<'_, Vm>, fd: u32, result: u32| {
        if fd > 2 {
            return Ok(BADF);
        }
        let mut state = [0; 24];
        state[0] = 2;
        state[8] = 64;
        errno(write(&mut caller, result, &state))
    })?;
    linker.func_wrap(
        NAME,
        "fd_fdstat_set_flags",
        |_: Caller<'_, Vm>, fd: u32, _: u32| if fd > 2 { BADF } else { 0 },
    )?;
    linker.func_wrap(NAME, "fd_prestat_get", |_: Caller<'_, Vm>, _: u32, _: u32| BADF)?;
    linker.func_wrap(NAME, "fd_prestat_dir_name", |_: Caller<'_, Vm>, _: u32, _: u32, _: u32| BADF)?;
    linker.func_wrap(NAME, "fd_close", |_: Caller<'_, Vm>, fd: u32| if fd > 2 { BADF } else { 0 })?;
    linker.func_wrap(NAME, "sched_yield", |_: Caller<'_, Vm>| 0_u32)?;
    linker.func_wrap(
        NAME,
        "poll_oneoff",
        |mut caller: Caller<'_, Vm>, subscriptions: u32, events: u32, count: u32, result: u32| {
            errno(poll(&mut caller, subscriptions, events, count, result))
        },
    )?;
    linker.func_wrap(NAME, "proc_exit", |_: Caller<'_, Vm>, code: i32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(Exited(code)))
    })?;
    Ok(())
}

fn random(caller: &mut Caller<'_, Vm>, at: u32, size: u32) -> Outcome {
    if size > MOST_RANDOM {
        return Err(Refusal::BAD_ARGUMENT);
    }
    let mut data = vec![0; size as usize];
    SystemRandom::new().fill(&mut data).map_err(|_| Refusal::INTERNAL_FAILURE)?;
    write(caller, at, &data)
}

/// All that is waited for happens at once: a worker does not sleep.
fn poll(caller: &mut Caller<'_, Vm>, subscriptions: u32, events: u32, count: u32, result: u32) -> Outcome {
    if count == 0 || count > MOST_SUBSCRIPTIONS {
        return Err(Refusal::BAD_ARGUMENT);
    }
    for n in 0..count {
        let subscription = Slice { at: subscriptions.saturating_add(n * 48), size: 48 };
        let mut event = [0; 32];
        let asked = bytes(caller, subscription)?;
        event[..8].copy_from_slice(&asked[..8]);
        event[10] = asked[8];
        write(caller, events.saturating_add(n * 32), &event)?;
    }
    write_u32(caller, result, count)
}
