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
    /// The headers with a user's id, name and nickname.
    pub headers: [HeaderName; 3],
}

/// Why a request to the server has no result.
#[derive(Debug)]
pub enum Failure {
    /// The token cannot stand in a request to the server.
    Token,
    Fetch(FetchError),
    /// Another status than 200.
    Status(u16),
    /// The body of the response is not JSON.
    Unreadable,
    /// The response is not `ok`, for instance after a wrong password.
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

/// The largest response, in bytes.
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
        if server.contains(['?', '#']) {
            let invalid = Invalid::new("it must have no query and no fragment").at("/server").got(server);
            return Err(invalid.expected("http://host[:port][/path] or https://…"));
        }
        let header = |name: &str| {
            let invalid = || {
                let invalid = Invalid::new("a header's name cannot begin with it").at("/header_prefix");
                invalid.expected("letters, digits, `-` and the like").got(prefix)
            };
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

    /// Asks whether the user of the token may use the method of the request on this path.
    pub async fn decision(&self, x: &Exchange<'_>, token: &Token, path: &[u8]) -> Result<Fetched, Failure> {
        let form = Form::default()
            .with("appID", &token.appid)
            .with("resName", path)
            .with("action", x.request().method_bytes())
            .with("clientIP", x.client().ip_text());
        let remote = self.access_check.with_query(form.bytes());
        let fields = fields(Some(token))?;
        let manner = self.manner(Duration::from_secs(10));
        let mut attempt = 1;
        loop {
            let response = remote.fetch(x, manner, Method::Get, fields.clone(), Default::default()).await;
            match response.map_err(Failure::Fetch)? {
                response if response.status < 500 => return Ok(response),
                response if attempt == ATTEMPTS => return Err(Failure::Status(response.status)),
                _ => x.world().sleep(PAUSE).await,
            }
            attempt += 1;
        }
    }

    /// Sends the request of an endpoint to the server, and returns the result.
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
        let response = remote.fetch(x, manner, method, fields(token)?, body.into()).await;
        let response = response.map_err(Failure::Fetch)?;
        if response.status != 200 {
            return Err(Failure::Status(response.status));
        }
        let result: Value = serde_json::from_slice(&response.body).map_err(|_| Failure::Unreadable)?;
        if is_ok(result.get("ok")) { Ok(result) } else { Err(Failure::Refused) }
    }
}

/// Returns whether `ok` of a response means success.
pub fn is_ok(value: Option<&Value>) -> bool {
    value == Some(&Value::Bool(true))
}

/// Returns the fields of a request to the server.
fn fields(token: Option<&Token>) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    // The name and value are valid.
    let _ = fields.set(b"Content-Type", b"application/json; charset=utf-8");
    if let Some(token) = token {
        fields.set(b"X-Rbac-Token", &token.secret).map_err(|_| Failure::Token)?;
    }
    Ok(fields)
}
