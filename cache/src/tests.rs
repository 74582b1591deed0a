use std::fs;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::*;

fn memory(size: u64) -> Zone {
    Zone::new(Settings { name: "m".into(), memory_size: size, disk: None }, false)
}

fn disk(path: &Path, size: u64) -> Zone {
    disk_with(path, size, Duration::from_secs(60))
}

fn disk_with(path: &Path, size: u64, read_timeout: Duration) -> Zone {
    let ttl = Duration::from_secs(10);
    let disk = DiskSettings { path: path.to_owned(), size, levels: vec![1, 2], ttl, read_timeout };
    let zone = Zone::new(Settings { name: "d".into(), memory_size: 1 << 20, disk: Some(disk) }, false);
    zone.open().unwrap();
    zone
}

fn put(zone: &Zone, key: &[u8], body: &[u8]) {
    put_at(zone, key, body, look(zone, key).epoch);
}

fn put_at(zone: &Zone, key: &[u8], body: &[u8], epoch: u64) {
    let mut fields = Fields::new();
    fields.append(b"X-A", b"1").unwrap();
    let content = Content { status: 200, fields, body: Bytes::copy_from_slice(body) };
    let held = zone.hold(body.len() as u64).unwrap();
    let new = New { stored_ms: 1, expires_ms: u64::MAX, held, ..new(zone, key, &[], &[0], content) };
    zone.store(new, epoch);
}

/// A response that is never fresh.
fn new(zone: &Zone, key: &[u8], vary: &[Box<[u8]>], variant: &[u8], content: Content) -> New {
    New {
        key: key.into(),
        vary: vary.to_vec(),
        variant: variant.into(),
        stored_ms: 0,
        expires_ms: 0,
        age: 0,
        terms: Terms::default(),
        content,
        held: zone.hold(0).unwrap(),
    }
}

fn look(zone: &Zone, key: &[u8]) -> Lookup {
    zone.find(key, 0, &Fields::new(), &mut Vec::new())
}

fn has(zone: &Zone, key: &[u8]) -> bool {
    look(zone, key).entry.is_some()
}

/// Whether the response is stored in a file.
fn filed(zone: &Zone, key: &[u8]) -> bool {
    look(zone, key).entry.is_some_and(|entry| entry.content().is_none())
}

fn read(zone: &Zone, key: &[u8]) -> Option<Content> {
    load(zone, look(zone, key).entry?)
}

fn load(zone: &Zone, entry: Arc<Entry>) -> Option<Content> {
    let mut future = pin!(zone.load(entry));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(content) => return content,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// Waits until a condition holds that a thread brings about.
fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for item in fs::read_dir(path).unwrap().flatten() {
        if item.file_type().unwrap().is_dir() {
            all.extend(files(&item.path()))
        } else {
            all.push(item.path())
        }
    }
    all
}

#[test]
fn a_zone_keeps_its_limit_and_its_used_entries() {
    let zone = memory(100_000);
    put(&zone, b"used", &[1; 1000]);
    for n in 0..1000u32 {
        put(&zone, &n.to_le_bytes(), &[0; 1000]);
        assert!(zone.used() <= 100_000);
        assert!(has(&zone, b"used"), "after {n}");
    }
    let kept = (0..1000u32).filter(|n| has(&zone, &n.to_le_bytes())).count();
    assert!((50..100).contains(&kept), "{kept}");
    let kept: u64 = (0..1000u32).map(|n| u64::from(zone.purge(&n.to_le_bytes()))).sum();
    assert!(kept > 0 && zone.purge(b"used"));
    assert_eq!(zone.used(), 0);
}

