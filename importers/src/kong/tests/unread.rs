//! Nothing is lost silently.

use super::*;

/// Calls a function with the pointer of each object of a value.
fn objects(value: &Value, pointer: &str, call: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(members) => {
            call(pointer);
            members.iter().for_each(|(name, member)| objects(member, &format!("{pointer}/{name}"), call));
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| objects(item, &format!("{pointer}/{index}"), call));
        }
        _ => {}
    }
}

#[test]
fn a_key_without_a_resource_is_a_finding() {
    for (name, text) in FIXTURES.iter().filter(|(_, text)| !text.contains("\n---\n")) {
        let parsed = model::yaml::parse(text, model::yaml::Variables::Keep).unwrap().value;
        let mut pointers = Vec::new();
        objects(&parsed, "", &mut |pointer| pointers.push(pointer.to_owned()));
        for pointer in pointers {
            // Maps from names that people choose have no unknown keys.
            let chosen = ["/headers", "/custom_fields_by_lua"].iter().any(|end| pointer.ends_with(end));
            if chosen {
                continue;
            }
            let mut changed = parsed.clone();
            let object = if pointer.is_empty() { Some(&mut changed) } else { changed.pointer_mut(&pointer) };
            object.unwrap()["surely_unknown"] = Value::from("x");
            let import = import(&changed.to_string());
            let path =
                pointer.trim_start_matches('/').split('/').fold(String::new(), |path, part| {
                    match part.parse::<usize>() {
                        Ok(index) => format!("{path}[{index}]"),
                        Err(_) if path.is_empty() => part.to_owned(),
                        Err(_) => format!("{path}.{part}"),
                    }
                });
            // The key, or something that it is a part of.
            let named = import.findings.iter().any(|finding| {
                finding.construct.ends_with("surely_unknown")
                    || (!path.is_empty() && path.starts_with(&finding.construct))
            });
            assert!(named, "{name}: nothing names `surely_unknown` in `{path}`");
        }
    }
}

#[test]
fn keys_without_effect_are_no_findings() {
    let text = r#"{"_format_version": "3.0", "_comment": "c", "services": [{"id": "1", "name": "a", "url": "http://a",
        "tags": ["t"], "created_at": 1, "routes": [{"name": "r", "paths": ["/"], "id": "2", "https_redirect_status_code": 426}]}]}"#;
    assert_eq!(import(text).findings, []);
}
