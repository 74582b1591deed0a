//! The interface between the APIs and the rest of the program.

use std::future::{Future, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use model::{Diagnostic, Invalid, Key, Rejected};
use sdk::meters::Trials;
use serde_json::{Map, Value};

use crate::expiry::Expiring;
use crate::live::Live;

/// The result of [`Program::reload`]: a message for people, or an error in the files.
pub type Reloading<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// A reading of plugins in files.
pub type Rereading<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A report about the configuration, as text for people and as JSON for programs.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub text: String,
    pub value: Value,
}

/// The result of [`Program::explain`] and [`Program::analysis`]; the error is a message for people.
pub type ReportFuture<'a> = Pin<Box<dyn Future<Output = Result<Report, String>> + Send + 'a>>;

/// A change that is not made: the value that a resource would have, or its deletion.
#[derive(Debug, Clone)]
pub struct Draft {
    pub key: Key,
    pub value: Option<Value>,
}

/// The effect of a change on requests.
#[derive(Debug, Clone, Default)]
pub struct Preview {
    /// Each request, explained before and after the change.
    pub explained: Vec<[Report; 2]>,
    /// Resources that would not be served as written any more, and why.
    pub rejected: Vec<(Key, Invalid)>,
    /// Resources with a secret that was not looked up, so that it is unknown whether they would be served.
    pub not_asked: Vec<Key>,
}

/// The result of [`Program::preview`]; the error is a message for people.
pub type PreviewFuture<'a> = Pin<Box<dyn Future<Output = Result<Preview, String>> + Send + 'a>>;

/// The result of [`Program::server_info`].
pub type Info<'a> = Pin<Box<dyn Future<Output = Option<Value>> + Send + 'a>>;

/// The result of [`Program::listed_plugins`].
pub type Listed<'a> = Pin<Box<dyn Future<Output = Option<Vec<String>>> + Send + 'a>>;

/// The result of [`Program::instances`]; the error is a message for people.
pub type Instances<'a> = Pin<Box<dyn Future<Output = Result<Vec<Value>, String>> + Send + 'a>>;

/// The result of [`Program::dump_file`]; the error is a message for people.
pub type Dump<'a> = Pin<Box<dyn Future<Output = Option<Result<Value, String>>> + Send + 'a>>;

/// A request to explain.
#[derive(Debug, Clone, Default)]
pub struct Question {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub remote_addr: Option<IpAddr>,
    pub body: Option<Vec<u8>>,
    /// Explains with the configuration of this revision instead of the current one.
    pub revision: Option<u64>,
}

/// Gives the Admin API, the control API and the status listener access to the running program.
pub trait Program: Send + Sync {
    /// Returns the published revision, the revision of each worker and the rejected resources.
    fn published(&self) -> Published;

    /// Returns the outcome of the change of `key` that made `_revision`. Waits only briefly: a write is
    /// complete once the store has it.
    fn verdict<'a>(&'a self, _key: &'a Key, _revision: u64) -> Verdict<'a> {
        Box::pin(ready(Outcome::Pending))
    }

    /// Returns the first settings of resources that have no effect, and the number of such resources.
    fn without_effect(&self) -> (Arc<[(Key, Invalid)]>, usize) {
        Default::default()
    }

    /// Reads the `plugins` list of config.yaml again; `None` means that it has no list, so all are in use.
    ///
    /// # Errors
    /// A message for people if the file cannot be read.
    fn read_plugins(&self) -> Result<Option<Vec<String>>, String>;

    /// Uses this list, which [`read_plugins`](Program::read_plugins) returned; called if the store has none.
    fn use_plugins(&self, names: Option<Vec<String>>);

