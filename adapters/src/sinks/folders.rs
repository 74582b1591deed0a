//! How a plugin's file is opened in one of the folders for such files: no link below such a folder is followed, so
//! none leads out of it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use sdk::sink::FOLDERS_SETTING;

/// Opens the file `below` a listed folder for appending, and makes it if it does not exist. `makes_folder`: the
/// listed folder is made as well.
///
/// # Errors
/// A part of the path that is a link or no folder, besides what opening files fails with.
pub fn open(folder: &Path, below: &Path, makes_folder: bool) -> io::Result<File> {
    if makes_folder {
        // The data folder may be among them, and is its owner's alone.
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let only_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The listed folder itself may be a link.
    let mut within = rustix::fs::open(folder, only_path, Mode::empty())?;
    let (parents, name) = match (below.parent(), below.file_name()) {
        (Some(parents), Some(name)) => (parents, name),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    for part in parents {
        within = openat(&within, part, only_path | OFlags::NOFOLLOW, Mode::empty()).map_err(|error| {
            let is_link = statat(&within, part, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink);
            if is_link { link(Path::new(part)) } else { error.into() }
        })?;
    }
    // Opening a FIFO would wait for its reader.
    let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
    let flags = append | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    match openat(&within, name, flags, Mode::from_raw_mode(0o640)) {
        Ok(file) => {
            let found = fstat(&file)?;
            // Another name may be one of the gateway's own files.
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
                return Err(other_file(Path::new(name)));
            }
            Ok(File::from(file))
        }
        Err(Errno::NXIO) => Err(other_file(Path::new(name))),
        Err(Errno::LOOP) => Err(link(Path::new(name))),
        Err(error) => Err(error.into()),
    }
}

fn other_file(name: &Path) -> io::Error {
    io::Error::other(format!("{} is not a regular file with one name", name.display()))
}

fn link(part: &Path) -> io::Error {
    io::Error::other(format!(
        "{} is a symbolic link; list the folder it leads to in {FOLDERS_SETTING}",
        part.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_with_one_name_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("logs");
        std::fs::create_dir(&there).unwrap();
        std::fs::write(folder.path().join("config.yaml"), "").unwrap();
        std::fs::hard_link(folder.path().join("config.yaml"), there.join("hard")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            there.join("fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for name in ["hard", "fifo"] {
            let error = open(&there, Path::new(name), false).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        assert!(open(&there, Path::new("new"), false).is_ok());
        assert!(open(&there, Path::new("new"), false).is_ok(), "a second time");
    }

    #[test]
    fn no_link_below_the_folder_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (there, other) = (folder.path().join("logs"), folder.path().join("other"));
        std::fs::create_dir_all(there.join("deep")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("a.log"), "").unwrap();
        symlink(other.join("a.log"), there.join("file.log")).unwrap();
        symlink(other.join("new.log"), there.join("dangling.log")).unwrap();
        symlink(&other, there.join("folder")).unwrap();
        // The listed folder itself may be one.
        symlink(&there, folder.path().join("listed")).unwrap();
        let open = |below: &str| super::open(&folder.path().join("listed"), Path::new(below), false);
        assert!(open("a.log").is_ok() && open("deep/a.log").is_ok());
        for (below, part) in
            [("file.log", "file.log"), ("dangling.log", "dangling.log"), ("folder/a.log", "folder")]
        {
            let error = open(below).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{part} is a symbolic link")), "{below}: {error}");
        }
        assert!(!other.join("new.log").exists());
        assert_eq!(open("a.log/b").unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(open("deep").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(open("absent/a").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
