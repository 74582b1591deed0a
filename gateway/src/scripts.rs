//! Scripts: their limits, and the plugins that run them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use model::boot::Boot;
use scripting::lua::{Dictionaries, Host, Settings, Sources};
use sdk::Catalog as _;
use sdk::catalog::Subsystem;
use sdk::upstream::RuntimeUpstreams;

use crate::script_log::Lines;

/// Files of plugins: how many there may be, how long each, and how deep below its folder.
const MOST_FILES: usize = 2000;
const LONGEST_FILE: u64 = 1 << 20;
const DEEPEST: usize = 8;

/// The plugins in files.
pub struct Scripts {
    host: Arc<Host>,
    catalog: Arc<plugins::Catalog>,
    /// `apisix.extra_lua_path`.
    paths: Vec<String>,
    /// `stream_plugins`.
    stream_names: Vec<String>,
    loaded: Mutex<Loaded>,
}

/// The result of the last reading.
#[derive(Default)]
struct Loaded {
    /// Of all files.
    digest: Option<u64>,
    /// The plugins that are in the catalog, and whether the newest version of each is.
    plugins: BTreeMap<(Subsystem, String), bool>,
}

/// Adds the plugins that run Lua: those of APISIX that are built, and those in files that `plugins` names.
pub fn register(
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    upstreams: Option<Arc<RuntimeUpstreams>>,
) -> Option<Arc<Scripts>> {
    let attrs = boot.plugin_attr.iter().filter(|(name, _)| !catalog.has(name));
    let settings = Settings {
        max_memory: usize::try_from(boot.lua.max_memory).unwrap_or(usize::MAX),
        max_time: boot.lua.max_time,
        max_sockets: usize::try_from(boot.lua.max_sockets).unwrap_or(usize::MAX),
        unix_sockets: boot.lua.unix_sockets,
        attrs: attrs.map(|(name, attr)| (name.clone(), attr.clone())).collect(),
    };
    let dictionaries = boot.http.script_dicts.iter();
    let dictionaries = Dictionaries::new(
        dictionaries.map(|(name, size)| (name.as_str(), usize::try_from(*size).unwrap_or(usize::MAX))),
    );
    let lines = Lines::new(boot.log_level);
    let host = Host::new(settings, Box::new(lines), dictionaries, upstreams);
    for plugin in scripting::lua::plugins(&host) {
        let name = plugin.name();
        if let Err(error) = catalog.register(plugin) {
            tracing::error!("cannot register the plugin {name}: {error}");
        }
    }
    catalog.set_scripts(scripting::lua::scripts(&host));
    if boot.lua.paths.is_empty() {
        return None;
    }
    let (paths, loaded) = (boot.lua.paths.clone(), Mutex::default());
    let stream_names = boot.streams.plugins.clone().unwrap_or_default();
    let scripts = Scripts { host, catalog: catalog.clone(), paths, stream_names, loaded };
    scripts.load(boot.plugins.as_deref().unwrap_or_default());
    Some(Arc::new(scripts))
}

impl Scripts {
    /// Reads all files, and loads the plugins of these names. One that does not load keeps its last valid version; one
    /// that is no longer named is removed.
    pub fn load(&self, names: &[String]) {
        if let Err(error) = self.read(names) {
            tracing::error!("cannot load plugins in Lua: {error}");
        }
    }

    fn read(&self, names: &[String]) -> Result<(), model::Invalid> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sources = Sources::default();
        for pattern in &self.paths {
            let Some((folder, after)) = pattern.split_once('?') else { continue };
            let folder = Path::new(if folder.is_empty() { "." } else { folder });
            if let Err(error) = collect(folder, folder, after, 0, &mut sources) {
                tracing::error!("cannot read files of apisix.extra_lua_path pattern={pattern} error={error}");
            }
        }
        let digest = {
            let mut hasher = DefaultHasher::new();
            sources.hash(&mut hasher);
            hasher.finish()
        };
        let is_same = loaded.digest.replace(digest) == Some(digest);
        let library = scripting::lua::library(&self.host, sources)?;
        let of_routes = names.iter().map(|name| (Subsystem::Http, name.clone()));
        let of_streams = self.stream_names.iter().map(|name| (Subsystem::Stream, name.clone()));
        let named: Vec<(Subsystem, String)> = of_routes.chain(of_streams).collect();
        let gone: Vec<_> = loaded.plugins.keys().filter(|plugin| !named.contains(plugin)).cloned().collect();
        for plugin in gone {
            let (subsystem, name) = &plugin;
            match subsystem {
                Subsystem::Http => self.catalog.remove(name),
                Subsystem::Stream => self.catalog.remove_stream(name),
            }
            tracing::info!("plugin removed name={name}");
            loaded.plugins.remove(&plugin);
        }
        for plugin in named {
            let before = loaded.plugins.get(&plugin).copied();
            let (subsystem, name) = &plugin;
            let is_known = match subsystem {
                Subsystem::Http => self.catalog.has(name),
                Subsystem::Stream => self.catalog.has_stream(name),
            };
            // A plugin of this name is built in, or is the newest.
            if before.is_none() && is_known || is_same && before == Some(true) {
                continue;
            }
            let found = scripting::lua::plugin(&self.host, &library, *subsystem, name);
            let registered = found.and_then(|found| match (found, subsystem) {
                (Some(found), Subsystem::Http) => self.catalog.register(found).map(|()| true),
                (Some(found), Subsystem::Stream) => self.catalog.register_stream(found).map(|()| true),
                (None, _) => Ok(false),
            });
            match registered {
                Ok(true) => {
                    tracing::info!("plugin loaded name={name}");
                    loaded.plugins.insert(plugin, true);
                }
                Ok(false) if before.is_none() => {}
                Ok(false) => {
                    tracing::error!(
                        "plugin not loaded name={name} error=\"no file\"; its last version stays"
                    );
                    loaded.plugins.insert(plugin, false);
                }
                Err(error) => {
                    let stays = if before.is_some() { "; its last valid version stays" } else { "" };
                    tracing::error!("plugin not loaded name={name} error={error}{stays}");
                    if before.is_some() {
                        loaded.plugins.insert(plugin, false);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the listed plugins for which a folder of `apisix.extra_lua_path` has a file; those of streams by the names
/// of their modules.
pub fn listed_files(boot: &Boot) -> Vec<String> {
    let has_file = |module: &str| {
        let module = module.replace('.', "/");
        boot.lua
            .paths
            .iter()
            .any(|pattern| pattern.contains('?') && Path::new(&pattern.replacen('?', &module, 1)).is_file())
    };
    let of_routes = boot.plugins.iter().flatten().cloned();
    let mut found: Vec<String> =
        of_routes.filter(|name| has_file(&format!("apisix.plugins.{name}"))).collect();
    let of_streams = boot.streams.plugins.iter().flatten().map(|name| model::boot::stream_module(name));
    found.extend(of_streams.filter(|module| has_file(module)));
    found
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
