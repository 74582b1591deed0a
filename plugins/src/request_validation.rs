//! request-validation: lets only those requests pass whose headers and body fit a schema.
//!
//! Settings, order and words as in APISIX 3.18. The upstream gets the checked JSON, encoded
//! again and with the schema's defaults, so that it cannot be read differently. Numbers
//! keep all their digits. A body of more than 64 KiB is checked on a background thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use model::{Invalid, Schema};
use sdk::chain::Phases;
use sdk::exchange::{Body, NotSet};
use sdk::{Build, Exchange, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::tree;

/// The stage.
pub struct RequestValidation {
    /// Boxed, as a schema is large beside what other plugins keep.
    headers: Option<Box<Headers>>,
    /// Shared with the check of a long body, on a background thread.
    body: Option<Arc<Schema>>,
    max_body: usize,
    code: u16,
    message: Option<Bytes>,
}

struct Headers {
    schema: Schema,
    /// Names that the schema knows in another spelling than the one in which headers are checked.
    spelled: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    header_schema: Option<Value>,
    body_schema: Option<Value>,
    max_req_body_size: usize,
    rejected_code: u16,
    rejected_msg: Option<String>,
}

impl Plugin for RequestValidation {
    const NAME: &'static str = "request-validation";
    const PRIORITY: i32 = 2800;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "header_schema": {"type": "object"},
                "body_schema": {"type": "object"},
                "max_req_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum request body size in bytes buffered into memory; larger request bodies are rejected",
                },
                "rejected_code": {"type": "integer", "minimum": 200, "maximum": 599, "default": 400},
                "rejected_msg": {"type": "string", "minLength": 1, "maxLength": 256},
            },
            "anyOf": [{"required": ["header_schema"]}, {"required": ["body_schema"]}],
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<RequestValidation, Invalid> {
        // APISIX looks at the body's schema first.
        let body = config.body_schema.as_ref().map(Schema::new).transpose();
        let body = body.map_err(|error| error.under("/body_schema"))?.map(Schema::for_clients);
        let headers = config.header_schema.as_ref().map(Headers::new).transpose();
        Ok(RequestValidation {
            headers: headers.map_err(|error| error.under("/header_schema"))?.map(Box::new),
            body: body.map(Arc::new),
            max_body: config.max_req_body_size,
            code: config.rejected_code,
            message: config.rejected_msg.map(Bytes::from),
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if let Some(headers) = &self.headers
            && let Err(error) = headers.check(x)
        {
            return self.reject(Some(error.to_string()));
        }
        let Some(schema) = &self.body else { return Step::Next };
        if x.lacks_body(self.max_body) {
            return Step::Body(self.max_body);
        }
        if x.body_state() != Body::Whole || x.body().is_empty() || x.body().len() > self.max_body {
            return self.reject(None);
        }
        // A second one could be the one that the upstream goes by.
        if x.request().fields.all(b"Content-Type").count() > 1 {
            return self.reject(None);
        }
        if x.body().len() > ON_WORKER {
            return Step::Wait;
        }
        let mut memory = sdk::budget::Reservation::default();
        if memory.resize(x.world().budget(), tree::weight(x.body())).is_err() {
            return crate::no_memory();
        }
        let verdict = judge(schema, is_form(x), x.body());
        self.settle(x, verdict)
    }

    /// The same for a long body, on a background thread.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let (Some(schema), world) = (self.body.clone(), x.world()) else { return Step::Next };
        let mut memory = sdk::budget::Reservation::default();
        // It is copied, as the exchange keeps its own.
        if memory.resize(world.budget(), tree::weight(x.body()) + x.body().len()).is_err() {
            return crate::no_memory();
        }
        let (form, body) = (is_form(x), x.body().to_vec());
        let (verdict, memory) = world.offload(memory, move |_| judge(&schema, form, &body)).await;
        drop(memory);
        self.settle(x, verdict)
    }
}

/// Bytes of a body that a worker checks itself.
const ON_WORKER: usize = 64 << 10;

/// The body that takes the place of a valid one, unless that may stay; or why one is invalid, where that can be said.
type Judged = Result<Option<Vec<u8>>, Option<String>>;

