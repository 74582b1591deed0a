//! Where plugins have secrets: `encrypt_fields` of their schemas.

use std::collections::HashMap;
use std::sync::LazyLock;

use model::{Key, Kind, private_keys};
use sdk::catalog::Facts;
use serde_json::Value;

/// Paths of secret fields by plugin. Plugins without secrets are left out.
#[derive(Debug, Default)]
pub(super) struct Fields {
    on_routes: Paths,
    on_consumers: Paths,
    in_metadata: Paths,
}

#[derive(Debug, Default)]
struct Paths {
    by_plugin: HashMap<String, Vec<String>>,
    /// A bit for each length of their names: the length alone rules out most names of a text.
    lengths: u64,
}

impl Paths {
    fn insert(&mut self, plugin: &str, paths: Vec<String>) {
        self.lengths |= Paths::length(plugin);
        self.by_plugin.insert(plugin.to_owned(), paths);
    }

    fn get(&self, plugin: &str) -> Option<&Vec<String>> {
        self.by_plugin.get(plugin)
    }

    fn has(&self, plugin: &str) -> bool {
        self.lengths & Paths::length(plugin) != 0 && self.by_plugin.contains_key(plugin)
    }

    fn is_empty(&self) -> bool {
        self.by_plugin.is_empty()
    }

    fn length(name: &str) -> u64 {
        1 << (name.len() % 64)
    }
}

/// Called with the place and the text of a secret.
pub(super) type Visit<'v> = &'v mut dyn FnMut(&str, &mut String);

