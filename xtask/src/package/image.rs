//! `sluice-VERSION-linux-CPU.image.tar`: an OCI image layout, which `docker load`, `podman load`, `skopeo` and
//! `ctr images import` read. Made without Docker, as `packaging/docker/Dockerfile` makes it.

mod dockerfile;
mod layout;

use super::Dist;
use crate::shell::{output, root, run};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use layout::Blob;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders that `rootfs.sh` makes, one for each layer, and what of them is in the layer under which owner.
const LAYERS: [(&str, &str, u32); 3] = [("base", ".", 0), ("app", ".", 0), ("data", "var/lib/sluice", 65532)];

pub fn build(dist: &Dist) -> Result<()> {
    tools::debian(&[("update-ca-certificates", "ca-certificates")])?;
    let (work, sources) = (dist.folder("image")?, root().join("packaging/docker"));
    run(Command::new("sh").arg(sources.join("rootfs.sh")).arg(&dist.binary).arg(work.join("rootfs")))?;
    let layout = work.join("layout");
    let mut layers = Vec::new();
    for (folder, members, owner) in LAYERS {
        layers.push(layer(&work.join("rootfs").join(folder), members, owner, &layout, dist.check)?);
    }
    let text = std::fs::read_to_string(sources.join("Dockerfile"))?;
    let config = json!({
        "architecture": cpu()?,
        "os": "linux",
        "config": dockerfile::config(&text, &labels(dist))?,
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|(_, unpacked)| unpacked).collect::<Vec<_>>()},
    });
    let blobs: Vec<_> = layers.into_iter().map(|(blob, _)| blob).collect();
    layout::write(&layout, &config, &blobs, &dist.version)?;
    let mut tar = reproducible();
    run(tar.args(["--owner=0", "--group=0", "-C"]).arg(&layout).arg("-cf").arg(archive(dist)?).arg("."))
}

/// Verifies all digests, then runs the image as a container with a read-only root.
pub fn check(dist: &Dist) -> Result<()> {
    tools::debian(&[
        ("curl", "curl"),
        ("ip", "iproute2"),
        ("unshare", "util-linux"),
        ("setpriv", "util-linux"),
    ])?;
    let work = dist.folder("image-check")?;
    let (layout, rootfs) = (work.join("layout"), work.join("rootfs"));
    for folder in [&layout, &rootfs] {
        std::fs::create_dir(folder)?;
    }
    run(Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(archive(dist)?))?;
    let (config, layers) = layout::verify(&layout, &dist.version)?;
    let config = &config["config"];
    let (user, command) =
        (config["User"].as_str().unwrap_or_default(), words(config, &["Entrypoint", "Cmd"])?);
    ensure!(
        user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)),
        "the user {user:?} is no number"
    );
    let health = words(&config["Healthcheck"], &["Test"])?;
    let health = health.strip_prefix("CMD ").context("the health check is not a program with arguments")?;
    let mut command_line = tools::as_root("unshare");
    command_line.args(["--mount", "--net", "--pid", "--fork", "sh"]);
    command_line
        .arg(root().join("packaging/docker/try.sh"))
        .arg(rootfs)
        .args([user, health, &command])
        // By their names, which are the digests.
        .args(layers.iter().filter_map(|file| file.file_name()))
        .current_dir(layout.join("blobs/sha256"));
    run(&mut command_line)
}

/// A layer from a folder: its blob, and the digest of its unpacked content.
fn layer(folder: &Path, members: &str, owner: u32, layout: &Path, check: bool) -> Result<(Blob, String)> {
    let file = folder.with_extension("tar");
    let mut tar = reproducible();
    tar.args([format!("--owner={owner}"), format!("--group={owner}")])
        .arg("-C")
        .arg(folder)
        .arg("-cf")
        .arg(&file);
    run(tar.arg(members))?;
    let unpacked = layout::digest(&file)?;
    // Without the name and time of the file.
    let level = if check { "-1" } else { "-9" };
    run(Command::new("gzip").args(["-n", level]).arg(&file))?;
    let media = "application/vnd.oci.image.layer.v1.tar+gzip";
    Ok((layout::add(layout, &folder.with_extension("tar.gz"), media)?, unpacked))
}

/// tar with the options that give the same archive for the same files.
fn reproducible() -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--numeric-owner", "--mtime=@0", "--format=gnu"]);
    tar
}

fn labels(dist: &Dist) -> Vec<(&'static str, String)> {
    vec![
        ("org.opencontainers.image.title", "sluice".to_owned()),
        ("org.opencontainers.image.version", dist.version.clone()),
        ("org.opencontainers.image.licenses", "Apache-2.0".to_owned()),
    ]
}

/// Lists of words in a configuration, joined for the script, which splits them at spaces.
fn words(config: &Value, keys: &[&str]) -> Result<String> {
    let mut words = Vec::new();
    for key in keys {
        for word in config[key].as_array().with_context(|| format!("the configuration lacks {key}"))? {
            let word = word.as_str().with_context(|| format!("{key} has a value that is not text"))?;
            ensure!(!word.contains(char::is_whitespace), "a word of {key} has a space: {word:?}");
            words.push(word);
        }
    }
    Ok(words.join(" "))
}

fn archive(dist: &Dist) -> Result<PathBuf> {
    Ok(dist.out.join(format!("sluice-{}-linux-{}.image.tar", dist.version, cpu()?)))
}

/// The name of the processor in images, and in Debian.
pub fn cpu() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("the name of the processor {other} in images is unknown"),
    }
}

/// `sha256sum` of a file, without its name.
fn sum(file: &Path) -> Result<String> {
    let line = output(Command::new("sha256sum").arg("--binary").arg(file))?;
    Ok(line
        .split_whitespace()
        .next()
        .context("sha256sum printed nothing")?
        .trim_start_matches('\\')
        .to_owned())
}
