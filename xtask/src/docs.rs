//! The documents: every link between them leads somewhere.

use crate::shell::{output, root};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

pub fn check() -> Result<()> {
    let root = root();
    let listed = output(Command::new("git").current_dir(&root).args(["ls-files", "*.md"]))?;
    let mut broken = Vec::new();
    let mut links = 0;
    for file in listed.lines() {
        let path = root.join(file);
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for target in targets(&text) {
            links += 1;
            if !leads_somewhere(&path, &text, target) {
                broken.push(format!("{file}: the link to {target:?} leads nowhere"));
            }
        }
    }
    if !broken.is_empty() {
        bail!("broken links:\n  {}", broken.join("\n  "));
    }
    println!("{links} links between documents, all good");
    Ok(())
}

/// The targets of `](...)` outside code, without network links.
fn targets(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let Some(end) = rest.find(')') else { continue };
            let target = rest[..end].split(' ').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target);
            }
        }
    }
    found
}

fn leads_somewhere(from: &Path, text: &str, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return has_heading(text, anchor);
    }
    let path = from.parent().unwrap_or(from).join(file);
    if anchor.is_empty() || path.extension().is_none_or(|kind| kind != "md") {
        return path.exists();
    }
    std::fs::read_to_string(path).is_ok_and(|other| has_heading(&other, anchor))
}

/// Headings as the common renderers name them: lower case, spaces as dashes,
/// punctuation gone.
fn has_heading(text: &str, anchor: &str) -> bool {
    text.lines().filter(|line| line.starts_with('#')).any(|line| {
        let name = line.trim_start_matches('#').trim().to_lowercase();
        let slug: String = name
            .chars()
            .filter_map(|letter| match letter {
                ' ' => Some('-'),
                '-' | '_' => Some(letter),
                _ if letter.is_alphanumeric() => Some(letter),
                _ => None,
            })
            .collect();
        slug == anchor
    })
}

#[cfg(test)]
mod tests {
    use super::{has_heading, targets};

    #[test]
    fn links_are_found_outside_code_only() {
        let text = "see [a](a.md) and [b](https://b)\n```\n[c](c.md)\n```\n[d](d.md#x \"title\")";
        assert_eq!(targets(text), ["a.md", "d.md#x"]);
    }

    #[test]
    fn headings_become_anchors() {
        assert!(has_heading("## Life of a request (short)", "life-of-a-request-short"));
        assert!(!has_heading("plain text", "plain-text"));
    }
}
