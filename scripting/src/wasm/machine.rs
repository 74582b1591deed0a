//! The instance of a module on one worker. It is replaced once a call of it has failed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak as Owner};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use sdk::{Exchange, World};
use wasmtime::Store;

use super::call::Answer;
use super::callbacks::Callbacks;
use super::context::{HttpContext, PluginContext, StreamContext};
use super::host::DEADLINE;
use super::module::{Module, Started, describe, is_interrupt};
use super::vm::{Begun, Vm};
use crate::lent;
use crate::log::Level;

/// Instances that a worker starts of one module within a second: a module that fails at every request costs no more.
const STARTS_A_SECOND: u32 = 20;

/// How many times as long as a call that was ended for its time a worker starts no instance of the module: its other
/// requests have most of its time.
const REST: u32 = 10;

/// Why a call of a module has no result. It is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The call failed, and the instance with it.
    Failed,
    /// The instance of this context has failed in another request.
    Lost,
    /// The module rejects its configuration.
    Unconfigured,
    /// There are too many contexts, or too many instances have failed.
    Exhausted,
}

pub(super) struct Machine {
    pub module: Arc<Module>,
    /// `None` before the first request, while a call runs, and after one has failed.
    running: RefCell<Option<Box<Running>>>,
    /// Moves with every new instance.
    generation: Cell<u64>,
    /// A second, and the instances that were started in it.
    starts: Cell<(u64, u32)>,
    /// Until then, in milliseconds of the steady clock, none is started.
    rests_until: Cell<u64>,
    worker: RefCell<Option<Owner<dyn World>>>,
    /// Work that code has asked for, and whether it is being begun.
    pub(super) begun: RefCell<VecDeque<Begun>>,
    pub(super) begins: Cell<bool>,
}

struct Running {
    store: Store<Vm>,
    callbacks: Callbacks,
    /// The contexts of plugin instances, which are alive while their marks are; 0 for one whose configuration the module
    /// rejects.
    plugins: HashMap<u64, (Weak<()>, u32)>,
    /// The result of `proxy_on_vm_start`, which is called with the first of them.
    has_started: Option<bool>,
}

impl Machine {
    pub(super) fn new(module: &Arc<Module>) -> Rc<Machine> {
        Rc::new(Machine {
            module: module.clone(),
            running: RefCell::default(),
            generation: Cell::new(0),
            starts: Cell::default(),
            rests_until: Cell::default(),
            worker: RefCell::default(),
            begun: RefCell::default(),
            begins: Cell::default(),
        })
    }

    /// The number of the instance, which contexts of it have noted.
    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    pub(super) fn world(&self) -> Option<Rc<dyn World>> {
        self.worker.borrow().as_ref()?.upgrade()
    }

    /// Looks at the state of the instance; `None` if it is not of this generation or has failed.
    pub(super) fn with<T>(&self, generation: u64, f: impl FnOnce(&mut Vm, &Callbacks) -> T) -> Option<T> {
        let mut running = self.running.borrow_mut();
        let Running { store, callbacks, .. } = running.as_deref_mut()?;
        (generation == self.generation.get()).then(|| f(store.data_mut(), callbacks))
    }

    /// Calls the module for a context, with its exchange if there is one.
    pub(super) fn call<T>(
        self: &Rc<Machine>,
        generation: u64,
        x: Option<&mut Exchange<'_>>,
        context: u32,
        name: &'static str,
        code: impl FnOnce(&mut Store<Vm>, &Callbacks) -> wasmtime::Result<T>,
    ) -> Result<T, Failure> {
        // Taken out: neither a failure nor a panic leaves a broken instance behind.
        if generation != self.generation.get() {
            return Err(Failure::Lost);
        }
        let mut running = self.running.take().ok_or(Failure::Lost)?;
        let Running { store, callbacks, .. } = &mut *running;
        store.set_epoch_deadline(DEADLINE);
        let vm = store.data_mut();
        vm.effective = context;
        let route = x.as_ref().and_then(|x| x.route()).map(|route| &*route.id);
        let began = match &x {
            Some(x) => x.world().steady_ms(),
            None => self.world().map_or(0, |world| world.steady_ms()),
        };
        let result = match x {
            Some(x) => {
                // Code of a plugin context knows no request.
                vm.lent = if vm.https.contains_key(&context) { context } else { 0 };
                lent::lend(x, || code(store, callbacks))
            }
            None => {
                vm.lent = 0;
                vm.world = self.world();
                code(store, callbacks)
            }
        };
        let vm = store.data_mut();
        vm.lent = 0;
        vm.world = None;
        match result {
            Ok(value) => {
                let begun = std::mem::take(&mut vm.begun);
                self.running.replace(Some(running));
                if !begun.is_empty() {
                    self.begun.borrow_mut().extend(begun);
                    self.begin();
                }
                Ok(value)
            }
            Err(error) => {
                self.report(name, route.unwrap_or(""), &describe(&error));
                if is_interrupt(&error) {
                    self.rest(began);
                }
                // Exchanges that wait for this instance see that it is gone.
                vm.https.values_mut().for_each(HttpContext::wake);
                Err(Failure::Failed)
            }
        }
    }

