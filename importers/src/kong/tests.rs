//! Tests of the importer of Kong's files.

mod carried;
mod hostile;
mod order;
mod paths;
mod unread;

use serde_json::{Map, Value};

use crate::files::{FileError, Files};
use crate::{Import, Source};

/// No further files.
struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _path: &str) -> Result<String, FileError> {
        Err(FileError::Absent)
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, FileError> {
        Ok(Vec::new())
    }
}

/// The fixtures, by name.
const FIXTURES: [(&str, &str); 8] = [
    ("routes.yml", include_str!("../../fixtures/kong/routes.yml")),
    ("plugins.yml", include_str!("../../fixtures/kong/plugins.yml")),
    ("consumers.yml", include_str!("../../fixtures/kong/consumers.yml")),
    ("upstreams.yml", include_str!("../../fixtures/kong/upstreams.yml")),
    ("deck.yml", include_str!("../../fixtures/kong/deck.yml")),
    ("seed one-route", include_str!("../../../conf/seeds/one-route/kong.yml")),
    ("seed rate-limit", include_str!("../../../conf/seeds/rate-limit/kong.yml")),
    ("seed rate-limit-and-key", include_str!("../../../conf/seeds/rate-limit-and-key/kong.yml")),
];

fn try_import(text: &str) -> Result<Import, Box<model::Diagnostic>> {
    let variables = |name: &str| (name == "SET_SECRET").then(|| "from-the-environment".to_owned());
    super::import(&Source { file: "kong.yml", text, files: &NoFiles, variables: &variables, profiles: &[] })
}

fn import(text: &str) -> Import {
    try_import(text).unwrap()
}

/// The resources as a declarative document.
fn document(import: &Import) -> Value {
    let mut sections = Map::new();
    for resource in &import.resources {
        let mut value = resource.value.clone();
        let section = match resource.key.kind {
            model::Kind::Credential => model::Kind::Consumer.collection(),
            kind => kind.collection(),
        };
        if resource.key.kind != model::Kind::Consumer {
            value["id"] = Value::from(resource.key.id.clone());
        }
        let list = sections.entry(section).or_insert_with(|| Value::Array(Vec::new()));
        list.as_array_mut().unwrap().push(value);
    }
    Value::Object(sections)
}

/// Fails if a resource is not valid.
fn assert_valid(import: &Import, name: &str) {
    let Value::Object(document) = document(import) else { unreachable!() };
    let sections = model::declarative::read(&document, &[]);
    let errors: Vec<String> =
        sections.rejected.iter().map(|invalid| format!("{} {invalid}", invalid.pointer)).collect();
    assert!(errors.is_empty(), "{name}: {errors:?}\n{}", serde_json::to_string_pretty(&document).unwrap());
    assert_eq!(sections.items.len(), import.resources.len(), "{name}");
    let mut keys: Vec<_> = import.resources.iter().map(|resource| &resource.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), import.resources.len(), "{name}: ids are unique");
    for finding in &import.findings {
        for key in &finding.resources {
            assert!(keys.contains(&key), "{name}: {finding}: {key}");
        }
    }
}

/// Fails if a plugin refuses its configuration.
fn assert_plugins_accept(import: &Import, name: &str) {
    use sdk::Catalog as _;
    use sdk::catalog::SchemaType;
    let catalog = plugins::Catalog::new(sdk::build::Services::for_tests(), indexmap::IndexMap::new());
    for resource in &import.resources {
        let of_consumer = matches!(resource.key.kind, model::Kind::Consumer | model::Kind::Credential);
        let place = if of_consumer { SchemaType::Consumer } else { SchemaType::Route };
        for (plugin, config) in resource.value["plugins"].as_object().into_iter().flatten() {
            // Folders of logs and zones of caches are settings, which this catalog does not have.
            if plugin == "file-logger" || plugin == "proxy-cache" {
                continue;
            }
            let checked = catalog.check(plugin, config, place);
            // The schema holds; this catalog has no Redis.
            if checked
                .as_ref()
                .is_err_and(|invalid| invalid.reason.ends_with("is not available in this build"))
            {
                continue;
            }
            assert!(checked.is_ok(), "{name}: {} {plugin}: {checked:?}\n{config:#}", resource.key);
        }
    }
}
