//! Which files a start reads: the boot file, the declarative resources, the data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::boot::{Boot, Provider, Role};
use model::yaml::{self, Variables};
use model::{Diagnostic, Invalid, Severity, Source};
use sdk::sink::Folders;
use serde_json::Value;

use crate::access_log;
use crate::cli::{Files, Forward};
use crate::forward;

/// The files that were found and read.
#[derive(Debug)]
pub struct Found {
    pub boot: Boot,
    pub warnings: Vec<Diagnostic>,
    /// The boot file, unless the built-in defaults are used.
    pub config: Option<PathBuf>,
    /// The declarative resources, if the provider reads a file.
    pub resources: Option<PathBuf>,
    /// The text of a declarative file in JSON that the arguments describe.
    pub given: Option<String>,
    /// Where the embedded store and the generated key are.
    pub data: PathBuf,
}

impl Found {
    /// Where plugins may write files.
    pub fn folders(&self) -> Arc<Folders> {
        let Found { boot, config, resources, data, .. } = self;
        Arc::new(crate::log_folders::of(boot, config.as_deref(), resources.as_deref(), data))
    }
}

const DEFAULT_CONFIG: &str = "conf/config.yaml";

/// Finds and reads the configuration an operator named.
///
/// # Errors
/// Everything wrong with it, with places.
pub fn find(files: &Files) -> Result<Found, Vec<Diagnostic>> {
    match &files.path {
        Some(path) if path.is_dir() => {
            let config = path.join("config.yaml");
            if config.is_file() {
                return from_config(config, files);
            }
            match declarative_in(path) {
                Some(resources) => from_resources(resources, files),
                None => Err(missing(path, "the folder holds neither config.yaml nor apisix.yaml")),
            }
        }
        Some(path) if path.is_file() => {
            if is_declarative(path)? {
                from_resources(path.clone(), files)
            } else {
                from_config(path.clone(), files)
            }
        }
        Some(path) => Err(missing(path, "there is no such file or folder")),
        None if Path::new(DEFAULT_CONFIG).is_file() => from_config(DEFAULT_CONFIG.into(), files),
        None => Ok(Found {
            boot: Boot::default(),
            warnings: Vec::new(),
            config: None,
            resources: None,
            given: None,
            data: files.data.clone().unwrap_or_else(state_folder),
        }),
    }
}

/// The same for a start, whose arguments may stand for a configuration.
///
/// # Errors
/// As there.
pub fn of_start(files: &Files, forward: &Forward) -> Result<Found, Vec<Diagnostic>> {
    if forward.to.is_empty() { find(files) } else { forward::find(files, forward) }
}

/// Reads a boot file again, for the parts that may change while running.
///
/// # Errors
/// Everything wrong with it, with places.
pub fn read_boot(config: &Path) -> Result<(Boot, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (file, text) = (config.display().to_string(), read(config)?);
    let (boot, mut found) = Boot::parse(&file, &text, &plugins::names(), &env)?;
    let mut more = access_log::check_formats(&boot);
    more.extend(crate::tls::check(&boot.tls));
    if !more.is_empty() {
        found.extend(place(&file, &text, more));
        found.sort_by_key(|one| (one.line, one.column));
    }
    if found.iter().any(|one| one.severity == Severity::Error) { Err(found) } else { Ok((boot, found)) }
}

/// Turns findings about a boot file into diagnostics, each at its place in the file.
pub fn placed(config: &Path, found: Vec<(Severity, Invalid)>) -> Vec<Diagnostic> {
    let (Ok(text), false) = (read(config), found.is_empty()) else { return Vec::new() };
    place(&config.display().to_string(), &text, found)
}

fn place(file: &str, text: &str, found: Vec<(Severity, Invalid)>) -> Vec<Diagnostic> {
    let Ok(document) = yaml::parse(text, Variables::InValues(&env)) else { return Vec::new() };
    let source = Source { file, text };
    let at = |(severity, mut invalid): (Severity, Invalid)| {
        let begin = document.nearest_position(&invalid.pointer);
        // The reason names a variable, and the line that is shown points to it.
        let variable = invalid.got.take_if(|got| got.starts_with('$'));
        let place = variable.map_or(begin, |variable| access_log::place_of(&variable, text, begin));
        source.at(severity, place, invalid)
    };
    found.into_iter().map(at).collect()
}

