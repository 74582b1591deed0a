//! Where a log goes: a file that may be renamed under us, or an output of the process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The place a log is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Stdout,
    Stderr,
    File {
        path: PathBuf,
        /// The folder is ours to make: the path was relative.
        make_folder: bool,
    },
}

impl Place {
    /// Reads what the boot file says. A relative path lies in the data folder, which is the one
    /// place a gateway can always write to.
    pub fn new(written: &str, data: &Path) -> Place {
        match written {
            "/dev/stdout" => Place::Stdout,
            "/dev/stderr" | "stderr" => Place::Stderr,
            path if Path::new(path).is_absolute() => Place::File { path: path.into(), make_folder: false },
            path => Place::File { path: data.join(path), make_folder: true },
        }
    }

    /// Opens it for appending; makes the file if there is none. Opening a FIFO waits for a reader.
    pub fn open(&self) -> io::Result<File> {
        match self {
            // Opening `/dev/stdout` anew fails where it is a socket, as under systemd.
            Place::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Place::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
            Place::File { path, make_folder } => {
                if let (true, Some(folder)) = (make_folder, path.parent()) {
                    std::fs::create_dir_all(folder)?;
                }
                File::options().append(true).create(true).open(path)
            }
        }
    }

    /// Whether opening it may wait for somebody else.
    pub fn is_fifo(&self) -> bool {
        use std::os::unix::fs::FileTypeExt;
        let Place::File { path, .. } = self else { return false };
        std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Stdout => f.write_str("standard output"),
            Place::Stderr => f.write_str("standard error"),
            Place::File { path, .. } => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_lie_in_the_data_folder() {
        let file = |path: &str, make_folder| Place::File { path: path.into(), make_folder };
        for (written, expected) in [
            ("logs/a.log", file("/data/logs/a.log", true)),
            ("/var/log/a.log", file("/var/log/a.log", false)),
            ("/dev/stdout", Place::Stdout),
            ("/dev/stderr", Place::Stderr),
            ("stderr", Place::Stderr),
        ] {
            assert_eq!(Place::new(written, Path::new("/data")), expected, "{written}");
        }
    }
}
