use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redb::StorageBackend;
use redb::backends::FileBackend;
use serde_json::json;

use super::*;
use crate::store::{Expect, Step};

mod formats;

fn route(id: &str) -> Key {
    Key::new(Kind::Route, id)
}

async fn put(store: &Embedded, id: &str) -> Result<Stored, StoreError> {
    store.put(route(id), json!({ "id": id, "uri": "/" }), Expect::Any, None).await
}

#[tokio::test]
async fn everything_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let store = Embedded::open(&path).unwrap();
    let first = put(&store, "1").await.unwrap();
    let again = put(&store, "1").await.unwrap();
    put(&store, "2").await.unwrap();
    store.delete(route("2"), Expect::Any).await.unwrap();
    store.put_plugins(vec!["cors".to_owned()]).await.unwrap();
    drop(store);

    let store = Embedded::open(&path).unwrap();
    let (items, revision) = store.list(Kind::Route, "").await.unwrap();
    assert_eq!(items, std::slice::from_ref(&again));
    assert_eq!((again.created, again.modified, revision), (first.created, 2, 5));
    let Some(Change::Reset { plugins, .. }) = store.watch().next().await else { panic!() };
    assert_eq!(plugins, Some(vec!["cors".to_owned()]));
    assert_eq!(put(&store, "3").await.unwrap().modified, 6);
}

#[cfg(unix)]
#[test]
fn the_folder_and_file_are_the_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let _store = Embedded::open(&path).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("store.redb"))), (0o700, 0o600));
}

#[tokio::test]
async fn values_are_not_readable_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    let value = json!({"plugins": {"key-auth": {"key": "canary-of-this-test"}}});
    for id in 0..20 {
        store.put(route(&id.to_string()), value.clone(), Expect::Any, None).await.unwrap();
    }
    note(&store, "canary-in-a-note").await;
    drop(store);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"canary"));
    }
    let key = folder.path().join("store.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let error = Embedded::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("store.key is missing"), "{error}");
    std::fs::write(&key, "0".repeat(64)).unwrap();
    let error = Embedded::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("not sealed with the key"), "{error}");
    std::fs::write(&key, kept).unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    assert_eq!(*store.get(&route("7")).await.unwrap().unwrap().value, value);
}

async fn note(store: &Embedded, text: &'static str) {
    let step = Step::Note { name: "a", text: text.to_owned() };
    store.write(Box::new(move |_| Ok(vec![step.clone()]))).await.unwrap();
}

#[tokio::test]
async fn notes_are_sealed_and_those_from_before_are_read() {
    const META: redb::TableDefinition<&str, &str> = redb::TableDefinition::new("meta");
    let folder = tempfile::tempdir().unwrap();
    put(&Embedded::open(folder.path()).unwrap(), "1").await.unwrap();
    let open = || redb::Database::open(folder.path().join("store.redb")).unwrap();
    let database = open();
    let transaction = database.begin_write().unwrap();
    {
        let mut meta = transaction.open_table(META).unwrap();
        meta.insert("note a", "one").unwrap();
        meta.insert("note b", "two").unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    for text in ["one", "three"] {
        let store = Embedded::open(folder.path()).unwrap();
        assert_eq!(store.note("a").await.unwrap().as_deref(), Some(text));
        assert_eq!(store.note("b").await.unwrap().as_deref(), Some("two"));
        note(&store, "three").await;
    }
    let database = open();
    let transaction = redb::ReadableDatabase::begin_read(&database).unwrap();
    let meta = transaction.open_table(META).unwrap();
    let names = redb::ReadableTable::iter(&meta).unwrap().map(|entry| entry.unwrap().0.value().to_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["commits", "format", "revision", "written_by"]);
}

#[test]
fn a_store_in_use_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let _store = Embedded::open(folder.path()).unwrap();
    let error = Embedded::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("store.redb is in use by another process"), "{error}");
}

