//! The wolf server of a consumer's application.

use std::time::Duration;

use model::Invalid;
use sdk::world::{FetchError, Fetched, Keep};
use sdk::{Exchange, Fields, HeaderName, Method};
use serde_json::{Map, Value};

use super::{Action, Token};
use crate::form::Form;
use crate::remote::{Manner, Remote};

pub struct Wolf {
    access_check: Remote,
    login: Remote,
    change_pwd: Remote,
    user_info: Remote,
    verify: bool,
    /// The headers with what the server says of a user: id, name and nickname.
    pub headers: [HeaderName; 3],
}

/// Why the server has given no decision, or no result.
#[derive(Debug)]
pub enum Failure {
    /// The token cannot stand in a request to the server.
    Token,
    Fetch(FetchError),
    /// Another status than 200.
    Status(u16),
    /// The answer is not what the server answers with.
    Unreadable,
    /// The server says no, such as for a wrong password.
    Refused,
}

impl Failure {
    pub fn as_str(&self) -> &'static str {
        match self {
            Failure::Token => "the rbac token has characters that cannot stand in a header",
            Failure::Fetch(error) => error.as_str(),
            Failure::Status(_) => "the wolf server returned an error status",
            Failure::Unreadable => "the wolf server's response is not JSON",
            Failure::Refused => "the wolf server refused the request",
        }
    }
}

/// The largest answer, in bytes.
const LARGEST: usize = 1 << 20;

/// Attempts to get a decision while the server has internal errors, and the time between them.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

impl Wolf {
    /// # Errors
    /// A URL or a prefix that cannot be used.
    pub fn new(consumer_config: &Value) -> Result<Wolf, Invalid> {
        let text = |name: &str| consumer_config.get(name).and_then(Value::as_str).unwrap_or_default();
        let (server, prefix) = (text("server"), text("header_prefix"));
        let remote = |path: &str| {
            let url = format!("{}/wolf/rbac/{path}", server.trim_end_matches('/'));
            Remote::parse(&url).map_err(|why| Invalid::new(why).at("/server").got(server))
        };
        let header = |name: &str| {
            let invalid =
                || Invalid::new("this is no start of a header's name").at("/header_prefix").got(prefix);
            HeaderName::new(&format!("{prefix}{name}")).map_err(|_| invalid())
        };
        Ok(Wolf {
            access_check: remote("access_check")?,
            login: remote("login.rest")?,
            change_pwd: remote("change_pwd")?,
            user_info: remote("user_info")?,
            verify: consumer_config.get("ssl_verify") == Some(&Value::Bool(true)),
            headers: [header("UserId")?, header("Username")?, header("Nickname")?],
        })
    }

    fn manner(&self, timeout: Duration) -> Manner {
        let keep = Keep { connections: 5, idle: Duration::from_mins(1) };
        Manner { timeout, verify: self.verify, most: LARGEST, keep }
    }

    /// Asks whether the user may do what the method says with what is at this path.
    pub async fn decision(&self, x: &Exchange<'_>, token: &Token, path: &[u8]) -> Result<Fetched, Failure> {
        let form = Form::default()
            .with("appID", &token.appid)
            .with("resName", path)
            .with("action", x.request().method_bytes())
            .with("clientIP", x.client().ip_text());
        let remote = self.access_check.with_query(form.bytes());
        let fields = fields(Some(token))?;
        let manner = self.manner(Duration::from_secs(10));
        for attempt in 1.. {
            let answer = remote.fetch(x, manner, Method::Get, fields.clone(), Default::default()).await;
            match answer.map_err(Failure::Fetch)? {
                answer if answer.status < 500 => return Ok(answer),
                answer if attempt == ATTEMPTS => return Err(Failure::Status(answer.status)),
                _ => x.world().sleep(PAUSE).await,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Has the server do something for a user, and returns its result.
    pub async fn ask(
        &self,
        x: &Exchange<'_>,
        action: Action,
        token: Option<&Token>,
        arguments: Option<Map<String, Value>>,
    ) -> Result<Value, Failure> {
        let (remote, method) = match action {
            Action::Login => (&self.login, Method::Post),
            Action::ChangePassword => (&self.change_pwd, Method::Post),
            Action::UserInfo => (&self.user_info, Method::Get),
        };
        let body = arguments.map(|arguments| Value::Object(arguments).to_string()).unwrap_or_default();
        let manner = self.manner(Duration::from_secs(5));
        let answer = remote.fetch(x, manner, method, fields(token)?, body.into()).await;
        let answer = answer.map_err(Failure::Fetch)?;
        if answer.status != 200 {
            return Err(Failure::Status(answer.status));
        }
        let said: Value = serde_json::from_slice(&answer.body).map_err(|_| Failure::Unreadable)?;
        match said.get("ok") {
            None | Some(Value::Null | Value::Bool(false)) => Err(Failure::Refused),
            Some(_) => Ok(said),
        }
    }
}

/// The fields of a request to the server.
fn fields(token: Option<&Token>) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    // The name and value are valid.
    let _ = fields.set(b"Content-Type", b"application/json; charset=utf-8");
    if let Some(token) = token {
        fields.set(b"X-Rbac-Token", &token.secret).map_err(|_| Failure::Token)?;
    }
    Ok(fields)
}
