//! ext-plugin-post-req: a runner decides about requests after all other plugins.
//!
//! Settings, priority and statuses as in APISIX 3.18.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Phase, Plugin, Step};
use serde_json::Value;

use crate::ext_plugin::{Config, External, schema};

/// The stage.
pub struct ExtPluginPostReq(External);

impl Plugin for ExtPluginPostReq {
    const NAME: &'static str = "ext-plugin-post-req";
    const PRIORITY: i32 = -3000;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        schema()
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ExtPluginPostReq, Invalid> {
        Ok(ExtPluginPostReq(External::build(Self::NAME, config, cx)?))
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        self.0.begin(x)
    }

    async fn wait(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        self.0.decide(x).await
    }
}
