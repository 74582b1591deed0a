//! Plugins in WebAssembly: `wasm.plugins` names their files, which are read and compiled at the start.

mod code_folder;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use admin::metrics::facts::{PluginMetric, Shape};
use model::boot::{Boot, WasmPlugin};
use scripting::wasm::{
    Binary, Host, Kind, LARGEST, Module, Plugin, Settings, factory, stream_factory, unloaded,
};
use sdk::build::Services;
use sdk::{Factory, Phase};

use crate::script_log::Lines;
use code_folder::CodeFolder;

/// The host of the modules, once there is one: a service of the program.
#[derive(Default)]
pub struct Hosting(OnceLock<Arc<Host>>);

/// Adds the plugins. Modules are loaded only by a gateway that serves, which has a data folder; otherwise settings of
/// plugins are checked without them.
pub fn register(boot: &Boot, catalog: &plugins::Catalog, services: &Services, data: Option<&Path>) {
    if boot.wasm.plugins.is_empty() {
        return;
    }
    let code = data.map(CodeFolder::new);
    let host = match &code {
        Some(code) => host(boot, services).map(|host| (host, code)),
        None => Err(None),
    };
    let mut files = Files::default();
    for written in &boot.wasm.plugins {
        let loaded = match &host {
            Ok((host, code)) => load(host, written, &mut files, code),
            Err(reason) => (unloaded(&plugin(written), reason.clone()), Err(reason.clone())),
        };
        let (of_routes, module) = loaded;
        let registered = of_routes.and_then(|factory| catalog.register(factory));
        let registered = registered.and_then(|()| match is_of_streams(boot, written) {
            true => catalog.register_stream(stream_factory(&plugin(written), module)?),
            false => Ok(()),
        });
        if let Err(error) = registered {
            tracing::error!("plugin not loaded name={} error={error}", written.name);
        }
    }
    if let Ok((_, code)) = host {
        code.remove_unused();
    }
}

/// Whether it is a plugin of streams as well: as for plugins in Lua, one that `stream_plugins` names.
fn is_of_streams(boot: &Boot, plugin: &WasmPlugin) -> bool {
    boot.streams.plugins.iter().flatten().any(|name| *name == plugin.name)
}

/// The plugins that are of streams as well, by the names of their modules in Lua.
pub fn listed_for_streams(boot: &Boot) -> Vec<String> {
    let listed = boot.wasm.plugins.iter().filter(|plugin| is_of_streams(boot, plugin));
    listed.map(|plugin| model::boot::stream_module(&plugin.name)).collect()
}

/// The plugin of a module for routes, and the module, or why it is not loaded.
type Loaded = (Result<Box<dyn Factory>, model::Invalid>, Result<Arc<Module>, Option<String>>);

fn host(boot: &Boot, services: &Services) -> Result<Arc<Host>, Option<String>> {
    let settings = Settings {
        max_memory: usize::try_from(boot.wasm.max_memory).unwrap_or(usize::MAX),
        max_time: boot.wasm.max_time,
        max_shared: usize::try_from(boot.wasm.max_shared_data).unwrap_or(usize::MAX),
    };
    let host = Host::new(settings, Box::new(Lines::new(boot.log_level)));
    let host = host.map_err(|error| {
        tracing::error!("plugins in WebAssembly are not loaded error={error}");
        Some(format!("plugins in WebAssembly are not loaded: {error}"))
    })?;
    if let Some(hosting) = services.extensions.get::<Hosting>() {
        // A process has one host.
        let _ = hosting.0.set(host.clone());
    }
    Ok(host)
}

/// The files that were compiled, or why one was not.
type Files<'a> = BTreeMap<&'a Path, Result<Binary, String>>;

/// Loads a module. One that does not load is a plugin whose resources are rejected.
fn load<'a>(host: &Arc<Host>, written: &'a WasmPlugin, files: &mut Files<'a>, code: &CodeFolder) -> Loaded {
    let (name, file) = (&written.name, written.file.display());
    let binary = files.entry(&written.file).or_insert_with(|| {
        let bytes = read(&written.file).map_err(|error| format!("cannot read {file}: {error}"))?;
        Binary::compile(host, &bytes, code)
    });
    let module = match binary {
        Ok(binary) => Module::load(host, name, binary),
        Err(error) => Err(error.clone()),
    };
    match module.map_err(|error| format!("cannot load the WebAssembly plugin {name}: {error}")) {
        Ok(module) => {
            tracing::info!("plugin loaded name={name} file={file}");
            (factory(&plugin(written), module.clone()), Ok(module))
        }
        Err(reason) => {
            tracing::error!("plugin not loaded name={name} file={file} error={reason:?}");
            (unloaded(&plugin(written), Some(reason.clone())), Err(Some(reason)))
        }
    }
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(std::io::Error::other(format!("the file is larger than {LARGEST} bytes")));
    }
    Ok(bytes)
}

fn plugin(written: &WasmPlugin) -> Plugin {
    Plugin {
        name: written.name.clone(),
        priority: written.priority,
        phase: if written.in_rewrite { Phase::Rewrite } else { Phase::Access },
        process_bodies: written.process_bodies,
    }
}

/// The metrics of all modules, for the metrics page.
pub fn metrics(services: &Services) -> Vec<PluginMetric> {
    let hosting = services.extensions.get::<Hosting>();
    let host = hosting.as_ref().and_then(|hosting| hosting.0.get());
    let all = host.map(|host| host.metrics.all()).unwrap_or_default();
    all.iter()
        .map(|metric| PluginMetric {
            plugin: metric.plugin,
            name: metric.name.clone(),
            value: metric.value(),
            shape: match metric.kind {
                Kind::Counter => Shape::Counter,
                Kind::Gauge => Shape::Gauge,
                Kind::Histogram => {
                    Shape::Histogram { bounds: &scripting::wasm::BOUNDS, counts: metric.buckets().to_vec() }
                }
            },
        })
        .collect()
}
