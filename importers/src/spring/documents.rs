//! The documents of an application's configuration: of the file itself, of its profiles, and of the files
//! that it imports, in the order in which later ones override earlier ones.

use std::sync::Arc;

use model::yaml::{self, Variables};
use model::{Diagnostic, Invalid, Position, Severity, SyntaxError};

use super::profiles::Profiles;
use super::properties::{self, Property};
use super::settings::{self, Item, Settings};
use crate::Source;
use crate::files::FileError;
use crate::finding::{self, Finding};

/// Bytes of a file.
const MAX_BYTES: usize = 16 << 20;
const MAX_DOCUMENTS: usize = 256;
/// Files of an application, imported ones included.
const MAX_FILES: usize = 64;

/// The settings of an application and what was not read of its files.
pub struct Loaded<'a> {
    pub settings: Settings<'a>,
    pub findings: Vec<Finding>,
}

/// Reads a file and those it refers to.
///
/// # Errors
/// A file cannot be parsed, is absent, or imports itself.
pub fn load<'a>(source: &Source<'a>) -> Result<Loaded<'a>, Box<Diagnostic>> {
    let mut loader = Loader {
        source,
        profiles: Profiles::new(source.profiles),
        layers: Vec::new(),
        chain: vec![source.file.to_owned()],
        files: 1,
        findings: Vec::new(),
    };
    let documents = parse(source.file, source.text)?;
    for document in &documents {
        loader.profiles.read(&probe(source, document));
    }
    loader.layer(source.file, documents)?;
    for profile in loader.profiles.active().to_vec() {
        loader.profile(&profile)?;
    }
    let mut settings = Settings::new(source.variables);
    for layer in loader.layers {
        settings.add(layer);
    }
    for key in ["spring.config", "spring.profiles"] {
        if let Some(item) = settings.get(key) {
            item.whole();
        }
    }
    Ok(Loaded { settings, findings: loader.findings })
}

/// A document of a file as settings of its own.
fn probe<'a>(source: &Source<'a>, document: &[Property]) -> Settings<'a> {
    let mut settings = Settings::new(source.variables);
    settings.add(document.to_vec());
    settings
}

struct Loader<'s, 'a> {
    source: &'s Source<'a>,
    profiles: Profiles,
    layers: Vec<Vec<Property>>,
    /// The files that are being read, each imported by the one before.
    chain: Vec<String>,
    files: usize,
    findings: Vec<Finding>,
}

impl Loader<'_, '_> {
    /// Adds the active documents of a file, each followed by the files that it imports.
    fn layer(&mut self, file: &str, documents: Vec<Vec<Property>>) -> Result<(), Box<Diagnostic>> {
        for document in documents {
            let settings = probe(self.source, &document);
            if let Some(item) = settings.get("spring.config.activate.on-cloud-platform") {
                let effect = "the document is left out: it is for a cloud platform";
                self.find(finding::Severity::Behaviour, &item, effect, None);
                continue;
            }
            if !self.profiles.activates(&settings) {
                let key = settings
                    .get("spring.config.activate.on-profile")
                    .or_else(|| settings.get("spring.profiles"));
                if let Some(item) = key {
                    let effect = "the document is not in use: it is for other profiles";
                    self.find(
                        finding::Severity::Cosmetic,
                        &item,
                        effect,
                        Some("choose profiles by `--profile`"),
                    );
                }
                continue;
            }
            self.layers.push(document);
            let Some(imports) = settings.get("spring.config.import") else { continue };
            let items = imports.items();
            let items = if items.is_empty() { vec![imports] } else { items };
            for item in items {
                for location in item.text().unwrap_or_default().split(';').flat_map(|part| part.split(',')) {
                    self.import(file, location.trim(), &item)?;
                }
            }
        }
        Ok(())
    }

    /// Adds an imported file, or reports a location that is not a file.
    fn import(&mut self, file: &str, location: &str, item: &Item<'_>) -> Result<(), Box<Diagnostic>> {
        let (optional, place) = match location.strip_prefix("optional:") {
            Some(rest) => (true, rest),
            None => (false, location),
        };
        if place.is_empty() {
            return Ok(());
        }
        let (class_path, path) = match place.split_once(':') {
            Some(("file", path)) => (false, path),
            Some(("classpath", path)) => (true, path.trim_start_matches('/')),
            Some((kind, _))
                if kind.len() > 1 && kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') =>
            {
                let effect =
                    format!("settings of `{kind}:` are not read, routes and access control among them");
                let hint = "add its settings to this file, or import a file with them";
                self.find(finding::Severity::Behaviour, item, &effect, Some(hint));
                return Ok(());
            }
            _ => (false, place),
        };
        // `file:config[.yaml]` gives the format of a file without an extension.
        let (path, form) = match path.strip_suffix(']').and_then(|path| path.rsplit_once('[')) {
            Some((path, form)) => (path, form.to_owned()),
            None => (path, path.to_owned()),
        };
        let path = path.strip_prefix("./").unwrap_or(path);
        let fail = |message: String, hint: &str| {
            let mut diagnostic = Diagnostic::new(Severity::Error, file, message);
            let position = item.place().position;
            (diagnostic.line, diagnostic.column) = position.into();
            diagnostic.hint = Some(hint.to_owned());
            Err(Box::new(diagnostic))
        };
        if self.chain.iter().any(|one| one == path) {
            return fail(format!("`{path}` imports itself"), "remove this import");
        }
        if self.files >= MAX_FILES {
            return fail(format!("more than {MAX_FILES} files are imported"), "merge some of them");
        }
        match self.source.files.read(path) {
            Ok(text) => self.file(path, &form, &text),
            Err(FileError::Absent) if optional => Ok(()),
            Err(error) if class_path || optional => {
                let effect = format!("`{path}` is not read: {error}");
                let hint = "files of the class path are looked for in the folder of this file";
                self.find(finding::Severity::Behaviour, item, &effect, Some(hint));
                Ok(())
            }
            Err(error) => fail(
                format!("cannot import `{path}`: {error}"),
                "put the file into the folder of this file, or write `optional:` before its location",
            ),
        }
    }

