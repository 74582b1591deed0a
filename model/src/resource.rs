//! One resource of any kind, checked and typed.
//!
//! [`Resource::parse`] is the only door from stored JSON to typed values. It
//! knows APISIX's schemas and the rules beyond them that need no other resource;
//! whether a referenced id exists, and whether a plugin's configuration fits,
//! is for those who hold the other resources and the plugins.

use serde_json::{Map, Value};

use crate::consumer::Consumer;
use crate::consumer_group::ConsumerGroup;
use crate::cost_decoration::CostDecoration;
use crate::credential::Credential;
use crate::field::{Plugins, id_text, typed};
use crate::global_rule::GlobalRule;
use crate::plugin_config::PluginConfig;
use crate::plugin_metadata::PluginMetadata;
use crate::proto::Proto;
use crate::route::{self, Route};
use crate::script::Script;
use crate::secret::Secret;
use crate::service::Service;
use crate::ssl::{self, Ssl};
use crate::stream_route::StreamRoute;
use crate::upstream::Upstream;
use crate::{Invalid, Key, Kind, Schema, gaps, schema};

/// A checked resource. Boxed, for most are much larger than others.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    Route(Box<Route>),
    Service(Box<Service>),
    Upstream(Box<Upstream>),
    Consumer(Box<Consumer>),
    Credential(Box<Credential>),
    ConsumerGroup(Box<ConsumerGroup>),
    GlobalRule(Box<GlobalRule>),
    PluginConfig(Box<PluginConfig>),
    PluginMetadata(Box<PluginMetadata>),
    Ssl(Box<Ssl>),
    StreamRoute(Box<StreamRoute>),
    Secret(Box<Secret>),
    Proto(Box<Proto>),
    CostDecoration(Box<CostDecoration>),
    Script(Box<Script>),
}

impl Resource {
    /// Checks a stored value of `kind` under `id` and types it.
    ///
    /// `id` is the one of [`Key`]; a value that names another is refused.
    ///
    /// # Errors
    /// A feature that this version lacks ([`gaps`]); else the first mistake, worded as the Admin API of APISIX 3.x
    /// words it, with `invalid configuration: ` where APISIX says that.
    pub fn parse(kind: Kind, id: &str, value: &Value) -> Result<Resource, Invalid> {
        Resource::from_value(kind, id, value.clone())
    }

    /// [`Resource::parse`] for a value that is needed no more.
    ///
    /// # Errors
    /// As there.
    pub fn from_value(kind: Kind, id: &str, value: Value) -> Result<Resource, Invalid> {
        gaps::check(kind, &value)?;
        Resource::read(kind, id, value)
    }

    /// [`Resource::from_value`] also with features that this version lacks.
    pub(crate) fn read(kind: Kind, id: &str, mut value: Value) -> Result<Resource, Invalid> {
        let key = Key::new(kind, id);
        key.check()?;
        if kind == Kind::Route {
            route::check_pairs(&value)?;
        }
        place_id(&key, &mut value)?;
        let names = (kind == Kind::Ssl).then(|| names_of_ssl(&value)).flatten();
        let wrong_snis = if kind == Kind::Ssl { ssl::wrong_snis(&value) } else { Vec::new() };
        let read = schema_of(&key)?.parse(value);
        let mut value = read.map_err(|invalid| {
            let invalid = with_help(kind, invalid).said("invalid configuration: ");
            if let Some((_, wrong)) = wrong_snis.into_iter().find(|(at, _)| *at == invalid.pointer) {
                return Invalid { reason: invalid.reason, ..wrong.at(invalid.pointer) };
            }
            match names {
                Some(help) if invalid.reason.ends_with("then clause did not match") => invalid.hint(help),
                _ => invalid,
            }
        })?;
        if !matches!(kind, Kind::PluginMetadata | Kind::Secret) {
            settle_plugins(&mut value)?;
        }
        Ok(match kind {
            Kind::Route => Resource::Route(Box::new(Route::read(value)?)),
            Kind::Service => Resource::Service(Box::new(Service::read(value)?)),
            Kind::Upstream => Resource::Upstream(Box::new(Upstream::read(value)?)),
            Kind::Consumer => Resource::Consumer(Box::new(Consumer::read(&key, value)?)),
            Kind::Credential => Resource::Credential(Box::new(Credential::read(&key, value)?)),
            Kind::ConsumerGroup => Resource::ConsumerGroup(Box::new(typed(value)?)),
            Kind::GlobalRule => Resource::GlobalRule(Box::new(typed(value)?)),
            Kind::PluginConfig => Resource::PluginConfig(Box::new(typed(value)?)),
            Kind::PluginMetadata => Resource::PluginMetadata(Box::new(PluginMetadata::read(&key, value))),
            Kind::Ssl => Resource::Ssl(Box::new(Ssl::read(value)?)),
            Kind::StreamRoute => Resource::StreamRoute(Box::new(StreamRoute::read(value)?)),
            Kind::Secret => Resource::Secret(Box::new(Secret::read(&key, value)?)),
            Kind::Proto => Resource::Proto(Box::new(typed(value)?)),
            Kind::CostDecoration => Resource::CostDecoration(Box::new(typed(value)?)),
            Kind::Script => Resource::Script(Box::new(typed(value)?)),
        })
    }

