//! Headers that are withheld from servers and clients.

use serde_json::{Map, Value, json};

use crate::spring::settings::{Item, Settings};

/// Withheld unless the file names others.
const SENSITIVE: [&str; 3] = ["Cookie", "Set-Cookie", "Authorization"];

/// The headers of all routes.
pub struct Withheld {
    sensitive: Vec<String>,
    ignored: Vec<String>,
}

impl Withheld {
    pub fn read(settings: &Settings<'_>) -> Withheld {
        let sensitive = settings.get("zuul.sensitive-headers").map(|item| item.texts());
        let sensitive =
            sensitive.unwrap_or_else(|| SENSITIVE.iter().map(|name| (*name).to_owned()).collect());
        let ignored = settings.get("zuul.ignored-headers").map(|item| item.texts()).unwrap_or_default();
        Withheld { sensitive, ignored }
    }

    /// Those of a route, which may name sensitive ones of its own.
    pub fn of_route(&self, route: &Item<'_>) -> Vec<String> {
        let custom = route.get("custom-sensitive-headers").and_then(|item| item.bool()) == Some(true);
        let own = route.get("sensitive-headers").map(|item| item.texts());
        let own = own.or_else(|| custom.then(Vec::new));
        let mut all = self.ignored.clone();
        for name in own.as_ref().unwrap_or(&self.sensitive) {
            if !all.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                all.push(name.clone());
            }
        }
        all
    }
}

/// Adds them to the plugins of a route: neither the server nor the client gets them.
pub fn withhold(names: &[String], plugins: &mut Map<String, Value>) {
    if names.is_empty() {
        return;
    }
    let rewrite = plugins.entry("proxy-rewrite").or_insert_with(|| json!({}));
    rewrite["headers"]["remove"] = json!(names);
    plugins.insert("response-rewrite".to_owned(), json!({"headers": {"remove": names}}));
}
