//! hot path
//!
//! mocking: answers in the upstream's place, with an example or with random data of a schema.
//!
//! Settings, headers and texts as in APISIX 3.18. Fields stand in the order of the schema.

mod random;

use std::time::Duration;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::template::Template;
use sdk::{Build, Exchange, Plugin, Reply, Step, SureAnswer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::edits::{self, Edit, Verb};
use random::Shape;

/// The stage.
pub struct Mocking {
    delay: Option<Duration>,
    status: u16,
    content_type: String,
    body: Body,
    mock_header: bool,
    headers: Vec<Edit>,
}

enum Body {
    Example(Template),
    /// Its random values are made again for each request.
    Random(Shape, Form),
}

/// How random data are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Xml,
    /// APISIX has none for `text/html`: the body is empty.
    Nothing,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    delay: i64,
    #[serde(deserialize_with = "crate::any_status")]
    response_status: u16,
    content_type: String,
    response_example: Option<String>,
    response_schema: Option<Value>,
    with_mock_header: bool,
    response_headers: Option<Map<String, Value>>,
}

impl Plugin for Mocking {
    const NAME: &'static str = "mocking";
    const PRIORITY: i32 = 10900;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "delay": {"type": "integer", "default": 0},
                "response_status": {"type": "integer", "default": 200, "minimum": 100},
                "content_type": {"type": "string", "default": "application/json;charset=utf8"},
                "response_example": {"type": "string"},
                "response_schema": {"type": "object"},
                "with_mock_header": {"type": "boolean", "default": true},
                "response_headers": edits::plain_schema(),
            },
            "anyOf": [{"required": ["response_example"]}, {"required": ["response_schema"]}],
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Mocking, Invalid> {
        crate::check_status(config.response_status, "/response_status")?;
        let media_type = config.content_type.split(';').next().unwrap_or_default();
        let form = match media_type {
            "application/json" | "text/plain" => Form::Json,
            "application/xml" | "text/xml" => Form::Xml,
            "text/html" => Form::Nothing,
            _ => {
                return Err(Invalid::new("unsupported content type!")
                    .at("/content_type")
                    .expected("application/json, application/xml, text/xml, text/plain or text/html")
                    .got(config.content_type));
            }
        };
        let mut headers = edits::plain(Verb::Add, &config.response_headers.unwrap_or_default())
            .map_err(|invalid| invalid.under("/response_headers"))?;
        // Of a Content-Type there is one.
        for edit in headers.iter_mut().filter(|edit| edit.name.is(sdk::Name::ContentType)) {
            edit.verb = Verb::Set;
        }
        Ok(Mocking {
            delay: u64::try_from(config.delay).ok().filter(|&delay| delay > 0).map(Duration::from_secs),
            status: config.response_status,
            content_type: config.content_type,
            body: match (config.response_example, config.response_schema) {
                (Some(example), _) => Body::Example(Template::parse(&example)),
                (None, schema) => Body::Random(Shape::of_object(&schema.unwrap_or_default()), form),
            },
            mock_header: config.with_mock_header,
            headers,
        })
    }

    fn sure_answer(&self, _x: &Exchange<'_>) -> Option<SureAnswer> {
        Some(SureAnswer::Status(self.status))
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        if self.delay.is_some() { Step::Wait } else { Step::Reply(self.reply(x)) }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let reply = self.reply(x);
        if let Some(delay) = self.delay {
            x.world().sleep(delay).await;
        }
        Step::Reply(reply)
    }
}