    /// The kind this is of.
    pub fn kind(&self) -> Kind {
        match self {
            Resource::Route(_) => Kind::Route,
            Resource::Service(_) => Kind::Service,
            Resource::Upstream(_) => Kind::Upstream,
            Resource::Consumer(_) => Kind::Consumer,
            Resource::Credential(_) => Kind::Credential,
            Resource::ConsumerGroup(_) => Kind::ConsumerGroup,
            Resource::GlobalRule(_) => Kind::GlobalRule,
            Resource::PluginConfig(_) => Kind::PluginConfig,
            Resource::PluginMetadata(_) => Kind::PluginMetadata,
            Resource::Ssl(_) => Kind::Ssl,
            Resource::StreamRoute(_) => Kind::StreamRoute,
            Resource::Secret(_) => Kind::Secret,
            Resource::Proto(_) => Kind::Proto,
            Resource::CostDecoration(_) => Kind::CostDecoration,
            Resource::Script(_) => Kind::Script,
        }
    }

    /// The plugins configured on this resource; `None` for kinds that have none.
    pub fn plugins(&self) -> Option<&Plugins> {
        match self {
            Resource::Route(route) => Some(&route.plugins),
            Resource::Service(service) => Some(&service.plugins),
            Resource::Consumer(consumer) => Some(&consumer.plugins),
            Resource::Credential(credential) => Some(&credential.plugins),
            Resource::ConsumerGroup(group) => Some(&group.plugins),
            Resource::GlobalRule(rule) => Some(&rule.plugins),
            Resource::PluginConfig(config) => Some(&config.plugins),
            Resource::StreamRoute(route) => Some(&route.plugins),
            _ => None,
        }
    }

    /// The upstream written inside this resource, or this resource if it is one.
    pub fn upstream(&self) -> Option<&Upstream> {
        match self {
            Resource::Upstream(upstream) => Some(upstream),
            Resource::Route(route) => route.upstream.as_deref(),
            Resource::Service(service) => service.upstream.as_deref(),
            Resource::StreamRoute(route) => route.upstream.as_deref(),
            _ => None,
        }
    }
}

fn schema_of(key: &Key) -> Result<&'static Schema, Invalid> {
    if key.kind != Kind::Secret {
        return Ok(schema::of_kind(key.kind));
    }
    let manager = key.owner().unwrap_or_default();
    schema::of_secret(manager).ok_or_else(|| {
        Invalid::new(format!("invalid secret manager: {manager}")).expected("one of vault, aws, gcp")
    })
}

/// Gives the value its id where its kind keeps one, and refuses another's.
fn place_id(key: &Key, value: &mut Value) -> Result<(), Invalid> {
    let Value::Object(map) = value else { return Ok(()) };
    if matches!(key.kind, Kind::Consumer | Kind::PluginMetadata | Kind::Secret) {
        return Ok(());
    }
    let id = key.leaf();
    if key.kind == Kind::CostDecoration {
        place_service(key, map)?;
    }
    match map.get("id").map(id_text) {
        None => {
            map.insert("id".to_owned(), Value::from(id));
            Ok(())
        }
        Some(Some(own)) if own != id && own != key.id => Err(Invalid::new(format!("wrong {} id", key.kind))
            .at("/id")
            .expected(format!("`{id}`, as in the key"))
            .hint("leave the id out of the value, or make the two agree")),
        // An id of the wrong type is for the schema to refuse.
        Some(_) => Ok(()),
    }
}