/// A variable of the environment.
pub fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads the text of a file.
///
/// # Errors
/// One diagnostic that names the file.
pub fn read(path: &Path) -> Result<String, Vec<Diagnostic>> {
    // Reading a pipe without a writer would never end.
    if path.exists() && !path.is_file() {
        return Err(missing(path, "cannot be read: it is not a regular file"));
    }
    std::fs::read_to_string(path).map_err(|error| missing(path, &format!("cannot be read: {error}")))
}

fn from_config(config: PathBuf, files: &Files) -> Result<Found, Vec<Diagnostic>> {
    let (mut boot, mut warnings) = read_boot(&config)?;
    let folder = config.parent().unwrap_or(Path::new("")).to_owned();
    let resources = match boot.provider {
        Provider::Embedded | Provider::Etcd => None,
        Provider::Yaml => Some(folder.join("apisix.yaml")),
        Provider::Json => Some(folder.join("apisix.json")),
    };
    // APISIX's standalone mode that is driven by its API: a node of both roles with a file provider, and
    // no file. The resources that the API receives are kept in the embedded store.
    let by_api = boot.role == Role::Traditional && boot.admin.enabled;
    let resources = resources.filter(|path| !by_api || path.exists());
    if resources.is_none() && matches!(boot.provider, Provider::Yaml | Provider::Json) {
        boot.provider = Provider::Embedded;
        let told = "there is no file of resources beside it: they come by PUT /apisix/admin/configs, or one by one, \
                    and are kept in the embedded store";
        warnings.push(Diagnostic::new(Severity::Warning, &config.display().to_string(), told));
    }
    warnings.extend(debug_mode(&folder));
    let data = files.data.clone().unwrap_or_else(|| folder.join("data"));
    Ok(Found { boot, warnings, config: Some(config), resources, given: None, data })
}

/// Defaults, with these resources alone: a data plane.
fn from_resources(resources: PathBuf, files: &Files) -> Result<Found, Vec<Diagnostic>> {
    let provider = if is_json(&resources) { "json" } else { "yaml" };
    let text =
        format!("deployment: {{role: data_plane, role_data_plane: {{config_provider: {provider}}}}}\n");
    let (boot, mut warnings) = Boot::parse("built-in defaults", &text, &plugins::names(), &env)?;
    warnings.extend(debug_mode(resources.parent().unwrap_or(Path::new(""))));
    let data = files.data.clone().unwrap_or_else(state_folder);
    Ok(Found { boot, warnings, config: None, resources: Some(resources), given: None, data })
}

/// Warns about modes that a `debug.yaml` of APISIX switches on. The one that ships with APISIX switches on none.
fn debug_mode(folder: &Path) -> Vec<Diagnostic> {
    let path = folder.join("debug.yaml");
    if !path.is_file() {
        return Vec::new();
    }
    let Ok(text) = read(&path) else { return Vec::new() };
    let Ok(document) = yaml::parse(&text, Variables::InValues(&env)) else { return Vec::new() };
    let file = path.display().to_string();
    let source = Source { file: &file, text: &text };
    let on = ["/basic/enable", "/http_filter/enable", "/hook_conf/enable"]
        .into_iter()
        .filter(|pointer| document.value.pointer(pointer).and_then(Value::as_bool) == Some(true));
    on.map(|pointer| {
        let invalid = Invalid::new("APISIX's debug mode has no effect here").at(pointer).hint(
            "set this to false or remove the file; `sluice explain METHOD URL` says what would become of a request, and \
             with `sluice.explain.key` in config.yaml live requests get the same in a header",
        );
        source.at(Severity::Warning, document.nearest_position(pointer), invalid)
    })
    .collect()
}

fn declarative_in(folder: &Path) -> Option<PathBuf> {
    ["apisix.yaml", "apisix.json"].into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Recognises a file of resources by its name, else by its sections, which a boot file does not have.
fn is_declarative(path: &Path) -> Result<bool, Vec<Diagnostic>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name == "apisix.yaml" || name == "apisix.json" {
        return Ok(true);
    }
    if name == "config.yaml" {
        return Ok(false);
    }
    let text = read(path)?;
    Ok(is_json(path)
        || text.lines().any(|line| {
            let section = line.split(':').next().unwrap_or_default();
            line.trim_end() == "#END" || model::Kind::from_collection(section).is_some()
        }))
}

fn missing(path: &Path, why: &str) -> Vec<Diagnostic> {
    vec![Diagnostic::new(Severity::Error, &path.display().to_string(), why)]
}

/// `$XDG_STATE_HOME/sluice`, by default below the home folder, else in the current one.
pub fn state_folder() -> PathBuf {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    match state.or_else(home) {
        Some(state) => state.join("sluice"),
        None => PathBuf::from("data"),
    }
}
