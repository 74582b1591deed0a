//! Nothing is lost silently, and bad input is an error with a place.

use model::yaml::{self, Variables};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{YAML, import, import_of};
use crate::Format;
use crate::finding::Severity;

/// A file with an unknown key at each object, one at a time.
fn mutated(value: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    match value {
        Value::Object(members) => {
            let mut more = members.clone();
            more.insert("zz-unknown".to_owned(), json!("x"));
            found.push(more.into());
            for (name, member) in members {
                for changed in mutated(member) {
                    let mut members = members.clone();
                    members.insert(name.clone(), changed);
                    found.push(members.into());
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                for changed in mutated(item) {
                    let mut items = items.clone();
                    items[at] = changed;
                    found.push(items.into());
                }
            }
        }
        _ => {}
    }
    found
}

/// Each unknown key must be named by a finding, except for `known` ones: names that the user chooses.
pub fn names_each_unknown_key(format: Format, text: &str, known: &[&str]) {
    let whole = yaml::parse(text, Variables::Keep).unwrap().value;
    for changed in mutated(&whole) {
        let text = changed.to_string();
        let import = import_of(format, &[("a.yml", &text)], &[]).unwrap();
        // Some groups have one finding for all they hold, which was there before.
        let is_named = |path: &str| {
            import.findings.iter().any(|finding| {
                let construct = finding.construct.split(" (").next().unwrap_or_default();
                path.starts_with(construct)
            })
        };
        let path = path_of(&changed).unwrap();
        assert!(
            is_named(&path) || known.contains(&path.as_str()),
            "{path}\n{:?}",
            import.findings.iter().map(|finding| &finding.construct).collect::<Vec<_>>()
        );
    }
}

/// The path of the unknown key.
fn path_of(value: &Value) -> Option<String> {
    let join = |name: &str, rest: String| match rest.as_str() {
        rest if rest.starts_with('[') => format!("{name}{rest}"),
        rest => format!("{name}.{rest}"),
    };
    match value {
        Value::Object(members) if members.contains_key("zz-unknown") => Some("zz-unknown".to_owned()),
        Value::Object(members) => {
            members.iter().find_map(|(name, member)| Some(join(name, path_of(member)?)))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| Some(join(&format!("[{at}]"), path_of(item)?)))
        }
        _ => None,
    }
}

#[test]
fn each_unknown_key_is_named() {
    names_each_unknown_key(Format::SpringCloudGateway, &YAML.replace("@project.artifactId@", "gateway"), &[]);
}

#[test]
fn settings_of_others_have_no_effect() {
    let import =
        import("logging.level.root: INFO\nmanagement.server.port: 1\njwt: {secret: x}\nshop: {name: y}\n");
    let severity = |construct: &str| {
        import.findings.iter().find(|finding| finding.construct == construct).map(|finding| finding.severity)
    };
    assert_eq!(severity("logging"), Some(Severity::Cosmetic));
    assert_eq!(severity("management"), Some(Severity::Cosmetic));
    assert_eq!(severity("shop"), Some(Severity::Cosmetic));
    assert_eq!(severity("jwt"), Some(Severity::Behaviour));
    assert_eq!(severity("spring.cloud.gateway.routes"), Some(Severity::Behaviour));
}

#[test]
fn bad_input_is_an_error_with_a_place() {
    for (file, text, expected) in [
        ("a.yml", "spring:\n  cloud: [\n", "a.yml:"),
        ("a.yml", "- a\n- b\n", "must be a mapping"),
        ("a.yml", "a: 1\n---\nb: {\n", "a.yml:"),
        ("a.yml", "\0\u{1}\u{2}", "a.yml"),
        ("a.properties", "a=\\u00zz\n", "four hexadecimal digits"),
    ] {
        let error = import_of(Format::SpringCloudGateway, &[(file, text)], &[]).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let huge = "a: b\n".repeat(4 << 20);
    let error = import_of(Format::SpringCloudGateway, &[("a.yml", &huge)], &[]).unwrap_err();
    assert!(error.contains("more than"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_input_panics(at in 0..4000usize, length in 0..40usize, with in "[a-z:${}#@\\[\\]{}',= \n\\\\-]{0,12}") {
        for (file, text) in [("a.yml", YAML), ("a.properties", super::PROPERTIES)] {
            let start = text.floor_char_boundary(at % text.len());
            let end = text.floor_char_boundary((start + length).min(text.len()));
            let changed = format!("{}{with}{}", &text[..start], &text[end..]);
            for format in [Format::SpringCloudGateway, Format::Zuul] {
                let _ = import_of(format, &[(file, &changed)], &[]);
                let _ = import_of(format, &[(file, &text[..start])], &[]);
            }
        }
    }
}
