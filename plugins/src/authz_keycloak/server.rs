//! Keycloak: its endpoints, the access token of the client, and the resources of a path.

use std::rc::Rc;

use bytes::Bytes;
use model::Invalid;
use sdk::state::WorkerState;
use sdk::world::Fetched;
use sdk::{Build, Exchange, Fields, Method, Plugin};
use serde::Deserialize;
use serde_json::Value;

use super::{AuthzKeycloak, Config, RESOURCES, form_fields};
use crate::form::Form;
use crate::remote::cache::{Cache, obtain};
use crate::remote::{Manner, Remote};

/// The server, as its settings and its discovery document describe it.
pub(super) struct Server {
    manner: Manner,
    token_endpoint: Option<Remote>,
    resource_endpoint: Option<Remote>,
    discovery: Option<Remote>,
    document: WorkerState<Cache<Document>>,
    session: WorkerState<Cache<Session>>,
    /// Milliseconds.
    ttl: u64,
}

/// The endpoints in a discovery document.
struct Document {
    token_endpoint: Option<Remote>,
    resource_endpoint: Option<Remote>,
}

/// The tokens of the client for the Protection API.
struct Session {
    access_token: String,
    /// For this many milliseconds.
    holds: u64,
    /// When Keycloak rejects it, in steady milliseconds.
    end: u64,
    /// With the time of its end, in steady milliseconds.
    refresh_token: Option<(String, u64)>,
}

#[derive(Deserialize)]
struct Tokens {
    access_token: Option<String>,
    expires_in: Option<u64>,
    refresh_token: Option<String>,
    refresh_expires_in: Option<u64>,
}

const NOT_200: &str = "the server does not answer with status 200";
const NO_JSON: &str = "the server's answer is not the JSON that is expected";

impl Server {
    pub fn new(config: &Config, manner: Manner, cx: &Build<'_>) -> Result<Server, Invalid> {
        let remote = |url: &Option<String>, field: &str| {
            let parse = |url: &String| {
                Remote::parse(url).map_err(|why| Invalid::new(why).at(format!("/{field}")).got(url.as_str()))
            };
            url.as_ref().map(parse).transpose()
        };
        Ok(Server {
            manner,
            token_endpoint: remote(&config.token_endpoint, "token_endpoint")?,
            resource_endpoint: remote(
                &config.resource_registration_endpoint,
                "resource_registration_endpoint",
            )?,
            discovery: remote(&config.discovery, "discovery")?,
            document: cx.worker_state("document"),
            session: cx.worker_state("session"),
            ttl: config.cache_ttl_seconds.saturating_mul(1000),
        })
    }

    /// Milliseconds for which a request waits for another one that asks the server.
    fn wait_ms(&self) -> u64 {
        u64::try_from(self.manner.timeout.as_millis()).unwrap_or(u64::MAX)
    }

    /// The discovery document, fetched if need be. `None` if it is not configured or cannot be had.
    async fn document(&self, x: &Exchange<'_>) -> Option<Rc<Document>> {
        let discovery = self.discovery.as_ref()?;
        let ask = async || {
            let answer = discovery.fetch(x, self.manner, Method::Get, Fields::new(), Bytes::new()).await;
            let read = answer.map_err(|error| error.as_str()).and_then(|answer| match answer.status {
                200 => Document::read(&answer.body, discovery.is_https()),
                _ => Err(NOT_200),
            });
            read.map_err(|why| x.complain(AuthzKeycloak::NAME, why)).ok()
        };
        obtain(&self.document, x.world(), (self.ttl, self.wait_ms()), |_| true, ask).await
    }

    /// The token endpoint; without one, the reason is logged.
    pub async fn token_endpoint(&self, x: &Exchange<'_>) -> Option<Remote> {
        // As in APISIX, a discovery document that is configured must be there.
        let document = match &self.discovery {
            Some(_) => Some(self.document(x).await?),
            None => None,
        };
        let own = self.token_endpoint.clone();
        let found = own.or_else(|| document.and_then(|document| document.token_endpoint.clone()));
        if found.is_none() {
            x.complain(AuthzKeycloak::NAME, "Unable to determine token endpoint.");
        }
        found
    }

