//! Files of other gateways: read by an importer, closed where a guard is missing, and watched like a file of resources.

mod accept;
mod closing;
mod convert;
mod disk;
mod glob;
mod listen;
mod report;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::store::{ReadText, Stat};
use importers::{Format, Import, Severity};
use model::document::Position;
use model::{Declarative, Diagnostic, Key, Source};
use serde_json::{Map, Value};

use self::accept::Accepted;
use self::disk::Disk;
pub use convert::convert;
pub use listen::{Wanted, config as config_of, read as read_listen};
pub use report::{diagnostics, to_json};

use crate::{cli, files, say, yaml};

/// The largest file that is imported, in bytes; a file of this size takes seconds.
const MAX_SIZE: usize = 64 << 20;

/// A file of another gateway and how it is imported.
#[derive(Debug, Clone)]
pub struct Job {
    pub format: Format,
    path: PathBuf,
    options: cli::Import,
    accepted: Accepted,
}

/// The result of an import, ready to be served.
pub struct Imported {
    pub import: Import,
    /// With closed routes in place of those that are not served.
    pub declarative: Declarative,
    /// The routes that are not served, and why, in the order of the file.
    pub closed: Vec<(Key, Closed)>,
}

/// Files and folders, with their attributes before they were read.
pub type Dependencies = Vec<(PathBuf, Option<Stat>)>;

/// Why a route answers 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// A guard of the file that the user has not accepted.
    Guard,
    /// The importer made a route that is invalid.
    Invalid,
}

impl Job {
    /// # Errors
    /// An argument that cannot be read.
    pub fn new(format: Format, path: &Path, options: &cli::Import) -> Result<Job, Box<Diagnostic>> {
        let accepted = Accepted::read(options)?;
        Ok(Job { format, path: path.to_owned(), options: options.clone(), accepted })
    }

    /// Imports the text of the file. The second part is the files that it depends on.
    ///
    /// # Errors
    /// A file of which nothing can be used.
    pub fn read(&self, text: &str) -> (Result<Imported, Box<Diagnostic>>, Dependencies) {
        let disk = Disk::new(&self.path, self.options.allow_outside, MAX_SIZE);
        let result = self.read_with(text, &disk);
        (result, disk.into_read())
    }

    fn read_with(&self, text: &str, disk: &Disk) -> Result<Imported, Box<Diagnostic>> {
        let name = self.path.display().to_string();
        if text.len() > MAX_SIZE {
            let reason = format!("the file is larger than {} MiB", MAX_SIZE >> 20);
            return Err(Box::new(Diagnostic::new(model::Severity::Error, &name, reason)));
        }
        let source = importers::Source {
            file: &name,
            text,
            files: disk,
            variables: &files::env,
            profiles: &self.options.profile,
        };
        let mut import = importers::import(self.format, &source)?;
        listen::defaults(self.format, &mut import, &name);
        Ok(self.prepared(import, &name, text))
    }

    /// Closes routes and checks all resources against the model.
    fn prepared(&self, import: Import, name: &str, text: &str) -> Imported {
        let guarded = closing::guarded(&import, |finding| self.accepted.covers(finding));
        let mut closed: Vec<(Key, Closed)> = guarded.into_iter().map(|key| (key, Closed::Guard)).collect();
        let mut errors = Vec::new();
        let mut declarative = self.declarative(&import, &closed, name, text);
        // A route that is left out would give its requests to another one.
        for _ in 0..2 {
            let invalid = |key: &&Key| closing::CLOSABLE.contains(&key.kind);
            let refused: Vec<Key> = declarative.refused.iter().filter(invalid).cloned().collect();
            if refused.is_empty() {
                break;
            }
            if errors.is_empty() {
                errors.clone_from(&declarative.diagnostics);
            }
            closed.retain(|(key, _)| !refused.contains(key));
            closed.extend(refused.into_iter().map(|key| (key, Closed::Invalid)));
            declarative = self.declarative(&import, &closed, name, text);
        }
        for error in errors {
            if !declarative.diagnostics.contains(&error) {
                declarative.diagnostics.push(error);
            }
        }
        let order: HashMap<&Key, usize> =
            import.resources.iter().enumerate().map(|(at, one)| (&one.key, at)).collect();
        closed.sort_by_key(|(key, _)| order.get(key));
        Imported { import, declarative, closed }
    }

    fn declarative(&self, import: &Import, closed: &[(Key, Closed)], name: &str, text: &str) -> Declarative {
        let (sections, places) = sections(import, closed);
        let place = |section: &str, index: usize| {
            let at = places.get(section).and_then(|all| all.get(index));
            at.map_or(Position::START, |at| import.resources[*at].place.position)
        };
        let names = crate::files::built_plugins();
        let mut declarative = Declarative::of_sections(&Source { file: name, text }, sections, &names, place);
        for one in declarative.diagnostics.iter_mut().chain(&mut declarative.warnings) {
            *one = self.moved(import, &places, one.clone(), text);
        }
        declarative
    }

