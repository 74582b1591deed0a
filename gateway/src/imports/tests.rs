use importers::{Finding, Imported as Resource, Place};
use model::Kind;
use model::declarative::Format as Written;
use serde_json::json;

use super::*;

const TEXT: &str = "first: line\nsecond: line\nthird: line\n";

fn place(line: u32) -> Place {
    Place { file: "kong.yml".into(), position: Position { line, column: 1 } }
}

fn resource(kind: Kind, id: &str, value: Value, line: u32) -> Resource {
    Resource { key: Key::new(kind, id), value, place: place(line) }
}

fn finding(severity: Severity, line: u32, resources: &[Key]) -> Finding {
    Finding {
        place: place(line),
        severity,
        construct: "plugins[].acl ${{HOME}}\n".to_owned(),
        effect: "not carried over".to_owned(),
        hint: None,
        resources: resources.to_vec(),
    }
}

fn job(accept: &[&str]) -> Job {
    let options = cli::Import {
        accept: accept.iter().map(|place| (*place).to_owned()).collect(),
        ..cli::Import::default()
    };
    Job::new(Format::Kong, Path::new("kong.yml"), &options).unwrap()
}

fn import() -> Import {
    Import {
        resources: vec![
            resource(Kind::Upstream, "u", json!({"nodes": {"127.0.0.1:1": 1}, "type": "roundrobin"}), 1),
            resource(Kind::Route, "open", json!({"uri": "/*", "upstream_id": "u"}), 2),
            resource(Kind::Route, "shut", json!({"uri": "/admin/*", "priority": 5, "upstream_id": "u"}), 3),
            resource(Kind::Consumer, "jack", json!({"plugins": {"key-auth": {"key": "k"}}}), 3),
            Resource {
                key: Key::credential("jack", "c"),
                value: json!({"plugins": {"key-auth": {"key": "l"}}}),
                place: place(3),
            },
        ],
        findings: vec![
            finding(Severity::Guard, 3, &[Key::new(Kind::Route, "shut")]),
            finding(Severity::Behaviour, 2, &[]),
            finding(Severity::Cosmetic, 1, &[]),
        ],
        ..Import::default()
    }
}

fn closed(imported: &Imported) -> Vec<(&str, Closed)> {
    imported.closed.iter().map(|(key, why)| (key.id.as_str(), *why)).collect()
}

#[test]
fn a_guarded_route_is_closed_until_it_is_accepted() {
    let imported = job(&[]).prepared(import(), "kong.yml", TEXT);
    assert!(imported.declarative.diagnostics.is_empty(), "{:?}", imported.declarative.diagnostics);
    assert_eq!(closed(&imported), [("shut", Closed::Guard)]);
    let route = imported.declarative.items.iter().find(|item| item.key.id == "shut").unwrap();
    assert_eq!(route.value.pointer("/plugins/fault-injection/abort/http_status"), Some(&json!(503)));
    assert_eq!(route.value.get("upstream_id"), None);
    assert_eq!(
        job(&[]).summary(&imported),
        "imported kong.yml of Kong: 3 findings (1 guard, 1 behaviour, 1 cosmetic); 1 route answers 503; \
         `sluice check kong.yml` lists them"
    );
    assert!(job(&["kong.yml:3"]).prepared(import(), "kong.yml", TEXT).closed.is_empty());
    assert_eq!(closed(&job(&["kong.yml:2"]).prepared(import(), "kong.yml", TEXT)).len(), 1);
}

#[test]
fn an_invalid_route_is_closed_and_reported_at_its_line() {
    let mut import = import();
    import.findings.clear();
    import.resources.push(resource(
        Kind::Route,
        "bad",
        json!({"uri": "/bad", "vars": [["a", "~~~", "("]]}),
        2,
    ));
    let imported = job(&[]).prepared(import, "kong.yml", TEXT);
    assert_eq!(closed(&imported), [("bad", Closed::Invalid)]);
    assert_eq!(imported.declarative.items.len(), 6);
    let error = &imported.declarative.diagnostics[0];
    assert_eq!((error.line, error.source.as_deref()), (2, Some("second: line")));
    assert!(error.message.starts_with("routes/bad, imported from here: "), "{}", error.message);
}

