//! The places that can be broken, as cargo-mutants lists them, and which of them a change touched.

use crate::shell::{cargo, output, root};
use anyhow::{Context, Result};
use regex_lite::Regex;
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says which breaks may survive, from the root of the repository.
const CONFIG: &str = ".cargo/mutants.toml";

#[derive(Deserialize)]
struct Config {
    exclude_re: Vec<String>,
}

/// One break: a piece of a file and what is put in its place.
#[derive(Deserialize, Clone)]
pub struct Mutant {
    /// From the root of the repository.
    pub file: String,
    /// File, line, column and what is done.
    pub name: String,
    pub replacement: String,
    pub span: Span,
    pub function: Option<Function>,
}

#[derive(Deserialize, Clone)]
pub struct Function {
    pub return_type: String,
    pub span: Span,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub start: Place,
    pub end: Place,
}

/// Line and column, both from 1; columns are characters.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// The breaks of all files of a room, or of those whose path contains one of the words.
pub fn of_room(room: &str, words: &[String]) -> Result<Vec<Mutant>> {
    let mut files = Vec::new();
    sources(&root().join(room).join("src"), &mut files)?;
    files.sort();
    let mut mutants = Vec::new();
    for path in files {
        let file = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        if words.is_empty() || words.iter().any(|word| file.contains(word.as_str())) {
            mutants.extend(of_file(&file)?);
        }
    }
    Ok(mutants)
}

/// File by file: cargo-mutants does not find modules that a macro declares.
fn of_file(file: &str) -> Result<Vec<Mutant>> {
    let mut command = cargo();
    command.args(["mutants", "--list", "--json", "--config", CONFIG, "--Zmutate-file", file]);
    let mut mutants: Vec<Mutant> = serde_json::from_str(&output(&mut command)?)
        .with_context(|| format!("what cargo-mutants lists of {file}"))?;
    leave_out_fields(&mut mutants)?;
    for mutant in &mut mutants {
        let rest = mutant.name.split_once(':').map_or("", |(_, rest)| rest);
        mutant.name = format!("{file}:{rest}");
        mutant.file = file.to_owned();
    }
    Ok(mutants)
}

/// Leaves out the fields whose loss may survive: cargo-mutants 27.1 does not ask `exclude_re` about fields.
fn leave_out_fields(mutants: &mut Vec<Mutant>) -> Result<()> {
    let is_field = |text: &str| text.contains("delete field ");
    if !mutants.iter().any(|mutant| is_field(&mutant.name)) {
        return Ok(());
    }
    let text = std::fs::read_to_string(root().join(CONFIG)).context(CONFIG)?;
    let config: Config = toml::from_str(&text).context(CONFIG)?;
    for pattern in config.exclude_re.iter().filter(|pattern| is_field(pattern)) {
        let pattern = Regex::new(pattern).with_context(|| format!("{CONFIG}: {pattern}"))?;
        mutants.retain(|mutant| !(is_field(&mutant.name) && pattern.is_match(&mutant.name)));
    }
    Ok(())
}

/// Rust files that are not tests.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name != "tests" => sources(&path, into)?,
            false if name.ends_with(".rs") && name != "tests.rs" => into.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// The lines that differ from a revision, file by file.
#[derive(Default)]
pub struct Changes(HashMap<String, Vec<RangeInclusive<usize>>>);

pub fn changes(since: &str) -> Result<Changes> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["diff", "--unified=0", "--no-color", "--no-ext-diff", since]);
    Ok(Changes::read(&output(&mut git)?))
}

impl Changes {
    fn read(diff: &str) -> Changes {
        let mut changes = Changes::default();
        let mut file = None;
        for line in diff.lines() {
            if let Some(name) = line.strip_prefix("+++ ") {
                file = name.strip_prefix("b/").map(str::to_owned);
            } else if let (Some(hunk), Some(file)) = (line.strip_prefix("@@ "), &file)
                && let Some(lines) = new_lines(hunk)
            {
                changes.0.entry(file.clone()).or_default().push(lines);
            }
        }
        changes
    }

    pub fn touch(&self, mutant: &Mutant) -> bool {
        let Some(ranges) = self.0.get(&mutant.file) else {
            return false;
        };
        let (first, last) = (mutant.span.start.line, mutant.span.end.line);
        ranges.iter().any(|range| first <= *range.end() && *range.start() <= last)
    }
}

/// Of `-1,2 +3,4 @@`: lines 3 to 6.
fn new_lines(hunk: &str) -> Option<RangeInclusive<usize>> {
    let new = hunk.split(' ').find_map(|part| part.strip_prefix('+'))?;
    let (start, count) = new.split_once(',').unwrap_or((new, "1"));
    let (start, count): (usize, usize) = (start.parse().ok()?, count.parse().ok()?);
    (count > 0).then(|| start..=start + count - 1)
}

#[cfg(test)]
mod tests {
    use super::{Changes, Mutant, Place, Span};

    #[test]
    fn a_change_touches_what_lies_on_its_lines() {
        let diff = "diff --git a/x.rs b/x.rs\n--- a/x.rs\n+++ b/x.rs\n@@ -1,0 +3,2 @@ fn a\n+a\n+b\n@@ -9 +12 @@\n-c\n+d\n\
                    @@ -20,2 +21,0 @@\n-e\n-f\n--- a/y.rs\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n";
        let changes = Changes::read(diff);
        let touches = |file: &str, from, to| {
            let place = |line| Place { line, column: 1 };
            changes.touch(&Mutant {
                file: file.to_owned(),
                name: String::new(),
                replacement: String::new(),
                span: Span { start: place(from), end: place(to) },
                function: None,
            })
        };
        let lines: Vec<_> = (1..30).filter(|line| touches("x.rs", *line, *line)).collect();
        assert_eq!(lines, [3, 4, 12]);
        assert!(touches("x.rs", 1, 5) && touches("x.rs", 4, 4) && !touches("x.rs", 5, 11));
        assert!(!touches("y.rs", 1, 30));
    }
}