    /// Reads the plugins in files again that this list names, and removes the others. One that does not load keeps its
    /// last valid version, and is logged.
    fn reload_scripts(&self, _listed: Option<Vec<String>>) -> Rereading<'_> {
        Box::pin(ready(()))
    }

    /// Compiles all resources again, if plugins have changed.
    fn compile_again(&self) {}

    /// Reads the files again, as SIGHUP does.
    fn reload(&self) -> Reloading<'_>;

    /// Returns the nodes of a service registry in APISIX's form; `None` if that registry is not in use.
    fn discovered(&self, _kind: &str) -> Option<Value> {
        None
    }

    /// Reads the file in which a service registry's nodes are kept; `None` if there is no such registry.
    fn dump_file(&self, _kind: &str) -> Dump<'_> {
        Box::pin(ready(None))
    }

    /// Returns the list of the plugins that may be used, if there is one.
    fn listed_plugins(&self) -> Listed<'_> {
        Box::pin(ready(None))
    }

    /// Returns the report of the plugin server-info about this instance; `None` if the plugin is not in use.
    fn server_info(&self) -> Info<'_> {
        Box::pin(ready(None))
    }

    /// Returns the other instances of the cluster, as far as they report themselves.
    fn instances(&self) -> Instances<'_> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Returns the results of the health checks.
    fn health(&self) -> Vec<control::health::Checker> {
        Vec::new()
    }

    /// Returns up to `_most` certificates in use, soonest to expire first, and the number of all in use.
    fn certificates(&self, _most: usize) -> (Vec<Expiring>, usize) {
        Default::default()
    }

    /// Explains which route, plugins and server a request would meet, and why.
    fn explain(&self, _question: Question) -> ReportFuture<'_> {
        Box::pin(ready(Err("explanations are not available".to_owned())))
    }

    /// Explains requests before and after a change that is not made.
    fn preview(&self, _draft: Draft, _questions: Vec<Question>) -> PreviewFuture<'_> {
        Box::pin(ready(Err("previews are not available".to_owned())))
    }

    /// Lists likely mistakes in the configuration.
    fn analysis(&self) -> ReportFuture<'_> {
        Box::pin(ready(Err("the analysis is not available".to_owned())))
    }

    /// Starts or stops counting and timing all requests.
    fn watch_traffic(&self, _watches: bool) {}

    /// Returns the counts since [`watch_traffic`](Program::watch_traffic) started them.
    fn traffic(&self) -> Trials {
        Trials::default()
    }

    /// Returns the live view.
    fn live(&self) -> Option<Arc<Live>> {
        None
    }

    /// Describes the running program for people: version, addresses, counts and the like.
    fn about(&self) -> Map<String, Value>;

    /// Reports the program as not ready (`true`), so that load balancers send no new clients, or as ready
    /// again (`false`). Connected clients are served as before.
    fn drain(&self, _drains: bool) {}

    /// Returns when draining began, in seconds since 1970; `None` if it is not draining.
    fn drains_since(&self) -> Option<u64> {
        None
    }

    /// Succeeds if traffic is served as configured: every worker is on the newest snapshot.
    ///
    /// # Errors
    /// A message for people that names the missing part.
    fn ready(&self) -> Result<(), String> {
        self.published().workers_ready()
    }
}

/// The result of [`Program::verdict`].
pub type Verdict<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// The outcome of a change, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The change is in the snapshot that workers take with their next request.
    Published,
    /// The change cannot be used, for this reason.
    Rejected(String),
    /// The change is stored but not yet published; clients can poll `/v1/snapshot`.
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

/// Resources that are not served as configured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NotServed {
    pub resources: Vec<Rejected>,
    /// Parts of a file of resources that cannot be read as resources.
    pub findings: Arc<[Diagnostic]>,
}

impl NotServed {
    /// Returns the number of resources and findings.
    pub fn total(&self) -> usize {
        self.resources.len() + self.findings.len()
    }
}

impl Published {
    /// Succeeds if every worker is on the newest snapshot.
    ///
    /// # Errors
    /// APISIX's message about the first worker that is not.
    pub fn workers_ready(&self) -> Result<(), String> {
        match self.workers.iter().position(|held| *held < self.revision) {
            None => Ok(()),
            Some(worker) => Err(format!("worker id: {worker} has not received configuration")),
        }
    }
}
