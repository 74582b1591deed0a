//! A declarative file as a store that can only be read.
//!
//! `apisix.yaml` (ending in `#END`) or `apisix.json`. The file is watched, and
//! looked at once a second in case the watch misses something. A file that
//! cannot be read as a whole changes nothing: its last content stays, and the reason
//! is logged. Items that did not change keep their revisions. Nothing here
//! survives a restart but the file itself, and nothing is ever written to it.

mod read;
mod watch;

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use model::declarative::{ABSENT, Declarative, Format};
use model::{Diagnostic, Key, Kind, Severity, parallel};
use notify::RecommendedWatcher;

use super::{Changes, Decide, Parsed, Revision, Row, Store, StoreError, StoreFuture, Stored, Table, Writing};

/// How often the file is looked at when the watch says nothing.
const POLL: Duration = Duration::from_secs(1);

/// How long the file must be left alone before it is read: editors write in steps.
const SETTLE: Duration = Duration::from_millis(10);

/// How long it may be put off for that: others may write to its folder without end.
const SETTLE_WITHIN: Duration = Duration::from_secs(1);

/// The largest file taken.
const MAX_SIZE: u64 = 512 << 20;

/// Keys that a line of the log names; the others are counted.
const MOST_NAMED: usize = 10;

/// Findings that are logged at a time; a whole file may be wrong.
const MOST_LINES: usize = 100;

pub use self::read::{Lookup, ReadText, Sections};
pub use self::watch::Stat;

/// A read-only [`Store`] that is a declarative file.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    table: Arc<Table>,
    signal: Signal,
    /// `None` if the system would not watch, or while dropping.
    watcher: Option<RecommendedWatcher>,
    thread: Option<JoinHandle<()>>,
}

/// The result of a reading: the number of mistakes, or why nothing of the file is used.
pub type Reading = Result<usize, Diagnostic>;

/// Wakes the thread that reads.
#[derive(Debug, Clone)]
struct Signal {
    wake: SyncSender<()>,
    /// Those who asked for a reading and wait for its end.
    waiting: Arc<Mutex<Vec<SyncSender<Reading>>>>,
    /// Read the file even if it looks the same.
    touched: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl File {
    /// Reads the file, with variables from the environment, and watches it. `plugins` are those this
    /// build has.
    ///
    /// Blocks while reading.
    ///
    /// # Errors
    /// [`StoreError::File`] if nothing of it can be used. Mistakes in single items are
    /// reported in the `rejected` of the first [`Reset`](super::Change::Reset).
    pub fn open(path: &Path, plugins: Vec<&'static str>) -> Result<File, StoreError> {
        File::open_with(path, plugins, Box::new(|name| std::env::var(name).ok()))
    }

    /// Like [`open`](File::open) with variables from elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(path: &Path, plugins: Vec<&'static str>, lookup: Lookup) -> Result<File, StoreError> {
        File::open_read(path, Box::new(Sections::of(path, plugins, lookup)))
    }

    /// Like [`open`](File::open) for a file of any format, whose text `read` turns into resources.
    ///
    /// # Errors
    /// As there.
    pub fn open_read(path: &Path, read: Box<dyn ReadText>) -> Result<File, StoreError> {
        let mut reader = Reader::new(path.to_owned(), read);
        let table = reader.table.clone();
        reader.read().map_err(StoreError::File)?;

        let (wake, woken) = sync_channel(1);
        let signal = Signal { wake, waiting: Arc::default(), touched: Arc::default(), stop: Arc::default() };
        let watcher = watch::watch(path, signal.clone());
        if let Err(error) = &watcher {
            tracing::warn!(path = %path.display(), %error, "cannot watch the file; checking it every second instead");
        }
        let run = signal.clone();
        let thread = thread::Builder::new()
            .name("file".to_owned())
            .spawn(move || reader.run(&woken, &run))
            .map_err(|error| StoreError::Unavailable(format!("no thread for the file: {error}")))?;
        Ok(File { path: path.to_owned(), table, signal, watcher: watcher.ok(), thread: Some(thread) })
    }

    /// A store that never changes, of the text of a declarative file. `name` is for messages.
    ///
    /// # Errors
    /// As there.
    pub fn of_text(
        name: &str,
        text: &str,
        format: Format,
        plugins: Vec<&'static str>,
        lookup: Lookup,
    ) -> Result<File, StoreError> {
        let mut sections = Sections { format, plugins, lookup };
        let read = sections.read(name, text).map_err(StoreError::File)?;
        let mut reader = Reader::new(name.into(), Box::new(sections));
        reader.take(read, false);
        let (wake, _) = sync_channel(1);
        let signal = Signal { wake, waiting: Arc::default(), touched: Arc::default(), stop: Arc::default() };
        Ok(File { path: name.into(), table: reader.table, signal, watcher: None, thread: None })
    }

