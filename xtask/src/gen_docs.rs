//! `cargo x gen`: the plugin pages under `docs/plugins` and the tables of `docs/configuration.md`, from
//! what the gateway says of itself.
//!
//! The gateway prints its plugins' schemas and the settings of config.yaml (`sluice schema`), each plugin's file
//! says in its first lines what it is for, and its page under `plugins/pages` what a field
//! means, with an example; nothing about a plugin is written here. The tables of settings are
//! [written between marks](settings) in a page that is otherwise written by hand.
//!
//! It also has a test of `adapters` write the messages of etcd's API: compiling them takes crates that only tests need.

use crate::shell::{cargo, output, root, run};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

mod meanings;
mod settings;

pub fn command(args: &[String]) -> Result<()> {
    match args {
        [] => {
            let mut messages = cargo();
            messages.args(["test", "--package", "adapters", "--lib", "messages_are_those_of_the_proto_file"]);
            run(messages.env("SLUICE_WRITE_MESSAGES", "1"))?;
            write()
        }
        [flag] if flag == "--check" => check_with(&mut built_here()),
        _ => bail!("usage: cargo x gen [--check]"),
    }
}

/// Fails when a page on disk is not what this gateway would generate.
pub fn check(gateway: &Path) -> Result<()> {
    check_with(&mut Command::new(gateway))
}

/// The gateway, built if needed.
fn built_here() -> Command {
    let mut command = cargo();
    command.args(["run", "--package", "gateway", "--"]);
    command
}

fn check_with(gateway: &mut Command) -> Result<()> {
    let (docs, folder) = (root().join("docs"), root().join("docs/plugins"));
    let pages = pages(gateway)?;
    let mut stale: Vec<_> = pages
        .iter()
        .filter(|(name, text)| std::fs::read_to_string(docs.join(name)).ok().as_ref() != Some(text))
        .map(|(name, _)| name.clone())
        .collect();
    for (place, prefix) in [(folder.clone(), "plugins/"), (folder.join("stream"), "plugins/stream/")] {
        for entry in std::fs::read_dir(&place).with_context(|| format!("{}", place.display()))? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if !entry.path().is_dir() && !pages.contains_key(&name) {
                stale.push(format!("{name} (no such plugin)"));
            }
        }
    }
    if !stale.is_empty() {
        bail!("stale in docs: {}; run `cargo x gen`", stale.join(", "));
    }
    println!("{} generated pages are up to date", pages.len());
    Ok(())
}

fn write() -> Result<()> {
    let docs = root().join("docs");
    std::fs::create_dir_all(docs.join("plugins/stream"))?;
    for (name, text) in pages(&mut built_here())? {
        std::fs::write(docs.join(&name), text).with_context(|| format!("writing {name}"))?;
        println!("docs/{name}");
    }
    Ok(())
}

/// The output of `sluice schema` for one plugin.
#[derive(Deserialize)]
struct Plugin {
    priority: i64,
    version: String,
    schema: Value,
    #[serde(default)]
    consumer_schema: Option<Value>,
    #[serde(default)]
    metadata_schema: Option<Value>,
    /// The introduction in the plugin's source file; not printed by the gateway.
    #[serde(skip)]
    doc: String,
    /// Its page under `plugins/pages`.
    #[serde(skip)]
    words: String,
    /// The page of the plugin of routes of the same name, for one of streams: a field that its own page does not
    /// have means the same on both.
    #[serde(skip)]
    of_routes: Option<String>,
}

/// The prefix of the names of stream plugins.
const STREAM: &str = "stream/";

impl Plugin {
    /// The text of the page under a heading.
    fn part(&self, heading: &str) -> Option<&str> {
        part(&self.words, heading)
    }

    /// The page's description of a field.
    fn meaning(&self, heading: &str, field: &str) -> Option<&str> {
        if field == "_meta" {
            return Some(
                "common to all plugins: `disable`, `priority`, `filter`, `error_response`, `pre_function`",
            );
        }
        let start = format!("- `{field}`: ");
        let pages = [Some(self.words.as_str()), self.of_routes.as_deref()];
        let parts = pages.into_iter().flatten().filter_map(|page| part(page, heading));
        parts.flat_map(str::lines).find_map(|line| line.strip_prefix(&start))
    }
}

fn part<'p>(page: &'p str, heading: &str) -> Option<&'p str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest).trim())
}

/// The output of `sluice schema`.
#[derive(Deserialize)]
struct Printed {
    plugins: BTreeMap<String, Plugin>,
    settings: settings::Tables,
    answers: Value,
}

/// Schemas of answers of the Admin API, from which `cargo x dashboard` makes the types of its code.
const ANSWERS: &str = "../dashboard/answers.json";

