//! `--to`: a gateway for one upstream, named on the command line instead of in files.
//!
//! The arguments become the text of a `config.yaml` and of an `apisix.json`, which are read, checked and compiled as
//! files of that content would be. There is no other way from an argument to the data plane.

use std::net::SocketAddr;

use anyhow::{anyhow, bail};
use control::store::{Refused, Step, Store};
use model::boot::Boot;
use model::declarative::{Declarative, Format};
use model::upstream::fault_of_host;
use model::{Diagnostic, Invalid, Key, Kind, Severity};
use serde_json::{Map, Value, json};

use crate::cli::{Files, Forward};
use crate::files::{self, Found};

/// The name of the arguments in messages.
pub const ARGUMENTS: &str = "the command line";

/// Id of the route and of the upstream.
const ID: &str = "to";

/// Schemes, and whether TLS is spoken.
const SCHEMES: [(&str, bool); 6] =
    [("http", false), ("https", true), ("h2c", false), ("h2", true), ("grpc", false), ("grpcs", true)];

/// Returns the configuration that the arguments describe.
///
/// # Errors
/// Everything wrong with the arguments.
pub fn find(files: &Files, forward: &Forward) -> Result<Found, Vec<Diagnostic>> {
    let mut wrong = Vec::new();
    if let Some(path) = &files.path {
        let invalid = Invalid::new("--to excludes a configuration")
            .hint("leave out one of them: an upstream of its own belongs into the file of resources");
        wrong.push(diagnostic(&path.display().to_string(), invalid));
    }
    let targets = read_each("--to", &forward.to, Target::read, &mut wrong);
    let listen = read_each("--listen", &forward.listen, listen, &mut wrong);
    if let Some(first) = targets.first()
        && let Some(other) = targets.iter().find(|other| other.scheme != first.scheme)
    {
        let invalid = Invalid::new("all --to must have the same scheme")
            .expected(format!("{}://", first.scheme))
            .got(format!("{}://", other.scheme));
        wrong.push(diagnostic(&format!("--to {}", other.url), invalid));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let config = config(forward, listen).to_string();
    let read = Boot::parse(ARGUMENTS, &config, &files::built_plugins(), &files::env);
    let (mut boot, warnings) =
        read.map_err(|found| found.into_iter().map(|one| of_argument(forward, one)).collect::<Vec<_>>())?;
    if !forward.domain.is_empty() && !forward.listen.is_empty() {
        // Challenges and requests both come by TLS.
        boot.listen.clear();
    }
    let data = files.data.clone().unwrap_or_else(|| {
        let folder = files::state_folder();
        // The store of a gateway without files has other resources.
        if forward.domain.is_empty() { folder } else { folder.join(ID) }
    });
    let given = Some(resources(&forward.domain, &targets).to_string());
    Ok(Found { boot, warnings, config: None, resources: None, import: None, given, data })
}

/// Writes the resources to a store that holds certificates beside them, if it does not hold them already.
///
/// # Errors
/// The store holds other resources, which would be served as well, or cannot be written.
pub async fn keep(store: &dyn Store, given: &str) -> anyhow::Result<()> {
    let read = Declarative::load(ARGUMENTS, given, Format::Json, &files::built_plugins(), &files::env);
    let items: Vec<(Key, Value)> = read
        .map_err(|found| anyhow!(found.one_line()))?
        .items
        .into_iter()
        .map(|item| (item.key, Value::clone(&item.value)))
        .collect();
    let mut steps = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Ssl) {
        let rows = store.rows(kind, "").await?.0;
        if let Some(other) = rows.iter().find(|row| !items.iter().any(|(key, _)| *key == row.key)) {
            bail!(
                "the store holds other resources ({}), which --to would serve as well\n  help: choose another folder \
                 with --data",
                other.key
            );
        }
        for (key, value) in items.iter().filter(|(key, _)| key.kind == kind) {
            if !rows.iter().any(|row| row.key == *key && row.value() == *value) {
                steps.push(Step::Put { key: key.clone(), value: value.clone(), ttl: None });
            }
        }
    }
    if steps.is_empty() {
        return Ok(());
    }
    let by = Step::By { author: String::new(), message: "sluice run --to".to_owned() };
    steps.push(by);
    let written = store.write(Box::new(move |_| Ok(steps.clone()))).await;
    written.map(drop).map_err(|refused| match refused {
        Refused::Store(error) => anyhow!(error),
        other => anyhow!(other.to_string()),
    })
}

