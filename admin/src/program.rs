//! What the APIs ask the rest of the program.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

/// A reading of files that is under way: what came of it, in words, or what is wrong with them.
pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// What the rest of the program answers the two APIs.
pub trait Program: Send + Sync {
    /// Which snapshot is out, who runs which, and what could not be used.
    fn published(&self) -> Published;

    /// Reads the `plugins` list of config.yaml again; `None` if there is none, which means all.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn read_plugins(&self) -> Result<Option<Vec<String>>, String>;

    /// Reads the files again, as SIGHUP does.
    fn reload(&self) -> Reloading<'_>;

    /// What runs, for people: version, addresses, counts and the like.
    fn about(&self) -> Map<String, Value>;

    /// Whether traffic is served as configured: every worker is on the newest snapshot.
    ///
    /// # Errors
    /// What is waited for, in words.
    fn ready(&self) -> Result<(), String> {
        self.published().workers_ready()
    }
}

/// The state of the configuration in the data plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// The revision of the newest snapshot.
    pub revision: u64,
    /// The revision each worker runs.
    pub workers: Vec<u64>,
    pub rejected: Vec<Rejected>,
}

impl Published {
    /// Whether every worker is on the newest snapshot.
    ///
    /// # Errors
    /// Who is not, in APISIX's words.
    pub fn workers_ready(&self) -> Result<(), String> {
        match self.workers.iter().position(|held| *held < self.revision) {
            None => Ok(()),
            Some(worker) => Err(format!("worker id: {worker} has not received configuration")),
        }
    }
}

/// Something stored that is not in use (or in use in an older form), and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The store's path, or the place in a file.
    pub key: String,
    /// RFC 6901, within the resource.
    pub pointer: String,
    pub reason: String,
    pub hint: Option<String>,
}