#[test]
fn a_damaged_file_is_reported() {
    for damage in [b"this is no database, but a text of some length".repeat(200), vec![0; 4096]] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("store.redb"), damage).unwrap();
        let error = Embedded::open(folder.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn flipped_and_cut_files_are_reported_or_read_right() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    for id in 0..50 {
        put(&store, &id.to_string()).await.unwrap();
    }
    let (whole, _) = store.list(Kind::Route, "").await.unwrap();
    drop(store);
    let file = folder.path().join("store.redb");
    let sound = std::fs::read(&file).unwrap();
    let mut damaged = 0;
    for step in 0..60 {
        let mut bytes = sound.clone();
        let at = step * sound.len() / 60;
        match step % 2 {
            0 => bytes.truncate(at.max(1)),
            _ => bytes[at..(at + 600).min(sound.len())].fill(0xa5),
        }
        std::fs::write(&file, bytes).unwrap();
        match Embedded::open(folder.path()) {
            Ok(store) => assert_eq!(store.list(Kind::Route, "").await.unwrap().0, whole, "step {step}"),
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged { .. }), "step {step}: {error:?}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 10, "only {damaged}");
}

/// However little is left of it, it is never taken for a new one.
#[tokio::test]
async fn a_cut_file_is_never_taken_for_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.redb");
    let store = Embedded::open(folder.path()).unwrap();
    put(&store, "1").await.unwrap();
    drop(store);
    let sound = std::fs::read(&file).unwrap();
    let cuts =
        [0, 1, 8, 9, 63, 64, 65, 128, 256, 319, 320, 321, 512, 4095, 4096, 4097, 8192, sound.len() - 1];
    for cut in cuts {
        std::fs::write(&file, &sound[..cut]).unwrap();
        let error = Embedded::open(folder.path()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{cut}: {error:?}");
        assert!(error.to_string().contains("move it away to start with an empty"), "{cut}: {error}");
        assert_eq!(std::fs::metadata(&file).unwrap().len() as usize, cut, "it was changed");
    }
    std::fs::write(&file, &sound).unwrap();
    assert!(Embedded::open(folder.path()).unwrap().get(&route("1")).await.unwrap().is_some());
}

/// A start that was interrupted leaves a partial file behind.
#[tokio::test]
async fn a_start_that_was_cut_off_is_begun_again() {
    for left in [&b""[..], b"begun"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("store.redb.new"), left).unwrap();
        let opened = Embedded::open(folder.path());
        let store = opened.unwrap();
        put(&store, "1").await.unwrap();
        drop(store);
        assert!(Embedded::open(folder.path()).unwrap().get(&route("1")).await.unwrap().is_some());
        assert!(!folder.path().join("store.redb.new").exists());
    }
}

#[test]
fn a_store_that_another_process_is_making_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.redb.new");
    let other = std::fs::File::create_new(&path).unwrap();
    other.try_lock().unwrap();
    std::fs::write(&path, "half made").unwrap();
    assert!(matches!(Embedded::open(folder.path()), Err(StoreError::Locked { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"half made");
    drop(other);
    assert!(Embedded::open(folder.path()).is_ok());
}

#[tokio::test]
async fn a_store_that_is_deleted_while_it_is_open_takes_no_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (data, away) = (folder.path().join("data"), folder.path().join("away"));
    let store = Embedded::open(&data).unwrap();
    put(&store, "1").await.unwrap();
    std::fs::rename(&data, &away).unwrap();
    for _ in 0..2 {
        let error = put(&store, "2").await.unwrap_err();
        assert!(matches!(error, StoreError::Gone { .. }), "{error:?}");
        assert!(error.to_string().contains("save that before this process ends"), "{error}");
    }
    // Nothing was made in its place, and what it held is still served.
    assert!(!data.exists());
    assert!(store.get(&route("1")).await.unwrap().is_some());
    assert!(store.get(&route("2")).await.unwrap().is_none());

    // Another store in its place is not written to.
    put(&Embedded::open(&data).unwrap(), "x").await.unwrap();
    put(&Embedded::open(&data).unwrap(), "y").await.unwrap();
    for _ in 0..2 {
        let error = put(&store, "2").await.unwrap_err();
        assert!(matches!(error, StoreError::Gone { .. }), "{error:?}");
    }
    std::fs::remove_dir_all(&data).unwrap();

    std::fs::rename(&away, &data).unwrap();
    assert_eq!(put(&store, "2").await.unwrap().modified, 2);
    drop(store);
    assert_eq!(Embedded::open(&data).unwrap().list(Kind::Route, "").await.unwrap().0.len(), 2);
}

#[test]
fn a_folder_that_is_a_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, "x").unwrap();
    let error = Embedded::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Folder { .. }), "{error:?}");
    assert!(error.to_string().contains("--data"), "{error}");
}