/// A server named by `--to`.
struct Target<'a> {
    url: &'a str,
    scheme: &'static str,
    tls: bool,
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Target<'a> {
    fn read(url: &'a str) -> Result<Target<'a>, Invalid> {
        const EXPECTED: &str = "SCHEME://HOST or SCHEME://HOST:PORT, such as http://127.0.0.1:1980";
        let wrong = |reason: &str| Invalid::new(reason).expected(EXPECTED);
        let Some((scheme, rest)) = url.split_once("://") else {
            let help = format!("for a server without TLS write http://{url}");
            return Err(wrong("the URL has no scheme").hint(help));
        };
        let Some((scheme, tls)) = SCHEMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(scheme)) else {
            let known = SCHEMES.map(|(name, _)| format!("{name}://")).join(", ");
            return Err(Invalid::new("the scheme is unknown").expected(known));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, more) = rest.split_at(end);
        if !matches!(more, "" | "/") {
            let part = if more.starts_with('/') { "a path" } else { "a query or fragment" };
            let help =
                "write only the server; to change paths, use the plugin proxy-rewrite in an apisix.yaml";
            return Err(wrong(&format!("the URL has {part}, but requests keep their own")).hint(help));
        }
        if authority.contains('@') {
            let help = "to send credentials, use the plugin proxy-rewrite in an apisix.yaml";
            return Err(wrong("the URL has a user or password").hint(help));
        }
        let bracketed = authority.strip_prefix('[').map(|inside| inside.split_once(']'));
        let (host, port) = match bracketed {
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, after))) => match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => return Err(wrong("the port must follow the address after a colon")),
            },
            Some(None) => return Err(wrong("the address has no closing bracket")),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let is_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
        if bracketed.is_some() && !is_v6 {
            return Err(wrong("the brackets hold no IPv6 address"));
        }
        if host.is_empty() {
            return Err(wrong("the URL has no host"));
        }
        if let Some(fault) = fault_of_host(host) {
            return Err(wrong(&fault.reason));
        }
        let port = match port.map(|port| (port, port.parse::<u16>())) {
            None => None,
            Some((text, Ok(port))) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(port)
            }
            Some(_) => return Err(wrong("the port is not a number from 1 to 65535")),
        };
        Ok(Target { url, scheme, tls: *tls, host, port })
    }
}

/// Reads one `--listen` as a value of `node_listen` or `ssl.listen`.
fn listen(address: &str) -> Result<Value, Invalid> {
    let number = |port: &str| port.parse::<u16>().ok().filter(|port| *port > 0);
    let read = match address.strip_prefix(':') {
        Some(port) => number(port).map(|port| json!({"port": port})),
        None => address
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() > 0)
            .map(|address| json!({"ip": address.ip().to_string(), "port": address.port()})),
    };
    let expected = ":8080 for all addresses of this machine, 127.0.0.1:8080 or [::1]:8080";
    read.ok_or_else(|| Invalid::new("the address cannot be listened on").expected(expected))
}

/// The `config.yaml` that the arguments stand for.
fn config(forward: &Forward, listen: Vec<Value>) -> Value {
    let mut apisix = Map::new();
    apisix.insert("enable_admin".to_owned(), false.into());
    // The terminal is the place to look at, and nothing is left behind.
    let mut config = json!({"nginx_config": {"http": {"access_log": "/dev/stdout"}}});
    if forward.domain.is_empty() {
        apisix.insert("ssl".to_owned(), json!({"enable": false}));
        if !listen.is_empty() {
            apisix.insert("node_listen".to_owned(), listen.into());
        }
        config["deployment"] = json!({"role": "data_plane", "role_data_plane": {"config_provider": "json"}});
    } else {
        let default = listen.is_empty();
        apisix.insert("node_listen".to_owned(), json!([80]));
        let secure = if default { json!([{"port": 443}]) } else { listen.into() };
        apisix.insert("ssl".to_owned(), json!({"listen": secure}));
        config["deployment"] =
            json!({"role": "traditional", "role_traditional": {"config_provider": "embedded"}});
        let mut acme = json!({
            "accept_terms": true,
            "challenge": "tls-alpn-01",
            "domains": forward.domain,
        });
        if let Some(directory) = &forward.acme_directory {
            acme["directory"] = directory.as_str().into();
        }
        config["sluice"] = json!({"acme": acme});
    }
    config["apisix"] = apisix.into();
    config
}

