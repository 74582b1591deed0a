//! All mistakes of a resource, where a gateway stops at the first.
//!
//! A part that is wrong is taken out or replaced by one that is right, and what is left is
//! checked again. What only seems wrong because something was taken out is not told.

use model::{Invalid, Kind, Resource, Upstream};
use sdk::Catalog;
use sdk::catalog::Place;
use serde_json::{Value, json};

/// Parts of one resource that are taken out at most.
const MOST: usize = 50;

/// What resources are checked against.
pub struct Mistakes<'a> {
    pub catalog: &'a dyn Catalog,
    /// The plugins in use; `None` is all.
    pub listed: Option<&'a [String]>,
}

/// The items of a declarative file, and of what kind they are.
pub fn items(document: &Value) -> Vec<(String, Kind)> {
    let sections = document.as_object().into_iter().flatten();
    let kinds = sections.filter_map(|(name, items)| Some((Kind::from_collection(name)?, items.as_array()?)));
    let items = kinds.flat_map(|(kind, items)| {
        (0..items.len()).map(move |at| (format!("/{}/{at}", kind.collection()), kind))
    });
    items.collect()
}

impl Mistakes<'_> {
    /// Everything wrong with a value by itself, each place once.
    pub fn of(&self, kind: Kind, value: &Value) -> impl Iterator<Item = Invalid> {
        let id = value.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        let id = match kind {
            Kind::Consumer => value.get("username").and_then(Value::as_str).unwrap_or("x").to_owned(),
            _ => id.unwrap_or_else(|| "1".to_owned()),
        };
        let mut found = repeatedly(value, |value| Resource::parse(kind, &id, value).map(drop));
        if kind == Kind::Proto
            && let Some(content) = value.get("content").and_then(Value::as_str)
        {
            found.extend(control::protos::check(content).err());
        }
        if let Some(upstream) = value.get("upstream") {
            let inside = repeatedly(upstream, |upstream| Upstream::parse(upstream).map(drop));
            found.extend(inside.into_iter().map(|invalid| invalid.under("/upstream")));
        }
        let place = match kind {
            Kind::Consumer | Kind::Credential => Place::Consumer,
            Kind::StreamRoute => Place::Stream,
            _ => Place::Route,
        };
        for (name, config) in value.get("plugins").and_then(Value::as_object).into_iter().flatten() {
            let listed = place == Place::Stream || self.listed.is_none_or(|listed| listed.contains(name));
            let off = config.pointer("/_meta/disable") == Some(&Value::Bool(true));
            let inside = match listed || off {
                true => repeatedly(config, |config| self.catalog.check(name, config, place)),
                false => vec![plugins::not_listed(name)],
            };
            found.extend(inside.into_iter().map(|invalid| invalid.within(name).under("/plugins")));
        }
        let mut told: Vec<Invalid> = Vec::new();
        for invalid in found {
            if !told.iter().any(|other| other.pointer == invalid.pointer) {
                told.push(invalid);
            }
        }
        told.into_iter()
    }
}

/// Checks, takes out what is wrong, and checks again.
fn repeatedly(value: &Value, check: impl Fn(&Value) -> Result<(), Invalid>) -> Vec<Invalid> {
    let mut value = value.clone();
    let mut found: Vec<Invalid> = Vec::new();
    let mut changed: Vec<String> = Vec::new();
    let mut gone: Vec<Gone> = Vec::new();
    for _ in 0..MOST {
        let Err(invalid) = check(&value) else { break };
        let now = invalid.pointer.clone();
        let pointer = gone.iter().rev().fold(now.clone(), |pointer, gone| gone.before(pointer));
        // Something around what was taken out: that it is not there is the next mistake, and ours.
        if !changed.iter().any(|place| *place == pointer || place.starts_with(&format!("{pointer}/"))) {
            found.push(Invalid { pointer: pointer.clone(), ..invalid });
        }
        if now.is_empty() || !replace(&mut value, &now, &mut gone) {
            break;
        }
        changed.push(pointer);
    }
    found
}

/// An item of a list that was taken out.
struct Gone {
    list: String,
    at: usize,
}

