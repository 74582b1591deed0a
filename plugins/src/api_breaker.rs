//! hot path
//!
//! api-breaker: stops calling a failing upstream for a while and answers in its place.
//!
//! Settings and times as in APISIX 3.18. As there, the state belongs to host and path, for any
//! route of a request, and survives changes of the configuration; it is kept on this node, for
//! all workers together. After `failures` failures an API is not called for two seconds, after twice as
//! many for four, and so on.

use std::sync::Arc;

use bytes::Bytes;
use model::Invalid;
use sdk::HeaderName;
use sdk::chain::Phases;
use sdk::counters::{CounterKey, Tallies};
use sdk::template::Template;
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct ApiBreaker {
    tallies: Arc<Tallies>,
    host: Var,
    code: u16,
    body: Option<Bytes>,
    headers: Vec<(HeaderName, Template)>,
    /// Seconds.
    longest: u64,
    unhealthy: Threshold,
    healthy: Threshold,
}

const OPEN: &str = "the circuit breaker is open after responses with unhealthy statuses";

struct Threshold {
    statuses: Vec<u16>,
    times: u64,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    break_response_code: u16,
    break_response_body: Option<String>,
    break_response_headers: Option<Vec<Header>>,
    max_breaker_sec: u64,
    unhealthy: Unhealthy,
    healthy: Healthy,
}

