use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sdk::files::{Files, OpenError, OpenFile, OpenFiles, Opened, ReadAt, Root, ServedFolders};
use sdk::testing::{Probe, now};

use super::*;

/// A disk in memory: the folders are those of its files.
#[derive(Default)]
struct Disk {
    files: BTreeMap<String, Content>,
    opened: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Content(Vec<u8>);

impl ReadAt for Content {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.0.starts_with(b"broken") && offset >= PIECE as u64 {
            return Err(io::ErrorKind::Other.into());
        }
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        // In short reads, as on some disks.
        let length = rest.len().min(out.len()).min(50_000);
        out[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

impl OpenFiles for Disk {
    fn open(&self, _: &Root, path: &[u8]) -> Result<Opened, OpenError> {
        let path = String::from_utf8(path.to_vec()).map_err(|_| OpenError::Missing)?;
        self.opened.lock().unwrap().push(path.clone());
        let folder = format!("{path}/");
        match self.files.get(&path) {
            _ if path.starts_with("denied") => Err(OpenError::Denied),
            _ if path.starts_with("outside") => Err(OpenError::Outside),
            _ if path.starts_with("many") => Err(OpenError::TooMany),
            Some(content) => {
                // It says more than it has.
                let more = if path.starts_with("short") { 100_000 } else { 0 };
                let length = content.0.len() as u64 + more;
                let content = Box::new(content.clone());
                Ok(Opened::File(OpenFile { length, modified: (784_111_777, 0), content }))
            }
            None if path.is_empty() || self.files.keys().any(|file| file.starts_with(&folder)) => {
                Ok(Opened::Folder)
            }
            None => Err(OpenError::Missing),
        }
    }
}

fn probe(method: &str, target: &str, headers: &[(&str, &str)]) -> Probe {
    let files = [
        ("index.html", "home"),
        ("a.txt", "0123456789"),
        ("b.html", "page"),
        ("dir/index.html", "inner"),
        ("bare/x", "x"),
        (".env", "secret"),
        (".well-known/acme", "proof"),
        ("sub/.git/config", "secret"),
        ("a b%.CSS", "style"),
        ("short.bin", "short"),
        ("empty", ""),
    ];
    let mut disk = Disk::default();
    for (path, text) in files {
        disk.files.insert(path.to_owned(), Content(text.into()));
    }
    disk.files.insert("long.bin".to_owned(), Content((0..200_000u32).map(|at| at as u8).collect()));
    disk.files.insert("broken.bin".to_owned(), Content([&b"broken"[..], &[0; 100_000]].concat()));
    let mut probe = Probe::request(method, target, headers);
    let folders = ServedFolders::new("/", [("/www".to_owned(), "/www".to_owned())], []);
    let service = Files { folders, opener: Arc::new(disk), read_timeout: Duration::from_secs(1) };
    probe.services.extensions = probe.services.extensions.with(Arc::new(service));
    probe
}

fn config(more: &Value) -> Value {
    let mut config = json!({"root": "/www"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// The response: status, fields as text, and body. `None` if the upstream is to answer.
type Answer = Option<(u16, BTreeMap<String, String>, Vec<u8>)>;

fn take(x: &mut Exchange<'_>, step: Step) -> Answer {
    let reply = match step {
        Step::Next => return None,
        Step::Reply(reply) => reply,
        step => panic!("{step:?}"),
    };
    let mut body = reply.body.to_vec();
    if reply.streamed {
        let mut source = x.engine_mut().body_source.take().unwrap();
        while (body.len() as u64) < source.length {
            let piece = now(source.source.next(x.world()));
            match piece {
                Ok(piece) => body.extend_from_slice(&piece),
                Err(error) => {
                    body.extend_from_slice(error.0.as_bytes());
                    break;
                }
            }
        }
    }
    let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
    Some((
        reply.status,
        reply.headers.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect(),
        body,
    ))
}

fn ask(more: &Value, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let mut probe = probe(method, target, headers);
    let plugin: StaticFiles = probe.stage(config(more)).unwrap();
    let mut x = probe.exchange();
    let step = match plugin.before_proxy(&mut x) {
        Step::Wait => now(plugin.wait(Phase::BeforeProxy, &mut x)),
        step => step,
    };
    take(&mut x, step)
}

fn get(more: Value, target: &str) -> (u16, String) {
    let (status, _, body) = ask(&more, "GET", target, &[]).unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn status(more: Value, target: &str) -> u16 {
    get(more, target).0
}

#[test]
fn files_and_folders_are_found() {
    assert_eq!(get(json!({}), "/a.txt"), (200, "0123456789".to_owned()));
    assert_eq!(get(json!({}), "/"), (200, "home".to_owned()));
    assert_eq!(get(json!({}), "/dir/"), (200, "inner".to_owned()));
    assert_eq!(get(json!({}), "/dir/index.html?x=1"), (200, "inner".to_owned()));
    assert_eq!(get(json!({}), "/a%20b%25.CSS"), (200, "style".to_owned()));
    assert_eq!(get(json!({}), "/empty"), (200, String::new()));
    assert_eq!(status(json!({"try_files": ["$uri/"]}), "/dir"), 301);
    assert_eq!(get(json!({"try_files": ["$uri", "/dir/"]}), "/absent"), (200, "inner".to_owned()));
    assert_eq!(get(json!({"strip": "/static"}), "/static/a.txt").0, 200);
    assert_eq!(get(json!({"strip": "/static/"}), "/static/a.txt").0, 200);
    let strip = ["/static", "/static/", "/statica.txt", "/static/dir"]
        .map(|path| status(json!({"strip": "/static"}), path));
    assert_eq!(strip, [301, 200, 404, 301]);
    assert_eq!(get(json!({"index": ["x", "absent"]}), "/bare/"), (200, "x".to_owned()));
    assert_eq!(status(json!({}), "/bare/"), 403);
    for absent in ["/absent", "/a.txt/", "/a.txt/b", "/dir/absent"] {
        assert_eq!(status(json!({}), absent), 404, "{absent}");
    }
    let (status, fields, _) = ask(&json!({}), "GET", "/dir?a=%2F", &[]).unwrap();
    assert_eq!((status, &fields["Location"][..]), (301, "/dir/?a=%2F"));
    let (_, fields, _) = ask(&json!({"strip": "//x.test"}), "GET", "//x.test/dir", &[]).unwrap();
    assert_eq!(fields["Location"], "/x.test/dir/");
}

#[test]
fn hostile_paths_find_nothing() {
    for path in [
        "/../a.txt",
        "/dir/../a.txt",
        "/dir/%2e%2e/a.txt",
        "/dir/..%2Fa.txt",
        "/dir%2Findex.html",
        "/%2fdir/index.html",
        "/./a.txt",
        "/a.txt%00.html",
        "/%00",
        "/.env",
        "/%2eenv",
        "/sub/.git/config",
        "/sub/.well-known/x",
        "/\\..\\a.txt",
        "/%5c..%5ca.txt",
    ] {
        assert_eq!(status(json!({}), path), 404, "{path}");
    }
    assert_eq!(get(json!({}), "/.well-known/acme"), (200, "proof".to_owned()));
    assert_eq!(get(json!({"hidden_files": true}), "/.env"), (200, "secret".to_owned()));
    assert_eq!(status(json!({"hidden_files": true}), "/dir/../a.txt"), 404);
    assert_eq!(status(json!({"try_files": ["/$arg_f"]}), "/x?f=../../etc/passwd"), 404);
    let errors = ["/denied", "/outside", "/many"].map(|path| status(json!({}), path));
    assert_eq!(errors, [403, 403, 503]);
    assert_eq!(get(json!({}), "/broken.bin").1.len(), PIECE + "the file cannot be read".len());
}

#[test]
fn try_files_are_tried_in_order() {
    let try_files = |list: &[&str]| json!({ "try_files": list });
    let page = try_files(&["$uri", "$uri/", "/index.html"]);
    for (path, body) in [("/a.txt", "0123456789"), ("/dir/", "inner"), ("/any/path", "home"), ("/", "home")] {
        assert_eq!(get(page.clone(), path), (200, body.to_owned()), "{path}");
    }
    assert_eq!(status(page.clone(), "/dir"), 301);
    assert_eq!(status(page, "/bare/"), 403);
    assert_eq!(get(try_files(&["$uri", "$uri.html", "=404"]), "/b"), (200, "page".to_owned()));
    assert_eq!(get(try_files(&["$uri", "${uri}/x", "=410"]), "/bare"), (200, "x".to_owned()));
    assert_eq!(status(try_files(&["$uri", "=410"]), "/absent"), 410);
    assert_eq!(status(try_files(&["$uri"]), "/dir"), 404);
    assert_eq!(status(try_files(&["/denied", "/outside", "/a.txt"]), "/x"), 200);
    assert_eq!(get(try_files(&["/$arg_f"]), "/x?f=b.html"), (200, "page".to_owned()));
    let upstream = try_files(&["$uri", "@upstream"]);
    assert_eq!(get(upstream.clone(), "/a.txt").0, 200);
    for method in ["GET", "POST", "DELETE"] {
        assert_eq!(ask(&upstream, method, "/absent", &[]), None);
    }
    let (status, fields, _) = ask(&upstream, "POST", "/a.txt", &[]).unwrap();
    assert_eq!((status, &fields["Allow"][..]), (405, "GET, HEAD"));
    for method in ["PUT", "OPTIONS"] {
        assert_eq!(ask(&json!({}), method, "/absent", &[]).unwrap().0, 405);
    }
    assert_eq!(ask(&json!({}), "POST", "/absent", &[]).unwrap().0, 404);
    assert_eq!(ask(&json!({}), "POST", "/", &[]).unwrap().0, 405);
    let folders = try_files(&["$uri", "$uri/", "=410"]);
    for (path, of_post) in [("/dir", 301), ("/dir/", 405), ("/bare/", 403), ("/absent", 410)] {
        for method in ["OPTIONS", "PUT", "DELETE"] {
            let expected = if path == "/absent" { 410 } else { 405 };
            assert_eq!(ask(&folders, method, path, &[]).unwrap().0, expected, "{method} {path}");
        }
        assert_eq!(ask(&folders, "POST", path, &[]).unwrap().0, of_post, "POST {path}");
    }
}

#[test]
fn conditions_and_ranges_are_honoured() {
    let (_, fields, _) = ask(&json!({}), "GET", "/a.txt", &[]).unwrap();
    let (tag, date) = (fields["ETag"].clone(), fields["Last-Modified"].clone());
    assert_eq!((&tag[..], &date[..]), ("\"2ebc98a1-a\"", "Sun, 06 Nov 1994 08:49:37 GMT"));
    let later = "Sun, 06 Nov 1994 08:49:38 GMT";
    let before = "Sun, 06 Nov 1994 08:49:36 GMT";
    for (headers, expected, body) in [
        (vec![("If-None-Match", &tag[..])], 304, ""),
        (vec![("If-None-Match", "*")], 304, ""),
        (vec![("If-None-Match", "\"x\""), ("If-Modified-Since", later)], 200, "0123456789"),
        (vec![("If-Modified-Since", &date)], 304, ""),
        (vec![("If-Modified-Since", before)], 200, "0123456789"),
        (vec![("If-Match", &tag)], 200, "0123456789"),
        (vec![("If-Match", "\"x\", \"y\"")], 412, ""),
        (vec![("If-Unmodified-Since", before)], 412, ""),
        (vec![("If-Unmodified-Since", &date)], 200, "0123456789"),
        (vec![("Range", "bytes=2-4")], 206, "234"),
        (vec![("Range", "bytes=-3")], 206, "789"),
        (vec![("Range", "bytes=8-100")], 206, "89"),
        (vec![("Range", "bytes=10-")], 416, ""),
        (vec![("Range", "bytes=0-1,3-4")], 200, "0123456789"),
        (vec![("Range", "bytes=2-4"), ("If-Range", &tag)], 206, "234"),
        (vec![("Range", "bytes=2-4"), ("If-Range", "\"x\"")], 200, "0123456789"),
    ] {
        let (status, fields, found) = ask(&json!({}), "GET", "/a.txt", &headers).unwrap();
        let is_page = status > 400 && found.starts_with(b"<html>");
        assert!(
            status == expected && (is_page || found == body.as_bytes()),
            "{headers:?}: {status} {found:?}"
        );
        let range = fields.get("Content-Range").map(String::as_str);
        match status {
            206 => assert!(range.unwrap().ends_with("/10"), "{range:?}"),
            416 => assert_eq!(range, Some("bytes */10")),
            _ => assert_eq!(range, None),
        }
    }
    // Ranges are for GET.
    assert_eq!(ask(&json!({}), "HEAD", "/a.txt", &[("Range", "bytes=2-4")]).unwrap().0, 200);
    let (_, fields, _) = ask(&json!({"etag": false}), "GET", "/a.txt", &[]).unwrap();
    assert!(!fields.contains_key("ETag"));
}

#[test]
fn long_files_come_in_pieces() {
    let whole: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let mut probe = probe("GET", "/long.bin", &[]);
    let plugin: StaticFiles = probe.stage(config(&json!({}))).unwrap();
    let budget = probe.world.budget.clone();
    let mut x = probe.exchange();
    let step = now(plugin.wait(Phase::BeforeProxy, &mut x));
    assert_eq!(budget.taken(), PIECE);
    let (status, _, body) = take(&mut x, step).unwrap();
    assert!(status == 200 && body == whole);
    assert_eq!(budget.taken(), 0);
    drop(x);
    let jobs = probe.world.jobs.get();
    assert_eq!(jobs, 200_000_usize.div_ceil(PIECE));
    let range = [("Range", "bytes=100000-199998")];
    let (status, _, body) = ask(&json!({}), "GET", "/long.bin", &range).unwrap();
    assert!(status == 206 && body == whole[100_000..199_999]);
    assert_eq!(ask(&json!({}), "GET", "/short.bin", &[]).unwrap().0, 500);
}

#[test]
fn a_request_without_memory_gets_503() {
    let mut probe = probe("GET", "/a.txt", &[]);
    probe.world.budget = sdk::budget::Budget::new(100);
    let plugin: StaticFiles = probe.stage(config(&json!({}))).unwrap();
    let mut x = probe.exchange();
    let step = now(plugin.wait(Phase::BeforeProxy, &mut x));
    assert_eq!(take(&mut x, step).unwrap().0, 503);
}

#[test]
fn fields_describe_the_file() {
    let fields = |more: Value, path: &str| ask(&more, "GET", path, &[]).unwrap().1;
    assert_eq!(fields(json!({}), "/b.html")["Content-Type"], "text/html");
    assert_eq!(fields(json!({}), "/empty")["Content-Type"], "application/octet-stream");
    assert_eq!(fields(json!({"default_type": "text/plain"}), "/empty")["Content-Type"], "text/plain");
    let own = json!({"types": {"HTML": "text/x"}, "charset": "utf-8"});
    assert_eq!(fields(own.clone(), "/b.html")["Content-Type"], "text/x");
    assert_eq!(fields(own, "/a.txt")["Content-Type"], "application/octet-stream");
    assert_eq!(fields(json!({"charset": "utf-8"}), "/b.html")["Content-Type"], "text/html; charset=utf-8");
    let kept = fields(json!({"expires": 3600}), "/a.txt");
    assert_eq!(
        (&kept["Cache-Control"][..], &kept["Expires"][..]),
        ("max-age=3600", "Tue, 14 Nov 2023 23:13:21 GMT")
    );
    let not_kept = fields(json!({"expires": -1}), "/a.txt");
    assert_eq!(
        (&not_kept["Cache-Control"][..], &not_kept["Expires"][..]),
        ("no-cache", "Tue, 14 Nov 2023 22:13:20 GMT")
    );
    assert!(!fields(json!({"expires": 1}), "/absent").contains_key("Expires"));
    assert_eq!(fields(json!({"expires": 1}), "/dir")["Cache-Control"], "max-age=1");
}

#[test]
fn errors_get_the_file_of_their_status() {
    let settings = json!({"try_files": ["@upstream"], "error_files": [
        {"status": [404], "file": "/b.html", "of_upstream": true},
        {"status": [500, 502], "file": "/index.html", "answer": 200},
        {"status": [503], "file": "/absent"},
    ]});
    let replaced = |status: u16, of: sdk::exchange::Source| {
        let mut probe = probe("GET", "/x", &[]);
        let plugin: StaticFiles = probe.stage(config(&settings)).unwrap();
        assert_eq!(plugin.phases(), Phases::HEADER_FILTER);
        let mut x = probe.exchange();
        sdk::testing::respond(&mut x, status, &[("Retry-After", "7"), ("ETag", "\"old\"")]);
        x.engine_mut().source = of;
        let step = match plugin.header_action(&mut x) {
            Step::Wait => now(plugin.wait(Phase::HeaderFilter, &mut x)),
            step => step,
        };
        let answer = take(&mut x, step);
        if answer.is_some() {
            assert!(matches!(plugin.header_action(&mut x), Step::Next), "it is replaced once");
        }
        answer.map(|(status, fields, body)| {
            assert_eq!(
                (fields.get("Retry-After").map(String::as_str), fields.get("ETag")),
                (Some("7"), None)
            );
            (status, String::from_utf8(body).unwrap())
        })
    };
    use sdk::exchange::Source::{Gateway, Plugin as OfPlugin, Upstream};
    assert_eq!(replaced(404, Upstream), Some((404, "page".to_owned())));
    assert_eq!(replaced(404, OfPlugin), Some((404, "page".to_owned())));
    assert_eq!(replaced(502, Gateway), Some((200, "home".to_owned())));
    assert_eq!(replaced(502, Upstream), None);
    assert_eq!(replaced(503, Gateway), None);
    assert_eq!(replaced(200, Gateway), None);
}

#[test]
fn settings_are_checked() {
    let probe = probe("GET", "/", &[]);
    let build = |more: Value| probe.stage::<StaticFiles>(config(&more)).map(|plugin| plugin.phases());
    assert_eq!(build(json!({})), Ok(Phases::BEFORE_PROXY));
    assert_eq!(build(json!({"try_files": ["@upstream"]})), Ok(Phases::NONE));
    for (more, pointer) in [
        (json!({"root": "/etc"}), "/root"),
        (json!({"root": "/www/../etc"}), "/root"),
        (json!({"try_files": ["=404", "$uri"]}), "/try_files/0"),
        (json!({"try_files": ["$uri", "=200"]}), "/try_files/1"),
        (json!({"try_files": ["$uri", "@other"]}), "/try_files/1"),
        (json!({"default_type": "a\r\nb"}), "/default_type"),
        (json!({"index": ["../x"]}), "/index/0"),
        (json!({"error_files": [{"status": [404], "file": "/x", "root": "/etc"}]}), "/error_files/0/root"),
    ] {
        assert_eq!(build(more.clone()).unwrap_err().pointer, pointer, "{more}");
    }
    let without: Result<StaticFiles, _> = Probe::default().stage(json!({"root": "/www"}));
    assert!(without.is_err());
}