#[test]
fn eviction_takes_few_steps_even_if_all_entries_are_used() {
    let size = 11_000_000;
    let zone = memory(size);
    let mut keys = 0u32;
    while zone.used() + 4000 < size {
        put(&zone, &keys.to_le_bytes(), &[0; 1000]);
        keys += 1;
    }
    let look_all = || (0..keys).filter_map(|n| look(&zone, &n.to_le_bytes()).entry).collect::<Vec<_>>();
    (0..3).for_each(|_| drop(look_all()));
    let entries = look_all();
    assert_eq!(entries.len(), keys as usize);
    let new = 4;
    (keys..keys + new).for_each(|n| put(&zone, &n.to_le_bytes(), &[0; 1000]));
    assert!(zone.used() <= size);
    let gone = entries.iter().filter(|entry| !has(&zone, &entry.key)).count();
    let passed = entries.iter().filter(|entry| entry.chances.load(Relaxed) < 3).count();
    assert!(gone > 0 && passed <= 64 * gone, "{passed} were passed for {gone} of {keys}");
}

#[test]
fn one_answer_may_fill_the_zone_but_not_more() {
    let zone = memory(10_000);
    put(&zone, b"a", &[0; 1000]);
    put(&zone, b"b", &[0; 9000]);
    assert!(has(&zone, b"b") && !has(&zone, b"a"));
    put(&zone, b"c", &[0; 9999]);
    assert!(!has(&zone, b"c"));
    assert!(zone.hold(10_001).is_none());
}

#[test]
fn a_response_counts_with_all_its_parts() {
    // Lengths of key, variant, name, value and body.
    let weigh = |lengths: [usize; 5]| {
        let zone = memory(1 << 20);
        let [key, variant, name, value, body] = lengths.map(|length| vec![b'x'; length]);
        let mut fields = Fields::new();
        fields.append(&name, &value).unwrap();
        let content = Content { status: 200, fields, body: body.into() };
        zone.store(new(&zone, &key, &[], &variant, content), 0);
        zone.used()
    };
    let lengths = [10, 20, 30, 40, 50];
    let weight = weigh(lengths);
    assert!((150..1000).contains(&weight), "{weight}");
    // The index stores the key a second time.
    for (part, times) in [2, 1, 1, 1, 1].into_iter().enumerate() {
        let mut longer = lengths;
        longer[part] += 1000;
        assert_eq!(weigh(longer), weight + times * 1000, "{part}");
    }
}

#[test]
fn responses_in_transfer_are_bounded() {
    let zone = memory(1000);
    let mut first = zone.hold(600).unwrap();
    assert!(zone.hold(600).is_none());
    assert!(!first.grow(500) && first.grow(400));
    assert!(zone.hold(1).is_none());
    drop(first);
    assert!(zone.hold(1000).is_some());
}

#[test]
fn a_key_has_a_bounded_number_of_variants() {
    let zone = memory(1 << 20);
    let vary: Vec<Box<[u8]>> = vec![(*b"x").into()];
    for n in 0..100u32 {
        let mut request = Fields::new();
        request.append(b"X", n.to_string().as_bytes()).unwrap();
        let mut bytes = Vec::new();
        variant(&vary, 0, &request, &mut bytes);
        let content = Content { status: 200, fields: Fields::new(), body: Bytes::new() };
        zone.store(new(&zone, b"k", &vary, &bytes, content), 0);
        assert!(zone.find(b"k", 0, &request, &mut bytes).entry.is_some());
    }
    let found = (0..100u32).filter(|n| {
        let mut request = Fields::new();
        request.append(b"x", n.to_string().as_bytes()).unwrap();
        zone.find(b"k", 0, &request, &mut Vec::new()).entry.is_some()
    });
    assert_eq!(found.count(), 64);
    assert!(zone.purge(b"k"));
    assert_eq!(zone.used(), 0);
}

#[test]
fn variants_are_unambiguous() {
    let vary: Vec<Box<[u8]>> = vec![(*b"a").into(), (*b"b").into()];
    let lists: [&[(&str, &str)]; 6] = [
        &[],
        &[("a", "")],
        &[("b", "")],
        &[("a", "x"), ("a", "y")],
        &[("a", "x"), ("b", "y")],
        &[("a", "\"x, y\"")],
    ];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for list in lists {
        for class in [0, 1] {
            let mut fields = Fields::new();
            list.iter().for_each(|(name, value)| fields.append(name.as_bytes(), value.as_bytes()).unwrap());
            let mut bytes = Vec::new();
            variant(&vary, class, &fields, &mut bytes);
            assert!(!all.contains(&bytes), "{list:?}");
            all.push(bytes);
        }
    }
}