    /// Reads the file again soon, even if it looks the same (on SIGHUP: a variable may have changed).
    /// The receiver gets the result: the number of mistakes, or why nothing of the file is used.
    pub fn reload(&self) -> Receiver<Reading> {
        let (answer, result) = sync_channel(1);
        self.signal.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.signal.touched();
        result
    }

    fn read_only<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::ReadOnly { path: self.path.clone() })
    }
}

impl Store for File {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
        Box::pin(async { Ok(self.table.get(key).map(Row::stored)) })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
        Box::pin(async move { Ok(self.table.list(kind, prefix)) })
    }

    fn write(&self, _: Decide) -> Writing<'_> {
        Box::pin(async { Ok(self.read_only()?) })
    }

    fn revision(&self) -> StoreFuture<'_, Revision> {
        Box::pin(async { Ok(self.table.revision()) })
    }

    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.plugins()) })
    }

    fn stream_plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.stream_plugins()) })
    }

    fn watch(&self) -> Changes {
        self.table.watch()
    }

    fn writable(&self) -> bool {
        false
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.watcher = None;
        self.signal.stop.store(true, Ordering::Relaxed);
        self.signal.touched();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the file's thread ended in a panic");
        }
    }
}

impl Signal {
    fn touched(&self) {
        self.touched.store(true, Ordering::Relaxed);
        self.look();
    }

    fn look(&self) {
        // If it is full, the thread has yet to wake up and will see this, too.
        let _ = self.wake.try_send(());
    }
}

/// The thread that reads the file.
struct Reader {
    path: PathBuf,
    format: Box<dyn ReadText>,
    table: Arc<Table>,
    /// As it was before the last reading.
    stat: Option<Stat>,
    /// A hash of what was read last.
    content: Option<u64>,
    rejected: Vec<Diagnostic>,
    warned: Vec<Diagnostic>,
}

impl Reader {
    fn new(path: PathBuf, format: Box<dyn ReadText>) -> Reader {
        let (table, stat) = (Arc::new(Table::new([], None, 0)), Stat::of(&path));
        Reader { path, format, table, stat, content: None, rejected: Vec::new(), warned: Vec::new() }
    }

    fn run(mut self, woken: &Receiver<()>, signal: &Signal) {
        let Signal { waiting, touched, stop, .. } = signal;
        loop {
            match woken.recv_timeout(POLL) {
                // More may follow at once.
                Ok(()) => {
                    let end = Instant::now() + SETTLE_WITHIN;
                    while woken.recv_timeout(SETTLE).is_ok()
                        && !stop.load(Ordering::Relaxed)
                        && Instant::now() < end
                    {}
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let stat = Stat::of(&self.path);
            let includes_changed = self.format.also().iter().any(|(path, stat)| Stat::of(path) != *stat);
            if touched.swap(false, Ordering::Relaxed) || stat != self.stat || includes_changed {
                self.stat = stat;
                // Only now: later waiters touch the file after that, and are answered here or
                // the next time.
                let waiting = std::mem::take(&mut *waiting.lock().unwrap_or_else(PoisonError::into_inner));
                let read = self.read();
                if let Err(diagnostic) = &read {
                    self.keep(Diagnostic::clone(diagnostic));
                }
                for answer in waiting {
                    // The receiver may be gone.
                    let _ = answer.try_send(match &read {
                        Ok(()) => Ok(self.rejected.len()),
                        Err(diagnostic) => Err(Diagnostic::clone(diagnostic)),
                    });
                }
            }
        }
    }

    /// Takes over what the file says now.
    ///
    /// # Errors
    /// Why nothing of it can be used.
    fn read(&mut self) -> Result<(), Box<Diagnostic>> {
        let name = self.path.display().to_string();
        let text = self.text().map_err(|reason| {
            let mut diagnostic = Diagnostic::new(Severity::Error, &name, reason);
            diagnostic.hint = (!self.path.exists()).then(|| ABSENT.to_owned());
            Box::new(diagnostic)
        })?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let content = hasher.finish();
        // The same text can mean something else when a variable has changed, so it is parsed
        // again; comparing values then finds what is new.
        let read = self.format.read(&name, &text)?;
        let same = self.content == Some(content);
        self.content = Some(content);
        self.take(read, same);
        Ok(())
    }

    fn text(&self) -> Result<String, String> {
        let cannot = |error: std::io::Error| format!("cannot read the file: {error}");
        // A pipe or a device might never end, or never begin: it is opened without waiting for
        // anybody, and not read.
        let flags = rustix::fs::OFlags::NONBLOCK.bits();
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).custom_flags(flags.cast_signed()).open(&self.path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err("cannot read the file: it is not a regular file".to_owned());
        }
        let too_large = || format!("the file is larger than {} MiB", MAX_SIZE >> 20);
        if metadata.len() > MAX_SIZE {
            return Err(too_large());
        }
        // It may grow meanwhile.
        let mut bytes = Vec::new();
        file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(too_large());
        }
        String::from_utf8(bytes).map_err(|_| "the file is not UTF-8".to_owned())
    }

