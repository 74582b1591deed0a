//! A client of Sluice's Admin API and control API.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::gateways::{ADMIN_KEY, Place, Setup};
use crate::load::Target;
use crate::mixture::{self, Object};
use crate::probe::Client;
use crate::process::Process;

/// Objects per batch.
const BATCH: usize = 500;

/// Timeout of a batch request.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Admin {
    client: Client,
    control: Option<Client>,
}

impl Admin {
    /// # Errors
    /// The Admin API is not reachable.
    pub fn connect(place: &Place) -> Result<Self> {
        let client = Client::connect(&Target::plain(([127, 0, 0, 1], place.admin_port).into(), 0))?;
        client.be_patient(PATIENCE)?;
        // Optional: not every use needs it.
        let control = Client::connect(&Target::plain(([127, 0, 0, 1], place.control_port).into(), 0)).ok();
        Ok(Self { client, control })
    }

    /// As [`Admin::connect`], for a gateway that is starting.
    ///
    /// # Errors
    /// The gateway ends, or its Admin API is not reachable after 15 seconds.
    pub fn await_connect(process: &mut Process, place: &Place) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            process.must_run()?;
            match Self::connect(place) {
                Ok(admin) => return Ok(admin),
                Err(problem) if Instant::now() > deadline => {
                    return Err(problem)
                        .context(format!("no Admin API; its log ends with:\n{}", process.log_tail()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Writes one object; returns its revision.
    ///
    /// # Errors
    /// The object is rejected.
    pub fn put(&mut self, object: &Object) -> Result<u64> {
        let path = format!("{}/{}", object.kind, object.id);
        self.send("PUT", &path, &object.value).with_context(|| format!("PUT of {path}"))
    }

    /// Writes all objects of `setup`.
    ///
    /// # Errors
    /// An object is rejected.
    pub fn fill(&mut self, setup: &Setup, place: &Place) -> Result<()> {
        let mut operations = mixture::objects(setup, place.upstream_port)?.map(|object| {
            let path = format!("/{}/{}", object.kind, object.id);
            json!({ "method": "PUT", "path": path, "body": object.value })
        });
        loop {
            let batch: Vec<Value> = operations.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.send("POST", "batch", &json!({ "operations": batch })).context("a batch")?;
        }
    }

    /// Waits up to `patience` until every worker runs `revision`.
    ///
    /// # Errors
    /// The time is up.
    pub fn wait_for(&mut self, revision: u64, patience: Duration) -> Result<()> {
        let control = self.control.as_mut().context("no control API")?;
        let deadline = Instant::now() + patience;
        loop {
            let (status, _, body) = control.ask_whole(b"GET /v1/snapshot HTTP/1.1\r\nHost: bench\r\n\r\n")?;
            let snapshot: Value =
                serde_json::from_str(&body).context("the response to the snapshot request")?;
            let workers = snapshot["workers"].as_array().context("no workers in the snapshot response")?;
            if status == 200 && workers.iter().all(|worker| worker["revision"].as_u64() >= Some(revision)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("revision {revision} is not live after {patience:?}: {body}");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn send(&mut self, method: &str, path: &str, body: &Value) -> Result<u64> {
        let body = body.to_string();
        let request = format!(
            "{method} /apisix/admin/{path} HTTP/1.1\r\nHost: bench\r\nX-API-KEY: {ADMIN_KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, head, body) = self.client.ask_whole(request.as_bytes())?;
        if !matches!(status, 200 | 201) {
            bail!("answered {status}: {}", body.chars().take(500).collect::<String>());
        }
        let revision = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("x-sluice-revision").then(|| value.trim().parse().ok())?
        });
        Ok(revision.unwrap_or(0))
    }
}
