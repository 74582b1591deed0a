//! The log: lines on standard error, as a process manager collects them.

use model::boot::LogLevel;
use tracing_subscriber::EnvFilter;

/// Starts logging at the boot file's `error_log_level`; `RUST_LOG` overrides it. Start and
/// stop are told at every level that shows warnings.
pub fn start(level: LogLevel) {
    let directive = match level {
        LogLevel::Debug => "debug",
        // APISIX's default is `warn`, at which people still want to know what was started.
        LogLevel::Info | LogLevel::Notice | LogLevel::Warn => "info",
        LogLevel::Error | LogLevel::Crit | LogLevel::Alert | LogLevel::Emerg => "error",
    };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{directive},hyper=warn,hickory_resolver=error,hickory_proto=error")));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second start within one process (tests) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal)
        .with_target(false)
        .try_init();
}