#[derive(Debug, Deserialize)]
struct Header {
    key: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct Unhealthy {
    http_statuses: Vec<u16>,
    failures: u64,
}

#[derive(Debug, Deserialize)]
struct Healthy {
    http_statuses: Vec<u16>,
    successes: u64,
}

/// The counters of an API.
#[derive(Debug, Clone, Copy)]
enum Of {
    Failures,
    Successes,
    /// When it was last left alone.
    Since,
}

impl Plugin for ApiBreaker {
    const NAME: &'static str = "api-breaker";
    const PRIORITY: i32 = 1005;
    const PHASES: Phases = Phases::ACCESS.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        let statuses = |least: u16, most: u16, default: u16| {
            json!({
                "type": "array",
                "minItems": 1,
                "items": {"type": "integer", "minimum": least, "maximum": most},
                "uniqueItems": true,
                "default": [default],
            })
        };
        let times = json!({"type": "integer", "minimum": 1, "default": 3});
        json!({
            "type": "object",
            "properties": {
                "break_response_code": {"type": "integer", "minimum": 200, "maximum": 599},
                "break_response_body": {"type": "string"},
                "break_response_headers": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "key": {"type": "string", "minLength": 1},
                            "value": {"type": "string", "minLength": 1},
                        },
                        "required": ["key", "value"],
                    },
                },
                "max_breaker_sec": {"type": "integer", "minimum": 3, "default": 300},
                "unhealthy": {
                    "type": "object",
                    "properties": {"http_statuses": statuses(500, 599, 500), "failures": times},
                    "default": {"http_statuses": [500], "failures": 3},
                },
                "healthy": {
                    "type": "object",
                    "properties": {"http_statuses": statuses(200, 499, 200), "successes": times},
                    "default": {"http_statuses": [200], "successes": 3},
                },
            },
            "required": ["break_response_code"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ApiBreaker, Invalid> {
        let header = |(index, header): (usize, Header)| {
            let name = HeaderName::new(&header.key).map_err(|bad| {
                let place = format!("/break_response_headers/{index}/key");
                Invalid::new(bad.to_string()).at(place).got(header.key)
            })?;
            Ok((name, Template::parse(&header.value)))
        };
        let headers = config.break_response_headers.unwrap_or_default();
        cx.services.tallies.reserve();
        Ok(ApiBreaker {
            tallies: cx.services.tallies.clone(),
            host: Var::parse("host"),
            code: config.break_response_code,
            body: config.break_response_body.map(Bytes::from),
            headers: headers.into_iter().enumerate().map(header).collect::<Result<_, Invalid>>()?,
            longest: config.max_breaker_sec,
            unhealthy: Threshold {
                statuses: config.unhealthy.http_statuses,
                times: config.unhealthy.failures,
            },
            healthy: Threshold { statuses: config.healthy.http_statuses, times: config.healthy.successes },
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let failures = self.tallies.count(self.key(x, Of::Failures));
        if failures == 0 {
            return Step::Next;
        }
        let Some(since) = self.tallies.time(self.key(x, Of::Since)) else { return Step::Next };
        // 2^64 seconds are longer than any.
        let doublings = (failures / self.unhealthy.times).clamp(1, 63);
        let alone = (1u64 << doublings).min(self.longest);
        if since.saturating_add(alone) < x.world().steady_ms() / 1000 {
            return Step::Next;
        }
        Step::Reply(self.refuse(x))
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let status = x.upstream_status();
        let now = x.world().steady_ms() / 1000;
        if self.unhealthy.statuses.contains(&status) {
            let failures = self.tallies.add(self.key(x, Of::Failures), now);
            self.tallies.clear(self.key(x, Of::Successes));
            if failures.is_multiple_of(self.unhealthy.times) {
                self.tallies.set_time(self.key(x, Of::Since), now);
            }
        } else if self.healthy.statuses.contains(&status)
            && self.tallies.count(self.key(x, Of::Failures)) > 0
            && self.tallies.add(self.key(x, Of::Successes), now) >= self.healthy.times
        {
            for what in [Of::Since, Of::Failures, Of::Successes] {
                self.tallies.clear(self.key(x, what));
            }
        }
    }
}

impl ApiBreaker {
    fn key(&self, x: &Exchange<'_>, what: Of) -> CounterKey {
        let host = self.host.of(x).unwrap_or_default();
        self.tallies.key().number(what as u64).part(&host).part(x.path()).finish()
    }

    fn refuse(&self, x: &mut Exchange<'_>) -> Reply {
        let Some(body) = &self.body else { return Reply::status(self.code).because(OPEN) };
        let mut value = Vec::new();
        for (name, template) in &self.headers {
            value.clear();
            template.render(x, &mut value);
            // Values that a variable made unfit for a head are left out. Content-Type occurs once.
            let _ = match name.as_str().eq_ignore_ascii_case("content-type") {
                true => x.set_response_header(name, &value),
                false => x.add_response_header(name.as_str(), &value),
            };
        }
        Reply::text(self.code, body.clone()).because(OPEN)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    struct Api {
        probe: Probe,
        stage: ApiBreaker,
    }

    impl Api {
        fn new(config: Value) -> Api {
            let probe = Probe::get("/api");
            let stage = probe.stage(config).unwrap();
            Api { probe, stage }
        }

        /// One request, which the upstream answers with this status; what the client gets.
        fn ask(&mut self, upstream: u16) -> u16 {
            self.probe.messages.response.clear();
            let mut x = self.probe.exchange();
            let status = match self.stage.access(&mut x) {
                Step::Next => {
                    respond(&mut x, upstream, &[]);
                    upstream
                }
                Step::Reply(reply) => reply.status,
                step => panic!("{step:?}"),
            };
            self.stage.log(&mut x);
            status
        }

        fn pass(&mut self, seconds: u64) {
            self.probe.world.now_ms.set(self.probe.world.now_ms.get() + seconds * 1000);
        }
    }

    fn config() -> Value {
        json!({"break_response_code": 599, "unhealthy": {"http_statuses": [500, 503], "failures": 3}, "healthy": {"http_statuses": [200, 206]}})
    }

    #[test]
    fn failures_break_and_the_time_doubles() {
        let mut api = Api::new(config());
        assert_eq!(
            [200, 500, 503, 500, 500, 200].map(|status| api.ask(status)),
            [200, 500, 503, 500, 599, 599]
        );
        // As in APISIX, whose clock has whole seconds, the last of them is still within.
        api.pass(2);
        assert_eq!(api.ask(500), 599);
        api.pass(1);
        assert_eq!([500, 500, 500, 200].map(|status| api.ask(status)), [500, 500, 500, 599]);
        api.pass(4);
        assert_eq!(api.ask(500), 599);
        api.pass(1);
        assert_eq!(api.ask(200), 200);
    }

    #[test]
    fn a_clock_that_is_set_neither_ends_nor_prolongs_it() {
        for step in [-31_536_000_000, -3_600_000, 3_600_000, 31_536_000_000] {
            let mut api = Api::new(config());
            assert_eq!([500, 500, 500].map(|status| api.ask(status)), [500; 3]);
            api.probe.world.set_by_ms.set(step);
            api.pass(2);
            assert_eq!(api.ask(200), 599, "{step}");
            api.pass(1);
            assert_eq!(api.ask(200), 200, "{step}");
        }
    }

    #[test]
    fn the_time_has_its_longest() {
        let mut api =
            Api::new(json!({"break_response_code": 503, "max_breaker_sec": 3, "unhealthy": {"failures": 1}}));
        for seconds in [2].into_iter().chain([3; 100]) {
            assert_eq!((api.ask(500), api.ask(500)), (500, 503));
            api.pass(seconds);
            assert_eq!(api.ask(500), 503);
            api.pass(1);
        }
    }

    #[test]
    fn successes_mend_it() {
        let mut api = Api::new(config());
        assert_eq!(
            [500, 500, 200, 206, 200, 500, 500, 200].map(|status| api.ask(status)),
            [500, 500, 200, 206, 200, 500, 500, 200]
        );
        // A failure takes the successes back; another status says nothing.
        let mut api = Api::new(config());
        for status in [500, 200, 200, 500, 200, 404, 502, 200] {
            assert_eq!(api.ask(status), status);
        }
        assert_eq!([500, 200].map(|status| api.ask(status)), [500, 599]);
    }

    #[test]
    fn an_api_that_never_failed_takes_no_room() {
        let mut api = Api::new(config());
        (0..9).for_each(|_| _ = api.ask(200));
        let x = api.probe.exchange();
        let kept = [Of::Failures, Of::Successes].map(|what| api.stage.tallies.count(api.stage.key(&x, what)));
        assert_eq!(kept, [0, 0]);
    }

    #[test]
    fn what_is_known_belongs_to_host_and_path() {
        let mut api = Api::new(config());
        (0..3).for_each(|_| _ = api.ask(500));
        let ask = |target: &str, host: &str| {
            let mut probe = Probe {
                services: api.probe.services.clone(),
                ..Probe::request("GET", target, &[("Host", host)])
            };
            // Another route, another configuration: the same API.
            probe.route.id = "2".into();
            let stage: ApiBreaker = probe.stage(json!({"break_response_code": 418})).unwrap();
            matches!(stage.access(&mut probe.exchange()), Step::Reply(Reply { status: 418, .. }))
        };
        assert!(ask("/api", "example.com") && ask("/api?a=b", "example.com"));
        assert!(!ask("/api/", "example.com") && !ask("/api", "example.org"));
    }

    #[test]
    fn its_answer_is_as_configured() {
        let mut config = config();
        config["break_response_headers"] = json!([{"key": "X-Who", "value": "$remote_addr"}, {"key": "Content-Type", "value": "application/json"}]);
        let mut api = Api::new(config.clone());
        (0..3).for_each(|_| _ = api.ask(500));
        let mut answered = |config: &Value| {
            let stage: ApiBreaker = api.probe.stage(config.clone()).unwrap();
            api.probe.messages.response.clear();
            let mut x = api.probe.exchange();
            let Step::Reply(reply) = stage.access(&mut x) else { panic!("asked") };
            respond(&mut x, 200, &[("Content-Type", "text/plain")]);
            let header =
                |name| x.response_header(name).map(|value| String::from_utf8(value.to_vec()).unwrap());
            (
                String::from_utf8(reply.body.to_vec()).unwrap(),
                header("X-Who"),
                header("Content-Type").unwrap(),
            )
        };
        // Without a body, APISIX sends none of the headers either.
        assert_eq!(answered(&config), (String::new(), None, "text/plain".into()));
        config["break_response_body"] = json!("{\"a\": \"$uri\"}");
        let expected =
            ("{\"a\": \"$uri\"}".to_owned(), Some("127.0.0.1".to_owned()), "application/json".into());
        assert_eq!(answered(&config), expected);
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        for (config, reason) in [
            (json!({}), "property \"break_response_code\" is required"),
            (
                json!({"break_response_code": 199}),
                "property \"break_response_code\" validation failed: expected 199 to be at least 200",
            ),
            (
                json!({"break_response_code": 500, "healthy": {"http_statuses": [206, 206]}}),
                "property \"healthy\" validation failed: property \"http_statuses\" validation failed: expected unique items but items 1 and 2 are equal",
            ),
        ] {
            assert_eq!(probe.stage::<ApiBreaker>(config.clone()).err().unwrap().reason, reason, "{config}");
        }
        let bad =
            json!({"break_response_code": 500, "break_response_headers": [{"key": "a b", "value": "x"}]});
        assert_eq!(probe.stage::<ApiBreaker>(bad).err().unwrap().pointer, "/break_response_headers/0/key");
    }
}
