//! References between resources.
//!
//! A write may only name what exists, what is in use may not be deleted, and
//! the fields that identify consumers are unique. Errors use APISIX's words.
//! Values are read as JSON, since what is stored has been checked before.
//! Nothing here writes. These checks belong into a [`Decide`](crate::store::Decide),
//! so that no other write comes between a check and the write it is for.

use std::ops::ControlFlow;

use model::{Invalid, Key, Kind};
use serde_json::Value;

use crate::store::holders::{self, Claim};
use crate::store::{Refused, Row, View};

/// A field that names another resource.
struct Field {
    name: &'static str,
    to: Kind,
    /// The field's name in APISIX's messages.
    word: &'static str,
}

const UPSTREAM: Field = Field { name: "upstream_id", to: Kind::Upstream, word: "upstream" };
const SERVICE: Field = Field { name: "service_id", to: Kind::Service, word: "service" };
const PLUGIN_CONFIG: Field =
    Field { name: "plugin_config_id", to: Kind::PluginConfig, word: "plugin config" };
const GROUP: Field = Field { name: "group_id", to: Kind::ConsumerGroup, word: "consumer group" };

/// The fields of a kind that name others, in the order they are looked at.
fn fields(kind: Kind) -> &'static [Field] {
    match kind {
        Kind::Route => &[UPSTREAM, SERVICE, PLUGIN_CONFIG],
        Kind::Service => &[UPSTREAM],
        Kind::StreamRoute => &[UPSTREAM, SERVICE],
        Kind::Consumer => &[GROUP],
        _ => &[],
    }
}

/// The resources that a value stored under `key` needs: those it names, and the one it belongs to.
pub fn needed_by(key: &Key, value: &Value) -> Vec<Key> {
    let named = |kind: Kind, id: Option<&Value>| id.and_then(id_text).map(|id| Key::new(kind, id));
    let by_field = fields(key.kind).iter().filter_map(|field| named(field.to, value.get(field.name)));
    let owner = key.kind.owner().zip(key.owner()).map(|(kind, id)| Key::new(kind, id));
    let inside = [
        named(Kind::Ssl, value.pointer(certificate_at(key.kind))),
        named(Kind::Proto, value.pointer("/plugins/grpc-transcode/proto_id")),
        named(Kind::StreamRoute, value.pointer("/protocol/superior_id")),
        owner,
    ];
    let split = value.pointer(SPLIT).map(named_by_split).unwrap_or_default();
    let split = split.into_iter().map(|(_, key)| key);
    by_field.chain(inside.into_iter().flatten()).chain(split).collect()
}

/// Checks what a value that is to be stored under `key` has to do with others.
///
/// # Errors
/// The first of what is wrong: something it names is not there, a plugin of a global rule stands
/// in another one, a consumer or credential is found by what another one has.
pub fn check(view: &dyn View, key: &Key, value: &Value) -> Result<(), Refused> {
    check_exist(view, key.kind, value)?;
    match key.kind {
        Kind::GlobalRule => check_global_rule(view, &key.id, value),
        Kind::StreamRoute => check_superior(view, &key.id, value),
        Kind::Consumer => check_credentials(view, key, value),
        Kind::Credential => {
            let consumer = Key::new(Kind::Consumer, key.owner().unwrap_or_default());
            view.get(&consumer).ok_or(Refused::Missing("consumer not found"))?;
            check_credentials(view, key, value)
        }
        Kind::CostDecoration => {
            let service = key.owner().unwrap_or_default();
            let stands = Key::new(Kind::Service, service);
            view.get(&stands).ok_or(Refused::Missing("service not found"))?;
            check_decoration(view, key, service, value)
        }
        _ => Ok(()),
    }
}

