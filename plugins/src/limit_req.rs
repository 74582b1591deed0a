//! hot path
//!
//! limit-req: limits the rate of requests; faster ones are delayed or refused.
//!
//! Settings, delays and messages as in APISIX 3.18: a leaky bucket, exact across workers, and with a
//! shared policy across nodes. A limit belongs to the resource the plugin stands in and to its
//! settings.

use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::counters::Pace;
use sdk::limit::{Decision, Hit, Kind, Limit, Rule, Unavailable};
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limits::fields::{Fields, Shown};
use crate::limits::policy::{Degradation, Policy, with_policies};
use crate::limits::{By, Scratch};

/// The stage.
pub struct LimitReq {
    limit: Limit,
    pace: Pace,
    rate: f64,
    burst: f64,
    by: By,
    nodelay: bool,
    degradation: Degradation,
    rejected: Reply,
    /// With `show_ratelimit_fields`.
    fields: Option<Fields>,
    scratch: Scratch,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    rate: Rate,
    #[serde(flatten)]
    policy: Policy,
    #[serde(default)]
    show_ratelimit_fields: bool,
}

/// The settings that decide what is counted.
#[derive(Debug, Serialize, Deserialize)]
struct Rate {
    rate: f64,
    burst: f64,
    key: String,
    key_type: String,
    rejected_code: u16,
    rejected_msg: Option<String>,
    nodelay: bool,
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
        let schema = json!({
            "type": "object",
            "properties": {
                "rate": {"type": "number", "exclusiveMinimum": 0},
                "burst": {"type": "number", "minimum": 0},
                "key": {"type": "string"},
                "key_type": {"type": "string", "enum": ["var", "var_combination"], "default": "var"},
                "rejected_code": {"type": "integer", "minimum": 200, "maximum": 599, "default": 503},
                "rejected_msg": {"type": "string", "minLength": 1},
                "nodelay": {"type": "boolean", "default": false},
                "show_ratelimit_fields": {"type": "boolean"},
            },
            "required": ["rate", "burst", "key"],
        });
        with_policies(schema, Kind::Paces, &["redis", "redis-cluster", "local"])
    }

    fn build(mut config: Config, cx: &mut Build<'_>) -> Result<LimitReq, Invalid> {
        config.policy.settle(Kind::Paces);
        let Config { rate, policy, show_ratelimit_fields } = config;
        let settings = serde_json::to_value(&rate).map_err(|error| Invalid::new(error.to_string()))?;
        Ok(LimitReq {
            limit: policy.limit(Self::NAME, Kind::Paces, &settings, None, cx)?,
            pace: Pace::new(rate.rate, rate.burst),
            rate: rate.rate,
            burst: rate.burst,
            by: By::configured(&rate.key, &rate.key_type),
            nodelay: rate.nodelay,
            degradation: policy.degradation(),
            rejected: crate::refusal(rate.rejected_code, rate.rejected_msg.as_deref(), TOO_FAST),
            fields: show_ratelimit_fields.then(|| Fields::new("default")),
            scratch: cx.shared_worker_state("scratch"),
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let Limit::Local(local) = &self.limit else { return Step::Wait };
        // Such a key always applies; were it otherwise, there would be nothing to limit.
        let Some(key) = self.by.value(x, &self.scratch, |value| local.key(value)) else { return Step::Next };
        // Paces on this node never fail.
        let decision = local.take(key, 1, self.rule(), x.world().steady_ms()).unwrap_or_default();
        match self.turn(&decision, x) {
            Ok(None) => Step::Next,
            Ok(Some(turn)) => {
                x.set_note(Turn(turn));
                Step::Wait
            }
            Err(step) => step,
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let turn = match (&self.limit, x.take_note()) {
            (_, Some(Turn(turn))) => Some(turn),
            (Limit::Local(_), None) => None,
            (Limit::Shared(limiter), None) => {
                let key = self.by.value(x, &self.scratch, |value| value.to_vec()).unwrap_or_default();
                match limiter.take(x.world(), Hit { key: &key, cost: 1, rule: self.rule() }).await {
                    Ok(decision) => match self.turn(&decision, x) {
                        Ok(turn) => turn,
                        Err(step) => return step,
                    },
                    Err(Unavailable(reason)) => return self.degradation.report(x, Self::NAME, reason, None),
                }
            }
        };
        if let Some(turn) = turn {
            x.world().sleep(turn).await;
        }
        Step::Next
    }
}

impl LimitReq {
    fn rule(&self) -> Rule {
        Rule::Pace(self.pace)
    }

    /// How long the request waits for its turn, or the step that rejects it.
    fn turn(&self, decision: &Decision, x: &mut Exchange<'_>) -> Result<Option<Duration>, Step> {
        if let Some(fields) = &self.fields {
            fields.add(x, self.shown(decision));
        }
        if !decision.allowed {
            return Err(Step::Reply(self.rejected.clone()));
        }
        let waits = decision.delay_us >= 1000 && !self.nodelay;
        Ok(waits.then(|| Duration::from_micros(decision.delay_us)))
    }

    /// The limit as a window: as many as may come at once, and the time after which as many may come again.
    fn shown(&self, decision: &Decision) -> Shown {
        let ahead = decision.delay_us as f64 * self.rate / 1e6;
        // The delay is rounded down to microseconds.
        let remaining = if decision.allowed { (self.burst - ahead + 1e-3).max(0.0) as u64 } else { 0 };
        let quota = (self.burst as u64).saturating_add(1);
        let seconds = |requests: f64| (requests / self.rate).ceil().max(1.0) as u64;
        Shown {
            quota,
            window: Some(seconds(quota as f64)),
            remaining,
            // At most until one more has gone ahead.
            reset: (remaining == 0).then(|| seconds(1.0)),
            ..Shown::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now, respond};

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
    fn standard_fields_show_the_burst_and_the_time_for_it() {
        let mut probe = Probe::default();
        let mut config = config(0.5, 2.0);
        config["show_ratelimit_fields"] = json!(true);
        config["nodelay"] = json!(true);
        let stage: LimitReq = probe.stage(config).unwrap();
        for (state, allowed) in [("r=2", true), ("r=1", true), ("r=0;t=2", true), ("r=0;t=2", false)] {
            let mut x = probe.exchange();
            assert_eq!(matches!(stage.access(&mut x), Step::Next), allowed);
            respond(&mut x, 200, &[]);
            let shown = crate::limits::fields::tests::shown(&x);
            assert_eq!(
                shown,
                [vec![r#""default";q=3;w=6"#.to_owned()], vec![format!(r#""default";{state}"#)]]
            );
            drop(x);
            probe.messages.clear();
        }
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
                "policy redis is not available in this build",
            ),
        ] {
            assert_eq!(probe.stage::<LimitReq>(config.clone()).err().unwrap().reason, reason, "{config}");
        }
    }
}
