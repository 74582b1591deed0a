//! `sluice-VERSION.x86_64.rpm`. Its check unpacks it, compares its files and scripts, and installs, upgrades and
//! removes it below a folder.

use super::chroot::Chroot;
use super::{Dist, nfpm, trial};
use crate::shell::{output, run};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mode, owner, group, flags (`c`: configuration, `n`: not replaced) and path of each file.
const FILES: &str = "\
drwxr-x--- root sluice  /etc/sluice
-rw-r--r-- root root cn /etc/logrotate.d/sluice
-rw-r----- root sluice cn /etc/sluice/config.yaml
-rwxr-xr-x root root  /usr/bin/sluice
-rw-r--r-- root root  /usr/lib/systemd/system/sluice.service
-rw-r--r-- root root  /usr/share/bash-completion/completions/sluice
-rw-r--r-- root root  /usr/share/fish/vendor_completions.d/sluice.fish
-rw-r--r-- root root  /usr/share/licenses/sluice/LICENSE
-rw-r--r-- root root  /usr/share/licenses/sluice/THIRD-PARTY-LICENSES
-rw-r--r-- root root  /usr/share/man/man1/sluice.1.gz
-rw-r--r-- root root  /usr/share/zsh/site-functions/_sluice
drwx------ sluice sluice  /var/lib/sluice
drwxr-x--- sluice sluice  /var/log/sluice
";

pub fn build(dist: &Dist) -> Result<()> {
    nfpm::build(dist, "rpm", &dist.version, &dist.out).map(drop)
}

pub fn check(dist: &Dist) -> Result<()> {
    tools::debian(&[("rpm", "rpm"), ("rpm2cpio", "rpm2cpio"), ("cpio", "cpio")])?;
    let work = dist.folder("rpm-check")?;
    let package = package(&dist.out)?;
    let newer = nfpm::build(dist, "rpm", &format!("{}+check", dist.version), &work)?;
    run(rpm(&["--query", "--info", "--requires", "--package"]).arg(&package))?;
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEFLAGS:fflags} %{FILENAMES}\n]";
    let mut found: Vec<_> = Vec::new();
    let listed = output(rpm(&["--query", "--queryformat", format, "--package"]).arg(&package))?;
    // A page for each command of the program.
    let pages = |line: &&str| line.starts_with("-rw-r--r-- root root  /usr/share/man/man1/sluice-");
    found.extend(listed.lines().filter(|line| !pages(line)));
    found.sort_by_key(|line| line.rsplit(' ').next());
    let mut wanted: Vec<_> = FILES.lines().collect();
    wanted.sort_by_key(|line| line.rsplit(' ').next());
    if found != wanted {
        bail!("the files are\n{}\ninstead of\n{}", found.join("\n"), wanted.join("\n"));
    }
    let scripts = output(rpm(&["--query", "--scripts", "--package"]).arg(&package))?;
    for (phase, text) in [
        ("preinstall", "useradd --system"),
        ("postinstall", "systemctl reload sluice.service"),
        ("preuninstall", "systemctl stop sluice.service"),
        ("postuninstall", "systemctl daemon-reload"),
    ] {
        let start =
            scripts.find(&format!("{phase} scriptlet")).with_context(|| format!("no {phase} script"))?;
        let script = scripts[start..].split("scriptlet").nth(1).unwrap_or_default();
        if !script.contains(text) {
            bail!("the {phase} script lacks `{text}`: {script}");
        }
    }

    // The names in the archive are absolute.
    let unpacked = work.join("unpacked");
    std::fs::create_dir(&unpacked)?;
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", "rpm2cpio \"$0\" | cpio --extract --make-directories --no-absolute-filenames --quiet"])
        .arg(&package);
    run(shell.current_dir(&unpacked))?;
    trial::serves(dist, &unpacked.join("usr/bin/sluice"), &work.join("conf"))?;

    // The scripts, as rpm calls them. The folder has no packages of rpm, so dependencies are not compared.
    let chroot = Chroot::new(&work)?;
    let config = chroot.root.join("etc/sluice/config.yaml");
    let inside = |args: &[&str]| {
        let mut command = rpm(&["--root"]);
        command.arg(&chroot.root).args(args);
        command
    };
    run(inside(&["--nodeps", "--install"]).arg(&package))?;
    let changed = std::fs::read_to_string(&config)? + "# changed\n";
    std::fs::write(&config, &changed)?;
    run(inside(&["--nodeps", "--upgrade"]).arg(&newer))?;
    if std::fs::read_to_string(&config)? != changed {
        bail!("the upgrade has changed config.yaml");
    }
    let (user, data) = (chroot.stat(&["/var/lib/sluice"])?, chroot.root.join("var/lib/sluice/kept"));
    if user != "/var/lib/sluice sluice:sluice 700\n" {
        bail!("the data folder is {user}");
    }
    std::fs::write(&data, "")?;
    run(&mut inside(&["--erase", "sluice"]))?;
    if chroot.root.join("usr/bin/sluice").exists() || !data.exists() {
        bail!("a removal must remove the program and keep the data");
    }
    Ok(())
}

fn rpm(args: &[&str]) -> Command {
    let mut command = Command::new("rpm");
    // A linker's wrapper around this command does not exist in the folder.
    command.args(args).env("LC_ALL", "C.UTF-8").env_remove("LD_PRELOAD");
    command
}

fn package(out: &Path) -> Result<PathBuf> {
    super::names(out)?
        .into_iter()
        .find(|name| name.ends_with(".rpm"))
        .map(|name| out.join(name))
        .context("there is no .rpm")
}
