//! `cargo x new-plugin NAME`: a plugin's file, its line in the list, its page, its case.
//!
//! The new plugin does nothing yet, but it is whole: it builds, it is checked,
//! it has a test and a case that pass.

use crate::shell::{cargo, root, run};
use anyhow::{Context, Result, bail};
use std::fs;

pub fn command(args: &[String]) -> Result<()> {
    let (name, priority) = match args {
        [name] => (name, None),
        [name, flag, value] if flag == "--priority" => {
            (name, Some(value.parse::<i32>().with_context(|| format!("--priority {value}: not a number"))?))
        }
        _ => bail!("usage: cargo x new-plugin NAME [--priority N]"),
    };
    let plugin = Names::of(name)?;
    let src = root().join("plugins/src");
    let priority = match (priority, known(name)?) {
        (Some(priority), _) | (None, Some(priority)) => priority,
        (None, None) => bail!("{name} is no plugin of APISIX; say when it runs with --priority N"),
    };

    let list = src.join("lib.rs");
    let text = fs::read_to_string(&list)?;
    let listed = insert(&text, &plugin, priority, |module| {
        fs::read_to_string(src.join(format!("{module}.rs"))).ok().as_deref().and_then(stated_priority)
    })?;
    let file = src.join(format!("{}.rs", plugin.module));
    let case = root().join(format!("tests/cases/plugins/{name}.yaml"));
    let page = root().join(format!("plugins/pages/{name}.md"));
    for path in [&file, &case, &page] {
        if path.exists() {
            bail!("{} is there already", path.display());
        }
    }
    fs::write(&file, code(&plugin, priority))?;
    fs::write(&case, case_text(name))?;
    fs::write(&page, page_text(name))?;
    fs::write(&list, listed)?;
    run(cargo().args(["fmt", "--package", "plugins"]))?;
    let files = [&file, &case, &page].map(|path| path.display().to_string()).join(", ");
    println!("written: {files}, and its line in {}", list.display());
    println!(
        "next: its settings and phases, then `cargo test -p plugins {}` and `cargo x test {name}`",
        plugin.module
    );
    Ok(())
}

/// One plugin's name in its three spellings.
struct Names {
    /// `limit-count`, as users write it.
    plugin: String,
    /// `limit_count`, its file.
    module: String,
    /// `LimitCount`, its type.
    kind: String,
}

impl Names {
    fn of(name: &str) -> Result<Names> {
        let good = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_lowercase())
                && part.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        };
        if !name.split('-').all(good) {
            bail!("{name:?} is no plugin name: lower-case words joined by dashes, as in limit-count");
        }
        let kind = name.split('-').map(|part| part[..1].to_uppercase() + &part[1..]).collect();
        Ok(Names { plugin: name.to_owned(), module: name.replace('-', "_"), kind })
    }
}

/// The priority APISIX gives a plugin, from the list of its plugins.
fn known(name: &str) -> Result<Option<i32>> {
    let file = root().join("model/src/apisix_plugins.rs");
    let text = fs::read_to_string(file).context("the list of APISIX's plugins")?;
    let start = format!("\n    \"{name}\" ");
    let number = text.split_once(&start).and_then(|(_, rest)| rest.split([' ', ';']).next());
    number.map(|number| number.trim().parse().with_context(|| format!("the priority of {name}"))).transpose()
}

fn stated_priority(code: &str) -> Option<i32> {
    let (_, rest) = code.split_once("const PRIORITY: i32 =")?;
    rest.split(';').next()?.trim().parse().ok()
}

/// Puts the line where the priority says, from high to low.
fn insert(
    text: &str,
    plugin: &Names,
    priority: i32,
    priority_of: impl Fn(&str) -> Option<i32>,
) -> Result<String> {
    let opening = "\nplugins! {\n";
    let start = text.find(opening).context("no `plugins! {` in the list")? + opening.len();
    let end = start + text[start..].find('}').context("the list does not end")?;
    let mut at = start;
    for line in text[start..end].lines() {
        let module = line.trim_start().split_once("::").map(|(module, _)| module);
        if module == Some(plugin.module.as_str()) {
            bail!("{} is in the list already", plugin.plugin);
        }
        if module.and_then(&priority_of).is_some_and(|other| other < priority) {
            break;
        }
        at += line.len() + 1;
    }
    let at = at.min(end);
    let line = format!("    {}::{},\n", plugin.module, plugin.kind);
    let listed = format!("{}{line}{}", &text[..at], &text[at..]);
    // rustfmt sorts it in.
    let (module, first) = (format!("pub mod {};\n", plugin.module), "\npub mod ");
    let declared = listed.find(first).context("no `pub mod` in the list")? + 1;
    Ok(format!("{}{module}{}", &listed[..declared], &listed[declared..]))
}

