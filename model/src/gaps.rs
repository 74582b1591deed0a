//! The table of features that APISIX has and this version lacks.
//!
//! A row is a feature, with everything that asks for it: kinds of resource, fields, values, keys of `config.yaml`.
//! All readers of configuration use this table and no other, so that the Admin API, `sluice check`, the start and the
//! watched file always agree: [`Resource`](crate::Resource) refuses what a row refuses, [`ignored`] names what a row
//! ignores, and the keys of `config.yaml` (`boot/keys.rs`) take their reasons from here. A feature that is built
//! loses its row.
//!
//! Plugins are not in it: the catalog has those of this build, and [`apisix_plugins`](crate::apisix_plugins) all of
//! APISIX, with a mark on those that resources can be served without.

use serde_json::{Map, Value};

use crate::apisix_plugins::{self, Subsystem};
use crate::invalid::push_pointer;
use crate::{Invalid, Key, Kind, Resource};

/// A feature that is not there.
#[derive(Debug)]
pub struct Gap {
    /// The reason, a sentence that can follow a colon.
    pub why: &'static str,
    /// The remedy.
    pub hint: &'static str,
    pub effect: Effect,
    /// The parts of a resource that ask for it.
    pub asked_by: &'static [Ask],
}

/// The effect on a resource that asks for the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is refused: without the feature it would do something else than it says.
    Refused,
    /// It is used, with a warning: without the feature it does the same, only less well.
    Ignored,
}

