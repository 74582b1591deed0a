//! Access control by Spring Security, as far as the file configures it.

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::ids::Ids;
use super::path::Anchor;
use super::report::Report;
use super::routes::Draft;
use super::settings::{Item, Settings};
use super::upstream;
use crate::Source;
use crate::finding::Severity;

/// Settings of libraries that protect routes, whose rules are Java code or are not carried over.
const LIBRARIES: &[(&str, &str)] = &[
    ("keycloak", "Keycloak's adapter protects the routes, which is not carried over"),
    ("sa-token", "Sa-Token may protect the routes, which is not carried over"),
    ("shiro", "Shiro may protect the routes, which is not carried over"),
    ("spring.cloud.sentinel", "Sentinel may limit requests, which is not carried over"),
    ("bucket4j", "limits of Bucket4j are not carried over"),
    ("security.oauth2.resource", "tokens of OAuth 2 are not verified"),
    ("security.oauth2.client", "no login by OAuth 2 takes place"),
    ("security.user", "the user's password is not checked"),
];

const PROTECT: &str =
    "protect the routes by a plugin such as jwt-auth, key-auth or forward-auth, then accept this finding";

/// Plugins of all routes.
pub fn plugins(settings: &Settings<'_>, source: &Source<'_>, report: &mut Report) -> Map<String, Value> {
    let mut plugins = Map::new();
    let guard = |report: &mut Report, item: &Item<'_>, effect: &str| {
        item.whole();
        report.item(Severity::Guard, item, effect, Some(PROTECT));
    };
    for (key, effect) in LIBRARIES {
        if let Some(item) = settings.get(key) {
            guard(report, &item, effect);
        }
    }
    // Of Spring Boot 1.
    if let Some(basic) = settings.get("security.basic") {
        match basic.get("enabled").and_then(|enabled| enabled.bool()) {
            Some(false) => basic.whole(),
            _ => guard(report, &basic, "no user is checked by HTTP Basic"),
        }
    }
    let Some(security) = settings.get("spring.security") else { return plugins };
    if let Some(client) = security.get("oauth2.client") {
        guard(report, &client, "no login by OAuth 2 takes place, and no token is sent to upstreams");
    }
    if let Some(token) =
        security.any(&["oauth2.resourceserver.opaquetoken", "oauth2.resourceserver.opaque-token"])
    {
        guard(report, &token, "tokens are not verified by introspection");
    }
    if let Some(jwt) = security.get("oauth2.resourceserver.jwt") {
        match local_key(&jwt, source) {
            None if let Some(settings) = server_keys(&jwt) => {
                plugins.insert("jwks-auth".to_owned(), settings);
                tokens(&jwt, "each route needs a token that these keys verify", report);
            }
            Some((issuer, key, algorithm)) => {
                let consumer = json!({
                    "username": "spring_security",
                    "plugins": {"jwt-auth": {"key": issuer, "public_key": key, "algorithm": algorithm}},
                });
                report.resource(Key::new(Kind::Consumer, "spring_security"), consumer, jwt.place());
                plugins.insert("jwt-auth".to_owned(), json!({"key_claim_name": "iss"}));
                tokens(&jwt, "each route needs a token of this issuer", report);
            }
            None => {
                let effect = "tokens are not verified: a local key needs an `issuer-uri` beside it, and is not one of several \
                              audiences or algorithms";
                guard(report, &jwt, effect);
            }
        }
    }
    if let Some(user) = security.get("user") {
        let text = |name: &str| user.get(name).and_then(|item| item.some());
        let name = text("name").unwrap_or_else(|| "user".to_owned());
        match text("password").filter(|password| !password.starts_with('{') || password.starts_with("{noop}"))
        {
            Some(password) if plugins.is_empty() => {
                let password = password.strip_prefix("{noop}").unwrap_or(&password);
                let consumer = json!({
                    "username": "spring_security",
                    "plugins": {"basic-auth": {"username": name, "password": password}},
                });
                report.resource(Key::new(Kind::Consumer, "spring_security"), consumer, user.place());
                plugins.insert("basic-auth".to_owned(), json!({"realm": REALM}));
                user.whole();
                let effect = "each route needs this user and password by HTTP Basic; there is no login page";
                report.item(Severity::Behaviour, &user, effect, None);
            }
            _ => guard(report, &user, "the user's password is not readable, so no user is checked"),
        }
    }
    plugins
}

