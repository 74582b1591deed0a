//! authz-keycloak: asks Keycloak whether the token of a request has permissions (User-Managed Access 2.0).
//!
//! Settings, requests and statuses as in APISIX 3.18, with these differences. Only an answer with a status of
//! 2xx and the JSON `{"result": true}` accepts a request; APISIX takes any below 400 for one. The password grant reads the discovery
//! document, too. Errors of servers are in the log and not in answers.

mod server;

use std::time::Duration;

use model::Invalid;
use sdk::chain::Phases;
use sdk::vars::Var;
use sdk::world::Keep;
use sdk::{Build, Exchange, Fields, Method, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::form::Form;
use crate::remote::Manner;
use crate::tree;
use server::Server;

/// The plugin instance.
pub struct AuthzKeycloak {
    config: Config,
    server: Server,
    request_uri: Var,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    max_req_body_size: usize,
    discovery: Option<String>,
    token_endpoint: Option<String>,
    resource_registration_endpoint: Option<String>,
    client_id: String,
    client_secret: Option<String>,
    grant_type: String,
    policy_enforcement_mode: Mode,
    permissions: Vec<String>,
    lazy_load_paths: bool,
    http_method_as_scope: bool,
    timeout: u64,
    ssl_verify: bool,
    cache_ttl_seconds: u64,
    keepalive: bool,
    keepalive_timeout: u64,
    keepalive_pool: usize,
    access_denied_redirect_uri: Option<String>,
    access_token_expires_in: u64,
    access_token_expires_leeway: u64,
    refresh_token_expires_in: u64,
    refresh_token_expires_leeway: u64,
    password_grant_token_generation_incoming_uri: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Mode {
    Enforcing,
    Permissive,
}

/// The largest answer, in bytes.
const MOST: usize = 1 << 20;

/// Resources of one path, at most.
const RESOURCES: usize = 256;

impl Plugin for AuthzKeycloak {
    const NAME: &'static str = "authz-keycloak";
    const PRIORITY: i32 = 2000;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<AuthzKeycloak, Invalid> {
        let keep = Keep {
            connections: if config.keepalive { config.keepalive_pool } else { 0 },
            idle: Duration::from_millis(config.keepalive_timeout),
        };
        let timeout = Duration::from_millis(config.timeout);
        let manner = Manner { timeout, verify: config.ssl_verify, most: MOST, keep };
        if let Some(uri) = &config.access_denied_redirect_uri
            && !uri.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let invalid = Invalid::new("it has characters that are not allowed in a URI");
            return Err(invalid.at("/access_denied_redirect_uri"));
        }
        let server = Server::new(&config, manner, cx)?;
        Ok(AuthzKeycloak { config, server, request_uri: Var::parse("request_uri") })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        if self.grants(x) {
            return crate::buffer_body(x, self.config.max_req_body_size);
        }
        // Of several tokens the server could take another one than Keycloak has decided on.
        if x.request().fields.all(b"Authorization").count() != 1 {
            let body = json!({"message": "Missing JWT token in request"});
            return Step::Reply(Reply::json(401, &body).because("there is no token in the request"));
        }
        Step::Wait
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        if self.grants(x) { self.grant(x).await } else { self.decide(x).await }
    }
}

impl AuthzKeycloak {
    /// Whether the request asks for a token.
    fn grants(&self, x: &Exchange<'_>) -> bool {
        self.config.password_grant_token_generation_incoming_uri.as_ref().is_some_and(|uri| {
            x.method() == Method::Post
                && x.header("Content-Type") == Some(b"application/x-www-form-urlencoded")
                && self.request_uri.of(x).is_some_and(|own| *own == *uri.as_bytes())
        })
    }

    /// Gets a token for the name and password in the request.
    async fn grant(&self, x: &mut Exchange<'_>) -> Step {
        let refuse = |status: u16, message: &'static str| {
            Step::Reply(Reply::json(status, &json!({ "message": message })).because(message))
        };
        let mut memory = sdk::budget::Reservation::default();
        if memory.resize(x.world().budget(), tree::weight(x.body())).is_err() {
            return crate::no_memory();
        }
        let sent = tree::form(x.body());
        let text = |name: &str| sent.get(name).and_then(Value::as_str);
        let Some(username) = text("username") else { return refuse(422, "username is missing.") };
        let Some(password) = text("password") else { return refuse(422, "password is missing.") };
        let Some(endpoint) = self.server.token_endpoint(x).await else {
            return refuse(503, "Unable to determine token endpoint.");
        };
        let form = self.client(Form::default().with("grant_type", "password"));
        let form = form.with("username", username).with("password", password);
        let answer = match self.server.post(x, &endpoint, None, form).await {
            Ok(answer) => answer,
            Err(why) => {
                x.complain(Self::NAME, why);
                return refuse(401, "Accessing token endpoint URL failed.");
            }
        };
        if answer.status != 200 || serde_json::from_slice::<serde::de::IgnoredAny>(&answer.body).is_err() {
            x.complain(Self::NAME, "the token endpoint returned no token");
            return refuse(401, "Could not decode JSON from response.");
        }
        let reply = Reply { body: answer.body.into(), ..Reply::status(200) };
        Step::Reply(reply.header("Content-Type", "application/json"))
    }

    /// Has Keycloak decide on the permissions of the request's token.
    async fn decide(&self, x: &mut Exchange<'_>) -> Step {
        const NO_DECISION: &str = "no decision of Keycloak";
        let unavailable = || Step::Reply(Reply::status(503).because(NO_DECISION));
        let Some(endpoint) = self.server.token_endpoint(x).await else { return unavailable() };
        let permissions = if self.config.lazy_load_paths {
            match self.server.resources(x, &self.config, |form| self.client(form)).await {
                Some(resources) => resources,
                None => return unavailable(),
            }
        } else {
            self.config.permissions.clone()
        };
        if permissions.is_empty() && self.config.policy_enforcement_mode == Mode::Enforcing {
            let body = "{\"error\":\"access_denied\",\"error_description\":\"not_authorized\"}";
            return self.refuse(403, body.into(), "no permission is known for the request");
        }
        let mut form = Form::default()
            .with("grant_type", &self.config.grant_type)
            .with("audience", &self.config.client_id)
            .with("response_mode", "decision");
        for permission in &permissions {
            form.add("permission", self.scoped(x, permission));
        }
        let token = x.header("Authorization").unwrap_or_default();
        let is_bearer = matches!(token.get(..7), Some(b"Bearer " | b"bearer "));
        let token = if is_bearer { token.to_vec() } else { [b"Bearer ", token].concat() };
        let answer = match self.server.post(x, &endpoint, Some(&token), form).await {
            Ok(answer) => answer,
            Err(why) => {
                x.complain(Self::NAME, why);
                return unavailable();
            }
        };
        match answer.status {
            200..=299 if accepts(&answer.body) => Step::Next,
            401 => self.refuse(401, answer.body, "Keycloak does not accept the token"),
            403 => self.refuse(403, answer.body, "the token has none of the permissions"),
            status @ 400.. => {
                x.complain(Self::NAME, "the token endpoint returned an error");
                self.refuse(status, answer.body, NO_DECISION)
            }
            _ => {
                x.complain(Self::NAME, "the token endpoint returned neither a decision nor an error");
                unavailable()
            }
        }
    }

    /// A permission, with the method as its scope if the settings say so.
    fn scoped(&self, x: &Exchange<'_>, permission: &str) -> String {
        if !self.config.http_method_as_scope {
            return permission.to_owned();
        }
        let between = if permission.contains('#') { ", " } else { "#" };
        format!("{permission}{between}{}", String::from_utf8_lossy(x.request().method_bytes()))
    }

    /// Adds the credentials of the client.
    fn client(&self, form: Form) -> Form {
        let form = form.with("client_id", &self.config.client_id);
        match &self.config.client_secret {
            Some(secret) => form.with("client_secret", secret),
            None => form,
        }
    }

    fn refuse(&self, status: u16, body: Vec<u8>, why: &'static str) -> Step {
        let reply = match &self.config.access_denied_redirect_uri {
            Some(uri) if status == 403 => Reply::status(307).header("Location", uri.clone().into_bytes()),
            _ => {
                let reply = Reply { body: body.into(), ..Reply::status(status) };
                reply.header("Content-Type", "application/json")
            }
        };
        Step::Reply(reply.because(why))
    }
}

/// Whether an answer is a decision that accepts the request.
fn accepts(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Decision {
        result: bool,
    }
    serde_json::from_slice(body).is_ok_and(|Decision { result }| result)
}

/// Fields of a request that sends a form.
fn form_fields() -> Fields {
    let mut fields = Fields::new();
    // The names and values are valid.
    let _ = fields.set(b"Content-Type", b"application/x-www-form-urlencoded");
    fields
}

#[cfg(test)]
mod tests;