#[test]
fn concurrent_use_keeps_a_zone_consistent() {
    let zone = memory(200_000);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let zone = &zone;
            scope.spawn(move || {
                for n in 0..5000u32 {
                    let key = (n.wrapping_mul(2_654_435_761).wrapping_add(thread) % 500).to_le_bytes();
                    match n % 7 {
                        0 => {
                            zone.purge(&key);
                        }
                        1..4 => put(zone, &key, &key.repeat(100)),
                        _ => {
                            if let Some(entry) = look(zone, &key).entry {
                                assert_eq!(entry.content().unwrap().body, key.repeat(100));
                            }
                        }
                    }
                }
            });
        }
    });
    assert!(zone.used() <= 200_000);
    for key in 0..500u32 {
        zone.purge(&key.to_le_bytes());
    }
    assert_eq!(zone.used(), 0);
    assert!(zone.hold(200_000).is_some(), "all that was held came back");
}

#[test]
fn a_disk_zone_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 1 << 20);
    assert_eq!(zone.disk().map(|disk| disk.ttl), Some(Duration::from_secs(10)));
    put(&zone, b"a", b"one");
    put(&zone, b"b", &[7; 100_000]);
    assert_eq!(read(&zone, b"a").unwrap().body, "one", "served while it is written");
    eventually(|| filed(&zone, b"a") && filed(&zone, b"b"));
    let content = read(&zone, b"a").unwrap();
    assert_eq!((content.status, &content.body[..]), (200, &b"one"[..]));
    assert_eq!(content.fields.get_named(b"x-a"), Some(&b"1"[..]));
    drop(zone);
    let zone = disk(folder.path(), 1 << 20);
    eventually(|| filed(&zone, b"a") && filed(&zone, b"b"));
    assert_eq!(read(&zone, b"b").unwrap().body, [7u8; 100_000][..]);
    assert!(zone.purge(b"a") && !zone.purge(b"a"));
    eventually(|| files(folder.path()).len() == 1);
    drop(zone);
    let zone = disk(folder.path(), 1 << 20);
    eventually(|| filed(&zone, b"b"));
    assert!(!has(&zone, b"a"), "a purged response does not come back");
}

#[test]
fn damaged_files_are_misses_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 1 << 20);
    let damage = |zone: &Zone, change: fn(&mut Vec<u8>)| {
        put(zone, b"k", b"a body of some length");
        eventually(|| filed(zone, b"k"));
        let [path] = &files(folder.path())[..] else { panic!() };
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        assert!(read(zone, b"k").is_none());
        assert!(!has(zone, b"k"));
        eventually(|| files(folder.path()).is_empty());
        assert_eq!(zone.used(), 0);
    };
    damage(&zone, |bytes| *bytes.last_mut().unwrap() ^= 1);
    damage(&zone, |bytes| bytes.truncate(bytes.len() - 1));
    damage(&zone, |bytes| bytes[30] ^= 1);
    damage(&zone, Vec::clear);
    put(&zone, b"k", b"good");
    eventually(|| filed(&zone, b"k"));
    assert_eq!(read(&zone, b"k").unwrap().body, "good");
    // The same at a start, beside files that are not ours.
    let [path] = &files(folder.path())[..] else { panic!() };
    fs::write(path, b"SLCACHE1 and rubbish that is longer than a prelude").unwrap();
    fs::write(folder.path().join("README"), b"kept").unwrap();
    drop(zone);
    let zone = disk(folder.path(), 1 << 20);
    eventually(|| files(folder.path()).len() == 1);
    assert!(!has(&zone, b"k") && folder.path().join("README").exists());
}

#[test]
fn a_disk_zone_keeps_its_size_limit() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 100_000);
    for n in 0..200u32 {
        put(&zone, &n.to_le_bytes(), &[0; 5000]);
    }
    put(&zone, b"last", b"x");
    eventually(|| filed(&zone, b"last"));
    assert!(zone.used() <= 100_000);
    let bytes = || files(folder.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>();
    eventually(|| bytes() <= 100_000);
    assert!(bytes() > 50_000);
    assert_eq!(zone.in_flight.load(Relaxed), 0);
}

