//! The file in which what a registry knows is kept for a start without it: `dump` of `consul` and `consul_kv`, in APISIX's format.
//!
//! `{"services": {name: [{host, port, weight}]}, "last_update": seconds, "expire": seconds}`. It is written by a task of its own,
//! as a whole, and always with the newest of what is known.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::Node;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{MOST_NODES, shown, without_user};

/// The largest file that is written and read.
const MOST: u64 = 32 << 20;
/// How long reading may take. A disk may hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where it is, and how it is used.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DumpFile {
    pub path: PathBuf,
    /// Whether what stands in it is used until the registry has answered.
    pub load_on_init: bool,
    /// Seconds after which it is not used any more; 0 is never.
    pub expire: i64,
}

/// Services by the registry's own names.
type Services = BTreeMap<String, Vec<Node>>;

/// The content of the file.
#[derive(Debug, Deserialize)]
struct Content {
    services: BTreeMap<String, Vec<Kept>>,
    last_update: f64,
}

#[derive(Debug, Deserialize)]
struct Kept {
    host: String,
    port: u16,
    /// A fraction where a registry wrote one and APISIX kept it.
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

fn one() -> f64 {
    1.0
}

impl From<Kept> for Node {
    fn from(kept: Kept) -> Node {
        Node {
            host: kept.host,
            port: kept.port,
            weight: kept.weight.round() as u32,
            priority: kept.priority,
            metadata: kept.metadata.filter(|metadata| !metadata.is_empty()).map(Box::new),
        }
    }
}

impl DumpFile {
    /// Returns the kept services, unless they are too old.
    ///
    /// # Errors
    /// Why there is nothing, in APISIX's words where it has some; `NotFound` if there is no file.
    pub(super) async fn load(&self) -> io::Result<Services> {
        let path = self.path.clone();
        let reading = tokio::task::spawn_blocking(move || read(&path));
        let late = |_| format!("reading {} takes more than {} s", self.path.display(), PATIENCE.as_secs());
        let read = tokio::time::timeout(PATIENCE, reading).await.map_err(late).map_err(io::Error::other)?;
        let content: Content = read??;
        if self.expire != 0 && now() > content.last_update + self.expire as f64 {
            return Err(io::Error::other(format!(
                "dump file: {} had expired, ignored it",
                self.path.display()
            )));
        }
        let services = content.services.into_iter();
        Ok(services
            .map(|(name, nodes)| (name, nodes.into_iter().take(MOST_NODES).map(Node::from).collect()))
            .collect())
    }

    /// Returns the content for the control API, without names and passwords in addresses. Blocks on the file.
    ///
    /// # Errors
    /// Why there is nothing, in words.
    pub fn show(&self) -> io::Result<Value> {
        // The settings may name any file; only dumps are shown.
        let Content { services, last_update } = read(&self.path)?;
        let services = services.into_iter().map(|(name, nodes)| {
            let nodes: Vec<Node> = nodes.into_iter().map(Node::from).collect();
            (without_user(&name), shown(&nodes))
        });
        Ok(content(services.collect(), last_update as u64, self.expire))
    }

    /// A task that writes what it is given, until the sender is gone.
    pub(super) fn writer(&self) -> Writer {
        let (sender, receiver) = watch::channel(Arc::default());
        crate::tasks::spawn(write_newest(self.clone(), receiver));
        Writer { sender, expire: self.expire, written: None }
    }

