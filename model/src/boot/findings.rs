//! Which keys of a `config.yaml` are known, used, without effect, or wrong.

use serde_json::Value;

use super::section::Section;
use super::{keys, values};
use crate::apisix_plugins::{self, Subsystem};
use crate::diagnostic::{Diagnostic, Source};
use crate::document::Document;
use crate::invalid::{nearest, push_pointer};
use crate::schema::json_name;
use crate::{Invalid, Kind};

/// Gathers what is found in a file.
pub struct Findings<'a> {
    source: Source<'a>,
    document: &'a Document,
    /// The plugins this build has.
    plugins: &'a [&'a str],
    found: Vec<Diagnostic>,
    failed: bool,
}

impl<'a> Findings<'a> {
    pub fn new(source: Source<'a>, document: &'a Document, plugins: &'a [&'a str]) -> Findings<'a> {
        Findings { source, document, plugins, found: Vec::new(), failed: false }
    }

    /// Checks the whole document against the table of keys.
    pub fn check(&mut self) {
        self.check_map(&self.document.value, "", "");
        self.check_reach();
    }

    /// Networks that may use the Admin API, and cannot: by itself it listens on this machine alone.
    fn check_reach(&mut self) {
        let file = Section::of(&self.document.value);
        let listens =
            file.text("/deployment/role") != Some("data_plane") && file.bool("/apisix/enable_admin");
        let elsewhere = file.bool("/apisix/enable_admin_on_node_listen")
            || file.get("/deployment/admin/admin_listen/ip").is_some();
        let pointer = "/deployment/admin/allow_admin";
        let allowed = file.value(pointer, |value| values::list(value, values::network));
        if listens && !elsewhere && allowed.iter().any(|network| !network.addr().is_loopback()) {
            let message = "`deployment.admin.allow_admin` allows other machines, which cannot reach the Admin API: it \
                        listens on 127.0.0.1, where APISIX listens on 0.0.0.0";
            let hint =
                "write `admin_listen: {ip: 0.0.0.0, port: 9180}` under `deployment.admin` to let them in";
            self.warn(Invalid::new(message).at(pointer).hint(hint));
        }
    }

    /// Reads what was checked, unless it is wrong; gives all findings in the order of the file.
    pub fn finish<T>(
        mut self,
        read: impl FnOnce() -> Result<T, Invalid>,
    ) -> Result<(T, Vec<Diagnostic>), Vec<Diagnostic>> {
        let value = if self.failed { None } else { read().map_err(|invalid| self.error(invalid)).ok() };
        self.found.sort_by_key(|found| (found.line, found.column));
        match value {
            Some(value) => Ok((value, self.found)),
            None => Err(self.found),
        }
    }

    /// Checks a map against the rows below `path` (names joined with dots).
    fn check_map(&mut self, value: &Value, path: &str, pointer: &str) {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return,
            Value::Array(items) if keys::LISTS.contains(&path) => {
                for (at, item) in items.iter().enumerate() {
                    self.check_map(item, path, &format!("{pointer}/{at}"));
                }
                return;
            }
            other => {
                let invalid = Invalid::new(format!("wrong type: expected object, got {}", json_name(other)))
                    .at(pointer)
                    .expected("a map of names to values")
                    .got(json_name(other));
                let listens = siblings(&format!("{path}.ip")).any(|name| name == "ip");
                let as_address = if listens { values::as_map_of_address(other) } else { None };
                return self.error(match as_address.or_else(|| values::without_space(other)) {
                    Some(help) => invalid.hint(help),
                    None => invalid,
                });
            }
        };
        for (name, value) in map {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let mut pointer = pointer.to_owned();
            push_pointer(&mut pointer, name);
            let below = keys::rows().any(|row| is_prefix(&path, row.path));
            match keys::rows().find(|row| matches(&path, row.path)) {
                _ if below => self.check_map(value, &path, &pointer),
                Some(row) => self.check_row(row, value, &path, pointer),
                None => {
                    let invalid = match keys::MOVED.iter().find(|(old, _)| *old == path) {
                        Some((_, new)) => Invalid::new(format!("unknown key `{path}`"))
                            .hint(format!("this moved to `{new}` in APISIX 3")),
                        None if path != *name && stands_at_top(name) => Invalid::new(format!(
                            "unknown key `{path}`"
                        ))
                        .hint(format!("`{name}` is a key of the top level: write it without indentation")),
                        None => Invalid::unknown_key(&path, name, siblings(&path)),
                    };
                    self.warn(ignored(invalid).at(pointer));
                }
            }
        }
    }

    fn check_row(&mut self, row: &keys::Row, value: &Value, path: &str, pointer: String) {
        if let Some(why) = row.idle {
            let written = value.to_string();
            // A snippet of comments says nothing.
            let comment = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
            if written == row.anyway || value.as_str().is_some_and(|text| text.lines().all(comment)) {
                return;
            }
            self.warn(Invalid::new(format!("`{path}` has no effect: {why}")).at(pointer));
            return;
        }
        if value.is_null() {
            return;
        }
        let faults = faults(row, value);
        if !faults.is_empty() {
            return faults.into_iter().for_each(|invalid| self.error(invalid.under(&pointer)));
        }
        if let Some(known) = row.shape.members() {
            self.check_members(value, known, &pointer);
        }
        match row.path {
            "plugins" => self.check_plugins(value, &pointer),
            "stream_plugins" => self.check_stream_plugins(value, &pointer),
            "plugin_attr.*" => self.check_attribute(path, pointer),
            _ => {}
        }
    }

    /// The keys of each map within a value.
    fn check_members(&mut self, value: &Value, known: &[&str], pointer: &str) {
        match value {
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.check_members(item, known, &format!("{pointer}/{at}"));
                }
            }
            Value::Object(map) => {
                for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
                    let invalid = Invalid::unknown_key(name, name, known.iter().copied());
                    self.warn(ignored(invalid).under(pointer));
                }
            }
            _ => {}
        }
    }

    /// The names in a list of plugins.
    fn check_plugins(&mut self, value: &Value, pointer: &str) {
        for invalid in unknown_plugins(pointer, named(value, pointer), self.plugins) {
            self.warn(invalid);
        }
    }

    /// The names in a list of plugins of streams.
    fn check_stream_plugins(&mut self, value: &Value, pointer: &str) {
        let in_no_file = |(_, name): &(String, &str)| !self.plugins.contains(&&*stream_module(name));
        let unknown: Vec<_> = named(value, pointer).filter(in_no_file).collect();
        for invalid in unknown_stream_plugins(unknown.into_iter()) {
            self.warn(invalid);
        }
    }

    /// `plugin_attr.NAME`
    fn check_attribute(&mut self, path: &str, pointer: String) {
        let name = path.split_once('.').map_or(path, |(_, name)| name);
        if self.plugins.contains(&name) {
            return;
        }
        let invalid = match apisix_plugins::is_apisix(name) {
            true => Invalid::new(format!("`{path}` has no effect: this version does not have that plugin")),
            false => ignored(Invalid::unknown_key(path, name, known_plugins(self.plugins))),
        };
        self.warn(invalid.at(pointer));
    }

    fn warn(&mut self, invalid: Invalid) {
        self.found.push(self.source.warning(self.document, invalid));
    }

    fn error(&mut self, invalid: Invalid) {
        self.failed = true;
        self.found.push(self.source.invalid(self.document, invalid));
    }
}