/// Whose a decoration is says its key; a file may say it again, and names it by the whole key.
fn place_service(key: &Key, map: &mut Map<String, Value>) -> Result<(), Invalid> {
    let service = key.owner().unwrap_or_default();
    match map.get("service_id").map(id_text) {
        None => _ = map.insert("service_id".to_owned(), Value::from(service)),
        Some(Some(own)) if own != service => {
            return Err(Invalid::new("wrong service_id, it is taken from the path")
                .at("/service_id")
                .expected(format!("`{service}`, as in the key")));
        }
        Some(_) => {}
    }
    if map.get("id").and_then(Value::as_str) == Some(&key.id) {
        map.insert("id".to_owned(), Value::from(key.leaf()));
    }
    Ok(())
}

/// Gives each plugin an object; one without a configuration (`key-auth:` in YAML) gets an empty one.
fn settle_plugins(value: &mut Value) -> Result<(), Invalid> {
    let Some(Value::Object(plugins)) = value.get_mut("plugins") else { return Ok(()) };
    for (name, config) in plugins {
        match config {
            Value::Object(_) => {}
            Value::Null => *config = Value::Object(Map::new()),
            Value::Array(items) if items.is_empty() => *config = Value::Object(Map::new()),
            other => {
                // APISIX repeats the value here; it may be a secret, and this reaches logs.
                return Err(Invalid::new(format!("invalid plugin conf for plugin [{name}]"))
                    .within(name)
                    .under("/plugins")
                    .expected("object")
                    .got(schema::json_name(other)));
            }
        }
    }
    Ok(())
}

/// Returns a hint with the fields that an ssl lacks or has too many of, as the schema only reports that neither of
/// two forms fits.
fn names_of_ssl(value: &Value) -> Option<String> {
    let map = value.as_object()?;
    let lacks = |name: &&str| !map.contains_key(*name);
    let names = match ["sni", "snis"].iter().filter(|name| lacks(name)).count() {
        0 => return Some("give `sni` or `snis`, not both".to_owned()),
        1 => None,
        _ => Some("`sni` or `snis`".to_owned()),
    };
    let pair = ["cert", "key"].into_iter().filter(lacks).map(|name| format!("`{name}`"));
    let wanted: Vec<String> = pair.chain(names).collect();
    (!wanted.is_empty()).then(|| format!("give {}", wanted.join(", and ")))
}

