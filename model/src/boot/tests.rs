//! Whole files, and what is said of bad ones.

mod errors;
mod settings;
mod warnings;

use super::*;

fn lookup(name: &str) -> Option<String> {
    (name == "PORT").then(|| "9999".to_owned())
}

const PLUGINS: &[&str] = &["cors", "limit-count", "prometheus", "redirect"];

fn parse(text: &str) -> Boot {
    let (boot, warnings) = Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    boot
}

fn refusals(text: &str) -> Vec<Diagnostic> {
    Boot::parse("config.yaml", text, PLUGINS, &lookup).unwrap_err()
}