fn judge(schema: &Schema, form: bool, body: &[u8]) -> Judged {
    if form {
        let fields = Value::Object(tree::form(body));
        return schema.check(&fields).map(|()| None).map_err(|error| Some(error.to_string()));
    }
    let value = match tree::read(body) {
        // Lua takes it for a failure.
        Ok(Value::Bool(false)) => return Err(None),
        Ok(value) => value,
        Err(words) => return Err(Some(words)),
    };
    let value = schema.parse(value).map_err(|error| Some(error.to_string()))?;
    Ok(Some(value.to_string().into_bytes()))
}

fn is_form(x: &Exchange<'_>) -> bool {
    let kind = x.header("Content-Type").unwrap_or_default();
    kind.get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
}

impl RequestValidation {
    fn settle(&self, x: &mut Exchange<'_>, verdict: Judged) -> Step {
        match verdict {
            Ok(None) => Step::Next,
            Ok(Some(body)) => match x.set_body(body) {
                Ok(()) => Step::Next,
                Err(NotSet::Spent) => crate::no_memory(),
                Err(NotSet::Unread) => self.reject(None),
            },
            Err(reason) => self.reject(reason),
        }
    }

    /// The answer that the settings ask for, else what is wrong, where that can be said.
    fn reject(&self, reason: Option<String>) -> Step {
        let text = self.message.clone().or_else(|| reason.map(Bytes::from));
        let reply = match text {
            Some(text) => Reply::text(self.code, text),
            None => Reply::status(self.code),
        };
        Step::Reply(reply.because("the request does not fit the schema"))
    }
}

const FORM: &[u8] = b"application/x-www-form-urlencoded";

impl Headers {
    fn new(schema: &Value) -> Result<Headers, Invalid> {
        let mut names = BTreeSet::new();
        collect_names(schema, &mut names);
        // As NGINX's table of headers has it: in lower case, with `-` where `_` is asked for.
        let plain = |name: &String| name.to_ascii_lowercase();
        let spelled = names.into_iter().map(|name| (plain(&name), name));
        Ok(Headers {
            schema: Schema::new(schema)?.for_clients(),
            spelled: spelled.filter(|(plain, name)| plain != name).collect(),
        })
    }

    fn check(&self, x: &Exchange<'_>) -> Result<(), Invalid> {
        let mut all = Map::new();
        for (name, value, _) in x.request().fields.iter() {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            let value = Value::String(String::from_utf8_lossy(value).into_owned());
            match all.get_mut(&name) {
                Some(Value::Array(list)) => list.push(value),
                Some(first) => *first = Value::Array(vec![first.take(), value]),
                None => {
                    all.insert(name, value);
                }
            }
        }
        for (plain, spelled) in &self.spelled {
            let value = all.get(plain).or_else(|| all.get(&plain.replace('_', "-"))).cloned();
            if let Some(value) = value {
                all.insert(spelled.clone(), value);
            }
        }
        self.schema.check(&Value::Object(all))
    }
}

