//! hot path
//!
//! limit-conn: limits concurrent requests per key; a few more wait first.
//!
//! Settings, delays and messages as in APISIX 3.18, counted on this node and exact across workers. A
//! request counts until it is over, however it ends; one that became a tunnel, until that ends. A
//! limit belongs to the resource the plugin stands in and to its settings. Counting across nodes (the
//! Redis policies) is refused when the configuration is checked.

mod config;

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::counters::{CounterKey, Entered, Gauges};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde_json::Value;

use crate::limits::{self, Amount, By, Scratch};
pub use config::Config;

/// The stage.
pub struct LimitConn {
    rules: Vec<Rule>,
    /// The rules are a list: one that does not apply, or cannot be read, is passed over.
    listed: bool,
    gauges: Arc<Gauges>,
    /// The beginning of all keys of this plugin instance.
    scope: CounterKey,
    /// Seconds that one more than allowed has to wait; one more than twice as many, twice as long.
    delay: f64,
    allow_degradation: bool,
    rejected: Reply,
    scratch: Scratch,
}

const TOO_MANY: &str = "too many concurrent requests";
const NO_ROOM: &str = "the dictionary plugin-limit-conn has no room for another key";

struct Rule {
    by: By,
    conn: Amount,
    burst: Amount,
}

/// A request that is in; counted out when it is dropped.
struct Guard {
    gauges: Arc<Gauges>,
    key: CounterKey,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.gauges.leave(self.key);
    }
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
}

/// Noted while a request waits.
struct Waiting(Progress, Duration);

impl Plugin for LimitConn {
    const NAME: &'static str = "limit-conn";
    const PRIORITY: i32 = 1003;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        config::schema()
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<LimitConn, Invalid> {
        limits::only_local(&config.policy)?;
        config.check()?;
        let gauges = cx.services.gauges.clone();
        let scope = limits::scope(&gauges, cx.owner, &config)?;
        Ok(LimitConn {
            gauges,
            scope,
            delay: config.default_conn_delay,
            allow_degradation: config.allow_degradation,
            rejected: crate::refusal(config.rejected_code, config.rejected_msg.as_deref(), TOO_MANY),
            scratch: cx.shared_worker_state("scratch"),
            listed: config.rules.is_some(),
            rules: config.rules(),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let mut progress = Progress { next: 0, applied: false };
        match self.go_on(&mut progress, x) {
            Verdict::Done(step) => step,
            Verdict::Wait(delay) => {
                x.set_note(Waiting(progress, delay));
                Step::Wait
            }
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(Waiting(mut progress, mut delay)) = x.take_note() else { return Step::Next };
        loop {
            x.world().sleep(delay).await;
            match self.go_on(&mut progress, x) {
                Verdict::Done(step) => return step,
                Verdict::Wait(more) => delay = more,
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
                return self.degrade("`conn` or `burst` is not an integer");
            };
            let Some(key) = rule.by.key(&self.gauges, self.scope, x, &self.scratch) else { continue };
            progress.applied = true;
            match self.gauges.enter(key, conn.saturating_add(burst)) {
                Entered::In(within) => {
                    x.hold(Guard { gauges: self.gauges.clone(), key });
                    let times = if within > conn { (within - 1) / conn } else { 0 };
                    let delay = self.delay * times as f64;
                    if delay >= 0.001 {
                        // A delay too long for a duration is as good as endless.
                        return Verdict::Wait(Duration::try_from_secs_f64(delay).unwrap_or(Duration::MAX));
                    }
                }
                Entered::Rejected => return Verdict::Done(Step::Reply(self.rejected.clone())),
                Entered::NoRoom => {
                    x.complain(Self::NAME, NO_ROOM);
                    return self.degrade(NO_ROOM);
                }
            }
        }
        if progress.applied {
            Verdict::Done(Step::Next)
        } else {
            self.degrade("no rule applies: keys are absent or amounts are not integers")
        }
    }

    fn degrade(&self, reason: &'static str) -> Verdict {
        let refused = || Step::Reply(Reply::status(500).because(reason));
        Verdict::Done(if self.allow_degradation { Step::Next } else { refused() })
    }
}

#[cfg(test)]
mod tests;