    /// Starts no instance for a while, since a call that began then ran for too long.
    fn rest(&self, began: u64) {
        let rest = self.module.host.settings.max_time * (1 + REST);
        self.rests_until.set(began.saturating_add(rest.as_millis() as u64));
    }

    #[cold]
    fn report(&self, callback: &str, route: &str, error: &str) {
        let plugin = self.module.name;
        let text =
            format!("wasm plugin failed plugin={plugin} route={route} callback={callback} error={error:?}");
        self.module.host.log.line(Level::Error, text);
    }

    /// The context of a plugin instance, configured; it is made at first use.
    pub(super) fn plugin(
        self: &Rc<Machine>,
        x: &mut Exchange<'_>,
        number: u64,
        alive: &Arc<()>,
        config: &Arc<[u8]>,
    ) -> Result<u32, Failure> {
        if self.running.borrow().is_none() {
            self.start(x)?;
        }
        let known =
            self.running.borrow().as_ref().and_then(|running| running.plugins.get(&number).map(|it| it.1));
        match known {
            Some(0) => return Err(Failure::Unconfigured),
            Some(context) => return Ok(context),
            None => {}
        }
        self.sweep();
        self.configure(x, number, alive, config)
    }

    #[cold]
    fn start(&self, x: &Exchange<'_>) -> Result<(), Failure> {
        let now = x.world().steady_ms();
        if now < self.rests_until.get() {
            return Err(Failure::Exhausted);
        }
        let second = now / 1000;
        let (last, count) = self.starts.get();
        let count = if last == second { count + 1 } else { 1 };
        self.starts.set((second, count));
        if count > STARTS_A_SECOND {
            return Err(Failure::Exhausted);
        }
        let started = self.module.start().map_err(|broken| {
            self.report("_initialize", "", &broken.reason);
            if broken.was_interrupted {
                self.rest(now);
            }
            Failure::Failed
        })?;
        let Started { store, callbacks } = started;
        *self.worker.borrow_mut() = x.world().owned().map(|world| Rc::downgrade(&world));
        self.generation.set(self.generation.get() + 1);
        let plugins = HashMap::new();
        self.running.replace(Some(Box::new(Running { store, callbacks, plugins, has_started: None })));
        Ok(())
    }

    /// Whether the plugin instance of a context is in use.
    pub(super) fn is_used(&self, context: u32) -> bool {
        let running = self.running.borrow();
        let mut plugins = running.iter().flat_map(|running| running.plugins.values());
        plugins.any(|(alive, id)| *id == context && alive.strong_count() > 0)
    }

    /// Makes the context of a plugin instance.
    #[cold]
    fn configure(
        self: &Rc<Machine>,
        x: &mut Exchange<'_>,
        number: u64,
        alive: &Arc<()>,
        config: &Arc<[u8]>,
    ) -> Result<u32, Failure> {
        let generation = self.generation();
        let has_started = self.running.borrow().as_ref().and_then(|running| running.has_started);
        let made = self.with(generation, |vm, _| {
            let id = vm.number()?;
            vm.plugins.insert(id, PluginContext::new(config.clone()));
            Some(id)
        });
        let id = made.flatten().ok_or(Failure::Exhausted)?;
        let size = config.len() as u32;
        let (has_started, accepted) =
            self.call(generation, Some(x), id, "proxy_on_configure", |store, callbacks| {
                if let Some(create) = &callbacks.context_create {
                    create.call(&mut *store, (id, 0))?;
                }
                let has_started = match (has_started, &callbacks.vm_start) {
                    (Some(known), _) => known,
                    (None, Some(start)) => start.call(&mut *store, (id, 0))? != 0,
                    (None, None) => true,
                };
                match &callbacks.configure {
                    Some(configure) if has_started => {
                        configure.call(&mut *store, (id, size)).map(|accepted| (has_started, accepted != 0))
                    }
                    _ => Ok((has_started, has_started)),
                }
            })?;
        if let Some(running) = self.running.borrow_mut().as_mut() {
            running.has_started = Some(has_started);
            let context = if accepted { id } else { 0 };
            running.plugins.insert(number, (Arc::downgrade(alive), context));
        }
        if !accepted {
            let route = x.route().map_or("", |route| &*route.id);
            self.report("proxy_on_configure", route, "the module rejects its configuration");
            self.call(generation, None, id, "proxy_on_delete", |store, callbacks| {
                delete(store, callbacks, id)
            })?;
            return Err(Failure::Unconfigured);
        }
        Ok(id)
    }