/// Every generated page by its path below `docs`.
fn pages(gateway: &mut Command) -> Result<BTreeMap<String, String>> {
    let printed = output(gateway.arg("schema"))?;
    let Printed { mut plugins, settings, answers } =
        serde_json::from_str(&printed).context("reading what `sluice schema` printed")?;
    if plugins.is_empty() {
        bail!("`sluice schema` names no plugin");
    }
    for (name, plugin) in &mut plugins {
        let file = root().join("plugins/src").join(name.replace('-', "_")).with_extension("rs");
        let code = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        plugin.doc = module_doc(name, &code);
        let words = root().join("plugins/pages").join(name).with_extension("md");
        plugin.words = std::fs::read_to_string(&words).with_context(|| format!("{}", words.display()))?;
        if let Some(same) = name.strip_prefix(STREAM) {
            let path = root().join("plugins/pages").join(same).with_extension("md");
            plugin.of_routes = std::fs::read_to_string(path).ok();
        }
    }
    let mut pages = BTreeMap::new();
    for (name, plugin) in &plugins {
        pages.insert(format!("plugins/{name}.md"), page(name, plugin)?);
    }
    pages.insert("plugins/README.md".into(), index(&plugins, &meanings::prices()?));
    pages.insert(meanings::FILE.into(), meanings::of(&plugins)?);
    pages.insert(ANSWERS.into(), serde_json::to_string_pretty(&answers)? + "\n");
    let page = std::fs::read_to_string(root().join("docs").join(settings::PAGE))?;
    pages.insert(settings::PAGE.into(), settings::filled(&page, &settings)?);
    Ok(pages)
}

/// The lines a file begins with, without the plugin's own name before them.
fn module_doc(name: &str, code: &str) -> String {
    let lines = code.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    // The mark of a hot file is for those who change it, not for its users.
    let text = lines.skip_while(|line| line.is_empty() || *line == "hot path").collect::<Vec<_>>().join("\n");
    let name = name.strip_prefix(STREAM).unwrap_or(name);
    let text = text.strip_prefix(name).unwrap_or(&text);
    let text = text.strip_prefix(" on streams").unwrap_or(text);
    let text = text.strip_prefix(": ").unwrap_or(text).trim();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// `prices` are instructions by plugin.
fn index(plugins: &BTreeMap<String, Plugin>, prices: &BTreeMap<String, u64>) -> String {
    let mut text = String::from(
        "# Plugins\n\nGenerated by `cargo x gen` from the program; do not edit.\n\
         Within a phase, the higher priority runs first. The cost of a plugin is the number of user instructions that it\n\
         adds to a request, for those that `cargo x bench instructions` has measured.\n\n",
    );
    rows(&mut text, plugins, prices, |name| !name.starts_with(STREAM));
    text.push_str("\n## Of streams\n\nOn [stream routes](../streams.md).\n\n");
    rows(&mut text, plugins, prices, |name| name.starts_with(STREAM));
    text
}

fn rows(
    text: &mut String,
    plugins: &BTreeMap<String, Plugin>,
    prices: &BTreeMap<String, u64>,
    which: impl Fn(&str) -> bool,
) {
    let mut by_priority: Vec<_> = plugins.iter().filter(|(name, _)| which(name)).collect();
    by_priority.sort_by_key(|(name, plugin)| (-plugin.priority, name.as_str()));
    text.push_str("| plugin | priority | cost | what it does |\n| --- | ---: | ---: | --- |\n");
    for (name, plugin) in by_priority {
        let first = plugin.doc.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let shown = name.strip_prefix(STREAM).unwrap_or(name);
        let price = prices.get(name).map(u64::to_string).unwrap_or_default();
        let _ = writeln!(text, "| [{shown}]({name}.md) | {} | {price} | {first} |", plugin.priority);
    }
}

fn page(name: &str, plugin: &Plugin) -> Result<String> {
    let title = match name.strip_prefix(STREAM) {
        Some(same) => format!("{same} on streams"),
        None => name.to_owned(),
    };
    let mut text = format!("# {title}\n\nGenerated by `cargo x gen` from the program; do not edit.\n\n");
    let _ = writeln!(text, "{}\n", plugin.doc);
    let _ = writeln!(text, "Priority {}, version {}.\n", plugin.priority, plugin.version);
    let example =
        plugin.part("Example").with_context(|| format!("plugins/pages/{name}.md has no example"))?;
    let _ = writeln!(text, "## Example\n\n{example}\n");
    let sections = [
        (
            if name.starts_with(STREAM) { "On a stream route" } else { "On a route, service or rule" },
            "Fields",
            Some(&plugin.schema),
        ),
        ("On a consumer", "Consumer", plugin.consumer_schema.as_ref()),
        ("Metadata", "Metadata", plugin.metadata_schema.as_ref()),
    ];
    for (title, heading, schema) in sections {
        section(&mut text, title, schema, &|field| plugin.meaning(heading, field))
            .with_context(|| format!("plugins/pages/{name}.md, {heading}"))?;
    }
    Ok(text)
}

fn section<'a>(
    text: &mut String,
    title: &str,
    schema: Option<&Value>,
    meaning: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<()> {
    let Some(schema) = schema.filter(|schema| !schema.is_null()) else { return Ok(()) };
    let _ = writeln!(text, "## {title}\n");
    fields(text, schema, meaning)?;
    let pretty = serde_json::to_string_pretty(schema).unwrap_or_default();
    let _ =
        writeln!(text, "<details><summary>JSON schema</summary>\n\n```json\n{pretty}\n```\n\n</details>\n");
    Ok(())
}

/// A table of a schema's own properties; nested ones are in the schema below it.
fn fields<'a>(text: &mut String, schema: &Value, meaning: &dyn Fn(&str) -> Option<&'a str>) -> Result<()> {
    let Some(properties) = schema["properties"].as_object().filter(|map| !map.is_empty()) else {
        text.push_str("No fields.\n\n");
        return Ok(());
    };
    let required: Vec<_> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    text.push_str("| field | what it means | type | default | limits |\n| --- | --- | --- | --- | --- |\n");
    for (name, field) in properties {
        let must = if required.contains(&name.as_str()) { " (required)" } else { "" };
        let default = field.get("default").map(|value| format!("`{value}`")).unwrap_or_default();
        let means = meaning(name).with_context(|| format!("the field `{name}` has no line there"))?;
        let means = means.replace('|', "\\|");
        let _ =
            writeln!(text, "| `{name}`{must} | {means} | {} | {default} | {} |", kind(field), limits(field));
    }
    text.push('\n');
    Ok(())
}

