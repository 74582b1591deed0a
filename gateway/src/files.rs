//! Which files a start reads: the boot file, the declarative resources, the data folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use importers::{Format, Recognised};
use model::boot::{Boot, Provider, Role};
use model::yaml::{self, Variables};
use model::{Diagnostic, Invalid, Severity, Source};
use sdk::sink::Folders;
use serde_json::Value;

use crate::access_log;
use crate::cli::{Files, Forward, Import};
use crate::imports::{self, Job};
use crate::{cli, forward};

/// The files that were found and read.
#[derive(Debug)]
pub struct Found {
    pub boot: Boot,
    pub warnings: Vec<Diagnostic>,
    /// The boot file, unless the built-in defaults are used.
    pub config: Option<PathBuf>,
    /// The declarative resources, if the provider reads a file.
    pub resources: Option<PathBuf>,
    /// How `resources` is imported, if it is a file of another gateway.
    pub import: Option<Arc<Job>>,
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

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 512 << 20;

const DEFAULT_CONFIG: &str = "conf/config.yaml";

/// Finds and reads the configuration an operator named, for a command that does not serve it: the addresses of a file of
/// another gateway are not read.
///
/// # Errors
/// Everything wrong with it, with places.
pub fn find(files: &Files) -> Result<Found, Vec<Diagnostic>> {
    find_with(files, &Import::default(), Addresses::Ignored)
}

/// Whose addresses a gateway listens on that has no `config.yaml`.
enum Addresses<'a> {
    /// They do not matter to the command.
    Ignored,
    /// Those of `--listen`; without any, those of an imported file.
    Given(&'a [String]),
}

fn find_with(files: &Files, import: &Import, addresses: Addresses<'_>) -> Result<Found, Vec<Diagnostic>> {
    let found = find_file(files, import, &addresses)?;
    if let (Addresses::Given([first, ..]), true) =
        (&addresses, found.resources.is_none() || found.config.is_some())
    {
        let mut wrong =
            missing(Path::new(&format!("--listen {first}")), "the addresses belong to config.yaml");
        let help = "set apisix.node_listen there, or name a file of resources, or use --to";
        wrong.iter_mut().for_each(|one| one.hint = Some(help.to_owned()));
        return Err(wrong);
    }
    Ok(found)
}

fn find_file(files: &Files, import: &Import, addresses: &Addresses<'_>) -> Result<Found, Vec<Diagnostic>> {
    match &files.path {
        Some(path) if path.is_dir() => {
            let config = path.join("config.yaml");
            if config.is_file() {
                return from_config(config, files);
            }
            match declarative_in(path) {
                Some(resources) => from_resources(resources, files, addresses),
                None => Err(nothing_in(path)),
            }
        }
        Some(path) if path.is_file() => match kind_of(path, import)? {
            Kind::Resources => from_resources(path.clone(), files, addresses),
            Kind::Config => from_config(path.clone(), files),
            Kind::Import(job) => from_import(path.clone(), job, files, addresses),
        },
        Some(path) => Err(missing(path, "there is no such file or folder")),
        None if Path::new(DEFAULT_CONFIG).is_file() => from_config(DEFAULT_CONFIG.into(), files),
        None => Ok(Found {
            boot: Boot::default(),
            warnings: Vec::new(),
            config: None,
            resources: None,
            import: None,
            given: None,
            data: files.data.clone().unwrap_or_else(state_folder),
        }),
    }
}

/// The same for a start, whose arguments may stand for a configuration.
///
/// # Errors
/// As there.
pub fn of_start(files: &Files, forward: &Forward, import: &Import) -> Result<Found, Vec<Diagnostic>> {
    match forward.to.is_empty() {
        true => find_with(files, import, Addresses::Given(&forward.listen)),
        false => forward::find(files, forward),
    }
}

/// The same for a command that only reads the files.
///
/// # Errors
/// As there.
pub fn find_imported(files: &Files, import: &Import) -> Result<Found, Vec<Diagnostic>> {
    find_with(files, import, Addresses::Ignored)
}

/// Reads a boot file again, for the parts that may change while running.
///
/// # Errors
/// Everything wrong with it, with places.
pub fn read_boot(config: &Path) -> Result<(Boot, Vec<Diagnostic>), Vec<Diagnostic>> {
    let (file, text) = (config.display().to_string(), read(config)?);
    let (boot, mut found) = parse(&file, &text)?;
    let mut more = access_log::check_formats(&boot);
    more.extend(crate::tls::check(&boot.tls));
    if !more.is_empty() {
        found.extend(place(&file, &text, more));
        found.sort_by_key(|one| (one.line, one.column));
    }
    if found.iter().any(|one| one.severity == Severity::Error) { Err(found) } else { Ok((boot, found)) }
}

fn parse(file: &str, text: &str) -> Result<(Boot, Vec<Diagnostic>), Vec<Diagnostic>> {
    let names = built_plugins();
    let parsed = Boot::parse(file, text, &names, &env)?;
    #[cfg_attr(
        not(any(feature = "lua", feature = "wasm")),
        expect(unused_mut, reason = "a build without scripts finds none")
    )]
    let mut in_files: Vec<String> = Vec::new();
    #[cfg(feature = "lua")]
    in_files.extend(crate::scripts::listed_files(&parsed.0));
    #[cfg(feature = "wasm")]
    in_files.extend(crate::wasm::listed_for_streams(&parsed.0));
    if in_files.is_empty() {
        return Ok(parsed);
    }
    let names: Vec<&str> = names.into_iter().chain(in_files.iter().map(String::as_str)).collect();
    Boot::parse(file, text, &names, &env)
}

