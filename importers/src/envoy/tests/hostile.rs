//! Broken files: an error with its place, never a panic, and nothing that is lost silently.

use serde_json::{Value, json};

use super::{ARTICLE, FIXTURES, fixture, import, try_import};

#[test]
fn the_article_with_a_wrong_indentation_gets_an_error_with_its_repair() {
    let error = try_import(ARTICLE).unwrap_err();
    let text: Vec<&str> = ARTICLE.lines().collect();
    assert_eq!(error.line as usize, text.len() - 3, "{error}");
    assert!(error.message.contains("`max_connections` stands beside the `-`"), "{error}");
    assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("two more spaces")), "{error}");
    // The repair makes it a file that works.
    let mut lines: Vec<String> = text.iter().map(|line| (*line).to_owned()).collect();
    let broken = lines.len() - 4;
    lines[broken..].iter_mut().for_each(|line| line.insert_str(0, "  "));
    let import = import(&lines.join("\n"));
    super::assert_valid(&import, "repaired");
    assert_eq!(super::resource(&import, "routes/local_service-hello")["uri"], "/hello*");
    // `generate_request_id: false,`
    assert!(import.resources.iter().all(|resource| resource.value.pointer("/plugins/request-id").is_none()));
}

#[test]
fn files_that_are_none_have_an_error() {
    for text in [
        "",
        "static_resources: [",
        "- a\n- b\n",
        "null",
        "{\"static_resources\": ",
        "services: []\n",
        "\u{0}\u{1}\u{2}",
        "a: &a [*a]\n",
    ] {
        let error = try_import(text).unwrap_err();
        assert!(!error.message.is_empty(), "{text:?}");
    }
    let bomb = format!(
        "a: &a [x, x]\n{}",
        (0..40).map(|n| format!("b{n}: &b{n} [{}]\n", "*a, ".repeat(200))).collect::<String>()
    );
    let _ = try_import(&bomb);
    let deep = "[".repeat(100_000);
    assert!(try_import(&deep).is_err());
}

#[test]
fn cut_off_and_mutated_files_do_not_panic() {
    let mut numbers = 1_u64;
    let mut next = |bound: usize| {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (numbers >> 33) as usize % bound
    };
    for (name, text) in FIXTURES {
        let value = model::yaml::parse(text, model::yaml::Variables::Keep).unwrap().value;
        for _ in 0..12 {
            let mut at = next(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            let _ = try_import(&text[..at]);
            let mut changed = value.clone();
            let pointers = pointers(&changed);
            for _ in 0..3 {
                let pointer = &pointers[next(pointers.len())];
                let other = [
                    json!(null),
                    json!(-1),
                    json!("%"),
                    json!([]),
                    json!({}),
                    json!(1e300),
                    json!([[1]]),
                    json!(true),
                ];
                if let Some(place) = changed.pointer_mut(pointer) {
                    *place = other[next(other.len())].clone();
                }
            }
            if let Ok(import) = try_import(&changed.to_string()) {
                super::assert_valid(&import, name);
            }
        }
    }
}

/// The pointers of all values.
fn pointers(value: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut at = 0;
    while at < all.len() {
        let pointer = all[at].clone();
        match value.pointer(&pointer) {
            Some(Value::Object(members)) => {
                all.extend(
                    members
                        .keys()
                        .map(|name| format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))),
                );
            }
            Some(Value::Array(items)) => {
                all.extend((0..items.len()).map(|index| format!("{pointer}/{index}")))
            }
            _ => {}
        }
        at += 1;
    }
    all
}

#[test]
fn no_key_is_lost_silently() {
    let mut lost = Vec::new();
    for (name, text) in FIXTURES {
        let mut value = model::yaml::parse(text, model::yaml::Variables::Keep).unwrap().value;
        let original = value.clone();
        let pointers = pointers(&value);
        for (at, pointer) in pointers.iter().enumerate() {
            if let Some(Value::Object(members)) = value.pointer_mut(pointer) {
                members.insert(format!("zzz_{at}_"), json!("lost"));
            }
        }
        let import = import(&value.to_string());
        let resources: String = import.resources.iter().map(|resource| resource.value.to_string()).collect();
        for (at, pointer) in pointers.iter().enumerate() {
            if original.pointer(pointer).is_none_or(|value| !value.is_object()) {
                continue;
            }
            let key = format!("zzz_{at}_");
            let named =
                |finding: &crate::Finding| finding.construct.contains(&key) || finding.effect.contains(&key);
            let carried = resources.contains(&key) || import.findings.iter().any(named);
            // Or all of the object is named by a finding, or it is a map of names.
            if !carried && !covers(&import, pointer, &value) {
                lost.push(format!("{name}: {pointer}"));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Whether a finding is about this object or one around it.
fn covers(import: &crate::Import, pointer: &str, value: &Value) -> bool {
    let path = |pointer: &str| pointer.rsplit('/').next().unwrap_or_default().to_owned();
    let mut around = pointer;
    while !around.is_empty() {
        let last = path(around);
        let named = import.findings.iter().any(|finding| {
            finding
                .construct
                .split([':', '.', '[', ' '])
                .any(|part| part == last && last.parse::<usize>().is_err())
        });
        if named {
            return true;
        }
        around = &around[..around.rfind('/').unwrap_or(0)];
        // Settings of an extension are named by its name.
        if let Some(of) = value.pointer(around).and_then(|value| value.get("name")).and_then(Value::as_str)
            && import.findings.iter().any(|finding| finding.construct == of)
        {
            return true;
        }
    }
    false
}

#[test]
fn templates_are_filled_in_with_variables() {
    let text = fixture("front-envoy.yaml").replace("address: service", "address: ${BACKEND}");
    let import = import(&text);
    assert_eq!(super::resource(&import, "upstreams/service")["nodes"][0]["host"], "backend.example");
    let text = fixture("front-envoy.yaml").replace("address: service", "address: ${ABSENT}");
    let import = super::import(&text);
    assert_eq!(super::resource(&import, "upstreams/service")["nodes"], json!([]));
    assert!(import.findings.iter().any(|finding| finding.effect.contains("whose variable is not set")));
}
