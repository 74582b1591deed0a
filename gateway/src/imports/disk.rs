//! The files that an imported file includes, from the disk.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use control::store::Stat;
use importers::{FileError, Files};

use super::glob;

/// Files that a pattern may match, and files that are read at most.
const MOST_FILES: usize = 10_000;

/// Entries of folders that are looked at for the patterns of one file.
const MOST_ENTRIES: usize = 200_000;

/// Reads files below a folder, and remembers them for the watch.
pub struct Disk {
    folder: PathBuf,
    outside: bool,
    max_size: usize,
    /// Bytes that may be read yet, over all files.
    left: Cell<usize>,
    entries: Cell<usize>,
    read: RefCell<Vec<(PathBuf, Option<Stat>)>>,
}

impl Disk {
    /// The folder is that of `file`. Each file, and all of them together four times, may have `max_size` bytes.
    pub fn new(file: &Path, outside: bool, max_size: usize) -> Disk {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Disk {
            folder: folder.to_owned(),
            outside,
            max_size,
            left: Cell::new(max_size * 4),
            entries: Cell::new(0),
            read: RefCell::default(),
        }
    }

    /// The files and folders that were looked at, with their attributes before that.
    pub fn into_read(self) -> Vec<(PathBuf, Option<Stat>)> {
        self.read.into_inner()
    }

    fn remember(&self, path: &Path) -> Result<(), FileError> {
        let mut read = self.read.borrow_mut();
        if read.iter().any(|(other, _)| other == path) {
            return Ok(());
        }
        if read.len() >= MOST_FILES {
            return Err(FileError::Unreadable(format!("more than {MOST_FILES} files are included")));
        }
        read.push((path.to_owned(), Stat::of(path)));
        Ok(())
    }

    /// The path on the disk, if it may be read.
    fn permitted(&self, path: &str) -> Result<PathBuf, FileError> {
        let path = self.folder.join(path);
        if self.outside {
            return Ok(path);
        }
        let folder = fs::canonicalize(&self.folder).map_err(|error| unreadable(&error))?;
        // Before the disk is asked, so that the answer does not depend on files outside.
        let absolute = normal(&std::path::absolute(&path).map_err(|error| unreadable(&error))?);
        let plain = normal(&std::path::absolute(&self.folder).map_err(|error| unreadable(&error))?);
        if !absolute.starts_with(&plain) && !absolute.starts_with(&folder) {
            return Err(FileError::Outside);
        }
        match fs::canonicalize(&path) {
            Ok(real) if !real.starts_with(&folder) => Err(FileError::Outside),
            _ => Ok(path),
        }
    }

    fn expand(&self, base: &str, parts: &[&str], found: &mut Vec<String>) -> Result<(), FileError> {
        let joined = |name: &str| match base {
            "" => name.to_owned(),
            "/" => format!("/{name}"),
            base => format!("{base}/{name}"),
        };
        let Some((part, rest)) = parts.split_first() else {
            found.push(base.to_owned());
            return if found.len() > MOST_FILES {
                Err(FileError::Unreadable(format!("the pattern matches more than {MOST_FILES} files")))
            } else {
                Ok(())
            };
        };
        if !glob::is_pattern(part) {
            let next = joined(part);
            let exists = self.permitted(&next)?.exists();
            return if exists { self.expand(&next, rest, found) } else { Ok(()) };
        }
        let folder = self.permitted(if base.is_empty() { "." } else { base })?;
        self.remember(&folder)?;
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
        let mut names = Vec::new();
        for entry in entries.flatten() {
            self.entries.set(self.entries.get() + 1);
            if self.entries.get() > MOST_ENTRIES {
                return Err(FileError::Unreadable(
                    "the folders of the patterns have too many entries".to_owned(),
                ));
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if glob::matches(part, &name) {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            let next = joined(&name);
            if rest.is_empty() || self.permitted(&next).is_ok_and(|path| path.is_dir()) {
                self.expand(&next, rest, found)?;
            }
        }
        Ok(())
    }
}

impl Files for Disk {
    fn read(&self, path: &str) -> Result<String, FileError> {
        let path = self.permitted(path)?;
        self.remember(&path)?;
        let open = fs::OpenOptions::new()
            .read(true)
            // A pipe without a writer is opened at once, and then refused.
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(&path);
        let file = open.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => FileError::Absent,
            _ => unreadable(&error),
        })?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(FileError::Unreadable("it is not a regular file".to_owned()));
        }
        let most = self.max_size.min(self.left.get());
        let mut bytes = Vec::new();
        file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        if bytes.len() > most {
            return Err(FileError::TooLarge(most as u64));
        }
        self.left.set(self.left.get() - bytes.len());
        String::from_utf8(bytes).map_err(|_| FileError::Unreadable("it is not UTF-8".to_owned()))
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, FileError> {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        let base = if pattern.starts_with('/') { "/" } else { "" };
        // The folder without a pattern decides whether the whole is outside.
        let fixed: Vec<&str> = parts.iter().copied().take_while(|part| !glob::is_pattern(part)).collect();
        let fixed = format!("{base}{}", fixed.join("/"));
        self.permitted(if fixed.is_empty() { "." } else { &fixed })?;
        let mut found = Vec::new();
        // The folders above the imported file's are not looked at one by one.
        let start = fixed.trim_end_matches('/');
        let rest = &parts[fixed.split('/').filter(|part| !part.is_empty()).count()..];
        match rest.is_empty() {
            true if self.permitted(pattern)?.exists() => found.push(pattern.to_owned()),
            true => {}
            false => self.expand(if start.is_empty() { base } else { start }, rest, &mut found)?,
        }
        Ok(found)
    }
}