impl Mocking {
    fn reply(&self, x: &mut Exchange<'_>) -> Reply {
        let mut body = Vec::new();
        match &self.body {
            Body::Example(template) => _ = template.render(x, &mut body),
            Body::Random(shape, form) => {
                let text = match form {
                    Form::Json => shape.json(),
                    Form::Xml => shape.xml("data"),
                    Form::Nothing => String::new(),
                };
                // An example in the schema may name variables, too.
                if text.contains('$') {
                    Template::parse(&text).render(x, &mut body);
                } else {
                    body = text.into_bytes();
                }
            }
        }
        edits::on_response(&self.headers, x);
        let mut reply = Reply { status: self.status, body: body.into(), ..Reply::default() }
            .header("Content-Type", self.content_type.as_bytes());
        if self.mock_header {
            reply = reply.header("x-mock-by", "APISIX/3.18.0");
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now, respond};

    use super::*;

    fn reply(config: Value) -> Reply {
        let mut probe = Probe::get("/hello?a=1");
        let stage: Mocking = probe.stage(config).unwrap();
        let Step::Reply(reply) = stage.access(&mut probe.exchange()) else { panic!("no reply") };
        reply
    }

    #[test]
    fn an_example_is_given_with_its_variables() {
        let reply = reply(
            json!({"response_example": "{\"ip\":\"$remote_addr\",\"none\":\"$foo\"}", "response_status": 201}),
        );
        assert_eq!((reply.status, &reply.body[..]), (201, &b"{\"ip\":\"127.0.0.1\",\"none\":\"\"}"[..]));
        assert_eq!(
            reply.headers,
            [
                ("Content-Type", b"application/json;charset=utf8".to_vec()),
                ("x-mock-by", b"APISIX/3.18.0".to_vec())
            ]
        );
    }

    #[test]
    fn a_schema_is_filled_in_and_written_by_type() {
        let schema = json!({"properties": {"a": {"type": "string", "example": "x $arg_a"}}});
        let of = |content_type: &str| {
            let config =
                json!({"response_schema": schema, "content_type": content_type, "with_mock_header": false});
            let reply = reply(config);
            assert_eq!(reply.headers, [("Content-Type", content_type.as_bytes().to_vec())]);
            String::from_utf8(reply.body.to_vec()).unwrap()
        };
        assert_eq!(of("application/json"), "{\"a\":\"x 1\"}");
        assert_eq!(of("text/plain;charset=utf8"), "{\"a\":\"x 1\"}");
        assert_eq!(of("text/xml"), "<data>\n  <a>x 1</a>\n</data>\n");
        assert_eq!(of("text/html"), "");
    }

    #[test]
    fn headers_are_added() {
        let config = json!({
            "response_example": "x",
            "response_headers": {"X-A": "$remote_addr", "X-N": 3, "content-type": "text/css"},
        });
        let mut probe = Probe::get("/");
        let stage: Mocking = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Reply(_)));
        respond(&mut x, 200, &[("X-A", "own"), ("Content-Type", "a/b")]);
        let all =
            |name: &str| x.response().fields.all(name.as_bytes()).map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert_eq!(all("X-A"), [b"own".to_vec(), b"127.0.0.1".to_vec()]);
        assert_eq!(all("X-N"), [b"3"]);
        assert_eq!(all("Content-Type"), [b"text/css"]);
    }

    #[test]
    fn it_waits_before_it_answers() {
        let mut probe = Probe::get("/");
        let stage: Mocking = probe.stage(json!({"response_example": "x", "delay": 3})).unwrap();
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Wait));
        assert!(matches!(now(stage.wait(Phase::Access, &mut x)), Step::Reply(_)));
        drop(x);
        assert_eq!(*probe.world.slept.borrow(), [Duration::from_secs(3)]);
        assert!(
            probe.stage::<Mocking>(json!({"response_example": "x", "delay": -3})).unwrap().delay.is_none()
        );
    }

    #[test]
    fn settings_are_checked() {
        let probe = Probe::default();
        let error = |config| probe.stage::<Mocking>(config).err().unwrap().reason;
        assert!(error(json!({})).starts_with("object matches none of the required"));
        assert_eq!(
            error(json!({"response_example": "x", "content_type": "image/jpeg"})),
            "unsupported content type!"
        );
    }
}
