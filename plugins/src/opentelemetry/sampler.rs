//! hot path
//!
//! Which requests have a span that is sent.

use sdk::trace::SpanContext;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(super) struct SamplerConfig {
    name: Kind,
    options: Options,
}

#[derive(Debug, Deserialize)]
struct Options {
    #[serde(default)]
    fraction: f64,
    root: Option<Root>,
}

/// The sampler of requests without a parent.
#[derive(Debug, Deserialize)]
struct Root {
    name: Kind,
    options: Option<RootOptions>,
}

#[derive(Debug, Deserialize)]
struct RootOptions {
    #[serde(default)]
    fraction: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    AlwaysOn,
    AlwaysOff,
    TraceIdRatio,
    ParentBase,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sampler {
    Always(bool),
    /// Traces whose number is below this, of 2^63.
    Below(u64),
    /// As the parent is, or by this sampler without one.
    Parent(Box<Sampler>),
}

pub(super) fn schema() -> Value {
    // Whole: what a default fills in, a second check does not change.
    let options = json!({"fraction": 0, "root": {"name": "always_off", "options": {"fraction": 0}}});
    json!({
        "type": "object",
        "properties": {
            "name": {
                "type": "string",
                "enum": ["always_on", "always_off", "trace_id_ratio", "parent_base"],
                "default": "always_off",
            },
            "options": {
                "type": "object",
                "properties": {
                    "fraction": {"type": "number", "default": 0},
                    "root": {
                        "type": "object",
                        "properties": {
                            "name": {
                                "type": "string",
                                "enum": ["always_on", "always_off", "trace_id_ratio"],
                                "default": "always_off",
                            },
                            "options": {
                                "type": "object",
                                "properties": {"fraction": {"type": "number", "default": 0}},
                                "default": {"fraction": 0},
                            },
                        },
                        "default": {"name": "always_off", "options": {"fraction": 0}},
                    },
                },
                "default": options,
            },
        },
        "default": {"name": "always_off", "options": options},
    })
}

impl Sampler {
    pub(super) fn new(config: &SamplerConfig) -> Sampler {
        match config.name {
            Kind::ParentBase => {
                let root = config.options.root.as_ref();
                let fraction = root.and_then(|root| root.options.as_ref()).map_or(0.0, |root| root.fraction);
                let kind = root.map_or(Kind::AlwaysOff, |root| root.name);
                Sampler::Parent(Box::new(Sampler::of(kind, fraction)))
            }
            kind => Sampler::of(kind, config.options.fraction),
        }
    }

    fn of(kind: Kind, fraction: f64) -> Sampler {
        match kind {
            Kind::AlwaysOn => Sampler::Always(true),
            Kind::TraceIdRatio if fraction >= 1.0 => Sampler::Always(true),
            Kind::TraceIdRatio if fraction > 0.0 => Sampler::Below((fraction * (1_u64 << 63) as f64) as u64),
            _ => Sampler::Always(false),
        }
    }

    pub(super) fn samples(&self, parent: Option<&SpanContext>, trace_id: &[u8; 16]) -> bool {
        match self {
            Sampler::Always(always) => *always,
            Sampler::Below(bound) => (u128::from_be_bytes(*trace_id) as u64) >> 1 < *bound,
            Sampler::Parent(root) => match parent {
                Some(parent) => parent.sampled,
                None => root.samples(None, trace_id),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(config: Value) -> Sampler {
        let schema = json!({"type": "object", "properties": {"sampler": schema()}});
        let parsed = model::Schema::new(&schema).unwrap().parse(json!({"sampler": config})).unwrap();
        Sampler::new(&serde_json::from_value(parsed["sampler"].clone()).unwrap())
    }

    #[test]
    fn samplers_are_those_of_the_settings() {
        let root = |name: &str| Sampler::Parent(Box::new(Sampler::Always(name == "always_on")));
        for (config, expected) in [
            (json!({}), Sampler::Always(false)),
            (json!({"name": "always_on"}), Sampler::Always(true)),
            (json!({"name": "trace_id_ratio"}), Sampler::Always(false)),
            (json!({"name": "trace_id_ratio", "options": {"fraction": 1.0}}), Sampler::Always(true)),
            (json!({"name": "trace_id_ratio", "options": {"fraction": 0.5}}), Sampler::Below(1 << 62)),
            (json!({"name": "trace_id_ratio", "options": {"fraction": -1}}), Sampler::Always(false)),
            (json!({"name": "parent_base"}), root("always_off")),
            (json!({"name": "parent_base", "options": {"root": {"name": "always_on"}}}), root("always_on")),
            (
                json!({"name": "parent_base", "options": {"root": {"name": "trace_id_ratio", "options": {"fraction": 1}}}}),
                root("always_on"),
            ),
        ] {
            assert_eq!(sampler(config.clone()), expected, "{config}");
        }
    }

    #[test]
    fn a_ratio_holds_over_many_traces_and_a_parent_decides() {
        let half = Sampler::Below(1 << 62);
        let mut random = fastrand::Rng::with_seed(7);
        let sampled = (0..10_000).filter(|_| half.samples(None, &random.u128(..).to_be_bytes())).count();
        assert!((4_500..5_500).contains(&sampled), "{sampled}");
        let parent = |sampled| Some(SpanContext { trace_id: [1; 16], span_id: [1; 8], sampled });
        let on = Sampler::Parent(Box::new(Sampler::Always(true)));
        assert!(on.samples(None, &[1; 16]) && on.samples(parent(true).as_ref(), &[1; 16]));
        assert!(!on.samples(parent(false).as_ref(), &[1; 16]));
    }
}