impl Gone {
    /// Where that stood, before this was taken out, to which a pointer leads now.
    fn before(&self, pointer: String) -> String {
        let within = pointer.strip_prefix(&*self.list).and_then(|rest| rest.strip_prefix('/'));
        let Some(within) = within else { return pointer };
        let (item, rest) = within.split_at(within.find('/').unwrap_or(within.len()));
        match item.parse::<usize>() {
            Ok(item) if item >= self.at => format!("{}/{}{rest}", self.list, item + 1),
            _ => pointer,
        }
    }
}

/// Puts something right in the place of what is wrong, or nothing. False if it is not there.
fn replace(value: &mut Value, pointer: &str, gone: &mut Vec<Gone>) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return false };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) if fields.contains_key(&name) => {
            let right = match name.as_str() {
                "uri" => Some(json!("/")),
                "uris" => Some(json!(["/"])),
                "nodes" => Some(json!({})),
                "upstream" => Some(json!({"nodes": {}})),
                "username" => Some(json!("x")),
                "upstream_id" | "service_id" => Some(json!("1")),
                _ => None,
            };
            match right.filter(|right| fields.get(&name) != Some(right)) {
                Some(right) => _ = fields.insert(name, right),
                None => _ = fields.shift_remove(&name),
            }
            true
        }
        Some(Value::Array(items)) => match name.parse::<usize>() {
            Ok(at) if at < items.len() => {
                items.remove(at);
                gone.push(Gone { list: parent.to_owned(), at });
                true
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, value: &Value) -> Vec<String> {
        let catalog = crate::wiring::catalog(&model::Boot::default()).unwrap();
        let listed = ["limit-count".to_owned(), "key-auth".to_owned()];
        let mistakes = Mistakes { catalog: &*catalog, listed: Some(&listed) };
        mistakes.of(kind, value).map(|invalid| invalid.pointer).collect()
    }

    #[test]
    fn every_mistake_is_found_and_none_of_our_making() {
        let value = json!({
            "id": 1,
            "uri": 5,
            "methods": ["GOT", "GET", "PUTT", "POST", "BREW"],
            "remote_addrs": ["x", "127.0.0.1", "y"],
            "priority": "high",
            "plugins": {
                "limit-count": {"count": -1, "time_window": 60, "rejected_code": 1},
                "limit-cout": {},
                "cors": {},
                "key-auth": {"header": 1},
            },
            "upstream": {"hash_on": "moon", "nodes": {"127.0.0.1:80": -1}},
        });
        let mut found = found(Kind::Route, &value);
        found.sort();
        assert_eq!(
            found,
            [
                "/methods/0",
                "/methods/2",
                "/methods/4",
                "/plugins/cors",
                "/plugins/key-auth/header",
                "/plugins/limit-count/count",
                "/plugins/limit-count/rejected_code",
                "/plugins/limit-cout",
                "/priority",
                "/remote_addrs/0",
                "/remote_addrs/2",
                "/upstream/hash_on",
                "/upstream/nodes/127.0.0.1:80",
                "/uri",
            ]
        );
    }

    #[test]
    fn each_item_of_a_list_has_its_own_mistakes_at_its_own_place() {
        let node = |port: i64, weight: i64| json!({"host": "127.0.0.1", "port": port, "weight": weight});
        let nodes = json!([node(80, -1), node(80, 1), node(0, -1), node(80, 1), node(80, -1)]);
        let mut places = found(Kind::Upstream, &json!({ "nodes": nodes }));
        places.sort();
        assert_eq!(places, ["/nodes/0/weight", "/nodes/2/port", "/nodes/2/weight", "/nodes/4/weight"]);
        let lists = json!({"uris": [5, "/", 6], "upstream": {"nodes": {}}});
        assert_eq!(found(Kind::Route, &lists), ["/uris/0", "/uris/2"]);
    }

    #[test]
    fn what_is_right_has_none() {
        let value = json!({"uri": "/", "upstream": {"nodes": {}}, "plugins": {"key-auth": {}}});
        assert_eq!(found(Kind::Route, &value), [""; 0]);
        let value = json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}}});
        assert_eq!(found(Kind::Consumer, &value), [""; 0]);
    }
}
