use std::sync::Mutex;

use tempfile::TempDir;

use super::*;
use crate::store::Change;
use crate::store::Expect;

const TWO: &str = "\
routes:
  - {id: 1, uri: /a, upstream_id: u}
  - {id: 2, uri: /b, upstream_id: u}
upstreams:
  - {id: u, nodes: {'127.0.0.1:80': 1}}
plugins:
  - name: cors
#END
";

fn plugins() -> Vec<&'static str> {
    vec!["cors"]
}

struct Reset {
    items: Vec<Row>,
    revision: Revision,
    rejected: Vec<Diagnostic>,
}

async fn next(changes: &mut Changes) -> Reset {
    let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
    match change.expect("the change is seen").expect("the store lives") {
        Change::Reset { items, revision, rejected, .. } => Reset { items, revision, rejected },
        other => panic!("{other:?}"),
    }
}

/// A store over a file that holds [`TWO`] in a folder of its own, and a follower of it.
fn opened() -> (TempDir, PathBuf, File, Changes) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apisix.yaml");
    fs::write(&path, TWO).unwrap();
    let store = File::open(&path, plugins()).unwrap();
    let changes = store.watch();
    (folder, path, store, changes)
}

#[tokio::test]
async fn a_folder_that_is_written_to_without_end_puts_nothing_off() {
    let (_folder, path, store, mut changes) = opened();
    next(&mut changes).await;
    let (signal, over) = (store.signal.clone(), Arc::new(AtomicBool::new(false)));
    let busy = thread::spawn({
        let over = over.clone();
        move || {
            while !over.load(Ordering::Relaxed) {
                signal.look();
                thread::sleep(Duration::from_micros(100));
            }
        }
    });
    fs::write(&path, TWO.replace("/b", "/c")).unwrap();
    let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
    over.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    assert!(change.is_ok(), "the change is seen");
}

fn modified(reset: &Reset, id: &str) -> Revision {
    reset.items.iter().find(|item| item.key.id == id).unwrap().modified
}

