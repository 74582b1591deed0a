//! The machine of a thread: one for each worker, and one on the control side.

use std::cell::{Cell, RefCell};
use std::rc::{self, Rc};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use mlua::{Function, Lua, MultiValue, Result, Table, Thread};
use sdk::chain::LocalFuture;
use sdk::{Exchange, World};

use super::coroutines::Coroutines;
use super::flow::Owner;
use super::functions::{Functions, Loaded};
use super::host::Host;
use super::kept::{Kept, Slot};
use super::libs::shared::share;
use super::native::to_lua;
use super::plugin_id::PluginId;
use super::small;
use super::sockets::Shared;
use super::watchdog::Watch;
use super::{api, text, vm, watchdog};

/// The results of a wait: what the waiting function returns.
pub(super) type Waiting = LocalFuture<'static, std::result::Result<Vec<Out>, String>>;

/// A value that a wait returns to Lua.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Out {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Vec<u8>),
}

/// Values that are dropped when nothing outside the machine holds their mark.
type Marked<K, V> = RefCell<HashMap<K, (Weak<()>, V)>>;

/// A machine with the code it has loaded.
pub(super) struct Machine {
    pub lua: Lua,
    pub host: Arc<Host>,
    /// Of the machines of this process, from 0 on.
    pub number: u32,
    watch: Watch,
    /// Makes the environment of a script.
    environment: Function,
    /// By the number of the instance, which is alive while its mark is.
    loaded: Marked<u64, Functions>,
    /// Functions of instances, plugins in files, and tables of exchanges.
    pub kept: Kept,
    /// The wait that a function has begun; the code yields right afterwards.
    pub waiting: RefCell<Option<Waiting>>,
    /// Coroutines of flows that wait.
    pub stopped: Cell<usize>,
    /// Light threads that were started or ended since the flow looked last.
    pub started: RefCell<Vec<(Thread, Waiting)>>,
    pub killed: RefCell<Vec<Thread>>,
    /// The plugin whose function runs.
    pub plugin: Cell<Option<&'static str>>,
    /// The sockets of the code that runs.
    pub owner: RefCell<Owner>,
    pub coroutines: Coroutines,
    pub sockets: Rc<Shared>,
    /// The metatable of `ctx`.
    pub contexts: Table,
    /// The table of Rust functions, and of what the sources of this room share.
    pub natives: Table,
    /// Plugins in files, by the number of their library.
    modules: Marked<(u64, PluginId), Slot>,
    /// Used memory in bytes at which all garbage is collected before code runs.
    collect_at: Cell<usize>,
    /// Cycles of the collector that free code which is gone.
    cycles: Cell<u8>,
    /// The worker, for code without an exchange.
    worker: RefCell<Option<rc::Weak<dyn World>>>,
}

/// A number for code that machines load, different for all.
pub(super) fn number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static MACHINE: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
}

/// The machine of this thread, which is made at first use.
///
/// # Errors
/// The machine cannot be made, for want of memory.
pub(super) fn of_thread(host: &Arc<Host>) -> Result<Rc<Machine>> {
    if let Some(machine) = current() {
        return Ok(machine);
    }
    let machine = Rc::new(Machine::new(host.clone())?);
    MACHINE.set(Some(machine.clone()));
    Ok(machine)
}

/// The machine of this thread, if there is one.
pub(super) fn current() -> Option<Rc<Machine>> {
    // At the end of a thread its machine may be gone before its exchanges.
    MACHINE.try_with(|machine| machine.borrow().clone()).ok().flatten()
}

/// Checks that a native function, which no hook stops, may continue a text of this many bytes.
///
/// # Errors
/// The exceeded limit.
pub(super) fn check_text(bytes: usize) -> Result<()> {
    current().map_or(Ok(()), |machine| machine.check_text(bytes)).map_err(mlua::Error::runtime)
}

/// The worker of this thread, where it can be kept.
pub(super) fn worker() -> Option<Rc<dyn World>> {
    current()?.worker.borrow().as_ref()?.upgrade()
}

impl Machine {
    fn new(host: Arc<Host>) -> Result<Machine> {
        let lua = vm::new()?;
        share(&lua, &host.dictionaries)?;
        let (environment, natives) = api::install(&lua)?;
        let attrs: Table = natives.raw_get("attrs")?;
        for (plugin, attr) in &host.settings.attrs {
            attrs.raw_set(plugin.as_str(), to_lua(&lua, attr)?)?;
        }
        let contexts = natives.raw_get("contexts")?;
        let (coroutines, kept) = (Coroutines::new(&lua, &natives)?, Kept::new(&lua)?);
        let max_memory = host.settings.max_memory;
        lua.set_memory_limit(max_memory)?;
        let watch = Watch::new(&lua, host.settings.max_time)?;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Ok(Machine {
            lua,
            host,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            watch,
            environment,
            loaded: RefCell::default(),
            kept,
            waiting: RefCell::default(),
            stopped: Cell::new(0),
            started: RefCell::default(),
            killed: RefCell::default(),
            plugin: Cell::new(None),
            owner: RefCell::default(),
            coroutines,
            sockets: Rc::default(),
            contexts,
            natives,
            modules: RefCell::default(),
            collect_at: Cell::new(max_memory / 2),
            cycles: Cell::new(0),
            worker: RefCell::default(),
        })
    }

    /// Keeps the worker of an exchange, for timers.
    pub(super) fn serve(&self, x: &Exchange<'_>) {
        let mut worker = self.worker.borrow_mut();
        if worker.is_none() {
            *worker = x.world().owned().map(|world| Rc::downgrade(&world));
        }
    }

