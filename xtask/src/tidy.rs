//! `cargo x tidy`: the house rules that reading files can prove.
//!
//! The rules stand in `xtask/walls.toml`; here is only how they are checked.
//! Nothing is compiled and nothing is changed.

mod bans;
mod rules;
mod source;
mod walls;

use crate::shell::{output, root};
use anyhow::{Context, Result, bail};
use rules::Rules;
use source::Source;
use std::process::Command;

pub fn tidy() -> Result<()> {
    let root = root();
    let text =
        std::fs::read_to_string(root.join("xtask/walls.toml")).context("cannot read xtask/walls.toml")?;
    let rules: Rules = toml::from_str(&text).context("xtask/walls.toml")?;
    let sources = sources(&root)?;

    let mut wrong = walls::check(&rules)?;
    for source in &sources {
        let lines = source.text.lines().count();
        if lines > rules.files.fail {
            wrong.push(format!(
                "{}: {lines} lines, above {}: split it by duty",
                source.path, rules.files.fail
            ));
        } else if lines > rules.files.warn {
            println!("note: {} has {lines} lines; is it still one duty?", source.path);
        }
        wrong.extend(bans::check(&rules, source));
    }
    if !wrong.is_empty() {
        bail!("{} found:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("{} files tidy, walls stand", sources.len());
    Ok(())
}

/// Every Rust file git knows or would take, in a stable order.
fn sources(root: &std::path::Path) -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]);
    let mut paths: Vec<_> = output(&mut git)?.lines().map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    let mut sources = Vec::new();
    for path in paths {
        // A file deleted but still listed by git is not there to be read.
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        sources.push(Source::new(path, text));
    }
    Ok(sources)
}