/// The resources that the arguments stand for.
fn resources(domains: &[String], targets: &[Target<'_>]) -> Value {
    let scheme = targets.first().map_or("http", |first| first.scheme);
    let nodes = targets.iter().map(|target| {
        let mut node = json!({"host": target.host, "weight": 1});
        if let Some(port) = target.port {
            node["port"] = port.into();
        }
        node
    });
    let mut upstream =
        json!({"id": ID, "type": "roundrobin", "scheme": scheme, "nodes": nodes.collect::<Value>()});
    if targets.iter().any(|target| target.tls) {
        upstream["tls"] = json!({"verify": true});
        // Such a server has a certificate for its own name, and often several sites.
        upstream["pass_host"] = "node".into();
    }
    let mut route = json!({"id": ID, "uri": "/*", "enable_websocket": true, "upstream_id": ID});
    if !domains.is_empty() {
        route["hosts"] = json!(domains);
        route["plugins"] = json!({"redirect": {"http_to_https": true}});
    }
    json!({"routes": [route], "upstreams": [upstream]})
}

/// A finding of the configuration as one of the argument that it comes from.
fn of_argument(forward: &Forward, found: Diagnostic) -> Diagnostic {
    let domain = found.pointer.strip_prefix("/sluice/acme/domains/").and_then(|at| at.parse::<usize>().ok());
    let domain = domain.and_then(|at| forward.domain.get(at));
    let file = match (domain, &forward.acme_directory) {
        (Some(domain), _) => format!("--domain {domain}"),
        (None, Some(url)) if found.pointer == "/sluice/acme/directory" => format!("--acme-directory {url}"),
        _ if found.pointer.starts_with("/sluice/acme/domains") => "--domain".to_owned(),
        _ if found.pointer.contains("listen") => "--listen".to_owned(),
        _ => ARGUMENTS.to_owned(),
    };
    Diagnostic { file, line: 0, column: 0, source: None, ..found }
}

/// Reads the values of an argument; adds what is wrong with them to `wrong`.
fn read_each<'a, T>(
    argument: &str,
    values: &'a [String],
    read: impl Fn(&'a str) -> Result<T, Invalid>,
    wrong: &mut Vec<Diagnostic>,
) -> Vec<T> {
    let keep = |value: &'a String| match read(value) {
        Ok(read) => Some(read),
        Err(invalid) => {
            wrong.push(diagnostic(&format!("{argument} {value}"), invalid));
            None
        }
    };
    values.iter().filter_map(keep).collect()
}

