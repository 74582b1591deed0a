//! Free ports in a gateway's config.yaml, a route, and clients that send requests without a pause.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a gateway may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients of a load. Each has one connection at a time.
const CLIENTS: usize = 4;
/// The largest body that is read.
const MOST: usize = 1 << 20;

/// The path of the route, and its answer, which the gateway gives by itself.
const PATH: &str = "/trial";
const ROUTE: &str =
    r#"{"uri":"/trial","plugins":{"fault-injection":{"abort":{"http_status":200,"body":"served\n"}}}}"#;

/// Ports of a gateway: traffic, Admin API, control API, metrics.
pub struct Ports {
    traffic: u16,
    admin: u16,
    control: u16,
    metrics: u16,
}

impl Ports {
    pub fn free() -> Result<Ports> {
        // All are held until each is known, so that they differ.
        let sockets: Vec<_> = (0..4)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .collect::<std::io::Result<_>>()
            .context("no free port")?;
        let port = |index: usize| Ok::<_, anyhow::Error>(sockets[index].local_addr()?.port());
        Ok(Ports { traffic: port(0)?, admin: port(1)?, control: port(2)?, metrics: port(3)? })
    }

    /// Writes them into a config.yaml that has the default ones.
    pub fn write(&self, config: &Path) -> Result<()> {
        let mut text = std::fs::read_to_string(config)?;
        for (default, port) in
            [(9080, self.traffic), (9180, self.admin), (9090, self.control), (9091, self.metrics)]
        {
            let line = format!("port: {default}\n");
            if text.matches(&line).count() != 1 {
                bail!("{} does not have `port: {default}` once", config.display());
            }
            text = text.replace(&line, &format!("port: {port}\n"));
        }
        // Its default port may be in use.
        text = text.replacen("apisix:\n", "apisix:\n  ssl:\n    enable: false\n", 1);
        // In place, so that the file keeps its owner and mode.
        std::fs::write(config, text).with_context(|| format!("cannot write {}", config.display()))
    }

    /// Waits until the gateway serves, gives it a route, and checks that the route answers.
    pub fn route(&self, key: &Path) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        // The gateway makes the key at its first start.
        let key = loop {
            let up = TcpStream::connect((Ipv4Addr::LOCALHOST, self.admin)).is_ok();
            match std::fs::read_to_string(key) {
                Ok(key) if up => break key,
                _ if Instant::now() > until => {
                    bail!("the gateway was not ready in {} s, see its output", PATIENCE.as_secs())
                }
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let head = format!("PUT /apisix/admin/routes/trial HTTP/1.1\r\nX-API-KEY: {}\r\n", key.trim());
        let (status, body) = Connection::open(self.admin)?.ask(&head, ROUTE)?;
        if status != 201 && status != 200 {
            bail!("the route is rejected: {status} {body}");
        }
        self.serves()
    }

    /// Checks that the route answers.
    pub fn serves(&self) -> Result<()> {
        match Connection::open(self.traffic)?.ask(&head(), "")? {
            (200, body) if body == "served\n" => Ok(()),
            (status, body) => bail!("the route answers {status} {body:?}"),
        }
    }

    /// Process id of the gateway that serves now.
    pub fn process(&self) -> Result<u32> {
        let (_, body) = Connection::open(self.control)?.ask("GET /v1/status HTTP/1.1\r\n", "")?;
        let status: serde_json::Value = serde_json::from_str(&body)?;
        let pid = status.get("pid").and_then(serde_json::Value::as_u64);
        u32::try_from(pid.context("/v1/status has no pid")?).context("a process id")
    }

    /// Starts clients, each of which sends requests over one connection until the gateway closes that.
    pub fn load(&self) -> Load {
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..CLIENTS).map(|_| {
            let (port, stop, requests) = (self.traffic, stop.clone(), requests.clone());
            std::thread::spawn(move || client(port, &stop, &requests))
        });
        Load { clients: clients.collect(), stop, requests }
    }
}

fn head() -> String {
    format!("GET {PATH} HTTP/1.1\r\n")
}

/// Clients that send requests in the background.
pub struct Load {
    clients: Vec<JoinHandle<Result<usize>>>,
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Load {
    /// Waits until `more` requests were answered.
    pub fn wait(&self, more: usize) -> Result<()> {
        let (wanted, until) = (self.requests.load(Ordering::Relaxed) + more, Instant::now() + PATIENCE);
        while self.requests.load(Ordering::Relaxed) < wanted {
            // Then `finish` says why.
            if self.clients.iter().any(JoinHandle::is_finished) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("fewer than {more} requests were answered in {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Requests and connections.
    ///
    /// # Errors
    /// A request failed.
    pub fn finish(self) -> Result<(usize, usize)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut connections = 0;
        for client in self.clients {
            connections += client.join().ok().context("a client panicked")??;
        }
        Ok((self.requests.load(Ordering::Relaxed), connections))
    }
}

fn client(port: u16, stop: &AtomicBool, requests: &AtomicUsize) -> Result<usize> {
    let mut connections = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut connection = Connection::open(port)?;
        connections += 1;
        while !connection.closes && !stop.load(Ordering::Relaxed) {
            let done = requests.load(Ordering::Relaxed);
            let (status, body) = connection
                .ask(&head(), "")
                .with_context(|| format!("a request failed, after {done} that were answered"))?;
            if status != 200 {
                bail!("a request got {status} {body:?}, after {done} that were answered");
            }
            requests.fetch_add(1, Ordering::Relaxed);
            // The other core is the gateway's.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(connections)
}

/// A client's connection, HTTP/1.1.
struct Connection {
    stream: BufReader<TcpStream>,
    port: u16,
    /// The gateway has announced that it closes it.
    closes: bool,
}

impl Connection {
    fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("cannot connect to 127.0.0.1:{port}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream), port, closes: false })
    }

    /// Sends a request and reads its answer: status and body.
    fn ask(&mut self, head: &str, body: &str) -> Result<(u16, String)> {
        let (port, length) = (self.port, body.len());
        let request = format!("{head}Host: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("no status line, but {line:?}"))?;
        let (mut length, mut chunked) = (0, false);
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                bail!("the connection ended within the header");
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match (name.to_ascii_lowercase().as_str(), value.trim()) {
                ("content-length", value) => length = value.parse().context("Content-Length")?,
                ("transfer-encoding", _) => chunked = true,
                ("connection", "close") => self.closes = true,
                _ => {}
            }
        }
        let body = if chunked { self.chunks()? } else { self.bytes(length)? };
        Ok((status, String::from_utf8(body)?))
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        if length > MOST {
            bail!("a body of {length} bytes");
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).context("the connection ended within the body")?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim_end(), 16).context("a chunk's length")?;
            all.extend(self.bytes(length)?);
            self.stream.read_line(&mut line)?;
            if length == 0 || all.len() > MOST {
                return Ok(all);
            }
        }
    }
}
