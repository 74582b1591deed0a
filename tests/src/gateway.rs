//! The program under test: its folder, its process, its log.

use crate::case::{Case, Ports};
use crate::client::{Call, Client};
use crate::fill::Names;
use crate::ports;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A start or an end that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The key of every case that writes none of its own.
pub const KEY: &str = "case-admin-key-0123456789abcdef";

pub struct Gateway {
    program: PathBuf,
    folder: PathBuf,
    env: Vec<(String, String)>,
    limits: String,
    /// Of `sluice run`.
    arguments: Vec<String>,
    /// Another gateway may listen on the traffic port (`--reuse-port`).
    pub shares_port: bool,
    /// It takes no traffic: that it has come up shows on its control API.
    pub is_silent: bool,
    pub listen: Listen,
    child: Option<Child>,
}

/// Ports of one gateway.
#[derive(Clone, Copy)]
pub struct Listen {
    pub proxy: u16,
    pub tls: u16,
    pub admin: u16,
    pub control: u16,
    pub metrics: u16,
}

impl Listen {
    pub fn choose(ports: Ports) -> Result<Listen> {
        Ok(match ports {
            Ports::Standard => Listen { proxy: 9080, tls: 9443, admin: 9180, control: 9090, metrics: 9091 },
            Ports::Free => Listen {
                proxy: ports::free()?,
                tls: ports::free()?,
                admin: ports::free()?,
                control: ports::free()?,
                metrics: ports::free()?,
            },
        })
    }

    pub fn name(&self, names: &mut Names) {
        for (name, port) in [
            ("PROXY", self.proxy),
            ("TLS", self.tls),
            ("ADMIN", self.admin),
            ("CONTROL", self.control),
            ("METRICS", self.metrics),
        ] {
            names.set(name, format!("127.0.0.1:{port}"));
            names.set(format!("{name}_PORT"), port);
        }
    }
}

impl Gateway {
    /// Writes the configuration of a case; nothing is started.
    pub fn prepare(
        case: &Case,
        program: &Path,
        folder: &Path,
        listen: Listen,
        names: &Names,
    ) -> Result<Gateway> {
        match &case.conf {
            Some(conf) => copy(&crate::root().join(conf), folder)?,
            None => write(case, &listen, folder, names)?,
        }
        let env = case
            .env
            .iter()
            .map(|(name, value)| Ok((name.clone(), names.fill(value)?)))
            .collect::<Result<_>>()?;
        let limits = case.limits.clone();
        let mut arguments: Vec<String> =
            case.run.iter().map(|argument| names.fill(argument)).collect::<Result<_>>()?;
        if arguments.is_empty() {
            arguments.push(folder.display().to_string());
        }
        Ok(Gateway {
            program: program.into(),
            folder: folder.into(),
            env,
            limits,
            arguments,
            shares_port: false,
            is_silent: false,
            listen,
            child: None,
        })
    }

