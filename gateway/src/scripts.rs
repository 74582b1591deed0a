//! Scripts: their limits, their lines in the error log, and the plugins that run them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use model::boot::{Boot, LogLevel};
use scripting::lua::{Dictionaries, Host, Level, Log, Settings, Sources};

use crate::logging::REQUEST;

/// Files of plugins: how many there may be, how long each, and how deep below its folder.
const MOST_FILES: usize = 2000;
const LONGEST_FILE: u64 = 1 << 20;
const DEEPEST: usize = 8;

/// Adds the plugins that run Lua: those of APISIX that are built, and those in files that `plugins` names.
pub fn register(boot: &Boot, catalog: &plugins::Catalog) {
    let settings = Settings {
        max_memory: usize::try_from(boot.lua.max_memory).unwrap_or(usize::MAX),
        max_time: boot.lua.max_time,
        max_sockets: usize::try_from(boot.lua.max_sockets).unwrap_or(usize::MAX),
        unix_sockets: boot.lua.unix_sockets,
    };
    let dictionaries = boot.http.script_dicts.iter();
    let dictionaries = Dictionaries::new(
        dictionaries.map(|(name, size)| (name.as_str(), usize::try_from(*size).unwrap_or(usize::MAX))),
    );
    let lines = Lines { level: level(boot.log_level) };
    let host = Host::new(settings, Box::new(lines), dictionaries);
    for plugin in scripting::lua::plugins(&host) {
        let name = plugin.name();
        if let Err(error) = catalog.register(plugin) {
            tracing::error!("cannot register the plugin {name}: {error}");
        }
    }
    let conditions = host.clone();
    catalog.set_conditions(Box::new(move |route, code| scripting::lua::condition(&conditions, route, code)));
    if let Err(error) = register_files(boot, &host, catalog) {
        tracing::error!("cannot load plugins in Lua: {error}");
    }
}

fn register_files(boot: &Boot, host: &Arc<Host>, catalog: &plugins::Catalog) -> Result<(), model::Invalid> {
    let Some(names) = boot.plugins.as_ref().filter(|_| !boot.lua.paths.is_empty()) else { return Ok(()) };
    let mut sources = Sources::default();
    for pattern in &boot.lua.paths {
        let Some((folder, after)) = pattern.split_once('?') else { continue };
        let folder = Path::new(if folder.is_empty() { "." } else { folder });
        if let Err(error) = collect(folder, folder, after, 0, &mut sources) {
            tracing::error!("cannot read files of apisix.extra_lua_path pattern={pattern} error={error}");
        }
    }
    let library = scripting::lua::library(host, sources)?;
    for name in names {
        if catalog.has(name) {
            continue;
        }
        let loaded = scripting::lua::plugin(host, &library, name);
        let registered = loaded.and_then(|plugin| match plugin {
            Some(plugin) => catalog.register(plugin).map(|()| true),
            None => Ok(false),
        });
        match registered {
            Ok(true) => tracing::info!("plugin loaded name={name}"),
            Ok(false) => {}
            Err(error) => tracing::error!("plugin not loaded name={name} error={error}"),
        }
    }
    Ok(())
}

/// Returns the listed plugins for which a folder of `apisix.extra_lua_path` has a file.
pub fn listed_files(boot: &Boot) -> Vec<&str> {
    let has_file = |name: &str| {
        let module = format!("apisix/plugins/{}", name.replace('.', "/"));
        boot.lua
            .paths
            .iter()
            .any(|pattern| pattern.contains('?') && Path::new(&pattern.replacen('?', &module, 1)).is_file())
    };
    boot.plugins.iter().flatten().map(String::as_str).filter(|name| has_file(name)).collect()
}

/// Reads the files below a folder that the pattern matches.
fn collect(
    root: &Path,
    folder: &Path,
    after: &str,
    depth: usize,
    sources: &mut Sources,
) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() && depth < DEEPEST {
            collect(root, &path, after, depth + 1, sources)?;
        }
        let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
        let module = relative.and_then(|relative| relative.strip_suffix(after));
        let Some(module) = module.filter(|_| kind.is_file() && sources.len() < MOST_FILES) else { continue };
        if entry.metadata()?.len() <= LONGEST_FILE {
            let module = module.trim_start_matches('/').replace('/', ".");
            sources.add(module, path.display().to_string(), std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn level(level: LogLevel) -> Level {
    match level {
        LogLevel::Debug => Level::Debug,
        LogLevel::Info | LogLevel::Notice => Level::Info,
        LogLevel::Warn => Level::Warn,
        LogLevel::Error | LogLevel::Crit | LogLevel::Alert | LogLevel::Emerg => Level::Error,
    }
}

/// Lines of scripts per second; further ones are counted, and one line has their number.
const LINES_A_SECOND: u64 = 1000;

/// Hands lines to a thread that writes them: workers never wait for the log.
struct Lines {
    level: Level,
}

static LOST: AtomicU64 = AtomicU64::new(0);

impl Log for Lines {
    fn level(&self) -> Level {
        self.level
    }

    fn line(&self, level: Level, text: String) {
        static WRITER: OnceLock<Option<SyncSender<(Level, String)>>> = OnceLock::new();
        let writer = WRITER.get_or_init(|| {
            let (sender, lines) = sync_channel::<(Level, String)>(1024);
            let spawned = std::thread::Builder::new().name("script-log".into()).spawn(move || {
                let (mut second, mut written) = (Instant::now(), 0);
                for (level, text) in lines {
                    if second.elapsed().as_secs() >= 1 {
                        (second, written) = (Instant::now(), 0);
                        let lost = LOST.swap(0, Ordering::Relaxed);
                        if lost > 0 {
                            tracing::warn!(target: REQUEST, "{lost} more lines of scripts were not logged");
                        }
                    }
                    written += 1;
                    if written > LINES_A_SECOND {
                        LOST.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    match level {
                        Level::Error => tracing::error!(target: REQUEST, "{text}"),
                        Level::Warn => tracing::warn!(target: REQUEST, "{text}"),
                        Level::Info => tracing::info!(target: REQUEST, "{text}"),
                        Level::Debug => tracing::debug!(target: REQUEST, "{text}"),
                    }
                }
            });
            spawned.ok().map(|_| sender)
        });
        if writer.as_ref().is_none_or(|writer| writer.try_send((level, text)).is_err()) {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
}
