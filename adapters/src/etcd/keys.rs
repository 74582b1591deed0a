//! APISIX's layout of keys and values in etcd.
//!
//! A resource is JSON under `/apisix/routes/1`; credentials are below their consumer; the list of plugins is
//! one value under `/apisix/plugins`. Folders may be there as keys of their own (`/apisix/routes/`), and other
//! programs keep things under the prefix: all other keys are ignored. This module does no I/O.

use control::store::{Change, Revision, Row};
use model::{Key, Kind};
use serde_json::{Value, json};

use super::proto::event::EventType;
use super::proto::{Event, KeyValue};

/// A range of keys, from the first up to and without the second.
pub type Range = (Vec<u8>, Vec<u8>);

/// Where things are.
#[derive(Debug, Clone)]
pub struct Layout {
    prefix: String,
}

impl Layout {
    /// Below `prefix`, without a slash at its end.
    pub fn new(prefix: &str) -> Layout {
        Layout { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Everything.
    pub fn all(&self) -> Range {
        below(format!("{}/", self.prefix))
    }

    pub fn key(&self, key: &Key) -> Vec<u8> {
        key.path(&self.prefix).into_bytes()
    }

    /// Where the resources of a kind are whose id starts with `prefix`. For consumers that takes in
    /// credentials, and the other way round.
    pub fn of_kind(&self, kind: Kind, prefix: &str) -> Range {
        below(Key::new(kind, prefix).path(&self.prefix))
    }

    pub fn plugins(&self) -> Vec<u8> {
        format!("{}/plugins", self.prefix).into_bytes()
    }

    /// The range of the history: beside all other keys, where no gateway watches.
    pub fn records(&self) -> Range {
        below(format!("{}-sluice/history/", self.prefix))
    }

    pub fn record(&self, name: &str) -> Vec<u8> {
        format!("{}-sluice/history/{name}", self.prefix).into_bytes()
    }

    /// The key of an instance's information.
    pub fn server_info(&self, id: &str) -> Vec<u8> {
        format!("{}/data_plane/server_info/{id}", self.prefix).into_bytes()
    }

    /// The range of the information of all instances.
    pub fn server_infos(&self) -> Range {
        below(format!("{}/data_plane/server_info/", self.prefix))
    }

    /// Ours; APISIX passes it over.
    pub fn note(&self, name: &str) -> Vec<u8> {
        format!("{}/sluice/notes/{name}", self.prefix).into_bytes()
    }

    /// The name of the note that a key is for.
    pub fn note_name<'k>(&self, key: &'k [u8]) -> Option<&'k str> {
        let name =
            std::str::from_utf8(key).ok()?.strip_prefix(&*self.prefix)?.strip_prefix("/sluice/notes/")?;
        (!name.is_empty()).then_some(name)
    }

    /// The resource a key is for.
    pub fn parse(&self, key: &[u8]) -> Option<Key> {
        Key::parse(&self.prefix, std::str::from_utf8(key).ok()?)
    }

    /// The row of a key and value; `None` if the key is for no resource.
    pub fn row(&self, kv: &KeyValue) -> Option<Row> {
        Some(Row {
            key: self.parse(&kv.key)?,
            // Bytes that are not UTF-8 are no JSON either, and refused where values are parsed.
            json: std::str::from_utf8(&kv.value).unwrap_or("").into(),
            created: revision(kv.create_revision),
            modified: revision(kv.mod_revision),
            // Its lease ends it in etcd; the time is not known here.
            expires: None,
        })
    }

    /// Returns the change that an event makes; `None` for keys that are ignored.
    pub fn change(&self, event: &Event) -> Option<Change> {
        let kv = event.kv.as_ref()?;
        let gone = event.r#type() == EventType::Delete;
        if kv.key == self.plugins() {
            let names = if gone { None } else { plugin_names(&kv.value) };
            return Some(Change::Plugins { names, revision: revision(kv.mod_revision) });
        }
        if let Some(name) = self.note_name(&kv.key) {
            let text = if gone { String::new() } else { note_text(&kv.value) };
            return Some(Change::Note { name: name.into(), text, revision: revision(kv.mod_revision) });
        }
        match gone {
            true => Some(Change::Delete { key: self.parse(&kv.key)?, revision: revision(kv.mod_revision) }),
            false => self.row(kv).map(Change::Put),
        }
    }
}

/// All keys that begin with these bytes.
fn below(start: String) -> Range {
    let start = start.into_bytes();
    let mut end = start.clone();
    // The last byte is one of ASCII, so there is a next one.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (start, end)
}

/// Returns the text of a note; empty if the value is not UTF-8.
pub fn note_text(value: &[u8]) -> String {
    std::str::from_utf8(value).unwrap_or_default().to_owned()
}

/// etcd counts from 1 and never down to less.
pub fn revision(number: i64) -> Revision {
    u64::try_from(number).unwrap_or(0)
}

