//! hot path
//!
//! The limiter of this node, exact across its workers.

use std::sync::Arc;

use super::{Decision, Hit, Kind, Limiter, Permit, Rule, Unavailable, Wanted};
use crate::build::Build;
use crate::counters::{CounterKey, Counters, Entered, Gauges, Paces};
use crate::step::LocalFuture;
use crate::world::World;

/// Counts on this node.
pub struct Local {
    counters: Arc<Counters>,
    paces: Arc<Paces>,
    gauges: Arc<Gauges>,
    /// The beginning of all keys. All are made with the seeds of `counters`, for each of the tables.
    scope: CounterKey,
}

const NO_ROOM: Unavailable = Unavailable("the dictionary plugin-limit-conn has no room for another key");

impl Local {
    /// Reserves the memory that this kind of limit needs, so that no request does.
    pub(super) fn new(cx: &Build<'_>, wanted: &Wanted<'_>) -> Local {
        let services = cx.services;
        let (counters, paces, gauges) =
            (services.counters.clone(), services.paces.clone(), services.gauges.clone());
        match wanted.kind {
            Kind::Windows => counters.reserve(),
            Kind::Paces => paces.reserve(),
            Kind::Concurrency => gauges.reserve(),
        }
        let key = counters.key().part(wanted.plugin.as_bytes());
        let key = match wanted.group {
            Some(name) => key.part(b"group").part(name.as_bytes()),
            None => key
                .part(cx.owner.collection.as_bytes())
                .part(cx.owner.id.as_bytes())
                .part(wanted.rules.to_string().as_bytes()),
        };
        let scope = key.finish();
        Local { counters, paces, gauges, scope }
    }

    /// The counter of a value.
    #[inline]
    pub fn key(&self, value: &[u8]) -> CounterKey {
        self.counters.key().under(self.scope).part(value).finish()
    }

    /// Counts a hit at this time ([`World::steady_ms`]).
    ///
    /// # Errors
    /// The table of requests in flight is full; the other rules never fail.
    #[inline]
    pub fn take(&self, key: CounterKey, cost: u32, rule: Rule, now_ms: u64) -> Result<Decision, Unavailable> {
        match rule {
            Rule::Fixed { limit, window_ms } => {
                let taken = self.counters.take(key, cost, limit, window_ms, now_ms);
                Ok(window(taken.allowed, taken.remaining, taken.reset_ms))
            }
            Rule::Sliding { limit, window_ms } => Ok(self.sliding(key, cost, limit, window_ms, now_ms)),
            Rule::Pace(pace) => {
                let turn = self.paces.take(key, pace, now_ms);
                Ok(Decision { allowed: turn.is_some(), delay_us: turn.unwrap_or(0), ..Decision::default() })
            }
            Rule::Concurrent { most, .. } => match self.gauges.enter(key, most) {
                Entered::In(within) => {
                    let permit = Some(Permit::local(self.gauges.clone(), key));
                    Ok(Decision { allowed: true, remaining: most - within, permit, ..Decision::default() })
                }
                Entered::Rejected => Ok(Decision::default()),
                Entered::NoRoom => Err(NO_ROOM),
            },
        }
    }

    fn sliding(&self, key: CounterKey, cost: u32, limit: u64, window_ms: u64, now_ms: u64) -> Decision {
        let number = now_ms / window_ms;
        let left_ms = window_ms - now_ms % window_ms;
        let of = |number: u64| self.counters.key().under(key).number(number).finish();
        let last = self.counters.peek(of(number.wrapping_sub(1)), now_ms).0.min(limit);
        let rate = last as f64 / window_ms as f64;
        let weighted = rate * left_ms as f64;
        // It is allowed while count + weighted < limit.
        let bound = (limit as f64 - weighted).ceil().max(0.0) as u64;
        let taken = self.counters.take(of(number), cost, bound, window_ms.saturating_mul(2), now_ms);
        let used = bound - taken.remaining.min(bound);
        if taken.allowed {
            let remaining = (limit as f64 - used as f64 - weighted).floor().max(0.0) as u64;
            return window(true, remaining, left_ms);
        }
        // Until enough of the previous window has slid out.
        let wait = match last {
            0 => left_ms as f64,
            _ => left_ms as f64 - limit.saturating_sub(used) as f64 / rate,
        };
        window(false, 0, wait.max(0.0) as u64)
    }

    /// Requests in flight of a value.
    #[cfg(any(test, feature = "testing"))]
    pub fn within(&self, value: &[u8]) -> u64 {
        self.gauges.within(self.key(value))
    }
}

#[inline]
fn window(allowed: bool, remaining: u64, reset_ms: u64) -> Decision {
    Decision { allowed, remaining, reset_ms, ..Decision::default() }
}

/// For code that has any limiter; plugins call [`Local::take`].
impl Limiter for Local {
    fn take<'a>(
        &'a self,
        world: &'a dyn World,
        hit: Hit<'a>,
    ) -> LocalFuture<'a, Result<Decision, Unavailable>> {
        let decision = Local::take(self, self.key(hit.key), hit.cost, hit.rule, world.steady_ms());
        Box::pin(async { decision })
    }
}
