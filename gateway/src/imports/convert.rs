//! `sluice convert`: an imported file as an `apisix.yaml`, with the place that each resource comes from.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use model::boot::Boot;

use super::{Closed, Imported, Job, sections};
use crate::files::{self, Kind};
use crate::yaml;
use crate::{check, cli, say};

/// Writes the file as one or two files of our own, or to standard output. False if it cannot be imported.
///
/// # Errors
/// A file that cannot be written.
pub fn convert(file: &Path, options: &cli::Import, output: Option<&Path>) -> anyhow::Result<bool> {
    let job = match files::kind_of(file, options) {
        Ok(Kind::Import(job)) => job,
        Ok(_) => bail!("{} is no file of another gateway", file.display()),
        Err(found) => return Ok(check::report(found, false)),
    };
    let text = match files::read(file) {
        Ok(text) => text,
        Err(found) => return Ok(check::report(found, false)),
    };
    let imported = match job.read(&text).0 {
        Ok(imported) => imported,
        Err(found) => return Ok(check::report(vec![*found], false)),
    };
    let config = config_yaml(&job, &imported)?;
    let folder = output.filter(|path| path.is_dir() || path.to_string_lossy().ends_with('/'));
    let resources = apisix_yaml(&job, &imported, if folder.is_some() { None } else { Some(&config) });
    match (folder, output) {
        (Some(folder), _) => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            write(&folder.join("config.yaml"), &config)?;
            write(&folder.join("apisix.yaml"), &resources)?;
        }
        (None, Some(output)) => write(output, &resources)?,
        (None, None) => say::out(resources.trim_end()),
    }
    say::err(job.summary(&imported));
    Ok(check::report(imported.declarative.diagnostics, false))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {} (it must be a new file)", path.display()))
}

/// The addresses to listen on and those of registries, as a `config.yaml`.
fn config_yaml(job: &Job, imported: &Imported) -> anyhow::Result<String> {
    let config = job.config(&imported.import, &[]);
    let text = yaml::document(&config);
    // A start reads it as the file that is written.
    Boot::parse("config.yaml", &text, &plugins::names(), &files::env).map_err(|found| {
        anyhow::anyhow!("{}", found.iter().map(model::Diagnostic::one_line).collect::<Vec<_>>().join("; "))
    })?;
    Ok(format!(
        "# Where {} listens, and the registries that it uses.\n{text}",
        comment(&job.path.display().to_string())
    ))
}

/// The resources with comments. `config` is shown as a comment.
pub fn apisix_yaml(job: &Job, imported: &Imported, config: Option<&str>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "# Converted by `sluice convert` from {}, of {}.",
        comment(&job.path.display().to_string()),
        job.format.title()
    );
    let findings = &imported.import.findings;
    match findings.len() {
        0 => out.push_str("# Everything is carried over.\n"),
        all => _ = writeln!(out, "#\n# {}:", say::counted(all, "finding")),
    }
    for finding in findings {
        let _ = writeln!(out, "# {}", comment(&finding.to_string()));
    }
    if let Some(config) = config {
        out.push_str("#\n# These settings belong to a config.yaml beside this file:\n#\n");
        for line in config.lines() {
            let _ = writeln!(out, "#   {}", comment(line));
        }
    }
    let (sections, places) = sections(&imported.import, &imported.closed);
    for (name, items) in &sections {
        out.push('\n');
        let comments = |index: usize| {
            let at = places.get(name.as_str()).and_then(|all| all.get(index));
            let Some(one) = at.map(|at| &imported.import.resources[*at]) else { return Vec::new() };
            let mut lines = vec![comment(&one.place.to_string())];
            match imported.closed.iter().find(|(key, _)| *key == one.key).map(|(_, why)| why) {
                Some(Closed::Guard) => {
                    lines.push("Closed: a guard is not carried over, see the findings above.".to_owned());
                    let guards = imported.import.guards(&one.key);
                    lines.extend(guards.map(|guard| comment(&guard.to_string())));
                }
                Some(Closed::Invalid) => lines.push("Closed: the imported route is invalid.".to_owned()),
                None => {}
            }
            lines
        };
        yaml::section(&mut out, name, items.as_array().map_or(&[], Vec::as_slice), &comments);
    }
    out.push_str("#END\n");
    out
}

/// Text for a comment: one line, and nothing that begins a variable.
fn comment(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.replace("${{", "$ {{")
}
