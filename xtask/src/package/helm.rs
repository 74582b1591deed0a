//! `sluice-VERSION-helm.tgz`: the chart for Kubernetes.

use super::{Dist, wheel};
use crate::shell::{output, root, run};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const HELM: (&str, &str) = ("helm", "helm.sh/helm/v3/cmd/helm@v3.19.0");
/// The oldest version of Kubernetes that the chart takes, one with `sleep` before a stop, and a recent one.
const KUBERNETES: [&str; 3] = ["1.25.0", "1.31.0", "1.36.0"];
/// Values that the chart rejects, and a part of the reason.
const REJECTED: [(&str, &str); 6] = [
    ("replicaCount=2", "the embedded store belongs to one pod"),
    ("apisix.deployment.role=data_plane", "need externalEtcd.host or etcd.enabled"),
    ("apisix.deployment.role_traditional.config_provider=etcd", "need externalEtcd.host or etcd.enabled"),
    ("apisix.wasm.enabled=true", "Sluice has no such feature"),
    ("ingress-controller.enabled=true", "no ingress controller"),
    ("apisix.ssl.existingCASecret=x", "needs apisix.ssl.certCAFilename"),
];

pub fn build(dist: &Dist) -> Result<()> {
    let folder = root().join("packaging/helm");
    let chart = std::fs::read_to_string(folder.join("sluice/Chart.yaml"))?;
    for line in [format!("version: {}", dist.version), format!("appVersion: \"{}\"", dist.version)] {
        ensure!(chart.lines().any(|there| there == line), "packaging/helm/sluice/Chart.yaml lacks `{line}`");
    }
    let mut tar = Command::new("tar");
    // The same files give the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=go-w"]);
    run(tar.arg("-C").arg(folder).arg("-czf").arg(archive(dist)).arg("sluice"))
}

pub fn check(dist: &Dist) -> Result<()> {
    let helm = tools::go_tool(HELM.0, HELM.1)?;
    let work = dist.folder("helm-check")?;
    certificate(&work)?;
    let mut sets = Vec::new();
    for entry in std::fs::read_dir(root().join("packaging/helm/values"))? {
        sets.push(entry?.path());
    }
    ensure!(!sets.is_empty(), "packaging/helm/values has no values");
    sets.sort();
    for values in &sets {
        set(dist, &helm, &work, values)?;
    }
    for version in KUBERNETES {
        let mut validate = Command::new(wheel::python()?);
        validate.args(["-m", "kubernetes_validate", "--quiet", "--strict", "--kubernetes-version", version]);
        // All sets at once, as the schemas take their time.
        let objects =
            sets.iter().filter_map(|values| Some(work.join(values.file_stem()?).join(objects(version))));
        run(validate.args(objects))?;
    }
    for (value, reason) in REJECTED {
        let Err(error) = output(template(dist, &helm, KUBERNETES[1]).args(["--set", value])) else {
            bail!("the chart accepts {value}");
        };
        ensure!(
            error.to_string().contains(reason),
            "the chart rejects {value} for another reason: {error:#}"
        );
    }
    println!("{} wrong values rejected", REJECTED.len());
    tools::debian(&[("curl", "curl"), ("ip", "iproute2"), ("unshare", "util-linux")])?;
    let mut unshare = tools::as_root("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "sh"]).arg(root().join("packaging/helm/try.sh"));
    run(unshare.arg(&dist.binary).arg(work.join("standalone")))
}

/// Writes the objects of one set of values for each version. The gateway takes their configuration.
fn set(dist: &Dist, helm: &Path, work: &Path, values: &Path) -> Result<()> {
    let name = values.file_stem().context("values without a name")?;
    let folder = work.join(name);
    std::fs::create_dir(&folder)?;
    let mut lint = Command::new(helm);
    lint.args(["lint", "--quiet", "--strict", "--kube-version", KUBERNETES[1], "--values"]).arg(values);
    run(lint.arg(archive(dist)))?;
    for version in KUBERNETES {
        let text = output(template(dist, helm, version).arg("--values").arg(values))?;
        std::fs::write(folder.join(objects(version)), &text)?;
        if version == KUBERNETES[1] {
            // The files that the chart mounts there.
            let config = entry(&text, "config.yaml").context("no config.yaml")?;
            let config = config.replace("/etc/sluice-ca/", &format!("{}/", work.display()));
            let config = config.replace("/etc/sluice-etcd/", &format!("{}/", work.display()));
            std::fs::write(folder.join("config.yaml"), config)?;
            if let Some(resources) = entry(&text, "apisix.yaml") {
                std::fs::write(folder.join("apisix.yaml"), resources)?;
            }
        }
    }
    let mut check = Command::new(&dist.binary);
    check
        .args(["check", "--strict", "--no-analysis"])
        .arg(&folder)
        .env("POD_UID", "0123")
        .env("APISIX_ETCD_PASSWORD", "x");
    check.env("APISIX_ADMIN_KEY", "a".repeat(32)).env("APISIX_VIEWER_KEY", "b".repeat(32));
    check.env("KUBERNETES_SERVICE_HOST", "10.0.0.1").env("KUBERNETES_SERVICE_PORT", "443");
    run(&mut check)
}

fn objects(version: &str) -> String {
    format!("objects-{version}.yaml")
}

fn template(dist: &Dist, helm: &Path, version: &str) -> Command {
    let mut command = Command::new(helm);
    command.args(["template", "gateway"]).arg(archive(dist));
    command.args(["--namespace", "edge", "--kube-version", version]);
    command
}

/// A certificate and a key under all names that the values have.
fn certificate(folder: &Path) -> Result<()> {
    tools::debian(&[("openssl", "openssl")])?;
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=check"]);
    openssl.args(["-keyout", "tls.key", "-out", "tls.crt"]).current_dir(folder);
    output(&mut openssl)?;
    std::fs::copy(folder.join("tls.crt"), folder.join("ca.crt"))?;
    Ok(())
}

/// The text of a ConfigMap under a key, as the templates of the chart write it.
fn entry(objects: &str, key: &str) -> Option<String> {
    let (_, rest) = objects.split_once(&format!("\n  {key}: |-\n"))?;
    let inside = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    Some(inside.flat_map(|line| [line.strip_prefix("    ").unwrap_or(line), "\n"]).collect())
}

fn archive(dist: &Dist) -> PathBuf {
    dist.out.join(format!("sluice-{}-helm.tgz", dist.version))
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn a_file_is_read_out_of_its_config_map() {
        let objects = "data:\n  config.yaml: |-\n    a:\n      b: 1\n\n    c: 2\n---\nkind: x\n";
        assert_eq!(entry(objects, "config.yaml").unwrap(), "a:\n  b: 1\n\nc: 2\n");
        assert_eq!(entry(objects, "apisix.yaml"), None);
    }
}
