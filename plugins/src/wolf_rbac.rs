//! wolf-rbac: has a wolf server decide whether the user of a token may send a request, and logs users in there.
//!
//! Settings, tokens, requests, messages, statuses and endpoints as in APISIX 3.18, with these differences. A decision that
//! accepts is a JSON object with status 200: APISIX takes any answer with this status for one. Facts about the user that
//! cannot be the value of a header refuse the request.

mod server;

use std::borrow::Cow;
use std::sync::Arc;

use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::{Credential, Identity};
use sdk::endpoint::Called;
use sdk::vars::Var;
use sdk::{Build, Endpoint, Exchange, Method, Phase, Plugin, Reply, Step, SureAnswer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::auth::Vouched;
use crate::form::escape;
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

/// The endpoint that is called.
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
        match (parts.next(), parts.next(), parts.next()) {
            (Some(version), Some(appid), Some(secret)) if version == VERSION.as_bytes() => {
                Ok(Token { appid: appid.into(), secret: secret.into() })
            }
            _ => Err(UNREADABLE),
        }
    }

    /// The token of a request, and the consumer of its application.
    fn identify(&self, x: &Exchange<'_>) -> Result<(Token, Identity), &'static str> {
        let token = self.token(x)?;
        if !x.consumers().any(Self::NAME) {
            return Err("Missing related consumer");
        }
        match x.consumers().find(Self::NAME, &token.appid) {
            Some(identity) => Ok((token, identity.clone())),
            None => Err("Invalid appid in rbac token"),
        }
    }

    /// Has the server decide on the request.
    async fn decide(&self, x: &mut Exchange<'_>) -> Result<Step, Step> {
        let (token, identity) = self.identify(x).map_err(|message| refuse(401, message))?;
        let wolf: &Wolf = identity.secret().ok_or_else(|| refuse(401, "Missing related consumer"))?;
        let path = self.uri.of(x).unwrap_or_default();
        let answer = wolf.decision(x, &token, &path).await.map_err(|failure| {
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
        let is_accepted = answer.status == 200;
        let Ok(said) = serde_json::from_slice::<Map<String, Value>>(&answer.body) else {
            let status = if is_accepted { 500 } else { answer.status };
            return Err(refuse(status, "check permission failed! parse response json failed!"));
        };
        let user = said.get("data").and_then(|data| data.get("userInfo")).and_then(Value::as_object);
        self.tell(x, wolf, user)?;
        if is_accepted {
            x.authenticate(identity);
            return Ok(Step::Next);
        }
        let mut body = Map::new();
        let texts = [("message", said.get("reason")), ("username", name(user)), ("nickname", nickname(user))];
        for (key, value) in texts {
            if let Some(value) = value.filter(|value| !value.is_null()) {
                body.insert(key.to_owned(), value.clone());
            }
        }
        let reply = Reply::json(answer.status, &Value::Object(body));
        Err(Step::Reply(reply.because("the wolf server refuses the request")))
    }

    /// Tells the upstream and the client who the user is. Headers of the client's own by these names are removed.
    fn tell(&self, x: &mut Exchange<'_>, wolf: &Wolf, user: Option<&Map<String, Value>>) -> Result<(), Step> {
        let id = user.and_then(|user| text(user.get("id")));
        let nickname = text(nickname(user)).map(|nickname| escape(&nickname));
        let facts = [id, text(name(user)), nickname];
        let mut vouched = x.take_note::<Vouched>().unwrap_or_default();
        for (name, value) in wolf.headers.iter().zip(facts) {
            x.remove_lookalikes(name);
            x.remove_header(name);
            vouched.add(name.as_str().as_bytes());
            let Some(value) = value else { continue };
            vouched.add(value.as_bytes());
            let set = x.set_header(name, value.as_bytes());
            if set.and_then(|()| x.set_response_header(name, value.as_bytes())).is_err() {
                const INVALID: &str = "what the wolf server says of the user cannot be the value of a header";
                x.complain(Self::NAME, INVALID);
                return Err(refuse(500, INVALID));
            }
        }
        x.set_note(vouched);
        Ok(())
    }

    /// Answers a request to an endpoint.
    async fn act(&self, x: &mut Exchange<'_>, action: Action) -> Result<Step, Step> {
        let mut memory = sdk::budget::Reservation::default();
        if memory.resize(x.world().budget(), tree::weight(x.body())).is_err() {
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
        let said = wolf.ask(x, action, token.as_ref(), arguments).await.map_err(|failure| {
            if let Failure::Token = failure {
                return refuse(401, UNREADABLE);
            }
            x.complain(Self::NAME, failure.as_str());
            let status = if let Failure::Refused = failure { 200 } else { 500 };
            Step::Reply(Reply::json(status, &json!({ "message": FAILED })).because(failure.as_str()))
        })?;
        let user = said.get("data").and_then(|data| data.get("userInfo"));
        let mut body = Map::new();
        if action == Action::ChangePassword {
            body.insert("message".to_owned(), json!("success to change password"));
        } else if let Some(user) = user {
            body.insert("user_info".to_owned(), user.clone());
        }
        if action == Action::Login {
            let Some(secret) = said.get("data").and_then(|data| data.get("token")?.as_str()) else {
                x.complain(Self::NAME, "the wolf server's response to a login has no token");
                return Err(refuse(500, FAILED));
            };
            let token = format!("{VERSION}#{}#{secret}", String::from_utf8_lossy(&appid));
            body.insert("rbac_token".to_owned(), token.into());
        }
        Ok(Step::Reply(Reply::json(200, &Value::Object(body))))
    }
}

/// The arguments in the body of a request: JSON where its type says so, else a form.
fn arguments(x: &Exchange<'_>) -> Option<Map<String, Value>> {
    let kind = x.header("Content-Type").unwrap_or_default();
    let is_json = kind.windows(16).any(|part| part == b"application/json");
    if is_json { serde_json::from_slice(x.body()).ok() } else { Some(tree::form(x.body())) }
}

/// A text or a number.
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
