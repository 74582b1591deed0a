//! Stops Lua code that runs for too long without a wait.
//!
//! Compiled code (LuaJIT) calls no hooks, so a hook that counts instructions either stops nothing or, if compiled code
//! is off, makes all code slower. LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`: compiled loops look whether a hook is
//! set. A thread of its own sets one on a machine whose code has run for longer than its limit; the hook raises an
//! error at each instruction until the code has ended. Code that keeps the limit pays for one load and one compare in
//! each loop (docs/decisions/lua-limits.md).
//!
//! The one file of this room with unsafe code: no safe interface sets a hook from another thread.
#![expect(unsafe_code, reason = "a hook is set from another thread, which no safe interface offers")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

use mlua::{Lua, Result, ffi};

/// The text of the error, without the position before it.
pub(super) const MESSAGE: &str = "the script ran for longer than sluice.lua.max_time without a wait";

/// A machine, as the watchdog sees it.
struct Watched {
    /// [`IDLE`], [`RUNNING`] or [`TOUCHED`].
    state: AtomicU8,
    /// Moves with every run.
    run: AtomicU64,
    /// Whether the hook is set.
    stopped: AtomicBool,
    /// The machine. It is used only in the state [`TOUCHED`], in which its thread waits.
    lua: AtomicPtr<ffi::lua_State>,
    limit: Duration,
}

/// No code runs.
const IDLE: u8 = 0;
/// Code runs.
const RUNNING: u8 = 1;
/// Code runs, and the watchdog sets the hook. The end of the run waits for the end of that.
const TOUCHED: u8 = 2;

/// Watches the runs of one machine.
pub(super) struct Watch {
    watched: Arc<Watched>,
    /// Runs within runs count as one.
    depth: Cell<u32>,
}

impl Watch {
    /// Watches a machine, which must be dropped after this value's last [`Watch::run`].
    pub(super) fn new(lua: &Lua, limit: Duration) -> Result<Watch> {
        let mut main = std::ptr::null_mut();
        // SAFETY: the closure only copies the pointer; it neither uses the machine's stack nor raises an error.
        unsafe { lua.exec_raw::<()>((), |state| main = state)? };
        let watched = Arc::new(Watched {
            state: AtomicU8::new(IDLE),
            run: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            lua: AtomicPtr::new(main),
            limit,
        });
        add(&watched);
        Ok(Watch { watched, depth: Cell::new(0) })
    }

    /// Runs Lua code of this machine for no longer than its limit.
    pub(super) fn run<T>(&self, code: impl FnOnce() -> T) -> T {
        let _end = Run::begin(self);
        code()
    }

    /// Returns whether the code has run for longer than its limit. Native functions check it where a script decides how
    /// long they take: no hook is called in them.
    pub(super) fn is_stopped(&self) -> bool {
        self.watched.stopped.load(Ordering::Relaxed)
    }
}

/// One run; its end is its drop, also in a panic.
struct Run<'a>(&'a Watch);

impl<'a> Run<'a> {
    fn begin(watch: &'a Watch) -> Run<'a> {
        if watch.depth.get() == 0 {
            watch.watched.run.fetch_add(1, Ordering::Relaxed);
            watch.watched.state.store(RUNNING, Ordering::Release);
        }
        watch.depth.set(watch.depth.get() + 1);
        Run(watch)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let Watch { watched, depth } = self.0;
        depth.set(depth.get() - 1);
        if depth.get() > 0 {
            return;
        }
        // Setting a hook takes nanoseconds.
        while watched.state.compare_exchange_weak(RUNNING, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            std::hint::spin_loop();
        }
        if watched.stopped.swap(false, Ordering::Acquire) {
            let lua = watched.lua.load(Ordering::Relaxed);
            // SAFETY: this is the machine's thread, the machine exists, as it was just used, and none of its code runs.
            unsafe { ffi::lua_sethook(lua, None, 0, 0) };
        }
    }
}

impl Watched {
    /// Stops the run of this number, unless it has ended.
    fn stop(&self, run: u64) {
        if self.state.compare_exchange(RUNNING, TOUCHED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        if self.run.load(Ordering::Relaxed) == run {
            let lua = self.lua.load(Ordering::Relaxed);
            // SAFETY: the machine exists: its thread is within a run and does not leave it before the state changes.
            // LuaJIT allows `lua_sethook` from another native thread while code runs (lj_record.c, CHECKHOOK).
            unsafe { ffi::lua_sethook(lua, Some(raise), ffi::LUA_MASKCOUNT, 1) };
            self.stopped.store(true, Ordering::Release);
        }
        self.state.store(RUNNING, Ordering::Release);
    }
}

/// The hook: an error at each instruction, so that no `pcall` of the script keeps it running.
unsafe extern "C-unwind" fn raise(lua: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls a hook with a valid state, three free stack slots and no frames of Rust above it that the
    // error would have to unwind.
    unsafe {
        ffi::luaL_where(lua, 0);
        ffi::lua_pushlstring(lua, MESSAGE.as_ptr().cast(), MESSAGE.len());
        ffi::lua_concat(lua, 2);
        ffi::lua_error(lua);
    }
}

#[expect(
    clippy::disallowed_types,
    reason = "taken when a machine is made and by the watchdog, never in a request"
)]
type All = std::sync::Mutex<Vec<Weak<Watched>>>;

