//! A real etcd for a case: one member or several, and the relays between them and the gateway.

use crate::ports;
use crate::relay::{Relay, Way};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A member that does not answer by then never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// The cluster a case wants.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    pub members: usize,
    /// The gateway reaches it through a relay that can be cut.
    pub relay: bool,
    /// Clients speak TLS and show a certificate; those of `tests/certs`.
    pub tls: bool,
    /// More arguments of each member.
    pub args: Vec<String>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted { members: 1, relay: false, tls: false, args: Vec::new() }
    }
}

pub struct Etcd {
    members: Vec<Member>,
    relays: Vec<Relay>,
    program: PathBuf,
    tls: bool,
}

struct Member {
    args: Vec<String>,
    log: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Etcd {
    /// Starts a cluster in a folder and waits until it answers.
    pub fn start(wanted: &Wanted, folder: &Path) -> Result<Etcd> {
        let program = tool("etcd")?;
        let ports: Vec<(u16, u16)> =
            (0..wanted.members).map(|_| Ok((ports::free()?, ports::free()?))).collect::<Result<_>>()?;
        let peers: Vec<String> = (1..)
            .zip(&ports)
            .map(|(number, (_, peer))| format!("m{number}=http://127.0.0.1:{peer}"))
            .collect();
        let scheme = if wanted.tls { "https" } else { "http" };
        let certs = crate::root().join("tests/certs");
        let cert = |name: &str| certs.join(name).display().to_string();
        let mut members = Vec::new();
        for (number, (port, peer)) in (1..).zip(&ports) {
            let (own, to_peers) =
                (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
            let data = folder.join(format!("etcd-{number}"));
            let mut args: Vec<String> = [
                ("name", format!("m{number}")),
                ("data-dir", data.display().to_string()),
                ("listen-client-urls", own.clone()),
                ("advertise-client-urls", own),
                ("listen-peer-urls", to_peers.clone()),
                ("initial-advertise-peer-urls", to_peers),
                ("initial-cluster", peers.join(",")),
                ("initial-cluster-token", format!("case-{}", ports[0].0)),
                // A member that was stopped for a while is missed soon.
                ("heartbeat-interval", "100".to_owned()),
                ("election-timeout", "1000".to_owned()),
            ]
            .map(|(name, value)| format!("--{name}={value}"))
            .to_vec();
            if wanted.tls {
                args.extend([
                    format!("--cert-file={}", cert("server-rsa.crt")),
                    format!("--key-file={}", cert("server-rsa.key")),
                    format!("--trusted-ca-file={}", cert("ca.crt")),
                    "--client-cert-auth".to_owned(),
                ]);
            }
            args.extend(wanted.args.iter().cloned());
            let log = folder.join(format!("etcd-{number}.log"));
            members.push(Member { args, log, port: *port, child: None });
        }
        let relays = match wanted.relay {
            true => members.iter().map(|member| Relay::start(member.port)).collect::<Result<_>>()?,
            false => Vec::new(),
        };
        let mut etcd = Etcd { members, relays, program, tls: wanted.tls };
        for number in 1..=wanted.members {
            etcd.begin(number)?;
        }
        etcd.wait()?;
        Ok(etcd)
    }

    /// `["http://127.0.0.1:1"]`, as the gateway reaches it.
    pub fn hosts(&self) -> Vec<String> {
        let scheme = if self.tls { "https" } else { "http" };
        let ports: Vec<u16> = match self.relays.is_empty() {
            true => self.members.iter().map(|member| member.port).collect(),
            false => self.relays.iter().map(Relay::port).collect(),
        };
        ports.into_iter().map(|port| format!("{scheme}://127.0.0.1:{port}")).collect()
    }

    /// The settings that make it a gateway's store, merged into the runner's configuration.
    pub fn provides(&self) -> Value {
        json!({"deployment": {"role_traditional": {"config_provider": "etcd"}, "etcd": {"host": self.hosts()}}})
    }

    /// The shell command that contacts the cluster directly, bypassing any relay.
    pub fn ctl(&self) -> Result<String> {
        let scheme = if self.tls { "https" } else { "http" };
        let ports = self.members.iter().map(|member| format!("{scheme}://127.0.0.1:{}", member.port));
        let certs = crate::root().join("tests/certs").display().to_string();
        let tls = match self.tls {
            true => format!(
                " --cacert {certs}/ca.crt --cert {certs}/client.crt --key {certs}/client.key --insecure-skip-tls-verify"
            ),
            false => String::new(),
        };
        let ports: Vec<String> = ports.collect();
        let program = tool("etcdctl")?;
        Ok(format!("env ETCDCTL_API=3 {} --endpoints={}{tls}", program.display(), ports.join(",")))
    }

    /// `stop 1`, `cont 1`, `kill 1`, `start 1` (a member); `cut`, `half-cut`, `late`, `crumbs`, `heal`, `reset` (the way
    /// there).
    pub fn command(&mut self, text: &str) -> Result<()> {
        let (verb, number) = text.split_once(' ').unwrap_or((text, "1"));
        let number: usize = number.parse().with_context(|| format!("etcd: {text}: no number of a member"))?;
        ensure!((1..=self.members.len()).contains(&number), "etcd: {text}: there is no such member");
        match verb {
            "stop" => self.signal(number, "STOP"),
            "cont" => self.signal(number, "CONT"),
            "kill" => {
                let child = self.members[number - 1].child.take().context("that member does not run")?;
                end(child)
            }
            "start" => {
                self.begin(number)?;
                self.wait()
            }
            _ => {
                let way = Way::from_name(verb);
                ensure!(
                    way.is_some() || verb == "reset",
                    "etcd: {text}: stop, cont, kill, start, cut, half-cut, late, crumbs, heal or reset"
                );
                ensure!(!self.relays.is_empty(), "etcd: {text}: there is no relay");
                for relay in &self.relays {
                    match way {
                        Some(way) => relay.set(way),
                        None => relay.reset(),
                    }
                }
                Ok(())
            }
        }
    }

    fn signal(&self, number: usize, name: &str) -> Result<()> {
        let child = self.members[number - 1].child.as_ref().context("that member does not run")?;
        let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status()?;
        ensure!(status.success(), "kill -{name} {} failed", child.id());
        Ok(())
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        let member = &mut self.members[number - 1];
        ensure!(member.child.is_none(), "that member runs already");
        let log = File::options().create(true).append(true).open(&member.log)?;
        let mut command = Command::new(&self.program);
        command.args(&member.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        member.child = Some(command.spawn().with_context(|| format!("starting {}", self.program.display()))?);
        Ok(())
    }

    /// Waits until the cluster takes writes.
    fn wait(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let script = format!("{} --command-timeout=2s endpoint health", self.ctl()?);
        loop {
            let asked = Command::new("bash").arg("-c").arg(&script).output()?;
            let text =
                String::from_utf8_lossy(&asked.stderr).into_owned() + &String::from_utf8_lossy(&asked.stdout);
            // A cluster with users refuses, but answers.
            let healthy = text.matches("is healthy").count() + text.matches("user name is empty").count();
            let up = self.members.iter().filter(|member| member.child.is_some()).count();
            if healthy >= up {
                return Ok(());
            }
            if Instant::now() > until {
                let log = std::fs::read_to_string(&self.members[0].log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(10).collect();
                bail!("etcd does not answer: {text}\n{}", tail.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.take()) {
            let _ = end(child);
        }
    }
}

fn end(mut child: Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// A program of etcd's: that which `cargo x test` installs, or one on the path.
fn tool(name: &str) -> Result<PathBuf> {
    let own = crate::root().join("target/tools").join(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::iter::once(own).chain(std::env::split_paths(&path).map(|folder| folder.join(name)));
    places.find(|place| place.is_file()).with_context(|| {
        format!(
            "there is no {name}: `cargo x test` installs it into target/tools, from Debian's etcd packages"
        )
    })
}
