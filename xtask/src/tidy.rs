//! `cargo x tidy`: the house rules that reading files can prove.
//!
//! The rules stand in `xtask/walls.toml` and `xtask/words.toml`; here is only how they are checked.
//! Nothing is compiled and nothing is changed.

mod bans;
mod circles;
mod rules;
mod source;
mod walls;
mod words;

use crate::shell::{output, root};
use anyhow::{Context, Result, bail};
use rules::Rules;
use source::Source;
use std::path::Path;
use std::process::Command;
use words::Words;

pub fn tidy() -> Result<()> {
    let root = root();
    let rules: Rules = load(&root, "xtask/walls.toml")?;
    let words: Words = load(&root, "xtask/words.toml")?;
    let sources: Vec<_> =
        files(&root, "*.rs")?.into_iter().map(|(path, text)| Source::new(path, text)).collect();

    let mut wrong = walls::check(&rules)?;
    wrong.extend(circles::check(&rules.circles, &sources)?);
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
    wrong.extend(words::check(&words, &sources, &files(&root, "*.md")?));
    if !wrong.is_empty() {
        bail!("{} found:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("{} files tidy, walls stand", sources.len());
    Ok(())
}

fn load<T: serde::de::DeserializeOwned>(root: &Path, path: &str) -> Result<T> {
    let text = std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
    toml::from_str(&text).with_context(|| path.to_owned())
}

/// Path and text of every file of a pattern that git tracks or would add, in a stable order.
fn files(root: &Path, pattern: &str) -> Result<Vec<(String, String)>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard", pattern]);
    let mut paths: Vec<_> = output(&mut git)?.lines().map(str::to_owned).collect();
    paths.sort();
    paths.dedup();
    // A file that was deleted may still be listed by git.
    let read = |path: String| std::fs::read_to_string(root.join(&path)).ok().map(|text| (path, text));
    Ok(paths.into_iter().filter_map(read).collect())
}