/// Returns the mistakes of a value, one for each wrong item of a list.
fn faults(row: &keys::Row, value: &Value) -> Vec<Invalid> {
    let mut faults = Vec::new();
    // A check reports the first wrong item; without that one, the next.
    let mut rest = value.clone();
    let mut places: Vec<usize> = (0..value.as_array().map_or(0, Vec::len)).collect();
    while let Err(mut invalid) = row.shape.check(&rest) {
        let (item, below) = split_item(&invalid.pointer);
        let Some(at) = item.filter(|at| *at < places.len()) else {
            // Without its wrong items the list may be too short, which is no fault of its own.
            if faults.is_empty() {
                faults.push(invalid);
            }
            break;
        };
        invalid.pointer = format!("/{}{below}", places.remove(at));
        faults.push(invalid);
        if let Value::Array(items) = &mut rest {
            items.remove(at);
        }
    }
    faults
}

/// The item that a pointer into a list leads to, and what is left of the pointer: 1 and `/port` of `/1/port`.
fn split_item(pointer: &str) -> (Option<usize>, &str) {
    let path = pointer.strip_prefix('/').unwrap_or_default();
    let end = path.find('/').unwrap_or(path.len());
    (path[..end].parse().ok(), &path[end..])
}

/// APISIX, too, ignores keys that it does not know.
fn ignored(mut invalid: Invalid) -> Invalid {
    invalid.reason.push_str(" is ignored");
    invalid.expected = None;
    invalid
}

fn known_plugins<'a>(built: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    built.iter().copied().chain(Subsystem::Http.plugins().iter().map(|known| known.name))
}

/// Whether resources are served without it, should it not be built.
fn is_unseen(name: &str) -> bool {
    apisix_plugins::find(Subsystem::Http, name).is_some_and(|known| known.unseen_in(Kind::Route).is_some())
}

