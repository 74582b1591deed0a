//! openid-connect: tokens of an OpenID provider, sent in requests or got by a login of the browser.
//!
//! Settings, headers and statuses as in APISIX 3.18. A login's state and the session are in encrypted cookies, so any
//! node and worker serves them; sessions may be in Redis instead, encrypted as well. While Redis does not answer, requests
//! with a session get 503. With `dpop`, an access token that the provider does not bind to the key is refused.
//!
//! With `ssl_verify`, a discovery document that came over TLS leads the gateway to no endpoint without it.

mod bearer;
mod claims;
mod client;
mod config;
mod dpop;
mod login;
mod logout;
mod provider;
mod session;
mod tokens;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::{Invalid, Schema};
use sdk::chain::Phases;
use sdk::state::WorkerState;
use sdk::{Build, Exchange, Phase, Plugin, Reply, Step};
use serde_json::Value;

use crate::auth::Vouched;
use crate::jwks::KeySet;
use crate::remote::Remote;
use bearer::Introspected;
use client::Client;
use config::Config;
use dpop::Dpop;
use login::LoginRules;
use provider::Provider;
use session::Cookies;
use tokens::Renewals;

/// The configured plugin.
pub struct OpenidConnect {
    config: Config,
    provider: Provider,
    client: Client,
    dpop: Option<Dpop>,
    public_key: Option<KeySet>,
    introspection: Option<Remote>,
    introspected: WorkerState<Introspected>,
    claim_schema: Option<Schema>,
    pushed: Option<Remote>,
    renewals: WorkerState<Renewals>,
    /// `None` if only tokens in requests are accepted.
    login: Option<LoginRules>,
}

/// Headers for the upstream. Those of the client are removed.
const ACCESS_TOKEN: &str = "X-Access-Token";
const USERINFO: &str = "X-Userinfo";
const ID_TOKEN: &str = "X-ID-Token";
const REFRESH_TOKEN: &str = "X-Refresh-Token";
const RAW_ID_TOKEN: &str = "X-Raw-ID-Token";

impl Plugin for OpenidConnect {
    const NAME: &'static str = "openid-connect";
    const PRIORITY: i32 = 2599;
    const VERSION: &'static str = "0.2";
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<OpenidConnect, Invalid> {
        config.check(cx.complete_config().as_ref())?;
        let public_key = config.public_key.as_deref().map(KeySet::of_pem).transpose();
        let public_key = public_key.map_err(|why| Invalid::new(why).at("/public_key"))?;
        let introspection = config.introspection_endpoint.as_deref().map(Remote::parse).transpose();
        let introspection = introspection.map_err(|why| Invalid::new(why).at("/introspection_endpoint"))?;
        let claim_schema = config.claim_schema.as_ref().map(Schema::new).transpose();
        let claim_schema = claim_schema
            .map_err(|invalid| invalid.said("check claim_schema failed: ").under("/claim_schema"))?;
        let pushed = config.par.endpoint.as_deref().map(Remote::parse).transpose();
        let pushed = pushed.map_err(|why| Invalid::new(why).at("/par/endpoint"))?;
        let login = match config.session.as_ref().filter(|_| !config.bearer_only) {
            Some(session) => Some(LoginRules::new(&config, Cookies::new(session, &config, cx)?)),
            None => None,
        };
        Ok(OpenidConnect {
            provider: Provider::new(&config, cx)?,
            client: Client::new(&config)?,
            dpop: Dpop::new(&config.dpop, cx)?,
            public_key,
            introspection,
            introspected: cx.worker_state("introspected"),
            claim_schema,
            pushed,
            renewals: cx.worker_state("renewals"),
            login,
            config,
        })
    }

    fn rewrite(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Wait
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let own = x.header(ACCESS_TOKEN).map(<[u8]>::to_vec);
        for name in [ACCESS_TOKEN, USERINFO, ID_TOKEN, REFRESH_TOKEN, RAW_ID_TOKEN] {
            x.remove_lookalikes(name);
            x.remove_header(name);
        }
        if self.config.takes_bearer()
            && let Some(step) = self.bearer(x, own).await
        {
            return step;
        }
        match &self.login {
            Some(rules) => self.log_in(x, rules).await,
            // Without a token, `bearer` has refused the request.
            None => Step::Reply(Reply::status(401)),
        }
    }
}

impl OpenidConnect {
    /// The facts about the client so far. The headers of this plugin belong to them even where they are absent.
    fn vouched(&self, x: &mut Exchange<'_>) -> Vouched {
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        vouched.add(Self::NAME.as_bytes());
        vouched
    }

    fn pass_access_token(&self, x: &mut Exchange<'_>, vouched: &mut Vouched, token: &[u8]) {
        vouched.add(token);
        match (self.config.set_access_token_header, self.config.access_token_in_authorization_header) {
            (false, _) => {}
            (true, true) => self.pass(x, vouched, "Authorization", &[b"Bearer ", token].concat()),
            (true, false) => self.pass(x, vouched, ACCESS_TOKEN, token),
        }
    }

    fn pass_json(&self, x: &mut Exchange<'_>, vouched: &mut Vouched, name: &'static str, value: &Value) {
        self.pass(x, vouched, name, BASE64_STANDARD.encode(value.to_string()).as_bytes());
    }

    fn pass(&self, x: &mut Exchange<'_>, vouched: &mut Vouched, name: &'static str, value: &[u8]) {
        match x.set_header(name, value) {
            Ok(()) => {
                vouched.add(name.as_bytes());
                vouched.add(value);
            }
            Err(_) => x.complain(Self::NAME, "a token cannot stand in a header and was left out"),
        }
    }
}

#[cfg(test)]
mod tests;