    fn write(&self, services: &Services) -> io::Result<()> {
        let shown: Map<String, Value> =
            services.iter().map(|(name, nodes)| (name.clone(), shown(nodes))).collect();
        let text = content(shown, now() as u64, self.expire).to_string();
        if text.len() as u64 > MOST {
            return Err(io::Error::other(format!("it would be larger than {} MiB", MOST >> 20)));
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map(fs::create_dir_all).transpose()?;
        // By one rename: readers find the old content or the new one.
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        // A leftover is removed first: in a folder that others may write to, it may be a link.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Names of services may hold passwords.
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(beside, &self.path)
    }
}

/// Gives services to the task that writes them.
#[derive(Debug)]
pub(super) struct Writer {
    sender: watch::Sender<Arc<Services>>,
    expire: i64,
    written: Option<Instant>,
}

impl Writer {
    /// Has the file hold what was answered just now. Where nothing has changed, a file that expires is written again in time.
    pub fn keep(&mut self, changed: bool, services: impl FnOnce() -> Services) {
        let half = Duration::from_secs(self.expire.max(0).unsigned_abs()) / 2;
        let ages = |written: Instant| !half.is_zero() && written.elapsed() >= half;
        if changed || self.written.is_none_or(ages) {
            self.written = Some(Instant::now());
            self.sender.send_replace(Arc::new(services()));
        }
    }
}

async fn write_newest(file: DumpFile, mut newest: watch::Receiver<Arc<Services>>) {
    let mut logged = None;
    while newest.changed().await.is_ok() {
        let services = newest.borrow_and_update().clone();
        let to = file.clone();
        let written = crate::tasks::blocking(move || to.write(&services)).await;
        let why = written.unwrap_or_else(|| Err(io::Error::other("a mistake of the gateway"))).err();
        let why = why.map(|error| error.to_string());
        if let Some(why) = why.as_ref().filter(|why| logged.as_ref() != Some(*why)) {
            tracing::error!("write dump into file got error: {}: {why}", file.path.display());
        }
        logged = why;
    }
}

fn content(services: Map<String, Value>, last_update: u64, expire: i64) -> Value {
    json!({"services": services, "last_update": last_update, "expire": expire})
}

fn read(path: &Path) -> io::Result<Content> {
    let shown = path.display();
    let wrong = |why: String| Err(io::Error::other(why));
    let open = |error: io::Error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "No such file or directory".to_owned(),
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("failed to open file: {shown}, error info:{shown}: {why}"))
    };
    // Opening a pipe without a writer would block forever.
    if !fs::metadata(path).map_err(open)?.is_file() {
        return wrong(format!("failed to open file: {shown}, error info:{shown}: not a regular file"));
    }
    let mut text = Vec::new();
    fs::File::open(path).map_err(open)?.take(MOST + 1).read_to_end(&mut text).map_err(open)?;
    if text.len() as u64 > MOST {
        return wrong(format!(
            "failed to read file: {shown}, error info:it is larger than {} MiB",
            MOST >> 20
        ));
    }
    if text.trim_ascii().is_empty() {
        return wrong(format!("dump file is empty: {shown}"));
    }
    serde_json::from_slice(&text)
        .or_else(|error| wrong(format!("decoded dump data got error: {error}, file: {shown}")))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: PathBuf, expire: i64) -> DumpFile {
        DumpFile { path, load_on_init: true, expire }
    }

    #[tokio::test]
    async fn what_apisix_wrote_is_read_and_nonsense_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("consul.dump");
        let load = |text: &str, expire| {
            fs::write(&path, text).unwrap();
            let file = file(path.clone(), expire);
            async move { file.load().await }
        };
        let text = r#"{"services":{"a":[{"host":"10.0.0.1","port":80,"weight":1.6,"metadata":{"z":"1"}},{"host":"h","port":1}],
            "empty":[]},"last_update":7,"expire":0}"#;
        let services = load(text, 0).await.unwrap();
        let nodes: Vec<_> = services["a"].iter().map(|it| (&*it.host, it.port, it.weight)).collect();
        assert_eq!((nodes, services.len()), (vec![("10.0.0.1", 80, 2), ("h", 1, 1)], 2));
        assert_eq!(services["a"][0].metadata.as_ref().unwrap()["z"], "1");
        let error_of = async |text: &str, expire| load(text, expire).await.unwrap_err().to_string();
        assert!(error_of(text, 60).await.ends_with("consul.dump had expired, ignored it"));
        assert!(load(&text.replace("7", "9999999999"), 60).await.is_ok());
        for (wrong, words) in [
            (" \n", "is empty"),
            ("{", "got error"),
            ("[]", "got error"),
            (r#"{"services":{}}"#, "last_update"),
            (r#"{"services":{"a":[{"host":"h","port":99999}]},"last_update":1}"#, "got error"),
        ] {
            let error = error_of(wrong, 0).await;
            assert!(error.contains(words), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let missing = file(path.clone(), 0).load().await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().ends_with("consul.dump: No such file or directory"), "{missing}");
        let folder = file(folder.path().to_owned(), 0).load().await.unwrap_err().to_string();
        assert!(folder.ends_with("not a regular file"), "{folder}");
    }

    #[tokio::test]
    async fn what_is_written_is_read_again_and_shown_without_passwords() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path().join("new/consul.dump"), 5);
        let node = Node { host: "h".into(), port: 1, weight: 2, priority: 3, metadata: None };
        let services = Services::from([("http://u:s3cret@h/v1/kv/a/".to_owned(), vec![node])]);
        file.write(&services).unwrap();
        assert_eq!(file.load().await.unwrap(), services);
        // A link that another user left behind.
        std::os::unix::fs::symlink(folder.path().join("other"), folder.path().join("new/consul.dump.new"))
            .unwrap();
        file.write(&services).unwrap();
        assert!(!folder.path().join("other").exists());
        let shown = file.show().unwrap();
        assert_eq!(shown["services"]["http://***@h/v1/kv/a/"][0]["port"], 1);
        assert_eq!(shown["expire"], 5);
        fs::write(&file.path, "{}").unwrap();
        assert!(file.show().unwrap_err().to_string().contains("missing field `services`"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_expires_is_written_again_in_time() {
        let writer = |expire| {
            let (sender, mut seen) = watch::channel(Arc::default());
            let mut writer = Writer { sender, expire, written: None };
            move |changed| {
                writer.keep(changed, Services::default);
                let written = seen.has_changed().unwrap();
                seen.mark_unchanged();
                written
            }
        };
        let (mut expires, mut stays) = (writer(10), writer(0));
        assert!(expires(false) && stays(false), "there is no file yet");
        assert!(!expires(false) && !stays(false));
        assert!(expires(true) && stays(true));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(expires(false) && !stays(false));
        assert!(!expires(false));
    }
}
