//! A zone's files, and the threads that read and write them.
//!
//! A few threads read, each read with a deadline; one writes and removes; and one indexes the files
//! of an earlier run and then ends. A file is written under a temporary name and renamed, so that
//! its name always stands for a complete file; two gateways may share a folder for a while, as they
//! do while one takes over from the other.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "runs on the cache's own threads, never on a worker"
)]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_channel::oneshot;
use model::Invalid;
use sha2::{Digest, Sha256};

use super::file::{self, Head, PRELUDE, Prelude};
use super::index::Index;
use super::reader::Readers;
use super::{Content, DiskSettings, Entry, EntryHead, OVERHEAD, Terms, TransferShare};

/// Files occupy whole blocks.
const BLOCK: u64 = 4096;

/// The age at which a temporary file counts as abandoned by its writer.
const ABANDONED: Duration = Duration::from_secs(600);

/// A handle to a zone's threads. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Files {
    folder: Arc<Folder>,
    readers: Readers,
    writes: Sender<WriteJob>,
}

pub(super) enum WriteJob {
    Store {
        entry: Arc<Entry>,
        vary: Vec<Box<[u8]>>,
        held: TransferShare,
    },
    Remove(Vec<Arc<Entry>>),
    /// Dropped when all previous jobs are done.
    #[cfg(any(test, feature = "testing"))]
    Flush(Sender<()>),
}

/// Shared by the threads.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    levels: Vec<u8>,
    /// Bytes of disk per byte of memory: an entry counts by whichever it uses more of.
    ratio: u64,
    pub(super) index: Arc<Index>,
}

impl Files {
    pub(super) fn open(
        settings: &DiskSettings,
        memory_size: u64,
        index: Arc<Index>,
    ) -> Result<Files, Invalid> {
        let unusable = |error: io::Error| {
            Invalid::new(format!("the cache folder {} cannot be used: {error}", settings.path.display()))
                .expected("a folder of the gateway's own user that it may write to")
                .hint("see apisix.proxy_cache.zones[].disk_path in config.yaml")
        };
        prepare(&settings.path).map_err(unusable)?;
        let folder = Arc::new(Folder {
            path: settings.path.clone(),
            levels: settings.levels.clone(),
            ratio: settings.size.div_ceil(memory_size.max(1)),
            index,
        });
        let (writes, to_write) = channel();
        let (writer, scanner) = (folder.clone(), folder.clone());
        let readers =
            Readers::start(folder.clone(), writes.clone(), settings.read_timeout).map_err(unusable)?;
        spawn("cache-write", move || writer.write_all(&to_write)).map_err(unusable)?;
        spawn("cache-scan", move || scanner.scan(&scanner.path)).map_err(unusable)?;
        Ok(Files { folder, readers, writes })
    }

    // Without the thread (only at the end of the process) every look-up is a miss.

    pub(super) fn store(&self, entry: Arc<Entry>, vary: Vec<Box<[u8]>>, held: TransferShare) {
        let _ = self.writes.send(WriteJob::Store { entry, vary, held });
    }

    pub(super) fn remove(&self, entries: Vec<Arc<Entry>>) {
        if !entries.is_empty() {
            let _ = self.writes.send(WriteJob::Remove(entries));
        }
    }

    /// The weight of an entry of this size against the zone's limit.
    pub(super) fn weigh(&self, key: &[u8], variant: &[u8], size: u64) -> u64 {
        self.folder.weigh(key, variant, size)
    }

    pub(super) fn load(
        &self,
        entry: Arc<Entry>,
        held: TransferShare,
    ) -> Option<oneshot::Receiver<Option<Content>>> {
        self.readers.load(entry, held)
    }

    /// Reads that missed their deadline.
    pub(super) fn late(&self) -> u64 {
        self.readers.late()
    }

    /// The number of reader threads, and of stuck ones.
    #[cfg(test)]
    pub(super) fn threads(&self) -> (usize, usize) {
        self.readers.threads()
    }

