//! The page of fields says what the schemas say.

use std::collections::BTreeSet;
use std::path::Path;

use model::{Kind, schema};

/// Explained once for all kinds.
const COMMON: [&str; 6] = ["id", "name", "desc", "labels", "create_time", "update_time"];

#[test]
fn every_field_has_its_row_and_no_row_is_left_over() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/resources.md");
    let text = std::fs::read_to_string(file).unwrap();
    for name in COMMON {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
    for (kind, heading) in [
        (Kind::Route, "\n## Route\n"),
        (Kind::Service, "\n## Service\n"),
        (Kind::Upstream, "\n## Upstream\n"),
    ] {
        let section = text.split_once(heading).unwrap().1.split("\n## ").next().unwrap();
        let rows: BTreeSet<&str> = section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
            .collect();
        let schema = schema::document(kind);
        let fields: BTreeSet<&str> = schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .filter(|name| !COMMON.contains(name))
            .collect();
        assert_eq!(rows, fields, "{kind}");
    }
}
