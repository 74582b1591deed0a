//! hot path
//!
//! Limits on requests: how many per window of time, how fast, how many at once.
//!
//! The node's own limiter ([`Local`]) answers at once: it neither waits nor allocates. A limiter
//! that several nodes share ([`Limiter`]) counts on a server, and its answer is awaited with a
//! deadline. A plugin instance gets one of the two when it is built, by the name of its policy
//! ([`Build::limit`]). This crate knows no server: the program registers the policies it has
//! ([`Limits`]).

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use model::Invalid;
use serde_json::{Map, Value};

use crate::build::{Build, Owner, PART};
use crate::counters::Pace;
use crate::step::LocalFuture;
use crate::world::World;

mod checksum;
mod local;
#[cfg(any(test, feature = "testing"))]
pub mod suite;

pub use crate::counters::{Group, Groups};
pub use crate::permit::Permit;
pub use local::Local;

/// The limit of a plugin instance.
pub enum Limit {
    /// Counted on this node.
    Local(Local),
    /// Counted together with other nodes.
    Shared(Arc<dyn Limiter>),
}

/// A limiter whose answers have to be awaited.
pub trait Limiter: Send + Sync {
    /// Counts a hit. The future ends within the limiter's own timeout, even if the server hangs;
    /// dropping it earlier may leave the hit counted, but never a permit.
    fn take<'a>(
        &'a self,
        world: &'a dyn World,
        hit: Hit<'a>,
    ) -> LocalFuture<'a, Result<Decision, Unavailable>>;
}

/// One request as a limiter counts it.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'k> {
    /// The value by which requests are counted separately, such as the client's address.
    pub key: &'k [u8],
    /// How much of a window's limit it takes.
    pub cost: u32,
    pub rule: Rule,
}

/// The amount of requests that is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// `limit` per window. The window begins with the first hit.
    Fixed { limit: u64, window_ms: u64 },
    /// `limit` per window. Windows begin at multiples of their length; the previous one is weighted
    /// by the part of it that a window ending now would still cover.
    Sliding { limit: u64, window_ms: u64 },
    /// A rate, and a burst whose requests wait for their turn.
    Pace(Pace),
    /// At most this many at once. A shared limiter drops a request that never left after `ttl_s`
    /// seconds, as the node that let it in may have died.
    Concurrent { most: u64, ttl_s: u64 },
}

/// The answer to a hit.
#[derive(Debug, Default)]
pub struct Decision {
    pub allowed: bool,
    /// Of a window's limit, or of the requests at once: how much is left.
    pub remaining: u64,
    /// Milliseconds until the window ends; of a rejected request in a sliding window, until enough
    /// of the previous one has slid out.
    pub reset_ms: u64,
    /// Microseconds until the turn of a request that was let in by its pace.
    pub delay_us: u64,
    /// Counts a request of [`Rule::Concurrent`] out when it is dropped.
    pub permit: Option<Permit>,
    /// Why the node decided by itself, where several nodes share the limit.
    pub alone: Option<&'static str>,
}

/// Why a hit could not be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unavailable(pub &'static str);

/// The things that a plugin counts; decides which of the node's tables it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Windows,
    Paces,
    Concurrency,
}

/// The limits of a plugin instance, as it requests them.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The plugin's name.
    pub plugin: &'static str,
    pub kind: Kind,
    /// The settings that decide what is counted: with other settings, counting starts again.
    pub rules: &'a Value,
    /// A name under which plugin instances count together, regardless of resource and settings.
    pub group: Option<&'a str>,
    /// `local`, or a name of [`Limits`].
    pub policy: &'a str,
    /// The settings of the policy.
    pub settings: &'a Map<String, Value>,
}

/// Makes the limiters of one policy.
pub trait Policy: Send + Sync {
    /// Makes a limiter whose keys are within `scope`. Connects to no server: that is done by the
    /// first hit.
    ///
    /// # Errors
    /// Settings that do not fit, with a JSON pointer to the field.
    fn limiter(
        &self,
        scope: &Scope,
        wanted: &Wanted<'_>,
        cx: &Build<'_>,
    ) -> Result<Arc<dyn Limiter>, Invalid>;
}

/// The parts of a shared limiter's keys around the value that is counted. APISIX uses the same ones, so that nodes of
/// both kinds count together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// `/apisix/routes/1:2790532487:`, or a group.
    pub before: String,
    /// `:1` within the first rule of a workflow.
    pub after: String,
}

/// The policies of the program, by name; a service of it ([`Build::service`]).
#[derive(Clone)]
pub struct Limits {
    policies: HashMap<&'static str, Arc<dyn Policy>>,
    root: String,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { policies: HashMap::new(), root: "/apisix".to_owned() }
    }
}

impl Limits {
    /// Sets the prefix of resources' names in keys; without it, that is `/apisix`.
    #[must_use]
    pub fn under(self, root: &str) -> Limits {
        Limits { root: root.to_owned(), ..self }
    }

    /// Adds a policy.
    #[must_use]
    pub fn with(mut self, name: &'static str, policy: Arc<dyn Policy>) -> Limits {
        self.policies.insert(name, policy);
        self
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.policies.keys()).finish()
    }
}

impl Build<'_> {
    /// Returns the limit of a plugin instance. It belongs to the instance's resource and to its
    /// rules, or to a group.
    ///
    /// # Errors
    /// The program does not have the policy, or its settings do not fit.
    pub fn limit(&self, wanted: &Wanted<'_>) -> Result<Limit, Invalid> {
        if wanted.policy == "local" {
            return Ok(Limit::Local(Local::new(self, wanted)));
        }
        let limits = self.service::<Limits>().unwrap_or_default();
        let Some(policy) = limits.policies.get(wanted.policy) else {
            return Err(Invalid::new(format!("policy {} is not available in this build", wanted.policy))
                .at("/policy")
                .expected("local")
                .got(wanted.policy)
                .hint("`policy: local` counts each node's requests separately"));
        };
        let scope = match wanted.group {
            Some(group) => Scope { before: format!("{group}:"), after: String::new() },
            None => self.scope(&limits.root, wanted.rules),
        };
        Ok(Limit::Shared(policy.limiter(&scope, wanted, self)?))
    }

    /// The scope of a plugin instance: its resource, and the checksum of its configuration.
    fn scope(&self, root: &str, rules: &Value) -> Scope {
        let Owner { collection, id } = self.owner;
        let mut config = self.complete_config().unwrap_or_else(|| rules.clone());
        // Fields that APISIX adds to the configurations of plugins.
        let (id, part) = id.split_once(PART).unwrap_or((id, ""));
        let number = part.parse::<u64>().ok().map(|rule| rule + 1);
        if let Some(fields) = config.as_object_mut() {
            fields.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
            if matches!(*collection, "consumers" | "consumer_groups") {
                fields.insert("_from_consumer".to_owned(), true.into());
            }
            if let Some(number) = number {
                fields.insert("_vid".to_owned(), number.into());
            }
        }
        let version = checksum::of(&config);
        let after = number.map(|number| format!(":{number}")).unwrap_or_default();
        Scope { before: format!("{root}/{collection}/{id}:{version}:"), after }
    }

    /// Settings that several plugin instances share by name.
    pub fn groups(&self) -> &Groups {
        self.services.counters.groups()
    }
}

#[cfg(test)]
mod tests;