/// The HTTP plugins of `[{"name": "cors"}, {"name": "mqtt-proxy", "stream": true}]`; `None` if it is no
/// list.
pub fn plugin_names(value: &[u8]) -> Option<Vec<String>> {
    let value: Value = serde_json::from_slice(value).ok()?;
    let http = value.as_array()?.iter().filter(|item| !is_stream(item));
    Some(http.filter_map(|item| item.get("name")?.as_str()).map(str::to_owned).collect())
}

/// The list with these HTTP plugins, and the stream plugins it had.
pub fn with_plugins(names: &[String], before: Option<&[u8]>) -> Value {
    let before: Value = before.and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default();
    let streams = before.as_array().into_iter().flatten().filter(|item| is_stream(item)).cloned();
    names.iter().map(|name| json!({ "name": name })).chain(streams).collect()
}

fn is_stream(item: &Value) -> bool {
    item.get("stream") == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Event {
        let (key, value) = (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        let kv = KeyValue { key, value, create_revision: 3, mod_revision: 7, lease: 0 };
        Event { r#type: EventType::Put.into(), kv: Some(kv) }
    }

    #[test]
    fn keys_are_apisix_s() {
        let layout = Layout::new("/apisix/");
        for (key, path) in [
            (Key::new(Kind::Route, "1"), "/apisix/routes/1"),
            (Key::new(Kind::Consumer, "jack"), "/apisix/consumers/jack"),
            (Key::credential("jack", "a"), "/apisix/consumers/jack/credentials/a"),
            (Key::new(Kind::Secret, "vault/1"), "/apisix/secrets/vault/1"),
            (Key::new(Kind::PluginMetadata, "cors"), "/apisix/plugin_metadata/cors"),
        ] {
            assert_eq!(layout.key(&key), path.as_bytes());
            assert_eq!(layout.parse(path.as_bytes()), Some(key));
        }
        for other in [
            "/apisix/routes/",
            "/apisix/gen_id",
            "/apisix/data_plane/server_info/x",
            "/other/routes/1",
            "\u{fffd}",
        ] {
            assert_eq!(layout.parse(other.as_bytes()), None, "{other}");
        }
        assert_eq!(layout.parse(b"/apisix/routes/\xff"), None);
        let (from, to) = layout.of_kind(Kind::Credential, "jack/credentials/");
        assert_eq!(
            (&*from, &*to),
            (&b"/apisix/consumers/jack/credentials/"[..], &b"/apisix/consumers/jack/credentials0"[..])
        );
        assert_eq!(layout.all().1, b"/apisix0");
    }

    #[test]
    fn events_are_changes() {
        let layout = Layout::new("/apisix");
        let Some(Change::Put(row)) = layout.change(&put("/apisix/routes/1", "{}")) else { panic!() };
        assert_eq!((row.created, row.modified, &*row.json), (3, 7, "{}"));
        let mut gone = put("/apisix/routes/1", "");
        gone.set_type(EventType::Delete);
        assert!(matches!(layout.change(&gone), Some(Change::Delete { revision: 7, .. })));
        let listed =
            layout.change(&put("/apisix/plugins", r#"[{"name":"cors"},{"name":"m","stream":true}]"#));
        let Some(Change::Plugins { names, .. }) = listed else { panic!() };
        assert_eq!(names, Some(vec!["cors".to_owned()]));
        assert!(layout.change(&put("/apisix/routes/", "init_dir")).is_none());
        let mut note = put("/apisix/sluice/notes/a", "text");
        let told = |event: &Event| match layout.change(event) {
            Some(Change::Note { name, text, revision: 7 }) => (name.to_string(), text),
            other => panic!("{other:?}"),
        };
        assert_eq!(layout.note("a"), note.kv.as_ref().unwrap().key);
        assert_eq!(told(&note), ("a".to_owned(), "text".to_owned()));
        note.set_type(EventType::Delete);
        assert_eq!(told(&note), ("a".to_owned(), String::new()));
        for other in ["/apisix/sluice/notes/", "/apisix/sluice/notes", "/other/sluice/notes/a"] {
            assert!(layout.change(&put(other, "text")).is_none(), "{other}");
        }
        assert!(layout.change(&Event::default()).is_none());
        let odd = KeyValue { key: b"/apisix/routes/1".to_vec(), value: vec![0xff], ..KeyValue::default() };
        assert_eq!(layout.row(&odd).unwrap().value(), Value::Null);
    }

    #[test]
    fn stream_plugins_stay_in_the_list() {
        let before = br#"[{"name":"cors"},{"name":"mqtt-proxy","stream":true}]"#;
        let list = with_plugins(&["csrf".to_owned()], Some(before));
        assert_eq!(list, json!([{"name": "csrf"}, {"name": "mqtt-proxy", "stream": true}]));
        assert_eq!(with_plugins(&[], Some(b"x")), json!([]));
    }
}