impl Fields {
    pub fn of(plugins: impl IntoIterator<Item = (&'static str, Facts)>) -> Fields {
        let mut found = Fields::default();
        for (name, facts) in plugins {
            let Facts { schema, consumer_schema, metadata_schema, .. } = &facts;
            let add = |paths: &mut Paths, schema: Option<&Value>| {
                let fields = schema.and_then(|schema| schema.get("encrypt_fields")?.as_array());
                let texts = fields.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
                let texts: Vec<String> = texts.collect();
                // A plugin of both subsystems has the same secrets in both.
                if !texts.is_empty() {
                    paths.insert(name, texts);
                }
            };
            add(&mut found.on_routes, Some(schema));
            // Other plugins than auth plugins have the same schema on consumers.
            add(&mut found.on_consumers, consumer_schema.as_ref().or(Some(schema)));
            add(&mut found.in_metadata, metadata_schema.as_ref());
        }
        found
    }

    /// Whether resources of this kind can hold secrets.
    pub fn are_in(&self, kind: Kind) -> bool {
        !private_keys::places(kind).is_empty() || !self.paths(kind).is_empty()
    }

    /// Whether this resource may hold secrets, judging by the names in its text. Most routes need
    /// not be parsed.
    pub fn may_stand_in(&self, kind: Kind, json: &str) -> bool {
        let (paths, has_keys) = (self.paths(kind), !private_keys::places(kind).is_empty());
        match kind {
            Kind::PluginMetadata | Kind::Ssl => self.are_in(kind),
            _ => names(json).any(|name| paths.has(name) || (has_keys && name == "client_key")),
        }
    }

    /// Visits every private key of a resource, but no reference to one.
    pub fn each_key(kind: Kind, value: &mut Value, visit: Visit<'_>) {
        for path in private_keys::places(kind) {
            walk(value, path, "", &mut |place, text| {
                if !text.starts_with('$') {
                    visit(place.trim_start_matches('.'), text);
                }
            });
        }
    }

    /// Visits every secret in the settings of plugins.
    pub fn each(&self, key: &Key, value: &mut Value, visit: Visit<'_>) {
        let paths = self.paths(key.kind);
        if key.kind == Kind::PluginMetadata {
            if let Some(paths) = paths.get(&key.id) {
                paths.iter().for_each(|path| walk(value, path, &key.id, visit));
            }
            return;
        }
        let Some(plugins) = value.get_mut("plugins").and_then(Value::as_object_mut) else { return };
        for (name, config) in plugins {
            if let Some(paths) = paths.get(name) {
                paths.iter().for_each(|path| walk(config, path, &format!("plugins.{name}"), visit));
            }
        }
    }

    fn paths(&self, kind: Kind) -> &Paths {
        static NONE: LazyLock<Paths> = LazyLock::new(Paths::default);
        match kind {
            Kind::Consumer | Kind::Credential => &self.on_consumers,
            Kind::PluginMetadata => &self.in_metadata,
            Kind::Route
            | Kind::Service
            | Kind::StreamRoute
            | Kind::GlobalRule
            | Kind::PluginConfig
            | Kind::ConsumerGroup => &self.on_routes,
            Kind::Upstream | Kind::Ssl | Kind::Secret | Kind::Proto | Kind::CostDecoration | Kind::Script => {
                &NONE
            }
        }
    }
}

/// Yields the text between two quotes and before a colon: the names of a JSON text, and at worst some more.
fn names(json: &str) -> impl Iterator<Item = &str> {
    let mut begin = 0;
    memchr::memchr_iter(b'"', json.as_bytes()).filter_map(move |quote| {
        let text = &json[begin..quote];
        begin = quote + 1;
        let mut behind = json.as_bytes()[begin..].iter();
        (behind.find(|byte| !byte.is_ascii_whitespace()) == Some(&b':')).then_some(text)
    })
}

/// Whether a text is a private key as it is used, which is what is encrypted and nothing else.
pub(super) fn is_private_key(text: &str) -> bool {
    text.trim_start().starts_with("---")
}

/// Follows a path such as `a.b.c` through objects and through arrays of objects. The field at its end is
/// a string, or an array or object of strings.
fn walk(value: &mut Value, path: &str, place: &str, visit: Visit<'_>) {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let Some(field) = value.get_mut(name) else { return };
    let place = format!("{place}.{name}");
    match (rest, field) {
        (Some(rest), Value::Array(items)) => {
            items.iter_mut().for_each(|item| walk(item, rest, &place, visit))
        }
        (Some(rest), field) => walk(field, rest, &place, visit),
        (None, Value::String(text)) => visit(&place, text),
        (None, Value::Array(items)) => items.iter_mut().for_each(|item| leaf(item, &place, visit)),
        (None, Value::Object(map)) => map.values_mut().for_each(|item| leaf(item, &place, visit)),
        (None, _) => {}
    }
}

fn leaf(value: &mut Value, place: &str, visit: Visit<'_>) {
    if let Value::String(text) = value {
        visit(place, text);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn about(
        name: &'static str,
        schema: Value,
        consumer_schema: Option<Value>,
        metadata_schema: Option<Value>,
    ) -> (&'static str, Facts) {
        let (version, kind, scope) = (json!(0.1), None, None);
        (name, Facts { version, kind, scope, schema, consumer_schema, metadata_schema })
    }

    fn found(fields: &Fields, key: &Key, mut value: Value) -> Vec<(String, String)> {
        let mut all = Vec::new();
        fields.each(key, &mut value, &mut |place, text| all.push((place.to_owned(), text.clone())));
        all
    }

    #[test]
    fn secrets_are_where_schemas_say() {
        let fields = Fields::of([
            about("key-auth", json!({}), Some(json!({"encrypt_fields": ["key"]})), None),
            about("deep", json!({"encrypt_fields": ["a.b.c", "list", "map", "none"]}), None, None),
            about("logger", json!({}), None, Some(json!({"encrypt_fields": ["token"]}))),
            about("plain", json!({"encrypt_fields": []}), None, None),
        ]);
        let deep = json!({
            "a": [{"b": {"c": "1"}}, {"b": [{"c": "2"}, {"c": 3}]}, "x", {"b": 4}],
            "list": ["5", 6, {"list": "no"}],
            "map": {"k": "7", "l": ["no"]},
        });
        let value =
            json!({"uri": "/", "plugins": {"deep": deep, "key-auth": {"key": "no"}, "plain": {"a": "no"}}});
        let texts = |key: &Key| {
            found(&fields, key, value.clone()).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(texts(&Key::new(Kind::Route, "1")), ["1", "2", "5", "7"]);
        assert_eq!(texts(&Key::new(Kind::Consumer, "jack")), ["1", "2", "5", "7", "no"]);
        assert_eq!(texts(&Key::new(Kind::Upstream, "1")), [""; 0]);
        let metadata = found(&fields, &Key::new(Kind::PluginMetadata, "logger"), json!({"token": "t"}));
        assert_eq!(metadata, [("logger.token".to_owned(), "t".to_owned())]);
        let credential = json!({"plugins": {"key-auth": {"key": "k"}}});
        let place = found(&fields, &Key::credential("jack", "c"), credential);
        assert_eq!(place, [("plugins.key-auth.key".to_owned(), "k".to_owned())]);
        for odd in [
            json!(null),
            json!([]),
            json!({"plugins": "x"}),
            json!({"plugins": {"deep": "x", "key-auth": []}}),
        ] {
            assert_eq!(found(&fields, &Key::new(Kind::Consumer, "jack"), odd), []);
        }
    }

    #[test]
    fn what_names_no_such_plugin_is_not_read() {
        let fields =
            Fields::of([about("key-auth", json!({}), Some(json!({"encrypt_fields": ["key"]})), None)]);
        assert!(fields.may_stand_in(Kind::Consumer, r#"{"plugins":{"key-auth":{}}}"#));
        assert!(
            !fields.may_stand_in(Kind::Consumer, r#"{"plugins":{"my-key-auth":{}},"desc":"x key-auth"}"#)
        );
        assert!(!fields.may_stand_in(Kind::Route, r#"{"plugins":{"key-auth":{}}}"#));
        // Others than this store write with spaces, and texts have quotes in them.
        assert!(
            fields.may_stand_in(
                Kind::Consumer,
                r#"{"desc": "a \"b\": c\\", "plugins" : { "key-auth" : {} } }"#
            )
        );
        assert!(!fields.may_stand_in(Kind::Consumer, r#"{"desc":"key-auth","plugins":{}}"#));
        for kind in [Kind::Route, Kind::Service, Kind::StreamRoute, Kind::Upstream] {
            assert!(fields.may_stand_in(kind, r#"{"upstream":{"tls":{"client_key":"k"}}}"#), "{kind}");
        }
        assert!(!fields.are_in(Kind::PluginMetadata));
    }
}