/// An error of the argument `about`.
pub fn diagnostic(about: &str, invalid: Invalid) -> Diagnostic {
    Diagnostic {
        expected: invalid.expected,
        got: invalid.got.map(Into::into),
        hint: invalid.hint,
        ..Diagnostic::new(Severity::Error, about, invalid.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(to: &[&str], listen: &[&str], domain: &[&str]) -> Forward {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
        Forward { to: owned(to), listen: owned(listen), domain: owned(domain), acme_directory: None }
    }

    fn found(forward: &Forward) -> Result<Found, Vec<Diagnostic>> {
        find(&Files { path: None, data: Some("data".into()) }, forward)
    }

    fn given(to: &[&str]) -> Value {
        serde_json::from_str(&found(&forward(to, &[], &[])).unwrap().given.unwrap()).unwrap()
    }

    #[test]
    fn servers_become_the_nodes_of_one_upstream() {
        let given = given(&["http://127.0.0.1:1980", "HTTP://web/", "http://[::1]:81"]);
        assert_eq!(
            given["upstreams"],
            json!([{"id": "to", "type": "roundrobin", "scheme": "http", "nodes": [
                {"host": "127.0.0.1", "port": 1980, "weight": 1}, {"host": "web", "weight": 1},
                {"host": "::1", "port": 81, "weight": 1},
            ]}])
        );
        assert_eq!(given["routes"][0]["uri"], "/*");
    }

    #[test]
    fn servers_behind_tls_are_verified_and_get_their_own_name() {
        for (to, scheme) in
            [("https://a.test", "https"), ("h2://a.test", "h2"), ("grpcs://a.test:8443", "grpcs")]
        {
            let upstream = &given(&[to])["upstreams"][0];
            assert_eq!(
                (&upstream["scheme"], &upstream["pass_host"]),
                (&json!(scheme), &json!("node")),
                "{to}"
            );
            assert_eq!(upstream["tls"], json!({"verify": true}), "{to}");
        }
        for to in ["h2c://a.test", "grpc://a.test", "http://a.test"] {
            let upstream = &given(&[to])["upstreams"][0];
            assert_eq!((upstream.get("tls"), upstream.get("pass_host")), (None, None), "{to}");
        }
    }

    #[test]
    fn wrong_arguments_are_named_with_the_reason() {
        for (to, reason) in [
            ("127.0.0.1:1980", "no scheme"),
            ("ftp://a", "scheme is unknown"),
            ("http://a/b", "has a path"),
            ("http://a?b", "has a query"),
            ("http://u:p@a", "user or password"),
            ("http://", "no host"),
            ("http://:80", "no host"),
            ("http://a:0", "not a number from 1"),
            ("http://a:+80", "not a number from 1"),
            ("http://a:", "not a number from 1"),
            ("http://a:99999", "not a number from 1"),
            ("http://[::1", "closing bracket"),
            ("http://[a]:80", "no IPv6 address"),
            ("http://[::1]80", "after a colon"),
            ("http://::1", "no host"),
            ("http://a b", "no host name"),
            ("http://${{HOME}}", "no host name"),
        ] {
            let wrong = found(&forward(&[to], &[], &[])).unwrap_err();
            let lines: Vec<String> = wrong.iter().map(Diagnostic::one_line).collect();
            assert!(lines.len() == 1 && lines[0].contains(reason), "{to}: {lines:?}");
            assert!(lines[0].contains(&format!("--to {to}")) && lines[0].contains("expected"), "{lines:?}");
        }
        for listen in ["8080", ":0", ":x", "127.0.0.1", "localhost:80", "[::]"] {
            let wrong = found(&forward(&["http://a"], &[listen], &[])).unwrap_err();
            assert!(wrong[0].one_line().contains(&format!("--listen {listen}")), "{wrong:?}");
        }
        for domain in ["*.a.test", "localhost", "127.0.0.1"] {
            let wrong = found(&forward(&["http://a"], &[], &["ok.test", domain])).unwrap_err();
            assert!(wrong[0].one_line().contains(&format!("--domain {domain}")), "{wrong:?}");
        }
        let mixed = found(&forward(&["http://a", "https://b"], &[], &[])).unwrap_err();
        assert!(mixed[0].one_line().contains("--to https://b"), "{mixed:?}");
    }

    #[test]
    fn ports_depend_on_domains() {
        let ports = |listen: &[&str], domain: &[&str]| {
            let boot = found(&forward(&["http://a"], listen, domain)).unwrap().boot;
            let shown = |all: &[model::boot::Listen]| {
                all.iter()
                    .filter(|one| !one.optional)
                    .map(|one| one.address.to_string())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            assert!(!boot.admin.enabled);
            (shown(&boot.listen), shown(&boot.tls.listen))
        };
        let text = |http: &str, https: &str| (http.to_owned(), https.to_owned());
        assert_eq!(ports(&[], &[]), text("0.0.0.0:9080", ""));
        assert_eq!(
            ports(&[":81", "127.0.0.1:82", "[::1]:83"], &[]),
            text("0.0.0.0:81 127.0.0.1:82 [::1]:83", "")
        );
        assert_eq!(ports(&[], &["a.test"]), text("0.0.0.0:80", "0.0.0.0:443"));
        assert_eq!(ports(&["127.0.0.1:8443"], &["a.test"]), text("", "127.0.0.1:8443"));
    }
}
