//! All mistakes of a resource, where a gateway stops at the first.
//!
//! A wrong part is taken out or replaced by a valid one, and the rest is checked again; a missing part has a stand-in
//! meanwhile. Mistakes that only follow from a part taken out or put in are not reported.

mod missing;

use missing::Missing;
use model::apisix_plugins::Subsystem;
use model::{Invalid, Kind, Resource, Upstream, schema};
use sdk::Catalog;
use sdk::catalog::SchemaType;
use serde_json::{Value, json};

/// Parts of one resource that are taken out at most.
const MOST: usize = 50;

/// Checks resources against a catalog of plugins.
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
        let document = match kind {
            Kind::Secret => id.split('/').next().and_then(schema::document_of_secret),
            _ => Some(schema::document(kind)),
        };
        let mut found =
            repeatedly(value, document.as_ref(), |value| Resource::parse(kind, &id, value).map(drop));
        if kind == Kind::Proto
            && let Some(content) = value.get("content").and_then(Value::as_str)
        {
            found.extend(sdk::protos::compile(content).err());
        }
        if kind == Kind::Script
            && let Ok(Resource::Script(script)) = Resource::parse(kind, &id, value)
        {
            found.extend(self.catalog.check_script(&id, &script).err());
        }
        if let Some(upstream) = value.get("upstream") {
            let document = schema::document(Kind::Upstream);
            let inside =
                repeatedly(upstream, Some(&document), |upstream| Upstream::parse(upstream).map(drop));
            found.extend(inside.into_iter().map(|invalid| invalid.under("/upstream")));
        }
        let place = match kind {
            Kind::Consumer | Kind::Credential => SchemaType::Consumer,
            Kind::StreamRoute => SchemaType::Stream,
            _ => SchemaType::Route,
        };
        for (name, config) in value.get("plugins").and_then(Value::as_object).into_iter().flatten() {
            let listed = place == SchemaType::Stream
                || self.listed.is_none_or(|listed| listed.contains(name))
                || self.needs_no_entry(name);
            let off = config.pointer("/_meta/disable") == Some(&Value::Bool(true));
            let inside = match listed || off {
                true => {
                    let schema = self.schema(name, place);
                    repeatedly(config, schema.as_ref(), |config| self.catalog.check(name, config, place))
                }
                false => vec![plugins::not_listed(name)],
            };
            found.extend(inside.into_iter().map(|invalid| invalid.within(name).under("/plugins")));
        }
        let mut reported: Vec<Invalid> = Vec::new();
        for invalid in found {
            let about = |one: &Invalid| about(&one.pointer, &one.reason, one.hint.as_deref());
            if !reported.iter().any(|other| is_covered(&about(&invalid), &about(other))) {
                reported.push(invalid);
            }
        }
        reported.into_iter()
    }

    fn needs_no_entry(&self, name: &str) -> bool {
        let all = self.catalog.about();
        all.iter()
            .any(|about| about.needs_no_entry && about.subsystem == Subsystem::Http && about.name == name)
    }

    /// The schema of a plugin's settings.
    fn schema(&self, name: &str, place: SchemaType) -> Option<Value> {
        let subsystem = if place == SchemaType::Stream { Subsystem::Stream } else { Subsystem::Http };
        let facts = self.catalog.facts(subsystem, name)?;
        let of_consumers = facts.consumer_schema.filter(|_| place == SchemaType::Consumer);
        Some(of_consumers.unwrap_or(facts.schema))
    }
}

/// Returns the subject of a mistake: its place, and the field that the object there lacks, if any.
pub fn about(pointer: &str, reason: &str, hint: Option<&str>) -> (String, Option<String>) {
    (pointer.to_owned(), missing::named(reason, hint).map(str::to_owned))
}

/// Whether another mistake covers this one: each place has one, but an object may lack several fields.
pub fn is_covered(one: &(String, Option<String>), by: &(String, Option<String>)) -> bool {
    one.0 == by.0 && (one.1.is_none() || one.1 == by.1)
}

/// Checks, takes out what is wrong, and checks again.
fn repeatedly(
    value: &Value,
    schema: Option<&Value>,
    check: impl Fn(&Value) -> Result<(), Invalid>,
) -> Vec<Invalid> {
    let Err(first) = check(value) else { return Vec::new() };
    let mut value = value.clone();
    let mut found: Vec<Invalid> = Vec::new();
    let mut gone: Vec<Gone> = Vec::new();
    let filled = |value: &mut Value, but: &[String]| match schema {
        Some(schema) => missing::fill(schema, value, but),
        None => Vec::new(),
    };
    let lacking = filled(&mut value, &[]);
    let mut changed: Vec<String> = lacking.iter().map(Missing::place).collect();
    // Places whose stand-ins were wrong too.
    let mut unfit: Vec<String> = Vec::new();
    for _ in 0..MOST {
        let Err(invalid) = check(&value) else { break };
        let now = invalid.pointer.clone();
        let before = |now: String| gone.iter().rev().fold(now, |pointer, gone| gone.before(pointer));
        let pointer = before(now.clone());
        let alternative =
            schema.and_then(|schema| missing::fill_alternative(schema, &mut value, &invalid, &unfit));
        if let Some(lacking) = alternative {
            for lacks in lacking {
                let place = before(lacks.place());
                if !changed.contains(&place) {
                    let said = invalid.clone().at(pointer.clone());
                    found.push(said.expected(lacks.expected()).hint(lacks.hint()));
                    changed.push(place);
                }
            }
            continue;
        }
        let is_ours = changed.iter().any(|place| is_within(&pointer, place));
        // Something around what was taken out: that it is not there is the next mistake, and ours.
        if !is_ours && !changed.iter().any(|place| is_within(place, &pointer)) {
            found.push(invalid.at(pointer.clone()));
        }
        if now.is_empty() || !replace(&mut value, &now, &mut gone) {
            break;
        }
        if is_ours {
            unfit.push(now);
        }
        // A required field that was taken out.
        filled(&mut value, &unfit);
        changed.push(pointer);
    }
    // In the words of the check, where nothing else is wrong any more.
    let is_moved = |lacks: &Missing| gone.iter().any(|gone| is_within(&lacks.object, &gone.list));
    found.extend(lacking.iter().filter_map(|lacks| {
        let without = lacks.taken_from(&value).filter(|_| !is_moved(lacks));
        match without.map(|without| check(&without)) {
            Some(Ok(())) => None,
            Some(Err(invalid)) if lacks.is_told_by(&invalid) => Some(invalid),
            _ => Some(lacks.said_as(&first)),
        }
    }));
    found
}

