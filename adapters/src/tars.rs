//! Tars: the registry that its nodes write into a MySQL database.
//!
//! As in APISIX, everything is read now and then, and what changed lately in between. A server that speaks no TLS
//! is asked in clear text: the database belongs into a network of its own.

mod gate;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use control::discovery::{Asking, Discovery, Found, Service, dump};
use model::Node;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use gate::Gate;

/// How long connecting, a question, and each row of its answer may take, as in APISIX.
const PATIENCE: Duration = Duration::from_secs(3);
/// One answer in all. Beyond that it is an error.
const MOST_SERVICES: usize = 100_000;
const MOST_BYTES: usize = 64 << 20;
/// Of one packet, which holds a row. A list of endpoints that is cut short would end in a wrong port: by default a
/// server cuts them after 1,024 bytes.
const LARGEST_PACKET: usize = 16 << 20;
/// Changes are looked for a little further back than the last question, since clocks differ.
const OVERLAP: u64 = 5;

pub struct Tars {
    config: Value,
    settings: Settings,
    opts: Opts,
    state: Mutex<State>,
}

#[derive(Debug, Deserialize)]
struct Settings {
    db_conf: Database,
    #[serde(default = "three_hundred")]
    full_fetch_interval: u64,
    #[serde(default = "fifteen")]
    incremental_fetch_interval: u64,
    #[serde(default = "hundred")]
    default_weight: u32,
}

#[derive(Deserialize)]
struct Database {
    host: String,
    #[serde(default = "mysql_port")]
    port: u16,
    database: String,
    user: String,
    password: String,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

/// What was read, and when.
#[derive(Debug, Default)]
struct State {
    services: BTreeMap<String, Vec<Node>>,
    /// Of the last full reading, and of the last of either kind that went well.
    full: Option<Instant>,
    last: Option<Instant>,
}

/// One servant as the database knows it.
struct Servant {
    name: String,
    active: bool,
    endpoints: String,
}

fn three_hundred() -> u64 {
    300
}

fn fifteen() -> u64 {
    15
}

fn hundred() -> u32 {
    100
}

fn mysql_port() -> u16 {
    3306
}

impl std::fmt::Debug for Tars {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tars").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Tars {
    pub fn new(config: &Value) -> Result<Tars, String> {
        let settings: Settings = crate::settings(config)?;
        for (name, value, range) in [
            ("full_fetch_interval", settings.full_fetch_interval, 90..=3600),
            ("incremental_fetch_interval", settings.incremental_fetch_interval, 5..=60),
            ("default_weight", settings.default_weight.into(), 0..=100),
        ] {
            if !range.contains(&value) {
                return Err(format!("{name}: expected {} to {}, got {value}", range.start(), range.end()));
            }
        }
        let database = &settings.db_conf;
        let opts = OptsBuilder::default()
            .ip_or_hostname(database.host.clone())
            .tcp_port(database.port)
            .user(Some(database.user.clone()))
            .pass(Some(database.password.clone()))
            .db_name(Some(database.database.clone()))
            .prefer_socket(false)
            .stmt_cache_size(0)
            .init(vec![format!("set session group_concat_max_len = {LARGEST_PACKET}")])
            // These two would be asked for otherwise.
            .max_allowed_packet(Some(LARGEST_PACKET))
            .wait_timeout(Some(60));
        Ok(Tars { config: config.clone(), opts: opts.into(), settings, state: Mutex::default() })
    }

    async fn fetch(&self) -> Result<BTreeMap<String, Vec<Node>>, String> {
        let changes = {
            let state = self.state();
            let within = |since: Option<Instant>, seconds| {
                since.is_some_and(|since| since.elapsed() < Duration::from_secs(seconds))
            };
            within(state.full, self.settings.full_fetch_interval)
                && within(state.last, self.settings.incremental_fetch_interval + OVERLAP / 2)
        };
        let query = if changes {
            changes_within(self.settings.incremental_fetch_interval + OVERLAP)
        } else {
            everything()
        };
        let asked = Instant::now();
        let servants = self.query(&query).await?;
        let mut state = self.state();
        if !changes {
            state.services.clear();
            state.full = Some(asked);
        }
        state.last = Some(asked);
        apply(&mut state.services, servants, self.settings.default_weight);
        Ok(state.services.clone())
    }