/// Says what to do about mistakes that are often made, and that a schema only measures.
fn with_help(kind: Kind, invalid: Invalid) -> Invalid {
    let at = |name: &str| invalid.pointer.strip_prefix('/').is_some_and(|at| at.starts_with(name));
    if kind == Kind::Ssl && (at("cert") || at("key")) && invalid.reason.contains("string too short") {
        return invalid.hint(
            "this is not PEM text; write the text itself (not the path of its file), or a reference such as \
             `$env://NAME`",
        );
    }
    let nodes = at("nodes") || at("upstream/nodes");
    if nodes && invalid.expected.as_deref() == Some("object") && invalid.got.as_deref() == Some("string") {
        return invalid.hint(
            r#"write `nodes: {"host:port": weight}`, or a list of maps with `host`, `port` and `weight`"#,
        );
    }
    invalid
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn refusal(kind: Kind, id: &str, value: Value) -> Invalid {
        Resource::read(kind, id, value).unwrap_err()
    }

    fn parsed(kind: Kind, id: &str, value: Value) -> Resource {
        Resource::read(kind, id, value).unwrap()
    }

    #[test]
    fn every_kind_parses_at_its_smallest() {
        let pem = "x".repeat(128);
        let cases = [
            (Kind::Route, "1", json!({"uri": "/", "plugins": {}})),
            (Kind::Service, "1", json!({})),
            (Kind::Upstream, "1", json!({"nodes": {}})),
            (Kind::Consumer, "jack", json!({"username": "jack"})),
            (Kind::Credential, "jack/credentials/1", json!({})),
            (Kind::ConsumerGroup, "1", json!({"plugins": {}})),
            (Kind::GlobalRule, "1", json!({"plugins": {}})),
            (Kind::PluginConfig, "1", json!({"plugins": {}})),
            (Kind::PluginMetadata, "http-logger", json!({"log_format": {}})),
            (Kind::Ssl, "1", json!({"cert": pem, "key": pem, "sni": "a.com"})),
            (Kind::StreamRoute, "1", json!({})),
            (Kind::Secret, "vault/1", json!({"uri": "http://v", "prefix": "p", "token": "t"})),
            (Kind::Proto, "1", json!({"content": "x"})),
            (Kind::CostDecoration, "shop/graphql_cost_decorations/1", json!({"field_path": "Query.a"})),
            (Kind::Script, "ours", json!({"content": "return {}"})),
        ];
        for (kind, id, value) in cases {
            assert_eq!(parsed(kind, id, value).kind(), kind);
        }
    }

    #[test]
    fn help_is_for_its_own_mistake() {
        let pem = "x".repeat(128);
        for (kind, value) in [
            (Kind::Ssl, json!({"cert": pem, "key": 1, "sni": "a.com"})),
            (Kind::Ssl, json!({"cert": pem, "key": pem, "sni": "a b"})),
            (Kind::Upstream, json!({"nodes": {}, "name": ""})),
            (Kind::Upstream, json!({"nodes": {}, "key": "", "hash_on": "vars", "type": "chash"})),
            (Kind::Upstream, json!({"nodes": {"a:80": -1}})),
            (Kind::Upstream, json!({"nodes": {}, "retries": "x"})),
            (Kind::Upstream, json!({"nodes": {}, "checks": "x"})),
            (Kind::Upstream, json!({"nodes": [{"host": 1, "weight": 1}]})),
        ] {
            let hint = refusal(kind, "1", value.clone()).hint.unwrap_or_default();
            assert!(!hint.contains("PEM") && !hint.contains("host:port"), "{value}: {hint}");
        }
    }

    #[test]
    fn what_is_often_written_wrongly_is_helped_with() {
        let pem = "x".repeat(128);
        for (kind, value, at, help) in [
            (
                Kind::Ssl,
                json!({"cert": "/a.pem", "key": pem, "sni": "a.com"}),
                "/cert",
                "this is not PEM text; write the text itself (not the path of its file), or a reference",
            ),
            (
                Kind::Ssl,
                json!({"cert": pem, "key": "a.key", "sni": "a.com"}),
                "/key",
                "this is not PEM text; write the text itself (not the path of its file), or a reference",
            ),
            (Kind::Ssl, json!({"cert": pem, "key": pem}), "", "give `sni` or `snis`"),
            (Kind::Ssl, json!({"cert": pem, "snis": ["a.com"]}), "", "give `key`"),
            (Kind::Ssl, json!({"cert": pem}), "", "give `key`, and `sni` or `snis`"),
            (
                Kind::Ssl,
                json!({"cert": pem, "key": pem, "sni": "a.com", "snis": ["a.com"]}),
                "",
                "give `sni` or `snis`, not both",
            ),
            (Kind::Ssl, json!({"type": "client", "cert": pem}), "", "property `key` is required"),
            (
                Kind::Ssl,
                json!({"cert": pem, "key": pem, "snis": ["a.com", "a.com:443", "https://b.com"]}),
                "/snis/2",
                "write the host alone",
            ),
            (Kind::Ssl, json!({"cert": pem, "key": pem, "sni": "bücher.example"}), "/sni", "ASCII"),
            (Kind::Upstream, json!({"nodes": "127.0.0.1:80"}), "/nodes", r#"{"host:port": weight}"#),
            (Kind::Upstream, json!({"nodes": ["127.0.0.1:80"]}), "/nodes/0", r#"{"host:port": weight}"#),
            (Kind::Route, json!({"uri": "/", "upstream": {"nodes": "a"}}), "/upstream/nodes", "host:port"),
        ] {
            let invalid = refusal(kind, "1", value);
            assert_eq!(invalid.pointer, at);
            assert!(invalid.hint.as_deref().is_some_and(|hint| hint.contains(help)), "{invalid:?}");
        }
    }

    #[test]
    fn the_seeds_route_becomes_typed() {
        let value = json!({
            "uri": "/hello",
            "plugins": {"limit-count": {"count": 2000000000000_i64, "time_window": 60}, "key-auth": null},
            "upstream": {"type": "roundrobin", "nodes": {"127.0.0.1:1980": 1, "httpbin.org": 2}},
        });
        let Resource::Route(route) = parsed(Kind::Route, "1", value) else { panic!("a route") };
        assert_eq!(route.uris, ["/hello"]);
        assert!(route.enabled);
        assert_eq!(route.plugins["key-auth"], json!({}));
        let upstream = route.upstream.unwrap();
        let nodes: Vec<(String, u32)> =
            upstream.nodes.iter().map(|node| (node.authority(), node.weight)).collect();
        assert_eq!(nodes, [("127.0.0.1:1980".to_owned(), 1), ("httpbin.org:80".to_owned(), 2)]);
    }

    #[test]
    fn refusals_are_apisix_words_with_their_place() {
        let nodes = json!({"nodes": {"h:80": 1}});
        let with = |mut value: Value, name: &str, field: Value| {
            value[name] = field;
            value
        };
        let cases = [
            (Kind::Route, json!(1), "invalid configuration: wrong type: expected object, got number", ""),
            (
                Kind::Route,
                json!({"plugins": {}}),
                "invalid configuration: allOf 1 failed: value should match only one schema, but matches none",
                "",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "uris": ["/"], "plugins": {}}),
                "invalid configuration: allOf 1 failed: value should match only one schema, but matches both schemas 1 and 2",
                "",
            ),
            (
                Kind::Route,
                json!({"uris": [], "plugins": {}}),
                "invalid configuration: property \"uris\" validation failed: expect array to have at least 1 items",
                "/uris",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "host": "a", "hosts": ["b"], "plugins": {}}),
                "only one of host or hosts is allowed",
                "/host",
            ),
            (
                Kind::Route,
                json!({"uri": "/"}),
                "invalid configuration: object matches none of the required: [\"plugins\",\"uri\"] or \
                 [\"upstream\",\"uri\"] or [\"upstream_id\",\"uri\"] or [\"service_id\",\"uri\"] or \
                 [\"plugins\",\"uris\"] or [\"upstream\",\"uris\"] or [\"upstream_id\",\"uris\"] or \
                 [\"service_id\",\"uris\"] or [\"script\",\"uri\"] or [\"script\",\"uris\"]",
                "",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {}, "methods": ["GET", "get"]}),
                "invalid configuration: property \"methods\" validation failed: failed to validate item 2: \
                 matches none of the enum values",
                "/methods/1",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {}, "host": "a b"}),
                "invalid configuration: property \"host\" validation failed: failed to match pattern \
                 \"^\\\\*$|^\\\\*?[0-9a-zA-Z-._\\\\[\\\\]:]+$\" with \"a b\"",
                "/host",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {}, "remote_addr": "1.2.3.400"}),
                "invalid configuration: property \"remote_addr\" validation failed: object matches none of the required",
                "/remote_addr",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {}, "remote_addrs": ["1.2.3.4", ":/8"]}),
                "invalid configuration: property \"remote_addrs\" validation failed: failed to validate item 2: \
                 object matches none of the required",
                "/remote_addrs/1",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {}, "upstrem_id": 1}),
                "invalid configuration: additional properties forbidden, found upstrem_id",
                "/upstrem_id",
            ),
            (Kind::Route, json!({"id": 2, "uri": "/", "plugins": {}}), "wrong route id", "/id"),
            (
                Kind::Route,
                json!({"uri": "/", "plugins": {"cors": 1}}),
                "invalid plugin conf for plugin [cors]",
                "/plugins/cors",
            ),
            (
                Kind::Route,
                json!({"uri": "/", "upstream": {"type": "roundrobin"}}),
                "invalid configuration: property \"upstream\" validation failed: \
                 value should match only one schema, but matches none",
                "/upstream",
            ),
            (Kind::Upstream, with(nodes.clone(), "type", json!("chash")), "missing key", "/key"),
            (
                Kind::Upstream,
                json!({"nodes": {"h:80": 1}, "type": "chash", "key": "$a"}),
                "invalid configuration: failed to match pattern \"^((uri|server_name|server_addr|request_uri|\
                 remote_port|remote_addr|query_string|host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$\" with \"$a\"",
                "/key",
            ),
            (
                Kind::Upstream,
                with(nodes.clone(), "pass_host", json!("rewrite")),
                "`upstream_host` can't be empty when `pass_host` is `rewrite`",
                "/upstream_host",
            ),
            (Kind::Upstream, json!({"nodes": {"h:70000": 1}}), "invalid port 70000", "/nodes/h:70000"),
            (
                Kind::Upstream,
                json!({"nodes": [{"host": "h", "weight": 1}], "scheme": "tcp"}),
                "Can't detect upstream's scheme. You should either specify a port in the node or specify the \
                 upstream.scheme explicitly",
                "/nodes/0",
            ),
            (
                Kind::Upstream,
                with(nodes, "timeout", json!({"connect": 1, "send": 0, "read": 1})),
                "invalid configuration: property \"timeout\" validation failed: property \"send\" validation failed: \
                 expected 0 to be greater than 0",
                "/timeout/send",
            ),
            (Kind::Consumer, json!({}), "invalid configuration: property \"username\" is required", ""),
            (Kind::Consumer, json!({"username": "2"}), "wrong username", "/username"),
            (
                Kind::Credential,
                json!({"plugins": {"a": {}, "b": {}}}),
                "invalid configuration: property \"plugins\" validation failed: expect object to have at most 1 properties",
                "/plugins",
            ),
            (Kind::GlobalRule, json!({}), "invalid configuration: property \"plugins\" is required", ""),
        ];
        for (kind, value, words, pointer) in cases {
            let id = if kind == Kind::Credential { "jack/credentials/1" } else { "1" };
            let invalid = refusal(kind, id, value);
            assert_eq!((invalid.reason.as_str(), invalid.pointer.as_str()), (words, pointer));
        }
    }

    #[test]
    fn hints_name_the_field_that_was_meant() {
        let invalid = refusal(Kind::Route, "1", json!({"uri": "/", "plugins": {}, "upstrem_id": 1}));
        assert_eq!(invalid.hint.as_deref(), Some("did you mean `upstream_id`?"));
        let invalid = refusal(Kind::Route, "1", json!({"uri": "/", "plugins": {}, "methods": ["get"]}));
        assert_eq!(invalid.hint.as_deref(), Some("did you mean `GET`?"));
        let invalid = refusal(Kind::Route, "1", json!({"plugins": {}}));
        assert_eq!(invalid.expected.as_deref(), Some("one of uri, uris"));
    }

    #[test]
    fn integer_ids_become_strings_and_agree_with_the_key() {
        let value = json!({"id": 1, "uri": "/", "upstream_id": 3, "service_id": "s"});
        let Resource::Route(route) = parsed(Kind::Route, "1", value) else { panic!("a route") };
        assert_eq!(route.upstream_id.as_deref(), Some("3"));
        assert_eq!(route.service_id.as_deref(), Some("s"));
    }

    #[test]
    fn secrets_need_a_known_manager() {
        assert_eq!(refusal(Kind::Secret, "safe/1", json!({})).reason, "invalid secret manager: safe");
        let secret = parsed(Kind::Secret, "gcp/9", json!({"auth_file": "/etc/gcp.json"}));
        assert_eq!(secret.kind(), Kind::Secret);
    }

    #[test]
    fn very_long_timeouts_are_cut_off_not_overflowed() {
        let value = json!({"nodes": {}, "timeout": {"connect": 1e300, "send": 1e-300, "read": 0.5}});
        let Resource::Upstream(upstream) = parsed(Kind::Upstream, "1", value) else { panic!("an upstream") };
        let timeout = upstream.timeout.unwrap();
        assert_eq!(timeout.connect, Duration::from_secs(315_360_000));
        assert_eq!(timeout.read, Duration::from_millis(500));
    }

    /// JSON with the names and the kinds of values that resources have.
    fn near_resource() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "(/|GET|chash|rewrite|a\\.com|1\\.2\\.3\\.4/8|\\[::1\\]:80|vars|tcp|.{0,8})"
                .prop_map(Value::from),
        ];
        let name = "(uri|uris|host|hosts|nodes|upstream|plugins|type|key|hash_on|timeout|tls|id|checks|active|a:0|\\[:1)";
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((name, inner), 0..6)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_value_panics(value in near_resource(), id in "(1|a/credentials/b|vault/x|.{0,6})") {
            for kind in Kind::ALL {
                let _ = Resource::parse(kind, &id, &value);
                let _ = Resource::read(kind, &id, value.clone());
            }
            let _ = Resource::parse(Kind::Upstream, "1", &json!({"nodes": value}));
            let _ = Resource::parse(Kind::Route, "1", &json!({"uri": "/", "upstream": value}));
        }

        #[test]
        fn what_was_parsed_parses_again(nodes in proptest::collection::hash_map("[a-z]{1,8}(:[1-9][0-9]{0,3})?", 0..9_u32, 0..5)) {
            let value = json!({"nodes": nodes});
            let upstream = Upstream::parse(&value).unwrap();
            let list: Vec<Value> = upstream
                .nodes
                .iter()
                .map(|node| json!({"host": node.host, "port": node.port, "weight": node.weight}))
                .collect();
            prop_assert_eq!(Upstream::parse(&json!({"nodes": list})).unwrap().nodes, upstream.nodes);
        }
    }
}
