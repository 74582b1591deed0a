//! Where a log goes: a file that may be renamed under us, or an output of the process.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::Invalid;
use rustix::fs::{Access, AtFlags, CWD};
use sdk::sink::{Folders, LogFile};

use super::folders;

/// The place a log is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    Stdout,
    Stderr,
    File {
        path: PathBuf,
        /// The folder is ours to make: the path was relative.
        make_folder: bool,
    },
    /// A plugin's file in one of the folders for such files.
    OfPlugin {
        folder: PathBuf,
        below: PathBuf,
        /// The folder lies in the data folder, so it is made.
        makes_folder: bool,
    },
}

impl LogDestination {
    /// Reads what the boot file says. A relative path lies in the data folder, which is the one
    /// place a gateway can always write to.
    pub fn new(written: &str, data: &Path) -> LogDestination {
        match written {
            "/dev/stdout" => LogDestination::Stdout,
            "/dev/stderr" | "stderr" => LogDestination::Stderr,
            path if Path::new(path).is_absolute() => {
                LogDestination::File { path: path.into(), make_folder: false }
            }
            path => LogDestination::File { path: data.join(path), make_folder: true },
        }
    }

    /// Reads what a plugin's configuration says.
    ///
    /// # Errors
    /// A file that plugins must not write.
    pub fn of_plugin(written: &str, folders: &Folders) -> Result<LogDestination, Invalid> {
        Ok(match folders.file(written)? {
            LogFile::Stdout => LogDestination::Stdout,
            LogFile::Stderr => LogDestination::Stderr,
            LogFile::File { folder, below } => LogDestination::OfPlugin {
                makes_folder: Path::new(folder).starts_with(folders.base()),
                folder: folder.into(),
                below: below.into(),
            },
        })
    }

    /// Opens it for appending; makes the file if it is missing. Opening a FIFO waits for a reader.
    pub fn open(&self) -> io::Result<File> {
        match self {
            // Opening `/dev/stdout` by its path fails where it is a socket, as under systemd.
            LogDestination::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            LogDestination::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
            LogDestination::File { path, make_folder } => {
                if let (true, Some(folder)) = (make_folder, path.parent()) {
                    // The data folder may be among them, and is its owner's alone.
                    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                }
                File::options().append(true).create(true).mode(0o640).open(path)
            }
            LogDestination::OfPlugin { folder, below, makes_folder } => {
                folders::open(folder, below, *makes_folder)
            }
        }
    }

    /// Whether it can be opened, as far as that shows without making anything.
    pub fn look(&self) -> io::Result<()> {
        let LogDestination::File { path, make_folder: false } = self else { return Ok(()) };
        match (std::fs::metadata(path), path.parent()) {
            (Ok(found), _) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            // To open a FIFO waits for a reader.
            (Ok(found), _) if found.is_file() => File::options().append(true).open(path).map(drop),
            (Ok(_), _) => Ok(()),
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                let may = Access::WRITE_OK | Access::EXEC_OK;
                rustix::fs::accessat(CWD, folder, may, AtFlags::EACCESS).map_err(io::Error::from)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Whether it is a FIFO, so that opening it may wait for a reader.
    pub fn is_fifo(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        let found = match self {
            LogDestination::File { path, .. } => std::fs::metadata(path),
            LogDestination::OfPlugin { folder, below, .. } => std::fs::symlink_metadata(folder.join(below)),
            LogDestination::Stdout | LogDestination::Stderr => return false,
        };
        found.is_ok_and(|found| found.file_type().is_fifo())
    }
}

impl std::fmt::Display for LogDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogDestination::Stdout => f.write_str("standard output"),
            LogDestination::Stderr => f.write_str("standard error"),
            LogDestination::File { path, .. } => path.display().fmt(f),
            LogDestination::OfPlugin { folder, below, .. } => folder.join(below).display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_lie_in_the_data_folder() {
        let file = |path: &str, make_folder| LogDestination::File { path: path.into(), make_folder };
        for (written, expected) in [
            ("logs/a.log", file("/data/logs/a.log", true)),
            ("/var/log/a.log", file("/var/log/a.log", false)),
            ("/dev/stdout", LogDestination::Stdout),
            ("/dev/stderr", LogDestination::Stderr),
            ("stderr", LogDestination::Stderr),
        ] {
            assert_eq!(LogDestination::new(written, Path::new("/data")), expected, "{written}");
        }
    }

    #[test]
    fn of_the_folders_of_plugins_those_in_the_data_folder_are_made() {
        let listed = ["/data/logs", "/var/log"].map(|path| (path.to_owned(), path.to_owned()));
        let folders = Folders::new("/data", listed, []);
        let place = |folder: &str, makes_folder| LogDestination::OfPlugin {
            folder: folder.into(),
            below: "a.log".into(),
            makes_folder,
        };
        for (written, expected) in [
            ("logs/a.log", place("/data/logs", true)),
            ("/var/log/a.log", place("/var/log", false)),
            ("/dev/stdout", LogDestination::Stdout),
            ("/dev/stderr", LogDestination::Stderr),
        ] {
            assert_eq!(LogDestination::of_plugin(written, &folders), Ok(expected), "{written}");
        }
        assert!(LogDestination::of_plugin("../a.log", &folders).is_err());
    }

    #[test]
    fn a_log_and_the_folders_made_for_it_are_not_for_everybody() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let LogDestination::File { path, .. } = &LogDestination::new("logs/error.log", &data) else {
            panic!()
        };
        LogDestination::new("logs/error.log", &data).open().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&data), mode(&data.join("logs"))), (0o700, 0o700));
        assert_eq!(mode(path) & 0o137, 0, "{:o}", mode(path));
    }
}
