//! Files of other gateways: any text imports without a panic in bounded time, and resources have valid keys.

use importers::{FileError, Files, Format, Recognised, Source};

/// A folder whose files all have this text.
struct Folder<'a>(&'a str);

impl Files for Folder<'_> {
    fn read(&self, path: &str) -> Result<String, FileError> {
        if path.starts_with('/') { Err(FileError::Outside) } else { Ok(self.0.to_owned()) }
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, FileError> {
        Ok(vec![pattern.replace('*', "a"), pattern.replace('*', "b")])
    }
}

pub fn check(text: &str) {
    let (own, included) = text.split_once('\0').unwrap_or((text, ""));
    let format = match importers::recognise("file", own) {
        Recognised::Format(format) => format,
        _ => Format::ALL[own.len() % Format::ALL.len()],
    };
    let source = Source {
        file: "file",
        text: own,
        files: &Folder(included),
        variables: &|name| (name.len() < 4).then(|| name.to_owned()),
        profiles: &["a".to_owned()],
    };
    let Ok(import) = importers::import(format, &source) else { return };
    for resource in &import.resources {
        if let Err(invalid) = resource.key.check() {
            panic!("{}: {invalid:?}", resource.key);
        }
    }
}
