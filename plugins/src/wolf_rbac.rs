//! wolf-rbac: has a wolf server decide whether the user of a token may send a request, and logs users in there.
//!
//! Settings, tokens, requests, messages, statuses and endpoints as in APISIX 3.18, with these differences:
//!
//! - Only status 200 with `"ok": true` accepts a request; APISIX takes any response with this status for a decision. Other
//!   statuses below 300 are no decision, either.
//! - The server decides by the application in its own token, a JWT. A token for another application than it says is refused.
//! - Headers about a user are sent to the upstream only for an accepted request. A request gets 500 if the id or a name is
//!   not a valid header value.
//! - The argument `rbac_token` counts if it stands once, with a value.
//! - Bodies of endpoints and responses of the server are limited to 1 MiB; an endpoint refuses arguments that cannot be read.

mod server;

use std::borrow::Cow;
use std::sync::Arc;

use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::{Credential, Identity};
use sdk::endpoint::Called;
use sdk::vars::Var;
use sdk::{Build, Endpoint, Exchange, Fields, Method, Phase, Plugin, Reply, Step, SureAnswer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::auth::Vouched;
use crate::form::escape;
use crate::jwt_auth;
use crate::query::{self, Arg};
use crate::tree;
use server::{Failure, Wolf};

/// The configured plugin.
pub struct WolfRbac {
    uri: Var,
    cookie: Var,
}

/// A route has no settings of its own that matter: those of the consumer count.
#[derive(Debug, Deserialize)]
pub struct Config {}

/// A token that a client sends: `V1#APPID#TOKEN`, where the last part is the server's.
struct Token {
    appid: Vec<u8>,
    secret: Vec<u8>,
}

/// The version of tokens.
const VERSION: &str = "V1";

/// The largest request to an endpoint, in bytes.
const LARGEST: usize = 1 << 20;

const MISSING: &str = "Missing rbac token in request";
const UNREADABLE: &str = "invalid rbac token: parse failed";
const UNKNOWN: &str = "Invalid appid in rbac token";
const NO_DECISION: &str = "check permission failed! parse response json failed!";
const INVALID: &str = "the user's id or name is not a valid header value";
const FAILED: &str = "request to wolf-server failed!";

/// The endpoints, in the order of their list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Login,
    ChangePassword,
    UserInfo,
}

const ACTIONS: [(Action, Method, &str); 3] = [
    (Action::Login, Method::Post, "login"),
    (Action::ChangePassword, Method::Put, "change_pwd"),
    (Action::UserInfo, Method::Get, "user_info"),
];

impl Plugin for WolfRbac {
    const NAME: &'static str = "wolf-rbac";
    const PRIORITY: i32 = 2555;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn consumer_schema() -> Option<Value> {
        Some(Self::schema())
    }

    fn endpoints(_attr: Option<&Value>) -> Vec<Endpoint> {
        let endpoint =
            |(_, method, name)| Endpoint { method, path: format!("/apisix/plugin/wolf-rbac/{name}") };
        ACTIONS.map(endpoint).into()
    }

    fn build(_config: Config, _cx: &mut Build<'_>) -> Result<WolfRbac, Invalid> {
        Ok(WolfRbac { uri: Var::parse("uri"), cookie: Var::parse("cookie_x-rbac-token") })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        crate::auth::filled(consumer_config, &["appid"])?;
        let Some(appid) = consumer_config.get("appid").and_then(Value::as_str) else { return Ok(None) };
        let wolf = Wolf::new(consumer_config)?;
        Ok(Some(Credential { key: appid.into(), secret: Some(Arc::new(wolf)) }))
    }

    fn sure_answer(&self, x: &Exchange<'_>) -> Option<SureAnswer> {
        self.identify(x).err().map(|_| SureAnswer::Status(401))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match self.identify(x) {
            Ok(_) => Step::Wait,
            Err(message) => refuse(401, message),
        }
    }

    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        match action(x) {
            Some(Action::UserInfo) => Step::Wait,
            Some(_) => crate::buffer_body(x, LARGEST),
            None => Step::Next,
        }
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match action(x).filter(|_| phase != Phase::Rewrite) {
            Some(action) => self.act(x, action).await.unwrap_or_else(|refusal| refusal),
            None => self.decide(x).await.unwrap_or_else(|refusal| refusal),
        }
    }
}