/// Returns findings about the names of a list of plugins: one for each unknown name, and one for each effect of the
/// plugins of APISIX that this build lacks.
pub fn unknown_plugins<'a>(
    list: &str,
    names: impl Iterator<Item = (String, &'a str)>,
    built: &[&str],
) -> Vec<Invalid> {
    let mut found = Vec::new();
    let (mut lacking, mut unseen) = (Vec::new(), Vec::new());
    for (pointer, name) in names.filter(|(_, name)| !built.contains(name)) {
        if apisix_plugins::is_apisix(name) {
            if is_unseen(name) { &mut unseen } else { &mut lacking }.push(name);
            continue;
        }
        let invalid = Invalid::new(format!("unknown plugin `{name}` in the list of plugins")).at(pointer);
        found.push(match nearest(name, known_plugins(built)) {
            Some(close) => invalid.hint(format!("did you mean `{close}`?")),
            None => invalid,
        });
    }
    for (names, effect) in [
        (lacking, "resources using them are refused"),
        (unseen, "resources using them are served as if the plugin were absent; logs or traces are not sent"),
    ] {
        if names.is_empty() {
            continue;
        }
        let (count, plural) = (names.len(), if names.len() == 1 { "plugin" } else { "plugins" });
        let names = names.join(", ");
        let message = format!("this version does not have {count} {plural} of the list: {names}");
        found.push(Invalid::new(message).at(list).hint(effect));
    }
    found
}

/// The module of a plugin of streams in a file, by which [`Boot::parse`](super::Boot::parse) knows it.
pub fn stream_module(name: &str) -> String {
    format!("apisix.stream.plugins.{name}")
}

/// The same for a list of plugins of streams, of which this build lacks none.
pub fn unknown_stream_plugins<'a>(names: impl Iterator<Item = (String, &'a str)>) -> Vec<Invalid> {
    let known = || Subsystem::Stream.plugins().iter().map(|known| known.name);
    let unknown = names.filter(|(_, name)| known().all(|known| known != *name));
    let invalid = unknown.map(|(pointer, name)| {
        let message = format!("unknown plugin `{name}` in the list of plugins of streams");
        let invalid = Invalid::new(message).at(pointer);
        match nearest(name, known()) {
            Some(close) => invalid.hint(format!("did you mean `{close}`?")),
            None => invalid.hint(format!("those of streams are {}", known().collect::<Vec<_>>().join(", "))),
        }
    });
    invalid.collect()
}

/// The texts of a list, each with its place.
fn named<'v>(list: &'v Value, pointer: &str) -> impl Iterator<Item = (String, &'v str)> {
    let items = list.as_array().into_iter().flatten().enumerate();
    items.filter_map(move |(at, item)| Some((format!("{pointer}/{at}"), item.as_str()?)))
}

/// Whether `path` is the row's, `*` being any name.
fn matches(path: &str, row: &str) -> bool {
    let (mut path, mut row) = (path.split('.'), row.split('.'));
    loop {
        match (path.next(), row.next()) {
            (None, None) => return true,
            (Some(name), Some(known)) if known == "*" || known == name => {}
            _ => return false,
        }
    }
}

/// Whether the row lies below `path`.
fn is_prefix(path: &str, row: &str) -> bool {
    let depth = path.split('.').count();
    let mut cut = row.match_indices('.').map(|(at, _)| at);
    cut.nth(depth - 1).is_some_and(|at| matches(path, &row[..at]))
}

/// Whether a key of this name stands at the top level of the file.
pub fn stands_at_top(name: &str) -> bool {
    siblings(name).any(|known| known == name)
}

/// The names known beside the last of `path`.
fn siblings(path: &str) -> impl Iterator<Item = &'static str> {
    let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent).to_owned();
    keys::rows().filter_map(move |row| {
        let rest = if parent.is_empty() {
            row.path
        } else {
            let depth = parent.split('.').count();
            let at = row.path.match_indices('.').nth(depth - 1)?.0;
            if !matches(&parent, &row.path[..at]) {
                return None;
            }
            &row.path[at + 1..]
        };
        rest.split('.').next().filter(|name| *name != "*")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_in_the_table_twice() {
        for (at, row) in keys::rows().enumerate() {
            assert!(keys::rows().take(at).all(|other| other.path != row.path), "{}", row.path);
        }
        for (old, new) in keys::MOVED {
            assert!(keys::rows().all(|row| row.path != *old), "{old}");
            assert!(keys::rows().any(|row| row.path == *new || is_prefix(new, row.path)), "{new}");
        }
    }
}