    fn take(&mut self, read: Declarative, same_text: bool) {
        let revision = self.table.revision() + 1;
        let mut there: HashMap<Key, Row> = HashMap::new();
        for kind in Kind::ALL {
            let (rows, _) = self.table.list(kind, "");
            there.extend(rows.into_iter().map(|row| (row.key.clone(), row)));
        }
        let mut changes = Changed::default();
        let mut items: Vec<Row> = Vec::with_capacity(read.items.len());
        let mut parsed = Vec::with_capacity(read.items.len());
        let texts = parallel::map(read.items, |item| {
            (item.key, Arc::<str>::from(item.value.to_string()), item.resource)
        });
        for (key, json, resource) in texts {
            items.push(match there.remove(&key) {
                Some(old) if *old.json == *json => old,
                old => {
                    parsed.push((json.clone(), resource));
                    let list = if old.is_some() { &mut changes.changed } else { &mut changes.added };
                    list.push(key.clone());
                    let created = old.map_or(revision, |old| old.created);
                    Row { key, json, created, modified: revision, expires: None }
                }
            });
        }
        // An invalid item keeps its last valid version.
        items.extend(read.refused.iter().filter_map(|key| there.remove(key)));
        items.extend(there.extract_if(|key, _| read.unread.contains(&key.kind)).map(|(_, row)| row));
        changes.removed = there.into_keys().collect();
        changes.removed.sort();
        let listed = (self.table.plugins(), self.table.stream_plugins());
        changes.plugins = listed.0 != read.plugins || listed.1 != read.stream_plugins;
        let news = !changes.is_empty() || read.diagnostics != self.rejected;
        if !news && read.warnings == self.warned && same_text {
            return;
        }
        log_reading(&self.path, revision, &changes, items.len(), read.diagnostics.len());
        let mut lines = read.diagnostics.iter().chain(&read.warnings);
        for diagnostic in lines.by_ref().take(MOST_LINES) {
            match diagnostic.severity {
                Severity::Error => tracing::error!("{}", diagnostic.one_line()),
                Severity::Warning => tracing::warn!("{}", diagnostic.one_line()),
                Severity::Note => tracing::info!("{}", diagnostic.one_line()),
            }
        }
        match lines.count() {
            0 => {}
            more => tracing::error!("{more} more findings; `sluice check` lists them all"),
        }
        self.warned = read.warnings;
        if news || revision == 1 {
            self.rejected.clone_from(&read.diagnostics);
            let parsed = Parsed::new(parsed);
            let (listed, of_streams) = (read.plugins, read.stream_plugins);
            self.table.reset_parsed(items, listed, of_streams, revision, read.diagnostics, parsed);
        }
    }

    /// Keeps what there is, and tells why.
    fn keep(&mut self, diagnostic: Diagnostic) {
        if self.rejected.first() == Some(&diagnostic) && self.rejected.len() == 1 {
            return;
        }
        tracing::error!(
            "{}; none of it is used, and its previous content stays in use",
            diagnostic.one_line()
        );
        self.rejected = vec![diagnostic];
        // It may come back as it was.
        self.content = None;
        let items = Kind::ALL.into_iter().flat_map(|kind| self.table.list(kind, "").0).collect();
        let revision = self.table.revision() + 1;
        let (listed, of_streams) = (self.table.plugins(), self.table.stream_plugins());
        let rejected = self.rejected.clone();
        self.table.reset_parsed(items, listed, of_streams, revision, rejected, Parsed::default());
    }
}

/// The changes of a reading.
#[derive(Debug, Default)]
struct Changed {
    added: Vec<Key>,
    changed: Vec<Key>,
    removed: Vec<Key>,
    /// A list of plugins.
    plugins: bool,
}

impl Changed {
    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty() && !self.plugins
    }
}

/// One line for a reading: what there is now, and what is different.
fn log_reading(path: &Path, revision: Revision, changes: &Changed, used: usize, wrong: usize) {
    let plural = if used == 1 { "" } else { "s" };
    let mut line = format!("{}, revision {revision}: {used} resource{plural}", path.display());
    if wrong > 0 {
        let plural = if wrong == 1 { "" } else { "s" };
        line.push_str(&format!(", {wrong} mistake{plural}"));
    }
    if revision > 1 {
        let lists = [("added", &changes.added), ("changed", &changes.changed), ("removed", &changes.removed)];
        for (word, keys) in lists.into_iter().filter(|(_, keys)| !keys.is_empty()) {
            let named: Vec<String> = keys.iter().take(MOST_NAMED).map(Key::to_string).collect();
            line.push_str(&format!("; {word} {}", named.join(", ")));
            if keys.len() > MOST_NAMED {
                line.push_str(&format!(" and {} more", keys.len() - MOST_NAMED));
            }
        }
        if changes.plugins {
            line.push_str("; the plugin list changed");
        }
        if changes.is_empty() {
            line.push_str("; nothing changed");
        }
    }
    tracing::info!("{line}");
}

#[cfg(test)]
mod tests;