/// The realm of Spring Security for users by HTTP Basic; tokens have no realm.
const REALM: &str = "Realm";

/// The plugins among those of all routes that let clients in.
const AUTHENTICATION: [&str; 3] = ["jwks-auth", "jwt-auth", "basic-auth"];

/// Whether all routes need a token or a user.
pub fn is_closed(plugins: &Map<String, Value>) -> bool {
    AUTHENTICATION.iter().any(|name| plugins.contains_key(*name))
}

/// The route behind all others: who may not in, does not learn which paths there are.
pub fn last(plugins: &Map<String, Value>, ids: &mut Ids, report: &Report) -> Draft {
    let mut own: Map<String, Value> = plugins.clone();
    own.retain(|name, _| AUTHENTICATION.contains(&name.as_str()));
    let answer = json!({"response_status": 404, "response_example": "", "with_mock_header": false});
    own.insert("mocking".to_owned(), answer);
    Draft {
        key: Key::new(Kind::Route, ids.take("no-route")),
        place: report.place(),
        order: i64::MAX,
        anchors: vec![Anchor::Prefix("/".to_owned())],
        body: Map::from_iter([("plugins".to_owned(), own.into())]),
        upstream: upstream::no_nodes(),
        weight: None,
    }
}

/// Paths that Spring Security refuses: with empty segments and those of dots, `;`, `\\`, encoded signs and line ends.
const STRANGE: &str = r"^[^?]*(?://|;|\\|/\.{1,2}(?:/|\?|$)|%(?:2[eEfF5]|3[bB]|5[cC]|0[0aAdD]))";

/// Rules of Spring Security for all requests: 400 for strange paths, and where clients have tokens, 403 for requests that change
/// something and have neither a token nor one against CSRF.
pub fn firewall(plugins: &Map<String, Value>, report: &mut Report) {
    let strange = json!({"block_rules": [STRANGE], "rejected_code": 400});
    let rule = json!({"plugins": {"uri-blocker": strange}});
    report.resource(Key::new(Kind::GlobalRule, "security-paths"), rule, report.place());
    if ["jwks-auth", "jwt-auth"].iter().any(|name| plugins.contains_key(*name)) {
        let vars = json!([[
            ["request_method", "!", "in", ["GET", "HEAD", "OPTIONS", "TRACE"]],
            ["http_authorization", "!", "~*", "^bearer"],
            ["request_uri", "!", "~~", STRANGE],
        ]]);
        let rule = json!({"plugins": {"fault-injection": {"abort": {"http_status": 403, "vars": vars}}}});
        report.resource(Key::new(Kind::GlobalRule, "security-csrf"), rule, report.place());
    }
}

/// The findings about tokens that are verified.
fn tokens(jwt: &Item<'_>, effect: &str, report: &mut Report) {
    jwt.whole();
    let effect = format!(
        "{effect}: paths that Java code permits without one are refused, and requests that change something without one get \
         403, as with the protection against CSRF that it may turn off"
    );
    report.item(Severity::Behaviour, jwt, effect, None);
    let hint = "accept this finding if the application requires no more than a valid token; otherwise protect the routes \
                that need a scope or a role by a plugin";
    let effect = "scopes and roles that Java code requires are not checked";
    report.item(Severity::Guard, jwt, effect, Some(hint));
}