fn is_within(pointer: &str, place: &str) -> bool {
    pointer.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
    fn each_missing_field_is_reported_and_the_wrong_fields_beside_it() {
        let listed = |kind: Kind, value: Value| {
            let catalog = crate::wiring::catalog(&model::Boot::default()).unwrap();
            let mistakes = Mistakes { catalog: &*catalog, listed: None };
            let mut reported: Vec<(String, String)> =
                mistakes.of(kind, &value).map(|invalid| (invalid.pointer, invalid.reason)).collect();
            reported.sort();
            reported
        };
        let lacks = |pointer: &str, before: &str, name: &str| {
            (pointer.to_owned(), format!("{before}property \"{name}\" is required"))
        };
        let plugins = json!({
            "limit-req": {"rejected_code": 1},
            "syslog": {"port": "x"},
            "limit-count": {"rules": [{"count": 1}, {"time_window": 1, "key": "a"}]},
        });
        let reported =
            listed(Kind::Route, json!({"uri": "/", "upstream": {"nodes": {}}, "plugins": plugins}));
        let err = |name: &str| format!("failed to check the configuration of plugin {name} err: ");
        let rule = |at: usize| {
            err("limit-count")
                + &format!("property \"rules\" validation failed: failed to validate item {at}: ")
        };
        let (first, second) = (rule(1), rule(2));
        let rules = "/plugins/limit-count/rules";
        assert_eq!(
            reported
                .iter()
                .filter(|(pointer, _)| !pointer.ends_with("_code") && !pointer.ends_with("/port"))
                .collect::<Vec<_>>(),
            [
                &lacks(&format!("{rules}/0"), &first, "key"),
                &lacks(&format!("{rules}/0"), &first, "time_window"),
                &lacks(&format!("{rules}/1"), &second, "count"),
                &lacks("/plugins/limit-req", &err("limit-req"), "burst"),
                &lacks("/plugins/limit-req", &err("limit-req"), "key"),
                &lacks("/plugins/limit-req", &err("limit-req"), "rate"),
                &lacks("/plugins/syslog", &err("syslog"), "host"),
            ]
        );
        let wrong: Vec<&str> = reported.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert!(
            wrong.contains(&"/plugins/limit-req/rejected_code") && wrong.contains(&"/plugins/syslog/port")
        );

        // Wrong fields that are required do not hide each other.
        let wrong = json!({"uri": "/", "plugins": {"limit-req": {"rate": -1, "burst": "x"}}});
        let places: Vec<String> =
            listed(Kind::Route, wrong).into_iter().map(|(pointer, _)| pointer).collect();
        assert_eq!(places, ["/plugins/limit-req", "/plugins/limit-req/burst", "/plugins/limit-req/rate"]);

        let said = "invalid configuration: ";
        assert_eq!(
            listed(Kind::Secret, json!({"id": "vault/1"})),
            ["prefix", "token", "uri"].map(|name| lacks("", said, name))
        );
        // Of several ways, the one that is nearest is taken to be meant.
        let catalog = crate::wiring::catalog(&model::Boot::default()).unwrap();
        let mistakes = Mistakes { catalog: &*catalog, listed: None };
        let hints = |config: Value| -> Vec<(String, Option<String>)> {
            let value = json!({"uri": "/", "plugins": {"limit-count": config}});
            let reported = mistakes.of(Kind::Route, &value);
            let mut reported: Vec<_> = reported.map(|invalid| (invalid.pointer, invalid.hint)).collect();
            reported.sort();
            reported
        };
        let place = "/plugins/limit-count".to_owned();
        let lacking = |name: &str| (place.clone(), Some(format!("property `{name}` is required")));
        assert_eq!(hints(json!({})), [lacking("count"), lacking("time_window")]);
        let conn = json!({"uri": "/", "plugins": {"limit-conn": {"burst": "x"}}});
        let all: Vec<Invalid> = mistakes.of(Kind::Route, &conn).collect();
        let burst = all.iter().filter(|one| one.pointer == "/plugins/limit-conn/burst").count();
        assert_eq!((all.len(), burst), (4, 1), "{all:?}");
        let places: Vec<String> =
            hints(json!({"count": -1, "rejected_code": 1})).into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, [&*place, "/plugins/limit-count/count", "/plugins/limit-count/rejected_code"]);

        let consumer = json!({"username": "jack", "plugins": {"basic-auth": {}}});
        let reported = listed(Kind::Consumer, consumer);
        let err = err("basic-auth");
        assert_eq!(reported, ["password", "username"].map(|name| lacks("/plugins/basic-auth", &err, name)));
    }

    #[test]
    fn what_is_right_has_none() {
        let value = json!({"uri": "/", "upstream": {"nodes": {}}, "plugins": {"key-auth": {}}});
        assert_eq!(found(Kind::Route, &value), [""; 0]);
        let value = json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}}});
        assert_eq!(found(Kind::Consumer, &value), [""; 0]);
    }
}
