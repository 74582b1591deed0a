//! Plugins that identify consumers.

use serde_json::{Value, json};

use super::super::entities::Entity;
use super::Notes;
use super::convert::Context;
use crate::node::Node;

/// An instance of such a plugin.
pub(super) struct Auth {
    /// The plugins here, of which one must accept the request.
    alternatives: Vec<(&'static str, Value)>,
    /// The consumer of requests that none accepts.
    anonymous: Option<String>,
    /// Preflights pass unseen.
    skips_preflights: bool,
}

/// The plugins for all instances of a route, each with its level.
pub(super) fn compose(auths: &[(&Auth, u8)]) -> Vec<(String, Value, u8)> {
    let level = auths.iter().map(|(_, level)| *level).max().unwrap_or(0);
    // One that accepts anybody decides nothing beside one that does not.
    let required: Vec<&Auth> =
        auths.iter().map(|(auth, _)| *auth).filter(|auth| auth.anonymous.is_none()).collect();
    if !required.is_empty() {
        let mut plugins: Vec<(String, Value, u8)> = Vec::new();
        for auth in required {
            let (name, value) = one_of(&auth.alternatives, None);
            let value = if auth.skips_preflights { without_preflights(value) } else { value };
            plugins.push((name, value, level));
        }
        return plugins;
    }
    let Some((first, _)) = auths.first() else { return Vec::new() };
    let alternatives: Vec<(&'static str, Value)> =
        auths.iter().flat_map(|(auth, _)| auth.alternatives.iter().cloned()).collect();
    let (name, value) = one_of(&alternatives, first.anonymous.as_deref());
    let value =
        if auths.iter().all(|(auth, _)| auth.skips_preflights) { without_preflights(value) } else { value };
    vec![(name, value, level)]
}

/// The plugin that accepts what one of several accepts.
fn one_of(alternatives: &[(&'static str, Value)], anonymous: Option<&str>) -> (String, Value) {
    let mut alternatives = alternatives.to_vec();
    if let (Some(anonymous), Some((_, last))) = (anonymous, alternatives.last_mut()) {
        last["anonymous_consumer"] = json!(anonymous);
    }
    match alternatives.as_slice() {
        [(name, value)] => ((*name).to_owned(), value.clone()),
        all => {
            let plugins: Vec<Value> = all.iter().map(|(name, value)| json!({ *name: value })).collect();
            ("multi-auth".to_owned(), json!({ "auth_plugins": plugins }))
        }
    }
}

fn without_preflights(mut value: Value) -> Value {
    value["_meta"]["filter"] = json!([["request_method", "~=", "OPTIONS"]]);
    value
}

impl Auth {
    fn new(
        context: &Context<'_>,
        config: &Entity<'_>,
        notes: &mut Notes,
        alternatives: Vec<(&'static str, Value)>,
    ) -> Auth {
        let realm = config.text("realm").filter(|realm| {
            (1..=128).contains(&realm.len())
                && realm.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\')
        });
        let mut alternatives = alternatives;
        for (_, value) in &mut alternatives {
            if let Some(realm) = &realm {
                value["realm"] = json!(realm);
            }
            if config.bool("hide_credentials", false) {
                value["hide_credentials"] = json!(true);
            }
        }
        Auth {
            alternatives,
            anonymous: context.anonymous(config, notes),
            skips_preflights: !config.bool("run_on_preflight", true),
        }
    }
}

pub(super) fn key_auth(context: &Context<'_>, config: &Entity<'_>, notes: &mut Notes) -> Auth {
    let mut names = config.texts("key_names");
    if names.is_empty() {
        names.push("apikey".to_owned());
    }
    let (header, query) = (config.bool("key_in_header", true), config.bool("key_in_query", true));
    if config.bool("key_in_body", false)
        && let Some(node) = config.get("key_in_body")
    {
        notes.behaviour(&node, "keys in bodies are not read, so such requests are refused");
    }
    let place = |on: bool, name: &str| if on { name.to_owned() } else { String::new() };
    let alternatives = names.iter().map(|name| {
        // The defaults are the same, so an empty object says it all.
        let value = match (name.as_str(), header, query) {
            ("apikey", true, true) => json!({}),
            _ => json!({"header": place(header, name), "query": place(query, name)}),
        };
        ("key-auth", value)
    });
    Auth::new(context, config, notes, alternatives.collect())
}

pub(super) fn basic_auth(context: &Context<'_>, config: &Entity<'_>, notes: &mut Notes) -> Auth {
    Auth::new(context, config, notes, vec![("basic-auth", json!({}))])
}

pub(super) fn jwt(context: &Context<'_>, config: &Entity<'_>, notes: &mut Notes) -> Auth {
    let list = |name: &str, default: &[&str]| match config.get(name) {
        Some(node) => node.texts(),
        None => default.iter().map(|text| (*text).to_owned()).collect(),
    };
    let headers = list("header_names", &["authorization"]);
    let (queries, cookies) = (list("uri_param_names", &["jwt"]), list("cookie_names", &[]));
    let claim = config.text("key_claim_name").unwrap_or_else(|| "iss".to_owned());
    let verified = config.texts("claims_to_verify");
    let count = headers.len().max(queries.len()).max(cookies.len()).max(1);
    let at = |list: &[String], index: usize| list.get(index).cloned().unwrap_or_default();
    let alternative = |index: usize| {
        let mut value = json!({
            "header": at(&headers, index),
            "query": at(&queries, index),
            "cookie": at(&cookies, index),
            "key_claim_name": claim,
        });
        if !verified.is_empty() {
            value["claims_to_verify"] = json!(verified);
        }
        ("jwt-auth", value)
    };
    if verified.is_empty() {
        notes.behaviour(
            &config.node,
            "`exp` and `nbf` of tokens that have them are checked; Kong does so only with `claims_to_verify`",
        );
    }
    let base64 = config.bool("secret_is_base64", false);
    if let Some(node) = config.get("secret_is_base64").filter(|_| base64) {
        notes.behaviour(
            &node,
            "set `base64_secret: true` in the consumers' `jwt-auth`: secrets are taken as they stand",
        );
    }
    if let Some(node) = config.get("maximum_expiration").filter(|node| node.u64().unwrap_or(0) > 0) {
        notes.guard(&node, "not supported: tokens may be valid for longer");
    }
    Auth::new(context, config, notes, (0..count).map(alternative).collect())
}

pub(super) fn hmac_auth(
    context: &Context<'_>,
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> Auth {
    notes.behaviour(node, "clients must sign as for APISIX: the field is `Authorization: Signature keyId=…`, and the signed text differs");
    let mut value = json!({"clock_skew": config.u64("clock_skew").filter(|skew| *skew > 0).unwrap_or(300)});
    let algorithms: Vec<String> = config.texts("algorithms");
    let (known, unknown): (Vec<String>, Vec<String>) = algorithms
        .into_iter()
        .partition(|name| ["hmac-sha1", "hmac-sha256", "hmac-sha512"].contains(&name.as_str()));
    if let (Some(part), false) = (config.get("algorithms"), unknown.is_empty()) {
        notes.behaviour(&part, format!("not supported: {}", unknown.join(", ")));
    }
    if !known.is_empty() {
        value["allowed_algorithms"] = json!(known);
    }
    let signed = config.texts("enforce_headers").into_iter().map(|name| match name.as_str() {
        "request-line" => "@request-target".to_owned(),
        _ => name,
    });
    let signed: Vec<String> = signed.filter(|name| (1..=50).contains(&name.len())).collect();
    if !signed.is_empty() {
        value["signed_headers"] = json!(signed);
    }
    if config.bool("validate_request_body", false) {
        value["validate_request_body"] = json!(true);
    }
    Auth::new(context, config, notes, vec![("hmac-auth", value)])
}