    /// Deletes the contexts of plugin instances that are gone, once no request of theirs is left.
    fn sweep(self: &Rc<Machine>) {
        let gone: Vec<u32> = match self.running.borrow_mut().as_deref_mut() {
            None => return,
            Some(Running { store, plugins, .. }) => {
                let vm = store.data();
                let is_gone = |(alive, id): &(Weak<()>, u32)| {
                    alive.strong_count() == 0 && vm.https.values().all(|http| http.plugin != *id)
                };
                let gone = plugins.extract_if(|_, it| is_gone(it)).map(|(_, (_, id))| id);
                gone.filter(|id| *id != 0).collect()
            }
        };
        let generation = self.generation();
        for id in gone {
            // A failure has no effect but a new instance.
            let _ = self.call(generation, None, id, "proxy_on_done", |store, callbacks| {
                if let Some(done) = &callbacks.done {
                    done.call(&mut *store, id)?;
                }
                delete(store, callbacks, id)
            });
        }
    }

    /// Makes the context of a request, or of a stream.
    pub(super) fn create(
        self: &Rc<Machine>,
        x: &mut Exchange<'_>,
        plugin: u32,
        is_stream: bool,
    ) -> Result<u32, Failure> {
        let generation = self.generation();
        let made = self.with(generation, |vm, _| {
            let id = vm.number()?;
            let stream = is_stream.then(Box::default);
            vm.https.insert(id, HttpContext { plugin, stream, ..HttpContext::default() });
            Some(id)
        });
        let id = made.flatten().ok_or(Failure::Exhausted)?;
        self.call(generation, Some(x), id, "proxy_on_context_create", |store, callbacks| {
            match &callbacks.context_create {
                Some(create) => create.call(store, (id, plugin)),
                None => Ok(()),
            }
        })?;
        Ok(id)
    }

    /// Ends the context of a request, whose exchange is over. One that its module has still to use stays.
    pub(super) fn finish(self: &Rc<Machine>, generation: u64, id: u32, x: Option<&mut Exchange<'_>>) {
        let is_there = self.with(generation, |vm, _| match vm.https.get_mut(&id) {
            Some(http) => {
                http.is_over = true;
                http.drop_chunks();
                http.reply = None;
                if let Some(stream) = &mut http.stream {
                    **stream = StreamContext::default();
                }
                vm.calls -= std::mem::take(&mut http.calls).len();
                for (number, _) in std::mem::take(&mut http.rpcs) {
                    vm.rpcs.remove(&number);
                }
                true
            }
            None => false,
        });
        if is_there != Some(true) {
            return;
        }
        let _ = self.call(generation, x, id, "proxy_on_done", |store, callbacks| {
            let is_done = match &callbacks.done {
                Some(done) => done.call(&mut *store, id)? != 0,
                None => true,
            };
            match !is_done && store.data_mut().keep(id) {
                true => Ok(()),
                false => end(store, callbacks, id),
            }
        });
    }

    /// Ends a context that was over, and that the module has kept until now.
    pub(super) fn end(self: &Rc<Machine>, id: u32) {
        let generation = self.generation();
        let is_released = self
            .with(generation, |vm, _| vm.https.get(&id).is_some_and(|http| http.is_over && !http.is_kept));
        if is_released == Some(true) {
            let _ =
                self.call(generation, None, id, "proxy_on_log", |store, callbacks| end(store, callbacks, id));
        }
    }

    /// Passes the response to a call on to the plugin context that made it, or whose request did.
    pub(super) fn answer(
        self: &Rc<Machine>,
        generation: u64,
        x: Option<&mut Exchange<'_>>,
        context: u32,
        call: u32,
        answer: Answer,
    ) -> Result<(), Failure> {
        let plugin = self.with(generation, |vm, _| {
            vm.calls = vm.calls.saturating_sub(1);
            let plugin = vm.https.get(&context).map_or(context, |http| http.plugin);
            vm.plugins.contains_key(&plugin).then_some(plugin)
        });
        let Some(plugin) = plugin.ok_or(Failure::Lost)? else { return Ok(()) };
        let (headers, trailers) = (answer.headers.len() as u32, answer.trailers.len() as u32);
        let size = answer.body.len() as u32;
        self.call(generation, x, context, "proxy_on_http_call_response", |store, callbacks| {
            let vm = store.data_mut();
            // SDKs choose the context of the request themselves.
            vm.effective = plugin;
            vm.answer = Some(answer);
            if let Some(response) = &callbacks.http_call_response {
                response.call(&mut *store, (plugin, call, headers, size, trailers))?;
            }
            store.data_mut().answer = None;
            Ok(())
        })
    }
}

/// Calls the last callbacks of a request's context and forgets it.
fn end(store: &mut Store<Vm>, callbacks: &Callbacks, id: u32) -> wasmtime::Result<()> {
    if let Some(log) = &callbacks.log {
        store.data_mut().effective = id;
        log.call(&mut *store, id)?;
    }
    store.data_mut().effective = id;
    delete(store, callbacks, id)
}

/// Calls `proxy_on_delete` and forgets the context.
fn delete(store: &mut Store<Vm>, callbacks: &Callbacks, id: u32) -> wasmtime::Result<()> {
    if let Some(delete) = &callbacks.delete {
        delete.call(&mut *store, id)?;
    }
    store.data_mut().forget(id);
    Ok(())
}