    /// Starts the program and waits until it takes connections; gives its process id.
    pub fn start(&mut self) -> Result<u32> {
        if self.child.is_some() {
            bail!("the gateway is running already");
        }
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = match self.limits.as_str() {
            "" => Command::new(&self.program),
            limits => {
                let mut command = Command::new("bash");
                command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(&self.program);
                command
            }
        };
        command.arg("run").args(&self.arguments).arg("--data").arg(self.folder.join("data"));
        if self.shares_port {
            command.arg("--reuse-port");
        }
        // Relative paths, as of file-logger, lie where the steps' shells are.
        command.current_dir(&self.folder);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {}", self.program.display()))?;
        let id = child.id();
        self.child = Some(child);
        let until = Instant::now() + PATIENCE;
        let port = if self.is_silent { self.listen.control } else { self.listen.proxy };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(code) = self.exited()? {
                bail!("the gateway ended at once with code {code:?}; it wrote:\n{}", self.log());
            }
            if Instant::now() > until {
                bail!("the gateway does not listen on port {port}; it wrote:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(id)
    }

    pub fn signal(&mut self, name: &str) -> Result<()> {
        let child = self.child.as_ref().context("the gateway is not running")?;
        let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status()?;
        if !status.success() {
            bail!("kill -{name} {} failed", child.id());
        }
        Ok(())
    }

    /// Waits for the end; the exit code, or minus the signal that ended it.
    pub fn wait(&mut self) -> Result<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(code) = self.exited()? {
                return Ok(code);
            }
            if Instant::now() > until {
                bail!("the gateway does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn exited(&mut self) -> Result<Option<i32>> {
        use std::os::unix::process::ExitStatusExt;
        let child = self.child.as_mut().context("the gateway is not running")?;
        let Some(status) = child.try_wait()? else { return Ok(None) };
        self.child = None;
        Ok(Some(status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))))
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Everything it wrote to its two outputs.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("sluice.log")
    }

    /// The control plane's report on its snapshots.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let address = format!("127.0.0.1:{}", self.listen.control);
        let answer = Client::default().call(&address, &Call::new("GET", "/v1/snapshot"))?;
        let value: Value = serde_json::from_slice(&answer.message.body)
            .with_context(|| format!("/v1/snapshot answered {}", answer.message.line))?;
        let number = |value: &Value| value.as_u64().context("/v1/snapshot lacks a number");
        let workers = value["workers"].as_array().context("/v1/snapshot lacks workers")?;
        Ok(Snapshot {
            published: number(&value["published"])?,
            workers: workers.iter().map(|worker| number(&worker["revision"])).collect::<Result<_>>()?,
        })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Which snapshot is out, and which each worker runs.
#[derive(PartialEq, Debug)]
pub struct Snapshot {
    pub published: u64,
    pub workers: Vec<u64>,
}

impl Snapshot {
    pub fn is_everywhere(&self) -> bool {
        !self.workers.is_empty() && self.workers.iter().all(|held| *held >= self.published)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        if path.is_file() {
            std::fs::copy(&path, to.join(path.file_name().context("a file has a name")?))?;
        }
    }
    Ok(())
}

fn write(case: &Case, listen: &Listen, folder: &Path, names: &Names) -> Result<()> {
    let config = match &case.config_text {
        Some(text) => names.fill(text)?,
        None => {
            let mut config = base(listen, case.uses_yaml());
            if let Some(hosts) = names.value_of("ETCD") {
                let hosts: Vec<&str> = hosts.split(',').collect();
                let provider = json!({"config_provider": "etcd"});
                let roles = json!({"role_traditional": provider, "role_data_plane": provider, "role_control_plane": provider});
                merge(&mut config, &json!({"deployment": roles}));
                merge(&mut config, &json!({"deployment": {"etcd": {"host": hosts}}}));
            }
            merge(&mut config, &names.fill_value(&case.config)?);
            serde_json::to_string_pretty(&config)?
        }
    };
    std::fs::write(folder.join("config.yaml"), config)?;
    if case.uses_yaml() {
        std::fs::write(folder.join("apisix.yaml"), declared(case, names)?)?;
    }
    Ok(())
}

/// Loopback only, two workers, a known key.
fn base(listen: &Listen, yaml: bool) -> Value {
    let role = if yaml {
        json!({"role": "data_plane", "role_data_plane": {"config_provider": "yaml"}})
    } else {
        json!({"role": "traditional", "role_traditional": {"config_provider": "embedded"}})
    };
    let mut config = json!({
        "apisix": {
            "node_listen": [{"ip": "127.0.0.1", "port": listen.proxy}],
            "ssl": {"listen": [{"ip": "127.0.0.1", "port": listen.tls}]},
            "control": {"ip": "127.0.0.1", "port": listen.control},
        },
        "nginx_config": {"worker_processes": 2},
        "deployment": {
            "admin": {
                "admin_key": [{"name": "admin", "key": KEY, "role": "admin"}],
                "admin_listen": {"ip": "127.0.0.1", "port": listen.admin},
                // Cases look at the outcome, and the machine may be busy.
                "outcome_wait": "20s",
            },
        },
        "plugin_attr": {"prometheus": {"export_addr": {"ip": "127.0.0.1", "port": listen.metrics}}},
    });
    merge(&mut config, &json!({"deployment": role}));
    config
}

/// Lays one value over another: maps merge, null removes, the rest replaces.
fn merge(under: &mut Value, over: &Value) {
    match (under, over) {
        (_, Value::Null) => {}
        (Value::Object(under), Value::Object(over)) => {
            for (name, value) in over {
                if value.is_null() {
                    under.remove(name);
                } else {
                    merge(under.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (under, over) => *under = over.clone(),
    }
}

fn declared(case: &Case, names: &Names) -> Result<String> {
    if let Some(text) = &case.apisix_yaml {
        return names.fill(text);
    }
    let mut sections = Map::new();
    for (name, items) in &case.resources {
        let items = items.iter().map(|item| names.fill_value(item)).collect::<Result<_>>()?;
        sections.insert(name.clone(), Value::Array(items));
    }
    Ok(format!("{}\n#END\n", serde_json::to_string_pretty(&Value::Object(sections))?))
}

#[cfg(test)]
mod tests {
    use super::merge;
    use serde_json::json;

    #[test]
    fn a_config_is_laid_over() {
        let mut config = json!({"a": {"b": 1, "c": [1]}, "d": 2});
        merge(&mut config, &json!({"a": {"b": null, "c": [2], "e": {"f": 1}}}));
        assert_eq!(config, json!({"a": {"c": [2], "e": {"f": 1}}, "d": 2}));
    }
}