/// The names of the plugins that this build has for routes.
pub fn built_plugins() -> Vec<&'static str> {
    let mut names = plugins::names();
    #[cfg(feature = "lua")]
    names.extend(scripting::lua::NAMES);
    names
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
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_SIZE) {
        return Err(missing(path, &format!("cannot be read: it is larger than {} MiB", MAX_SIZE >> 20)));
    }
    let bytes = std::fs::read(path).map_err(|error| missing(path, &format!("cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        missing(
            path,
            &format!("cannot be read: it is not UTF-8 text (the first invalid byte is in line {line})"),
        )
    })
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
        let warning = "there is no file of resources beside it: they come by PUT /apisix/admin/configs, or one by one, \
                    and are kept in the embedded store";
        warnings.push(Diagnostic::new(Severity::Warning, &config.display().to_string(), warning));
    }
    warnings.extend(debug_mode(&folder));
    let data = files.data.clone().unwrap_or_else(|| folder.join("data"));
    Ok(Found { boot, warnings, config: Some(config), resources, import: None, given: None, data })
}

/// Defaults, with these resources alone: a data plane.
fn from_resources(
    resources: PathBuf,
    files: &Files,
    addresses: &Addresses<'_>,
) -> Result<Found, Vec<Diagnostic>> {
    let provider = if is_json(&resources) { "json" } else { "yaml" };
    let config = imports::config_of(&given(addresses)?, provider);
    from_text(&config, resources, None, files)
}

/// The same with the resources of a file of another gateway.
fn from_import(
    path: PathBuf,
    job: Arc<Job>,
    files: &Files,
    addresses: &Addresses<'_>,
) -> Result<Found, Vec<Diagnostic>> {
    let wanted = given(addresses)?;
    let imported = read(&path).and_then(|text| job.read(&text).0.map_err(|found| vec![*found]));
    let config = match (addresses, imported) {
        (_, Ok(imported)) => job.config(&imported.import, &wanted),
        (Addresses::Given(_), Err(found)) => return Err(found),
        // The command reports the mistakes of the file itself.
        (Addresses::Ignored, Err(_)) => imports::config_of(&wanted, "yaml"),
    };
    from_text(&config, path, Some(job), files)
}

/// The addresses of the command line.
fn given(addresses: &Addresses<'_>) -> Result<Vec<imports::Wanted>, Vec<Diagnostic>> {
    let Addresses::Given(texts) = addresses else { return Ok(Vec::new()) };
    let (mut wanted, mut wrong) = (Vec::new(), Vec::new());
    for text in *texts {
        match imports::read_listen(text) {
            Ok(one) => wanted.push(one),
            Err(invalid) => wrong.push(forward::diagnostic(&format!("--listen {text}"), invalid)),
        }
    }
    if wrong.is_empty() { Ok(wanted) } else { Err(wrong) }
}

