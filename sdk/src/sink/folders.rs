//! The folders in which plugins may write files. This only compares paths; the program opens the
//! files, without following links below these folders.

use std::fmt;

use model::Invalid;

use crate::files::ServedFolders;

/// The setting that lists the folders.
pub const SETTING: &str = "plugin_attr.file-logger.allowed_paths";

/// Folders in which plugins may write files, and the gateway's own files in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folders {
    /// The folder that relative paths start from, absolute.
    base: String,
    listed: Vec<Listed>,
    /// The gateway's own files and folders, with all links resolved.
    own: Vec<String>,
    served: ServedFolders,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    /// The folder as used in paths.
    name: String,
    /// The same folder with all links resolved.
    real: String,
}

/// A file that a plugin may write, or an output of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFile<'a> {
    Stdout,
    Stderr,
    File {
        /// The listed folder.
        folder: &'a str,
        /// The path below it, without `.`, `..` and empty components.
        below: String,
    },
}

impl Folders {
    /// Creates the list. Relative paths start from `base`, an absolute path. `listed` has each
    /// folder as configured and with its links resolved, both absolute; `own` are files and folders
    /// of the gateway, which are rejected unless they contain the listed folder.
    pub fn new(
        base: &str,
        listed: impl IntoIterator<Item = (String, String)>,
        own: impl IntoIterator<Item = String>,
    ) -> Folders {
        let listed = listed.into_iter().flat_map(|(name, real)| {
            let (name, real) = (normalized(&name), normalized(&real));
            // Both names match, so that a resolved path is accepted again.
            let again = Listed { name: real.clone(), real: real.clone() };
            [Some(Listed { name: name.clone(), real: real.clone() }), (name != real).then_some(again)]
        });
        let own = own.into_iter().map(|path| normalized(&path)).collect();
        Folders {
            base: base.to_owned(),
            listed: listed.flatten().collect(),
            own,
            served: ServedFolders::default(),
        }
    }

    /// Adds the folders that plugins may serve.
    #[must_use]
    pub fn with_served(self, served: ServedFolders) -> Folders {
        Folders { served, ..self }
    }

    /// The folders that plugins may serve.
    pub fn served(&self) -> &ServedFolders {
        &self.served
    }

    /// The folder that relative paths start from.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Resolves a path in a plugin's configuration to a file. A relative path begins in the base folder, or in its
    /// `logs` where only that is listed.
    ///
    /// # Errors
    /// The path is outside of the folders, or one of the gateway's own files.
    pub fn file(&self, path: &str) -> Result<LogFile<'_>, Invalid> {
        match path {
            "/dev/stdout" => return Ok(LogFile::Stdout),
            "/dev/stderr" => return Ok(LogFile::Stderr),
            "" => return Err(Invalid::new("a file path must not be empty")),
            path if path.contains('\0') => return Err(Invalid::new("a file path must not contain NUL")),
            _ => {}
        }
        let found = match path.starts_with('/') {
            true => self.find(path),
            // APISIX's folder holds files beside its `logs`.
            false => self.find(&format!("{}/{path}", self.base)).or_else(|| {
                let is_beside = below(&normalized(path), "/logs").is_none();
                // A reference that was not resolved is no name.
                let is_plain = path.split('/').all(|part| part != "..") && !path.starts_with('$');
                (is_beside && is_plain).then(|| self.find(&format!("{}/logs/{path}", self.base)))?
            }),
        };
        let Some((Listed { real, .. }, rest)) = found else {
            let folders: Vec<&str> = self.listed.iter().map(|listed| listed.name.as_str()).collect();
            return Err(Invalid::new("plugins must not write files outside of the allowed folders")
                .got(path)
                .expected(format!("a file in {}, or /dev/stdout or /dev/stderr", folders.join(", ")))
                .hint(format!("the allowed folders are those of `{SETTING}` in config.yaml")));
        };
        let whole = format!("{real}/{rest}");
        let own = self.own.iter().any(|own| below(&whole, own).is_some() && own.len() >= real.len());
        if own {
            return Err(Invalid::new("plugins must not write the gateway's own files").got(path));
        }
        Ok(LogFile::File { folder: real, below: rest })
    }

    /// Finds the innermost listed folder of an absolute path, and the path below it.
    fn find(&self, path: &str) -> Option<(&Listed, String)> {
        let path = normalized(path);
        let found = self.listed.iter().filter_map(|listed| Some((listed, below(&path, &listed.name)?)));
        let found = found.filter(|(_, rest)| !rest.is_empty()).max_by_key(|(listed, _)| listed.name.len());
        found.map(|(listed, rest)| (listed, rest.to_owned()))
    }
}