    /// Waits until all previous stores and removals have reached the disk.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn flush(&self) {
        let (done, all_done) = channel();
        let _ = self.writes.send(WriteJob::Flush(done));
        let _ = all_done.recv();
    }
}

/// Creates the folder and checks that it may be used. A folder that another user can write to would
/// let that user forge responses for every site behind the gateway.
fn prepare(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let probe = path.join(format!(".probe.{}", std::process::id()));
    let file = create(&probe)?;
    let (own, owner) = (file.metadata()?.uid(), fs::metadata(path)?.uid());
    fs::remove_file(&probe)?;
    if !is_trusted(owner, own) {
        return Err(io::Error::other(format!("it belongs to user {owner}, the gateway runs as {own}")));
    }
    Ok(())
}

/// Whether the gateway, which runs as `own`, may use a folder of this owner.
fn is_trusted(owner: u32, own: u32) -> bool {
    owner == own || owner == 0
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

impl Folder {
    /// Reads and checks an entry's file. Takes as long as the disk needs.
    pub(super) fn read(&self, entry: &Entry, held: TransferShare) -> Option<Content> {
        let mut file = File::open(self.path_of(&entry.key, &entry.variant)).ok()?;
        let len = file.metadata().ok()?.len();
        if len > held.bytes() {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(len).ok()?);
        (&mut file).take(len).read_to_end(&mut bytes).ok()?;
        let (head, content) = file::decode_whole(Bytes::from_owner(Loaded { bytes, _held: held }))?;
        (head.key == entry.key && head.variant == entry.variant).then_some(content)
    }

    fn write_all(&self, jobs: &Receiver<WriteJob>) {
        for job in jobs {
            match job {
                WriteJob::Store { entry, vary, held } => {
                    self.write(&entry, vary);
                    drop(held);
                }
                WriteJob::Remove(entries) => entries.iter().for_each(|entry| self.delete(entry)),
                #[cfg(any(test, feature = "testing"))]
                WriteJob::Flush(done) => drop(done),
            }
        }
    }

    /// Writes the file, then releases the content in memory. A full or broken disk only costs hits.
    fn write(&self, entry: &Arc<Entry>, vary: Vec<Box<[u8]>>) {
        // Purged, replaced or evicted meanwhile.
        let Some(content) = entry.content().filter(|_| self.index.holds(entry)) else { return };
        let head = Head {
            key: entry.key.clone(),
            vary,
            variant: entry.variant.clone(),
            stored_ms: entry.stored_ms,
            expires_ms: entry.expires_ms,
            age: entry.age,
            status: content.status,
            fields: content.fields.clone(),
        };
        let bytes = file::encode(&head, &content.body);
        let path = self.path_of(&entry.key, &entry.variant);
        // A single thread writes, so this name is unique within the process.
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let written = (|| {
            let mut file = match create(&temporary) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let parent = path.parent().unwrap_or(&self.path);
                    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                    create(&temporary)?
                }
                file => file?,
            };
            file.write_all(&bytes)?;
            file.write_all(&content.body)?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
            self.index.remove(entry);
            return self.delete(entry);
        }
        let filed = self.entry_of(head, bytes.len() as u64 + content.body.len() as u64);
        match self.index.replace(entry, filed) {
            Some(removed) => removed.iter().for_each(|gone| self.delete(gone)),
            None => self.delete(entry),
        }
    }

    fn entry_of(&self, head: Head, len: u64) -> Entry {
        let Head { key, variant, stored_ms, expires_ms, age, .. } = head;
        let weight = self.weigh(&key, &variant, len);
        Entry::new(EntryHead { key, variant, stored_ms, expires_ms, age }, Terms::default(), None, weight)
    }

    fn weigh(&self, key: &[u8], variant: &[u8], len: u64) -> u64 {
        let memory = (key.len() * 2 + variant.len()) as u64 + OVERHEAD;
        len.next_multiple_of(BLOCK).max(memory.saturating_mul(self.ratio))
    }

    fn delete(&self, entry: &Entry) {
        // Stored again: the file belongs to the new entry, or soon will.
        if !self.index.has(&entry.key, &entry.variant) {
            let _ = fs::remove_file(self.path_of(&entry.key, &entry.variant));
        }
    }

    /// Indexes the files of an earlier run; removes damaged, stale and temporary ones. Does not
    /// follow links.
    fn scan(&self, folder: &Path) {
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = item.path();
            match item.file_type() {
                Ok(kind) if kind.is_dir() => self.scan(&path),
                Ok(kind) if kind.is_file() => self.take_over(&path),
                _ => {}
            }
        }
    }

    fn take_over(&self, path: &Path) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
        if name.ends_with(".tmp") {
            let modified = fs::metadata(path).and_then(|meta| meta.modified());
            if modified.ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(path);
            }
            return;
        }
        // Files that the cache did not create stay.
        if name.len() != NAME_LEN || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        match read_head(path) {
            Ok(Some((head, len)))
                if u128::from(head.expires_ms) > now && self.path_of(&head.key, &head.variant) == path =>
            {
                // The epoch at the start: entries purged since then do not come back.
                let vary = head.vary.clone();
                let entry = Arc::new(self.entry_of(head, len));
                self.index.insert(entry, vary, 0, false).iter().for_each(|gone| self.delete(gone));
            }
            Ok(_) => drop(fs::remove_file(path)),
            Err(_) => {}
        }
    }

    /// The path as in nginx: folder levels from the end of the file name.
    fn path_of(&self, key: &[u8], variant: &[u8]) -> PathBuf {
        let digest = Sha256::new()
            .chain_update((key.len() as u64).to_le_bytes())
            .chain_update(key)
            .chain_update(variant);
        let mut name = String::with_capacity(NAME_LEN);
        for byte in &digest.finalize()[..NAME_LEN / 2] {
            for nibble in [byte >> 4, byte & 15] {
                name.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
            }
        }
        let mut path = self.path.clone();
        let mut end = NAME_LEN;
        for level in &self.levels {
            let start = end.saturating_sub(usize::from(*level));
            path.push(&name[start..end]);
            end = start;
        }
        path.push(name);
        path
    }
}