#[test]
fn a_disk_zone_rejects_responses_larger_than_itself() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 100_000);
    put(&zone, b"k", &[0; 99_900]);
    assert!(!has(&zone, b"k"));
}

#[test]
fn the_index_of_a_disk_zone_keeps_its_memory_limit() {
    let folder = tempfile::tempdir().unwrap();
    let second = Duration::from_secs(1);
    let disk = DiskSettings {
        path: folder.path().to_owned(),
        size: 10 << 20,
        levels: vec![],
        ttl: second,
        read_timeout: second,
    };
    // Each answer has its key twice in memory, and what it varies on: three of them fit.
    let zone = Zone::new(Settings { name: "d".into(), memory_size: 10_000, disk: Some(disk) }, false);
    zone.open().unwrap();
    let vary: Vec<Box<[u8]>> = vec![(*b"x").into()];
    let mut request = Fields::new();
    request.append(b"X", &[b'v'; 1000]).unwrap();
    let key = |n: u8| vec![n; 1000];
    for n in 0..10 {
        let mut bytes = Vec::new();
        variant(&vary, 0, &request, &mut bytes);
        let content = Content { status: 200, fields: Fields::new(), body: Bytes::new() };
        zone.store(new(&zone, &key(n), &vary, &bytes, content), 0);
        zone.flush();
    }
    let has = |n: &u8| zone.find(&key(*n), 0, &request, &mut Vec::new()).entry.is_some();
    assert_eq!((0..10).filter(has).count(), 3);
}

/// Replaces the file by a FIFO: opening it blocks until it is opened for writing.
fn stall(path: &Path) {
    fs::remove_file(path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Unblocks the readers of a stalled file, if there are any.
fn release(path: &Path) {
    drop(fs::OpenOptions::new().read(true).write(true).open(path));
}

#[test]
fn a_stalled_file_is_a_miss_and_blocks_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk_with(folder.path(), 1 << 20, Duration::from_millis(20));
    put(&zone, b"stalls", b"x");
    zone.flush();
    let [path] = &files(folder.path())[..] else { panic!() };
    stall(path);
    put(&zone, b"other", b"fine");
    zone.flush();
    let entry = look(&zone, b"stalls").entry.unwrap();
    let held_up = zone.load(entry);
    let mut held_up = pin!(held_up);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(held_up.as_mut().poll(&mut cx).is_pending());
    // One reader is stuck; another reads the next file. On a slow machine this takes a few tries.
    eventually(|| read(&zone, b"other").or_else(|| (put(&zone, b"other", b"fine"), None).1).is_some());
    let mut got = Poll::Pending;
    eventually(|| {
        got = held_up.as_mut().poll(&mut cx);
        got.is_ready()
    });
    assert!(matches!(got, Poll::Ready(None)));
    assert!(!has(&zone, b"stalls") && zone.late_reads() > 0);
    // A response stored in its place is readable again.
    put(&zone, b"stalls", b"again");
    zone.flush();
    eventually(|| match read(&zone, b"stalls") {
        Some(content) => content.body == "again",
        None => (put(&zone, b"stalls", b"again"), false).1,
    });
}

#[test]
fn a_stalled_disk_gives_immediate_misses_until_it_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk_with(folder.path(), 1 << 20, Duration::from_millis(1));
    let mut known = Vec::new();
    let mut file = |key: &[u8]| {
        put(&zone, key, b"x");
        zone.flush();
        let new = files(folder.path()).into_iter().find(|path| !known.contains(path)).unwrap();
        known.push(new.clone());
        new
    };
    file(b"fine");
    let stalled: Vec<PathBuf> = (0..16).map(|n| file(&[n])).collect();
    stalled.iter().for_each(|path| stall(path));
    // A thread may open its file late. The file exists until then: nothing is removed while the
    // writing thread is stuck as well.
    let half_written = file(b"hangs").with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&half_written, b"").unwrap();
    stall(&half_written);
    put(&zone, b"hangs", b"x");
    let threads = || zone.files.get().unwrap().threads();
    assert_eq!(threads(), (4, 0));
    for n in 0..16u8 {
        // The maximum number of stuck threads. On a slow machine some reads are late before a
        // thread starts them.
        eventually(|| {
            assert!(read(&zone, &[n]).is_none());
            threads().1 > usize::from(n)
        });
    }
    let late = zone.late_reads();
    for n in 1..20 {
        assert!(read(&zone, b"fine").is_none());
        assert_eq!(zone.late_reads(), late + n);
    }
    assert_eq!(threads(), (4 + 15, 16), "the last one that hung was not replaced");
    // The first released thread replaces it; the others are surplus.
    eventually(|| {
        release(&stalled[15]);
        threads() == (4 + 15, 15)
    });
    eventually(|| {
        stalled.iter().for_each(|path| release(path));
        threads() == (4, 0)
    });
    zone.purge(b"hangs");
    let _reads = fs::OpenOptions::new().read(true).write(true).open(&half_written).unwrap();
    zone.flush();
    put(&zone, b"k", b"back");
    zone.flush();
    eventually(|| match read(&zone, b"k") {
        Some(content) => content.body == "back",
        None => (put(&zone, b"k", b"back"), zone.flush(), false).2,
    });
    let late = zone.late_reads();
    let caches = Caches { zones: vec![Arc::new(memory(1)), Arc::new(zone)] };
    assert!(caches.late_reads() == late && late > 16, "{late}");
    assert_eq!(caches.names().collect::<Vec<_>>(), ["m", "d"]);
}