fn code(plugin: &Names, priority: i32) -> String {
    let Names { plugin: name, kind, .. } = plugin;
    format!(
        r#"//! {name}: say in a line what it does for the operator.
//!
//! Say what it never does, and where its behaviour is described.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{{Build, Exchange, Plugin, Step}};
use serde::Deserialize;
use serde_json::{{Value, json}};

/// The stage.
pub struct {kind} {{
    _config: Config,
}}

#[derive(Debug, Deserialize)]
pub struct Config {{}}

impl Plugin for {kind} {{
    const NAME: &'static str = "{name}";
    const PRIORITY: i32 = {priority};
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {{
        json!({{"type": "object", "properties": {{}}}})
    }}

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<{kind}, Invalid> {{
        Ok({kind} {{ _config: config }})
    }}

    fn access(&self, _x: &mut Exchange<'_>) -> Step {{
        Step::Next
    }}
}}

#[cfg(test)]
mod tests {{
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn a_request_goes_on() {{
        let mut probe = Probe::request("GET", "/", &[]);
        let stage: {kind} = probe.stage(json!({{}})).unwrap();
        assert!(matches!(stage.access(&mut probe.exchange()), Step::Next));
    }}
}}
"#
    )
}

fn case_text(name: &str) -> String {
    format!(
        "about: {name} does what its page says.
upstreams: {{a: {{body: a}}}}
resources:
  routes:
    - {{id: 1, uri: /a, plugins: {{{name}: {{}}}}, upstream: {{nodes: {{\"${{UPSTREAM.a}}\": 1}}}}}}
steps:
  - {{request: GET /a, expect: {{status: 200, body: a}}}}
"
    )
}

/// The text for the generated page; its example is run as two cases.
fn page_text(name: &str) -> String {
    format!(
        r#"# {name}

The words of docs/plugins/{name}.md: what each field means, and an example, whose four blocks are run as cases.

## Fields

## Example

Say what the example shows.

Through the Admin API (with `-H "X-API-KEY: ..."` where a key is asked for):

```sh
curl -s http://127.0.0.1:9180/apisix/admin/routes/hello -X PUT -d '{{
    "uri": "/hello",
    "plugins": {{"{name}": {{}}}},
    "upstream": {{"nodes": {{"127.0.0.1:1980": 1}}}}
}}'
```

The same in `apisix.yaml`:

```yaml
routes:
  - id: hello
    uri: /hello
    plugins:
      {name}: {{}}
    upstream:
      nodes: {{"127.0.0.1:1980": 1}}
#END
```

Then, with a server on 127.0.0.1:1980,

```sh
curl -i http://127.0.0.1:9080/hello
```

says, among other things:

```text
HTTP/1.1 200 OK
```
"#
    )
}

#[cfg(test)]
mod tests {
    use super::{Names, insert, stated_priority};

    const LIST: &str = "//\npub mod cors;\nplugins! {\n    cors::Cors,\n    key_auth::KeyAuth,\n}\n";

    fn priorities(module: &str) -> Option<i32> {
        [("cors", 4000), ("key_auth", 2500)]
            .iter()
            .find(|(name, _)| *name == module)
            .map(|(_, number)| *number)
    }

    #[test]
    fn the_line_stands_where_its_priority_says() {
        let plugin = Names::of("ip-restriction").expect("a name");
        let list = |priority| insert(LIST, &plugin, priority, priorities).expect("inserted");
        let line = "    ip_restriction::IpRestriction,\n";
        assert!(list(3000).contains(&format!("cors::Cors,\n{line}    key_auth")));
        assert!(list(9000).contains(&format!("plugins! {{\n{line}    cors")));
        assert!(list(1).contains(&format!("key_auth::KeyAuth,\n{line}}}")));
        assert!(list(1).starts_with("//\npub mod ip_restriction;\npub mod cors;\n"));
    }

    #[test]
    fn names_are_checked_and_never_twice() {
        assert!(Names::of("Limit-Count").is_err());
        assert!(Names::of("limit--count").is_err());
        let cors = Names::of("cors").expect("a name");
        assert!(insert(LIST, &cors, 4000, priorities).is_err());
    }

    #[test]
    fn a_priority_is_read_from_code() {
        assert_eq!(stated_priority("x\n    const PRIORITY: i32 = -43;\n"), Some(-43));
    }
}
