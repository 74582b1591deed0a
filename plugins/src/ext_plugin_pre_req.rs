//! ext-plugin-pre-req: a runner decides about requests before all other plugins do.
//!
//! Settings, priority and statuses as in APISIX 3.18.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Phase, Plugin, Step};
use serde_json::Value;

use crate::ext_plugin::{Config, External, schema};

/// The stage.
pub struct ExtPluginPreReq(External);

impl Plugin for ExtPluginPreReq {
    const NAME: &'static str = "ext-plugin-pre-req";
    const PRIORITY: i32 = 12000;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        schema()
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ExtPluginPreReq, Invalid> {
        Ok(ExtPluginPreReq(External::build(Self::NAME, config, cx)?))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        self.0.begin(x)
    }

    async fn wait(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        self.0.decide(x).await
    }
}
