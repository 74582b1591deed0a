//! The format of a file, recognised by its content.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// A format that can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    Kong,
    Envoy,
    Nginx,
    SpringCloudGateway,
    Zuul,
}

/// The kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recognised {
    /// Resources of this gateway: `apisix.yaml` or `apisix.json`.
    Apisix,
    /// Another gateway's.
    Format(Format),
    /// Another program's, whose name this is, which cannot be imported.
    Unsupported(&'static str),
    /// None of them: the top-level keys, if it has any.
    Unknown(Vec<String>),
}

impl Format {
    pub const ALL: [Format; 5] =
        [Format::Kong, Format::Envoy, Format::Nginx, Format::SpringCloudGateway, Format::Zuul];

    /// As on the command line: `kong`, `envoy`, `nginx`, `scg`, `zuul`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Kong => "kong",
            Format::Envoy => "envoy",
            Format::Nginx => "nginx",
            Format::SpringCloudGateway => "scg",
            Format::Zuul => "zuul",
        }
    }

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Format::Kong => "Kong",
            Format::Envoy => "Envoy",
            Format::Nginx => "nginx",
            Format::SpringCloudGateway => "Spring Cloud Gateway",
            Format::Zuul => "Zuul",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Sections of `apisix.yaml`.
const APISIX: &[&str] = &[
    "routes",
    "services",
    "upstreams",
    "consumers",
    "credentials",
    "consumer_groups",
    "global_rules",
    "plugin_configs",
    "plugin_metadata",
    "ssls",
    "stream_routes",
    "secrets",
    "protos",
    "plugins",
    "stream_plugins",
];

/// Recognises a file by its content, and by the end of its name where the content leaves a choice.
/// A file that YAML cannot read may still be recognised, so that its error is reported by the right importer.
pub fn recognise(name: &str, text: &str) -> Recognised {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    if name.ends_with(".properties") {
        return match text.contains("zuul.routes.") {
            true => Recognised::Format(Format::Zuul),
            false => Recognised::Format(Format::SpringCloudGateway),
        };
    }
    if let Some(other) = by_statements(name, text) {
        return other;
    }
    let keys = top_keys(text);
    let has = |name: &str| keys.iter().any(|key| key == name);
    let prefixed = |prefix: &str| keys.iter().any(|key| key.starts_with(prefix));
    let format = if prefixed("_format_version") || has("_konnect") || has("_transform") {
        Format::Kong
    } else if has("static_resources") || has("dynamic_resources") {
        Format::Envoy
    } else if has("zuul") || prefixed("zuul.") {
        Format::Zuul
    } else if has("spring") || prefixed("spring.") {
        Format::SpringCloudGateway
    } else if has("entryPoints")
        || has("providers") && has("api")
        || (has("http") || has("tcp")) && text.contains("routers:")
    {
        return Recognised::Unsupported("Traefik");
    } else if has("apiVersion") && has("kind") {
        return Recognised::Unsupported("Kubernetes");
    } else if has("openapi") || has("swagger") {
        return Recognised::Unsupported("OpenAPI");
    } else if has("services") && looks_like_compose(text) {
        return Recognised::Unsupported("Docker Compose");
    } else if keys.iter().any(|key| APISIX.contains(&key.as_str())) {
        return match (has("services") || has("routes")) && looks_like_kong(text) {
            true => Recognised::Format(Format::Kong),
            false => Recognised::Apisix,
        };
    } else {
        return Recognised::Unknown(keys);
    };
    Recognised::Format(format)
}

/// Fields of Kong's services and routes that APISIX does not have.
fn looks_like_kong(text: &str) -> bool {
    let kong = ["strip_path:", "\"strip_path\"", "preserve_host:", "keyauth_credentials:", "jwt_secrets:"];
    kong.iter().any(|field| text.contains(field))
}

/// Containers, which APISIX and Kong do not have.
fn looks_like_compose(text: &str) -> bool {
    let lines = || text.lines().map(str::trim_start);
    lines().any(|line| line.starts_with("image:") || line.starts_with("build:"))
        && !lines().any(|line| line.starts_with("routes:"))
}

/// Formats of statements instead of keys: nginx, HAProxy, Caddy.
fn by_statements(name: &str, text: &str) -> Option<Recognised> {
    let lines =
        || text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'));
    // A file of YAML may have statements of other programs within its texts.
    if lines().next().is_some_and(|line| line.starts_with("---") || begins_with_key(line)) {
        return None;
    }
    let mut haproxy = 0;
    for line in lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let opens = line.trim_end().ends_with('{') || line.contains("{ ");
        let ends = line.contains(';');
        match first {
            "server" | "http" | "events" | "stream" | "upstream" | "location" | "map" | "geo" if opens => {
                return Some(Recognised::Format(Format::Nginx));
            }
            "worker_processes" | "user" | "include" | "load_module" | "error_log" | "pid" | "listen"
            | "log_format" | "limit_req_zone" | "proxy_cache_path" | "server" | "proxy_pass"
                if ends && !first.ends_with(':') =>
            {
                return Some(Recognised::Format(Format::Nginx));
            }
            "frontend" | "backend" | "defaults" | "global" | "listen"
                if !line.contains(':') || !second.is_empty() =>
            {
                haproxy += 1;
                if haproxy >= 2 {
                    return Some(Recognised::Unsupported("HAProxy"));
                }
            }
            _ => {}
        }
    }
    let caddy = name.ends_with("Caddyfile") || (text.contains("reverse_proxy ") && text.contains('{'));
    if caddy && !text.contains(';') {
        return Some(Recognised::Unsupported("Caddy"));
    }
    None
}

