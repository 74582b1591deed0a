//! Claims of tokens: their times, issuer, audience and scopes.

use sdk::Reply;
use serde_json::{Map, Value, json};

use super::config::Config;
use crate::jwt_auth::token::Token;

/// Whether `exp` and `nbf`, if present, allow the token at `now` (Unix seconds).
pub(super) fn in_time(claim: impl Fn(&str) -> Option<Value>, now: f64, slack: f64) -> bool {
    let time = |name: &str| claim(name).map(|value| value.as_f64());
    time("exp").is_none_or(|exp| exp.is_some_and(|exp| exp + slack >= now))
        && time("nbf").is_none_or(|nbf| nbf.is_some_and(|nbf| nbf <= now + slack))
}

/// Whether one of the texts of a claim, a text or a list, is this.
pub(super) fn includes(claim: Option<&Value>, text: &str) -> bool {
    match claim {
        Some(Value::Array(list)) => list.iter().any(|one| one.as_str() == Some(text)),
        Some(one) => one.as_str() == Some(text),
        None => false,
    }
}

/// Checks the claims of an ID token (OpenID Connect Core 1.0, section 3.1.3.7).
pub(super) fn check_id_token(
    token: &Token<'_>,
    config: &Config,
    issuer: Option<&str>,
    nonce: Option<&str>,
    now: f64,
) -> Result<(), &'static str> {
    let text = |name: &str| token.claim(name).and_then(Value::as_str);
    let time = |name: &str| token.claim(name).and_then(Value::as_f64);
    let slack = config.slack();
    if issuer.is_none() || text("iss") != issuer {
        return Err("the issuer of the ID token is not that of the discovery document");
    }
    if text("sub").is_none() {
        return Err("the ID token has no \"sub\"");
    }
    if nonce.is_some() && text("nonce") != nonce {
        return Err("the nonce of the ID token is not that of the login");
    }
    if time("iat").is_none_or(|iat| iat > now + slack) {
        return Err("the ID token has no \"iat\", or one in the future");
    }
    if time("exp").is_none_or(|exp| exp + slack < now) || time("nbf").is_some_and(|nbf| nbf > now + slack) {
        return Err("the ID token is expired or not yet valid");
    }
    if !includes(token.claim("aud"), &config.client_id) {
        return Err("the audience of the ID token is not this client");
    }
    Ok(())
}

/// Checks the audience of a token in a request, as `claim_validator.audience` wants it.
pub(super) fn check_audience(config: &Config, claims: &Map<String, Value>) -> Result<(), Reply> {
    let rule = &config.claim_validator.audience;
    let forbidden = |text: &'static str| Err(Reply::json(403, &json!({ "error": text })).because(text));
    // Lua takes null and false for absent.
    let value = claims.get(&rule.claim).filter(|value| !matches!(value, Value::Null | Value::Bool(false)));
    if (rule.required || rule.match_with_client_id) && value.is_none() {
        return forbidden("required audience claim not present");
    }
    if rule.match_with_client_id && !includes(value, &config.client_id) {
        return forbidden("mismatched audience");
    }
    Ok(())
}

/// Checks that the granted scopes, separated by spaces, have all that are required.
pub(super) fn check_scopes(required: &[String], granted: &str) -> Result<(), Reply> {
    let has = |scope: &String| granted.split_ascii_whitespace().any(|own| own == scope);
    if required.iter().all(has) {
        return Ok(());
    }
    let text = format!("required scopes {} not present", required.join(", "));
    Err(Reply::json(403, &json!({ "error": text })).because("required scopes are not granted"))
}
