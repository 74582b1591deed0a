//! The rules as scripts: keys and arguments in, decisions out.

use std::rc::Rc;
use std::sync::Arc;

use redis::Value;
use sdk::World;
use sdk::chain::LocalFuture;
use sdk::counters::Pace;
use sdk::limit::{Decision, Hit, Limiter, Permit, Rule, Scope, Unavailable};

use super::command::{Call, command, integer, list, number};
use super::link::{Deadline, Hold, Link};
use super::script::Scripts;
use super::servers::{Access, Answer, Error, Servers};

/// A limiter over Redis.
pub struct RedisLimiter {
    /// The beginning of a window's key.
    prefix: String,
    scope: Scope,
    access: Access,
    scripts: Arc<Scripts>,
}

/// The script has no such answer.
const UNEXPECTED: Unavailable = Unavailable("the Redis server gave an unexpected answer");

impl Limiter for RedisLimiter {
    fn take<'a>(
        &'a self,
        world: &'a dyn World,
        hit: Hit<'a>,
    ) -> LocalFuture<'a, Result<Decision, Unavailable>> {
        Box::pin(self.decide(world, hit))
    }
}

impl RedisLimiter {
    pub fn new(plugin: &'static str, scope: Scope, access: Access, scripts: Arc<Scripts>) -> RedisLimiter {
        let prefix = format!("plugin-{plugin}:");
        RedisLimiter { prefix, scope, access, scripts }
    }

    pub async fn decide(&self, world: &dyn World, hit: Hit<'_>) -> Result<Decision, Unavailable> {
        match hit.rule {
            Rule::Fixed { limit, window_ms } => {
                let call = self.fixed(hit.key, hit.cost.into(), limit, window_ms);
                let (value, _) = self.run(world, &call).await?;
                let (count, reset_ms) = counted(&value)?;
                let remaining = signed(limit) - count;
                let allowed = remaining >= 0;
                Ok(Decision { allowed, remaining: unsigned(remaining), reset_ms, ..Decision::default() })
            }
            Rule::Sliding { limit, window_ms } => {
                let window = self.window(hit.key, window_ms, world.now_ms());
                self.sliding(world, &window, hit.cost, limit).await
            }
            Rule::Pace(pace) => self.pace(world, hit.key, pace).await,
            Rule::Concurrent { most, ttl_s } => self.enter(world, hit.key, most, ttl_s).await,
        }
    }

    /// Counts requests in a window that were let in already, and gives its state and the connection.
    pub async fn commit(
        &self,
        world: &dyn World,
        key: &[u8],
        cost: u64,
        rule: Rule,
    ) -> Result<(Committed, Rc<Link>), Unavailable> {
        let call = self.commit_call(key, cost, rule, world.now_ms());
        let mut deadline = self.access.deadline(world);
        let servers = self.servers(world);
        let (value, link) = servers.run(world, &call, &mut deadline).await.map_err(unavailable)?;
        let mut committed = Committed { last: 0, remaining: 0, reset_ms: 0 };
        if let Rule::Sliding { window_ms, .. } = rule {
            let window = self.window(key, window_ms, world.now_ms());
            // They are counted, even if the previous window cannot be read.
            committed.last = self.last(world, &servers, &window, &mut deadline).await.unwrap_or(0);
        }
        committed.read(&value, rule, world.now_ms()).ok_or(UNEXPECTED)?;
        Ok((committed, link))
    }

