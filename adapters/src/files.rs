//! Opens the files that plugins serve. Nothing outside of the served folder is reached: the kernel resolves the path
//! beneath it (`openat2`); where that call is not available, no link below the folder is followed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use sdk::files::{OpenError, OpenFile, OpenFiles, Opened, PIECE, ReadAt, Root, is_within};

/// Opens files, up to a number of long ones at a time.
pub struct Opener {
    free: Arc<AtomicUsize>,
    /// Closes files on a thread of its own, started with the first file: closing may block on some file systems, and
    /// a worker drops the file of a client that disconnects.
    closer: OnceLock<Sender<Closing>>,
    /// For tests of the way without `openat2`.
    steps: bool,
}

/// How often a path is resolved again while folders are renamed.
const ATTEMPTS: u32 = 8;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Opener {
    /// At most this many files longer than [`PIECE`] are open at a time.
    pub fn new(max_open: usize) -> Opener {
        Opener { free: Arc::new(AtomicUsize::new(max_open)), closer: OnceLock::new(), steps: false }
    }

    fn closer(&self) -> &Sender<Closing> {
        self.closer.get_or_init(|| {
            let (closer, closing) = channel::<Closing>();
            let close = move || closing.into_iter().for_each(drop);
            // Without the thread, sending fails, and the file is closed where it is dropped.
            let _ = std::thread::Builder::new().name("files-close".to_owned()).spawn(close);
            closer
        })
    }

    /// Opens a path beneath a folder.
    fn beneath(&self, folder: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = flags | OFlags::CLOEXEC;
        if !self.steps {
            for _ in 0..ATTEMPTS {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                match openat2(
                    folder,
                    Path::new(std::ffi::OsStr::from_bytes(path)),
                    flags,
                    Mode::empty(),
                    resolve,
                ) {
                    Err(Errno::AGAIN) => {}
                    // An old kernel, or a container that does not permit the call.
                    Err(Errno::NOSYS | Errno::PERM) => break,
                    found => return found,
                }
            }
        }
        let mut within = openat(folder, ".", FOLDER, Mode::empty())?;
        let mut parts = path.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            if part == b".." {
                return Err(Errno::XDEV);
            }
            let is_last = parts.peek().is_none();
            let flags = if is_last { flags } else { FOLDER };
            let part = Path::new(std::ffi::OsStr::from_bytes(part));
            let found = openat(&within, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
            if is_last {
                let is_link = kind(&fstat(&found)?) == FileType::Symlink;
                return if is_link { Err(Errno::LOOP) } else { Ok(found) };
            }
            within = found;
        }
        Err(Errno::INVAL)
    }
}

impl OpenFiles for Opener {
    fn open(&self, root: &Root, path: &[u8]) -> Result<Opened, OpenError> {
        let listed = openat(CWD, root.listed.as_str(), FOLDER, Mode::empty()).map_err(reason)?;
        let folder = match root.below.as_str() {
            "" => listed,
            below => self.beneath(&listed, below.as_bytes(), FOLDER).map_err(reason)?,
        };
        // First only its path: opening a device may have effects, and opening a FIFO may wait.
        let found = self.beneath(&folder, path, OFlags::PATH).map_err(reason)?;
        if !root.own.is_empty() && is_own(&found, &root.own) {
            return Err(OpenError::Outside);
        }
        match kind(&fstat(&found).map_err(reason)?) {
            FileType::Directory => return Ok(Opened::Folder),
            FileType::RegularFile => {}
            _ => return Err(OpenError::Missing),
        }
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.beneath(&folder, path, read).map_err(reason)?;
        let about = fstat(&file).map_err(reason)?;
        // Another file may have taken the name meanwhile.
        if kind(&about) != FileType::RegularFile || !root.own.is_empty() && is_own(&file, &root.own) {
            return Err(OpenError::Missing);
        }
        let length = u64::try_from(about.st_size).unwrap_or(0);
        // Slow clients keep long files open. Short ones are open for a moment, on a few threads.
        let permit = match length > PIECE as u64 {
            true => Some(Permit::take(&self.free).ok_or(OpenError::TooMany)?),
            false => None,
        };
        let closing = Closing { file: File::from(file), _permit: permit };
        Ok(Opened::File(OpenFile {
            length,
            modified: (
                u64::try_from(about.st_mtime).unwrap_or(0),
                u32::try_from(about.st_mtime_nsec).unwrap_or(0),
            ),
            content: Box::new(Content { closing: Some(closing), closer: self.closer().clone() }),
        }))
    }
}

/// The content of an open file.
struct Content {
    closing: Option<Closing>,
    closer: Sender<Closing>,
}