/// Checks that no other decoration of the service is for the same field.
///
/// # Errors
/// `field_path Query.products is already decorated on this service by [d1]`
fn check_decoration(view: &dyn View, key: &Key, service: &str, value: &Value) -> Result<(), Refused> {
    let Some(path) = value.get("field_path").and_then(Value::as_str) else { return Ok(()) };
    let of_service = Key::owned(key.kind, service, "").id;
    let mut taken = None;
    view.scan(key.kind, &of_service, &mut |row| {
        let is_same = row.key != *key
            && row.json.contains(path)
            && row.value().get("field_path").and_then(Value::as_str) == Some(path);
        match is_same {
            true => {
                taken = Some(row.key.leaf().to_owned());
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        }
    });
    match taken {
        None => Ok(()),
        Some(id) => {
            Err(Invalid::new(format!("field_path {path} is already decorated on this service by [{id}]"))
                .at("/field_path")
                .hint("change that decoration, or name another field")
                .into())
        }
    }
}

/// Checks that everything `value` names exists.
///
/// # Errors
/// `failed to fetch upstream info by upstream id [1], response code: 404`
fn check_exist(view: &dyn View, kind: Kind, value: &Value) -> Result<(), Refused> {
    for field in fields(kind) {
        let Some(id) = value.get(field.name).and_then(id_text) else { continue };
        if view.get(&Key::new(field.to, id.as_str())).is_none() {
            let word = field.word;
            return Err(Invalid::new(format!(
                "failed to fetch {word} info by {word} id [{id}], response code: 404"
            ))
            .at(format!("/{}", field.name))
            .expected(format!("the id of an existing {word}"))
            .hint(format!("create the {word} first"))
            .into());
        }
    }
    check_certificate(view, kind, value)
}

fn certificate_at(kind: Kind) -> &'static str {
    if kind == Kind::Upstream { "/tls/client_cert_id" } else { "/upstream/tls/client_cert_id" }
}

/// The certificate that is shown to the nodes of an upstream.
fn check_certificate(view: &dyn View, kind: Kind, value: &Value) -> Result<(), Refused> {
    let at = certificate_at(kind);
    let Some(id) = value.pointer(at).and_then(id_text) else { return Ok(()) };
    let said = format!("failed to fetch ssl info by ssl id [{id}], ");
    match view.get(&Key::new(Kind::Ssl, id)) {
        None => {
            Err(Invalid::new(said + "response code: 404").at(at).expected("the id of an existing ssl").into())
        }
        Some(ssl) if ssl.value().get("type").and_then(Value::as_str) != Some("client") => {
            Err(Invalid::new(said + "wrong ssl type").at(at).expected("an ssl of the type client").into())
        }
        Some(_) => Ok(()),
    }
}

/// Checks that nothing uses `key`, before it is deleted.
///
/// # Errors
/// `can not delete this upstream, route [1] is still using it now`
pub fn check_unused(view: &dyn View, key: &Key) -> Result<(), Refused> {
    match key.kind {
        Kind::Upstream => upstream_unused(view, &key.id),
        Kind::Service => {
            let said = "can not delete this service directly,";
            unused_by(view, Kind::Route, "route", &SERVICE, &key.id, said)?;
            unused_by(view, Kind::StreamRoute, "stream_route", &SERVICE, &key.id, said)
        }
        Kind::PluginConfig => {
            let said = "can not delete this plugin config,";
            unused_by(view, Kind::Route, "route", &PLUGIN_CONFIG, &key.id, said)
        }
        Kind::ConsumerGroup => {
            let said = "can not delete this consumer group,";
            unused_by(view, Kind::Consumer, "consumer", &GROUP, &key.id, said)
        }
        Kind::Proto => {
            for (kind, word) in [(Kind::Route, "route"), (Kind::Service, "service")] {
                let uses = |value: &Value| {
                    value.pointer("/plugins/grpc-transcode/proto_id").and_then(id_text).as_deref()
                        == Some(&key.id)
                };
                none_of(&with(view, kind, &key.id), uses, &format!("can not delete this proto, {word}"))?;
            }
            Ok(())
        }
        Kind::Script => script_unused(view, key),
        Kind::StreamRoute => {
            let uses = |value: &Value| {
                value.pointer("/protocol/superior_id").and_then(id_text).as_deref() == Some(&key.id)
            };
            match with(view, Kind::StreamRoute, &key.id).iter().find(|row| uses(&row.value())) {
                None => Ok(()),
                Some(user) => Err(Invalid::new(format!(
                    "can not delete this stream route directly, stream route [{}] is still using it as superior_id",
                    user.key.leaf()
                ))
                .into()),
            }
        }
        _ => Ok(()),
    }
}