fn add(watched: &Arc<Watched>) {
    static ALL: OnceLock<&'static All> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let all: &'static All = Box::leak(Box::default());
        let started = std::thread::Builder::new().name("lua-watchdog".into()).spawn(move || watch(all));
        // Without the thread, scripts have no limit of time; the process is about to fail anyway.
        drop(started);
        all
    });
    all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(watched));
}

/// Looks at all machines for ever.
#[expect(
    clippy::disallowed_methods,
    reason = "the watchdog sleeps and reads the clock on a thread of its own"
)]
fn watch(all: &'static All) {
    use std::time::Instant;
    // Of each machine the run seen last, and since when.
    let mut seen: Vec<(Weak<Watched>, u64, Instant)> = Vec::new();
    loop {
        let now = Instant::now();
        let mut pause = Duration::from_millis(250);
        let mut known = all.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|watched| watched.strong_count() > 0);
        for watched in known.iter().skip(seen.len().min(known.len())) {
            seen.push((watched.clone(), 0, now));
        }
        if known.len() != seen.len() || known.iter().zip(&seen).any(|(a, (b, ..))| !a.ptr_eq(b)) {
            // A machine is gone: the others are seen again from now on.
            seen = known.iter().map(|watched| (watched.clone(), 0, now)).collect();
        }
        drop(known);
        for (watched, run, since) in &mut seen {
            let Some(watched) = watched.upgrade() else { continue };
            pause = pause.min((watched.limit / 8).max(Duration::from_millis(2)));
            let current = watched.run.load(Ordering::Relaxed);
            if *run != current || watched.state.load(Ordering::Acquire) == IDLE {
                (*run, *since) = (current, now);
            } else if now.duration_since(*since) >= watched.limit && !watched.stopped.load(Ordering::Relaxed)
            {
                watched.stop(current);
            }
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use mlua::Function;

    use super::*;

    fn machine() -> (Lua, Watch) {
        let lua = super::super::vm::new().unwrap();
        let watch = Watch::new(&lua, Duration::from_millis(250)).unwrap();
        (lua, watch)
    }

    #[test]
    fn endless_code_ends_with_an_error_and_the_machine_is_usable_afterwards() {
        let (lua, watch) = machine();
        for endless in [
            "local n = 0 while true do n = n + 1 end",
            "while true do end",
            "while true do pcall(function() while true do end end) end",
            "local function f() pcall(f) return f() end f()",
            "repeat local ok = pcall(error, 'x') until not ok == ok",
            "local co = coroutine.wrap(function() while true do end end) co()",
            "while true do local co = coroutine.create(function() while true do end end) coroutine.resume(co) end",
            "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) while true do pcall(function() return t[1] end) end",
            "while true do string.gsub('aaaa', 'a', function(c) return c end) end",
            "table.sort({1, 2, 3, 4, 5, 6}, function(a, b) while true do end end)",
        ] {
            let code: Function = lua.load(endless).into_function().unwrap();
            let error = watch.run(|| code.call::<()>(())).unwrap_err().to_string();
            assert!(error.contains(MESSAGE), "{endless}: {error}");
            let sum: u32 = watch
                .run(|| lua.load("local n = 0 for i = 1, 1000 do n = n + i end return n").eval())
                .unwrap();
            assert_eq!(sum, 500_500, "{endless}");
        }
    }

    #[test]
    fn code_that_keeps_its_limit_is_left_alone() {
        let (lua, watch) = machine();
        let code: Function =
            lua.load("local n = 0 for i = 1, 100 do n = n + i end return n").into_function().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(750) {
            // Each run is short, all together exceed the limit of one.
            assert_eq!(watch.run(|| watch.run(|| code.call::<u32>(()))).unwrap(), 5050);
        }
    }

    #[test]
    fn machines_come_and_go() {
        for _ in 0..20 {
            let (lua, watch) = machine();
            let _ = watch.run(|| lua.load("return 1").eval::<u32>()).unwrap();
        }
        let (lua, watch) = machine();
        let error = watch.run(|| lua.load("while true do end").exec()).unwrap_err().to_string();
        assert!(error.contains(MESSAGE), "{error}");
    }
}