    /// The command of [`RedisLimiter::commit`] with its key, to be sent at that time.
    pub fn commit_call(&self, key: &[u8], cost: u64, rule: Rule, now_ms: u64) -> Call<'_> {
        match rule {
            Rule::Sliding { window_ms, .. } => Call {
                script: &self.scripts.add,
                keys: vec![self.window(key, window_ms, now_ms).key],
                arguments: vec![cost.to_string(), (window_ms / 1000 * 2).to_string()],
            },
            Rule::Fixed { limit, window_ms } => self.fixed(key, cost, limit, window_ms),
            // Only windows are counted later.
            Rule::Pace(_) | Rule::Concurrent { .. } => self.fixed(key, 0, 1, 1000),
        }
    }

    fn fixed(&self, key: &[u8], cost: u64, limit: u64, window_ms: u64) -> Call<'_> {
        Call {
            script: &self.scripts.fixed,
            keys: vec![self.key(&[self.prefix.as_bytes(), b"v1:"].concat(), key)],
            arguments: vec![limit.to_string(), (window_ms / 1000).to_string(), cost.to_string()],
        }
    }

    async fn sliding(
        &self,
        world: &dyn World,
        window: &Window,
        cost: u32,
        limit: u64,
    ) -> Result<Decision, Unavailable> {
        let servers = self.servers(world);
        let mut deadline = self.access.deadline(world);
        let Window { key, last, ms, left_ms } = window;
        let (seconds, left) = (ms / 1000, format!("{}.{:03}", left_ms / 1000, left_ms % 1000));
        let mut call = Call {
            script: &self.scripts.sliding,
            keys: vec![key.clone()],
            arguments: vec![
                cost.to_string(),
                limit.to_string(),
                seconds.to_string(),
                left,
                (seconds * 2).to_string(),
            ],
        };
        // A script has one key in a cluster. The previous window does not change any more.
        match servers.takes_any_keys() {
            true => call.keys.push(last.clone()),
            false => {
                let last = self.last(world, &servers, window, &mut deadline).await?;
                call.arguments.push(last.to_string());
            }
        }
        let (value, _) = servers.run(world, &call, &mut deadline).await.map_err(unavailable)?;
        let Some([accepted, count, last]) = list(&value) else { return Err(UNEXPECTED) };
        let (accepted, count) = integer(accepted).zip(integer(count)).ok_or(UNEXPECTED)?;
        let last = integer(last).ok_or(UNEXPECTED)?;
        if accepted == 1 {
            let remaining = window.remaining(limit, count, last);
            return Ok(Decision {
                allowed: true,
                remaining,
                reset_ms: hundredths(*left_ms),
                ..Decision::default()
            });
        }
        // Until enough of the previous window has slid out.
        let room = limit as f64 - count as f64;
        let wait = match room > 0.0 && last > 0 {
            true => (*left_ms as f64 - room * *ms as f64 / last as f64).max(0.0),
            false => *left_ms as f64,
        };
        Ok(Decision { reset_ms: hundredths(wait as u64), ..Decision::default() })
    }

    /// The count of the previous window.
    async fn last(
        &self,
        world: &dyn World,
        servers: &Servers,
        window: &Window,
        deadline: &mut Deadline,
    ) -> Result<i64, Unavailable> {
        let get = command(&[b"GET", &window.last]);
        let (value, _) = servers.call(world, &window.last, &get, deadline).await.map_err(unavailable)?;
        match value {
            Value::Nil => Ok(0),
            value => integer(&value).ok_or(UNEXPECTED),
        }
    }

    async fn pace(&self, world: &dyn World, key: &[u8], pace: Pace) -> Result<Decision, Unavailable> {
        let (rate, burst) = (pace.rate * 1000.0, pace.burst * 1000.0);
        let ttl = (burst / rate).ceil() + 1.0;
        let call = Call {
            script: &self.scripts.pace,
            keys: vec![self.key(b"limit_req:", key)],
            arguments: vec![rate.to_string(), burst.to_string(), world.now_ms().to_string(), ttl.to_string()],
        };
        let (value, _) = self.run(world, &call).await?;
        let Some([allowed, excess]) = list(&value) else { return Err(UNEXPECTED) };
        let (allowed, excess) = integer(allowed).zip(number(excess)).ok_or(UNEXPECTED)?;
        let allowed = allowed == 1;
        let delay_us = if allowed { (excess / rate * 1e6) as u64 } else { 0 };
        Ok(Decision { allowed, delay_us, ..Decision::default() })
    }

    async fn enter(
        &self,
        world: &dyn World,
        key: &[u8],
        most: u64,
        ttl_s: u64,
    ) -> Result<Decision, Unavailable> {
        let key = self.key(b"limit_conn:", key);
        let request = format!("{:032x}", fastrand::u128(..));
        let leave = command(&[b"ZREM", &key, request.as_bytes()]);
        let now_s = (world.now_ms() / 1000).to_string();
        let call = Call {
            script: &self.scripts.enter,
            keys: vec![key.clone()],
            arguments: vec![most.to_string(), ttl_s.to_string(), now_s, request],
        };
        let servers = self.servers(world);
        let mut entering = Entering { servers: &servers, key: &key, leave };
        let (value, link) = self.run(world, &call).await?;
        let leave = std::mem::take(&mut entering.leave);
        let Some([allowed, within]) = list(&value) else { return Err(UNEXPECTED) };
        let (allowed, within) = integer(allowed).zip(integer(within)).ok_or(UNEXPECTED)?;
        if allowed != 1 {
            return Ok(Decision::default());
        }
        Ok(Decision {
            allowed: true,
            remaining: most.saturating_sub(unsigned(within)),
            permit: Some(Permit::new(Hold::new(link, leave))),
            ..Decision::default()
        })
    }

    async fn run(&self, world: &dyn World, call: &Call<'_>) -> Result<(Value, Rc<Link>), Unavailable> {
        let answer: Answer = self.servers(world).run(world, call, &mut self.access.deadline(world)).await;
        answer.map_err(unavailable)
    }

    pub fn servers(&self, world: &dyn World) -> Rc<Servers> {
        self.access.servers(world)
    }

    fn key(&self, prefix: &[u8], key: &[u8]) -> Vec<u8> {
        let Scope { before, after } = &self.scope;
        [prefix, before.as_bytes(), key, after.as_bytes()].concat()
    }

    fn window(&self, key: &[u8], ms: u64, now_ms: u64) -> Window {
        let number = now_ms / ms;
        let key = self.key(self.prefix.as_bytes(), key);
        let named = |number: u64| [&key, format!(".{number}.counter").as_bytes()].concat();
        Window { key: named(number), last: named(number.saturating_sub(1)), ms, left_ms: ms - now_ms % ms }
    }
}