    /// Adds the files of a profile beside the first file: `application-PROFILE.yml`.
    fn profile(&mut self, profile: &str) -> Result<(), Box<Diagnostic>> {
        let name = self.source.file.rsplit(['/', '\\']).next().unwrap_or(self.source.file);
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        for extension in ["yml", "yaml", "properties"] {
            let path = format!("{stem}-{profile}.{extension}");
            match self.source.files.read(&path) {
                Ok(text) => self.file(&path, &path, &text)?,
                Err(FileError::Absent) => {}
                Err(error) => {
                    let message = format!("cannot read the file of the profile `{profile}`: {error}");
                    return Err(Box::new(Diagnostic::new(Severity::Error, &path, message)));
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &str, form: &str, text: &str) -> Result<(), Box<Diagnostic>> {
        self.files += 1;
        self.chain.push(path.to_owned());
        let documents = parse_as(path, form, text)?;
        self.layer(path, documents)?;
        self.chain.pop();
        Ok(())
    }

    fn find(&mut self, severity: finding::Severity, item: &Item<'_>, effect: &str, hint: Option<&str>) {
        self.findings.push(Finding {
            place: item.place(),
            severity,
            construct: item.path().to_owned(),
            effect: effect.to_owned(),
            hint: hint.map(str::to_owned),
            resources: Vec::new(),
        });
    }
}

/// The documents of a file.
///
/// # Errors
/// It cannot be parsed.
fn parse(file: &str, text: &str) -> Result<Vec<Vec<Property>>, Box<Diagnostic>> {
    parse_as(file, file, text)
}

/// The same; `form` ends as files of the format do.
fn parse_as(file: &str, form: &str, text: &str) -> Result<Vec<Vec<Property>>, Box<Diagnostic>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file has more than {MAX_BYTES} bytes");
        return Err(Box::new(Diagnostic::new(Severity::Error, file, message)));
    }
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let source = model::Source { file, text };
    let at = |position, invalid| Box::new(source.at(Severity::Error, position, invalid));
    if form.ends_with(".properties") {
        let name: Arc<str> = file.into();
        return properties::read(&name, text).map_err(|error| {
            at(error.position, Invalid::new(error.message).hint("write `\\\\` for a backslash"))
        });
    }
    let text = quote_filtered(text);
    let parts = split(&text);
    if parts.len() > MAX_DOCUMENTS {
        let invalid = Invalid::new(format!("the file has more than {MAX_DOCUMENTS} documents"));
        return Err(at(Position::START, invalid));
    }
    let mut documents = Vec::new();
    for part in parts {
        let document = yaml::parse(&part, Variables::Keep).map_err(|error| {
            let SyntaxError { message, position, hint } = error;
            let hint = hint.unwrap_or_else(|| "the file must be YAML that Spring Boot reads".to_owned());
            at(position, Invalid::new(message).hint(hint))
        })?;
        if !document.value.is_object() && !document.value.is_null() {
            let invalid = Invalid::new("a document of an application's configuration must be a mapping")
                .expected("keys such as `spring` and `server`");
            return Err(at(document.nearest_position(""), invalid));
        }
        documents.push(settings::of_yaml(file, document));
    }
    Ok(documents)
}

/// The documents of a text, each with empty lines in place of those before it, so that places stay.
fn split(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    for (at, line) in text.lines().enumerate() {
        let marker =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '#']));
        if let Some(rest) = marker {
            if !part.trim().is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            if parts.len() > MAX_DOCUMENTS {
                return parts;
            }
            part = "\n".repeat(at);
            part.push_str("   ");
            part.push_str(rest);
        } else if line.trim_end() != "..." {
            part.push_str(line);
        }
        part.push('\n');
    }
    parts.push(part);
    parts
}

/// Puts values that Maven fills in, such as `name: @project.name@`, between quotes: YAML has no such values.
fn quote_filtered(text: &str) -> String {
    let quoted = |line: &str| {
        let (key, value) = line.split_once(": ")?;
        let value = value.trim();
        let inner = value.strip_prefix('@')?.split_once('@')?.0;
        let is_name =
            !inner.is_empty() && inner.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        (is_name && !value.contains(['"', '#'])).then(|| format!("{key}: \"{value}\""))
    };
    if !text.contains(": @") {
        return text.to_owned();
    }
    text.lines().map(|line| quoted(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_their_lines() {
        let parts = split("a: 1\n--- # x\nb: 2\n---\n---\n...\nc: |\n  ---\n");
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[1], "\n    # x\nb: 2\n");
        assert!(parts[2].contains("\n\n\n\n"));
        assert_eq!(quote_filtered("a: @x.y@\nb: @z\n"), "a: \"@x.y@\"\nb: @z\n");
    }
}
