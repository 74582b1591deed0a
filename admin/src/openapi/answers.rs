//! The answers that the dashboard reads, as schemas; its types are generated from them.

use serde_json::{Map, Value, json};

use super::reference;

/// Returns the schemas by their names. They name what a client can rely on; answers have further fields.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    let mut add = |name: &str, schema: Value| all.insert(name.to_owned(), schema);
    live(&mut add);
    revisions(&mut add);
    explanations(&mut add);
    add(
        "status",
        object(&[
            ("version", text()),
            ("uptime", integer()),
            ("store", text()),
            ("published", integer()),
            ("resources", of_any_name(&integer())),
            ("not_ready", or_null(&text())),
            ("unconfirmed", or_null(&object(&[("author", text()), ("left", integer())]))),
            ("unhealthy", list(&reference("unhealthy"))),
            ("unhealthy_total", integer()),
            ("certificates", list(&reference("certificate"))),
            ("certificates_total", integer()),
            ("rejected", list(&reference("rejected"))),
            ("rejected_total", integer()),
        ]),
    );
    let server = object(&[("server", text()), ("why", text())]);
    add(
        "unhealthy",
        object(&[("key", text()), ("servers", integer()), ("unhealthy", integer()), ("list", list(&server))]),
    );
    let names = [("ssl?", text()), ("sni?", text()), ("file?", text())];
    add("certificate", object(&[&names[..], &[("not_after", integer()), ("days_left", integer())]].concat()));
    add("rejected", object(&[("key", text()), ("reason", text())]));
    let finding =
        object(&[("code", text()), ("key", text()), ("reason", text()), ("hint", or_null(&text()))]);
    add("finding", finding);
    add("analysis", object(&[("total", integer()), ("list", list(&reference("finding")))]));
    let instance = object(&[
        ("id", text()),
        ("hostname", or_null(&text())),
        ("version", or_null(&text())),
        ("dashboard", or_null(&text())),
    ]);
    add("instances", object(&[("total", integer()), ("list", list(&instance))]));
    let probe = object(&[("at", number()), ("took", number()), ("outcome", text())]);
    let node = object(&[
        ("ip", text()),
        ("port", integer()),
        ("hostname", text()),
        ("status", text()),
        ("last_error?", or_null(&probe)),
        ("probes?", list(&probe)),
    ]);
    add("checked_node", node);
    let server = object(&[("ip", text()), ("port", integer()), ("ejected", or_null(&text()))]);
    let checker = object(&[
        ("name", text()),
        ("type", text()),
        ("nodes", list_or_empty(&reference("checked_node"))),
        ("servers?", list(&server)),
    ]);
    add("checker", checker);
    add("healthcheck", list_or_empty(&reference("checker")));
    let plugin = object(&[
        ("version", json!({})),
        ("priority", integer()),
        ("schema", any_object()),
        ("consumer_schema?", any_object()),
        ("metadata_schema?", any_object()),
        ("type?", text()),
        ("scope?", text()),
    ]);
    add("described_plugin", plugin);
    all
}

/// The live view and its past.
fn live(add: &mut dyn FnMut(&str, Value) -> Option<Value>) {
    let quantile = || or_null(&number());
    let sample = [
        ("requests", integer()),
        ("errors", integer()),
        ("classes", list(&integer())),
        ("p50", quantile()),
        ("p90", quantile()),
        ("p99", quantile()),
        ("received", integer()),
        ("sent", integer()),
    ];
    let busy = [("id", text()), ("rate", number()), ("error_rate", number())];
    add("sample", object(&sample));
    add("busy", object(&[&sample[..], &busy].concat()));
    add("busy_node", object(&[&sample[..], &busy, &[("in_flight", integer())]].concat()));
    add("worker", object(&[&sample[..], &[("cpu", quantile())]].concat()));
    // The end in milliseconds, and the requests of each step.
    add("octave", object(&[("below", number()), ("counts", list(&integer()))]));
    let octaves = || list(&reference("octave"));
    let busiest = || list(&reference("busy"));
    add(
        "live_event",
        object(&[
            ("time", integer()),
            ("gateway", reference("sample")),
            ("latencies", octaves()),
            ("workers", list(&reference("worker"))),
            ("routes", busiest()),
            ("nodes", list(&reference("busy_node"))),
            ("streams", busiest()),
            ("worst_routes", busiest()),
            ("connections", object(&[("open", integer()), ("idle", integer()), ("accepted", integer())])),
            ("requests_in_flight", integer()),
            ("retries", integer()),
            ("faults", integer()),
            ("refused", integer()),
            ("memory", integer()),
            ("taps", integer()),
        ]),
    );
    let (counts, quantiles) = (list(&integer()), list(&quantile()));
    add(
        "live_history",
        object(&[
            ("step", integer()),
            ("from", integer()),
            ("until", integer()),
            ("requests", counts.clone()),
            ("errors", counts.clone()),
            ("classes", list(&counts)),
            ("p50", quantiles.clone()),
            ("p90", quantiles.clone()),
            ("p99", quantiles),
            ("received", counts.clone()),
            ("sent", counts.clone()),
            ("connections?", counts),
            ("cpu?", list(&number())),
            ("latencies?", octaves()),
        ]),
    );
}

