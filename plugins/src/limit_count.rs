//! hot path
//!
//! limit-count: limits requests per window of time, counted on this node.
//!
//! Settings, headers and messages as in APISIX 3.18; the counters are exact
//! across workers. A limit belongs to the resource the plugin stands in and to
//! its settings, so changing them resets it; a `group` is counted together
//! wherever it stands. Counting across nodes (the Redis policies) is refused
//! when the configuration is checked.

mod rule;
mod schema;

use std::sync::Arc;

use model::Invalid;
use sdk::chain::Phases;
use sdk::counters::{CounterKey, Counters, Group, Taken};
use sdk::state::WorkerState;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;

use crate::limits::Amount;
use rule::{Limit, Rule};

/// The stage.
pub struct LimitCount {
    rules: Vec<Rule>,
    counters: Arc<Counters>,
    /// The beginning of all keys of this plugin instance.
    scope: CounterKey,
    sliding: bool,
    allow_degradation: bool,
    show_quota: bool,
    rejected: Reply,
    /// Where keys of several variables are put together.
    scratch: WorkerState<Vec<u8>>,
    /// Keeps the group known while a stage of it is in use.
    _group: Option<Group>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    count: Option<Amount>,
    time_window: Option<Amount>,
    window_type: String,
    rules: Option<Vec<RuleConfig>>,
    group: Option<String>,
    key: String,
    key_type: String,
    rejected_code: u16,
    rejected_msg: Option<String>,
    policy: String,
    allow_degradation: bool,
    show_limit_quota_header: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RuleConfig {
    count: Amount,
    time_window: Amount,
    key: String,
    header_prefix: Option<String>,
}

impl Plugin for LimitCount {
    const NAME: &'static str = "limit-count";
    const PRIORITY: i32 = 1002;
    const PHASES: Phases = Phases::ACCESS;
    const VERSION: &'static str = "0.5";

    type Config = Config;

    fn schema() -> Value {
        schema::config()
    }

    fn metadata_schema() -> Option<Value> {
        Some(schema::metadata())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<LimitCount, Invalid> {
        config.check()?;
        let counters = cx.services.counters.clone();
        counters.reserve();
        let settings = serde_json::to_value(&config).map_err(|error| Invalid::new(error.to_string()))?;
        let (scope, group) = match &config.group {
            Some(name) => {
                // Without an owner the configuration is only checked, not put to use.
                let checking = cx.owner.collection.is_empty();
                if checking && counters.groups().conflicts(name, &settings) {
                    return Err(Invalid::new("group conf mismatched").at("/group").hint(
                        "all members of a group need the same settings; take another group name for new ones",
                    ));
                }
                let group = (!checking).then(|| counters.groups().join(name, &settings));
                (counters.key().part(b"limit-count group").part(name.as_bytes()).finish(), group)
            }
            None => {
                let key = counters.key().part(b"limit-count").part(cx.owner.collection.as_bytes());
                let key = key.part(cx.owner.id.as_bytes()).part(settings.to_string().as_bytes());
                (key.finish(), None)
            }
        };
        Ok(LimitCount {
            rules: config.rules(cx.metadata()),
            counters,
            scope,
            sliding: config.window_type == "sliding",
            allow_degradation: config.allow_degradation,
            show_quota: config.show_limit_quota_header,
            rejected: crate::refusal(config.rejected_code, config.rejected_msg.as_deref(), USED_UP),
            scratch: cx.shared_worker_state("scratch"),
            _group: group,
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        // All limits are read before any is counted: one that cannot be read refuses the request.
        let mut limits: SmallVec<[Option<(Limit, CounterKey)>; 4]> = SmallVec::new();
        for rule in &self.rules {
            match self.limit(rule, x) {
                Ok(limit) => limits.push(limit),
                Err(Unreadable) => {
                    return self.degrade(x, "a count or a window is not a positive integer");
                }
            }
        }
        if limits.iter().all(Option::is_none) {
            return self.degrade(x, "no rule applies: each has a key that is absent");
        }
        let now_ms = x.start_steady_ms();
        for (rule, limit) in self.rules.iter().zip(limits) {
            let Some((limit, key)) = limit else { continue };
            let taken = if self.sliding {
                sliding(&self.counters, key, limit, now_ms)
            } else {
                self.counters.take(key, 1, limit.count, limit.window_ms, now_ms)
            };
            if self.show_quota {
                rule.headers.set(x, limit.count, taken);
            }
            if !taken.allowed {
                return Step::Reply(self.rejected.clone());
            }
        }
        Step::Next
    }
}

/// Reason of a rejected request.
const USED_UP: &str = "the count of requests in the time window is used up";

/// A count or window that came to no positive integer.
struct Unreadable;

impl LimitCount {
    /// Returns the limit and counter of the rule for this request; nothing if it does not apply.
    fn limit(&self, rule: &Rule, x: &Exchange<'_>) -> Result<Option<(Limit, CounterKey)>, Unreadable> {
        let Some(key) = rule.by.key(&self.counters, self.scope, x, &self.scratch) else { return Ok(None) };
        let read = |amount: &Amount| amount.read(x, 1, &self.scratch).ok_or(Unreadable);
        let (count, seconds) = (read(&rule.count)?, read(&rule.window)?);
        Ok(Some((Limit { count, window_ms: seconds.saturating_mul(1000) }, key)))
    }

    /// Reports that the request cannot be counted, then lets it in or refuses it.
    fn degrade(&self, x: &Exchange<'_>, reason: &'static str) -> Step {
        x.complain(Self::NAME, reason);
        if self.allow_degradation { Step::Next } else { Step::Reply(Reply::status(500).because(reason)) }
    }
}

/// Counts in windows that begin at multiples of their length, and weighs the
/// last one by the part of it that a window ending now would still cover.
fn sliding(counters: &Counters, key: CounterKey, limit: Limit, now_ms: u64) -> Taken {
    let Limit { count: limit, window_ms } = limit;
    let window = now_ms / window_ms;
    let left_ms = window_ms - now_ms % window_ms;
    let of = |window: u64| counters.key().under(key).number(window).finish();
    let last = counters.peek(of(window.wrapping_sub(1)), now_ms).0.min(limit);
    let rate = last as f64 / window_ms as f64;
    let weighed = rate * left_ms as f64;
    // It is allowed while count + weighed < limit.
    let bound = (limit as f64 - weighed).ceil().max(0.0) as u64;
    let taken = counters.take(of(window), 1, bound, window_ms.saturating_mul(2), now_ms);
    let used = bound - taken.remaining.min(bound);
    if taken.allowed {
        let remaining = (limit as f64 - used as f64 - weighed).floor().max(0.0) as u64;
        return Taken { allowed: true, remaining, reset_ms: left_ms };
    }
    // Until enough of the last window has slid out.
    let wait = match last {
        0 => left_ms as f64,
        _ => left_ms as f64 - limit.saturating_sub(used) as f64 / rate,
    };
    Taken { allowed: false, remaining: 0, reset_ms: wait.max(0.0) as u64 }
}

#[cfg(test)]
mod tests;
