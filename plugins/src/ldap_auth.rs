//! ldap-auth: identifies a consumer by user name and password of an LDAP directory (RFC 4513 section 5.1.3).
//!
//! Settings and messages as in APISIX 3.18. A password is passed on as the client sends it, colons and white space
//! included. An empty one is refused here: a directory takes it for an anonymous bind, which succeeds for any name.

mod bind;

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use sdk::build::split_authority;
use sdk::chain::{Phase, Phases};
use sdk::connection::{Addresses, Connect, Server, Tls, Trust};
use sdk::consumers::Credential;
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{self, Challenge};
use bind::Failure;

/// The configured plugin.
pub struct LdapAuth {
    connect: Connect,
    base_dn: String,
    uid: String,
    hide_credentials: bool,
    challenge: Challenge,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    base_dn: String,
    ldap_uri: String,
    use_tls: bool,
    tls_verify: bool,
    uid: String,
    hide_credentials: bool,
    realm: String,
}

/// For connecting, and for the answer to a bind.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a name and of a password at most.
const LONGEST: usize = 1024;

const MISSING: &str = "Missing authorization in request";
const INVALID: &str = "Invalid authorization in request";
const REFUSED: &str = "Invalid user authorization";

impl Plugin for LdapAuth {
    const NAME: &'static str = "ldap-auth";
    const PRIORITY: i32 = 2540;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "title": "work with route or service object",
            "properties": {
                "base_dn": {"type": "string"},
                "ldap_uri": {"type": "string"},
                "use_tls": {"type": "boolean", "default": false},
                "tls_verify": {"type": "boolean", "default": false},
                "uid": {"type": "string", "default": "cn"},
                "hide_credentials": {"type": "boolean", "default": false},
                "realm": auth::realm("ldap"),
            },
            "required": ["base_dn", "ldap_uri"],
        })
    }

    fn consumer_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "title": "work with consumer object",
            "properties": {"user_dn": {"type": "string"}},
            "required": ["user_dn"],
        }))
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<LdapAuth, Invalid> {
        let is_name = |(host, _): &(&str, u16)| {
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
        };
        let server = split_authority(&config.ldap_uri, 389).filter(is_name);
        let (host, port) = server.ok_or_else(|| {
            Invalid::new("this is not the address of a server").at("/ldap_uri").expected("host or host:port")
        })?;
        let name: Arc<str> = host.trim_matches(['[', ']']).into();
        let trust = if config.tls_verify { Trust::Common } else { Trust::Any };
        let tls = config.use_tls.then(|| Tls { server_name: name.clone(), trust });
        let server = Server::Tcp { at: Addresses::Host { name, port }, tls };
        Ok(LdapAuth {
            connect: Connect { server, pool: Self::NAME.into(), timeout: TIMEOUT },
            base_dn: config.base_dn,
            uid: config.uid,
            hide_credentials: config.hide_credentials,
            challenge: Challenge::new("Basic", &config.realm),
        })
    }

    fn credential(consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        auth::filled(consumer_config, &["user_dn"])?;
        let dn = consumer_config.get("user_dn").and_then(Value::as_str);
        Ok(dn.map(|dn| Credential { key: dn.into(), secret: None }))
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match sent(x) {
            Ok((name, password)) if !name.is_empty() && !password.is_empty() => Step::Wait,
            Ok(_) => self.challenge.refuse(x, REFUSED),
            Err(message) => self.challenge.refuse(x, message),
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Ok((name, password)) = sent(x) else { return self.challenge.refuse(x, INVALID) };
        let dn = format!("{}={},{}", self.uid, escaped(&name), self.base_dn);
        // First, so that names of no consumer cost no bind and lock no account of the directory.
        let Some(identity) = x.consumers().find(Self::NAME, dn.as_bytes()).cloned() else {
            return self.challenge.refuse(x, REFUSED);
        };
        match bind::bind(x.world(), &self.connect, TIMEOUT, &dn, &password).await {
            Ok(()) => {}
            Err(Failure::Refused) => return self.challenge.refuse(x, REFUSED),
            Err(Failure::Server(reason)) => {
                // As in APISIX, clients learn no more than that they are not accepted.
                x.complain(Self::NAME, reason);
                return self.challenge.refuse(x, REFUSED);
            }
        }
        x.authenticate(identity);
        if self.hide_credentials {
            x.remove_header("Authorization");
        }
        Step::Next
    }
}

/// The name, without white space as in APISIX, and the password of a request. The error is APISIX's message.
fn sent(x: &Exchange<'_>) -> Result<(String, Vec<u8>), &'static str> {
    let header = x.header("Authorization").ok_or(MISSING)?;
    let sent = auth::basic(header).ok_or(INVALID)?;
    let colon = sent.iter().position(|&byte| byte == b':').ok_or(INVALID)?;
    let (name, password) = (&sent[..colon], &sent[colon + 1..]);
    // A zero byte would end the password for a directory that reads it as a text of C: an anonymous bind.
    if name.len() > LONGEST || password.len() > LONGEST || password.contains(&0) {
        return Err(INVALID);
    }
    let name = std::str::from_utf8(name).map_err(|_| INVALID)?;
    Ok((name.split_ascii_whitespace().collect(), password.to_vec()))
}

/// A value within a distinguished name (RFC 4514 section 2.4): clients must not choose other parts of the name.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for (at, char) in value.char_indices() {
        let is_edge = at == 0 && matches!(char, '#' | ' ') || at + 1 == value.len() && char == ' ';
        match char {
            '\0' => out.push_str("\\00"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => out.extend(['\\', char]),
            char if is_edge => out.extend(['\\', char]),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests;