/// The state of a window after a commit.
#[derive(Debug, Clone, Copy)]
pub struct Committed {
    /// The count of the previous window.
    last: i64,
    pub remaining: u64,
    pub reset_ms: u64,
}

impl Committed {
    /// Takes over the answer to the call.
    pub fn read(&mut self, value: &Value, rule: Rule, now_ms: u64) -> Option<()> {
        match rule {
            Rule::Sliding { limit, window_ms: ms } => {
                let window = Window { key: Vec::new(), last: Vec::new(), ms, left_ms: ms - now_ms % ms };
                self.last = self.last.min(signed(limit));
                self.remaining = window.remaining(limit, integer(value)?, self.last);
                self.reset_ms = hundredths(window.left_ms);
            }
            Rule::Fixed { limit, .. } => {
                let (count, reset_ms) = counted(value).ok()?;
                self.remaining = unsigned(signed(limit) - count);
                self.reset_ms = reset_ms;
            }
            Rule::Pace(_) | Rule::Concurrent { .. } => return None,
        }
        Some(())
    }
}

/// The count of a fixed window, and the milliseconds until it ends.
fn counted(value: &Value) -> Result<(i64, u64), Unavailable> {
    let Some([count, ttl]) = list(value) else { return Err(UNEXPECTED) };
    let (count, ttl) = integer(count).zip(integer(ttl)).ok_or(UNEXPECTED)?;
    Ok((count, unsigned(ttl)))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A request whose answer did not come, and which may be in all the same: it leaves when this is dropped.
struct Entering<'e> {
    servers: &'e Servers,
    key: &'e [u8],
    leave: Vec<u8>,
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if !self.leave.is_empty() {
            self.servers.tell(self.key, &self.leave);
        }
    }
}

/// A sliding window at a moment.
struct Window {
    key: Vec<u8>,
    last: Vec<u8>,
    ms: u64,
    left_ms: u64,
}

impl Window {
    /// The rest of the limit after a request was counted.
    fn remaining(&self, limit: u64, count: i64, last: i64) -> u64 {
        let weighted = last as f64 / self.ms as f64 * self.left_ms as f64;
        (limit as f64 - count as f64 - weighted).floor().max(0.0) as u64
    }
}

/// Rounded up to hundredths of a second.
fn hundredths(ms: u64) -> u64 {
    ms.div_ceil(10) * 10
}

fn unavailable(error: Error) -> Unavailable {
    Unavailable(error.as_str())
}