    async fn query(&self, query: &str) -> Result<Vec<Servant>, String> {
        let server = &self.settings.db_conf;
        let late = |what: &str| format!("{server:?}: {what} took more than {} s", PATIENCE.as_secs());
        let failed = |error: mysql_async::Error| format!("{server:?}: {error}");
        let opening = timeout(PATIENCE, Gate::open(&server.host, server.port)).await;
        let gate =
            opening.map_err(|_| late("connecting"))?.map_err(|error| format!("{server:?}: {error}"))?;
        let opts = OptsBuilder::from_opts(self.opts.clone())
            .ip_or_hostname(Ipv4Addr::LOCALHOST.to_string())
            .tcp_port(gate.port);
        let connecting = timeout(PATIENCE, Conn::new(opts)).await;
        let mut conn = connecting.map_err(|_| late("connecting"))?.map_err(failed)?;
        let mut servants = Vec::new();
        {
            let asked = timeout(PATIENCE, conn.query_iter(query)).await;
            let mut rows = asked.map_err(|_| late("the answer"))?.map_err(failed)?;
            let mut bytes = 0;
            while let Some(row) =
                timeout(PATIENCE, rows.next()).await.map_err(|_| late("the answer"))?.map_err(failed)?
            {
                let Some(servant) = servant(&row) else { continue };
                bytes += servant.name.len() + servant.endpoints.len();
                if servants.len() == MOST_SERVICES || bytes > MOST_BYTES {
                    return Err(format!(
                        "{server:?}: the answer has more than {MOST_SERVICES} services or {} MiB",
                        MOST_BYTES >> 20
                    ));
                }
                servants.push(servant);
            }
        }
        // A server that does not take leave has answered all the same.
        let _ = timeout(PATIENCE, conn.disconnect()).await;
        Ok(servants)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Discovery for Tars {
    fn kind(&self) -> &'static str {
        "tars"
    }

    fn id(&self, service: &Service) -> String {
        service.service_name.clone()
    }

    fn ask<'a>(&'a self, _: &'a BTreeSet<Service>) -> Asking<'a> {
        Box::pin(async {
            Ok(Found {
                services: self.fetch().await?,
                complete: true,
                failed: None,
                pause: Duration::from_secs(self.settings.incremental_fetch_interval),
            })
        })
    }

    fn dump(&self, services: &BTreeMap<String, Vec<Node>>) -> Value {
        dump(&self.config, services)
    }
}

/// Servants are active if their server is meant to run, and does.
const ACTIVE: &str = "setting_state = 'active' and present_state = 'active'";
const TABLES: &str = "t_server_conf left join t_adapter_conf using (application, server_name, node_name)";

fn everything() -> String {
    format!(
        "select servant, 1 as active, group_concat(endpoint order by endpoint) as endpoints \
         from {TABLES} where {ACTIVE} group by servant"
    )
}

/// All servants of applications in which something registered itself in the last so many seconds.
fn changes_within(seconds: u64) -> String {
    let recent = |table: &str| {
        format!(
            "select application, server_name from {table} \
             where registry_timestamp > now() - interval {seconds} second"
        )
    };
    format!(
        "select servant, ({ACTIVE}) as active, group_concat(endpoint order by endpoint) as endpoints \
         from {TABLES} where (application, server_name) in ({} union {}) group by servant, active",
        recent("t_server_conf"),
        recent("t_adapter_conf")
    )
}

/// A server without an adapter has no servant.
fn servant(row: &Row) -> Option<Servant> {
    let text = |at: usize| row.get_opt::<Option<String>, usize>(at)?.ok()?;
    let active = row.get_opt::<Option<i64>, usize>(1)?.ok()?;
    Some(Servant { name: text(0)?, active: active == Some(1), endpoints: text(2).unwrap_or_default() })
}

/// A servant may be active on some nodes and not on others; the active ones count.
fn apply(services: &mut BTreeMap<String, Vec<Node>>, servants: Vec<Servant>, weight: u32) {
    let active: HashSet<String> =
        servants.iter().filter(|servant| servant.active).map(|servant| servant.name.clone()).collect();
    for servant in servants {
        if servant.active {
            let nodes = servant.endpoints.split(',').filter_map(|text| node(text, weight)).collect();
            services.insert(servant.name, nodes);
        } else if !active.contains(&servant.name) {
            services.remove(&servant.name);
        }
    }
}

/// `tcp -h 10.0.0.1 -p 10001 -t 3000 -e 0`, in any order; other protocols than TCP are for Tars alone.
fn node(endpoint: &str, weight: u32) -> Option<Node> {
    let mut words = endpoint.split_whitespace();
    if words.next()? != "tcp" {
        return None;
    }
    let (mut host, mut port) = (None, None);
    while let Some(word) = words.next() {
        let option = word.get(..2)?;
        let value = match word.get(2..)? {
            "" => words.next()?,
            attached => attached,
        };
        match option {
            "-h" | "-H" => host = Some(value),
            "-p" | "-P" => port = value.parse().ok(),
            _ => {}
        }
    }
    let port = port.filter(|&port| port > 0)?;
    Some(Node { host: host?.to_owned(), port, weight, priority: 0, metadata: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(port: u16) -> Value {
        json!({"db_conf": {"host": "127.0.0.1", "port": port, "database": "db_tars", "user": "u", "password": "secret"}})
    }

    fn found(servants: &[(&str, bool, &str)], services: &mut BTreeMap<String, Vec<Node>>) -> Vec<String> {
        let servants = servants.iter().map(|(name, active, endpoints)| Servant {
            name: (*name).to_owned(),
            active: *active,
            endpoints: (*endpoints).to_owned(),
        });
        apply(services, servants.collect(), 100);
        let text = |(name, nodes): (&String, &Vec<Node>)| {
            let nodes: Vec<_> = nodes.iter().map(|it| format!("{}:{}", it.host, it.port)).collect();
            format!("{name} {}", nodes.join(" "))
        };
        services.iter().map(text).collect()
    }

    #[test]
    fn endpoints_are_read_in_any_order() {
        for (text, expected) in [
            ("tcp -h 10.0.0.1 -p 11 -t 6000 -e 0", Some(("10.0.0.1", 11))),
            ("tcp -e 0 -p 12 -t3000 -h 10.0.0.2", Some(("10.0.0.2", 12))),
            ("tcp -P13 -Htars.example", Some(("tars.example", 13))),
            ("udp -h 10.0.0.1 -p 11", None),
            ("tcp -h 10.0.0.1", None),
            ("tcp -p 11", None),
            ("tcp -h 10.0.0.1 -p 0", None),
            ("tcp -h 10.0.0.1 -p 65536", None),
            ("tcp -h 10.0.0.1 -p", None),
            ("tcp é -h a -p 1", None),
            ("", None),
        ] {
            let node = node(text, 7);
            let found = node.as_ref().map(|it| (it.host.as_str(), it.port));
            assert_eq!(found, expected, "{text}");
            assert!(node.is_none_or(|it| it.weight == 7));
        }
    }

    #[test]
    fn changes_are_laid_over_what_is_known() {
        let mut services = BTreeMap::new();
        let all = [
            ("A.S.One", true, "tcp -h 10.0.0.1 -p 1,tcp -h 10.0.0.2 -p 1,udp -h 10.0.0.3 -p 1"),
            ("A.S.Two", true, "tcp -h 10.0.0.1 -p 2"),
            ("A.S.Three", true, "tcp -h 10.0.0.1 -p 3"),
        ];
        assert_eq!(
            found(&all, &mut services),
            ["A.S.One 10.0.0.1:1 10.0.0.2:1", "A.S.Three 10.0.0.1:3", "A.S.Two 10.0.0.1:2"]
        );
        // One node of the first is down, the second altogether.
        let changes = [
            ("A.S.One", false, "tcp -h 10.0.0.2 -p 1"),
            ("A.S.One", true, "tcp -h 10.0.0.1 -p 1"),
            ("A.S.Two", false, "tcp -h 10.0.0.1 -p 2"),
        ];
        assert_eq!(found(&changes, &mut services), ["A.S.One 10.0.0.1:1", "A.S.Three 10.0.0.1:3"]);
    }

    #[test]
    fn settings_are_those_of_apisix() {
        let tars = Tars::new(&config(3307)).unwrap();
        assert_eq!((tars.settings.full_fetch_interval, tars.settings.incremental_fetch_interval), (300, 15));
        assert_eq!((tars.opts.ip_or_hostname(), tars.opts.tcp_port()), ("127.0.0.1", 3307));
        for (field, value) in
            [("full_fetch_interval", 89), ("incremental_fetch_interval", 61), ("default_weight", 101)]
        {
            let mut config = config(1);
            config[field] = json!(value);
            let error = Tars::new(&config).unwrap_err();
            assert!(error.contains(field) && error.contains(&value.to_string()), "{error}");
        }
        assert!(Tars::new(&json!({"db_conf": {"host": "a"}})).unwrap_err().contains("database"));
        let shown = format!("{tars:?} {}", tars.dump(&BTreeMap::new()));
        assert!(shown.contains("\"password\":\"***\"") && !shown.contains("secret"), "{shown}");
    }

    /// A packet of MySQL: its length, its number, and what is in it.
    fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        [&length[..3], &[number], payload].concat()
    }

    /// What a server says first: version 10, with the ways to log in by a password that all clients know.
    fn greeting() -> Vec<u8> {
        let mut hello = vec![10];
        hello.extend(b"8.0.0\0");
        hello.extend([1, 0, 0, 0]);
        hello.extend([b'a'; 8]);
        // Nothing, then what it can do: long passwords, a database, protocol 4.1, transactions, a long challenge and
        // ways to log in by name; a character set and a state.
        hello.extend([0, 0x09, 0xa2, 45, 2, 0, 0x08, 0x00, 21]);
        hello.extend([0; 10]);
        hello.extend([b'b'; 12]);
        hello.push(0);
        hello.extend(b"mysql_native_password\0");
        packet(0, &hello)
    }

    const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

    /// A column of texts.
    fn column(name: &str) -> Vec<u8> {
        let mut column = Vec::new();
        for text in ["def", "", "", "", name, name] {
            column.push(u8::try_from(text.len()).unwrap());
            column.extend(text.as_bytes());
        }
        column.extend([12, 45, 0, 0, 1, 0, 0, 253, 0, 0, 0, 0, 0]);
        column
    }

    /// A server that lets anybody in, agrees to every setting, and answers the first question in the given way.
    async fn hostile(answer: impl Fn(tokio::net::TcpStream) -> Answering + Send + Sync + 'static) -> u16 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = std::sync::Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let _ = stream.write_all(&greeting()).await;
                    loop {
                        let mut head = [0; 4];
                        if stream.read_exact(&mut head).await.is_err() {
                            return;
                        }
                        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
                        let mut payload = vec![0; length as usize];
                        if stream.read_exact(&mut payload).await.is_err() {
                            return;
                        }
                        if payload.starts_with(b"\x03select servant") {
                            return answer(stream).await;
                        }
                        let _ = stream.write_all(&packet(head[3] + 1, OK)).await;
                    }
                });
            }
        });
        port
    }

    type Answering = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

    #[tokio::test]
    async fn a_server_that_answers_without_sense_or_end_is_an_error() {
        use tokio::io::AsyncWriteExt;
        let head = || {
            let columns = ["servant", "active", "endpoints"];
            let mut head = packet(1, &[3]);
            for (number, name) in (2..).zip(columns) {
                head.extend(packet(number, &column(name)));
            }
            head.extend(packet(5, &[0xfe, 0, 0, 2, 0]));
            head
        };
        let row = |number: u8, endpoints: usize| {
            let mut row = vec![1, b'S', 1, b'1'];
            row.push(0xfd);
            row.extend(&u32::try_from(endpoints).unwrap().to_le_bytes()[..3]);
            row.resize(row.len() + endpoints, b'x');
            packet(number, &row)
        };
        // That the server is one that would be understood, if it wanted to be.
        let good = head();
        let port = hostile(move |mut stream| {
            let mut answer = good.clone();
            answer.extend(packet(6, b"\x05A.B.C\x011\x15tcp -h 10.0.0.1 -p 80"));
            answer.extend(packet(7, &[0xfe, 0, 0, 2, 0]));
            Box::pin(async move {
                let _ = stream.write_all(&answer).await;
            })
        })
        .await;
        let found = Tars::new(&config(port)).unwrap().fetch().await.unwrap();
        assert_eq!(found["A.B.C"].iter().map(|node| node.port).collect::<Vec<_>>(), [80]);
        type Way = Box<dyn Fn(u64) -> Vec<u8> + Send + Sync>;
        /// Packets are numbered, and all numbers come by in 256 of them.
        fn number(from: u64, n: u64) -> u8 {
            ((from + n) % 256) as u8
        }
        let ways: [(&str, Way); 8] = [
            ("rows without end", Box::new(move |n| row(number(6, n), 60_000))),
            (
                "servants without end",
                Box::new(move |_| (0..256).flat_map(|n| packet(number(6, n), b"\x01S\x011\x00")).collect()),
            ),
            (
                "columns without end",
                Box::new(|n| match n {
                    0 => packet(1, &[0xfe, 255, 255, 255, 255, 255, 255, 255, 255]),
                    _ => (0..256).flat_map(|n| packet(number(2, n), &column("c"))).collect(),
                }),
            ),
            (
                "a packet that is larger than any",
                Box::new(|_| [&[255, 255, 255, 1][..], &[b'x'; 100_000]].concat()),
            ),
            ("packets out of order", Box::new(|_| packet(77, &[3]))),
            ("a column that is none", Box::new(|_| [packet(1, &[3]), packet(2, &[255; 5])].concat())),
            ("an error without words", Box::new(|_| packet(1, &[255]))),
            (
                "a text that is longer than its packet",
                Box::new({
                    let head = head();
                    move |_| {
                        [head.clone(), packet(6, &[0xfe, 255, 255, 255, 255, 255, 255, 255, 127, 1])].concat()
                    }
                }),
            ),
        ];
        for (what, way) in ways {
            let way = std::sync::Arc::new(way);
            let first = if what.ends_with("without end") && !what.starts_with("columns") {
                head()
            } else {
                Vec::new()
            };
            let port = hostile(move |mut stream| {
                let (way, first) = (way.clone(), first.clone());
                Box::pin(async move {
                    let _ = stream.write_all(&first).await;
                    for n in 0.. {
                        if stream.write_all(&way(n)).await.is_err() {
                            return;
                        }
                        // Rows must go on in number; those that do not are an error of their own.
                        if n > 200_000 {
                            return;
                        }
                    }
                })
            })
            .await;
            let tars = Tars::new(&config(port)).unwrap();
            let asking = timeout(Duration::from_secs(60), tars.fetch()).await;
            let error = asking.unwrap_or_else(|_| panic!("{what}: no end")).expect_err(what);
            assert!(error.starts_with(&format!("127.0.0.1:{port}/db_tars: ")), "{what}: {error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_speaks_something_else_is_an_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                use tokio::io::AsyncWriteExt;
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        });
        let tars = Tars::new(&config(port)).unwrap();
        let error = tars.fetch().await.unwrap_err();
        assert!(error.starts_with(&format!("127.0.0.1:{port}/db_tars: ")), "{error}");
    }
}
