//! A gateway with one origin behind it, in a folder of its own.

use super::origin::Origin;
use crate::case::{Case, Ports};
use crate::client::{Answer, Call, Client};
use crate::fill::Names;
use crate::gateway::{Gateway, KEY, Listen};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A change that is not live by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Site {
    pub origin: Origin,
    /// Address of the data port.
    pub proxy: String,
    admin: String,
    gateway: Gateway,
    pid: u32,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Site {
    /// Prepares and starts a gateway. `config` is laid over the runner's own; `limits` are shell
    /// commands (`ulimit ...`) run before it.
    pub fn start(program: &Path, config: Value, limits: &str) -> Result<Site> {
        let case: Case = serde_json::from_value(json!({
            "about": "a goal", "config": config, "limits": limits, "steps": [],
        }))?;
        Site::listening(program, &case, Listen::choose(Ports::Free)?, false, Origin::start()?)
    }

    /// The same, with a configuration that names the port for TLS.
    pub fn with_tls(program: &Path, config: impl Fn(u16) -> Value) -> Result<Site> {
        let listen = Listen::choose(Ports::Free)?;
        let case: Case = serde_json::from_value(json!({
            "about": "a goal", "config": config(listen.tls), "steps": [],
        }))?;
        Site::listening(program, &case, listen, false, Origin::start()?)
    }

    /// Address of the data port for TLS.
    pub fn tls(&self) -> String {
        format!("127.0.0.1:{}", self.gateway.listen.tls)
    }

    /// Another gateway on the same data port, with an origin of its own behind `uri`. It has its
    /// route from the start, since requests reach it from then on.
    pub fn beside(&self, program: &Path, uri: &str) -> Result<Site> {
        let origin = Origin::start()?;
        let mut route = route_to(origin.port, uri);
        route["id"] = json!("beside");
        let case: Case = serde_json::from_value(json!({
            "about": "a goal", "provider": "yaml", "resources": {"routes": [route]}, "steps": [],
        }))?;
        let listen = Listen { proxy: self.gateway.listen.proxy, ..Listen::choose(Ports::Free)? };
        let site = Site::listening(program, &case, listen, true, origin)?;
        // Its data port was open before; that it has come up shows elsewhere.
        let until = Instant::now() + PATIENCE;
        while !site.gateway.snapshot().is_ok_and(|snapshot| snapshot.published > 0) {
            ensure!(Instant::now() < until, "the second gateway does not come up:\n{}", site.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(site)
    }

    fn listening(
        program: &Path,
        case: &Case,
        listen: Listen,
        shares_port: bool,
        origin: Origin,
    ) -> Result<Site> {
        let folder = tempfile::Builder::new().prefix("sluice-soak-").tempdir()?;
        let mut gateway = Gateway::prepare(case, program, folder.path(), listen, &Names::default())?;
        gateway.shares_port = shares_port;
        let mut site = Site {
            origin,
            proxy: format!("127.0.0.1:{}", listen.proxy),
            admin: format!("127.0.0.1:{}", listen.admin),
            gateway,
            pid: 0,
            client: Client::default(),
            _folder: folder,
        };
        site.resume()?;
        Ok(site)
    }

    /// Starts the gateway again; the time until it takes connections.
    pub fn resume(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.pid = self.gateway.start()?;
        Ok(began.elapsed())
    }

    /// SIGKILL while others still talk to it; `kill` then cleans up.
    pub fn strike(&self) -> Result<()> {
        let status = Command::new("kill").arg("-KILL").arg(self.pid.to_string()).status()?;
        ensure!(status.success(), "kill -KILL {} failed", self.pid);
        Ok(())
    }

    pub fn kill(&mut self) -> Result<()> {
        self.client.forget();
        self.gateway.kill()
    }

    pub fn signal(&mut self, name: &str) -> Result<()> {
        self.gateway.signal(name)
    }

    /// Waits for the gateway's end and gives its exit code.
    pub fn wait(&mut self) -> Result<i32> {
        self.gateway.wait()
    }

    pub fn log(&self) -> String {
        self.gateway.log()
    }

    /// An address and key for writes from other threads.
    pub fn writer(&self) -> Writer {
        Writer { admin: self.admin.clone(), client: Client::default() }
    }

    /// A route to the origin, with more of what a route may have.
    pub fn route(&self, uri: &str, more: Value) -> Value {
        let mut route = route_to(self.origin.port, uri);
        if let (Value::Object(route), Value::Object(more)) = (&mut route, more) {
            route.extend(more);
        }
        route
    }

    /// PUTs a resource and waits until every worker runs it.
    pub fn put(&mut self, path: &str, value: &Value) -> Result<()> {
        self.admin(Call::new("PUT", &format!("/apisix/admin/{path}")), value)
    }

    /// Sends a change to the Admin API and waits until every worker runs it.
    pub fn admin(&mut self, call: Call, value: &Value) -> Result<()> {
        let before = self.gateway.snapshot()?.published;
        let path = call.target.clone();
        self.writer().send(call, value)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.gateway.snapshot()?;
            if now.published > before && now.is_everywhere() {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{path} is not live after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// GET on the data port, on the connection of that name.
    pub fn get(&mut self, target: &str, connection: &str) -> Result<Answer> {
        let call = Call { connection: Some(connection.to_owned()), ..Call::new("GET", target) };
        let answer = self.client.call(&self.proxy, &call)?;
        // After a number of requests a gateway closes a connection, and announces it.
        if answer.message.first("connection").is_some_and(|text| text.eq_ignore_ascii_case("close")) {
            self.client.forget();
        }
        Ok(answer)
    }

    pub fn metrics_port(&self) -> u16 {
        self.gateway.listen.metrics
    }

    /// Resident memory, in KiB.
    pub fn rss_kib(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid);
        let status = std::fs::read_to_string(path).context("the gateway is gone")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
        Ok(number.parse()?)
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid)).context("the gateway is gone")?.count())
    }

    /// Processor time it has used, of all its threads, in user and kernel mode.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).context("the gateway is gone")?;
        // Fields 14 and 15, in hundredths of a second; the second field, a name, may hold spaces.
        let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest).context("a stat without a name")?;
        let fields = after_name.split(' ').skip(11).take(2);
        let hundredths: u64 = fields.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(hundredths * 10))
    }

    pub fn lives(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists() && !self.log().contains("panicked")
    }
}

