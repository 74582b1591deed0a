//! Writes the results of a run: JSON with everything, Markdown to read, SVG charts.

mod chart;
pub mod markdown;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::gateways::Gateway;
use crate::gateways::tools::Program;
use crate::goals::Verdict;
use crate::machine::Machine;
use crate::published::Figure;
use crate::run::{Outcome, Plan};

/// A finished run.
#[derive(Serialize)]
pub struct Report {
    pub name: String,
    pub machine: Machine,
    pub plan: Plan,
    /// When it ended, seconds since 1970, and how long it took.
    pub ended: u64,
    pub took_seconds: f64,
    pub gateways: Vec<GatewayEntry>,
    pub goals: Vec<Verdict>,
    pub outcomes: Vec<Outcome>,
    /// Scenarios that were not run, with the reason.
    pub skipped: Vec<(String, String)>,
    pub published: &'static [Figure],
}

/// A gateway's version, or why it is missing.
#[derive(Serialize)]
pub struct GatewayEntry {
    pub gateway: Gateway,
    pub version: Option<String>,
    pub missing: Option<String>,
}

/// Versions and reasons, for a report.
pub fn found(programs: &[(Gateway, Result<Program, String>)]) -> Vec<GatewayEntry> {
    programs
        .iter()
        .map(|(gateway, program)| GatewayEntry {
            gateway: *gateway,
            version: program.as_ref().ok().map(|program| program.version.clone()),
            missing: program.as_ref().err().cloned(),
        })
        .collect()
}

/// Writes `report.json`, `report.md` and a chart per scenario to a folder named after the run.
///
/// # Errors
/// When a file cannot be written.
pub fn write(report: &Report, reports: &Path) -> Result<PathBuf> {
    let folder = reports.join(&report.name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Remove charts of scenarios that are only in an earlier run of that name.
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(path)?;
        }
    }
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    for outcome in &report.outcomes {
        write(&format!("{}.svg", outcome.scenario.id), chart::of(outcome))?;
    }
    write("report.md", markdown::page(report))?;
    write("report.json", serde_json::to_string_pretty(report)? + "\n")?;
    Ok(folder)
}
