//! The dependencies of each room, as cargo lists them, against those it may have.

use super::rules::Rules;
use crate::shell::{cargo, output};
use anyhow::{Context, Result};
use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// None for an ordinary dependency, else `dev` or `build`.
    kind: Option<String>,
}

pub fn check(rules: &Rules) -> Result<Vec<String>> {
    let text = output(cargo().args(["metadata", "--no-deps", "--format-version", "1", "--quiet"]))?;
    let metadata: Metadata = serde_json::from_str(&text).context("reading cargo metadata")?;
    Ok(metadata.packages.iter().flat_map(|package| crossings(rules, package)).collect())
}

fn crossings(rules: &Rules, package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some(room) = rules.room.get(name) else {
        return vec![format!("{name}: no such room in xtask/walls.toml; say there what it may see")];
    };
    let mut wrong = Vec::new();
    for dependency in &package.dependencies {
        let other = &dependency.name;
        let dev = dependency.kind.as_deref() == Some("dev");
        let allowed = room.may.contains(other) || (dev && room.dev.contains(other));
        if rules.room.contains_key(other) && other != name && !allowed {
            wrong.push(format!("{name}/Cargo.toml: {name} may not see {other} (xtask/walls.toml)"));
        }
        if !dev && room.never.contains(other) {
            wrong.push(format!("{name}/Cargo.toml: {name} must never depend on {other} (xtask/walls.toml)"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Package, crossings};
    use crate::tidy::rules::Rules;

    const RULES: &str = r#"
        [room.proxy]
        may = ["wire"]
        never = ["serde"]
        dev = ["model"]
        [room.wire]
        may = []
        never = []
        [room.model]
        may = []
        never = []
        [files]
        warn = 1
        fail = 2
        [circles]
        most = 8
    "#;

    fn found(name: &str, kind: Option<&str>) -> usize {
        let rules: Rules = toml::from_str(RULES).expect("the rules above are valid");
        let dependency = Dependency { name: name.into(), kind: kind.map(str::to_owned) };
        crossings(&rules, &Package { name: "proxy".into(), dependencies: vec![dependency] }).len()
    }

    #[test]
    fn only_edges_of_the_table_pass() {
        assert_eq!(found("wire", None), 0);
        assert_eq!(found("model", None), 1);
        assert_eq!(found("model", Some("dev")), 0);
        assert_eq!(found("model", Some("build")), 1);
        assert_eq!(found("serde", None), 1);
        assert_eq!(found("memchr", None), 0);
    }

    #[test]
    fn a_room_not_in_the_table_is_refused() {
        let rules: Rules = toml::from_str(RULES).expect("the rules above are valid");
        assert_eq!(crossings(&rules, &Package { name: "new".into(), dependencies: vec![] }).len(), 1);
    }
}
