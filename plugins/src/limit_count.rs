//! hot path
//!
//! limit-count: limits requests per window of time.
//!
//! Settings, headers and messages as in APISIX 3.18; the counters are exact
//! across workers, and with a shared policy across nodes. A limit belongs to
//! the resource the plugin stands in and to its settings, so changing them
//! resets it; a `group` is counted together wherever it stands.

mod rule;
mod schema;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::counters::CounterKey;
use sdk::limit::{Decision, Group, Hit, Kind, Limit, Local, Unavailable};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use smallvec::SmallVec;

use crate::limits::fields::Shown;
use crate::limits::policy::{Degradation, Policy};
use crate::limits::{Amount, Scratch};
use rule::{Rule, Window};

/// The stage.
pub struct LimitCount {
    rules: Vec<Rule>,
    limit: Limit,
    sliding: bool,
    degradation: Degradation,
    show_quota: bool,
    show_fields: bool,
    rejected: Reply,
    /// Where keys of several variables are put together.
    scratch: Scratch,
    /// Keeps the group known while a stage of it is in use.
    _group: Option<Group>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    rules: Rules,
    #[serde(flatten)]
    policy: Policy,
}

/// The settings that decide what is counted, and how it shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Rules {
    count: Option<Amount>,
    time_window: Option<Amount>,
    window_type: String,
    rules: Option<Vec<RuleConfig>>,
    group: Option<String>,
    key: String,
    key_type: String,
    rejected_code: u16,
    rejected_msg: Option<String>,
    show_limit_quota_header: bool,
    // Ours. It changes nothing that is counted, so counters and groups stay the same with it.
    #[serde(default, skip_serializing)]
    show_ratelimit_fields: bool,
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

    fn build(mut config: Config, cx: &mut Build<'_>) -> Result<LimitCount, Invalid> {
        config.check()?;
        config.policy.settle(Kind::Windows);
        let group = config.join_group(cx)?;
        let Config { rules, policy } = config;
        let settings = serde_json::to_value(&rules).map_err(|error| Invalid::new(error.to_string()))?;
        let limit = policy.limit(Self::NAME, Kind::Windows, &settings, rules.group.as_deref(), cx)?;
        Ok(LimitCount {
            limit,
            sliding: rules.window_type == "sliding",
            degradation: policy.degradation(),
            show_quota: rules.show_limit_quota_header,
            show_fields: rules.show_ratelimit_fields,
            rejected: crate::refusal(rules.rejected_code, rules.rejected_msg.as_deref(), USED_UP),
            rules: rules.in_force(cx.metadata()),
            scratch: cx.shared_worker_state("scratch"),
            _group: group,
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        match &self.limit {
            Limit::Local(local) => self.count(local, x),
            Limit::Shared(_) => Step::Wait,
        }
    }

    /// Only with a shared limit.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Limit::Shared(limiter) = &self.limit else { return Step::Next };
        let windows = match self.windows(x, |value| value.to_vec()) {
            Ok(windows) => windows,
            Err(step) => return step,
        };
        for (rule, window) in self.rules.iter().zip(windows) {
            let Some((window, key)) = window else { continue };
            let hit = Hit { key: &key, cost: 1, rule: window.rule(self.sliding) };
            let step = match limiter.take(x.world(), hit).await {
                Ok(decision) => {
                    if let Some(reason) = decision.alone {
                        x.complain(Self::NAME, reason);
                    }
                    self.step(rule, window, decision, x)
                }
                Err(Unavailable(reason)) => {
                    Some(self.degradation.report(x, Self::NAME, reason, Some("failed to limit count")))
                }
            };
            match step {
                None | Some(Step::Next) => {}
                Some(step) => return step,
            }
        }
        Step::Next
    }
}

/// Reason of a rejected request.
const USED_UP: &str = "the count of requests in the time window is used up";

/// The windows of all rules for one request, each with its key; nothing for a rule that does not apply.
type Windows<K> = SmallVec<[Option<(Window, K)>; 4]>;

impl LimitCount {
    fn count(&self, local: &Local, x: &mut Exchange<'_>) -> Step {
        // Most limits have one rule, for which nothing is collected.
        if let [rule] = &*self.rules
            && let Ok(Some((window, key))) = self.window(rule, x, |value| local.key(value))
        {
            return self.count_one(local, rule, window, key, x).unwrap_or(Step::Next);
        }
        let windows = match self.windows(x, |value| local.key(value)) {
            Ok(windows) => windows,
            Err(step) => return step,
        };
        for (rule, window) in self.rules.iter().zip(windows) {
            let Some((window, key)) = window else { continue };
            if let Some(step) = self.count_one(local, rule, window, key, x) {
                return step;
            }
        }
        Step::Next
    }

    #[inline]
    fn count_one(
        &self,
        local: &Local,
        rule: &Rule,
        window: Window,
        key: CounterKey,
        x: &mut Exchange<'_>,
    ) -> Option<Step> {
        // Windows on this node never fail.
        let decision = local.take(key, 1, window.rule(self.sliding), x.steady_ms()).unwrap_or_default();
        self.step(rule, window, decision, x)
    }

    /// Reads all windows before any is counted: one that cannot be read refuses the request.
    #[inline]
    fn windows<K>(&self, x: &Exchange<'_>, key: impl Fn(&[u8]) -> K) -> Result<Windows<K>, Step> {
        let mut windows = Windows::new();
        for rule in &self.rules {
            match self.window(rule, x, &key) {
                Ok(window) => windows.push(window),
                Err(Unreadable) => {
                    return Err(self.degrade(x, "a count or a window is not a positive integer"));
                }
            }
        }
        if windows.iter().all(Option::is_none) {
            return Err(self.degrade(x, "no rule applies: each has a key that is absent"));
        }
        Ok(windows)
    }

    /// Returns the window and key of the rule for this request; nothing if it does not apply.
    #[inline]
    fn window<K>(
        &self,
        rule: &Rule,
        x: &Exchange<'_>,
        key: impl Fn(&[u8]) -> K,
    ) -> Result<Option<(Window, K)>, Unreadable> {
        let Some(key) = rule.by.value(x, &self.scratch, key) else { return Ok(None) };
        let read = |amount: &Amount| amount.read(x, 1, &self.scratch).ok_or(Unreadable);
        let (count, seconds) = (read(&rule.count)?, read(&rule.window)?);
        Ok(Some((Window { count, ms: seconds.saturating_mul(1000) }, key)))
    }

    /// Shows how a limit stands; the step that rejects the request, if it is to be rejected.
    #[inline]
    fn step(&self, rule: &Rule, window: Window, decision: Decision, x: &mut Exchange<'_>) -> Option<Step> {
        if self.show_quota {
            rule.headers.set(x, window.count, &decision);
        }
        if self.show_fields {
            let seconds = |ms: u64| Some(ms.div_ceil(1000));
            let shown = Shown {
                quota: window.count,
                window: seconds(window.ms),
                remaining: if decision.allowed { decision.remaining } else { 0 },
                reset: seconds(decision.reset_ms),
                ..Shown::default()
            };
            rule.fields.add(x, shown);
        }
        (!decision.allowed).then(|| Step::Reply(self.rejected.clone()))
    }

    /// Reports that the request cannot be counted, then lets it in or refuses it.
    fn degrade(&self, x: &Exchange<'_>, reason: &'static str) -> Step {
        self.degradation.report(x, Self::NAME, reason, None)
    }
}

/// A count or window that came to no positive integer.
struct Unreadable;

#[cfg(test)]
mod tests;