fn kind(field: &Value) -> String {
    match &field["type"] {
        Value::String(one) if one == "array" => match field["items"]["type"].as_str() {
            Some(item) => format!("array of {item}"),
            None => "array".into(),
        },
        Value::String(one) => one.clone(),
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ if field.get("enum").is_some() => "string".into(),
        _ => ["oneOf", "anyOf"]
            .iter()
            .filter_map(|key| field[key].as_array())
            .flatten()
            .map(kind)
            .filter(|kind| !kind.is_empty())
            .collect::<Vec<_>>()
            .join(" or "),
    }
}

fn limits(field: &Value) -> String {
    const WORDS: [(&str, &str); 10] = [
        ("enum", "one of"),
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
        ("minLength", "length at least"),
        ("maxLength", "length at most"),
        ("minItems", "items at least"),
        ("maxItems", "items at most"),
        ("pattern", "matches"),
    ];
    let said = WORDS.iter().filter_map(|(key, word)| {
        let value = field.get(*key)?.to_string().replace('|', "\\|");
        Some(format!("{word} `{value}`"))
    });
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{fields, kind, limits, module_doc};
    use serde_json::json;

    #[test]
    fn a_field_says_its_type_default_and_limits() {
        let mut text = String::new();
        let count = json!({"type": "integer", "minimum": 1, "default": 5});
        let schema = json!({"required": ["count"], "properties": {"count": count}});
        fields(&mut text, &schema, &|_| Some("how many")).unwrap();
        assert!(text.contains("| `count` (required) | how many | integer | `5` | at least `1` |"), "{text}");
        let error = fields(&mut text, &schema, &|_| None).unwrap_err();
        assert!(error.to_string().contains("`count`"), "{error}");
    }

    #[test]
    fn a_page_begins_as_the_file_does() {
        let code = "//! hot path\n//!\n//! cors: fields for\n//! browsers.\n//!\n//! More.\n\nuse x;\n//! not this\n";
        assert_eq!(module_doc("cors", code), "Fields for\nbrowsers.\n\nMore.");
    }

    #[test]
    fn types_may_be_lists_or_alternatives() {
        assert_eq!(kind(&json!({"type": ["string", "integer"]})), "string or integer");
        assert_eq!(kind(&json!({"oneOf": [{"type": "string"}, {"type": "object"}]})), "string or object");
        assert_eq!(kind(&json!({"type": "array", "items": {"type": "string"}})), "array of string");
        assert_eq!(limits(&json!({"enum": ["a", "b"]})), "one of `[\"a\",\"b\"]`");
    }
}