/// Whether a line is `key:` or `key: value`.
fn begins_with_key(line: &str) -> bool {
    let in_key = |c: char| c.is_ascii_alphanumeric() || "_.-\"'".contains(c);
    let after = line.trim_start_matches(in_key);
    after.len() < line.len()
        && after.strip_prefix(':').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// The keys at the top of a text of YAML or JSON, even if it does not parse as a whole.
fn top_keys(text: &str) -> Vec<String> {
    if text.trim_start().starts_with('{') {
        // Values are passed over: the file may be large.
        let keys = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text);
        return keys.map_or_else(|_| Vec::new(), |map| map.into_keys().collect());
    }
    let key = |line: &str| {
        let (key, _) = line.split_once(':')?;
        let plain = !key.is_empty() && !key.starts_with([' ', '\t', '#', '-', '%']);
        plain.then(|| key.trim().trim_matches(['"', '\'']).to_owned())
    };
    text.lines().filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_their_content() {
        let format = Recognised::Format;
        for (name, text, expected) in [
            ("a.yml", "_format_version: \"3.0\"\nservices: []\n", format(Format::Kong)),
            ("a.yml", "services:\n- name: a\n  routes:\n  - strip_path: true\n", format(Format::Kong)),
            ("a.yaml", "admin: {}\nstatic_resources:\n  listeners: []\n", format(Format::Envoy)),
            ("a.json", "{\"static_resources\": {}}", format(Format::Envoy)),
            ("a.conf", "# a comment\nserver {\n  listen 80;\n}\n", format(Format::Nginx)),
            ("nginx.conf", "worker_processes 1;\nevents {}\n", format(Format::Nginx)),
            ("application.yml", "spring:\n  cloud: {}\n", format(Format::SpringCloudGateway)),
            (
                "application.properties",
                "spring.cloud.gateway.routes[0].id=a\n",
                format(Format::SpringCloudGateway),
            ),
            ("application.yml", "zuul:\n  routes: {}\n", format(Format::Zuul)),
            ("haproxy.cfg", "global\n  daemon\ndefaults\n  mode http\n", Recognised::Unsupported("HAProxy")),
            (
                "Caddyfile",
                "example.com {\n  reverse_proxy localhost:1\n}\n",
                Recognised::Unsupported("Caddy"),
            ),
            ("traefik.yml", "entryPoints:\n  web: {}\n", Recognised::Unsupported("Traefik")),
            ("x.yaml", "apiVersion: v1\nkind: Service\n", Recognised::Unsupported("Kubernetes")),
            ("x.yaml", "openapi: 3.0.0\npaths: {}\n", Recognised::Unsupported("OpenAPI")),
            (
                "x.yml",
                "services:\n  web:\n    image: nginx\n    ports: []\n",
                Recognised::Unsupported("Docker Compose"),
            ),
            ("apisix.yaml", "routes:\n- uri: /\n#END\n", Recognised::Apisix),
            (
                "x.yaml",
                "apiVersion: v1\nkind: ConfigMap\ndata:\n  nginx.conf: |\n    server {\n      listen 80;\n    }\n",
                Recognised::Unsupported("Kubernetes"),
            ),
            (
                "kong.yml",
                "# exported\n_format_version: '3.0'\nservices:\n- name: a\n  plugins: [|\n    http {\n    }\n  ]\n",
                format(Format::Kong),
            ),
            ("Caddyfile", "localhost:8080 {\n  reverse_proxy a:1\n}\n", Recognised::Unsupported("Caddy")),
            ("a.conf", "log_format main '$remote_addr: '\n '$status';\nserver {\n}\n", format(Format::Nginx)),
            ("x.yaml", "colour: blue\nsize: 2\n", Recognised::Unknown(vec!["colour".into(), "size".into()])),
            ("x", "", Recognised::Unknown(Vec::new())),
        ] {
            assert_eq!(recognise(name, text), expected, "{name}: {text}");
        }
    }

    #[test]
    fn formats_have_names() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()), Some(format));
            assert!(!format.title().is_empty());
        }
        assert_eq!(Format::from_name("caddy"), None);
    }
}
