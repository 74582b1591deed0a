//! Plugins that admit, refuse or answer requests.

use serde_json::{Value, json};

use super::super::entities::Entity;
use super::super::paths::escape;
use super::Notes;
use super::convert::Context;
use crate::node::Node;

pub(super) fn acl(
    context: &Context<'_>,
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> (&'static str, Value) {
    let list = |names: [&str; 2]| names.iter().flat_map(|name| config.texts(name)).collect::<Vec<String>>();
    let (allow, deny) = (list(["allow", "whitelist"]), list(["deny", "blacklist"]));
    for name in ["always_use_authenticated_groups", "include_consumer_groups"] {
        if config.bool(name, false)
            && let Some(part) = config.get(name)
        {
            notes.guard(&part, "not supported: groups of the file alone are known");
        }
    }
    if !config.bool("hide_groups_header", false) {
        notes.behaviour(node, "upstreams do not get `X-Consumer-Groups`");
    }
    let mut value = json!({"rejected_code": 403, "rejected_msg": "You cannot consume this service"});
    // The name of no consumer stands for an empty list.
    let names = |members: Vec<&String>| if members.is_empty() { json!(["."]) } else { json!(members) };
    let (list, groups) = if allow.is_empty() { ("blacklist", deny) } else { ("whitelist", allow) };
    match context.members(&groups) {
        Some(members) => value[list] = names(members),
        None => {
            value["whitelist"] = names(Vec::new());
            let effect = format!(
                "refuses all consumers: the lists of all instances have more than {} names together",
                super::convert::MAX_NAMES
            );
            notes.guard(node, effect);
        }
    }
    ("consumer-restriction", value)
}

pub(super) fn ip_restriction(
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> Option<(&'static str, Value)> {
    let list = |names: [&str; 2]| names.iter().flat_map(|name| config.texts(name)).collect::<Vec<String>>();
    let (allow, deny) = (list(["allow", "whitelist"]), list(["deny", "blacklist"]));
    let code = config.u64("status");
    let message = config.text("message").filter(|text| (1..=1024).contains(&text.len()));
    let mut value = json!({});
    if let Some(message) = message {
        value["message"] = json!(message);
    }
    match code {
        None | Some(403) => {}
        Some(404) => value["response_code"] = json!(404),
        Some(_) => notes.0.extend(
            config
                .get("status")
                .map(|part| super::finding(crate::Severity::Behaviour, &part, "refused clients get 403")),
        ),
    }
    match (allow.is_empty(), deny.is_empty()) {
        (true, true) => {
            notes.cosmetic(node, "has neither `allow` nor `deny`");
            return None;
        }
        (true, false) => value["blacklist"] = json!(deny),
        (false, true) => value["whitelist"] = json!(allow),
        (false, false) => {
            value["whitelist"] = json!(allow);
            value["except"] = json!(deny);
        }
    }
    Some(("ip-restriction", value))
}

/// The names that Kong takes for programs, shortened to what decides: a list of the User-Agents of
/// crawlers and of HTTP libraries.
const BOTS: &str = r"(?:[Bb]ot|[Ss]pider|[Cc]rawl|[Aa]rchiver|[Ii]ndexer|[Ss]craper)[^/ ]{0,30}[/ ]v?\d|bingbot|Googlebot|Slurp|facebookexternalhit/\d|Twitterbot|ia_archiver|heritrix|(?:Google-HTTP-Java-Client|Apache-HttpClient|Go-http-client|scalaj-http|Python-urllib|HttpMonitor|TLSProber|WinHTTP|okhttp|reqwest|axios)";

pub(super) fn bot_detection(config: &Entity<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let list = |names: [&str; 2]| names.iter().flat_map(|name| config.texts(name)).collect::<Vec<String>>();
    let (allow, mut deny) = (list(["allow", "whitelist"]), list(["deny", "blacklist"]));
    notes.behaviour(&config.node, "the built-in list of bots is shorter than Kong's");
    deny.push(BOTS.to_owned());
    if !allow.is_empty() {
        deny = vec![format!("^(?!.*(?:{})).*(?:{})", allow.join("|"), deny.join("|"))];
    }
    ("ua-restriction", json!({"denylist": deny, "bypass_missing": true, "message": "Forbidden"}))
}

pub(super) fn cors(config: &Entity<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let origins = config.texts("origins");
    let credentials = config.bool("credentials", false);
    let list = |name: &str| config.texts(name);
    let (methods, headers, exposed) = (list("methods"), list("headers"), list("exposed_headers"));
    // A star beside credentials must be written twice.
    let join = |list: &[String]| match list {
        [star] if star == "*" && credentials => "**".to_owned(),
        list => list.join(","),
    };
    let mut value = json!({
        "allow_methods": match methods.is_empty() {
            true => "GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS,TRACE,CONNECT".to_owned(),
            false => join(&methods),
        },
        "allow_headers": if headers.is_empty() { "**".to_owned() } else { join(&headers) },
    });
    let is_plain =
        |origin: &String| origin.bytes().all(|b| b.is_ascii_alphanumeric() || b".:/-".contains(&b));
    if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        value["allow_origins"] = json!(if credentials { "**" } else { "*" });
    } else if origins.iter().all(|origin| is_plain(origin) && origin.contains("://")) {
        let origins: Vec<&str> = origins.iter().map(|origin| origin.trim_end_matches('/')).collect();
        value["allow_origins"] = json!(origins.join(","));
    } else {
        let pattern = |origin: &String| {
            let inner = match is_plain(origin) {
                true => escape(origin),
                false => origin.trim_start_matches('^').trim_end_matches('$').to_owned(),
            };
            match origin.contains(':') {
                true => format!("^(?:{inner})$"),
                false => format!(r"^\w+://(?:{inner})(?::\d+)?$"),
            }
        };
        let mut patterns: Vec<String> = origins.iter().map(pattern).collect();
        patterns.dedup();
        value["allow_origins_by_regex"] = json!(patterns);
        // Not used beside patterns, but its default may not stand beside credentials.
        value["allow_origins"] = json!("null");
    }
    if !exposed.is_empty() {
        value["expose_headers"] = json!(exposed.join(","));
    }
    if let Some(seconds) = config.get("max_age").and_then(|node| node.f64()) {
        value["max_age"] = json!(seconds as i64);
    }
    if credentials {
        value["allow_credential"] = json!(true);
    }
    for name in ["private_network"] {
        if config.bool(name, false)
            && let Some(part) = config.get(name)
        {
            notes.behaviour(&part, "`Access-Control-Allow-Private-Network` is not sent");
        }
    }
    config.get("allow_origin_absent").map(|part| part.whole());
    // Other requests of this method go to the upstream, as in Kong.
    value["_meta"]["filter"] = match config.bool("preflight_continue", false) {
        true => json!([["request_method", "~=", "OPTIONS"]]),
        false => json!([
            "OR",
            ["request_method", "~=", "OPTIONS"],
            ["AND", ["http_origin", "~~", "."], ["http_access_control_request_method", "~~", "."]],
        ]),
    };
    ("cors", value)
}

pub(super) fn termination(config: &Entity<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let status = config.u64("status_code").filter(|status| (100..600).contains(status)).unwrap_or(503);
    let (message, body) = (config.text("message"), config.text("body"));
    let kind = config.text("content_type");
    if config.bool("echo", false)
        && let Some(part) = config.get("echo")
    {
        notes.behaviour(&part, "not supported: the answer does not repeat the request");
    }
    let json_type = "application/json; charset=utf-8";
    let mut value = match body {
        Some(body) => answer(status, &body, kind.as_deref().unwrap_or(json_type)),
        None => {
            let message = message.or_else(|| default_message(status).map(str::to_owned));
            let body = message.map(|message| json!({ "message": message }).to_string()).unwrap_or_default();
            answer(status, &body, json_type)
        }
    };
    if let Some(name) = config.text("trigger") {
        let header = format!("http_{}", name.to_ascii_lowercase().replace('-', "_"));
        let argument = format!("arg_{name}");
        value["_meta"]["filter"] = json!(["OR", [header, "~=", null], [argument, "~=", null]]);
    }
    ("mocking", value)
}

/// An answer in the upstream's place, after all plugins that may refuse the request.
pub(super) fn answer(status: u64, body: &str, content_type: &str) -> Value {
    json!({
        "response_status": status,
        "response_example": body,
        "content_type": content_type,
        "with_mock_header": false,
        "_meta": {"priority": 2},
    })
}

fn default_message(status: u64) -> Option<&'static str> {
    Some(match status {
        401 => "Unauthorized",
        404 => "Not found",
        405 => "Method not allowed",
        500 => "An unexpected error occurred",
        502 => "Bad Gateway",
        503 => "Service unavailable",
        _ => return None,
    })
}