fn unreadable(error: &std::io::Error) -> FileError {
    FileError::Unreadable(error.to_string())
}

/// The path without `.` and `..`, by its text alone.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("in/main.conf", "main"),
            ("in/conf.d/a.conf", "a"),
            ("in/conf.d/b.conf", "b"),
            ("in/conf.d/.hidden.conf", "h"),
            ("in/sites/x/site.conf", "x"),
            ("in/sites/y/site.conf", "y"),
            ("out/secret", "s"),
        ] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        std::os::unix::fs::symlink("../../out/secret", root.path().join("in/conf.d/link.conf")).unwrap();
        root
    }

    #[test]
    fn only_files_of_the_folder_are_read() {
        let root = folder();
        let main = root.path().join("in/main.conf");
        let inside = Disk::new(&main, false, 100);
        assert_eq!(inside.read("conf.d/a.conf").unwrap(), "a");
        assert_eq!(inside.read(&root.path().join("in/conf.d/a.conf").display().to_string()).unwrap(), "a");
        assert_eq!(inside.read("none"), Err(FileError::Absent));
        for outside in
            ["../out/secret", "/etc/hostname", "conf.d/../../out/secret", "../out/none", "conf.d/link.conf"]
        {
            assert_eq!(inside.read(outside), Err(FileError::Outside), "{outside}");
        }
        assert_eq!(inside.matching("../out/*"), Err(FileError::Outside));
        let all = Disk::new(&main, true, 100);
        assert_eq!(all.read("../out/secret").unwrap(), "s");
        assert_eq!(all.matching("../out/*").unwrap(), ["../out/secret"]);
    }

    #[test]
    fn patterns_are_expanded_in_order_and_their_folders_watched() {
        let root = folder();
        let disk = Disk::new(&root.path().join("in/main.conf"), false, 100);
        assert_eq!(disk.matching("conf.d/[ab].conf").unwrap(), ["conf.d/a.conf", "conf.d/b.conf"]);
        assert_eq!(disk.matching("sites/*/*.conf").unwrap(), ["sites/x/site.conf", "sites/y/site.conf"]);
        assert_eq!(disk.matching("main.conf").unwrap(), ["main.conf"]);
        assert!(disk.matching("none/*.conf").unwrap().is_empty());
        let absolute = root.path().join("in/conf.d/*.conf").display().to_string();
        assert_eq!(disk.matching(&absolute).unwrap().len(), 3);
        assert!(disk.into_read().iter().any(|(path, _)| path.ends_with("in/conf.d")));
    }

    #[test]
    fn sizes_have_a_bound() {
        let root = folder();
        fs::write(root.path().join("in/large"), "0123456789").unwrap();
        let disk = Disk::new(&root.path().join("in/main.conf"), false, 9);
        assert_eq!(disk.read("large"), Err(FileError::TooLarge(9)));
        fs::write(root.path().join("in/large"), "012345678").unwrap();
        for _ in 0..4 {
            assert!(disk.read("large").is_ok());
        }
        assert_eq!(disk.read("large"), Err(FileError::TooLarge(0)));
        fs::write(root.path().join("in/binary"), [0xff, 0]).unwrap();
        let disk = Disk::new(&root.path().join("in/main.conf"), false, 9);
        assert!(matches!(disk.read("binary"), Err(FileError::Unreadable(_))));
        assert!(matches!(disk.read("sites"), Err(FileError::Unreadable(_))));
    }
}