/// The names that a schema asks for, wherever in it.
fn collect_names(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("properties" | "dependencies", Value::Object(properties)) => {
                        names.extend(properties.keys().cloned());
                    }
                    ("required", Value::Array(list)) => {
                        names.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
                    }
                    _ => {}
                }
                collect_names(value, names);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now, with_body};

    use super::*;

    /// Returns the body sent on, or status and text of the answer.
    fn outcome(config: Value, headers: &[(&str, &str)], body: &[u8]) -> Result<String, (u16, String)> {
        let mut probe = Probe::request("POST", "/", headers);
        let stage: RequestValidation = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body);
        let mut step = stage.rewrite(&mut x);
        assert_eq!(matches!(step, Step::Wait), body.len() > 64 << 10);
        if matches!(step, Step::Wait) {
            step = now(stage.wait(Phase::Rewrite, &mut x));
        }
        match step {
            Step::Next => Ok(String::from_utf8(x.body().to_vec()).unwrap()),
            Step::Reply(reply) => Err((reply.status, String::from_utf8(reply.body.to_vec()).unwrap())),
            step => panic!("{step:?}"),
        }
    }

    fn person() -> Value {
        json!({"body_schema": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 2},
                "age": {"type": "integer", "maximum": 150},
                "role": {"type": "string", "default": "guest"},
            },
        }})
    }

    #[test]
    fn names_are_collected_wherever_a_schema_asks_for_them() {
        let schema = json!({
            "properties": {"a": {"type": "string"}, "b": {"properties": {"c": {}}}},
            "dependencies": {"d": ["e"]},
            "required": ["f", 1],
            "anyOf": [{"required": ["g"]}, {"not": {"properties": {"h": {}}}}],
            "title": "no name",
        });
        let mut names = BTreeSet::new();
        collect_names(&schema, &mut names);
        assert_eq!(names.into_iter().collect::<String>(), "abcdfgh");
    }

    #[test]
    fn json_that_fits_goes_on_as_it_was_read() {
        let out =
            outcome(person(), &[], b"{ \"name\": \"Bo\", \"name\" : \"Ann\", \"n\": 12345678901234567 }");
        assert_eq!(out.unwrap(), r#"{"name":"Ann","n":12345678901234567,"role":"guest"}"#);
    }

    #[test]
    fn what_does_not_fit_is_reported() {
        let error_of = |body: &[u8]| outcome(person(), &[], body).unwrap_err();
        assert_eq!(error_of(b"{}"), (400, "property \"name\" is required".into()));
        assert_eq!(
            error_of(b"{\"name\":\"A\"}"),
            (400, "property \"name\" validation failed: string too short, expected at least 2, got 1".into())
        );
        assert_eq!(error_of(b"{\"name\""), (400, "Expected colon but found T_END at character 8".into()));
        assert_eq!(error_of(b"[1]"), (400, "wrong type: expected object, got table".into()));
        assert_eq!(error_of(b"false"), (400, String::new()));
        assert_eq!(error_of(b""), (400, String::new()));
        let mut config = person();
        config["rejected_code"] = 422.into();
        config["rejected_msg"] = "no".into();
        for body in [&b"{}"[..], b"", b"nonsense"] {
            assert_eq!(outcome(config.clone(), &[], body), Err((422, "no".into())));
        }
        let function = json!({"body_schema": {"type": "function"}});
        assert!(outcome(function, &[], b"{}").is_err());
        assert!(outcome(person(), &[], "[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn a_text_of_a_client_refers_to_no_secret() {
        let config = json!({"body_schema": {"properties": {"a": {"type": "string", "maxLength": 3}}}});
        assert!(outcome(config.clone(), &[], b"{\"a\":\"abc\"}").is_ok());
        for text in ["$env://LONG", "$secret://vault/1/a/b"] {
            assert!(outcome(config.clone(), &[], format!("{{\"a\":\"{text}\"}}").as_bytes()).is_err());
        }
        let config = json!({"header_schema": {"properties": {"a": {"type": "string", "maxLength": 3}}}});
        assert!(outcome(config, &[("A", "$env://LONG")], b"").is_err());
    }

    #[test]
    fn a_long_body_is_judged_as_a_short_one() {
        let long = "x".repeat(100_000);
        let out = outcome(person(), &[], format!("{{ \"name\": \"{long}\" }}").as_bytes());
        assert!(out.unwrap() == format!(r#"{{"name":"{long}","role":"guest"}}"#));
        assert_eq!(
            outcome(person(), &[], format!("[\"{long}\"]").as_bytes()),
            Err((400, "wrong type: expected object, got table".into()))
        );
        let form = [("Content-Type", "application/x-www-form-urlencoded")];
        let body = format!("name={long}");
        assert!(outcome(person(), &form, body.as_bytes()).unwrap() == body);
        // Its copy counts as well, until it is judged.
        let body = format!("\"{long}\"");
        let needed = tree::weight(body.as_bytes()) + body.len();
        for (most, passes) in [(needed - 1, false), (needed, true)] {
            let mut probe = Probe::request("POST", "/", &[]);
            probe.world.budget = sdk::budget::Budget::new(most);
            let stage: RequestValidation = probe.stage(json!({"body_schema": {}})).unwrap();
            let mut x = probe.exchange();
            with_body(&mut x, body.as_bytes());
            assert!(matches!(stage.rewrite(&mut x), Step::Wait));
            match now(stage.wait(Phase::Rewrite, &mut x)) {
                Step::Next => assert!(passes && x.world().budget().taken() >= body.len()),
                Step::Reply(reply) => {
                    assert!(!passes && reply.status == 503 && x.world().budget().taken() == 0)
                }
                step => panic!("{step:?}"),
            }
        }
    }

    #[test]
    fn forms_are_checked_and_left_as_they_are() {
        let form = [("Content-Type", "Application/X-WWW-Form-Urlencoded; charset=utf-8")];
        assert_eq!(outcome(person(), &form, b"name=A%6En&x=1&x=2").unwrap(), "name=A%6En&x=1&x=2");
        assert_eq!(outcome(person(), &form, b"nam=1").unwrap_err().1, "property \"name\" is required");
        let both = [form[0], ("Content-Type", "application/json")];
        assert_eq!(outcome(person(), &both, b"{\"name\":\"Ann\"}"), Err((400, String::new())));
    }

    #[test]
    fn headers_are_found_however_they_are_spelled() {
        let config = |name: &str| {
            json!({"header_schema": {
                "required": [name], "properties": {name: {"type": "string", "enum": ["a"]}},
            }})
        };
        for name in ["x-a", "X-A", "X_A"] {
            assert_eq!(outcome(config(name), &[("X-A", "a")], b""), Ok(String::new()), "{name}");
            assert!(outcome(config(name), &[("X-A", "b")], b"").unwrap_err().1.contains("enum"), "{name}");
            assert!(outcome(config(name), &[("X-A", "a"), ("X-A", "a")], b"").is_err(), "{name}");
        }
        assert_eq!(
            outcome(config("X-B"), &[("X-A", "a")], b""),
            Err((400, "property \"X-B\" is required".into()))
        );
    }

    #[test]
    fn long_bodies_are_not_read() {
        let mut config = person();
        config["max_req_body_size"] = 10.into();
        assert_eq!(outcome(config.clone(), &[], b"{\"name\":\"Ann\"}"), Err((400, String::new())));
        config["max_req_body_size"] = 14.into();
        assert!(outcome(config.clone(), &[], b"{\"name\":\"Ann\"}").is_ok(), "so long it may be");
        config["max_req_body_size"] = 10.into();
        let mut probe = Probe::request("POST", "/", &[]);
        let stage: RequestValidation = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        assert!(matches!(stage.rewrite(&mut x), Step::Body(10)));
        (x.engine_mut().body_state, x.engine_mut().body_asked) = (Body::TooLarge, 10);
        assert!(matches!(stage.rewrite(&mut x), Step::Reply(reply) if reply.status == 400));
    }

    #[test]
    fn memory_for_what_is_read_is_asked_for() {
        let mut probe = Probe::request("POST", "/", &[]);
        probe.world.budget = sdk::budget::Budget::new(100_000);
        let stage: RequestValidation = probe.stage(json!({"body_schema": {}})).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, format!("[{}0]", "0,".repeat(5000)).as_bytes());
        assert!(matches!(stage.rewrite(&mut x), Step::Reply(reply) if reply.status == 503));
        assert_eq!(x.world().budget().taken(), 0);
    }

    #[test]
    fn schemas_that_are_none_are_refused() {
        let probe = Probe::get("/");
        let error = |config: Value| probe.stage::<RequestValidation>(config).err().unwrap().to_string();
        assert!(error(json!({"body_schema": {"type": "test"}})).contains("invalid JSON type: test"));
        assert!(error(json!({"header_schema": {"type": "test"}})).contains("invalid JSON type: test"));
        let words = error(json!({"body_schema": {"required": "name"}}));
        assert!(words.contains("(table expected, got string)"), "{words}");
        assert!(error(json!({"rejected_code": 505})).starts_with("object matches none of the required"));
    }
}