fn route_to(port: u16, uri: &str) -> Value {
    json!({
        "uri": uri,
        "upstream": {"type": "roundrobin", "nodes": {format!("127.0.0.1:{port}"): 1}},
    })
}

/// Writes through the Admin API on a connection of its own.
pub struct Writer {
    admin: String,
    client: Client,
}

impl Writer {
    /// PUTs a resource under `/apisix/admin/`; an answer other than 2xx is an error.
    pub fn put(&mut self, path: &str, value: &Value) -> Result<()> {
        self.send(Call::new("PUT", &format!("/apisix/admin/{path}")), value)
    }

    /// Sends a write; an answer other than 2xx is an error.
    pub fn send(&mut self, call: Call, value: &Value) -> Result<()> {
        let path = format!("{} {}", call.method, call.target);
        let call = call.header("X-API-KEY", KEY);
        let call = Call { connection: Some("own".to_owned()), ..call.body(value.to_string().into_bytes()) };
        let answer = self.client.call(&self.admin, &call)?;
        let message = &answer.message;
        ensure!(
            (200..300).contains(&message.status()),
            "{path}: {}: {}",
            message.line,
            String::from_utf8_lossy(&message.body)
        );
        Ok(())
    }
}

/// Repeats a reading until it is at most `bound`, up to a timeout, and returns the last one. A
/// gateway releases memory with a delay, which is longer on a busy machine.
pub fn settled<T: PartialOrd + Copy>(bound: T, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let until = Instant::now() + PATIENCE;
    loop {
        let now = read()?;
        if now <= bound || Instant::now() >= until {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Growth in percent; negative when it shrank.
pub fn growth(before: u64, after: u64) -> f64 {
    (after as f64 / before.max(1) as f64 - 1.0) * 100.0
}