impl ReadAt for Content {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(Closing { file, .. }) = &self.closing else { return Ok(0) };
        loop {
            match file.read_at(out, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if let Some(closing) = self.closing.take() {
            let _ = self.closer.send(closing);
        }
    }
}

/// A file that counts as open until it is closed.
struct Closing {
    file: File,
    _permit: Option<Permit>,
}

struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(free: &Arc<AtomicUsize>) -> Option<Permit> {
        free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1)).ok()?;
        Some(Permit(free.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn kind(about: &Stat) -> FileType {
    FileType::from_raw_mode(about.st_mode)
}

/// Whether an open file is one of the gateway's own; also if its path cannot be found out.
fn is_own(file: &impl AsFd, own: &[String]) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    match readlinkat(CWD, link, Vec::new()) {
        Ok(path) => path.to_str().map_or(true, |path| is_within(path, own)),
        Err(_) => true,
    }
}

fn reason(error: Errno) -> OpenError {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::NXIO | Errno::INVAL => OpenError::Missing,
        Errno::ACCESS | Errno::PERM => OpenError::Denied,
        Errno::XDEV | Errno::LOOP => OpenError::Outside,
        Errno::MFILE | Errno::NFILE => OpenError::TooMany,
        _ => OpenError::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn root(listed: &Path, below: &str, own: &[&Path]) -> Root {
        let text = |path: &Path| std::fs::canonicalize(path).unwrap().to_str().unwrap().to_owned();
        let own = own.iter().map(|path| text(path)).collect();
        Root { listed: listed.to_str().unwrap().to_owned(), below: below.to_owned(), own }
    }

    fn open(opener: &Opener, root: &Root, path: &str) -> Result<String, OpenError> {
        match opener.open(root, path.as_bytes())? {
            Opened::Folder => Ok("folder".to_owned()),
            Opened::File(file) => {
                let mut text = vec![0; usize::try_from(file.length).unwrap() + 1];
                let read = file.content.read_at(&mut text, 0).unwrap();
                assert_eq!(read as u64, file.length);
                Ok(String::from_utf8(text[..read].to_vec()).unwrap())
            }
        }
    }

    #[test]
    fn nothing_outside_of_the_folder_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let www = folder.path().join("www");
        std::fs::create_dir_all(www.join("site/deep")).unwrap();
        std::fs::write(folder.path().join("secret"), "secret").unwrap();
        std::fs::write(www.join("outer"), "outer").unwrap();
        std::fs::write(www.join("site/a"), "a").unwrap();
        std::fs::write(www.join("site/deep/b"), "b").unwrap();
        symlink("deep/b", www.join("site/within")).unwrap();
        symlink("../outer", www.join("site/outside")).unwrap();
        symlink("..", www.join("site/up")).unwrap();
        symlink(folder.path().join("secret"), www.join("site/absolute")).unwrap();
        symlink("/proc/self/cwd", www.join("site/magic")).unwrap();
        symlink("loop", www.join("site/loop")).unwrap();
        symlink(&www, folder.path().join("listed")).unwrap();
        for steps in [false, true] {
            let opener = Opener { steps, ..Opener::new(10) };
            let site = root(&folder.path().join("listed"), "site", &[]);
            let open = |path: &str| open(&opener, &site, path);
            assert_eq!(open("a").as_deref(), Ok("a"));
            assert_eq!(open("deep/b").as_deref(), Ok("b"));
            assert_eq!((open("").as_deref(), open("deep").as_deref()), (Ok("folder"), Ok("folder")));
            let within = if steps { Err(OpenError::Outside) } else { Ok("b".to_owned()) };
            assert_eq!(open("within"), within);
            for path in ["outside", "absolute", "loop"] {
                assert_eq!(open(path), Err(OpenError::Outside), "{path}");
            }
            for path in ["up/outer", "magic/x", "../outer", "deep/../../outer"] {
                assert!(open(path).is_err(), "{path}");
            }
            for path in ["absent", "a/b", "absent/b", &"x".repeat(300)] {
                assert_eq!(open(path), Err(OpenError::Missing), "{path}");
            }
        }
    }

    #[test]
    fn special_and_own_files_are_refused_and_do_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path();
        std::fs::create_dir(there.join("data")).unwrap();
        std::fs::write(there.join("data/store.key"), "key").unwrap();
        std::fs::hard_link(there.join("data/store.key"), there.join("another")).unwrap();
        symlink("data/store.key", there.join("alias")).unwrap();
        std::fs::write(there.join("config.yaml"), "key").unwrap();
        std::fs::write(there.join("a"), "a").unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, there.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(there.join("socket")).unwrap();
        let opener = Opener::new(10);
        let root = root(there, "", &[&there.join("data"), &there.join("config.yaml")]);
        let open = |path: &str| open(&opener, &root, path);
        assert_eq!((open("fifo"), open("socket")), (Err(OpenError::Missing), Err(OpenError::Missing)));
        for path in ["data/store.key", "data", "alias", "config.yaml"] {
            assert_eq!(open(path), Err(OpenError::Outside), "{path}");
        }
        assert_eq!(open("a").as_deref(), Ok("a"));
        std::fs::set_permissions(there.join("a"), std::fs::Permissions::from_mode(0o000)).unwrap();
        // The superuser may read it.
        assert!(matches!(open("a").as_deref(), Err(OpenError::Denied) | Ok("a")));
    }

    #[test]
    fn a_number_of_files_is_open_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), vec![0; PIECE + 1]).unwrap();
        std::fs::write(folder.path().join("short"), vec![0; PIECE]).unwrap();
        let opener = Opener::new(2);
        let root = root(folder.path(), "", &[]);
        let one = opener.open(&root, b"a");
        let two = opener.open(&root, b"a");
        assert!(one.is_ok() && two.is_ok());
        assert_eq!(opener.open(&root, b"a").map(drop), Err(OpenError::TooMany));
        assert!(opener.open(&root, b"short").is_ok());
        drop(one);
        // The other thread closes it.
        while opener.open(&root, b"a").is_err() {
            std::thread::yield_now();
        }
    }
}
