//! The engine of all modules, their limits, and the values that they share.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::{Config, Engine, EngineWeak, OptLevel, RegallocAlgorithm};

use super::compiled::Compiled;
use super::metrics::Metrics;
use super::queues::Queues;
use super::shared::Shared;
use crate::log::Log;

/// Limits of modules.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of the memory of one instance: of one module on one worker. A body that it reads may have half of that.
    pub max_memory: usize,
    /// How long a call of a module may run.
    pub max_time: Duration,
    /// Bytes of shared data and queues of one plugin, on all workers.
    pub max_shared: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { max_memory: 64 << 20, max_time: Duration::from_secs(1), max_shared: 16 << 20 }
    }
}

impl Settings {
    /// The largest body of a request, a chunk of a response or a response to a call.
    pub(super) fn max_body(&self) -> usize {
        self.max_memory / 2
    }
}

/// The program, as modules see it.
pub struct Host {
    pub settings: Settings,
    pub log: Box<dyn Log>,
    pub metrics: Metrics,
    pub(super) engine: Engine,
    pub(super) compiled: Arc<Compiled>,
    pub(super) shared: Shared,
    pub(super) queues: Queues,
}

/// Ticks of the engine's clock in the time that a call may run.
const TICKS: u32 = 8;

/// Ticks after which a call ends: it began within the first.
pub(super) const DEADLINE: u64 = TICKS as u64 + 1;

/// Bytes of the stack of a call, less than a worker's own.
const MAX_STACK: usize = 512 << 10;

impl Host {
    /// # Errors
    /// The compiler does not know this processor, or the thread that counts time cannot be started.
    pub fn new(settings: Settings, log: Box<dyn Log>) -> Result<Arc<Host>, String> {
        let mut config = Config::new();
        config.epoch_interruption(true).max_wasm_stack(MAX_STACK).generate_address_map(false);
        config.wasm_backtrace_max_frames(std::num::NonZeroUsize::new(4));
        // The builds of tests compile modules with a compiler that is itself hardly optimised.
        if cfg!(debug_assertions) {
            config.cranelift_opt_level(OptLevel::None);
            config.cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass);
        }
        let compiled = Arc::<Compiled>::default();
        config.enable_incremental_compilation(compiled.clone()).map_err(|error| format!("{error:#}"))?;
        let engine = Engine::new(&config).map_err(|error| format!("{error:#}"))?;
        count_time(engine.weak(), settings.max_time / TICKS)?;
        let max_shared = settings.max_shared;
        Ok(Arc::new(Host {
            settings,
            log,
            metrics: Metrics::default(),
            engine,
            compiled,
            shared: Shared::new(max_shared),
            queues: Queues::new(max_shared),
        }))
    }
}

/// Moves the clock of an engine as long as there is the engine, from a thread of its own.
fn count_time(engine: EngineWeak, tick: Duration) -> Result<(), String> {
    let tick = tick.max(Duration::from_millis(1));
    let count = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            #[expect(clippy::disallowed_methods, reason = "this thread does nothing but sleep and count")]
            std::thread::sleep(tick);
        }
    };
    let started = std::thread::Builder::new().name("wasm-clock".into()).spawn(count);
    started.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}
