//! The meanings of the fields of resources and plugins as one file, for the forms of the dashboard.
//!
//! Those of plugins are out of `plugins/pages`, those of resources out of the tables of `docs/resources.md`.

use super::Plugin;
use crate::shell::root;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The path of the file below `docs`.
pub const FILE: &str = "fields.json";

/// Returns the text of the file.
pub fn of(plugins: &BTreeMap<String, Plugin>) -> Result<String> {
    let path = root().join("docs/resources.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let prices = prices()?;
    let described = plugins.iter().map(|(name, plugin)| {
        let mut shown = plugin_of(plugin);
        if let Some(price) = prices.get(name) {
            shown["price"] = (*price).into();
        }
        (name.clone(), shown)
    });
    let all = json!({ "plugins": described.collect::<Map<_, _>>(), "resources": resources(&page) });
    // One line for each plugin keeps differences readable.
    let mut text = serde_json::to_string(&all)?.replace("},\"", "},\n\"");
    text.push('\n');
    Ok(text)
}

/// Instructions that plugins add to a request, as `cargo x bench instructions` measured them last; empty before.
pub(super) fn prices() -> Result<BTreeMap<String, u64>> {
    let path = root().join("bench/instructions.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error).context("bench/instructions.json"),
    };
    let Counted { plugins } = serde_json::from_str(&text).context("bench/instructions.json")?;
    Ok(plugins)
}

/// The part of the file that forms show.
#[derive(serde::Deserialize)]
struct Counted {
    plugins: BTreeMap<String, u64>,
}

fn plugin_of(plugin: &Plugin) -> Value {
    let about = plugin.doc.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let mut shown = json!({ "about": about });
    let sections = [
        ("fields", "Fields", Some(&plugin.schema)),
        ("consumer", "Consumer", plugin.consumer_schema.as_ref()),
    ];
    for (section, heading, schema) in sections {
        let fields = schema.and_then(|schema| schema["properties"].as_object());
        let means = fields.into_iter().flatten().filter(|(field, _)| *field != "_meta");
        let means: Map<_, _> = means
            .filter_map(|(field, _)| Some((field.clone(), plugin.meaning(heading, field)?.into())))
            .collect();
        if !means.is_empty() {
            shown[section] = means.into();
        }
    }
    shown
}

/// The meanings in the tables of fields of the page, by the object that has the field: a kind, or a field of one.
/// Links become their texts.
fn resources(page: &str) -> Value {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for section in page.split("\n## ").skip(1) {
        let Some((heading, text)) = section.split_once('\n') else { continue };
        if !text.contains("\n| field ") {
            continue;
        }
        let object = match heading.trim() {
            "Health checks" => "active".to_owned(),
            "Beyond APISIX" => "sluice".to_owned(),
            kind => kind.to_lowercase().replace(' ', "_"),
        };
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let mut cells = line.trim().trim_matches('|').splitn(3, '|').map(str::trim);
            let (Some(names), Some(meaning)) = (cells.next(), cells.nth(1)) else { continue };
            let mut of = object.clone();
            for name in names.split(',').map(|name| name.trim().trim_matches('`')) {
                // `a.b` is the field `b` of the object `a`; `.b` behind it is another one of the same object.
                let name = match name.rsplit_once('.') {
                    Some(("", name)) => name,
                    Some((owner, name)) => {
                        owner.clone_into(&mut of);
                        name
                    }
                    None => name,
                };
                all.entry(of.clone()).or_default().insert(name.to_owned(), without_links(meaning));
            }
        }
    }
    json!(all)
}

/// `[text](target)` becomes `text`.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = link.split_once("](").and_then(|(shown, end)| Some((shown, end.split_once(')')?.1)));
        let Some((shown, after)) = parts else { break };
        out.push_str(before);
        out.push_str(shown);
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::{resources, without_links};
    use serde_json::json;

    #[test]
    fn tables_of_a_page_become_meanings() {
        let page = "# R\n\n## Plugin config\n\n| field | default | meaning |\n| --- | --- | --- |\n\
                    | `a`, `b` | | see [there](x.md) |\n| `c.d`, `.e` | | of c |\n\n\
                    ## Registries\n\n| registry | keys | of |\n| --- | --- | --- |\n| `x` | | y |\n";
        assert_eq!(
            resources(page),
            json!({"plugin_config": {"a": "see there", "b": "see there"}, "c": {"d": "of c", "e": "of c"}})
        );
        assert_eq!(without_links("[a](b) [c](d) [e]"), "a c [e]");
    }
}