/// The headers that Spring Security adds to responses.
const HEADERS: [(&str, &str); 7] = [
    ("Cache-Control", "no-cache, no-store, max-age=0, must-revalidate"),
    ("Pragma", "no-cache"),
    ("Expires", "0"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("X-XSS-Protection", "0"),
    ("Referrer-Policy", "no-referrer"),
];

/// Adds the headers of Spring Security to all responses that have none of them.
pub fn headers(settings: &Settings<'_>, report: &mut Report) {
    if settings.get("spring.security").is_none() {
        return;
    }
    let names: Vec<&str> = HEADERS.iter().map(|(name, _)| *name).collect();
    let effect = format!(
        "responses that have none of the headers of Spring Security get them ({}), and paths that are not in their normal form \
         400, as in versions from 6.4 on",
        names.join(", ")
    );
    report.find(Severity::Behaviour, report.place(), "spring.security", effect);
    let absent = |name: &str| {
        json!([format!("sent_http_{}", name.to_ascii_lowercase().replace('-', "_")), "!", "~~", "."])
    };
    let mut vars: Vec<Value> = names.into_iter().map(absent).collect();
    // The gateway's own 400 is that of `firewall`, which Spring Security sends without them.
    vars.push(json!(["OR", ["status", "!", "in", ["400"]], ["upstream_status", "~~", "."]]));
    let set: Map<String, Value> =
        HEADERS.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let rule = json!({"plugins": {"response-rewrite": {"headers": {"set": set}, "vars": vars}}});
    report.resource(Key::new(Kind::GlobalRule, "security-headers"), rule, report.place());
}

/// The issuer, the key and the algorithm of tokens that a key in a file verifies.
fn local_key(jwt: &Item<'_>, source: &Source<'_>) -> Option<(String, String, String)> {
    if jwt.get("jwk-set-uri").is_some() || jwt.get("audiences").is_some() {
        return None;
    }
    let location = jwt.get("public-key-location")?.some()?;
    let issuer = jwt.get("issuer-uri")?.some()?;
    let key = read(&location, source)?;
    let algorithms =
        jwt.any(&["jws-algorithms", "jws-algorithm"]).map(|item| item.texts()).unwrap_or_default();
    let algorithm = match algorithms.as_slice() {
        [] => "RS256".to_owned(),
        [one] => one.clone(),
        _ => return None,
    };
    Some((issuer, key, algorithm))
}

/// The settings of jwks-auth for tokens that the keys of a server verify.
fn server_keys(jwt: &Item<'_>) -> Option<Value> {
    if jwt.get("public-key-location").is_some() {
        return None;
    }
    let text = |name: &str| jwt.get(name).and_then(|item| item.some());
    let (keys, issuer) = (text("jwk-set-uri"), text("issuer-uri"));
    let mut settings = match (keys, &issuer) {
        (Some(keys), _) if is_url(&keys) => json!({"jwks_uri": keys, "realm": ""}),
        (None, Some(issuer)) if is_url(issuer) => {
            let metadata = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
            json!({"discovery": metadata, "realm": ""})
        }
        _ => return None,
    };
    if let Some(issuer) = issuer {
        settings["issuer"] = json!(issuer);
    }
    let audiences = jwt.get("audiences").map(|item| item.texts()).unwrap_or_default();
    if !audiences.is_empty() {
        settings["audiences"] = json!(audiences);
    }
    Some(settings)
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// The text of a file by its location: `classpath:key.pem`, `file:./key.pem`. PEM itself is its own text.
pub fn read(location: &str, source: &Source<'_>) -> Option<String> {
    if location.starts_with("-----BEGIN ") {
        return Some(location.to_owned());
    }
    let path = location.strip_prefix("classpath:").map(|path| path.trim_start_matches('/'));
    let path = path.or_else(|| location.strip_prefix("file:")).unwrap_or(location);
    let path = path.strip_prefix("./").unwrap_or(path);
    source.files.read(path).ok().filter(|text| text.contains("-----BEGIN "))
}
