//! hot path
//!
//! prometheus on streams: counts connections by route and outcome.
//!
//! Settings, names and labels as in APISIX 3.18: `stream_connection_total` and `stream_status`.

use model::Invalid;
use sdk::chain::Phases;
use sdk::meters::StreamLabels;
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

/// The plugin instance.
pub struct Prometheus {
    prefer_name: bool,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    prefer_name: bool,
}

impl Plugin for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const PHASES: Phases = Phases::LOG;

    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"prefer_name": {"type": "boolean", "default": false}}})
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Prometheus, Invalid> {
        Ok(Prometheus { prefer_name: config.prefer_name })
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let route = x.route().map_or("", |route| match self.prefer_name && !route.name.is_empty() {
            true => route.name.as_str(),
            false => &*route.id,
        });
        x.world().meters().stream(&StreamLabels {
            route,
            status: x.status(),
            listener: x.stream().and_then(|stream| stream.listener).unwrap_or(x.client().local),
            node: x.upstream_addr(),
        });
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;
    use sdk::{RouteInfo, RouteNames};

    use super::*;

    #[test]
    fn settings_have_a_default() {
        let probe = Probe::stream();
        let plugin: Prometheus = probe.stage(json!({})).unwrap();
        assert!(!plugin.prefer_name);
    }

    #[test]
    fn a_stream_is_counted_by_its_route_s_id_or_name() {
        for (prefer_name, name, label) in
            [(false, "named", "1"), (true, "named", "named"), (true, "", "1"), (false, "", "1")]
        {
            let mut probe = Probe::stream();
            probe.world.shard = probe.services.meters.shard(0);
            let names = RouteNames { name: name.into(), ..RouteNames::default() };
            probe.route = RouteInfo::new("1", names);
            let plugin: Prometheus = probe.stage(json!({ "prefer_name": prefer_name })).unwrap();
            plugin.log(&mut probe.exchange());
            probe.services.meters.read(1, |reading| {
                let all: Vec<_> =
                    reading.streams().map(|(labels, count)| (labels.to_owned(), count)).collect();
                assert_eq!(all, [(format!("route=\"{label}\""), 1)]);
            });
        }
    }
}
