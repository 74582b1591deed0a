//! The tables of `docs/configuration.md`. Each stands between `<!-- settings: NAME -->` and `<!-- end -->`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The page, below `docs`.
pub const PAGE: &str = "configuration.md";

const BEGIN: &str = "<!-- settings: ";
const END: &str = "<!-- end -->\n";

/// Settings by the name of their table.
pub type Tables = BTreeMap<String, Vec<Setting>>;

/// A row.
#[derive(Deserialize)]
pub struct Setting {
    key: String,
    ours: bool,
    r#type: String,
    default: String,
    meaning: String,
}

/// The page with current tables.
///
/// # Errors
/// A mark without its end, and a table that has no mark, or no setting.
pub fn filled(page: &str, tables: &Tables) -> Result<String> {
    let (mut text, mut rest) = (String::new(), page);
    let mut left: Vec<_> = tables.keys().collect();
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->\n").context("a mark of settings is cut off")?;
        let (_, after) = after.split_once(END).with_context(|| format!("settings {name}: no {END}"))?;
        let rows = tables.get(name).with_context(|| format!("there are no settings {name}"))?;
        left.retain(|table| *table != name);
        let _ = write!(text, "{before}{BEGIN}{name} -->\n{}{END}", table(rows));
        rest = after;
    }
    if !left.is_empty() {
        bail!("docs/{PAGE} has no place for the settings {left:?}");
    }
    Ok(text + rest)
}

fn table(rows: &[Setting]) -> String {
    let mut text = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Setting { key, ours, r#type, default, meaning } in rows {
        let ours = if *ours { " *(ours)*" } else { "" };
        let _ = writeln!(text, "| `{key}`{ours} | {type} | {default} | {meaning} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_written_between_their_marks() {
        let setting = Setting {
            key: "a.b".into(),
            ours: true,
            r#type: "time".into(),
            default: "`1s`".into(),
            meaning: "for a".into(),
        };
        let tables = Tables::from([("a".into(), vec![setting])]);
        let old = "x\n<!-- settings: a -->\nold\n<!-- end -->\ny\n";
        let new = filled(old, &tables).unwrap();
        assert!(new.starts_with("x\n<!-- settings: a -->\n| key |"), "{new}");
        assert!(new.ends_with("| `a.b` *(ours)* | time | `1s` | for a |\n<!-- end -->\ny\n"), "{new}");
        assert_eq!(filled(&new, &tables).unwrap(), new);
        for wrong in ["", "<!-- settings: a -->\n", "<!-- settings: b -->\n<!-- end -->\n"] {
            assert!(filled(wrong, &tables).is_err(), "{wrong}");
        }
    }
}