/// Checks the stream route that another one is below of.
///
/// # Errors
/// `stream route can not set itself as superior_id`
fn check_superior(view: &dyn View, id: &str, value: &Value) -> Result<(), Refused> {
    let Some(superior) = value.pointer("/protocol/superior_id").and_then(id_text) else { return Ok(()) };
    let invalid = |reason: String| Invalid::new(reason).at("/protocol/superior_id");
    if superior == id {
        return Err(invalid("stream route can not set itself as superior_id".to_owned()).into());
    }
    let Some(found) = view.get(&Key::new(Kind::StreamRoute, superior.as_str())) else {
        return Err(invalid(format!("failed to fetch stream routes[{superior}], response code: 404"))
            .expected("the id of an existing stream route")
            .into());
    };
    let name = |value: &Value| value.pointer("/protocol/name").and_then(Value::as_str).map(str::to_owned);
    match (name(value), name(&found.value())) {
        (Some(own), Some(theirs)) if own != theirs => Err(invalid(format!(
            "protocol mismatch: subordinate protocol [{own}] does not match superior protocol [{theirs}]"
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Checks that no two global rules hold the same plugin.
///
/// # Errors
/// `plugin 'cors' already exists in global rule with id '1'`
fn check_global_rule(view: &dyn View, id: &str, value: &Value) -> Result<(), Refused> {
    let Some(plugins) = value.get("plugins").and_then(Value::as_object) else { return Ok(()) };
    for rule in rows_that(view, Kind::GlobalRule, |rule| rule.key.id != id) {
        let theirs = rule.value();
        let Some(theirs) = theirs.get("plugins").and_then(Value::as_object) else { continue };
        if let Some(name) = plugins.keys().find(|name| theirs.contains_key(*name)) {
            return Err(Invalid::new(format!(
                "plugin '{name}' already exists in global rule with id '{}'",
                rule.key.id
            ))
            .within(name)
            .under("/plugins")
            .hint("a plugin may stand in one global rule only: change that rule")
            .into());
        }
    }
    Ok(())
}

/// Checks that no other consumer or credential is found by what `value`, to be stored
/// under `key`, carries. References to secrets are not followed.
///
/// # Errors
/// `duplicate key of plugin key-auth found with consumer: bob`, never the key itself.
fn check_credentials(view: &dyn View, key: &Key, value: &Value) -> Result<(), Refused> {
    for claim in holders::claims(value) {
        if claim.text.starts_with("$secret://") || claim.text.starts_with("$env://") {
            continue;
        }
        for text in view.spellings(claim.text) {
            let claim = Claim { text: &text, ..claim };
            let has_it = |row: &&Row| {
                !same_holder(key, &row.key) && holders::claims(&row.value()).any(|own| own == claim)
            };
            let all = view.holders(&claim);
            if let Some(holder) = all.iter().filter(has_it).min_by_key(|row| &row.key) {
                let Claim { plugin, field, .. } = claim;
                let holder = match holder.key.owner() {
                    Some(consumer) => format!("credential: {} of consumer: {consumer}", holder.key.leaf()),
                    None => format!("consumer: {}", holder.key.id),
                };
                return Err(Invalid::new(format!(
                    "duplicate {field} of plugin {plugin} found with {holder}"
                ))
                .at(format!("/plugins/{plugin}/{field}"))
                .into());
            }
        }
    }
    Ok(())
}

/// A consumer shares with its own credentials; a credential only with itself.
fn same_holder(key: &Key, other: &Key) -> bool {
    key == other || (key.kind == Kind::Consumer && other.owner() == Some(&key.id))
}

/// Refuses to delete the script of a plugin that a resource has.
fn script_unused(view: &dyn View, key: &Key) -> Result<(), Refused> {
    let role = view.get(key).and_then(|row| row.value().get("type")?.as_str().map(str::to_owned));
    let kinds: &[(Kind, &str)] = match role.as_deref() {
        Some("module") => return Ok(()),
        Some("stream_plugin") => &[(Kind::StreamRoute, "stream_route")],
        _ => &[
            (Kind::Route, "route"),
            (Kind::Service, "service"),
            (Kind::PluginConfig, "plugin_config"),
            (Kind::Consumer, "consumer"),
            (Kind::Credential, "credential"),
            (Kind::ConsumerGroup, "consumer_group"),
            (Kind::GlobalRule, "global_rule"),
        ],
    };
    for (kind, word) in kinds {
        let uses = |value: &Value| value.get("plugins").is_some_and(|plugins| plugins.get(&key.id).is_some());
        none_of(&with(view, *kind, &key.id), uses, &format!("can not delete this script, plugin in {word}"))?;
    }
    Ok(())
}

fn upstream_unused(view: &dyn View, id: &str) -> Result<(), Refused> {
    let users = [
        (Kind::Route, "route", true),
        (Kind::Service, "service", true),
        (Kind::PluginConfig, "plugin_config", false),
        (Kind::Consumer, "consumer", false),
        (Kind::ConsumerGroup, "consumer_group", false),
        (Kind::GlobalRule, "global_rules", false),
        // APISIX forgets these, and leaves a route without its upstream.
        (Kind::StreamRoute, "stream_route", true),
    ];
    for (kind, word, has_field) in users {
        let rows = with(view, kind, id);
        let said = format!("can not delete this upstream, plugin in {word}");
        let splits = |value: &Value| {
            let named = value.pointer(SPLIT).map(named_by_split).unwrap_or_default();
            named.iter().any(|(_, key)| key.kind == Kind::Upstream && key.id == id)
        };
        none_of(&rows, splits, &said)?;
        if has_field {
            let said = format!("can not delete this upstream, {word}");
            none_of(&rows, |value| names(value, &UPSTREAM, id), &said)?;
        }
    }
    Ok(())
}

/// The settings of traffic-split in a resource.
const SPLIT: &str = "/plugins/traffic-split";

/// The resources that the settings of traffic-split name, each with its place in them: upstreams, and client
/// certificates of the upstreams written there.
pub fn named_by_split(config: &Value) -> Vec<(String, Key)> {
    fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = (usize, &'v Value)> {
        value.get(name).and_then(Value::as_array).into_iter().flatten().enumerate()
    }
    let places = list(config, "rules").flat_map(|(rule, settings)| {
        list(settings, "weighted_upstreams")
            .map(move |(at, upstream)| (format!("/rules/{rule}/weighted_upstreams/{at}"), upstream))
    });
    let named = places.filter_map(|(place, upstream)| {
        // The id goes before an upstream beside it.
        if let Some(id) = upstream.get(UPSTREAM.name).and_then(id_text) {
            return Some((place + "/upstream_id", Key::new(Kind::Upstream, id)));
        }
        let at = certificate_at(Kind::Route);
        let id = upstream.pointer(at).and_then(id_text)?;
        Some((place + at, Key::new(Kind::Ssl, id)))
    });
    named.collect()
}

fn unused_by(
    view: &dyn View,
    kind: Kind,
    word: &str,
    field: &Field,
    id: &str,
    said: &str,
) -> Result<(), Refused> {
    none_of(&with(view, kind, id), |value| names(value, field, id), &format!("{said} {word}"))
}

/// Those of a kind that can name this id: it stands somewhere in their text. So what does not
/// need not be read, which is nearly all.
fn with(view: &dyn View, kind: Kind, id: &str) -> Vec<Row> {
    rows_that(view, kind, |row| row.json.contains(id))
}

fn rows_that(view: &dyn View, kind: Kind, mut wanted: impl FnMut(&Row) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    view.scan(kind, "", &mut |row| {
        if wanted(row) {
            rows.push(row.clone());
        }
        ControlFlow::Continue(())
    });
    rows
}

fn none_of(rows: &[Row], uses: impl Fn(&Value) -> bool, said: &str) -> Result<(), Refused> {
    match rows.iter().find(|row| uses(&row.value())) {
        None => Ok(()),
        Some(user) => Err(Invalid::new(format!("{said} [{}] is still using it now", user.key.leaf())).into()),
    }
}

fn names(value: &Value, field: &Field, id: &str) -> bool {
    match value.get(field.name) {
        Some(Value::String(text)) => text == id,
        Some(other) => id_text(other).as_deref() == Some(id),
        None => false,
    }
}

/// An id, which may be written as a number, as it stands in a key.
fn id_text(id: &Value) -> Option<String> {
    match id {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::store::Revision;

    /// Some rows, and nothing about to change.
    struct Rows(BTreeMap<Key, Row>);

    impl View for Rows {
        fn get(&self, key: &Key) -> Option<Row> {
            self.0.get(key).cloned()
        }

        fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>) {
            let within = |row: &&Row| row.key.kind == kind && row.key.id.starts_with(prefix);
            let _ = self.0.values().filter(within).try_for_each(look);
        }

        fn revision(&self) -> Revision {
            1
        }
    }

    fn rows(items: &[(Key, Value)]) -> Rows {
        let row = |(key, value): &(Key, Value)| {
            let (key, json) = (key.clone(), value.to_string().into());
            (key.clone(), Row { key, json, created: 1, modified: 1, expires: None })
        };
        Rows(items.iter().map(row).collect())
    }

    #[test]
    fn what_is_named_must_exist() {
        let store =
            rows(&[(Key::new(Kind::Upstream, "1"), json!({})), (Key::new(Kind::Ssl, "9"), json!({}))]);
        let check = |kind, value| check_exist(&store, kind, &value).map_err(|refused| refused.to_string());
        assert_eq!(check(Kind::Route, json!({"upstream_id": 1})), Ok(()));
        assert_eq!(check(Kind::Service, json!({"upstream_id": "1"})), Ok(()));
        for (id, said) in [(8, "response code: 404"), (9, "wrong ssl type")] {
            let upstream = json!({"tls": {"client_cert_id": id}});
            let said = Err(format!("failed to fetch ssl info by ssl id [{id}], {said}"));
            assert_eq!(check(Kind::Route, json!({ "upstream": upstream })), said);
            assert_eq!(check(Kind::Upstream, upstream), said);
        }
        for (kind, value, said) in [
            (Kind::Route, json!({"upstream_id": 2}), "upstream info by upstream id [2]"),
            (Kind::Route, json!({"service_id": "a"}), "service info by service id [a]"),
            (Kind::Route, json!({"plugin_config_id": "a"}), "plugin config info by plugin config id [a]"),
            (Kind::Consumer, json!({"group_id": "a"}), "consumer group info by consumer group id [a]"),
        ] {
            let said = format!("failed to fetch {said}, response code: 404");
            assert_eq!(check(kind, value), Err(said));
        }
    }

    #[test]
    fn what_is_used_stays() {
        let split = json!({"plugins": {"traffic-split": {"rules": [
            {"weighted_upstreams": [{"weight": 1}, {"upstream_id": 3}]}
        ]}}});
        let store = rows(&[
            (Key::new(Kind::Route, "r"), json!({"upstream_id": 1, "plugin_config_id": "p"})),
            (Key::new(Kind::Service, "s"), json!({"upstream_id": "2"})),
            (Key::new(Kind::Route, "r2"), json!({"service_id": "s"})),
            (Key::new(Kind::GlobalRule, "g"), split.clone()),
            (Key::new(Kind::Consumer, "jack"), json!({"group_id": "x"})),
            (Key::new(Kind::Route, "r3"), json!({"plugins": {"ours": {}}})),
            (Key::new(Kind::Script, "ours"), json!({"content": "x"})),
            (Key::new(Kind::Script, "u"), json!({"content": "x", "type": "module"})),
        ]);
        let check =
            |kind, id| check_unused(&store, &Key::new(kind, id)).map_err(|refused| refused.to_string());
        for (kind, id, said) in [
            (Kind::Upstream, "1", "upstream, route [r] is still using it now"),
            (Kind::Upstream, "2", "upstream, service [s] is still using it now"),
            (Kind::Upstream, "3", "upstream, plugin in global_rules [g] is still using it now"),
            (Kind::Service, "s", "service directly, route [r2] is still using it now"),
            (Kind::PluginConfig, "p", "plugin config, route [r] is still using it now"),
            (Kind::ConsumerGroup, "x", "consumer group, consumer [jack] is still using it now"),
            (Kind::Script, "ours", "script, plugin in route [r3] is still using it now"),
        ] {
            assert_eq!(check(kind, id), Err(format!("can not delete this {said}")));
        }
        for (kind, id) in
            [(Kind::Upstream, "4"), (Kind::Service, "t"), (Kind::Route, "r"), (Kind::Script, "u")]
        {
            assert_eq!(check(kind, id), Ok(()));
        }
    }

    #[test]
    fn all_that_a_resource_needs_is_listed() {
        let split = json!({"rules": [{"weighted_upstreams": [{"weight": 1}, {"upstream_id": 3}]}]});
        let route = json!({
            "upstream_id": 1, "service_id": "s", "plugin_config_id": "p",
            "plugins": {"traffic-split": split, "grpc-transcode": {"proto_id": "g"}},
        });
        for (key, value, needed) in [
            (
                Key::new(Kind::Route, "r"),
                route,
                "upstreams/1 services/s plugin_configs/p protos/g upstreams/3",
            ),
            (Key::new(Kind::Upstream, "u"), json!({"tls": {"client_cert_id": "c"}}), "ssls/c"),
            (Key::new(Kind::Service, "s"), json!({"upstream": {"tls": {"client_cert_id": "c"}}}), "ssls/c"),
            (Key::new(Kind::StreamRoute, "a"), json!({"protocol": {"superior_id": "b"}}), "stream_routes/b"),
            (Key::credential("jack", "c"), json!({}), "consumers/jack"),
            (Key::new(Kind::Consumer, "jack"), json!({"group_id": "x"}), "consumer_groups/x"),
            (Key::new(Kind::Proto, "1"), json!(null), ""),
        ] {
            let found: Vec<String> = needed_by(&key, &value).iter().map(Key::to_string).collect();
            assert_eq!(found.join(" "), needed, "{key}");
        }
    }

    #[test]
    fn two_consumers_may_not_be_one_to_a_plugin() {
        let key_auth = |key: &str| json!({"plugins": {"key-auth": {"key": key}}});
        let store = rows(&[
            (Key::new(Kind::Consumer, "bob"), key_auth("k1")),
            (Key::credential("bob", "c"), key_auth("k2")),
        ]);
        let check = |key: Key, secret: &str| {
            check_credentials(&store, &key, &key_auth(secret)).map_err(|refused| refused.to_string())
        };
        let jack = Key::new(Kind::Consumer, "jack");
        assert_eq!(
            check(jack.clone(), "k1"),
            Err("duplicate key of plugin key-auth found with consumer: bob".to_owned())
        );
        assert_eq!(
            check(jack.clone(), "k2"),
            Err("duplicate key of plugin key-auth found with credential: c of consumer: bob".to_owned())
        );
        assert_eq!(check(jack, "k3"), Ok(()));
        // Oneself is no other.
        assert_eq!(check(Key::new(Kind::Consumer, "bob"), "k2"), Ok(()));
        assert_eq!(check(Key::credential("bob", "c"), "k2"), Ok(()));
        assert!(check(Key::credential("bob", "d"), "k2").is_err());
    }

    #[test]
    fn a_plugin_stands_in_one_global_rule() {
        let rule = json!({"plugins": {"cors": {}}});
        let store = rows(&[(Key::new(Kind::GlobalRule, "1"), rule.clone())]);
        assert!(check_global_rule(&store, "1", &rule).is_ok());
        let refused = check_global_rule(&store, "2", &rule).unwrap_err();
        assert_eq!(refused.to_string(), "plugin 'cors' already exists in global rule with id '1'");
    }
}
