//! Global CORS as the plugin cors of each route.

use serde_json::{Map, Value, json};

use super::path::{self, Anchor, Pattern, Rules};
use super::report::Report;
use super::settings::Item;
use super::{regexes, units};
use crate::finding::Severity;

/// The configurations by path pattern, in the order of the file.
#[derive(Default)]
pub struct Cors {
    configurations: Vec<(Pattern, Value)>,
}

impl Cors {
    /// Reads `globalcors`.
    pub fn read(item: Option<Item<'_>>, report: &mut Report) -> Cors {
        let mut cors = Cors::default();
        let Some(item) = item else { return cors };
        if item.get("enabled").and_then(|item| item.bool()) == Some(false) {
            item.whole();
            return cors;
        }
        if let Some(mapped) = item.get("add-to-simple-url-handler-mapping") {
            // Preflights are answered on each route here, as with `true`.
            mapped.bool();
        }
        let Some(configurations) = item.any(&["cors-configurations", "corsConfigurations"]) else {
            return cors;
        };
        for (name, configuration) in configurations.members() {
            let text = if name.starts_with('/') { name.to_owned() } else { format!("/{name}") };
            let Some(pattern) = path::compile(&text, Rules { trailing_slash: true, ant: false }) else {
                continue;
            };
            cors.configurations.push((pattern, plugin(&configuration, report)));
        }
        cors
    }

    pub fn is_empty(&self) -> bool {
        self.configurations.is_empty()
    }

    /// The plugin of a route with these paths.
    pub fn plugin(&self, anchors: &[Anchor]) -> Result<Option<Value>, Several> {
        let covers = |pattern: &Pattern, anchor: &Anchor| {
            pattern.exact && pattern.anchors.iter().any(|one| one == anchor || one.contains(anchor))
        };
        let overlaps = |pattern: &Pattern, anchor: &Anchor| {
            let near = |one: &Anchor| one == anchor || one.contains(anchor) || anchor.contains(one);
            pattern.anchors.iter().any(near)
        };
        let mut found: Option<Value> = None;
        for (pattern, plugin) in &self.configurations {
            if !anchors.iter().any(|anchor| overlaps(pattern, anchor)) {
                continue;
            }
            let whole = anchors.iter().all(|anchor| covers(pattern, anchor));
            if found.is_some() {
                return Err(Several);
            }
            let mut plugin = plugin.clone();
            if !whole {
                add_filter(&mut plugin, json!(["uri", "~~", pattern.regex]));
            }
            found = Some(plugin);
            if whole {
                break;
            }
        }
        Ok(found)
    }
}

/// More than one configuration may apply to a route.
#[derive(Debug, PartialEq, Eq)]
pub struct Several;

fn add_filter(plugin: &mut Value, condition: Value) {
    if let Some(Value::Array(filter)) = plugin.pointer_mut("/_meta/filter") {
        filter.push(condition);
    }
}