fn from_text(
    config: &Value,
    resources: PathBuf,
    import: Option<Arc<Job>>,
    files: &Files,
) -> Result<Found, Vec<Diagnostic>> {
    let (boot, mut warnings) = Boot::parse("built-in defaults", &config.to_string(), &built_plugins(), &env)?;
    warnings.extend(debug_mode(resources.parent().unwrap_or(Path::new(""))));
    let data = files.data.clone().unwrap_or_else(state_folder);
    Ok(Found { boot, warnings, config: None, resources: Some(resources), import, given: None, data })
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

/// The kind of a file that a command names.
pub enum Kind {
    /// A `config.yaml`.
    Config,
    /// An `apisix.yaml` or `apisix.json`.
    Resources,
    /// A file of another gateway.
    Import(Arc<Job>),
}

/// Recognises a file by its name, else by its content.
///
/// # Errors
/// A file of another kind: the error names its kind if it is known.
pub fn kind_of(path: &Path, import: &cli::Import) -> Result<Kind, Vec<Diagnostic>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let job = |format| {
        Job::new(format, path, import).map(|job| Kind::Import(Arc::new(job))).map_err(|found| vec![*found])
    };
    match import.from.as_deref() {
        Some("apisix") => return Ok(Kind::Resources),
        Some(name) => {
            if let Some(format) = Format::from_name(name) {
                return job(format);
            }
        }
        None if name == "apisix.yaml" || name == "apisix.json" => return Ok(Kind::Resources),
        None if name == "config.yaml" => return Ok(Kind::Config),
        None => {}
    }
    let text = read(path)?;
    match importers::recognise(&path.display().to_string(), &text) {
        Recognised::Apisix => Ok(Kind::Resources),
        Recognised::Format(format) => job(format),
        Recognised::Unsupported(other) => {
            let reason = format!("this is a file of {other}, which is not supported yet");
            let help = format!("supported are {}", supported());
            Err(with_help(missing(path, &reason), &help))
        }
        Recognised::Unknown(keys) if keys.iter().any(|key| model::boot::stands_at_top(key)) => {
            Ok(Kind::Config)
        }
        // Nothing but comments is valid as either.
        Recognised::Unknown(keys) if keys.is_empty() && is_empty(&text) => {
            match is_json(path) || text.contains("#END") {
                true => Ok(Kind::Resources),
                false => Ok(Kind::Config),
            }
        }
        Recognised::Unknown(keys) => {
            let reason = match keys.as_slice() {
                [] => "the format of this file is unknown: it has no keys at its top level".to_owned(),
                keys => {
                    let named: Vec<String> = keys.iter().take(5).map(|key| format!("`{key}`")).collect();
                    format!(
                        "the format of this file is unknown: no key at its top level is known ({})",
                        named.join(", ")
                    )
                }
            };
            let help = format!(
                "expected are config.yaml (`apisix`, `deployment`, …), apisix.yaml (`routes`, `upstreams`, …), or a \
                 file of {}; --from names the format",
                supported()
            );
            Err(with_help(missing(path, &reason), &help))
        }
    }
}

/// The formats that can be imported, for messages.
fn supported() -> String {
    let names = Format::ALL.map(Format::title);
    format!("{} and {}", names[..names.len() - 1].join(", "), names[names.len() - 1])
}

/// Whether a text has nothing but white space and comments.
fn is_empty(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.all(|line| line.is_empty() || line.starts_with('#') || line == "---" || line == "{}")
}

/// The error for a folder without a file that a start would read; it names a file that could be.
fn nothing_in(folder: &Path) -> Vec<Diagnostic> {
    let found = missing(folder, "the folder holds neither config.yaml nor apisix.yaml");
    let others =
        ["kong.yml", "kong.yaml", "envoy.yaml", "nginx.conf", "application.yml", "application.properties"];
    match others.iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
        Some(other) => with_help(found, &format!("to import its {}, name that file", other.display())),
        None => found,
    }
}

fn with_help(mut found: Vec<Diagnostic>, help: &str) -> Vec<Diagnostic> {
    found.iter_mut().for_each(|one| one.hint = Some(help.to_owned()));
    found
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