/// A part of a resource that asks for a feature.
#[derive(Debug, Clone, Copy)]
pub enum Ask {
    /// A field of these kinds that is there and not null.
    Field(&'static [Kind], &'static str),
    /// One of these values of a field of an upstream.
    UpstreamValue(&'static str, &'static [&'static str]),
    /// Any value but these of a field of an upstream.
    UpstreamOther(&'static str, &'static [&'static str]),
}

pub const STREAM_UPSTREAMS: &Gap = &Gap {
    why: "the protocol of Kafka is not spoken yet",
    hint: "use `tcp` on a stream route",
    effect: Effect::Refused,
    asked_by: &[Ask::UpstreamValue("scheme", &["kafka"])],
};

pub const LUA: &Gap = &Gap {
    why: "only routes have filter_func, and scripts have no ids",
    hint: "use `filter_func` or `script` of the route",
    effect: Effect::Refused,
    asked_by: &[
        Ask::Field(&[Kind::Service], "filter_func"),
        Ask::Field(&[Kind::Route, Kind::Service], "script_id"),
    ],
};

pub const DISCOVERY: &Gap = &Gap {
    why: "there is no such registry",
    hint: "list the servers as `nodes`, or use a DNS name of the registry",
    effect: Effect::Refused,
    asked_by: &[Ask::UpstreamOther(
        "discovery_type",
        &["dns", "consul", "consul_kv", "eureka", "kubernetes", "nacos"],
    )],
};

pub const TRACING: &Gap =
    &Gap { why: "request tracing is not served yet", hint: "", effect: Effect::Ignored, asked_by: &[] };

impl Gap {
    /// Returns the error for a resource, or a key, that asks for the feature.
    pub fn refused(&self, pointer: &str) -> Invalid {
        Invalid::new(self.why).at(pointer).hint(self.hint)
    }
}

/// Every row.
pub const ALL: &[&Gap] = &[STREAM_UPSTREAMS, LUA, DISCOVERY, TRACING];

/// Refuses a resource that asks for a missing feature.
///
/// # Errors
/// The first such thing, with its place.
pub fn check(kind: Kind, value: &Value) -> Result<(), Invalid> {
    match asked(kind, value, Effect::Refused).into_iter().next() {
        Some(invalid) => Err(invalid),
        None => Ok(()),
    }
}

/// Returns the missing features that a resource asks for and is served without.
pub fn ignored(kind: Kind, value: &Value) -> Vec<Invalid> {
    let mut found = asked(kind, value, Effect::Ignored);
    found.extend(without_plugins(kind, plugins(kind, value).into_iter().flatten()));
    if kind == Kind::PluginMetadata {
        found.extend(value.get("id").and_then(Value::as_str).and_then(without_metadata));
    }
    found
}

/// The same of a resource that was read.
pub fn ignored_by(key: &Key, resource: &Resource) -> Vec<Invalid> {
    let mut found = asked(key.kind, &Value::Null, Effect::Ignored);
    found.extend(without_plugins(key.kind, resource.plugins().into_iter().flatten()));
    if key.kind == Kind::PluginMetadata {
        found.extend(without_metadata(&key.id));
    }
    found
}

/// A setting without effect in a resource, as a line.
pub fn line(key: &Key, ignored: &Invalid) -> String {
    let Invalid { reason, pointer, .. } = ignored;
    let at = if pointer.is_empty() { String::new() } else { format!("; at {pointer}") };
    format!("{key}: {reason}{at}")
}

fn without_plugins<'v>(
    kind: Kind,
    configured: impl IntoIterator<Item = (&'v String, &'v Value)>,
) -> impl Iterator<Item = Invalid> {
    unseen_plugins(kind, configured).map(|(name, why)| {
        let mut place = "/plugins".to_owned();
        push_pointer(&mut place, name);
        Invalid::new(format!("plugin {name} has no effect: {why}")).at(place).hint(ABSENT)
    })
}

/// Metadata of a plugin that is not built.
fn without_metadata(name: &str) -> Option<Invalid> {
    let of = |subsystem| apisix_plugins::find(subsystem, name)?.unseen_in(Kind::Route);
    let why = of(Subsystem::Http).or_else(|| of(Subsystem::Stream))?;
    Some(Invalid::new(format!("metadata of plugin {name} has no effect: {why}")).hint(ABSENT))
}

const ABSENT: &str = "this version does not have it; set `sluice.strict_plugins` to refuse what it lacks";

/// Which of the plugins that a resource configures are not built, so that it is served without them; with the
/// reason.
pub fn unseen_plugins<'v>(
    kind: Kind,
    configured: impl IntoIterator<Item = (&'v String, &'v Value)>,
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let subsystem = if kind == Kind::StreamRoute { Subsystem::Stream } else { Subsystem::Http };
    let configured = configured.into_iter().filter(|(_, config)| !switched_off(config));
    configured.filter_map(move |(name, _)| {
        let known = apisix_plugins::find(subsystem, name)?;
        Some((known.name, known.unseen_in(kind)?))
    })
}

fn asked(kind: Kind, value: &Value, effect: Effect) -> Vec<Invalid> {
    let mut found = Vec::new();
    for gap in ALL.iter().filter(|gap| gap.effect == effect) {
        for ask in gap.asked_by {
            ask.find(kind, value, gap, &mut found);
        }
    }
    found
}

impl Ask {
    fn find(self, kind: Kind, value: &Value, gap: &Gap, found: &mut Vec<Invalid>) {
        match self {
            Ask::Field(kinds, name) if kinds.contains(&kind) && there(value, name).is_some() => {
                found.push(self.invalid(gap, format!("/{name}"), None));
            }
            Ask::UpstreamValue(name, _) | Ask::UpstreamOther(name, _) => {
                let Some((upstream, place)) = upstream(kind, value) else { return };
                let Some(field) = there(upstream, name) else { return };
                let asks = match self {
                    Ask::UpstreamValue(_, values) => {
                        field.as_str().is_some_and(|text| values.contains(&text))
                    }
                    Ask::UpstreamOther(_, values) => {
                        field.as_str().is_some_and(|text| !values.contains(&text))
                    }
                    _ => true,
                };
                if asks {
                    found.push(self.invalid(gap, format!("{place}/{name}"), field.as_str()));
                }
            }
            Ask::Field(..) => {}
        }
    }

    fn invalid(self, gap: &Gap, pointer: String, got: Option<&str>) -> Invalid {
        let why = gap.why;
        let mut invalid = match self {
            Ask::UpstreamOther("discovery_type", _) => Invalid::new(format!(
                "discovery {} is not supported by this version: {why}",
                got.unwrap_or_default()
            )),
            Ask::UpstreamValue(name, _) | Ask::UpstreamOther(name, _) => {
                Invalid::new(format!("{name} {} is not supported yet: {why}", got.unwrap_or_default()))
            }
            Ask::Field(_, name) => Invalid::new(format!("{name} is not supported: {why}")),
        };
        invalid = invalid.at(pointer);
        if let Ask::UpstreamOther(_, values) = self {
            invalid = invalid.expected(values.join(", "));
        }
        if let Some(got) = got {
            invalid = invalid.got(got);
        }
        if gap.hint.is_empty() { invalid } else { invalid.hint(gap.hint) }
    }
}

fn there<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).filter(|field| !field.is_null())
}

/// The upstream in a resource, and where it stands.
fn upstream(kind: Kind, value: &Value) -> Option<(&Value, &'static str)> {
    match kind {
        Kind::Upstream => Some((value, "")),
        Kind::Route | Kind::Service | Kind::StreamRoute => Some((there(value, "upstream")?, "/upstream")),
        _ => None,
    }
}

