//! Tests of the importer of nginx.

mod carried;
mod choice;
mod files;
mod hostile;

use std::collections::BTreeMap;

use model::Resource;
use serde_json::Value;

use crate::files::{FileError, Files};
use crate::{Import, Imported, Source};

/// Files by their paths.
#[derive(Default)]
struct Folder(BTreeMap<String, String>);

impl Files for Folder {
    fn read(&self, path: &str) -> Result<String, FileError> {
        if path.starts_with('/') {
            return Err(FileError::Outside);
        }
        self.0.get(path).cloned().ok_or(FileError::Absent)
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, FileError> {
        if pattern.starts_with('/') {
            return Err(FileError::Outside);
        }
        let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
        let fits = |path: &&String| path.starts_with(start) && path.ends_with(end);
        Ok(self.0.keys().filter(fits).cloned().collect())
    }
}

const FIXTURES: [(&str, &str); 2] = [
    ("gateway.conf", include_str!("../../fixtures/nginx/gateway.conf")),
    ("site.conf", include_str!("../../fixtures/nginx/site.conf")),
];

fn folder() -> Folder {
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".repeat(4);
    let files = [
        ("certs/site.crt", pem.clone()),
        ("certs/site.key", pem.replace("CERTIFICATE", "PRIVATE KEY")),
        (
            "users",
            "anna:{PLAIN}secret\nbob:$2y$05$x\ncarol:$apr1$xxxxxxxx$dxHfLAsjHkDRmG83UXe8K0\n".to_owned(),
        ),
        ("conf.d/a.conf", "server { listen 81; return 200 a; }".to_owned()),
        ("conf.d/b.conf", "server { listen 82; return 200 b; }".to_owned()),
        ("loop.conf", "include loop.conf;".to_owned()),
    ];
    Folder(files.map(|(path, text)| (path.to_owned(), text)).into())
}

fn try_import(text: &str) -> Result<Import, Box<model::Diagnostic>> {
    let variables = |name: &str| (name == "BACKEND").then(|| "127.0.0.1:9009".to_owned());
    super::import(&Source {
        file: "nginx.conf",
        text,
        files: &folder(),
        variables: &variables,
        profiles: &[],
    })
}

fn import(text: &str) -> Import {
    try_import(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The import of one server with these directives.
fn server(directives: &str) -> Import {
    import(&format!("server {{\n{directives}\n}}\n"))
}

fn check(import: &Import) {
    for one in &import.resources {
        if one.key.kind == model::Kind::Ssl {
            continue;
        }
        if let Err(error) = Resource::parse(one.key.kind, &one.key.id, &one.value) {
            panic!("{}: {error}: {}", one.key, one.value);
        }
    }
}

fn resource<'i>(import: &'i Import, key: &str) -> &'i Imported {
    let all = || import.resources.iter().map(|one| one.key.to_string()).collect::<Vec<_>>();
    import
        .resources
        .iter()
        .find(|one| one.key.to_string() == key)
        .unwrap_or_else(|| panic!("{key} in {:?}", all()))
}

fn value<'i>(import: &'i Import, key: &str, pointer: &str) -> &'i Value {
    let value = &resource(import, key).value;
    value.pointer(pointer).unwrap_or_else(|| panic!("{pointer} in {value}"))
}

/// The findings as `severity: construct: effect`.
fn findings(import: &Import) -> Vec<String> {
    let text = |finding: &crate::Finding| {
        format!("{}: {}: {}", finding.severity.as_str(), finding.construct, finding.effect)
    };
    import.findings.iter().map(text).collect()
}