/// The plugin's settings for a configuration.
pub fn plugin(item: &Item<'_>, report: &mut Report) -> Value {
    let list = |name: &str| item.get(name).map(|item| item.texts()).filter(|texts| !texts.is_empty());
    let origins = list("allowed-origins");
    let patterns = list("allowed-origin-patterns");
    let credentials = item.get("allow-credentials").and_then(|item| item.bool()) == Some(true);
    let all = |texts: &[String]| texts.iter().any(|text| text == "*");
    let mut plugin = Map::new();

    let mut expressions = Vec::new();
    let mut plain = Vec::new();
    // `*` as it stands, or the origin of the request with patterns and credentials.
    let (mut is_any, mut echo) = (origins.as_deref().is_some_and(all), credentials);
    for origin in origins.iter().flatten().filter(|origin| *origin != "*") {
        let origin = origin.trim_end_matches('/');
        match origin.contains("://") && !origin.contains(',') {
            true => plain.push(origin.to_owned()),
            false => expressions.push(format!("^{}$", regexes::escape(origin))),
        }
    }
    for pattern in patterns.iter().flatten() {
        match pattern.as_str() {
            "*" => (is_any, echo) = (true, true),
            pattern => expressions.push(expression(pattern)),
        }
    }
    if is_any {
        plugin.insert("allow_origins".to_owned(), json!(if echo { "**" } else { "*" }));
    } else if !expressions.is_empty() {
        expressions.extend(plain.iter().map(|origin| format!("^{}$", regexes::escape(origin))));
        plugin.insert("allow_origins_by_regex".to_owned(), json!(expressions));
        // Without a match, no other origin is allowed.
        plugin.insert("allow_origins".to_owned(), json!("null"));
    } else if !plain.is_empty() {
        plugin.insert("allow_origins".to_owned(), json!(plain.join(",")));
    } else {
        plugin.insert("allow_origins".to_owned(), json!("null"));
    }
    let joined = |texts: Vec<String>| if all(&texts) { "**".to_owned() } else { texts.join(",") };
    let methods = list("allowed-methods").unwrap_or_else(|| vec!["GET".to_owned(), "HEAD".to_owned()]);
    plugin.insert("allow_methods".to_owned(), json!(joined(methods)));
    // Without a list, no headers beyond the simple ones are allowed.
    let headers = list("allowed-headers").map_or_else(|| "Accept".to_owned(), joined);
    plugin.insert("allow_headers".to_owned(), json!(headers));
    if let Some(exposed) = list("exposed-headers") {
        plugin.insert("expose_headers".to_owned(), json!(exposed.join(",")));
    }
    if credentials {
        plugin.insert("allow_credential".to_owned(), json!(true));
    }
    let age = item.get("max-age").and_then(|item| item.text());
    // A number is in seconds.
    let age = age.and_then(|text| text.parse::<f64>().ok().or_else(|| units::seconds(&text)));
    plugin.insert("max_age".to_owned(), json!(age.map_or(-1, |age| age as i64)));
    if item.get("allow-private-network").is_some_and(|item| item.bool() == Some(true)) {
        report.item(Severity::Behaviour, item, "`Access-Control-Allow-Private-Network` is not sent", None);
    }
    plugin.insert("preflight_headers_only".to_owned(), json!(true));
    plugin.insert("reject_other_origins".to_owned(), json!(true));
    // Requests without an origin get no headers.
    plugin.insert("_meta".to_owned(), json!({"filter": [["http_origin", "~~", "."]]}));
    plugin.into()
}

/// Responses of paths with CORS depend on these headers of requests.
pub fn vary(plugins: &mut Map<String, Value>) {
    let rewrite = plugins.entry("response-rewrite").or_insert_with(|| json!({}));
    let add = &mut rewrite["headers"]["add"];
    let vary =
        ["Vary: Origin", "Vary: Access-Control-Request-Method", "Vary: Access-Control-Request-Headers"];
    match add {
        Value::Array(list) => list.extend(vary.into_iter().map(Value::from)),
        _ => *add = json!(vary),
    }
}

/// An expression of a pattern of origins: `https://*.example.com:[8080,8081]`.
fn expression(pattern: &str) -> String {
    let (host, ports) = match pattern.strip_suffix(']').and_then(|pattern| pattern.rsplit_once(":[")) {
        Some((host, "*")) => (host, r"(?::\d+)?".to_owned()),
        Some((host, ports)) => {
            let ports: Vec<&str> = ports.split(',').map(str::trim).collect();
            (host, format!("(?::(?:{}))", ports.join("|")))
        }
        None => (pattern, String::new()),
    };
    let parts: Vec<String> = host.trim_end_matches('/').split('*').map(regexes::escape).collect();
    format!("^{}{ports}$", parts.join(".*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_patterns() {
        assert_eq!(expression("https://*.a.org"), r"^https://.*\.a\.org$");
        assert_eq!(expression("http://a.org:[*]"), r"^http://a\.org(?::\d+)?$");
        assert_eq!(expression("http://a.org:[80,81]"), r"^http://a\.org(?::(?:80|81))$");
    }
}