/// Revisions and the change that waits to be confirmed.
fn revisions(add: &mut dyn FnMut(&str, Value) -> Option<Value>) {
    let change = [("key", text()), ("change", text())];
    // The list of plugins and resources: any JSON.
    let full = object(&[&change[..], &[("before", json!({})), ("after", json!({}))]].concat());
    let revision = [
        ("revision", integer()),
        ("from", integer()),
        ("time", integer()),
        ("author", text()),
        ("message", text()),
        ("total", integer()),
    ];
    add("revision_change", full);
    let summary = list(&object(&change));
    add("revision_summary", object(&[&revision[..], &[("changes", summary)]].concat()));
    let full = list(&reference("revision_change"));
    add("revision", object(&[&revision[..], &[("changes", full.clone())]].concat()));
    add("revisions", object(&[("list", list(&reference("revision_summary"))), ("current", integer())]));
    add("revision_diff", object(&[("from", integer()), ("to", integer()), ("changes", full)]));
    let unconfirmed = object(&[
        ("revision", or_null(&integer())),
        ("from", integer()),
        ("author", text()),
        ("until", integer()),
        ("left", integer()),
    ]);
    add("unconfirmed", unconfirmed);
}

/// Explanations of requests, and of a change.
fn explanations(add: &mut dyn FnMut(&str, Value) -> Option<Value>) {
    let candidate = object(&[
        ("route", text()),
        ("name", text()),
        ("uri", text()),
        ("host", or_null(&text())),
        ("priority", integer()),
        ("outcome", text()),
        ("condition", or_null(&text())),
        ("why", text()),
    ]);
    add("candidate", candidate);
    let plugin = object(&[
        ("name", text()),
        ("priority", integer()),
        ("from", text()),
        ("phases", list(&text())),
        ("outcome", text()),
        ("status", or_null(&integer())),
    ]);
    add("explained_plugin", plugin);
    let server = object(&[
        ("address", text()),
        ("name", or_null(&text())),
        ("weight", integer()),
        ("priority", integer()),
        ("against", or_null(&text())),
        ("failures", or_null(&text())),
    ]);
    add("explained_server", server);
    let upstream = object(&[
        ("from", text()),
        ("scheme", text()),
        ("balancer", text()),
        ("servers", list(&reference("explained_server"))),
        ("more_servers", integer()),
        ("all_unhealthy", json!({"type": "boolean"})),
        ("chosen", or_null(&text())),
        ("why", text()),
        ("method", text()),
        ("uri", text()),
        ("host", text()),
    ]);
    add("explained_upstream", upstream);
    let answer = object(&[
        ("status", or_null(&integer())),
        ("body", text()),
        ("reason", or_null(&text())),
        ("plugin", or_null(&text())),
        ("from", or_null(&text())),
    ]);
    let route = object(&[("id", text()), ("name", text()), ("uri", text())]);
    add(
        "explanation",
        object(&[
            ("revision", integer()),
            ("refused", or_null(&object(&[("status", integer()), ("reason", text())]))),
            ("candidates", list(&reference("candidate"))),
            ("others", list(&reference("candidate"))),
            ("route", or_null(&route)),
            ("plugins", list(&reference("explained_plugin"))),
            ("answer", or_null(&answer)),
            ("not_asked", or_null(&text())),
            ("consumer", or_null(&text())),
            ("upstream", or_null(&reference("explained_upstream"))),
            ("notes", list(&text())),
        ]),
    );
    let both = object(&[("before", reference("explanation")), ("after", reference("explanation"))]);
    add(
        "explained_change",
        object(&[
            ("list", list(&both)),
            ("rejected", list(&reference("rejected"))),
            ("not_asked", list(&text())),
        ]),
    );
}

fn text() -> Value {
    json!({"type": "string"})
}

fn integer() -> Value {
    json!({"type": "integer"})
}

fn number() -> Value {
    json!({"type": "number"})
}

fn any_object() -> Value {
    json!({"type": "object"})
}

fn list(of: &Value) -> Value {
    json!({"type": "array", "items": of})
}

/// A list that is an empty object without elements, as Lua prints it.
fn list_or_empty(of: &Value) -> Value {
    json!({"anyOf": [list(of), {"type": "object", "maxProperties": 0, "additionalProperties": false}]})
}

fn or_null(of: &Value) -> Value {
    json!({"anyOf": [of, {"type": "null"}]})
}

pub(super) fn of_any_name(of: &Value) -> Value {
    json!({"type": "object", "additionalProperties": of})
}

/// An object with these fields; those whose name ends with `?` may be absent.
fn object(fields: &[(&str, Value)]) -> Value {
    let required: Vec<&str> =
        fields.iter().map(|(name, _)| *name).filter(|name| !name.ends_with('?')).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| (name.trim_end_matches('?').to_owned(), schema.clone())).collect();
    json!({"type": "object", "properties": properties, "required": required})
}
