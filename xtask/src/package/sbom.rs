//! `sluice-VERSION.cdx.json`: a software bill of materials in CycloneDX's format.
//!
//! It lists the crates that are linked into the program, and no others. The usual tool reads the features of all
//! crates of the workspace at once, and so lists some that are not, with the folder it ran in.

use super::crates::{Crate, Linked, linked};
use super::{Dist, wheel};
use crate::shell::{output, root, run};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// Of CycloneDX. 1.6 is an international standard, ECMA-424.
const SPECIFICATION: &str = "1.6";

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

pub fn build(dist: &Dist) -> Result<()> {
    let lock: Lock = toml::from_str(&std::fs::read_to_string(root().join("Cargo.lock"))?)?;
    let sum = output(Command::new("sha256sum").arg(&dist.binary))?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    let bill = bill(&linked()?, &lock, &dist.version, sum);
    std::fs::write(file(dist), serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(())
}

/// Validates it by the schema of the format, as another project has it.
pub fn check(dist: &Dist) -> Result<()> {
    let script = "import sys\n\
        from cyclonedx.schema import SchemaVersion\n\
        from cyclonedx.validation.json import JsonStrictValidator\n\
        version = SchemaVersion.from_version(sys.argv[1])\n\
        error = JsonStrictValidator(version).validate_str(open(sys.argv[2]).read())\n\
        sys.exit(error and repr(error))";
    run(Command::new(wheel::python()?).args(["-c", script, SPECIFICATION]).arg(file(dist)))
}

fn bill(linked: &Linked, lock: &Lock, version: &str, sum: &str) -> Value {
    let component = |one: &Crate| {
        let mut component = json!({
            "type": "library",
            "bom-ref": purl(one),
            "name": one.name,
            "version": one.version,
            "purl": purl(one),
        });
        let locked = |found: &&Locked| found.name == one.name && found.version == one.version;
        if let Some(checksum) = lock.package.iter().find(locked).and_then(|found| found.checksum.as_ref()) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if let Some(license) = &one.license {
            component["licenses"] = json!([{ "expression": expression(license) }]);
        }
        if let Some(repository) = &one.repository {
            component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
        }
        component
    };
    let depends = |reference: &str, by: Option<&Crate>| json!({ "ref": reference, "dependsOn": linked.needed(by).into_iter().map(purl).collect::<Vec<_>>() });
    let program = format!("pkg:generic/sluice@{version}");
    let mut dependencies = vec![depends(&program, None)];
    dependencies.extend(linked.crates.iter().map(|one| depends(&purl(one), Some(one))));
    json!({
        "$schema": format!("http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json"),
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": program,
            "name": "sluice",
            "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
            "purl": program,
            "hashes": [{ "alg": "SHA-256", "content": sum }],
        } },
        "components": linked.crates.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

fn purl(one: &Crate) -> String {
    // `+` begins the build metadata of a version.
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

/// Old crates separate alternatives by a slash.
fn expression(license: &str) -> String {
    license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

fn file(dist: &Dist) -> PathBuf {
    dist.out.join(format!("sluice-{}.cdx.json", dist.version))
}

#[cfg(test)]
mod tests {
    #[test]
    fn alternatives_are_written_as_spdx_does() {
        assert_eq!(super::expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(super::expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(super::expression("ISC AND MIT"), "ISC AND MIT");
    }
}