#[tokio::test]
async fn the_file_is_followed_and_unchanged_items_keep_their_revisions() {
    let (folder, path, store, mut changes) = opened();
    assert!(!store.writable());
    let first = next(&mut changes).await;
    assert_eq!((first.items.len(), first.revision), (3, 1));
    assert_eq!(store.plugins().await.unwrap(), Some(vec!["cors".to_owned()]));

    // Written in place.
    fs::write(&path, TWO.replace("/b", "/c")).unwrap();
    let second = next(&mut changes).await;
    assert_eq!((modified(&second, "1"), modified(&second, "2"), second.revision), (1, 2, 2));

    // Replaced, as editors do it.
    let new = folder.path().join("new");
    fs::write(&new, TWO.replace("  - {id: 1, uri: /a, upstream_id: u}\n", "")).unwrap();
    fs::rename(&new, &path).unwrap();
    let third = next(&mut changes).await;
    assert_eq!((third.items.len(), third.revision), (2, 3));
    assert_eq!(modified(&third, "u"), 1);
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_is_reported() {
    let (_folder, path, _store, mut changes) = opened();
    next(&mut changes).await;
    for broken in ["routes: [\n#END\n", "routes: []\n"] {
        fs::write(&path, broken).unwrap();
        let kept = next(&mut changes).await;
        assert_eq!((kept.items.len(), modified(&kept, "1")), (3, 1), "{broken}");
        assert_eq!(kept.rejected.len(), 1);
        assert!(kept.rejected[0].one_line().contains("apisix.yaml"), "{}", kept.rejected[0]);
    }
    fs::remove_file(&path).unwrap();
    let kept = next(&mut changes).await;
    assert_eq!(kept.items.len(), 3);
    assert!(kept.rejected[0].message.starts_with("cannot read the file"), "{}", kept.rejected[0]);

    fs::write(&path, TWO).unwrap();
    let healed = next(&mut changes).await;
    assert_eq!((healed.rejected.len(), healed.items.len(), modified(&healed, "1")), (0, 3, 1));
}

#[tokio::test]
async fn a_list_of_plugins_is_for_routes_and_for_streams() {
    let (_folder, path, store, mut changes) = opened();
    let reset = async |changes: &mut Changes| {
        let change = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        match change.expect("the change is seen") {
            Some(Change::Reset { plugins, stream_plugins, .. }) => (plugins, stream_plugins),
            other => panic!("{other:?}"),
        }
    };
    let list = |name: &str| Some(vec![name.to_owned()]);
    assert_eq!(reset(&mut changes).await, (list("cors"), Some(Vec::new())));
    let with_one = TWO.replace("#END", "  - {name: mqtt-proxy, stream: true}\n#END");
    fs::write(&path, &with_one).unwrap();
    assert_eq!(reset(&mut changes).await, (list("cors"), list("mqtt-proxy")));
    assert_eq!(store.stream_plugins().await.unwrap(), list("mqtt-proxy"));
    fs::write(&path, "routes: [\n#END\n").unwrap();
    assert_eq!(reset(&mut changes).await, (list("cors"), list("mqtt-proxy")), "kept");
    fs::write(&path, "#END\n").unwrap();
    assert_eq!(reset(&mut changes).await, (None, None));
}

#[tokio::test]
async fn a_bad_item_is_left_out_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apisix.json");
    fs::write(&path, r#"{"routes": [{"id": "1", "uri": 5}, {"id": "2", "uri": "/", "plugins": {}}]}"#)
        .unwrap();
    let store = File::open(&path, plugins()).unwrap();
    let first = next(&mut store.watch()).await;
    assert_eq!((first.items.len(), first.rejected.len()), (1, 1));
    assert_eq!(first.rejected[0].pointer, "/routes/0/uri");
}

#[tokio::test]
async fn an_item_that_turns_bad_keeps_its_last_good_form() {
    let (_folder, path, _store, mut changes) = opened();
    next(&mut changes).await;
    fs::write(&path, TWO.replace("uri: /a", "uri: 5").replace("uri: /b", "uri: /c")).unwrap();
    let second = next(&mut changes).await;
    assert_eq!((second.items.len(), second.rejected.len()), (3, 1));
    assert_eq!((modified(&second, "1"), modified(&second, "2")), (1, 2));
    fs::write(&path, TWO.replace("  - {id: 1, uri: /a, upstream_id: u}\n", "")).unwrap();
    assert_eq!(next(&mut changes).await.items.len(), 2, "what is not there at all is gone");
}

#[tokio::test]
async fn a_section_that_is_misspelled_or_no_list_keeps_what_there_was() {
    let (_folder, path, _store, mut changes) = opened();
    next(&mut changes).await;
    for (written, wrong) in [("routes:", "route:"), ("routes:", "rotues:"), ("routes:", "routes: x\nrutes:")]
    {
        fs::write(&path, TWO.replace(written, wrong)).unwrap();
        let kept = next(&mut changes).await;
        assert_eq!(kept.items.len(), 3, "{wrong}");
        assert!(!kept.rejected.is_empty() && modified(&kept, "2") == 1, "{wrong}");
    }
    // Of other kinds, what is not there at all is gone.
    fs::write(&path, "rotues: []\n#END\n").unwrap();
    assert_eq!(next(&mut changes).await.items.len(), 2);
}

#[tokio::test]
async fn a_pipe_in_its_place_holds_nothing_up() {
    let (folder, path, _store, mut changes) = opened();
    next(&mut changes).await;
    fs::remove_file(&path).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    let mut kept = next(&mut changes).await;
    if kept.rejected[0].message.contains("No such file") {
        kept = next(&mut changes).await;
    }
    assert_eq!(kept.items.len(), 3);
    assert_eq!(kept.rejected[0].message, "cannot read the file: it is not a regular file");
    fs::remove_file(&path).unwrap();
    fs::write(&path, TWO.replace("/b", "/c")).unwrap();
    let mut healed = next(&mut changes).await;
    while !healed.rejected.is_empty() {
        healed = next(&mut changes).await;
    }
    assert_eq!(modified(&healed, "2"), healed.revision);
    let (sent, opened) = std::sync::mpsc::channel();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("b.yaml"), mode).unwrap();
    let fifo = folder.path().join("b.yaml");
    std::thread::spawn(move || sent.send(File::open(&fifo, plugins()).is_err()));
    assert_eq!(opened.recv_timeout(Duration::from_secs(10)), Ok(true), "a start does not wait for it either");
}

