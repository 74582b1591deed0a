//! The formats of a file.

use std::path::{Path, PathBuf};

use model::Diagnostic;
use model::declarative::{Declarative, Format};

use super::Stat;

/// How a variable of the file (`${{NAME}}`) is looked up.
pub type Lookup = Box<dyn Fn(&str) -> Option<String> + Send>;

/// Turns the text of a file into resources.
pub trait ReadText: Send {
    /// # Errors
    /// Why nothing of the text can be used.
    fn read(&mut self, name: &str, text: &str) -> Result<Declarative, Box<Diagnostic>>;

    /// Other files and folders that the last call of `read` depended on, with their attributes before that. A
    /// change of one causes another call.
    fn also(&self) -> &[(PathBuf, Option<Stat>)] {
        &[]
    }
}

/// The sections of `apisix.yaml` or `apisix.json`.
pub struct Sections {
    pub format: Format,
    /// The plugins this build has.
    pub plugins: Vec<&'static str>,
    pub lookup: Lookup,
}

impl Sections {
    /// The format by the end of the file's name.
    pub fn of(path: &Path, plugins: Vec<&'static str>, lookup: Lookup) -> Sections {
        let format = match path.extension().is_some_and(|extension| extension == "json") {
            true => Format::Json,
            false => Format::Yaml,
        };
        Sections { format, plugins, lookup }
    }
}

impl ReadText for Sections {
    fn read(&mut self, name: &str, text: &str) -> Result<Declarative, Box<Diagnostic>> {
        Declarative::load(name, text, self.format, &self.plugins, &*self.lookup)
    }
}