/// Returns the endpoint that is called.
fn action(x: &Exchange<'_>) -> Option<Action> {
    let called = x.note::<Called>()?;
    ACTIONS.get(called.0).map(|(action, ..)| *action)
}

fn refuse(status: u16, message: &'static str) -> Step {
    Step::Reply(Reply::json(status, &json!({ "message": message })).because(message))
}

impl WolfRbac {
    fn token(&self, x: &Exchange<'_>) -> Result<Token, &'static str> {
        let sent = match query::find(x.query(), b"rbac_token") {
            Arg::One(token) => token,
            Arg::Other => return Err(UNREADABLE),
            Arg::Absent => {
                let header = x.header("Authorization").or_else(|| x.header("X-Rbac-Token"));
                header.map(Cow::Borrowed).or_else(|| self.cookie.of(x)).ok_or(MISSING)?
            }
        };
        let mut parts = sent.splitn(3, |byte| *byte == b'#');
        let (appid, secret) = match (parts.next(), parts.next(), parts.next()) {
            (Some(version), Some(appid), Some(secret)) if version == VERSION.as_bytes() => (appid, secret),
            _ => return Err(UNREADABLE),
        };
        // The server verifies its own token, and takes the application from there.
        let own = jwt_auth::token::Token::parse(secret);
        match own.as_ref().and_then(|own| own.claim("appid")) {
            Some(own) if own.as_str().map(str::as_bytes) != Some(appid) => Err(UNKNOWN),
            _ => Ok(Token { appid: appid.into(), secret: secret.into() }),
        }
    }

    /// Returns the token of a request, and the consumer of its application.
    fn identify(&self, x: &Exchange<'_>) -> Result<(Token, Identity), &'static str> {
        let token = self.token(x)?;
        if !x.consumers().any(Self::NAME) {
            return Err("Missing related consumer");
        }
        match x.consumers().find(Self::NAME, &token.appid) {
            Some(identity) => Ok((token, identity.clone())),
            None => Err(UNKNOWN),
        }
    }

    /// Has the server decide on the request.
    async fn decide(&self, x: &mut Exchange<'_>) -> Result<Step, Step> {
        let (token, identity) = self.identify(x).map_err(|message| refuse(401, message))?;
        let wolf: &Wolf = identity.secret().ok_or_else(|| refuse(401, "Missing related consumer"))?;
        for name in &wolf.headers {
            x.remove_lookalikes(name);
            x.remove_header(name);
        }
        let path = self.uri.of(x).unwrap_or_default();
        let response = wolf.decision(x, &token, &path).await.map_err(|failure| {
            if let Failure::Token = failure {
                return refuse(401, UNREADABLE);
            }
            x.complain(Self::NAME, failure.as_str());
            let message = match failure {
                Failure::Status(status) => format!("request to wolf-server failed, status:{status}"),
                _ => format!("request to wolf-server failed, err:{}", failure.as_str()),
            };
            Step::Reply(Reply::json(500, &json!({ "message": message })).because(failure.as_str()))
        })?;
        let decision: Map<String, Value> = serde_json::from_slice(&response.body).map_err(|_| {
            x.complain(Self::NAME, Failure::Unreadable.as_str());
            refuse(if response.status < 300 { 500 } else { response.status }, NO_DECISION)
        })?;
        let is_accepted = response.status == 200 && server::is_ok(decision.get("ok"));
        if response.status < 300 && !is_accepted {
            x.complain(Self::NAME, "the wolf server returned no decision");
            return Err(refuse(500, "request to wolf-server failed, err:no decision"));
        }
        let user = decision.get("data").and_then(|data| data.get("userInfo")).and_then(Value::as_object);
        let nickname = nickname(user);
        let values = [
            text(user.and_then(|user| user.get("id"))),
            text(name(user)),
            text(nickname).map(|nickname| escape(&nickname)),
        ];
        let invalid = |_| refuse(500, INVALID);
        let mut headers = Fields::new();
        for (name, value) in wolf.headers.iter().zip(&values) {
            if let Some(value) = value {
                headers.set(name.as_str().as_bytes(), value.as_bytes()).map_err(invalid)?;
            }
        }
        let headers = || {
            wolf.headers.iter().filter_map(|name| Some((name, headers.get_named(name.as_str().as_bytes())?)))
        };
        for (name, value) in headers() {
            x.set_response_header(name, value).map_err(invalid)?;
        }
        if !is_accepted {
            let mut body = Map::new();
            let texts =
                [("message", decision.get("reason")), ("username", name(user)), ("nickname", nickname)];
            for (key, value) in texts {
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    body.insert(key.to_owned(), value.clone());
                }
            }
            let reply = Reply::json(response.status, &Value::Object(body));
            return Err(Step::Reply(reply.because("the wolf server refuses the request")));
        }
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        // A server need not say who the user is.
        vouched.add(&token.secret);
        for (name, value) in headers() {
            x.set_header(name, value).map_err(invalid)?;
            vouched.add(name.as_str().as_bytes());
            vouched.add(value);
        }
        x.set_note(vouched);
        x.authenticate(identity);
        Ok(Step::Next)
    }

    /// Answers a request to an endpoint.
    async fn act(&self, x: &mut Exchange<'_>, action: Action) -> Result<Step, Step> {
        let mut memory = sdk::budget::Reservation::default();
        // The values, and the JSON for the server: each byte is six there at most.
        let weight = tree::weight(x.body()) + 6 * x.body().len();
        if memory.resize(x.world().budget(), weight).is_err() {
            return Err(crate::no_memory());
        }
        let token = match action {
            Action::Login => None,
            _ => Some(self.token(x).map_err(|message| refuse(401, message))?),
        };
        let arguments = match action {
            Action::UserInfo => None,
            _ => Some(arguments(x).ok_or_else(|| refuse(400, "invalid request"))?),
        };
        let appid = match (&token, arguments.as_ref().and_then(|arguments| arguments.get("appid"))) {
            (Some(token), _) => token.appid.clone(),
            (None, None | Some(Value::Null)) => return Err(refuse(400, "appid is missing")),
            (None, Some(appid)) => appid.as_str().unwrap_or_default().into(),
        };
        if !x.consumers().any(Self::NAME) {
            return Err(Step::Reply(Reply::status(500).because("no consumer has wolf-rbac")));
        }
        let identity = x.consumers().find(Self::NAME, &appid).cloned();
        let identity = identity.ok_or_else(|| refuse(400, "appid not found"))?;
        let wolf: &Wolf = identity.secret().ok_or_else(|| refuse(400, "appid not found"))?;
        let result = wolf.ask(x, action, token.as_ref(), arguments).await.map_err(|failure| {
            if let Failure::Token = failure {
                return refuse(401, UNREADABLE);
            }
            x.complain(Self::NAME, failure.as_str());
            let status = if let Failure::Refused = failure { 200 } else { 500 };
            Step::Reply(Reply::json(status, &json!({ "message": FAILED })).because(failure.as_str()))
        })?;
        let user = result.get("data").and_then(|data| data.get("userInfo"));
        let mut body = Map::new();
        if action == Action::ChangePassword {
            body.insert("message".to_owned(), json!("success to change password"));
        } else if let Some(user) = user {
            body.insert("user_info".to_owned(), user.clone());
        }
        if action == Action::Login {
            let Some(secret) = result.get("data").and_then(|data| data.get("token")?.as_str()) else {
                x.complain(Self::NAME, "the wolf server's response to a login has no token");
                return Err(refuse(500, FAILED));
            };
            let token = format!("{VERSION}#{}#{secret}", String::from_utf8_lossy(&appid));
            body.insert("rbac_token".to_owned(), token.into());
        }
        Ok(Step::Reply(Reply::json(200, &Value::Object(body))))
    }
}

/// Reads the arguments in the body of a request: JSON by its type, else a form.
fn arguments(x: &Exchange<'_>) -> Option<Map<String, Value>> {
    let kind = x.header("Content-Type").unwrap_or_default();
    let is_json = kind.windows(16).any(|part| part == b"application/json");
    if is_json { serde_json::from_slice(x.body()).ok() } else { Some(tree::form(x.body())) }
}

/// Returns the text of a string or a number.
fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn name(user: Option<&Map<String, Value>>) -> Option<&Value> {
    user?.get("username")
}

fn nickname(user: Option<&Map<String, Value>>) -> Option<&Value> {
    user?.get("nickname").filter(|nickname| !nickname.is_null()).or_else(|| name(user))
}

#[cfg(test)]
mod tests;
