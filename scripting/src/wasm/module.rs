//! A module: checked and compiled when it is loaded, off the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sdk::Phases;
use sdk::instance::intern;
use wasmtime::{InstancePre, Store, Trap};

use super::callbacks::Callbacks;
use super::compiled::CodeStore;
use super::host::{DEADLINE, Host};
use super::link;
use super::vm::Vm;
use super::wasi::Exited;

/// The largest module in bytes.
pub const LARGEST: u64 = 64 << 20;

/// The marks of the versions of the ABI that are served.
const VERSIONS: [&str; 3] = ["proxy_abi_version_0_2_1", "proxy_abi_version_0_2_0", "proxy_abi_version_0_1_0"];

/// The compiled bytes of a file, which several plugins may have.
pub struct Binary(InstancePre<Vm>);

impl Binary {
    /// Compiles the bytes of a module, as far as their code is not in the store.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn compile(host: &Host, bytes: &[u8], store: &dyn CodeStore) -> Result<Binary, String> {
        prepared(host, bytes, store).map(Binary)
    }
}

/// A module, ready to make instances.
pub struct Module {
    /// The plugin's name.
    pub(super) name: &'static str,
    pub(super) host: Arc<Host>,
    pre: InstancePre<Vm>,
    /// Differs between all modules.
    pub(super) number: u64,
    /// The phases besides that of the request in which it has something to do.
    pub(super) phases: Phases,
}

/// An instance that is made.
pub(super) struct Started {
    pub store: Store<Vm>,
    pub callbacks: Callbacks,
}

impl Module {
    /// Makes a first instance of a plugin's module as a test.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn load(host: &Arc<Host>, name: &str, binary: &Binary) -> Result<Arc<Module>, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = intern(name).map_err(|invalid| invalid.to_string())?;
        let pre = binary.0.clone();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut module = Module { name, host: host.clone(), pre, number, phases: Phases::LOG };
        let started = module.start().map_err(|broken| broken.reason)?;
        let Callbacks { response_headers, response_body, .. } = &started.callbacks;
        if response_headers.is_some() || response_body.is_some() {
            module.phases = module.phases | Phases::HEADER_FILTER;
        }
        if response_body.is_some() {
            module.phases = module.phases | Phases::BODY_FILTER;
        }
        Ok(Arc::new(module))
    }

    /// Makes an instance and lets it initialise itself.
    ///
    /// # Errors
    /// It has no memory, exports functions of other types, or fails.
    pub(super) fn start(&self) -> Result<Started, Broken> {
        let mut store = Store::new(&self.host.engine, Vm::new(self.host.clone(), self.name));
        store.limiter(|vm| &mut vm.limits);
        store.set_epoch_deadline(DEADLINE);
        let instance = self.pre.instantiate(&mut store)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| "the module exports no `memory`".to_owned())?;
        store.data_mut().memory = Some(memory);
        let callbacks = Callbacks::of(&instance, &mut store)?;
        let initialize = instance.get_func(&mut store, "_initialize");
        let name = if initialize.is_some() { "_initialize" } else { "_start" };
        if let Some(first) = instance.get_func(&mut store, name) {
            let first = first.typed::<(), ()>(&store)?;
            store.set_epoch_deadline(DEADLINE);
            match first.call(&mut store, ()) {
                // The end of `main` in a program.
                Err(error) if error.downcast_ref() == Some(&Exited(0)) => {}
                result => result?,
            }
        }
        if initialize.is_some()
            && let Some(main) = instance.get_func(&mut store, "main")
            && let Ok(main) = main.typed::<(u32, u32), u32>(&store)
        {
            store.set_epoch_deadline(DEADLINE);
            main.call(&mut store, (0, 0))?;
        }
        Ok(Started { store, callbacks })
    }
}

/// Why an instance is not made.
pub(super) struct Broken {
    pub reason: String,
    /// A call of the module ran for too long.
    pub was_interrupted: bool,
}

impl From<wasmtime::Error> for Broken {
    fn from(error: wasmtime::Error) -> Broken {
        Broken { reason: describe(&error), was_interrupted: is_interrupt(&error) }
    }
}

impl From<String> for Broken {
    fn from(reason: String) -> Broken {
        Broken { reason, was_interrupted: false }
    }
}

/// Whether a call ended because it ran for too long.
pub(super) fn is_interrupt(error: &wasmtime::Error) -> bool {
    error.downcast_ref() == Some(&Trap::Interrupt)
}

fn prepared(host: &Host, bytes: &[u8], store: &dyn CodeStore) -> Result<InstancePre<Vm>, String> {
    let described = |error: wasmtime::Error| describe(&error);
    if !bytes.starts_with(b"\0asm") {
        return Err("invalid WebAssembly module: it does not begin with \\0asm".to_owned());
    }
    let compile = || wasmtime::Module::from_binary(&host.engine, bytes);
    let module = host.compiled.with(bytes, store, compile).map_err(described)?;
    if !VERSIONS.iter().any(|version| module.get_export(version).is_some()) {
        return Err(format!(
            "the module exports no `{}`: invalid proxy-wasm plugin, or another version of the ABI",
            VERSIONS[0]
        ));
    }
    let mut linker = link::linker(&host.engine).map_err(described)?;
    link::define_unknown(&mut linker, &module);
    linker.instantiate_pre(&module).map_err(described)
}

/// The reason of an error, and the functions in which it happened.
pub(super) fn describe(error: &wasmtime::Error) -> String {
    let mut text = error.root_cause().to_string();
    if is_interrupt(error) {
        text = "the call ran for longer than sluice.wasm.max_time".to_owned();
    }
    let frames = error.downcast_ref::<wasmtime::WasmBacktrace>().map(wasmtime::WasmBacktrace::frames);
    let names: Vec<&str> =
        frames.into_iter().flatten().filter_map(|frame| frame.func_name()).take(4).collect();
    if !names.is_empty() {
        text.push_str(&format!(" in {}", names.join(" < ")));
    }
    text
}
