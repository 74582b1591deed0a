//! The keys `config.yaml` may hold: APISIX 3.18's, and a few of ours.
//!
//! This table is the only place that names them all, and the only one with their
//! defaults. A key is used, or it is accepted with a warning that says why it has
//! no effect here; any other gets a warning that names the nearest one. Missing
//! features have their reason in [`gaps`](crate::gaps). `cargo x gen` writes the
//! tables of `docs/configuration.md` from it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::yaml::{self, Variables};

mod control;
mod discovery;
mod http;
mod idle;
mod plugins;
mod row;
mod traffic;

pub use row::Row;

/// Where a list may stand for its one member: each has the same keys.
pub const LISTS: &[&str] = &["discovery.kubernetes"];

/// The used keys, by the name of their table in the documentation.
pub const SECTIONS: &[(&str, &[Row])] = &[
    ("ports", traffic::PORTS),
    ("tls", traffic::TLS),
    ("peers", traffic::PEERS),
    ("process", traffic::PROCESS),
    ("http-times", http::TIMES),
    ("http-streams", http::STREAMS),
    ("http-limits", http::LIMITS),
    ("upstreams", http::UPSTREAMS),
    ("access-log", http::ACCESS_LOG),
    ("streams", traffic::STREAMS),
    ("deployment", control::DEPLOYMENT),
    ("admin", control::ADMIN),
    ("sluice", control::SLUICE),
    ("plugins", plugins::PLUGINS),
    ("discovery", discovery::DISCOVERY),
];

/// Every key there is.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    SECTIONS.iter().flat_map(|(_, rows)| *rows).chain(idle::IDLE)
}

/// The used keys by path, with their parsed defaults; null for a key without a default.
static DEFAULTS: LazyLock<BTreeMap<&str, (&Row, Value)>> = LazyLock::new(|| {
    let used = rows().filter(|row| row.idle.is_none());
    let with_default = |row: &'static Row| {
        // A test parses every default, so this cannot fail.
        let parsed = yaml::parse(row.default, Variables::Keep).map(|document| document.value);
        (row.path, (row, parsed.expect("the default of a setting is valid YAML")))
    };
    used.map(with_default).collect()
});

/// The row of a used key without `*`, and its default.
pub fn find(path: &str) -> Option<(&'static Row, &'static Value)> {
    DEFAULTS.get(path).map(|(row, default)| (*row, default))
}

/// The section at `path` with the defaults of its settings. A group that is absent gets them only if its first setting
/// has one: `dump` stays absent without a path.
pub fn with_defaults(path: &str, written: &Value) -> Value {
    let mut filled = written.clone();
    let Some(section) = filled.as_object_mut() else { return filled };
    section.retain(|_, value| !value.is_null());
    let below = |row: &Row| row.path.strip_prefix(path).and_then(|path| path.strip_prefix('.'));
    let mut last_group = "";
    for (name, row) in rows().filter_map(|row| Some((below(row)?, row))) {
        let default = find(row.path).map_or(&Value::Null, |(_, default)| default);
        let (group, name) = name.split_once('.').unwrap_or(("", name));
        let is_first = std::mem::replace(&mut last_group, group) != group;
        if is_first && !group.is_empty() && !default.is_null() {
            section.entry(group).or_insert_with(|| json!({}));
        }
        let settings = match group {
            "" => Some(&mut *section),
            group => section.get_mut(group).and_then(Value::as_object_mut),
        };
        if let Some(settings) = settings.filter(|_| !default.is_null()) {
            let setting = settings.entry(name).or_insert(Value::Null);
            if setting.is_null() {
                *setting = default.clone();
            }
        }
    }
    filled
}

/// The tables of the documentation: of each used setting its key, type, default and meaning.
pub fn tables() -> Map<String, Value> {
    let line = |row: &Row| {
        let default = match (row.words, row.default) {
            ("", "") => "none".to_owned(),
            ("", value) => format!("`{value}`"),
            (words, _) => words.to_owned(),
        };
        json!({
            "key": row.path.replace('*', "NAME"),
            "ours": row.ours,
            "type": row.shape.kind(),
            "default": default,
            "meaning": row.meaning,
        })
    };
    let lines = |rows: &[Row]| rows.iter().filter(|row| !row.meaning.is_empty()).map(line).collect();
    SECTIONS.iter().map(|(name, rows)| ((*name).to_owned(), lines(rows))).collect()
}

/// Where keys of APISIX 1 and 2 went.
pub const MOVED: &[(&str, &str)] = &[
    ("apisix.admin_key", "deployment.admin.admin_key"),
    ("apisix.allow_admin", "deployment.admin.allow_admin"),
    ("apisix.admin_listen", "deployment.admin.admin_listen"),
    ("apisix.port_admin", "deployment.admin.admin_listen.port"),
    ("apisix.enable_admin_cors", "deployment.admin.enable_admin_cors"),
    ("apisix.https_admin", "deployment.admin.https_admin"),
    ("apisix.config_center", "deployment.role_traditional.config_provider"),
    ("etcd", "deployment.etcd"),
    ("nginx_config.http.lua_shared_dicts", "nginx_config.http.lua_shared_dict"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::shape::Shape;

    #[test]
    fn sections_get_the_defaults_of_the_table() {
        let filled = |written| with_defaults("discovery.consul_kv", &written);
        let all =
            filled(json!({"servers": ["http://a"], "token": null, "timeout": {"read": 7, "send": null}}));
        assert_eq!(
            all,
            json!({
                "servers": ["http://a"], "fetch_interval": 3, "prefix": "upstreams", "weight": 1,
                "timeout": {"connect": 2000, "send": 2000, "read": 7}, "ssl_verify": true,
            })
        );
        assert_eq!(filled(all.clone()), all);
        let dump = filled(json!({"dump": {"path": "d"}}))["dump"].take();
        assert_eq!(dump, json!({"path": "d", "load_on_init": true, "expire": 0}));
        assert_eq!(filled(json!([1])), json!([1]));
    }

    #[test]
    fn every_default_fits_its_shape() {
        for row in rows().filter(|row| row.idle.is_none()) {
            let documented = row.meaning.is_empty() == matches!(row.path, "plugin_attr.*" | "discovery.*");
            assert!(
                documented && !row.meaning.contains('\n'),
                "{} has no line in the documentation",
                row.path
            );
            let (_, default) = find(row.path).unwrap();
            assert_eq!(default.is_null(), row.default.is_empty(), "{}", row.path);
            if !default.is_null() {
                let checked = row.shape.check(default);
                assert!(checked.is_ok(), "{}: {:?}", row.path, checked);
            }
            if let Shape::Within(least, most) = row.shape {
                let bytes = crate::boot::size(default).unwrap();
                assert!((least..=most).contains(&bytes), "{}", row.path);
            }
        }
    }
}
