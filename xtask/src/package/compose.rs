//! `sluice-VERSION-compose.tar.gz`: compose files of the gateway with etcd, and with Prometheus and Grafana.

use super::Dist;
use crate::shell::{output, root, run};
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Reads compose files as `docker compose config` does; it is the reader of Docker itself.
const READER: (&str, &str) = ("compose/cmd", "github.com/compose-spec/compose-go/v2/cmd@v2.10.1");
const FOLDERS: [&str; 2] = ["etcd", "monitoring"];

pub fn build(dist: &Dist) -> Result<()> {
    let work = dist.folder("compose")?;
    let name = format!("sluice-{}-compose", dist.version);
    let folder = work.join(&name);
    std::fs::create_dir(&folder)?;
    for part in FOLDERS {
        let source = root().join("packaging/compose").join(part);
        let text = std::fs::read_to_string(source.join("compose.yaml"))?;
        let image = format!("sluice:${{SLUICE_IMAGE_TAG:-{}}}", dist.version);
        ensure!(text.contains(&image), "{part}/compose.yaml does not have the image {image}");
        run(Command::new("cp").arg("-r").arg(&source).arg(&folder))?;
    }
    let mut tar = Command::new("tar");
    // The same files give the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=go-w"]);
    run(tar.arg("-C").arg(work).arg("-czf").arg(archive(dist)).arg(name))
}

pub fn check(dist: &Dist) -> Result<()> {
    tools::debian(&[("ip", "iproute2"), ("unshare", "util-linux"), ("python3", "python3-minimal")])?;
    let (reader, prometheus, etcd) =
        (tools::go_tool(READER.0, READER.1)?, tools::prometheus()?, tools::etcd()?);
    let work = dist.folder("compose-check")?;
    run(Command::new("tar").arg("-C").arg(&work).args(["--strip-components=1", "-xzf"]).arg(archive(dist)))?;
    for part in FOLDERS {
        let folder = work.join(part);
        files(&reader, &folder)?;
        let mut check = Command::new(&dist.binary);
        run(check
            .args(["check", "--strict"])
            .arg(&folder)
            .env("SLUICE_ADMIN_KEY", "key-of-this-check-0001"))?;
    }
    let promtool = prometheus.with_file_name("promtool");
    let monitoring = work.join("monitoring");
    run(Command::new(&promtool).args(["check", "config"]).arg(monitoring.join("prometheus.yml")))?;
    run(Command::new(&promtool).args(["test", "rules"]).arg(monitoring.join("rules_test.yml")))?;
    std::fs::copy(root().join("packaging/compose/try.py"), work.join("try.py"))?;
    let logs = dist.folder("compose-try")?;
    let mut command = tools::as_root("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "python3"]).arg(work.join("try.py"));
    run(command.arg(&dist.binary).args([etcd, prometheus, logs]))
}

/// Validates a compose file, with variables as they are; the files and folders that it mounts exist.
fn files(reader: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new(reader);
    command
        .args(["-no-interpolation", "-format", "json"])
        .arg(folder.join("compose.yaml"))
        .current_dir(folder);
    let model: Value = serde_json::from_str(&output(&mut command)?)?;
    let services = model["services"].as_object().context("the file has no services")?;
    let mut mounted = 0;
    for (name, service) in services {
        for volume in
            service["volumes"].as_array().into_iter().flatten().filter(|volume| volume["type"] == "bind")
        {
            let source = volume["source"].as_str().context("a bind mount has no source")?;
            ensure!(folder.join(source).exists(), "{name} mounts {source}, which does not exist");
            mounted += 1;
        }
    }
    println!("{}: {} services, {mounted} mounted files are there", folder.display(), services.len());
    Ok(())
}

fn archive(dist: &Dist) -> PathBuf {
    dist.out.join(format!("sluice-{}-compose.tar.gz", dist.version))
}
