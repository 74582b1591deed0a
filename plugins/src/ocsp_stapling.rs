//! ocsp-stapling: lets ssl resources fetch OCSP responses and send them in handshakes.
//!
//! The plugin has no settings of its own and stands on no route. Where it is in use (in the list of plugins, or
//! there is no list), an ssl resource may have a field `ocsp_stapling`:
//!
//! - `enabled` (false): the responses of its certificates are fetched and shown to clients that ask (`status_request`)
//! - `skip_verify` (false): a response needs no valid signature, and may say that the certificate is revoked or unknown
//! - `cache_ttl` (3600, at least 60): seconds after which a response is fetched again
//!
//! Put the issuer's certificate behind the own one in `cert`: the question and the check need it. A response is
//! fetched when the certificate is first served, never in a handshake, from the address in the certificate.
//! It is stapled if it is about this certificate, says `good`, is signed by the issuer or by a
//! responder that the issuer has certified, and has not expired. It is fetched again after `cache_ttl`, and no
//! later than at half of its own time; if that fails, it stays until its `nextUpdate`, and the error log says why
//! (`no ocsp response send`). `plugin_attr.ocsp-stapling` in config.yaml has `timeout` (`10s`, for a whole
//! exchange with a responder) and `max_resp_body_size` (`64k`). Other than in APISIX each of several certificates
//! has its own response, and the first clients after a start may see none.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage, which does nothing.
pub struct OcspStapling;

#[derive(Debug, Deserialize)]
pub struct Config {}

impl Plugin for OcspStapling {
    const NAME: &'static str = "ocsp-stapling";
    const PRIORITY: i32 = -44;
    const PHASES: Phases = Phases::NONE;
    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object", "properties": {}})
    }

    fn build(_config: Config, _cx: &mut Build<'_>) -> Result<OcspStapling, Invalid> {
        Ok(OcspStapling)
    }
}
