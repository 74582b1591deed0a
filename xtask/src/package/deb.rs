//! `sluice_VERSION_amd64.deb`. Its check installs it in a small Debian, upgrades it under load, and removes it.

use super::chroot::Chroot;
use super::load::Ports;
use super::{Dist, nfpm, service};
use crate::shell::{output, run};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Files and their owners and modes, after the installation and the first start.
const INSTALLED: &str = "\
/usr/bin/sluice root:root 755
/usr/lib/systemd/system/sluice.service root:root 644
/usr/share/bash-completion/completions/sluice root:root 644
/usr/share/man/man1/sluice.1.gz root:root 644
/usr/share/man/man1/sluice-run.1.gz root:root 644
/etc/sluice root:sluice 750
/etc/sluice/config.yaml root:sluice 640
/etc/logrotate.d/sluice root:root 644
/var/lib/sluice sluice:sluice 700
/var/lib/sluice/store.redb sluice:sluice 600
/var/log/sluice sluice:sluice 750
";

/// Requests before and after the upgrade.
const REQUESTS: usize = 500;

/// How long the gateway may take to write a line of its access log.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn build(dist: &Dist) -> Result<()> {
    nfpm::build(dist, "deb", &dist.version, &dist.out).map(drop)
}

pub fn check(dist: &Dist) -> Result<()> {
    let work = dist.folder("deb-check")?;
    let package = package(&dist.out)?;
    let newer = nfpm::build(dist, "deb", &format!("{}+check", dist.version), &work)?;
    run(Command::new("dpkg-deb").arg("--info").arg(&package))?;
    let chroot = Chroot::new(&work)?;
    dpkg(&chroot, "--install", &package)?;
    service::check(&chroot.root)?;

    // The first start, with a configuration that the administrator has changed.
    let ports = Ports::free()?;
    let config = chroot.root.join("etc/sluice/config.yaml");
    ports.write(&config)?;
    let changed = std::fs::read_to_string(&config)?;
    chroot.start()?;
    ports.route(&chroot.root.join("var/lib/sluice/admin.key"))?;
    let paths: Vec<_> = INSTALLED.lines().filter_map(|line| line.split(' ').next()).collect();
    let found = chroot.stat(&paths)?;
    if found != INSTALLED {
        bail!("owners and modes are\n{found}instead of\n{INSTALLED}");
    }

    upgrade(&chroot, &ports, &newer)?;
    // And back, where systemd runs.
    chroot.with_systemd()?;
    upgrade(&chroot, &ports, &package)?;
    if std::fs::read_to_string(&config)? != changed {
        bail!("the upgrades have changed config.yaml");
    }
    rotate(&chroot, &ports)?;

    // A removal keeps the store and the configuration, a purge keeps nothing.
    let files = ["usr/bin/sluice", "etc/sluice/config.yaml", "var/lib/sluice/store.redb", "var/log/sluice"];
    for (how, kept) in [("--remove", [false, true, true, true]), ("--purge", [false; 4])] {
        run(chroot.command("dpkg").args([how, "sluice"]))?;
        let there = files.map(|file| chroot.root.join(file).exists());
        if there != kept {
            bail!("after dpkg {how}: {files:?} are there: {there:?} instead of {kept:?}");
        }
    }
    let calls = chroot.systemd_calls()?;
    let wanted = [
        "daemon-reload",
        "is-active --quiet sluice.service",
        "reload sluice.service",
        "show --property MainPID --value sluice.service",
        "stop sluice.service",
        "daemon-reload",
    ];
    if calls != wanted {
        bail!("the scripts of the package called systemctl {calls:?} instead of {wanted:?}");
    }
    Ok(())
}

/// Installs another version under load: another process takes over, and no request fails.
fn upgrade(chroot: &Chroot, ports: &Ports, package: &Path) -> Result<()> {
    let before = ports.process()?;
    let load = ports.load();
    load.wait(REQUESTS)?;
    dpkg(chroot, "--install", package)?;
    load.wait(REQUESTS)?;
    let (requests, connections) = load.finish()?;
    println!("{requests} requests over {connections} connections during the upgrade, none failed");
    if ports.process()? == before {
        bail!("the upgrade of the package left process {before} serving");
    }
    Ok(())
}

/// Rotates the access log, which has the requests so far; the next one is in the new file.
fn rotate(chroot: &Chroot, ports: &Ports) -> Result<()> {
    run(chroot.command("logrotate").args(["--force", "/etc/logrotate.d/sluice"]))?;
    let folder = chroot.root.join("var/log/sluice");
    for name in ["access.log.1", "access.log"] {
        // The gateway opens the new file, and writes lines, after a moment.
        let until = Instant::now() + PATIENCE;
        while !std::fs::read_to_string(folder.join(name)).is_ok_and(|log| log.contains("/trial")) {
            if Instant::now() > until {
                bail!("no line of a request in {name} after the rotation");
            }
            ports.serves()?;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Installs a package that lies outside.
fn dpkg(chroot: &Chroot, how: &str, package: &Path) -> Result<()> {
    let name = package.file_name().context("a package has a name")?;
    std::fs::copy(package, chroot.root.join("tmp").join(name))?;
    let inside = format!("/tmp/{}", name.to_string_lossy());
    let said = output(chroot.command("dpkg").args([how, &inside]))?;
    print!("{said}");
    Ok(())
}

fn package(out: &Path) -> Result<PathBuf> {
    super::names(out)?
        .into_iter()
        .find(|name| name.ends_with(".deb"))
        .map(|name| out.join(name))
        .context("there is no .deb")
}