#[test]
fn loaded_responses_count_until_sent() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 1 << 20);
    put(&zone, b"k", &[1; 10_000]);
    eventually(|| filed(&zone, b"k") && zone.in_flight.load(Relaxed) == 0);
    let content = read(&zone, b"k").unwrap();
    assert!(zone.in_flight.load(Relaxed) >= 10_000);
    let part = content.body.slice(..1);
    drop(content);
    assert!(zone.in_flight.load(Relaxed) >= 10_000);
    drop(part);
    assert_eq!(zone.in_flight.load(Relaxed), 0);
}

#[test]
fn a_purge_during_a_write_wins() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 1 << 20);
    for _ in 0..100 {
        put(&zone, b"k", &[1; 10_000]);
        assert!(zone.purge(b"k"));
    }
    let epoch = look(&zone, b"k").epoch;
    zone.purge(b"k");
    put_at(&zone, b"k", b"old", epoch);
    put(&zone, b"done", b"x");
    eventually(|| filed(&zone, b"done"));
    assert!(!has(&zone, b"k"));
    assert_eq!(files(folder.path()).len(), 1);
}

#[test]
fn an_unusable_folder_is_an_error_and_checking_creates_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let settings = |path: &Path| Settings {
        name: "d".into(),
        memory_size: 1 << 20,
        disk: Some(DiskSettings {
            path: path.to_owned(),
            size: 1 << 20,
            levels: vec![],
            ttl: Duration::from_secs(1),
            read_timeout: Duration::from_secs(1),
        }),
    };
    let caches = Caches::new(vec![settings(&file.join("cache"))]);
    let message = caches.zone("d").unwrap().open().unwrap_err().to_string();
    assert!(message.contains("cannot be used"), "{message}");
    fs::remove_file(&file).unwrap();
    caches.zone("d").unwrap().open().unwrap();
    let fine = folder.path().join("fine");
    Caches::for_checking(vec![settings(&fine)]).zone("d").unwrap().open().unwrap();
    assert!(!fine.exists());
    Caches::new(vec![settings(&fine)]).zone("d").unwrap().open().unwrap();
    assert!(fine.exists());
}

#[test]
fn threads_end_with_their_zone() {
    let folder = tempfile::tempdir().unwrap();
    let zone = disk(folder.path(), 1 << 20);
    let index = Arc::downgrade(&zone.index);
    drop(zone);
    eventually(|| index.strong_count() == 0);
}