/// The plugins in a resource that has passed no schema.
pub fn plugins(kind: Kind, value: &Value) -> Option<&Map<String, Value>> {
    let has = !matches!(kind, Kind::PluginMetadata | Kind::Secret | Kind::Upstream);
    value.get("plugins").filter(|_| has)?.as_object()
}

fn switched_off(config: &Value) -> bool {
    config.get("_meta").and_then(|meta| meta.get("disable")) == Some(&Value::Bool(true))
}

/// A smallest resource for each thing in a row that a resource may ask by: for the tests of those
/// who read resources, which hold that none of them is left out.
pub fn samples() -> Vec<(Effect, Kind, &'static str, Value)> {
    use serde_json::json;
    let mut samples = Vec::new();
    let mut add = |effect, kind, value: Value| {
        let id = match kind {
            Kind::Consumer => "jack",
            _ => "1",
        };
        samples.push((effect, kind, id, value));
    };
    for gap in ALL {
        for ask in gap.asked_by {
            let in_upstreams = |field: &str, value: Value| {
                let mut upstream = match field {
                    "discovery_type" => json!({"service_name": "a"}),
                    _ => json!({"nodes": {"127.0.0.1:80": 1}}),
                };
                upstream[field] = value;
                [
                    (Kind::Upstream, upstream.clone()),
                    (Kind::Route, json!({"uri": "/", "upstream": upstream.clone()})),
                    (Kind::Service, json!({"upstream": upstream})),
                ]
            };
            match *ask {
                Ask::Field(kinds, name) => {
                    for kind in kinds {
                        let mut value = match kind {
                            Kind::Route => json!({"uri": "/", "plugins": {}}),
                            _ => json!({}),
                        };
                        value[name] = json!("return function(vars) return true end");
                        add(gap.effect, *kind, value);
                    }
                }
                Ask::UpstreamValue(name, values) => {
                    for value in values {
                        in_upstreams(name, json!(value))
                            .into_iter()
                            .for_each(|(kind, v)| add(gap.effect, kind, v));
                    }
                }
                Ask::UpstreamOther(name, _) => {
                    let others = in_upstreams(name, json!("zookeeper"));
                    others.into_iter().for_each(|(kind, v)| add(gap.effect, kind, v));
                }
            }
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Resource;

    #[test]
    fn each_sample_is_reported_with_its_place() {
        let samples = samples();
        assert!(samples.len() > 8);
        for (effect, kind, id, value) in samples {
            let parsed = Resource::parse(kind, id, &value);
            match effect {
                Effect::Refused => {
                    let refused = check(kind, &value).unwrap_err();
                    assert_eq!(parsed.unwrap_err(), refused, "{kind} {value}");
                    let place = value.pointer(&refused.pointer);
                    assert!(place.is_some(), "{kind} {}", refused.pointer);
                }
                Effect::Ignored => {
                    assert!(parsed.is_ok(), "{kind} {value}: {parsed:?}");
                    let found = ignored(kind, &value);
                    assert!(value.pointer(&found[0].pointer).is_some(), "{found:?}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_ask_passes() {
        for (kind, value) in [
            (Kind::Upstream, json!({"nodes": {}, "scheme": "http", "checks": null})),
            (Kind::Upstream, json!({"service_name": "a", "discovery_type": "dns"})),
            (Kind::Route, json!({"uri": "/", "plugins": {"tcp-logger": {"tls": false}}})),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {"syslog": {"tls": true, "_meta": {"disable": true}}}}),
            ),
            (Kind::Route, json!({"uri": "/", "plugins": {"http-logger": {"uri": "http://https://h"}}})),
            (
                Kind::Route,
                json!({"uri": "/", "filter_func": null, "plugins": {"a": {"b": "$secret://a/b/c"}}}),
            ),
        ] {
            assert_eq!(check(kind, &value), Ok(()), "{value}");
            assert_eq!(ignored(kind, &value), [], "{value}");
        }
    }

    #[test]
    fn a_message_names_what_was_asked_and_what_to_do() {
        let invalid = check(Kind::Route, &json!({"upstream": {"scheme": "kafka"}})).unwrap_err();
        assert_eq!(
            invalid.reason,
            "scheme kafka is not supported yet: the protocol of Kafka is not spoken yet"
        );
        assert_eq!((invalid.pointer.as_str(), invalid.got.as_deref()), ("/upstream/scheme", Some("kafka")));
    }
}