    /// A finding about an item of the sections, at the place that the item is imported from.
    pub fn located(&self, imported: &Imported, one: Diagnostic, text: &str) -> Diagnostic {
        self.moved(&imported.import, &sections(&imported.import, &[]).1, one, text)
    }

    fn moved(&self, import: &Import, places: &Places, one: Diagnostic, text: &str) -> Diagnostic {
        let Some(origin) = origin(&one.pointer, places).map(|at| &import.resources[at]) else { return one };
        let file = &*origin.place.file;
        let included = (file != self.path.display().to_string()).then(|| report::text_of(&self.path, file));
        let text = included.as_ref().map_or(Some(text), Option::as_deref);
        let mut invalid = one.to_invalid();
        invalid.reason = format!("{}, imported from here: {}", origin.key, one.message);
        Source { file, text: text.unwrap_or_default() }.at(one.severity, origin.place.position, invalid)
    }

    /// One line for the log.
    pub fn summary(&self, imported: &Imported) -> String {
        let count = |severity| imported.import.count(severity);
        let name = self.path.display();
        let findings = match imported.import.findings.len() {
            0 => "everything is carried over".to_owned(),
            all => format!(
                "{} ({} guard, {} behaviour, {} cosmetic)",
                say::counted(all, "finding"),
                count(Severity::Guard),
                count(Severity::Behaviour),
                count(Severity::Cosmetic)
            ),
        };
        let closed = match imported.closed.len() {
            0 => String::new(),
            1 => "; 1 route answers 503".to_owned(),
            many => format!("; {many} routes answer 503"),
        };
        let rest = match imported.import.findings.is_empty() && imported.closed.is_empty() {
            true => String::new(),
            false => format!("; `sluice check {name}` lists them"),
        };
        format!("imported {name} of {}: {findings}{closed}{rest}", self.format.title())
    }

    /// The store's reader of this file.
    pub fn reader(self: &Arc<Job>) -> Box<dyn ReadText> {
        Box::new(Reader { job: self.clone(), config: None, summary: None, read: Vec::new() })
    }

    /// The configuration that the file makes, with the addresses of the command line in place of its own.
    pub fn config(&self, import: &Import, given: &[Wanted]) -> Value {
        let own = listen::wanted(&import.listeners);
        let mut config = config_of(if given.is_empty() { &own } else { given }, "yaml");
        for setting in &import.settings {
            lay(&mut config, &setting.path, setting.value.clone());
        }
        config
    }
}

/// Sets a value at a path of keys with dots between them.
fn lay(config: &mut Value, path: &str, value: Value) {
    let place = path.split('.').try_fold(config, |at, key| {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        at.as_object_mut().map(|map| map.entry(key).or_insert(Value::Null))
    });
    if let Some(place) = place {
        *place = value;
    }
}

/// The sections of the resources, and for each section the index in `import.resources` of each item.
fn sections(import: &Import, closed: &[(Key, Closed)]) -> (Map<String, Value>, Places) {
    let mut sections = Map::new();
    let mut places = Places::new();
    let closed: HashMap<&Key, Closed> = closed.iter().map(|(key, why)| (key, *why)).collect();
    for (at, one) in import.resources.iter().enumerate() {
        let value = match closed.get(&one.key) {
            Some(why) => closing::closed(&one.key, &one.value, *why),
            None => one.value.clone(),
        };
        let kind = one.key.kind.owner().unwrap_or(one.key.kind);
        let items = sections.entry(kind.collection()).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = items {
            items.push(yaml::item(&one.key, &value));
        }
        places.entry(kind.collection()).or_default().push(at);
    }
    (sections, places)
}

type Places = HashMap<&'static str, Vec<usize>>;

/// The index of the resource that a pointer leads to.
fn origin(pointer: &str, places: &Places) -> Option<usize> {
    let mut parts = pointer.split('/').skip(1);
    let (section, index) = (parts.next()?, parts.next()?);
    places.get(section)?.get(index.parse::<usize>().ok()?).copied()
}

/// Imports the file for the store, at the start and after each change.
struct Reader {
    job: Arc<Job>,
    /// At the start.
    config: Option<Value>,
    /// As it was logged last.
    summary: Option<String>,
    read: Dependencies,
}

impl ReadText for Reader {
    fn read(&mut self, _: &str, text: &str) -> Result<Declarative, Box<Diagnostic>> {
        let (result, read) = self.job.read(text);
        self.read = read;
        let imported = result?;
        let summary = self.job.summary(&imported);
        if self.summary.as_ref() != Some(&summary) {
            match imported.closed.is_empty() {
                true => tracing::info!("{summary}"),
                false => tracing::warn!("{summary}"),
            }
            self.summary = Some(summary);
        }
        let config = self.job.config(&imported.import, &[]);
        if *self.config.get_or_insert_with(|| config.clone()) != config {
            tracing::warn!(
                "{}: the addresses to listen on, or those of registries, have changed, which takes effect at the next \
                 start or upgrade",
                self.job.path.display()
            );
        }
        Ok(imported.declarative)
    }

    fn also(&self) -> &[(PathBuf, Option<Stat>)] {
        &self.read
    }
}

#[cfg(test)]
mod tests;