#[test]
fn findings_are_shown_with_their_line_and_the_routes_they_close() {
    let shown =
        |job: &Job| -> Vec<Diagnostic> { diagnostics(job, &job.prepared(import(), "kong.yml", TEXT), TEXT) };
    let found = shown(&job(&[]));
    let severities: Vec<_> = found.iter().map(|one| one.severity).collect();
    assert_eq!(severities, [model::Severity::Warning, model::Severity::Warning, model::Severity::Note]);
    assert_eq!(found[0].source.as_deref(), Some("third: line"));
    assert!(found[0].message.starts_with("guard: plugins[].acl"));
    assert_eq!(
        found[0].hint.as_deref(),
        Some("routes/shut answers 503; to serve without it: --accept kong.yml:3")
    );
    let accepted = shown(&job(&["kong.yml:3", "kong.yml:9"]));
    assert_eq!(accepted[0].severity, model::Severity::Note);
    let unused = accepted.iter().find(|one| one.file == "--accept kong.yml:9");
    assert!(unused.is_some_and(|one| one.message == "no guard is at this line"));
}

/// The resources of a text of our own.
fn loaded(text: &str) -> Vec<(Key, Value)> {
    let set = |_: &str| Some("replaced".to_owned());
    let read = Declarative::parse("apisix.yaml", text, Written::Yaml, &plugins::names(), &set);
    let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(read.diagnostics.is_empty(), "{:?}\n{text}", read.diagnostics);
    read.items.into_iter().map(|item| (item.key, Value::clone(&item.value))).collect()
}

fn served(imported: &Imported) -> Vec<(Key, Value)> {
    imported.declarative.items.iter().map(|item| (item.key.clone(), Value::clone(&item.value))).collect()
}

#[test]
fn a_converted_file_has_the_same_resources_and_names_their_lines() {
    let job = job(&[]);
    let imported = job.prepared(import(), "kong.yml", TEXT);
    let text = convert::apisix_yaml(&job, &imported, Some("apisix:\n  node_listen: 8000\n"));
    assert_eq!(loaded(&text), served(&imported));
    for part in [
        "# kong.yml:3:1: guard: plugins[].acl $ {{HOME}} : not carried over\n",
        "  # kong.yml:2:1\n  -\n    \"id\": \"open\"\n",
        "  # Closed: a guard is not carried over",
        "#   apisix:\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn settings_of_registries_are_those_of_the_gateway() {
    let value = json!({"host": ["http://127.0.0.1:8761"]});
    let setting =
        importers::Setting { path: "discovery.eureka".to_owned(), value: value.clone(), place: place(1) };
    let import = Import { settings: vec![setting], ..import() };
    let given = [read_listen("127.0.0.1:8080").unwrap()];
    for given in [&[][..], &given[..]] {
        let config = job(&[]).config(&import, given);
        let (boot, warnings) =
            model::Boot::parse("test", &config.to_string(), &plugins::names(), &|_| None).unwrap();
        assert_eq!((boot.discovery.get("eureka"), warnings.len()), (Some(&value), 0));
    }
}

/// The small files of the importers' tests, as far as their format is recognised.
fn fixtures() -> Vec<(Format, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../importers/fixtures");
    let mut found = Vec::new();
    for folder in std::fs::read_dir(root).unwrap().flatten() {
        for entry in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
            let name = entry.path().display().to_string();
            if let importers::Recognised::Format(format) = importers::recognise(&name, &text) {
                found.push((format, entry.path()));
            }
        }
    }
    found.sort_by(|one, other| one.1.cmp(&other.1));
    found
}

#[test]
fn each_fixture_is_converted_to_a_file_with_the_same_resources() {
    let mut formats = std::collections::HashSet::new();
    for (format, path) in fixtures() {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let job = Job::new(format, &path, &cli::Import::default()).unwrap();
        // Parts that others include, and files with errors on purpose.
        let Ok(imported) = job.read(&text).0 else { continue };
        let diagnostics = &imported.declarative.diagnostics;
        assert!(diagnostics.is_empty(), "{}: {diagnostics:?}", path.display());
        let converted = convert::apisix_yaml(&job, &imported, None);
        assert_eq!(loaded(&converted), served(&imported), "{}", path.display());
        if !imported.declarative.items.is_empty() {
            formats.insert(format);
        }
        // A guard that names an absent resource closes all routes.
        let known: std::collections::HashSet<&Key> =
            imported.import.resources.iter().map(|one| &one.key).collect();
        for finding in &imported.import.findings {
            let unknown: Vec<&Key> = finding.resources.iter().filter(|key| !known.contains(key)).collect();
            assert!(unknown.is_empty(), "{}: {finding} names {unknown:?}", path.display());
        }
    }
    for format in [Format::Kong, Format::Nginx, Format::SpringCloudGateway, Format::Zuul] {
        assert!(formats.contains(&format), "no file of {}", format.title());
    }
}
