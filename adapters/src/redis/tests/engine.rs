//! Real Redis servers for a test, each on a free port and in a folder of its own.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Real, hit, limiter, until};
use sdk::limit::Rule;

/// One server; killed when it is dropped.
pub struct Engine {
    pub port: u16,
    arguments: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
}

/// A port below 10000 of a free address of the loopback, so that the bus of a cluster has one, too.
fn free_port() -> u16 {
    for _ in 0..1_000 {
        let port = fastrand::u16(10_100..20_000);
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
    panic!("no free port");
}

impl Engine {
    pub fn start(arguments: &[&str]) -> Engine {
        let port = free_port();
        let mut all = vec!["--port".to_owned(), port.to_string(), "--save".to_owned(), String::new()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Engine::run(port, all)
    }

    fn run(port: u16, arguments: Vec<String>) -> Engine {
        let folder = tempfile::tempdir().unwrap();
        let mut engine = Engine { port, arguments, folder, child: None };
        engine.begin();
        engine
    }

    /// Starts it (again) and waits until it accepts connections.
    pub fn begin(&mut self) {
        // The server, under the name of its checker, which Debian's redis-tools has.
        let mut command = Command::new("redis-check-rdb");
        command.arg0("redis-server").args(&self.arguments).current_dir(self.folder.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("Debian's redis-tools, which `cargo x test` installs"));
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("Redis does not start: {:?}", self.arguments);
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        let output = command.args(["-p", &self.port.to_string()]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// A number of INFO.
    pub fn stat(&self, name: &str) -> u64 {
        let info = self.cli(&["info"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}: {info}"))
    }

    pub fn settings(&self) -> Value {
        json!({"redis_host": "127.0.0.1", "redis_port": self.port})
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(20));
    false
}

pub struct Cluster(Vec<Engine>);

/// A cluster of masters and as many replicas.
pub fn cluster(masters: usize, replicas: usize) -> Cluster {
    let arguments =
        ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];
    let nodes: Vec<_> = (0..masters + replicas).map(|_| Engine::start(&arguments)).collect();
    let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let mut arguments = vec!["--cluster", "create"];
    arguments.extend(addresses.iter().map(String::as_str));
    arguments.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    let made = nodes[0].cli(&arguments);
    assert!(made.contains("All 16384 slots covered"), "{made}");
    // Each node finds out by itself.
    for node in &nodes {
        let is_up = || {
            let replication = node.cli(&["info", "replication"]);
            node.cli(&["cluster", "info"]).contains("cluster_state:ok")
                && (replication.contains("role:master") || replication.contains("master_link_status:up"))
        };
        assert!((0..600).any(|_| is_up() || pause()), "{}", node.cli(&["cluster", "info"]));
    }
    Cluster(nodes)
}

impl Cluster {
    pub fn settings(&self) -> Value {
        let nodes: Vec<_> = self.0.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        json!({"redis_cluster_nodes": nodes, "redis_cluster_name": "c"})
    }

    /// A slot moves to another node, then its node dies: the limit goes on where its key is.
    pub async fn moves_and_fails_over(mut self) {
        let (limiter, world) = (limiter("redis-cluster", "moves", &self.settings()), Real::default());
        let rule = Rule::Fixed { limit: 1_000, window_ms: 600_000 };
        assert_eq!(hit(&*limiter, &world, rule).await, Ok(999));
        let has_key = |node: &Engine| {
            !node.cli(&["keys", "*moves*"]).trim().is_empty() && node.cli(&["role"]).starts_with("master")
        };
        let from = self.0.iter().position(has_key).expect("a node with the key");
        let key = self.0[from].cli(&["keys", "*moves*"]).trim().to_owned();
        let slot = self.0[from].cli(&["cluster", "keyslot", &key]).trim().to_owned();
        let to = (0..3).find(|&to| to != from).unwrap();
        let ids: Vec<_> =
            self.0.iter().map(|node| node.cli(&["cluster", "myid"]).trim().to_owned()).collect();
        let set =
            |at: usize, how: &str, id: usize| self.0[at].cli(&["cluster", "setslot", &slot, how, &ids[id]]);
        // While it moves, its node asks to go to the other one for a key that is there already.
        set(to, "importing", from);
        set(from, "migrating", to);
        self.0[from].cli(&["migrate", "127.0.0.1", &self.0[to].port.to_string(), &key, "0", "5000"]);
        assert_eq!(hit(&*limiter, &world, rule).await, Ok(998));
        for at in [to, from] {
            set(at, "node", to);
        }
        assert_eq!(hit(&*limiter, &world, rule).await, Ok(997));
        assert_eq!(hit(&*limiter, &world, rule).await, Ok(996));
        // Its replica takes over.
        self.0[to].kill();
        until("a failover of the cluster", async || hit(&*limiter, &world, rule).await.ok()).await;
    }
}

pub struct Sentinels {
    master: Engine,
    replica: Engine,
    sentinels: Vec<Engine>,
}

/// A master with a replica, and three sentinels.
pub fn sentinels() -> Sentinels {
    let password = ["--requirepass", "secret", "--masterauth", "secret"];
    let master = Engine::start(&password);
    let port = master.port.to_string();
    let replica = Engine::start(&[&password[..], &["--replicaof", "127.0.0.1", &port]].concat());
    let sentinels = (0..3).map(|_| {
        let own = free_port();
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "port {own}\nsentinel monitor m 127.0.0.1 {port} 2\nsentinel auth-pass m secret\n\
             sentinel down-after-milliseconds m 1000\nsentinel failover-timeout m 5000\n"
        );
        std::fs::write(folder.path().join("sentinel.conf"), config).unwrap();
        let arguments = vec!["sentinel.conf".to_owned(), "--sentinel".to_owned()];
        let mut engine = Engine { port: own, arguments, folder, child: None };
        engine.begin();
        engine
    });
    Sentinels { sentinels: sentinels.collect(), master, replica }
}

impl Sentinels {
    pub fn settings(&self) -> Value {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|it| json!({"host": "127.0.0.1", "port": it.port})).collect();
        json!({"redis_sentinels": sentinels, "redis_master_name": "m", "redis_password": "secret"})
    }

    /// The master dies and the replica takes over; then the first sentinel dies as well.
    pub async fn fails_over(mut self) {
        let (limiter, world) = (limiter("redis-sentinel", "fails", &self.settings()), Real::default());
        let rule = Rule::Fixed { limit: 1_000, window_ms: 600_000 };
        let ready = async || {
            let seen = self.sentinels[0].cli(&["sentinel", "master", "m"]);
            let of = |name: &str| seen.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
            let both =
                of("num-slaves").as_deref() == Some("1") && of("num-other-sentinels").as_deref() == Some("2");
            both.then_some(())
        };
        until("sentinels that know each other", ready).await;
        until("a replica", async || {
            self.replica.cli(&["-a", "secret", "info"]).contains("master_link_status:up").then_some(())
        })
        .await;
        assert_eq!(hit(&*limiter, &world, rule).await, Ok(999));
        self.master.kill();
        until("a failover", async || hit(&*limiter, &world, rule).await.ok()).await;
        self.sentinels[0].kill();
        assert!(hit(&*limiter, &world, rule).await.is_ok());
        assert!(self.replica.cli(&["-a", "secret", "role"]).starts_with("master"));
    }
}