impl fmt::Display for LogFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFile::Stdout => f.write_str("/dev/stdout"),
            LogFile::Stderr => f.write_str("/dev/stderr"),
            LogFile::File { folder, below } => write!(f, "{folder}/{below}"),
        }
    }
}

/// Makes a path absolute and removes `.`, `..`, empty components and a final slash; the root is
/// empty.
pub(crate) fn normalized(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.iter().fold(String::new(), |whole, part| whole + "/" + part)
}

/// The part of `path` below `folder`: empty if they are equal.
pub(crate) fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(folder)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders() -> Folders {
        let listed = [("/d/data/logs", "/d/data/logs"), ("/var/log", "/disk/log")];
        let own = ["/d", "/d/data", "/d/data/logs/access.log", "/disk/log/gateway"];
        let listed = listed.map(|(name, real)| (name.to_owned(), real.to_owned()));
        Folders::new("/d/data", listed, own.map(str::to_owned))
    }

    #[test]
    fn files_in_listed_folders_are_allowed() {
        let folders = folders();
        for (path, expected) in [
            ("logs/a.log", "/d/data/logs/a.log"),
            ("a.log", "/d/data/logs/a.log"),
            ("b/./a.log", "/d/data/logs/b/a.log"),
            ("store.key", "/d/data/logs/store.key"),
            ("./logs//b/../a.log", "/d/data/logs/a.log"),
            ("/d/data/logs/b/a.log", "/d/data/logs/b/a.log"),
            ("/var/log/a.log", "/disk/log/a.log"),
            ("/disk/log/a.log", "/disk/log/a.log"),
            ("logs/access.log.1", "/d/data/logs/access.log.1"),
            ("/dev/stdout", "/dev/stdout"),
            ("/dev/stderr", "/dev/stderr"),
        ] {
            assert_eq!(folders.file(path).unwrap().to_string(), expected, "{path}");
            assert_eq!(folders.file(expected).unwrap().to_string(), expected, "a resolved path is accepted");
        }
        let file = LogFile::File { folder: "/disk/log", below: "b/a.log".to_owned() };
        assert_eq!(folders.file("/var/log/b/a.log"), Ok(file));
    }

    #[test]
    fn other_files_are_rejected() {
        let folders = folders();
        for path in [
            "/etc/passwd",
            "../a.log",
            "b/../../a.log",
            "$env://LOG",
            ".",
            "logs",
            "logs/",
            "logs/.",
            "logs/../store.key",
            "/var/log",
            "/var/log/../lib/a",
            "/var/logs/a",
            "/var/lo",
            "/d/config.yaml",
            "/",
            "..",
            "/dev/null",
        ] {
            let invalid = folders.file(path).unwrap_err();
            assert_eq!(
                invalid.reason, "plugins must not write files outside of the allowed folders",
                "{path}"
            );
        }
        for path in ["logs/access.log", "/d/data/logs/./access.log", "/var/log/gateway/a"] {
            let invalid = folders.file(path).unwrap_err();
            assert_eq!(invalid.reason, "plugins must not write the gateway's own files", "{path}");
        }
        assert!(folders.file("").is_err() && folders.file("logs/a\0b").is_err());
    }

    #[test]
    fn a_folder_that_contains_the_gateway_s_files_does_not_allow_them() {
        for wide in ["/", "/d", "/d/data"] {
            let own = ["/d/data", "/d/config.yaml"].map(str::to_owned);
            let folders = Folders::new("/d/data", [(wide.to_owned(), wide.to_owned())], own);
            assert!(folders.file("store.key").is_err(), "{wide}");
            assert!(folders.file("/d/config.yaml").is_err(), "{wide}");
            assert_eq!(folders.file("/d/other/a").is_ok(), wide != "/d/data", "{wide}");
        }
    }
}
