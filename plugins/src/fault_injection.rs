//! hot path
//!
//! fault-injection: delays requests, or answers them with a fault, to test clients.
//!
//! Settings and order as in APISIX 3.18: conditions first, then the delay, then the fault; each has a
//! share of requests of its own.

use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::expr::Expr;
use sdk::template::Template;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::edits::{self, Edit, Verb};

/// The stage.
pub struct FaultInjection {
    abort: Option<Abort>,
    delay: Option<Delay>,
}

struct Abort {
    when: When,
    status: u16,
    body: Option<Template>,
    headers: Vec<Edit>,
}

struct Delay {
    when: When,
    time: Duration,
}

/// Which requests are hit.
struct When {
    /// One of them must hold, if there is a list at all.
    vars: Option<Vec<Expr>>,
    /// Of a hundred; all if nothing is said.
    percentage: Option<u8>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    abort: Option<AbortConfig>,
    delay: Option<DelayConfig>,
}

#[derive(Debug, Deserialize)]
struct AbortConfig {
    #[serde(deserialize_with = "crate::any_status")]
    http_status: u16,
    body: Option<String>,
    headers: Option<Map<String, Value>>,
    percentage: Option<u8>,
    vars: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct DelayConfig {
    duration: f64,
    percentage: Option<u8>,
    vars: Option<Vec<Value>>,
}

/// Noted while the delay lasts: the fault comes behind it.
struct AbortsAfter(bool);

impl Plugin for FaultInjection {
    const NAME: &'static str = "fault-injection";
    const PRIORITY: i32 = 11000;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        let percentage = json!({"type": "integer", "minimum": 0, "maximum": 100});
        let vars = json!({"type": "array", "maxItems": 20, "items": {"type": "array"}});
        json!({
            "type": "object",
            "properties": {
                "abort": {
                    "type": "object",
                    "properties": {
                        "http_status": {"type": "integer", "minimum": 200},
                        "body": {"type": "string", "minLength": 0},
                        "headers": edits::plain_schema(),
                        "percentage": percentage,
                        "vars": vars,
                    },
                    "required": ["http_status"],
                },
                "delay": {
                    "type": "object",
                    "properties": {
                        "duration": {"type": "number", "minimum": 0},
                        "percentage": percentage,
                        "vars": vars,
                    },
                    "required": ["duration"],
                },
            },
            "minProperties": 1,
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<FaultInjection, Invalid> {
        let abort = config.abort.map(Abort::build).transpose().map_err(|invalid| invalid.under("/abort"))?;
        let delay = config.delay.map(Delay::build).transpose().map_err(|invalid| invalid.under("/delay"))?;
        Ok(FaultInjection { abort, delay })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        // Both conditions are judged before any dice are thrown: one that wants the body makes the phase run again.
        let conditions = (
            self.abort.as_ref().map_or(Ok(false), |abort| abort.when.holds(x)),
            self.delay.as_ref().map_or(Ok(false), |delay| delay.when.holds(x)),
        );
        let (abort, delay) = match conditions {
            (Ok(abort), Ok(delay)) => (abort, delay),
            (Err(step), _) | (_, Err(step)) => return step,
        };
        let hit = |when: Option<&When>| when.is_some_and(When::hits);
        let delay = delay && hit(self.delay.as_ref().map(|delay| &delay.when));
        let abort = abort && hit(self.abort.as_ref().map(|abort| &abort.when));
        if delay {
            x.set_note(AbortsAfter(abort));
            return Step::Wait;
        }
        if abort { self.fault(x) } else { Step::Next }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let aborts = x.take_note::<AbortsAfter>().is_some_and(|AbortsAfter(aborts)| aborts);
        if let Some(delay) = &self.delay {
            x.world().sleep(delay.time).await;
        }
        if aborts { self.fault(x) } else { Step::Next }
    }
}

impl FaultInjection {
    fn fault(&self, x: &mut Exchange<'_>) -> Step {
        let Some(abort) = &self.abort else { return Step::Next };
        edits::on_response(&abort.headers, x);
        let Some(body) = &abort.body else { return Step::Reply(Reply::status(abort.status)) };
        let mut text = Vec::new();
        body.render(x, &mut text);
        Step::Reply(Reply::text(abort.status, text))
    }
}

impl Abort {
    fn build(config: AbortConfig) -> Result<Abort, Invalid> {
        crate::check_status(config.http_status, "/http_status")?;
        let headers = edits::plain(Verb::Set, &config.headers.unwrap_or_default());
        Ok(Abort {
            when: When::build(config.vars, config.percentage)?,
            status: config.http_status,
            body: config.body.as_deref().map(Template::parse),
            headers: headers.map_err(|invalid| invalid.under("/headers"))?,
        })
    }
}

impl Delay {
    fn build(config: DelayConfig) -> Result<Delay, Invalid> {
        let time = Duration::try_from_secs_f64(config.duration)
            .map_err(|error| Invalid::new(error.to_string()).at("/duration").expected("seconds"))?;
        Ok(Delay { when: When::build(config.vars, config.percentage)?, time })
    }
}

impl When {
    fn build(vars: Option<Vec<Value>>, percentage: Option<u8>) -> Result<When, Invalid> {
        let compile = |(index, vars): (usize, &Value)| {
            Expr::compile(vars).map_err(|invalid| invalid.within(index).under("/vars"))
        };
        let vars =
            vars.map(|list| list.iter().enumerate().map(compile).collect::<Result<_, _>>()).transpose()?;
        Ok(When { vars, percentage })
    }

    fn holds(&self, x: &mut Exchange<'_>) -> Result<bool, Step> {
        let Some(vars) = &self.vars else { return Ok(true) };
        let mut undecided = None;
        for vars in vars {
            match vars.decide(x) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                // The body may decide; what cannot be judged counts if nothing else does.
                Err(step @ Step::Body(_)) => return Err(step),
                Err(step) => undecided = Some(step),
            }
        }
        undecided.map_or(Ok(false), Err)
    }

    fn hits(&self) -> bool {
        self.percentage.is_none_or(|share| fastrand::u8(1..=100) <= share)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now, respond, with_body};

    use super::*;

    /// Seconds of delay, the status of the fault and its body.
    fn hit(config: Value, target: &str) -> (f64, u16, String) {
        let mut probe = Probe::get(target);
        let stage: FaultInjection = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        let mut step = stage.rewrite(&mut x);
        if matches!(step, Step::Wait) {
            step = now(stage.wait(Phase::Rewrite, &mut x));
        }
        let (status, body) = match step {
            Step::Next => (0, String::new()),
            Step::Reply(reply) => (reply.status, String::from_utf8(reply.body.to_vec()).unwrap()),
            step => panic!("{step:?}"),
        };
        drop(x);
        (probe.world.slept.borrow().iter().map(Duration::as_secs_f64).sum(), status, body)
    }

    #[test]
    fn delay_comes_before_the_fault() {
        let config =
            json!({"abort": {"http_status": 503, "body": "for $remote_addr"}, "delay": {"duration": 1.5}});
        assert_eq!(hit(config, "/"), (1.5, 503, "for 127.0.0.1".into()));
        assert_eq!(hit(json!({"abort": {"http_status": 200}}), "/"), (0.0, 200, String::new()));
        assert_eq!(hit(json!({"delay": {"duration": 0}}), "/"), (0.0, 0, String::new()));
    }

    #[test]
    fn shares_are_kept() {
        for (share, least, most) in [(0, 0, 0), (100, 1000, 1000), (30, 200, 400)] {
            let config = json!({"abort": {"http_status": 400, "percentage": share}});
            let mut probe = Probe::get("/");
            let stage: FaultInjection = probe.stage(config).unwrap();
            let hits =
                (0..1000).filter(|_| !matches!(stage.rewrite(&mut probe.exchange()), Step::Next)).count();
            assert!((least..=most).contains(&hits), "{hits} of 1000 at {share} %");
        }
    }

    #[test]
    fn one_condition_is_enough() {
        let vars = json!([[["arg_name", "==", "jack"], ["arg_age", ">", 18]], [["arg_key", "==", "x"]]]);
        let config = json!({"abort": {"http_status": 403, "vars": vars}, "delay": {"duration": 2, "vars": [[["arg_slow", "==", "1"]]]}});
        for (target, seconds, status) in [
            ("/?name=jack&age=19", 0.0, 403),
            ("/?name=jack&age=18", 0.0, 0),
            ("/?key=x&slow=1", 2.0, 403),
            ("/?slow=1", 2.0, 0),
            ("/", 0.0, 0),
        ] {
            let (slept, fault, _) = hit(config.clone(), target);
            assert_eq!((slept, fault), (seconds, status), "{target}");
        }
        // No condition, and so none that holds.
        assert_eq!(hit(json!({"abort": {"http_status": 403, "vars": []}}), "/").1, 0);
    }

    #[test]
    fn a_condition_on_the_body_waits_for_it() {
        let config = json!({"abort": {"http_status": 418, "vars": [[["post_arg_a", "==", "b"]]]}});
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/x-www-form-urlencoded")]);
        let stage: FaultInjection = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().body_state = sdk::exchange::Body::Streaming;
        assert!(matches!(stage.rewrite(&mut x), Step::Body(_)));
        with_body(&mut x, b"a=b");
        assert!(matches!(stage.rewrite(&mut x), Step::Reply(Reply { status: 418, .. })));
    }

    #[test]
    fn headers_are_set_on_the_answer() {
        let config = json!({"abort": {"http_status": 200, "body": "", "headers": {"X-Number": 7, "X-Who": "$remote_addr!", "set": "x"}}});
        let mut probe = Probe::get("/");
        let stage: FaultInjection = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.rewrite(&mut x), Step::Reply(_)));
        respond(&mut x, 200, &[]);
        for (name, value) in [("X-Number", "7"), ("X-Who", "127.0.0.1!"), ("Set", "x")] {
            assert_eq!(x.response_header(name), Some(value.as_bytes()));
        }
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let error = |config| probe.stage::<FaultInjection>(config).err().unwrap();
        assert!(error(json!({})).reason.contains("expect object to have at least 1 properties"));
        assert!(error(json!({"abort": {}})).reason.contains("property \"http_status\" is required"));
        assert!(
            error(json!({"abort": {"http_status": 100}})).reason.contains("expected 100 to be at least 200")
        );
        assert!(
            error(json!({"delay": {"duration": "x"}}))
                .reason
                .contains("wrong type: expected number, got string")
        );
        let vars = error(json!({"delay": {"duration": 1, "vars": [[["a", "@@", "b"]]]}}));
        assert!(vars.pointer.starts_with("/delay/vars/0"), "{}", vars.pointer);
        assert_eq!(error(json!({"delay": {"duration": 1e300}})).pointer, "/delay/duration");
        for headers in [json!({}), json!({"X-A": true}), json!({"a:b": "c"}), json!("X-A: 1")] {
            let config = json!({"abort": {"http_status": 200, "headers": headers}});
            assert!(probe.stage::<FaultInjection>(config).is_err(), "{headers}");
        }
    }
}
