//! What the APIs ask the rest of the program.

use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use model::{Diagnostic, Invalid, Key, Rejected};
use sdk::meters::Trials;
use serde_json::{Map, Value};

use crate::expiry::Expiring;

/// A reading of files that is under way: what came of it, in words, or what is wrong with them.
pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// What is told of the configuration, for people and for programs.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub text: String,
    pub value: Value,
}

/// What [`Program::explain`] and [`Program::analysis`] return: an error is why they cannot, in words.
pub type Telling<'a> = Pin<Box<dyn Future<Output = Result<Told, String>> + Send + 'a>>;

/// What [`Program::server_info`] returns.
pub type Info<'a> = Pin<Box<dyn Future<Output = Option<Value>> + Send + 'a>>;

/// What [`Program::dump_file`] returns: an error is why there is no content, in words.
pub type Dump<'a> = Pin<Box<dyn Future<Output = Option<Result<Value, String>>> + Send + 'a>>;

/// A request that somebody wants to have explained.
#[derive(Debug, Clone, Default)]
pub struct Question {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub remote_addr: Option<IpAddr>,
    pub body: Option<Vec<u8>>,
    /// As of a past revision.
    pub revision: Option<u64>,
}

/// What the rest of the program answers the two APIs.
pub trait Program: Send + Sync {
    /// Which snapshot is out, who runs which, and what could not be used.
    fn published(&self) -> Published;

    /// What became of a change of `key` that made this revision. Waits no longer than is hardly
    /// noticed: a write is done when the store has it.
    fn verdict<'a>(&'a self, _key: &'a Key, _revision: u64) -> Verdict<'a> {
        Box::pin(ready(Outcome::Pending))
    }

    /// Settings of resources that have no effect: the first, and how many resources ask so.
    fn without_effect(&self) -> (Arc<[(Key, Invalid)]>, usize) {
        Default::default()
    }

    /// Reads the `plugins` list of config.yaml again; `None` if there is none, which means all.
    ///
    /// # Errors
    /// Why it cannot be read, in words.
    fn read_plugins(&self) -> Result<Option<Vec<String>>, String>;

    /// Uses this list, as [`read_plugins`](Program::read_plugins) gives it, where no store has one.
    fn use_plugins(&self, names: Option<Vec<String>>);

    /// Reads the files again, as SIGHUP does.
    fn reload(&self) -> Reloading<'_>;

    /// What a service registry knows, as APISIX shows it; `None` if nobody asks it.
    fn discovered(&self, _kind: &str) -> Option<Value> {
        None
    }

    /// What stands in the file in which a service registry's nodes are kept; `None` if there is no such registry.
    fn dump_file(&self, _kind: &str) -> Dump<'_> {
        Box::pin(ready(None))
    }

    /// What the plugin server-info tells of this instance; `None` where the plugin is not in use.
    fn server_info(&self) -> Info<'_> {
        Box::pin(ready(None))
    }

    /// What health checks have found.
    fn health(&self) -> Vec<control::health::Checker> {
        Vec::new()
    }

    /// Up to `most` certificates in use, those that expire soonest first, and how many there are.
    fn certificates(&self, _most: usize) -> (Vec<Expiring>, usize) {
        Default::default()
    }

    /// What would become of a request, and why.
    fn explain(&self, _question: Question) -> Telling<'_> {
        Box::pin(ready(Err("this program explains nothing".to_owned())))
    }

    /// What of the configuration is worth a second look.
    fn analysis(&self) -> Telling<'_> {
        Box::pin(ready(Err("this program looks at nothing".to_owned())))
    }

    /// Has all requests counted and timed from now on, or no more.
    fn watch_traffic(&self, _watches: bool) {}

    /// What was counted since.
    fn traffic(&self) -> Trials {
        Trials::default()
    }

    /// What runs, for people: version, addresses, counts and the like.
    fn about(&self) -> Map<String, Value>;

    /// Says from now on that it is not ready (`true`), so that no new clients are sent here, or takes that
    /// back. Who is connected is served as before.
    fn drain(&self, _drains: bool) {}

    /// Since when it drains, in seconds since 1970.
    fn drains_since(&self) -> Option<u64> {
        None
    }

    /// Whether traffic is served as configured: every worker is on the newest snapshot.
    ///
    /// # Errors
    /// What is waited for, in words.
    fn ready(&self) -> Result<(), String> {
        self.published().workers_ready()
    }
}

/// What [`Program::verdict`] returns.
pub type Verdict<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// What became of a change, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the snapshot that workers take with their next request.
    Published,
    /// It cannot be used, in words.
    Rejected(String),
    /// It is stored; that it is published may be waited for at `/v1/snapshot`.
    Pending,
}

/// The state of the configuration in the data plane.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Published {
    /// The revision of the newest snapshot.
    pub revision: u64,
    /// The revision each worker runs.
    pub workers: Vec<u64>,
    pub not_served: NotServed,
}

/// What is not served as it is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NotServed {
    pub resources: Vec<Rejected>,
    /// Parts of a file of resources that are no resources.
    pub findings: Arc<[Diagnostic]>,
}

impl NotServed {
    /// How many there are.
    pub fn total(&self) -> usize {
        self.resources.len() + self.findings.len()
    }
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
