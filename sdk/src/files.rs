//! Files that plugins serve: the folders that they may serve, and the interface that reads them. This only compares
//! paths; the program opens the files.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use model::Invalid;

use crate::sink::{below, normalized};

/// The setting that lists the folders.
pub const SETTING: &str = "plugin_attr.static-files.roots";

/// The length of the pieces in which files are read, in bytes. A file that is no longer is open only while it is read.
pub const PIECE: usize = 64 << 10;

/// The folders that plugins may serve, and the gateway's own files in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedFolders {
    /// The folder that relative paths start from, absolute.
    base: String,
    listed: Vec<Listed>,
    own: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    /// The folder as used in paths.
    name: String,
    /// The same folder with all links resolved.
    real: String,
}

/// A folder that a plugin serves: a listed folder or one below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The listed folder. It may itself be a link, which is followed at every request.
    pub listed: String,
    /// The path below it, without `.`, `..` and empty components; empty for the listed folder itself.
    pub below: String,
    /// The gateway's own files and folders at or below the listed folder, with all links resolved. They are never
    /// served.
    pub own: Arc<[String]>,
}

impl ServedFolders {
    /// Creates the list. Relative paths start from `base`, an absolute path. `listed` has each folder as configured and
    /// with its links resolved, both absolute; `own` are files and folders of the gateway, with all links resolved.
    pub fn new(
        base: &str,
        listed: impl IntoIterator<Item = (String, String)>,
        own: impl IntoIterator<Item = String>,
    ) -> ServedFolders {
        let listed = listed.into_iter();
        ServedFolders {
            base: base.to_owned(),
            listed: listed
                .map(|(name, real)| Listed { name: normalized(&name), real: normalized(&real) })
                .collect(),
            own: own.into_iter().map(|path| normalized(&path)).collect(),
        }
    }

    /// Resolves a folder in a plugin's configuration.
    ///
    /// # Errors
    /// The folder is outside of those that may be served.
    pub fn root(&self, path: &str) -> Result<Root, Invalid> {
        if path.is_empty() || path.contains('\0') {
            return Err(Invalid::new("a folder must not be empty or contain NUL").got(path));
        }
        let absolute = match path.starts_with('/') {
            true => normalized(path),
            false => normalized(&format!("{}/{path}", self.base)),
        };
        let found = self.listed.iter().filter_map(|listed| Some((listed, below(&absolute, &listed.name)?)));
        let Some((listed, rest)) = found.max_by_key(|(listed, _)| listed.name.len()) else {
            let folders: Vec<&str> = self.listed.iter().map(|listed| listed.name.as_str()).collect();
            let expected = match folders.is_empty() {
                true => "none is allowed".to_owned(),
                false => format!("a folder in {}", folders.join(", ")),
            };
            return Err(Invalid::new("plugins must not serve files outside of the allowed folders")
                .got(path)
                .expected(expected)
                .hint(format!("the allowed folders are those of `{SETTING}` in config.yaml")));
        };
        let own = self.own.iter().filter(|own| below(own, &listed.real).is_some());
        Ok(Root { listed: listed.name.clone(), below: rest.to_owned(), own: own.cloned().collect() })
    }
}

/// Whether a path, with all links resolved, is one of these files and folders or lies in one.
pub fn is_within(path: &str, folders: &[String]) -> bool {
    folders.iter().any(|folder| below(path, folder).is_some())
}

/// Opens files. Blocks: its functions are called on the threads for files alone.
pub trait OpenFiles: Send + Sync {
    /// Opens the file or folder at a path below the root. The path has no leading slash and no empty, `.` or `..`
    /// components; an empty path is the root itself. Nothing outside of the root is opened, not even through links.
    ///
    /// # Errors
    /// It cannot be served, and why.
    fn open(&self, root: &Root, path: &[u8]) -> Result<Opened, OpenError>;
}

/// A file or folder that was found.
pub enum Opened {
    Folder,
    File(OpenFile),
}

/// A regular file that is open.
pub struct OpenFile {
    pub length: u64,
    /// The time of its last change: seconds and nanoseconds since the Unix epoch.
    pub modified: (u64, u32),
    pub content: Box<dyn ReadAt>,
}

/// The content of an open file. Dropping it never blocks.
pub trait ReadAt: Send {
    /// Reads up to the length of `out` and returns the number of bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Why a file is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// There is no such file, or it is neither a regular file nor a folder.
    Missing,
    /// The process must not read it.
    Denied,
    /// A link leads out of the root, or it is one of the gateway's own files.
    Outside,
    /// Too many files that are longer than [`PIECE`] are open.
    TooMany,
    Failed,
}

/// The program's files for plugins: a service of [`crate::Build::service`].
pub struct Files {
    pub folders: ServedFolders,
    pub opener: Arc<dyn OpenFiles>,
    /// How long finding a file or reading one piece may take.
    pub read_timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_folders_are_served() {
        let pairs = [("/srv/www", "/disk/www"), ("/srv", "/srv"), ("/conf/html", "/conf/html")];
        let listed = pairs.map(|(name, real)| (name.to_owned(), real.to_owned()));
        let own = ["/srv/data", "/conf", "/disk/www/key.pem"].map(str::to_owned);
        let folders = ServedFolders::new("/conf", listed, own);
        let root = |path: &str| folders.root(path).map(|root| (root.listed, root.below, root.own.to_vec()));
        let expected = |listed: &str, below: &str, own: &[&str]| {
            let own = own.iter().map(|own| (*own).to_owned()).collect();
            Ok((listed.to_owned(), below.to_owned(), own))
        };
        assert_eq!(root("/srv/www"), expected("/srv/www", "", &["/disk/www/key.pem"]));
        assert_eq!(root("/srv/www/a/../b/"), expected("/srv/www", "b", &["/disk/www/key.pem"]));
        assert_eq!(root("/srv/data"), expected("/srv", "data", &["/srv/data"]));
        assert_eq!(root("html"), expected("/conf/html", "", &[]));
        for outside in ["/", "/etc", "/srv/../etc", "/srvx", "..", "html/..", "/conf"] {
            let invalid = folders.root(outside).unwrap_err();
            assert_eq!(
                invalid.reason, "plugins must not serve files outside of the allowed folders",
                "{outside}"
            );
        }
        assert!(folders.root("").is_err() && folders.root("/srv/\0").is_err());
        let none = ServedFolders::default().root("/srv").unwrap_err();
        assert_eq!(none.expected.as_deref(), Some("none is allowed"));
        assert!(is_within("/srv/data/store", &["/srv/data".to_owned()]));
        assert!(!is_within("/srv/database", &["/srv/data".to_owned()]));
    }
}
