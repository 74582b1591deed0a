//! The one description of the Debian and the RPM package, `packaging/deb-rpm/nfpm.yaml`, and the program that
//! reads it.

use super::Dist;
use super::needs::Needs;
use crate::shell::{root, run};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// From the Go module proxy. Later versions need a module that the proxy refuses.
const NFPM: &str = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2";

/// Builds the package of a kind, `deb` or `rpm`, into a folder. The version may differ from that of the program.
pub fn build(dist: &Dist, kind: &str, version: &str, out: &Path) -> Result<PathBuf> {
    tools::debian(&[("objdump", "binutils"), ("go", "golang-go")])?;
    let nfpm = tools::go_tool("nfpm", NFPM)?;
    let work = dist.folder(&format!("{kind}-{version}"))?;
    std::fs::write(work.join("config.yaml"), config()?)?;
    let description = root().join("packaging/deb-rpm/nfpm.yaml");
    let text = std::fs::read_to_string(&description)?;
    let needs = Needs::of(&dist.binary)?;
    // gzip and xz are read by every system whose glibc is new enough, zstd is not.
    let (deb, rpm) = if dist.check { ("none", "gzip:1") } else { ("xz", "xz") };
    let text = filled(
        &text,
        &[
            ("VERSION", version),
            ("ARCH", super::image::cpu()?),
            ("PARTS", &path(&dist.parts)?),
            ("PACKAGING", &path(&root().join("packaging"))?),
            ("WORK", &path(&work)?),
            ("DEB_COMPRESSION", deb),
            ("RPM_COMPRESSION", rpm),
            ("DEB_DEPENDS", &needs.deb()),
            ("RPM_DEPENDS", &needs.rpm()),
        ],
    )?;
    std::fs::write(work.join("nfpm.yaml"), text)?;
    let target = work.join("out");
    std::fs::create_dir(&target)?;
    run(Command::new(nfpm)
        .args(["package", "--packager", kind, "--config"])
        .arg(work.join("nfpm.yaml"))
        .arg("--target")
        .arg(&target))?;
    let made = std::fs::read_dir(&target)?.next().context("nfpm wrote no file")??;
    let package = out.join(made.file_name());
    std::fs::rename(made.path(), &package)?;
    println!("{}: needs glibc {}", package.display(), needs.glibc);
    Ok(package)
}

/// The sample for production, with logs in the system's folder for them.
fn config() -> Result<String> {
    let (sample, line) = (root().join("conf/production/config.yaml"), "access_log: logs/access.log\n");
    let text = std::fs::read_to_string(&sample)?;
    if text.matches(line).count() != 1 {
        bail!("{} does not have `{}` once", sample.display(), line.trim_end());
    }
    Ok(text.replace(line, "access_log: /var/log/sluice/access.log\n"))
}

/// Replaces `@NAME@` by its value.
fn filled(text: &str, values: &[(&str, &str)]) -> Result<String> {
    let text =
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value));
    if let Some(line) = text.lines().find(|line| !line.starts_with('#') && line.contains('@')) {
        bail!("the description of the packages names an unknown value: {line}");
    }
    Ok(text)
}

fn path(path: &Path) -> Result<String> {
    Ok(path.to_str().context("the repository's path is not UTF-8")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_description_is_filled_in() {
        assert_eq!(filled("# @ is not one\na: @A@/b\n", &[("A", "x")]).unwrap(), "# @ is not one\na: x/b\n");
        let error = filled("a: @A@\nb: @B@\n", &[("A", "x")]).unwrap_err().to_string();
        assert!(error.ends_with("unknown value: b: @B@"), "{error}");
    }

    #[test]
    fn packages_write_the_access_log_where_logs_of_the_system_are() {
        assert!(config().unwrap().contains("access_log: /var/log/sluice/access.log"));
    }
}
