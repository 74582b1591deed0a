//! Tests of the importer of Envoy's files.

mod carried;
mod guards;
mod hostile;
mod order;

use serde_json::{Map, Value};

use crate::files::{FileError, Files};
use crate::{Import, Source};

/// Files of certificates and endpoints.
struct Few;

impl Files for Few {
    fn read(&self, path: &str) -> Result<String, FileError> {
        let pem =
            |kind: &str| format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", "QUJD".repeat(40));
        match path {
            "cert.pem" | "ca.pem" => Ok(pem("CERTIFICATE")),
            "key.pem" => Ok(pem("PRIVATE KEY")),
            "eds.yaml" => {
                Ok("resources:\n- cluster_name: app\n  endpoints:\n  - lb_endpoints:\n    - endpoint: \
                              {address: {socket_address: {address: 10.0.0.1, port_value: 80}}}\n"
                    .to_owned())
            }
            path if path.starts_with('/') => Err(FileError::Outside),
            _ => Err(FileError::Absent),
        }
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, FileError> {
        Ok(Vec::new())
    }
}

/// The fixtures, by name.
const FIXTURES: [(&str, &str); 4] = [
    ("routes.yaml", include_str!("../../fixtures/envoy/routes.yaml")),
    ("filters.yaml", include_str!("../../fixtures/envoy/filters.yaml")),
    ("tls.yaml", include_str!("../../fixtures/envoy/tls.yaml")),
    ("front-envoy.yaml", include_str!("../../../conf/seeds/envoy-and-nginx/front-envoy.yaml")),
];

/// The file of the first article, whose last lines are not indented as they should be.
const ARTICLE: &str = include_str!("../../../conf/seeds/hello-without-key/envoy.yaml");

fn try_import(text: &str) -> Result<Import, Box<model::Diagnostic>> {
    let variables = |name: &str| (name == "BACKEND").then(|| "backend.example".to_owned());
    super::import(&Source { file: "envoy.yaml", text, files: &Few, variables: &variables, profiles: &[] })
}

fn import(text: &str) -> Import {
    try_import(text).unwrap_or_else(|error| panic!("{error}"))
}

fn fixture(name: &str) -> &'static str {
    FIXTURES.iter().find(|(known, _)| *known == name).unwrap().1
}

/// The resources as a declarative document.
fn document(import: &Import) -> Map<String, Value> {
    let mut sections = Map::new();
    for resource in &import.resources {
        let mut value = resource.value.clone();
        if resource.key.kind != model::Kind::Consumer {
            value["id"] = Value::from(resource.key.id.clone());
        }
        let list = sections.entry(resource.key.kind.collection()).or_insert_with(|| Value::Array(Vec::new()));
        list.as_array_mut().unwrap().push(value);
    }
    sections
}

/// Fails if a resource is not valid.
fn assert_valid(import: &Import, name: &str) {
    let document = document(import);
    let sections = model::declarative::read(&document, &[]);
    let errors: Vec<String> =
        sections.rejected.iter().map(|invalid| format!("{} {invalid}", invalid.pointer)).collect();
    assert!(errors.is_empty(), "{name}: {errors:?}");
    assert_eq!(sections.items.len(), import.resources.len(), "{name}");
    for finding in &import.findings {
        for key in &finding.resources {
            let known = import.resources.iter().any(|resource| resource.key == *key);
            assert!(known, "{name}: {finding}: {key}");
        }
    }
}

/// The value of a resource.
fn resource<'i>(import: &'i Import, path: &str) -> &'i Value {
    let found = import.resources.iter().find(|resource| resource.key.to_string() == path);
    let keys: Vec<String> = import.resources.iter().map(|resource| resource.key.to_string()).collect();
    &found.unwrap_or_else(|| panic!("{path} is not among {keys:?}")).value
}