    /// Collects garbage if much memory is used: LuaJIT fails at the limit without collecting any, so what one script
    /// left behind would fail the next.
    pub(super) fn make_room(&self) {
        if self.cycles.get() > 0 {
            self.advance_collector();
        }
        if self.lua.used_memory() < self.collect_at.get() {
            return;
        }
        // An error of a finalizer leaves its memory for later.
        let _ = self.lua.gc_collect();
        let (used, most) = (self.lua.used_memory(), self.host.settings.max_memory);
        self.collect_at.set(used + most.saturating_sub(used) / 2);
    }

    /// Has code that is gone collected with the next runs. The collector otherwise advances with allocations, of which
    /// many scripts make few, and each version of a script would wait for that.
    fn collect_soon(&self) {
        // The cycle that has begun may have marked the code already.
        self.cycles.set(2);
    }

    #[cold]
    fn advance_collector(&self) {
        // Each step looks at about two kilobytes.
        const STEPS: usize = 32;
        if (0..STEPS).any(|_| self.lua.gc_step().unwrap_or(true)) {
            self.cycles.set(self.cycles.get() - 1);
        }
    }

    /// Runs code of this machine within its limit of time.
    pub(super) fn run<T>(&self, code: impl FnOnce() -> T) -> T {
        self.watch.run(code)
    }

    /// As [`check_text`]; the error is a text.
    pub(super) fn check_text(&self, bytes: usize) -> std::result::Result<(), String> {
        if bytes > self.host.settings.max_memory {
            return Err("the text exceeds sluice.lua.max_memory".to_owned());
        }
        if self.watch.is_stopped() { Err(watchdog::MESSAGE.to_owned()) } else { Ok(()) }
    }

    /// `apisix.core`, apart from the views of scripts.
    pub(super) fn core(&self) -> Result<Table> {
        self.lua.globals().get::<Function>("require")?.call("apisix.core")
    }

    /// A new environment; `find_module` returns functions that make modules of the script's own.
    pub(super) fn environment(&self, find_module: Option<Function>) -> Result<Table> {
        self.run(|| self.environment.call(find_module))
    }

    /// The functions of an instance, which are loaded at first use.
    pub(super) fn loaded(
        &self,
        number: u64,
        alive: &Arc<()>,
        load: impl Fn(&Machine) -> Result<Loaded>,
    ) -> Result<Functions> {
        if let Some((_, functions)) = self.loaded.borrow().get(&number) {
            return Ok(*functions);
        }
        // Code that is gone leaves first: a full machine has room again.
        let mut all = self.loaded.borrow_mut();
        let before = all.len();
        for (_, (_, gone)) in all.extract_if(|_, (alive, _)| alive.strong_count() == 0) {
            gone.remove(&self.lua, &self.kept);
        }
        if all.len() < before {
            self.collect_soon();
        }
        drop(all);
        let functions =
            self.with_room(|| self.run(|| Functions::keep(&self.lua, &self.kept, load(self)?)))?;
        self.loaded.borrow_mut().insert(number, (Arc::downgrade(alive), functions));
        Ok(functions)
    }

    /// Loads code; if the machine is full, once more after all garbage is collected.
    fn with_room<T>(&self, load: impl Fn() -> Result<T>) -> Result<T> {
        load().or_else(|error| {
            if !text::is_full(&error) {
                return Err(error);
            }
            // An error of a finalizer leaves its memory for later.
            let _ = self.lua.gc_collect();
            load()
        })
    }

    /// The table of a plugin in a file, which is loaded at first use. Plugins of libraries that are gone are dropped.
    pub(super) fn module(
        &self,
        library: u64,
        id: PluginId,
        alive: &Arc<()>,
        load: impl Fn() -> Result<Table>,
    ) -> Result<Table> {
        if let Some((_, module)) = self.modules.borrow().get(&(library, id)) {
            return self.kept.get(*module);
        }
        let mut all = self.modules.borrow_mut();
        let gone: Vec<_> = all.extract_if(|_, (alive, _)| alive.strong_count() == 0).collect();
        drop(all);
        if !gone.is_empty() {
            self.collect_soon();
        }
        for (_, (_, slot)) in gone {
            // An error of `destroy` has no effect: the plugin is gone.
            let _ = self.run(|| match self.kept.get::<Table>(slot)?.get::<Option<Function>>("destroy")? {
                Some(destroy) => {
                    self.natives.raw_set("destroyed", destroy.environment())?;
                    destroy.call::<()>(())
                }
                None => Ok(()),
            });
            self.kept.remove(&self.lua, slot);
        }
        self.natives.raw_set("destroyed", mlua::Nil)?;
        let module = self.with_room(load)?;
        let slot = self.kept.put(&self.lua, &module)?;
        self.modules.borrow_mut().insert((library, id), (Arc::downgrade(alive), slot));
        Ok(module)
    }

    /// Converts what a wait returns.
    pub(super) fn results(&self, outcome: std::result::Result<Vec<Out>, String>) -> Result<MultiValue> {
        use mlua::Value;
        let lua = &self.lua;
        let (ok, values) = match outcome {
            Ok(values) => (true, values),
            Err(error) => (false, vec![Out::Text(error.into_bytes())]),
        };
        let mut all = vec![Value::Boolean(ok)];
        for value in values {
            all.push(match value {
                Out::Nil => Value::Nil,
                Out::Bool(truth) => Value::Boolean(truth),
                Out::Number(number) => Value::Number(number),
                Out::Text(text) => Value::String(small::string(lua, text)?),
            });
        }
        Ok(MultiValue::from_vec(all))
    }
}
