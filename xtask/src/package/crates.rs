//! The crates of other authors that are linked into the gateway, and the texts of their licences.

use crate::shell::{cargo, output, root};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A crate from a registry.
#[derive(Deserialize)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// As SPDX writes it.
    pub license: Option<String>,
    pub repository: Option<String>,
    id: String,
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Crate>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// The crates of other authors, and which of them need which.
pub struct Linked {
    pub crates: Vec<Crate>,
    /// Ids of the gateway's own crates.
    own: BTreeSet<String>,
    nodes: Vec<Node>,
}

impl Linked {
    /// The crates that one of these needs; without a crate: those that the gateway's own crates need.
    pub fn needed(&self, by: Option<&Crate>) -> Vec<&Crate> {
        let by = |node: &&Node| by.map_or_else(|| self.own.contains(&node.id), |one| one.id == node.id);
        let ids: BTreeSet<&str> =
            self.nodes.iter().filter(by).flat_map(|node| &node.dependencies).map(String::as_str).collect();
        self.crates.iter().filter(|one| ids.contains(&*one.id)).collect()
    }
}

/// The crates that are linked into the gateway, without those that only run at build time.
pub fn linked() -> Result<Linked> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", "gateway", "--edges", "normal,no-proc-macro"]);
    let tree = output(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    // Crates of the workspace stand there with their folders: `proxy v0.1.0 (/…/proxy)`.
    let wanted: BTreeSet<String> =
        tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    let mut metadata = cargo();
    metadata.args(["metadata", "--locked", "--format-version", "1"]);
    metadata.args(["--filter-platform", &super::target()]);
    let Metadata { mut packages, resolve } = serde_json::from_str(&output(&mut metadata)?)?;
    packages.retain(|one| wanted.contains(&format!("{} v{}", one.name, one.version)));
    let (crates, own): (Vec<_>, Vec<_>) = packages.into_iter().partition(|one| one.source.is_some());
    if crates.len() < 100 || own.is_empty() {
        bail!(
            "only {} crates are linked into the gateway; has the output of `cargo tree` changed?",
            crates.len()
        );
    }
    Ok(Linked { crates, own: own.into_iter().map(|one| one.id).collect(), nodes: resolve.nodes })
}

/// Every licence text of these crates, with the crates that it applies to.
///
/// # Errors
/// A crate has no text in its folder, nor below `packaging/licences`.
pub fn licences(crates: &[Crate]) -> Result<String> {
    // By the text without its line breaks: crates wrap the same licence differently.
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for one in crates {
        let folder = one.manifest_path.parent().context("a manifest has no folder")?;
        let mut files = Vec::new();
        find(folder, &mut files)?;
        let extra = root().join("packaging/licences").join(format!("{}.txt", one.name));
        if extra.is_file() {
            files.push(extra);
        }
        if files.is_empty() {
            bail!(
                "{} {} ({}) has no licence text: put one into packaging/licences/{0}.txt",
                one.name,
                one.version,
                one.license.as_deref().unwrap_or("no licence")
            );
        }
        for file in files {
            let text = String::from_utf8_lossy(&std::fs::read(&file)?).replace('\r', "");
            // A library in C may be offered under the GPL as well, where its crate takes the other licence.
            if text.contains("GNU GENERAL PUBLIC LICENSE")
                && !one.license.as_deref().is_some_and(|license| license.contains("GPL"))
            {
                continue;
            }
            let key = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let user = format!("{} {} ({})", one.name, one.version, one.license.as_deref().unwrap_or("-"));
            let (_, users) = texts.entry(key).or_insert_with(|| (text, Vec::new()));
            if !users.contains(&user) {
                users.push(user);
            }
        }
    }
    let mut texts: Vec<_> = texts.into_values().collect();
    texts.sort_by(|(_, one), (_, other)| one.cmp(other));
    let rule = "=".repeat(80);
    let mut all = format!(
        "The program sluice contains these {} crates. The texts of their licences follow, each after the\n\
         crates it comes with. The Rust standard library is under Apache-2.0 or MIT as well.\n",
        crates.len()
    );
    for (text, users) in &texts {
        write!(all, "\n{rule}\n{}\n{rule}\n\n{}\n", users.join("\n"), text.trim_matches('\n'))?;
    }
    Ok(all)
}

/// Files with licences in a crate's folder, at any depth: a crate may contain a library in C.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find(&entry.path(), found)?;
        } else if kind.is_file() && is_licence(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let (stem, extension) = name.split_once('.').unwrap_or((&name, ""));
    let stem = stem.split(['-', '_']).next().unwrap_or_default();
    ["license", "licence", "copying", "copyright", "notice", "unlicense"].contains(&stem)
        && !["rs", "py", "sh", "c", "h", "json"].contains(&extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_licences_are_known_by_their_names() {
        for name in [
            "LICENSE",
            "LICENSE-MIT",
            "license_apache.txt",
            "COPYING",
            "NOTICE.md",
            "UNLICENSE",
            "LICENSE.txt",
        ] {
            assert!(is_licence(name), "{name}");
        }
        for name in ["README.md", "licenses.rs", "license.py", "notices.h", "lib.rs"] {
            assert!(!is_licence(name), "{name}");
        }
    }

    #[test]
    fn a_crate_without_a_licence_text_is_an_error_that_names_the_file_to_write() {
        let folder = std::env::temp_dir().join(format!("sluice-licences-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("c/lib")).unwrap();
        let one = |name: &str| Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: Some("MIT".to_owned()),
            repository: None,
            id: name.to_owned(),
            source: None,
            manifest_path: folder.join("Cargo.toml"),
        };
        let error = licences(&[one("bare")]).unwrap_err().to_string();
        assert!(error.ends_with("put one into packaging/licences/bare.txt"), "{error}");
        std::fs::write(folder.join("c/lib/LICENSE"), "Do as\nyou like.\n").unwrap();
        let text = licences(&[one("a"), one("b")]).unwrap();
        assert!(text.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n"), "{text}");
        assert_eq!(text.matches("Do as\nyou like.\n").count(), 1);
        std::fs::write(folder.join("c/lib/COPYING"), "GNU GENERAL PUBLIC LICENSE\n").unwrap();
        assert!(!licences(&[one("a")]).unwrap().contains("GNU"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
