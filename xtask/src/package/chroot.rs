//! A small Debian in a folder, in which packages are installed and the gateway runs.

use crate::shell::{output, root, run};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIRROR: &str = "http://deb.debian.org/debian";

/// Calls of the script that stands in for systemctl.
const RECORD: &str = "tmp/systemctl.log";

/// A copy of the small Debian. Programs that run in it are killed when this is dropped.
pub struct Chroot {
    pub root: PathBuf,
}

impl Chroot {
    /// A fresh copy, in `folder`.
    pub fn new(folder: &Path) -> Result<Chroot> {
        let root = folder.join("root");
        run(Command::new("cp").arg("--archive").arg("--reflink=auto").arg(base()?).arg(&root))?;
        Ok(Chroot { root })
    }

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.root).arg(program).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Starts the gateway as its unit does, as the user `sluice`. It ends with this chroot at the latest.
    pub fn start(&self) -> Result<()> {
        let unit = std::fs::read_to_string(self.root.join("usr/lib/systemd/system/sluice.service"))?;
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("no ExecStart")?;
        let mut command = self.command("setpriv");
        command.args(["--reuid=sluice", "--regid=sluice", "--init-groups", "--"]);
        command.args(line.split(' '));
        println!("$ {line}");
        command.spawn().context("cannot start the gateway")?;
        Ok(())
    }

    /// Path inside, owner, group and mode of each of these files.
    pub fn stat(&self, paths: &[&str]) -> Result<String> {
        output(self.command("stat").args(["--format", "%n %U:%G %a"]).args(paths))
    }

    /// Makes packages find a systemd, which is a script that keeps a record of its calls.
    pub fn with_systemd(&self) -> Result<()> {
        std::fs::create_dir_all(self.root.join("run/systemd/system"))?;
        let script = root().join("packaging/deb-rpm/systemctl-in-check.sh");
        run(Command::new("install")
            .args(["-m", "755"])
            .arg(script)
            .arg(self.root.join("usr/bin/systemctl")))?;
        run(Command::new("install").args(["-m", "666", "/dev/null"]).arg(self.root.join(RECORD)))
    }

    /// The calls of systemd so far, without repetitions.
    pub fn systemd_calls(&self) -> Result<Vec<String>> {
        let mut calls: Vec<_> =
            std::fs::read_to_string(self.root.join(RECORD))?.lines().map(str::to_owned).collect();
        calls.dedup();
        Ok(calls)
    }

    /// Processes that run inside.
    fn processes(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let inside = |entry: std::fs::DirEntry| {
            let root = std::fs::read_link(entry.path().join("root")).ok()?;
            (root == self.root).then(|| entry.file_name().into_string().ok())?
        };
        entries.flatten().filter_map(inside).collect()
    }

    /// Ends all programs that run inside.
    pub fn stop(&self) -> Result<()> {
        for signal in ["-TERM", "-KILL"] {
            // Within 20 s, as systemd's `TimeoutStopSec` in the unit is.
            for _ in 0..200 {
                let processes = self.processes();
                if processes.is_empty() {
                    return Ok(());
                }
                // One may have ended in between.
                let _ = Command::new("kill").arg(signal).args(processes).stderr(Stdio::null()).status();
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
        bail!("processes in {} do not end", self.root.display())
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("warning: {error:#}");
        }
    }
}

/// The folder that is copied, made once. Its release is that of this machine, so that what is built here runs in it.
fn base() -> Result<PathBuf> {
    let release = std::fs::read_to_string("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.context("/etc/os-release names no VERSION_CODENAME; this needs Debian")?;
    let folder = root().join("target/tools").join(format!("chroot-{codename}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    tools::debian(&[("debootstrap", "debootstrap")])?;
    println!("{} is missing; making it by debootstrap, which needs root", folder.display());
    let new = folder.with_extension("new");
    if new.exists() {
        std::fs::remove_dir_all(&new)?;
    }
    run(Command::new("debootstrap")
        .args(["--variant=minbase", "--include=logrotate", codename])
        .arg(&new)
        .arg(MIRROR))?;
    std::fs::rename(new, &folder)?;
    Ok(folder)
}