/// Hex digits of a file name: 128 bits. The key in the file decides, not the name.
const NAME_LEN: usize = 32;

/// Reads a file's head and length; `None` if it is damaged.
fn read_head(path: &Path) -> io::Result<Option<(Head, u64)>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut bytes = [0; PRELUDE];
    if len < PRELUDE as u64 {
        return Ok(None);
    }
    file.read_exact(&mut bytes)?;
    let Some(prelude) = Prelude::read(&bytes).filter(|prelude| prelude.file_len() == len) else {
        return Ok(None);
    };
    let mut head = vec![0; prelude.head_len as usize];
    file.read_exact(&mut head)?;
    Ok(prelude.head(&head).map(|head| (head, len)))
}

/// A file in memory, counted while any part of it is in use.
struct Loaded {
    bytes: Vec<u8>,
    _held: TransferShare,
}

impl AsRef<[u8]> for Loaded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Fields;

    fn folder(path: &Path) -> Folder {
        let index = Arc::new(Index::new(1 << 20));
        Folder { path: path.to_owned(), levels: vec![2], ratio: 1, index }
    }

    /// Writes an entry's file to its path; returns the path and the entry.
    fn filed(folder: &Folder, key: &[u8], variant: u8, expires_ms: u64, body: &[u8]) -> (PathBuf, Entry) {
        let head = Head {
            key: key.into(),
            vary: Vec::new(),
            variant: [variant].into(),
            stored_ms: 1,
            expires_ms,
            age: 0,
            status: 200,
            fields: Fields::new(),
        };
        let bytes = [&file::encode(&head, body)[..], body].concat();
        let path = folder.path_of(&head.key, &head.variant);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &bytes).unwrap();
        (path, folder.entry_of(head, bytes.len() as u64))
    }

    fn held(bytes: u64) -> TransferShare {
        let mut held = TransferShare { in_flight: Arc::default(), bytes: 0, limit: u64::MAX };
        assert!(held.grow(bytes));
        held
    }

    #[test]
    fn a_folder_belongs_to_the_gateway_or_root() {
        for (owner, own, trusted) in
            [(1000, 1000, true), (0, 1000, true), (0, 0, true), (1001, 1000, false), (1000, 0, false)]
        {
            assert_eq!(is_trusted(owner, own), trusted, "{owner} {own}");
        }
    }

    #[test]
    fn files_of_an_earlier_run_are_indexed_or_removed() {
        let (temporary, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = folder(temporary.path());
        let (fresh, _) = filed(&folder, b"fresh", 0, u64::MAX, b"x");
        let (stale, _) = filed(&folder, b"stale", 0, 1, b"x");
        let (misplaced, _) = filed(&folder, b"misplaced", 0, u64::MAX, b"x");
        let named = |name: &str| temporary.path().join(name);
        let elsewhere = named("0123456789abcdef0123456789abcdef");
        fs::rename(&misplaced, &elsewhere).unwrap();
        let (empty, short) = (named(&"a".repeat(32)), named(&"b".repeat(32)));
        fs::write(&empty, b"").unwrap();
        fs::write(&short, b"SLCACHE1").unwrap();
        let (old, new) = (named("c.1.tmp"), named("d.1.tmp"));
        for path in [&old, &new] {
            fs::write(path, b"half").unwrap();
        }
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(&old).unwrap().set_modified(hour_ago).unwrap();
        // Files that the cache did not create.
        let (other, digits) = (named("a-name-of-thirty-two-characters_"), named(&"1".repeat(31)));
        for path in [&other, &digits] {
            fs::write(path, b"kept").unwrap();
        }
        let link = named(&"e".repeat(32));
        std::os::unix::fs::symlink(outside.path().join("anything"), &link).unwrap();
        fs::write(outside.path().join("anything"), b"kept").unwrap();

        folder.scan(temporary.path());
        for gone in [stale, elsewhere, empty, short, old] {
            assert!(!gone.exists(), "{gone:?}");
        }
        for kept in [fresh, new, other, digits, link] {
            assert!(kept.exists(), "{kept:?}");
        }
        assert!(folder.index.has(b"fresh", &[0]));
        assert!(!folder.index.has(b"stale", &[0]) && !folder.index.has(b"misplaced", &[0]));
    }

    #[test]
    fn a_file_is_verified_against_its_key() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = folder(temporary.path());
        let body = |path: &Path, entry: &Entry| {
            assert!(path.exists());
            folder.read(entry, held(entry.weight)).map(|content| content.body)
        };
        let (path, entry) = filed(&folder, b"key", 0, u64::MAX, b"one");
        assert_eq!(body(&path, &entry).unwrap(), "one");
        for (key, variant) in [(&b"key"[..], 1), (b"other", 0)] {
            let (there, entry) = filed(&folder, key, variant, u64::MAX, b"two");
            assert_eq!(body(&there, &entry).unwrap(), "two");
            fs::copy(&path, &there).unwrap();
            assert!(body(&there, &entry).is_none(), "the response to another request");
        }
        // A file that fills its blocks, and one that is longer than the memory reserved for it.
        let shorter = fs::metadata(&path).unwrap().len() as usize - 3;
        let (path, entry) = filed(&folder, b"key", 0, u64::MAX, &vec![7; BLOCK as usize - shorter]);
        assert_eq!((fs::metadata(&path).unwrap().len(), entry.weight), (BLOCK, BLOCK));
        assert!(body(&path, &entry).is_some());
        assert!(folder.read(&entry, held(BLOCK - 1)).is_none());
    }
}
