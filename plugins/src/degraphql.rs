//! degraphql: turns a request into a GraphQL query of the settings.
//!
//! Settings and statuses as in APISIX 3.18. The query is checked when the configuration changes. A query with one
//! operation and fragments needs no `operation_name`, for which APISIX asks then as well.

use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::NotSet;
use sdk::{Build, Exchange, Method, Phase, Plugin, Reply, Step, vars};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::form::Form;
use crate::tree;

/// The plugin instance.
pub struct Degraphql {
    max_body: usize,
    variables: Option<Vec<String>>,
    /// Query and operation of a body, as members of JSON.
    members: (String, String),
    /// The query as an argument.
    argument: Form,
    operation_name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    max_req_body_size: usize,
    query: String,
    variables: Option<Vec<String>>,
    operation_name: Option<String>,
}

/// Bytes of a body that a worker reads itself.
const ON_WORKER: usize = 64 << 10;

impl Plugin for Degraphql {
    const NAME: &'static str = "degraphql";
    const PRIORITY: i32 = 509;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Degraphql, Invalid> {
        let operations = vars::graphql_operations(config.query.as_bytes()).map_err(|line| {
            Invalid::new(format!("failed to parse query: Syntax error near line {line}")).at("/query")
        })?;
        if operations > 1 && config.operation_name.is_none() {
            const MISSING: &str =
                "operation_name is required if multiple operations are present in the query";
            return Err(Invalid::new(MISSING).at("/operation_name"));
        }
        let operation = config.operation_name.as_ref();
        let operation = operation.map(|name| format!(",\"operationName\":{}", json!(name)));
        Ok(Degraphql {
            max_body: config.max_req_body_size,
            variables: config.variables,
            members: (format!("\"query\":{}", json!(config.query)), operation.unwrap_or_default()),
            argument: Form::default().with("query", &config.query),
            operation_name: config.operation_name,
        })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        match x.method() {
            Method::Post => crate::buffer_body(x, self.max_body),
            Method::Get => {
                let query = self.arguments(x);
                x.set_query(&query);
                Step::Next
            }
            _ => Step::Reply(Reply::status(405).because("only GET and POST become a GraphQL query")),
        }
    }

    /// Replaces the body of a POST, which is buffered.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let refuse = |why: &'static str| Step::Reply(Reply::status(400).because(why));
        let mut variables = None;
        if let Some(names) = &self.variables {
            if x.body().is_empty() {
                return refuse("the request has no body");
            }
            let mut memory = Reservation::default();
            if memory.resize(x.world().budget(), tree::weight(x.body()) + x.body().len()).is_err() {
                return crate::no_memory();
            }
            let found = if x.body().len() <= ON_WORKER {
                select(names, x.body())
            } else {
                // It is copied, as the exchange keeps its own.
                let (names, body) = (names.clone(), x.body().to_vec());
                x.world().offload(memory, move |_| select(&names, &body)).await.0
            };
            match found {
                Some(found) => variables = Some(found),
                None => return refuse("the request's body must be a JSON object or list"),
            }
        }
        // The name and value are valid.
        let _ = x.set_header("Content-Type", b"application/json");
        match x.set_body(self.body(variables)) {
            Ok(()) => Step::Next,
            Err(NotSet::Spent) => crate::no_memory(),
            Err(NotSet::Unread) => refuse("the request's body is not buffered"),
        }
    }
}

/// The variables in a body; `None` if it is neither a JSON object nor a list.
fn select(names: &[String], body: &[u8]) -> Option<Map<String, Value>> {
    match tree::read(body).ok()? {
        Value::Object(mut members) => {
            let take = |name: &String| Some((name.clone(), members.swap_remove(name)?));
            Some(names.iter().filter_map(take).collect())
        }
        // In Lua a list is a table without these names.
        Value::Array(_) => Some(Map::new()),
        _ => None,
    }
}

impl Degraphql {
    fn body(&self, variables: Option<Map<String, Value>>) -> Vec<u8> {
        let (query, operation) = &self.members;
        let variables = variables.map(|variables| format!(",\"variables\":{}", Value::Object(variables)));
        format!("{{{query}{}{operation}}}", variables.unwrap_or_default()).into_bytes()
    }

