//! hot path
//!
//! limit-req: limits the rate of requests; faster ones are delayed or refused.
//!
//! Settings, delays and messages as in APISIX 3.18: a leaky bucket, counted on this node and exact
//! across workers. A limit belongs to the resource the plugin stands in and to its settings.
//! Counting across nodes (the Redis policies) is refused when the configuration is checked.

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::counters::{CounterKey, Pace, Paces};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::{self, By, Scratch};

/// The stage.
pub struct LimitReq {
    paces: Arc<Paces>,
    pace: Pace,
    by: By,
    /// The beginning of all keys of this plugin instance.
    scope: CounterKey,
    nodelay: bool,
    rejected: Reply,
    scratch: Scratch,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Config {
    rate: f64,
    burst: f64,
    key: String,
    key_type: String,
    policy: String,
    rejected_code: u16,
    rejected_msg: Option<String>,
    nodelay: bool,
    /// Counting on this node cannot fail.
    allow_degradation: bool,
}

/// Reason of a rejected request.
const TOO_FAST: &str = "requests arrive faster than `rate` and `burst` allow";

/// Noted while a request waits for its turn.
struct Turn(Duration);

impl Plugin for LimitReq {
    const NAME: &'static str = "limit-req";
    const PRIORITY: i32 = 1001;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "rate": {"type": "number", "exclusiveMinimum": 0},
                "burst": {"type": "number", "minimum": 0},
                "key": {"type": "string"},
                "key_type": {"type": "string", "enum": ["var", "var_combination"], "default": "var"},
                "policy": {
                    "type": "string",
                    "enum": ["redis", "redis-cluster", "local"],
                    "default": "local",
                },
                "rejected_code": {"type": "integer", "minimum": 200, "maximum": 599, "default": 503},
                "rejected_msg": {"type": "string", "minLength": 1},
                "nodelay": {"type": "boolean", "default": false},
                "allow_degradation": {"type": "boolean", "default": false},
            },
            "required": ["rate", "burst", "key"],
            "encrypt_fields": ["redis_password"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<LimitReq, Invalid> {
        limits::only_local(&config.policy)?;
        let paces = cx.services.paces.clone();
        let scope = limits::scope(&paces, cx.owner, &config)?;
        Ok(LimitReq {
            paces,
            pace: Pace::new(config.rate, config.burst),
            by: By::configured(&config.key, &config.key_type),
            scope,
            nodelay: config.nodelay,
            scratch: cx.shared_worker_state("scratch"),
            rejected: crate::refusal(config.rejected_code, config.rejected_msg.as_deref(), TOO_FAST),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        // Such a key always applies; were it otherwise, there would be nothing to limit.
        let Some(key) = self.by.key(&self.paces, self.scope, x, &self.scratch) else { return Step::Next };
        match self.paces.take(key, self.pace, x.world().steady_ms()) {
            None => Step::Reply(self.rejected.clone()),
            Some(turn) if turn >= 1000 && !self.nodelay => {
                x.set_note(Turn(Duration::from_micros(turn)));
                Step::Wait
            }
            Some(_) => Step::Next,
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        if let Some(Turn(turn)) = x.take_note() {
            x.world().sleep(turn).await;
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now};

    use super::*;

    /// Milliseconds of delay, or the status of the refusal.
    fn hit(stage: &LimitReq, probe: &mut Probe) -> Result<u64, u16> {
        probe.world.slept.borrow_mut().clear();
        let clock = probe.world.now_ms.get();
        let mut x = probe.exchange();
        let mut step = stage.access(&mut x);
        if matches!(step, Step::Wait) {
            step = now(stage.wait(Phase::Access, &mut x));
        }
        drop(x);
        probe.world.now_ms.set(clock);
        match step {
            Step::Next => Ok(probe.world.slept.borrow().iter().map(|time| time.as_millis() as u64).sum()),
            Step::Reply(reply) => Err(reply.status),
            step => panic!("{step:?}"),
        }
    }

    fn config(rate: f64, burst: f64) -> Value {
        json!({"rate": rate, "burst": burst, "key": "remote_addr"})
    }

    #[test]
    fn requests_wait_for_their_turn_and_beyond_the_burst_are_refused() {
        let mut probe = Probe::default();
        let stage: LimitReq = probe.stage(config(4.0, 2.0)).unwrap();
        for expected in [Ok(0), Ok(250), Ok(500), Err(503), Err(503)] {
            assert_eq!(hit(&stage, &mut probe), expected);
        }
        probe.world.now_ms.set(probe.world.now_ms.get() + 250);
        assert_eq!((hit(&stage, &mut probe), hit(&stage, &mut probe)), (Ok(500), Err(503)));
        let mut other = Probe { services: probe.services.clone(), ..Probe::default() }.from_ip("10.0.0.9");
        assert_eq!(hit(&stage, &mut other), Ok(0));
    }

    #[test]
    fn a_clock_that_is_set_changes_no_turn() {
        let mut probe = Probe::default();
        let stage: LimitReq = probe.stage(config(4.0, 1.0)).unwrap();
        assert_eq!([hit(&stage, &mut probe), hit(&stage, &mut probe)], [Ok(0), Ok(250)]);
        for step in [-3_600_000, 3_600_000, 31_536_000_000, -31_536_000_000] {
            probe.world.set_by_ms.set(step);
            assert_eq!(hit(&stage, &mut probe), Err(503), "{step}");
        }
    }

    #[test]
    fn without_delay_the_burst_passes_at_once() {
        let mut probe = Probe::default();
        let mut config = config(4.0, 2.0);
        config["nodelay"] = json!(true);
        config["rejected_code"] = json!(429);
        config["rejected_msg"] = json!("slow down");
        let stage: LimitReq = probe.stage(config).unwrap();
        for expected in [Ok(0), Ok(0), Ok(0), Err(429)] {
            assert_eq!(hit(&stage, &mut probe), expected);
        }
        let Step::Reply(reply) = stage.access(&mut probe.exchange()) else { panic!("let in") };
        assert_eq!(&reply.body[..], b"{\"error_msg\":\"slow down\"}\n");
    }

    #[test]
    fn keys_are_variables_or_combinations() {
        for (key, key_type, second) in [
            ("http_x_user", "var", Ok(0)),
            // Without a value, the address counts.
            ("http_x_none", "var", Err(503)),
            ("$http_x_user $remote_addr", "var_combination", Ok(0)),
            ("$http_x_none", "var_combination", Err(503)),
            ("remote_addr", "var_combination", Err(503)),
        ] {
            let mut probe = Probe::request("GET", "/", &[("X-User", "a")]);
            let config = json!({"rate": 0.1, "burst": 0, "key": key, "key_type": key_type});
            let stage: LimitReq = probe.stage(config).unwrap();
            assert_eq!(hit(&stage, &mut probe), Ok(0));
            probe.ask("GET", "/", &[("X-User", "b")]);
            assert_eq!(hit(&stage, &mut probe), second, "{key}");
        }
    }

    #[test]
    fn a_limit_belongs_to_its_resource_and_settings() {
        let mut probe = Probe::default();
        let first: LimitReq = probe.stage(config(0.1, 0.0)).unwrap();
        assert_eq!(hit(&first, &mut probe), Ok(0));
        // Compiled again, it keeps its pace.
        let again: LimitReq = probe.stage(config(0.1, 0.0)).unwrap();
        assert_eq!(hit(&again, &mut probe), Err(503));
        let changed: LimitReq = probe.stage(config(0.2, 0.0)).unwrap();
        assert_eq!(hit(&changed, &mut probe), Ok(0));
        probe.route.id = "2".into();
        let other: LimitReq = probe.stage(config(0.1, 0.0)).unwrap();
        assert_eq!(hit(&other, &mut probe), Ok(0));
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (json!({"rate": 1, "burst": 1}), "property \"key\" is required"),
            (
                json!({"rate": -1, "burst": 1, "key": "a"}),
                "property \"rate\" validation failed: expected -1 to be greater than 0",
            ),
            (
                json!({"rate": 1, "burst": 1, "key": "a", "policy": "redis", "redis_host": "127.0.0.1"}),
                "policy redis is not available in this version",
            ),
        ] {
            assert_eq!(probe.stage::<LimitReq>(config.clone()).err().unwrap().reason, reason, "{config}");
        }
    }
}
