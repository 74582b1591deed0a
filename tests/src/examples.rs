//! The examples on the plugins' pages (`plugins/pages`, which are included in the generated ones
//! verbatim) as cases: the documented commands are executed.
//!
//! An example has four blocks: commands for the Admin API, the same as `apisix.yaml`, commands that
//! try it, and their output. It is run twice, with the first block and with the second. If it needs
//! settings in `config.yaml`, such as the port of a stream, a block with them comes first.

use crate::case::Case;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::Path;

/// The addresses a page shows, and what stands for them while it is run.
const ADDRESSES: [(&str, &str); 11] = [
    ("127.0.0.1:9080", "${PROXY}"),
    ("127.0.0.1:9443", "${TLS}"),
    ("127.0.0.1:9180", "${ADMIN}"),
    ("127.0.0.1:9090", "${CONTROL}"),
    ("127.0.0.1:9091", "${METRICS}"),
    ("127.0.0.1:1980", "${UPSTREAM.behind}"),
    ("127.0.0.1:1981", "${UPSTREAM.second}"),
    ("127.0.0.1:1883", "${UPSTREAM.broker}"),
    ("127.0.0.1:1884", "${UPSTREAM.other-broker}"),
    // The port of streams, also by itself.
    ("127.0.0.1:9100", "${UPSTREAM.stream}"),
    ("9100", "${UPSTREAM_PORT.stream}"),
];

/// How an example's resources come to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Admin,
    Yaml,
}

/// The example of a page as a case.
///
/// # Errors
/// A page whose example is not of that form.
pub fn case(page: &Path, by: By) -> Result<Case> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let value = value(&text, by).with_context(|| page.display().to_string())?;
    serde_json::from_value(value).with_context(|| page.display().to_string())
}

fn value(page: &str, by: By) -> Result<Value> {
    let (_, example) = page.split_once("\n## Example\n").context("the page has no example")?;
    let example = example.split("\n## ").next().unwrap_or(example);
    let blocks = blocks(example)?;
    let kinds: Vec<&str> = blocks.iter().map(|(kind, _)| *kind).collect();
    let (config, blocks) = match &kinds[..] {
        ["sh", "yaml", "sh", "text"] => (None, &blocks[..]),
        ["yaml", "sh", "yaml", "sh", "text"] => (Some(filled(&blocks[0].1)), &blocks[1..]),
        _ => bail!("expected blocks of sh, yaml, sh and text, or of yaml and these, got {kinds:?}"),
    };
    let [admin, yaml, tries, says] = [0, 1, 2, 3].map(|at| filled(&blocks[at].1));
    let lines: Vec<&str> = says.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        bail!("the example does not say what comes of it");
    }
    // In this order, with anything between.
    let said = lines.iter().map(|line| regex::escape(line)).collect::<Vec<_>>().join("(?s:.*)");
    let mut case = json!({
        "about": "The example of a plugin's page.",
        "upstreams": {
            "behind": {"body": "hello from behind\n", "headers": {"Content-Type": "text/plain"}},
            "second": {"body": "unseen"},
            // Two distinguishable servers.
            "broker": {"talk": [{"read": "MQTT"}, {"send": "\u{20}\u{2}\u{0}\u{0}"}, "read_end"]},
            "other-broker": {"talk": [{"read": "MQTT"}, {"send": "\u{20}\u{2}\u{1}\u{0}"}, "read_end"]},
            "stream": "closed",
        },
    });
    if let Some(config) = config {
        case["config"] = serde_saphyr::from_str(&config).context("what config.yaml is to have")?;
    }
    let tries = json!({"name": "what it says", "shell": tries, "expect": {"body_matches": said}});
    match by {
        By::Yaml => {
            case["apisix_yaml"] = yaml.into();
            case["steps"] = json!([tries]);
        }
        By::Admin => {
            // As the sample configuration has it.
            case["config"]["deployment"] = json!({"admin": {"admin_key_required": false}});
            // A write the runner makes itself is waited for, and with it all before it.
            let wait =
                json!({"admin": "PUT /apisix/admin/upstreams/last", "json": {"nodes": {"127.0.0.1:1": 1}}});
            let admin = format!("set -e\n{admin}").replace("curl -s ", "curl -sS --fail-with-body ");
            case["steps"] = json!([{"shell": admin}, wait, tries]);
        }
    }
    Ok(case)
}

fn filled(text: &str) -> String {
    ADDRESSES.iter().fold(text.to_owned(), |text, (shown, name)| text.replace(shown, name))
}

/// Kind and text of each fenced block.
fn blocks(text: &str) -> Result<Vec<(&str, String)>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let mut block = String::new();
        loop {
            match lines.next() {
                Some("```") => break,
                Some(line) => block.extend([line, "\n"]),
                None => bail!("a block of {kind} does not end"),
            }
        }
        blocks.push((kind, block));
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# x\n\n## Example\n\nText.\n\n```sh\ncurl -s http://127.0.0.1:9180/a\n```\n\n```yaml\nroutes: []\n#END\n```\n\n\
                        ```sh\ncurl http://127.0.0.1:9080/\n```\n\n```text\na(b)\nc\n```\n\n## Fields\n\n```json\n{}\n```\n";

    #[test]
    fn a_page_is_two_cases() {
        let yaml = value(PAGE, By::Yaml).unwrap();
        assert_eq!(yaml["apisix_yaml"], "routes: []\n#END\n");
        assert_eq!(yaml["steps"][0]["shell"], "curl http://${PROXY}/\n");
        assert_eq!(yaml["steps"][0]["expect"]["body_matches"], "a\\(b\\)(?s:.*)c");
        let admin = value(PAGE, By::Admin).unwrap();
        assert_eq!(admin["steps"][0]["shell"], "set -e\ncurl -sS --fail-with-body http://${ADMIN}/a\n");
        assert_eq!(admin["steps"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn what_config_yaml_is_to_have_stands_before() {
        let config = "```yaml\napisix:\n  stream_proxy: {tcp: [\"127.0.0.1:9100\"]}\n```\n\n```sh\ncurl -s";
        let page = PAGE.replace("```sh\ncurl -s", config).replace("127.0.0.1:9080/", "127.0.0.1:9100/ 9100");
        let yaml = value(&page, By::Yaml).unwrap();
        assert_eq!(yaml["config"], json!({"apisix": {"stream_proxy": {"tcp": ["${UPSTREAM.stream}"]}}}));
        assert_eq!(yaml["steps"][0]["shell"], "curl http://${UPSTREAM.stream}/ ${UPSTREAM_PORT.stream}\n");
        let admin = value(&page, By::Admin).unwrap();
        assert_eq!(admin["config"]["apisix"], yaml["config"]["apisix"]);
        assert_eq!(admin["config"]["deployment"]["admin"]["admin_key_required"], false);
    }

    #[test]
    fn a_page_that_lacks_something_is_told() {
        for (page, words) in [
            ("# x\n", "no example"),
            ("# x\n\n## Example\n\n```sh\n", "does not end"),
            ("# x\n\n## Example\n\n```sh\n```\n", "expected blocks"),
            (&*PAGE.replace("a(b)\nc\n", "\n"), "does not say"),
        ] {
            let error = value(page, By::Yaml).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
