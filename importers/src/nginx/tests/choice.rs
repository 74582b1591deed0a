//! nginx's choice among locations and servers, against a small model of its documented rules and the
//! gateway's own router.

use std::sync::Arc;

use regex::RegexBuilder;
use sdk::expr::Expr;
use sdk::testing::Probe;
use snapshot::plan::Plan;
use snapshot::router::{Mode, Options, Router, Rule};

use super::*;

/// The router with the routes of an import.
fn router(import: &Import) -> Router {
    let mut router = Router::new(Mode::HostUri, Options::default());
    for one in import.resources.iter().filter(|one| one.key.kind == model::Kind::Route) {
        let texts = |one: &str, many: &str, value: &Value| -> Box<[Arc<str>]> {
            let listed = value[many].as_array().cloned().unwrap_or_default();
            listed.iter().chain(value.get(one)).filter_map(|text| Some(text.as_str()?.into())).collect()
        };
        let rule = Rule {
            id: one.key.id.as_str().into(),
            uris: texts("uri", "uris", &one.value),
            hosts: texts("host", "hosts", &one.value),
            methods: 0,
            remote_addrs: Box::default(),
            vars: one.value.get("vars").map(|vars| Box::new(Expr::compile(vars).unwrap())),
            code: None,
            priority: one.value["priority"].as_i64().unwrap_or(0),
        };
        let plan = Plan::new(sdk::RouteInfo::new(&one.key.id, Default::default()));
        router.insert(Arc::new(rule), Arc::new(plan));
    }
    router
}

/// The body of the answer that the import gives to a request.
fn answer(import: &Import, router: &Router, host: &str, path: &str) -> String {
    let mut probe = Probe::request("GET", path, &[("Host", host)]);
    let mut x = probe.exchange();
    let found = router.find(&mut x).plan().map(|plan| plan.info.id.to_string());
    let id = found.unwrap_or_else(|| panic!("no route for {host}{path}"));
    let value = &resource(import, &format!("routes/{id}")).value;
    let body = value.pointer("/plugins/fault-injection/abort/body").and_then(Value::as_str);
    body.unwrap_or("proxied").to_owned()
}

/// A location of the model: its modifier, its text and those within it.
#[derive(Debug, Clone)]
struct Place {
    modifier: &'static str,
    text: String,
    name: usize,
    within: Vec<Place>,
}

impl Place {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("location {} \"{}\" {{ ", self.modifier, self.text.replace('\\', "\\\\")));
        self.within.iter().for_each(|inner| inner.write(out));
        out.push_str(&format!("return 200 L{}; }}\n", self.name));
    }
}

/// The outcome of nginx's search in one block.
enum Found {
    /// The search ends.
    Final(usize),
    /// Regular expressions of outer blocks may still win.
    Prefix(usize),
    Nothing,
}

/// nginx's documented search.
fn search(places: &[Place], path: &str) -> Found {
    if let Some(exact) = places.iter().find(|place| place.modifier == "=" && place.text == path) {
        return Found::Final(exact.name);
    }
    let is_prefix = |place: &&Place| matches!(place.modifier, "" | "^~") && path.starts_with(&place.text);
    let longest = places.iter().filter(is_prefix).max_by_key(|place| place.text.len());
    let mut found = Found::Nothing;
    if let Some(longest) = longest {
        found = match search(&longest.within, path) {
            Found::Final(name) => return Found::Final(name),
            Found::Prefix(name) => Found::Prefix(name),
            Found::Nothing => Found::Prefix(longest.name),
        };
    }
    if longest.is_none_or(|longest| longest.modifier != "^~") {
        for place in places.iter().filter(|place| place.modifier.starts_with('~')) {
            let regex =
                RegexBuilder::new(&place.text).case_insensitive(place.modifier == "~*").build().unwrap();
            if regex.is_match(path) {
                return Found::Final(place.name);
            }
        }
    }
    found
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below.max(1)
    }

    fn path(&mut self) -> String {
        let mut path = String::new();
        for _ in 0..=self.below(3) {
            path.push('/');
            path.push_str(["a", "b", "aa", "A", ""][self.below(5)]);
        }
        while path.contains("//") {
            path = path.replace("//", "/");
        }
        path
    }

    fn places(&mut self, start: &str, depth: usize, count: &mut usize) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for _ in 0..self.below(6) {
            *count += 1;
            let modifier = ["", "", "=", "^~", "~", "~*"][self.below(6)];
            let text = match modifier {
                "~" | "~*" => ["a$", "^/a", "/b/", "A", "aa", "^/b.*a$"][self.below(6)].to_owned(),
                _ => format!("{}{}", start.trim_end_matches('/'), self.path()),
            };
            let plain = |modifier: &str| matches!(modifier, "" | "^~");
            let twice = places.iter().any(|place| {
                place.text == text && (place.modifier == modifier || plain(place.modifier) && plain(modifier))
            });
            if twice {
                continue;
            }
            let within = match plain(modifier) && depth < 2 {
                true => self.places(&text, depth + 1, count),
                false => Vec::new(),
            };
            places.push(Place { modifier, text, name: *count, within });
        }
        places
    }
}

#[test]
fn the_location_is_nginxs() {
    let mut random = Random(11);
    let mut checked = 0;
    for round in 0..400 {
        let mut count = 0;
        let places = random.places("", 0, &mut count);
        let mut text = String::new();
        places.iter().for_each(|place| place.write(&mut text));
        let import = server(&text);
        check(&import);
        let router = router(&import);
        for _ in 0..30 {
            let path = random.path();
            let expected = match search(&places, &path) {
                Found::Final(name) | Found::Prefix(name) => format!("L{name}"),
                Found::Nothing => "404".to_owned(),
            };
            let got = answer(&import, &router, "x", &path);
            let got = if got.contains("404 Not Found") { "404".to_owned() } else { got };
            assert_eq!(got, expected, "{path} in round {round}:\n{text}");
            checked += 1;
        }
    }
    assert!(checked > 10_000);
}

#[test]
fn the_server_is_nginxs() {
    let import = import(
        "server { listen 80; server_name first.test; return 200 first; }
         server { listen 80 default_server; server_name default.test; return 200 default;
                  location = /x { return 200 x; } }
         server { listen 80; server_name .wild.test; return 200 wild; location /a/ { return 200 a; } }
         server { listen 80; server_name *.deep.wild.test; location /only/ { return 200 only; } }
         server { listen 80; server_name ~^re\\d; return 200 pattern; }
         server { listen 80; server_name mail.* ~^re; return 200 second; }",
    );
    check(&import);
    let router = router(&import);
    for (host, expected) in [
        ("first.test", "first"),
        ("default.test", "default"),
        ("other.test", "default"),
        ("wild.test", "wild"),
        ("a.b.wild.test", "wild"),
        ("re1.test", "pattern"),
        ("rex.test", "second"),
        ("mail.test", "second"),
        ("mail", "default"),
    ] {
        assert_eq!(answer(&import, &router, host, "/"), expected, "{host}");
        assert_eq!(answer(&import, &router, &host.to_ascii_uppercase(), "/q"), expected, "{host}");
    }
    assert_eq!(answer(&import, &router, "x.deep.wild.test", "/only/1"), "only");
    assert!(
        answer(&import, &router, "x.deep.wild.test", "/a/").contains("404"),
        "no other server's location"
    );
    assert_eq!(answer(&import, &router, "rex.test", "/x"), "second", "a server's own locations only");
}
