//! The settings, and APISIX's checks beyond their schema.

use std::time::Duration;

use indexmap::IndexMap;
use model::Invalid;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub struct Config {
    pub client_id: String,
    pub client_secret: Option<String>,
    pub discovery: String,
    pub scope: String,
    pub ssl_verify: bool,
    timeout: u64,
    pub introspection_endpoint: Option<String>,
    pub introspection_endpoint_auth_method: String,
    pub token_endpoint_auth_method: String,
    pub bearer_only: bool,
    pub session: Option<Session>,
    pub realm: String,
    #[serde(default)]
    pub claim_validator: ClaimValidator,
    pub logout_path: String,
    pub redirect_uri: Option<String>,
    pub post_logout_redirect_uri: Option<String>,
    pub unauth_action: UnauthAction,
    pub public_key: Option<String>,
    pub use_jwks: bool,
    pub token_signing_alg_values_expected: Option<String>,
    pub use_pkce: bool,
    #[serde(default)]
    pub par: Par,
    #[serde(default)]
    pub dpop: Dpop,
    pub set_access_token_header: bool,
    pub access_token_in_authorization_header: bool,
    pub set_id_token_header: bool,
    pub set_raw_id_token_header: bool,
    pub set_userinfo_header: bool,
    pub set_refresh_token_header: bool,
    pub proxy_opts: Option<IndexMap<String, Value>>,
    #[serde(default)]
    pub authorization_params: IndexMap<String, Value>,
    pub client_rsa_private_key: Option<String>,
    pub client_rsa_private_key_id: Option<String>,
    client_jwt_assertion_expires_in: i64,
    pub client_jwt_assertion_alg: Option<String>,
    pub client_jwt_assertion_audience: Option<String>,
    pub renew_access_token_on_expiry: bool,
    pub access_token_expires_in: Option<i64>,
    pub refresh_session_interval: Option<i64>,
    iat_slack: i64,
    pub accept_none_alg: bool,
    pub accept_unsupported_alg: bool,
    pub access_token_expires_leeway: i64,
    pub force_reauthorize: bool,
    pub use_nonce: bool,
    pub revoke_tokens_on_logout: bool,
    jwk_expires_in: i64,
    introspection_interval: i64,
    pub introspection_expiry_claim: Option<String>,
    #[serde(default)]
    pub introspection_addon_headers: Vec<String>,
    #[serde(default)]
    pub required_scopes: Vec<String>,
    pub claim_schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub struct Session {
    pub secret: String,
    pub cookie_name: Option<String>,
    pub cookie_path: Option<String>,
    pub cookie_domain: Option<String>,
    pub cookie_secure: Option<bool>,
    pub cookie_http_only: Option<bool>,
    pub cookie_same_site: Option<String>,
    pub idling_timeout: Option<i64>,
    pub rolling_timeout: Option<i64>,
    pub absolute_timeout: Option<i64>,
    #[serde(default)]
    pub cookie: OldCookie,
    pub storage: String,
    pub redis: Option<Map<String, Value>>,
}

/// The lifetime in the form of lua-resty-session 3.
#[derive(Debug, Default, Deserialize)]
pub struct OldCookie {
    pub lifetime: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnauthAction {
    Auth,
    Deny,
    Pass,
}

#[derive(Debug, Default, Deserialize)]
pub struct ClaimValidator {
    #[serde(default)]
    pub issuer: IssuerRule,
    #[serde(default)]
    pub audience: AudienceRule,
}

#[derive(Debug, Default, Deserialize)]
pub struct IssuerRule {
    pub valid_issuers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub struct AudienceRule {
    pub claim: String,
    pub required: bool,
    pub match_with_client_id: bool,
}

impl Default for AudienceRule {
    fn default() -> AudienceRule {
        AudienceRule { claim: "aud".to_owned(), required: false, match_with_client_id: false }
    }
}

/// Pushed authorization requests (RFC 9126).
#[derive(Debug, Default, Deserialize)]
pub struct Par {
    #[serde(default)]
    pub enabled: bool,
    pub endpoint: Option<String>,
    pub endpoint_auth_method: Option<String>,
}

/// Proofs of possession (RFC 9449).
#[derive(Debug, Default, Deserialize)]
pub struct Dpop {
    #[serde(default)]
    pub enabled: bool,
    pub signing_alg: Option<String>,
    pub private_key: Option<String>,
    pub public_jwk: Option<Map<String, Value>>,
}

/// Options of APISIX's library that have names of their own in the settings, and these names.
const RESERVED: [(&str, &str); 7] = [
    ("use_par", "par.enabled"),
    ("pushed_authorization_request_endpoint", "par.endpoint"),
    ("pushed_authorization_request_endpoint_auth_method", "par.endpoint_auth_method"),
    ("use_dpop", "dpop.enabled"),
    ("dpop_signing_alg", "dpop.signing_alg"),
    ("dpop_private_key", "dpop.private_key"),
    ("dpop_public_jwk", "dpop.public_jwk"),
];

impl Config {
    /// For connecting, sending and reading each. As in APISIX, whole thousands are milliseconds.
    pub fn timeout(&self) -> Duration {
        match self.timeout {
            millis if millis >= 1000 && millis % 1000 == 0 => Duration::from_millis(millis),
            seconds => Duration::from_secs(seconds),
        }
        .min(Duration::from_secs(600))
    }

    /// Seconds by which the times in tokens may be off.
    pub fn slack(&self) -> f64 {
        self.iat_slack.max(0) as f64
    }

    /// Milliseconds for which fetched keys are fresh.
    pub fn keys_ttl(&self) -> u64 {
        seconds(self.jwk_expires_in).saturating_mul(1000)
    }

    /// Seconds for which a signed proof of the client is valid.
    pub fn assertion_lifetime(&self) -> u64 {
        seconds(self.client_jwt_assertion_expires_in)
    }

    /// The longest time in seconds that an introspected token is held; 0 for no limit but its own.
    pub fn introspection_interval(&self) -> u64 {
        seconds(self.introspection_interval)
    }

    /// Whether a token in the request is accepted.
    pub fn takes_bearer(&self) -> bool {
        self.bearer_only || self.introspection_endpoint.is_some() || self.verifies_locally()
    }

    /// Whether tokens in requests are verified with a key, not by the provider.
    pub fn verifies_locally(&self) -> bool {
        self.public_key.is_some() || self.use_jwks
    }

    /// `complete` is the configuration with fields that are no settings.
    ///
    /// # Errors
    /// Those of APISIX, in its words.
    pub fn check(&self, complete: Option<&Value>) -> Result<(), Invalid> {
        let required =
            |name: &str| Err(Invalid::new(format!("property \"{name}\" is required")).at(format!("/{name}")));
        if !self.bearer_only && self.session.is_none() {
            let text = "property \"session.secret\" is required when \"bearer_only\" is false";
            return Err(Invalid::new(text).at("/session"));
        }
        let without_secret = match self.bearer_only {
            true => self.verifies_locally() || self.introspection_endpoint_auth_method == "private_key_jwt",
            false => self.token_endpoint_auth_method == "private_key_jwt" || self.use_pkce,
        };
        if self.client_secret.is_none() && !without_secret {
            return required("client_secret");
        }
        for (name, owner) in RESERVED {
            if complete.is_some_and(|complete| complete.get(name).is_some()) {
                let text = format!("property \"{name}\" is not allowed, use \"{owner}\" instead");
                return Err(Invalid::new(text).at(format!("/{name}")));
            }
        }
        self.check_assertions()
    }

    /// Which endpoints the client proves itself to with a signature, by setting and method.
    fn signing(&self) -> Vec<(&'static str, &str)> {
        let mut found = Vec::new();
        if !self.verifies_locally() && (self.bearer_only || self.introspection_endpoint.is_some()) {
            found.push(("introspection_endpoint_auth_method", &*self.introspection_endpoint_auth_method));
        }
        if !self.bearer_only {
            found.push(("token_endpoint_auth_method", &*self.token_endpoint_auth_method));
            if let Some(method) = self.par.endpoint_auth_method.as_deref().filter(|_| self.par.enabled) {
                found.push(("par.endpoint_auth_method", method));
            }
        }
        found
    }

    /// Whether the client proves itself with its private key.
    pub fn signs_with_key(&self) -> bool {
        self.signing().iter().any(|(_, method)| *method == "private_key_jwt")
    }

    fn check_assertions(&self) -> Result<(), Invalid> {
        let signing = self.signing();
        let by = |method: &str| signing.iter().find(|(_, own)| *own == method).map(|(name, _)| *name);
        let (with_key, with_secret) = (by("private_key_jwt"), by("client_secret_jwt"));
        if let Some(("par.endpoint_auth_method", method)) = signing.last().copied() {
            let needs = match method {
                "private_key_jwt" => {
                    self.client_rsa_private_key.is_none().then_some("client_rsa_private_key")
                }
                "client_secret_jwt" => self.client_secret.is_none().then_some("client_secret"),
                _ => None,
            };
            if let Some(needs) = needs {
                let text = format!(
                    "property \"par.endpoint_auth_method\" \"{method}\" requires \"{needs}\" when \"par.enabled\" is true"
                );
                return Err(Invalid::new(text).at("/par/endpoint_auth_method"));
            }
        }
        let Some(algorithm) = &self.client_jwt_assertion_alg else { return Ok(()) };
        let wrong = |rest: String| {
            let text = format!("property \"client_jwt_assertion_alg\" {rest}");
            Err(Invalid::new(text).at("/client_jwt_assertion_alg"))
        };
        let symmetric = algorithm.starts_with("HS");
        match (with_key, with_secret) {
            (Some(key), Some(secret)) => wrong(format!(
                "is a single algorithm, but \"{key}\" selects private_key_jwt and \"{secret}\" selects client_secret_jwt"
            )),
            (Some(key), _) if symmetric => wrong(format!(
                "\"{algorithm}\" is symmetric and cannot be used with the private_key_jwt selected by \"{key}\""
            )),
            (_, Some(secret)) if !symmetric => wrong(format!(
                "\"{algorithm}\" is asymmetric and cannot be used with the client_secret_jwt selected by \"{secret}\""
            )),
            _ => Ok(()),
        }
    }
}

/// A number of seconds; a negative one is 0.
pub(super) fn seconds(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