    /// Sends a form.
    pub async fn post(
        &self,
        x: &Exchange<'_>,
        endpoint: &Remote,
        token: Option<&[u8]>,
        form: Form,
    ) -> Result<Fetched, &'static str> {
        let mut fields = form_fields();
        if let Some(token) = token {
            fields.set(b"Authorization", token).map_err(|_| "the token cannot be sent")?;
        }
        let answer = endpoint.fetch(x, self.manner, Method::Post, fields, form.bytes().into()).await;
        answer.map_err(|error| error.as_str())
    }

    /// The resources that the request's path belongs to; the reason why they are unknown is logged.
    pub async fn resources(
        &self,
        x: &Exchange<'_>,
        config: &Config,
        client: impl Fn(Form) -> Form,
    ) -> Option<Vec<String>> {
        let token = self.session(x, config, client).await?;
        let found = self.resources_by(x, &token).await;
        found.map_err(|why| x.complain(AuthzKeycloak::NAME, why)).ok()
    }

    async fn resources_by(&self, x: &Exchange<'_>, session: &Session) -> Result<Vec<String>, &'static str> {
        let own = self.resource_endpoint.clone();
        let endpoint = match own {
            Some(endpoint) => Some(endpoint),
            None => self.document(x).await.and_then(|document| document.resource_endpoint.clone()),
        };
        let endpoint = endpoint.ok_or("Unable to determine registration endpoint.")?;
        let query = Form::default().with("uri", x.path()).with("matchingUri", "true");
        let mut fields = Fields::new();
        fields
            .set(b"Authorization", format!("Bearer {}", session.access_token).as_bytes())
            .map_err(|_| "the token cannot be sent")?;
        let endpoint = endpoint.with_query(query.bytes());
        let answer = endpoint.fetch(x, self.manner, Method::Get, fields, Bytes::new()).await;
        let answer = answer.map_err(|error| error.as_str())?;
        if answer.status == 401 {
            // It was revoked.
            let is_this = |own: &Session| own.access_token == session.access_token;
            self.session.with(x.world(), |cache| cache.forget(is_this));
        }
        if answer.status != 200 {
            return Err(NOT_200);
        }
        let found: Vec<String> = serde_json::from_slice(&answer.body).map_err(|_| NO_JSON)?;
        if found.len() > RESOURCES {
            return Err("the path belongs to too many resources");
        }
        Ok(found)
    }

    /// The tokens of the client, fetched or renewed if need be.
    async fn session(
        &self,
        x: &Exchange<'_>,
        config: &Config,
        client: impl Fn(Form) -> Form,
    ) -> Option<Rc<Session>> {
        let now = x.world().steady_ms();
        let last = self.session.with(x.world(), |cache| {
            let last = cache.last();
            cache.forget(|session| session.end <= now);
            last
        });
        let ttl = last.as_ref().map_or(self.ttl, |session| session.holds.min(self.ttl));
        let ask = async || {
            let endpoint = self.token_endpoint(x).await?;
            let now = x.world().steady_ms();
            let refresh = last.as_ref().and_then(|session| session.refresh_token.clone());
            if let Some((token, until)) = refresh.filter(|(_, until)| now < *until) {
                let form = Form::default().with("grant_type", "refresh_token").with("refresh_token", &token);
                if let Ok(session) = self.ask(x, &endpoint, config, client(form), Some((token, until))).await
                {
                    return Some(session);
                }
                // A refresh token that was revoked does not hold up requests.
            }
            let form = client(Form::default().with("grant_type", "client_credentials"));
            let session = self.ask(x, &endpoint, config, form, None).await;
            session.map_err(|why| x.complain(AuthzKeycloak::NAME, why)).ok()
        };
        obtain(&self.session, x.world(), (ttl, self.wait_ms()), |_| true, ask).await
    }

    /// Asks for tokens. `before` is the refresh token that stays where the answer has none.
    async fn ask(
        &self,
        x: &Exchange<'_>,
        endpoint: &Remote,
        config: &Config,
        form: Form,
        before: Option<(String, u64)>,
    ) -> Result<Session, &'static str> {
        let answer = self.post(x, endpoint, None, form).await?;
        if answer.status != 200 {
            return Err(NOT_200);
        }
        let tokens: Tokens = serde_json::from_slice(&answer.body).map_err(|_| NO_JSON)?;
        let now = x.world().steady_ms();
        let holds =
            |seconds: u64, leeway: u64| seconds.saturating_sub(1).saturating_sub(leeway).saturating_mul(1000);
        let seconds = tokens.expires_in.unwrap_or(config.access_token_expires_in);
        // A token that is over already holds for a second.
        let holds_access = holds(seconds, config.access_token_expires_leeway).max(1000);
        let refresh = holds(
            tokens.refresh_expires_in.unwrap_or(config.refresh_token_expires_in),
            config.refresh_token_expires_leeway,
        );
        Ok(Session {
            access_token: tokens.access_token.ok_or("Response does not contain access_token field.")?,
            holds: holds_access,
            end: now.saturating_add(seconds.saturating_mul(1000).max(holds_access)),
            refresh_token: match tokens.refresh_token {
                Some(token) => Some((token, now.saturating_add(refresh))),
                None => before,
            },
        })
    }
}

impl Document {
    /// A document that came over TLS leads to no endpoint without it.
    fn read(body: &[u8], needs_tls: bool) -> Result<Document, &'static str> {
        let document: Value = serde_json::from_slice(body).map_err(|_| NO_JSON)?;
        let endpoint = |name: &str| {
            let remote = document.get(name).and_then(Value::as_str).and_then(|url| Remote::parse(url).ok());
            remote.filter(|remote| !needs_tls || remote.is_https())
        };
        Ok(Document {
            token_endpoint: endpoint("token_endpoint"),
            resource_endpoint: endpoint("resource_registration_endpoint"),
        })
    }
}
