//! hot path
//!
//! limit-conn: limits concurrent requests per key; a few more wait first.
//!
//! Settings, delays and messages as in APISIX 3.18, exact across workers, and with a shared policy
//! across nodes. A request counts until it is over, however it ends; one that became a tunnel, until
//! that ends. A limit belongs to the resource the plugin stands in and to its settings.

mod config;

use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::limit::{Decision, Hit, Kind, Limit, Rule as Counted, Unavailable};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde_json::Value;

use crate::limits::fields::{Fields, Shown};
use crate::limits::policy::Degradation;
use crate::limits::{Amount, By, Scratch};
pub use config::Config;

/// The stage.
pub struct LimitConn {
    rules: Vec<Rule>,
    /// The rules are a list: one that does not apply, or cannot be read, is passed over.
    listed: bool,
    limit: Limit,
    /// Seconds that one more than allowed has to wait; one more than twice as many, twice as long.
    delay: f64,
    ttl_s: u64,
    degradation: Degradation,
    rejected: Reply,
    show_fields: bool,
    scratch: Scratch,
}

const TOO_MANY: &str = "too many concurrent requests";

struct Rule {
    by: By,
    conn: Amount,
    burst: Amount,
    fields: Fields,
}

/// How far the rules have let a request in.
struct Progress {
    next: usize,
    /// A rule applied.
    applied: bool,
}

/// The next step by the rules.
enum Verdict {
    Done(Step),
    Wait(Duration),
    /// The limiter has to be awaited for a key, at most `most` at once, of which `conn` do not wait.
    Ask {
        key: Vec<u8>,
        most: u64,
        conn: u64,
        /// Its place in the list.
        rule: usize,
    },
}

/// Noted while a request waits.
struct Waiting(Progress, Verdict);

impl Plugin for LimitConn {
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        config::schema()
    }

    fn build(mut config: Config, cx: &mut Build<'_>) -> Result<LimitConn, Invalid> {
        config.check()?;
        config.policy.settle(Kind::Concurrency);
        let ttl_s = config.ttl_s();
        let Config { rules, policy, show_ratelimit_fields } = config;
        let settings = serde_json::to_value(&rules).map_err(|error| Invalid::new(error.to_string()))?;
        Ok(LimitConn {
            limit: policy.limit(Self::NAME, Kind::Concurrency, &settings, None, cx)?,
            delay: rules.default_conn_delay,
            ttl_s,
            degradation: policy.degradation(),
            rejected: crate::refusal(rules.rejected_code, rules.rejected_msg.as_deref(), TOO_MANY),
            show_fields: show_ratelimit_fields,
            scratch: cx.shared_worker_state("scratch"),
            listed: rules.rules.is_some(),
            rules: rules.in_force(),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let mut progress = Progress { next: 0, applied: false };
        match self.go_on(&mut progress, x) {
            Verdict::Done(step) => step,
            waits => {
                x.set_note(Waiting(progress, waits));
                Step::Wait
            }
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(Waiting(mut progress, mut verdict)) = x.take_note() else { return Step::Next };
        loop {
            verdict = match verdict {
                Verdict::Done(step) => return step,
                Verdict::Wait(delay) => {
                    x.world().sleep(delay).await;
                    self.go_on(&mut progress, x)
                }
                Verdict::Ask { key, most, conn, rule } => {
                    let Limit::Shared(limiter) = &self.limit else { return Step::Next };
                    let hit = Hit { key: &key, cost: 1, rule: self.rule(most) };
                    let decision = limiter.take(x.world(), hit).await;
                    match self.enter(decision, (most, conn), &self.rules[rule], x) {
                        Some(verdict) => verdict,
                        None => self.go_on(&mut progress, x),
                    }
                }
            }
        }
    }
}

impl LimitConn {
    /// Asks one rule after the other, up to one that makes the request wait.
    fn go_on(&self, progress: &mut Progress, x: &mut Exchange<'_>) -> Verdict {
        while let Some(rule) = self.rules.get(progress.next) {
            progress.next += 1;
            let (Some(conn), Some(burst)) =
                (rule.conn.read(x, 1, &self.scratch), rule.burst.read(x, 0, &self.scratch))
            else {
                if self.listed {
                    continue;
                }
                return Verdict::Done(self.degradation.step("`conn` or `burst` is not an integer"));
            };
            let index = progress.next - 1;
            let most = conn.saturating_add(burst);
            let verdict = match &self.limit {
                Limit::Local(local) => {
                    let key = rule.by.value(x, &self.scratch, |value| local.key(value));
                    let Some(key) = key else { continue };
                    self.enter(local.take(key, 1, self.rule(most), 0), (most, conn), rule, x)
                }
                Limit::Shared(_) => {
                    let key = rule.by.value(x, &self.scratch, |value| value.to_vec());
                    let Some(key) = key else { continue };
                    Some(Verdict::Ask { key, most, conn, rule: index })
                }
            };
            progress.applied = true;
            if let Some(verdict) = verdict {
                return verdict;
            }
        }
        Verdict::Done(match progress.applied {
            true => Step::Next,
            false => self.degradation.step("no rule applies: keys are absent or amounts are not integers"),
        })
    }

    fn rule(&self, most: u64) -> Counted {
        Counted::Concurrent { most, ttl_s: self.ttl_s }
    }

    /// Acts on the answer for one rule: lets the request in to the next rule (`None`), makes it wait or rejects it.
    fn enter(
        &self,
        decision: Result<Decision, Unavailable>,
        (most, conn): (u64, u64),
        rule: &Rule,
        x: &mut Exchange<'_>,
    ) -> Option<Verdict> {
        if self.show_fields
            && let Ok(Decision { allowed, remaining, .. }) = &decision
        {
            let remaining = if *allowed { *remaining } else { 0 };
            rule.fields.add(x, Shown { quota: most, is_concurrent: true, remaining, ..Shown::default() });
        }
        let decision = match decision {
            Ok(decision) if decision.allowed => decision,
            Ok(_) => return Some(Verdict::Done(Step::Reply(self.rejected.clone()))),
            Err(Unavailable(reason)) => {
                let step = self.degradation.report(x, Self::NAME, reason, None);
                return (!matches!(step, Step::Next)).then_some(Verdict::Done(step));
            }
        };
        if let Some(permit) = decision.permit {
            x.hold_permit(permit);
        }
        let within = most.saturating_sub(decision.remaining);
        if within <= conn {
            return None;
        }
        let delay = self.delay * ((within - 1) / conn) as f64;
        // A delay too long for a duration is as good as endless.
        (delay >= 0.001).then(|| Verdict::Wait(Duration::try_from_secs_f64(delay).unwrap_or(Duration::MAX)))
    }
}

#[cfg(test)]
mod tests;