    /// The query of a GET.
    fn arguments(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut form = self.argument.clone();
        if let Some(names) = &self.variables {
            let mut sent = tree::form(x.query());
            let found = names.iter().filter_map(|name| Some((name.clone(), sent.swap_remove(name)?)));
            form.add("variables", Value::Object(found.collect()).to_string());
        }
        if let Some(name) = &self.operation_name {
            form.add("operationName", name);
        }
        form.bytes()
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, now, with_body};

    use super::*;

    const QUERY: &str = "query($name: String!) { persons(filter: { name: $name }) { id } }";

    /// The body and query for the upstream, or the status of a refusal.
    fn outcome(config: Value, (method, target): (&str, &str), body: &[u8]) -> Result<(String, String), u16> {
        let mut probe = Probe::request(method, target, &[("Host", "h")]);
        let plugin: Degraphql = probe.stage(config).unwrap();
        let mut x = probe.exchange();
        with_body(&mut x, body);
        let step = match plugin.access(&mut x) {
            Step::Wait => now(plugin.wait(Phase::Access, &mut x)),
            step => step,
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match step {
            Step::Next => {
                assert_eq!(x.header("Content-Type").is_some(), method == "POST");
                Ok((text(x.body()), text(x.query())))
            }
            Step::Reply(reply) => Err(reply.status),
            step => panic!("{step:?}"),
        }
    }

    fn post(config: Value, body: &str) -> Result<Value, u16> {
        outcome(config, ("POST", "/g"), body.as_bytes()).map(|(body, _)| serde_json::from_str(&body).unwrap())
    }

    #[test]
    fn a_body_becomes_variables() {
        let config = || json!({"query": QUERY, "variables": ["name", "age"], "operation_name": "o"});
        let sent = |variables: Value| json!({"query": QUERY, "variables": variables, "operationName": "o"});
        assert_eq!(post(config(), r#"{"name": "Bo", "other": 1}"#), Ok(sent(json!({"name": "Bo"}))));
        assert_eq!(
            post(config(), r#"{"age": 1.50, "name": null}"#),
            Ok(sent(json!({"name": null, "age": 1.50})))
        );
        assert_eq!(post(config(), "[]"), Ok(sent(json!({}))));
        let long = "x".repeat(100_000);
        assert_eq!(post(config(), &format!("{{\"name\":\"{long}\"}}")), Ok(sent(json!({"name": long}))));
        for wrong in ["", "\"AA\"", "1", "{", "null"] {
            assert_eq!(post(config(), wrong), Err(400), "{wrong}");
        }
        assert_eq!(post(json!({"query": "{ a }"}), "anything"), Ok(json!({"query": "{ a }"})));
        assert_eq!(outcome(json!({"query": "{ a }"}), ("PUT", "/g"), b""), Err(405));
    }

    #[test]
    fn arguments_become_variables() {
        let get = |config: Value, target: &str| outcome(config, ("GET", target), b"").unwrap().1;
        assert_eq!(get(json!({"query": "{ a }"}), "/g?x=1"), "query=%7B%20a%20%7D");
        let config = json!({"query": "{ a }", "variables": ["name", "b"], "operation_name": "o"});
        assert_eq!(
            get(config, "/g?name=Bo+%26&c=1&b"),
            "query=%7B%20a%20%7D&variables=%7B%22name%22%3A%22Bo%20%26%22%2C%22b%22%3Atrue%7D&operationName=o"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |config: Value| Probe::default().stage::<Degraphql>(config).err().unwrap();
        assert_eq!(refused(json!({})).reason, "property \"query\" is required");
        let invalid = refused(json!({"query": "uery {}"}));
        assert_eq!(
            (&invalid.reason[..], &invalid.pointer[..]),
            ("failed to parse query: Syntax error near line 1", "/query")
        );
        assert_eq!(
            refused(json!({"query": "{ a }\n{ b("})).reason,
            "failed to parse query: Syntax error near line 2"
        );
        assert_eq!(
            refused(json!({"query": "query a { a } query b { b }"})).reason,
            "operation_name is required if multiple operations are present in the query"
        );
        let both = json!({"query": "query a { ...f } fragment f on T { b }"});
        assert!(Probe::default().stage::<Degraphql>(both).is_ok());
    }
}
