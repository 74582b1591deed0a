//! hot path
//!
//! ip-restriction on streams: allows or refuses clients by address.
//!
//! Settings as on routes. A client that is kept out is cut off; `message` and `response_code` have no
//! effect but on the status in the log.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Step};
use serde_json::Value;

use crate::ip_restriction as http;

/// The plugin instance.
pub struct IpRestriction(http::IpRestriction);

impl Plugin for IpRestriction {
    const NAME: &'static str = http::IpRestriction::NAME;
    const PRIORITY: i32 = http::IpRestriction::PRIORITY;
    const PHASES: Phases = Phases::PREREAD;

    type Config = http::Config;

    fn schema() -> Value {
        http::IpRestriction::schema()
    }

    fn build(config: Self::Config, cx: &mut Build<'_>) -> Result<IpRestriction, Invalid> {
        http::IpRestriction::build(config, cx).map(IpRestriction)
    }

    fn preread(&self, x: &mut Exchange<'_>) -> Step {
        self.0.access(x)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;
    use serde_json::json;

    use super::*;

    #[test]
    fn who_is_kept_out_is_refused() {
        for (config, ip, refused) in [
            (json!({"whitelist": ["10.0.0.0/8"]}), "10.1.1.1", false),
            (json!({"whitelist": ["10.0.0.0/8"]}), "11.1.1.1", true),
            (json!({"blacklist": ["127.0.0.0/24"]}), "127.0.0.1", true),
        ] {
            let mut probe = Probe::stream().from_ip(ip);
            let plugin: IpRestriction = probe.stage(config.clone()).unwrap();
            let step = plugin.preread(&mut probe.exchange());
            assert_eq!(matches!(step, Step::Reply(reply) if reply.status == 403), refused, "{config} {ip}");
        }
    }
}