#[tokio::test]
async fn a_lease_ends_by_itself_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    let ttl = Some(Duration::from_millis(40));
    store.put(route("1"), json!({}), Expect::Any, ttl).await.unwrap();
    store.put(route("2"), json!({}), Expect::Any, ttl).await.unwrap();
    // Written again without a lease, it stays.
    put(&store, "2").await.unwrap();
    let mut changes = store.watch();
    changes.next().await.unwrap();
    let Some(Change::Delete { key, revision: 4 }) = changes.next().await else { panic!() };
    assert_eq!(key, route("1"));

    store.put(route("3"), json!({}), Expect::Any, ttl).await.unwrap();
    drop(store);
    tokio::time::sleep(Duration::from_millis(60)).await;
    let store = Embedded::open(folder.path()).unwrap();
    let mut changes = store.watch();
    while store.get(&route("3")).await.unwrap().is_some() {
        changes.next().await.unwrap();
    }
    assert!(store.get(&route("2")).await.unwrap().is_some());
}

/// A disk that is full while `full` is set, or for one operation.
#[derive(Debug)]
struct Filling {
    inner: FileBackend,
    full: Arc<AtomicBool>,
    once: bool,
    /// Syncs, and bytes that were written.
    work: Work,
}

type Work = Arc<[AtomicUsize; 2]>;

impl Filling {
    fn check(&self) -> io::Result<()> {
        let full = match self.once {
            true => self.full.swap(false, Ordering::SeqCst),
            false => self.full.load(Ordering::SeqCst),
        };
        match full {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }
}

impl StorageBackend for Filling {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check().and_then(|()| self.inner.set_len(len))
    }
    fn sync_data(&self) -> io::Result<()> {
        self.work[0].fetch_add(1, Ordering::SeqCst);
        self.check().and_then(|()| self.inner.sync_data())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.work[1].fetch_add(data.len(), Ordering::SeqCst);
        self.check().and_then(|()| self.inner.write(offset, data))
    }
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}

fn filling(folder: &Path, once: bool) -> (Embedded, Arc<AtomicBool>) {
    let full = Arc::new(AtomicBool::new(false));
    (over(folder, full.clone(), once, Work::default()), full)
}

fn counted(folder: &Path) -> (Embedded, Work) {
    let work = Work::default();
    (over(folder, Arc::default(), false, work.clone()), work)
}

fn over(folder: &Path, full: Arc<AtomicBool>, once: bool, work: Work) -> Embedded {
    let open = move |path: &Path| {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let inner = FileBackend::new(file)?;
        redb::Builder::new().create_with_backend(Filling {
            inner,
            full: full.clone(),
            once,
            work: work.clone(),
        })
    };
    let path: PathBuf = folder.join("store.redb");
    let (disk, loaded) = Disk::open_with(path, Box::new(open)).unwrap();
    Embedded::run(disk, loaded).unwrap()
}

/// A note does not move the revision, so that says nothing about whether one was written.
#[tokio::test]
async fn a_note_that_did_not_reach_the_disk_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (store, full) = filling(folder.path(), true);
    put(&store, "1").await.unwrap();
    note(&store, "first").await;
    full.store(true, Ordering::SeqCst);
    let step = Step::Note { name: "a", text: "second".to_owned() };
    let refused = store.write(Box::new(move |_| Ok(vec![step.clone()]))).await;
    assert!(matches!(refused, Err(Refused::Store(StoreError::Full(_)))), "{refused:?}");
    assert_eq!(store.note("a").await.unwrap().as_deref(), Some("first"));
    note(&store, "third").await;
    drop(store);
    let store = Embedded::open(folder.path()).unwrap();
    assert_eq!(store.note("a").await.unwrap().as_deref(), Some("third"));
}

#[tokio::test]
async fn a_full_disk_refuses_writes_loses_nothing_and_heals() {
    let folder = tempfile::tempdir().unwrap();
    let (store, full) = filling(folder.path(), false);
    put(&store, "1").await.unwrap();

    full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let error = put(&store, "2").await.unwrap_err();
        assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    }
    assert!(store.get(&route("1")).await.unwrap().is_some());
    assert!(store.get(&route("2")).await.unwrap().is_none());

    full.store(false, Ordering::SeqCst);
    assert_eq!(put(&store, "2").await.unwrap().modified, 2);
    drop(store);
    let store = Embedded::open(folder.path()).unwrap();
    assert_eq!(store.list(Kind::Route, "").await.unwrap().0.len(), 2);
}