/// A file of one hole, which is refused by its length.
#[tokio::test]
async fn a_file_that_is_too_large_keeps_what_was_there() {
    let (_folder, path, _store, mut changes) = opened();
    next(&mut changes).await;
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let kept = next(&mut changes).await;
    assert_eq!((kept.items.len(), &*kept.rejected[0].message), (3, "the file is larger than 512 MiB"));
}

#[tokio::test]
async fn a_reload_sees_a_variable_that_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apisix.yaml");
    fs::write(&path, "routes:\n  - {id: 1, uri: '${{WHERE}}', plugins: {}}\n#END\n").unwrap();
    let place = Arc::new(Mutex::new("/a".to_owned()));
    let looked_up = place.clone();
    let lookup = move |name: &str| (name == "WHERE").then(|| looked_up.lock().unwrap().clone());
    let store = File::open_with(&path, plugins(), Box::new(lookup)).unwrap();
    let mut changes = store.watch();
    assert_eq!(next(&mut changes).await.items[0].value()["uri"], "/a");
    *place.lock().unwrap() = "/b".to_owned();
    let reading = store.reload();
    assert_eq!(next(&mut changes).await.items[0].value()["uri"], "/b");
    assert_eq!(reading.recv_timeout(Duration::from_secs(10)).unwrap(), Ok(0));
    fs::write(&path, "routes: [").unwrap();
    assert!(store.reload().recv_timeout(Duration::from_secs(10)).unwrap().is_err());
}

#[tokio::test]
async fn writes_are_refused_and_say_where_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apisix.yaml");
    fs::write(&path, "#END\n").unwrap();
    let store = File::open(&path, plugins()).unwrap();
    let key = Key::new(Kind::Route, "1");
    let error = store.put(key, serde_json::Value::Null, Expect::Any, None).await.unwrap_err();
    assert!(error.to_string().contains("edit that file"), "{error}");
}

#[test]
fn a_file_that_cannot_be_used_at_all_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = File::open(&folder.path().join("none.yaml"), plugins()).unwrap_err();
    assert!(missing.to_string().contains("cannot read the file"), "{missing}");
}

/// A format whose resources are in another file.
struct Elsewhere {
    other: PathBuf,
    also: Vec<(PathBuf, Option<Stat>)>,
}

impl ReadText for Elsewhere {
    fn read(&mut self, name: &str, _: &str) -> Result<Declarative, Box<Diagnostic>> {
        self.also = vec![(self.other.clone(), Stat::of(&self.other))];
        let text = fs::read_to_string(&self.other)
            .map_err(|error| Box::new(Diagnostic::new(Severity::Error, name, error.to_string())))?;
        Declarative::load(name, &text, Format::Yaml, &plugins(), &|_| None)
    }

    fn also(&self) -> &[(PathBuf, Option<Stat>)] {
        &self.also
    }
}

#[tokio::test]
async fn a_change_of_an_included_file_is_read_and_a_missing_one_keeps_the_resources() {
    let (main, included) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, other) = (main.path().join("main"), included.path().join("included"));
    fs::write(&path, "").unwrap();
    fs::write(&other, TWO).unwrap();
    let read = Elsewhere { other: other.clone(), also: Vec::new() };
    let store = File::open_read(&path, Box::new(read)).unwrap();
    let mut changes = store.watch();
    assert_eq!(next(&mut changes).await.items.len(), 3);
    fs::remove_file(&other).unwrap();
    let kept = next(&mut changes).await;
    assert_eq!((kept.items.len(), kept.rejected.len()), (3, 1));
    fs::write(&other, TWO.replace("  - {id: 2, uri: /b, upstream_id: u}\n", "")).unwrap();
    let changed = next(&mut changes).await;
    assert_eq!((changed.items.len(), changed.rejected.len()), (2, 0));
}
