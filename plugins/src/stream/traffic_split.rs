//! hot path
//!
//! traffic-split on streams: sends parts of the connections to other upstreams, by weight and by conditions.
//! Settings as on routes.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Step};
use serde_json::Value;

use crate::traffic_split as http;

/// The plugin instance.
pub struct TrafficSplit(http::TrafficSplit);

impl Plugin for TrafficSplit {
    const NAME: &'static str = http::TrafficSplit::NAME;
    const PRIORITY: i32 = http::TrafficSplit::PRIORITY;
    const PHASES: Phases = Phases::PREREAD;

    type Config = http::Config;

    fn schema() -> Value {
        http::TrafficSplit::schema()
    }

    fn build(config: Self::Config, cx: &mut Build<'_>) -> Result<TrafficSplit, Invalid> {
        http::TrafficSplit::build(config, cx).map(TrafficSplit)
    }

    fn preread(&self, x: &mut Exchange<'_>) -> Step {
        self.0.access(x)
    }
}