/// A guard against a gross mistake: a sync too many, a write of everything.
#[tokio::test]
async fn a_commit_is_one_sync_and_writes_what_it_changes() {
    const COMMITS: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let (store, work) = counted(folder.path());
    for id in 0..1000 {
        put(&store, &id.to_string()).await.unwrap();
    }
    let before = work.each_ref().map(|count| count.load(Ordering::SeqCst));
    for id in 0..COMMITS {
        put(&store, &id.to_string()).await.unwrap();
    }
    let after = work.each_ref().map(|count| count.load(Ordering::SeqCst));
    let [syncs, bytes] = [after[0] - before[0], after[1] - before[1]];
    assert_eq!(syncs, COMMITS, "{bytes} bytes");
    assert!(bytes < COMMITS * (128 << 10), "{bytes} bytes");
}

#[tokio::test]
async fn a_released_store_is_another_s_until_it_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    put(&store, "1").await.unwrap();
    let released = store.release().await.unwrap().unwrap();
    assert!(store.get(&route("1")).await.unwrap().is_some(), "reading needs no file");
    let other = Embedded::open(folder.path()).unwrap();
    assert!(other.get(&route("1")).await.unwrap().is_some());
    drop(other);
    // It waits for the verdict, and is made when the store is back.
    let mut waiting = std::pin::pin!(put(&store, "2"));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    drop(released);
    assert_eq!(waiting.await.unwrap().modified, 2);
}

#[tokio::test]
async fn a_store_that_was_handed_over_takes_no_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    put(&store, "1").await.unwrap();
    let released = store.release().await.unwrap().unwrap();
    let other = Embedded::open(folder.path()).unwrap();
    put(&other, "2").await.unwrap();
    let mut waiting = std::pin::pin!(put(&store, "3"));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    released.hand_over();
    let error = waiting.await.unwrap_err().to_string();
    assert!(error.contains("a new process has taken over"), "{error}");
    assert!(put(&store, "4").await.is_err() && store.release().await.is_err());
    assert!(store.get(&route("1")).await.unwrap().is_some());
    assert_eq!(put(&other, "5").await.unwrap().modified, 3);
}

/// As after an upgrade that failed: the new process opens the store, lets a lease end, and is gone.
#[tokio::test]
async fn what_another_wrote_before_a_store_was_taken_back_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    put(&store, "1").await.unwrap();
    let mut changes = store.watch();
    changes.next().await.unwrap();
    let released = store.release().await.unwrap().unwrap();
    let other = Embedded::open(folder.path()).unwrap();
    other.delete(route("1"), Expect::Any).await.unwrap();
    put(&other, "2").await.unwrap();
    note(&other, "of the other").await;
    drop(other);
    drop(released);
    assert_eq!(put(&store, "3").await.unwrap().modified, 4);
    let (items, _) = store.list(Kind::Route, "").await.unwrap();
    assert_eq!(items.iter().map(|item| item.key.id.as_str()).collect::<Vec<_>>(), ["2", "3"]);
    assert_eq!(store.note("a").await.unwrap().as_deref(), Some("of the other"));
    assert!(matches!(changes.next().await, Some(Change::Reset { .. })));
    drop(store);
    assert_eq!(Embedded::open(folder.path()).unwrap().list(Kind::Route, "").await.unwrap().0, items);
}

#[tokio::test]
async fn a_copy_of_an_open_store_holds_what_was_written_before_it() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Embedded::open(folder.path()).unwrap();
    put(&store, "1").await.unwrap();
    note(&store, "kept").await;
    store.put_plugins(vec!["cors".to_owned()]).await.unwrap();
    let copy = store.copy().await.unwrap().unwrap();
    put(&store, "2").await.unwrap();
    let contents = restore::contents(&copy).unwrap();
    assert_eq!((contents.resources, contents.revision), (vec![(Kind::Route, 1)], 2));
    // The next copy replaces it.
    assert_eq!(store.copy().await.unwrap().unwrap(), copy);
    assert_eq!(restore::contents(&copy).unwrap().resources, [(Kind::Route, 2)]);
    std::fs::rename(&copy, other.path().join("store.redb")).unwrap();
    std::fs::copy(folder.path().join("store.key"), other.path().join("store.key")).unwrap();
    let copied = Embedded::open(other.path()).unwrap();
    assert_eq!(copied.list(Kind::Route, "").await.unwrap(), store.list(Kind::Route, "").await.unwrap());
    assert_eq!(copied.note("a").await.unwrap().as_deref(), Some("kept"));
    assert_eq!(copied.plugins().await.unwrap(), Some(vec!["cors".to_owned()]));
    let records = copied.history(0, 9, 9).await.unwrap();
    assert_eq!(records, store.history(0, 9, 9).await.unwrap());
    assert!(records.len() >= 2);
}
