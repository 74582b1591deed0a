//! A short run of an installed program: it serves one request, reports its state, and ends by a signal.

use super::Dist;
use crate::shell::output;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A slow machine starts the program in less, and a program that does not start fails the check all the same.
const START: Duration = Duration::from_secs(20);

/// Runs `program` with a configuration written to `folder`, on free ports.
pub fn serves(dist: &Dist, program: &Path, folder: &Path) -> Result<()> {
    let version = output(Command::new(program).arg("--version"))?;
    ensure!(version.trim() == format!("sluice {}", dist.version), "the installed program is {version:?}");
    let (traffic, control) = (free_port()?, free_port()?);
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.yaml"), config(traffic, control))?;
    std::fs::write(folder.join("apisix.yaml"), RESOURCES)?;
    let mut gateway = Command::new(program)
        .arg("run")
        .arg(folder)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let outcome = tried(&mut gateway, program, folder, traffic);
    if outcome.is_err() {
        // It may have ended already.
        gateway.kill().ok();
        gateway.wait().ok();
    }
    outcome
}

fn tried(gateway: &mut Child, program: &Path, folder: &Path, traffic: u16) -> Result<()> {
    let answer = answer(gateway, traffic)?;
    ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("served\n"), "the answer is {answer:?}");
    let status = output(Command::new(program).arg("status").arg(folder))?;
    ensure!(status.contains("1 route"), "the status is {status:?}");
    // Of the process that was started: a launcher has to become the program.
    output(Command::new("kill").args(["-TERM", &gateway.id().to_string()]))?;
    let ended = gateway.wait()?;
    ensure!(ended.success(), "after TERM the program ended with {ended}");
    println!("{}: served a request and ended by TERM", program.display());
    Ok(())
}

fn answer(gateway: &mut Child, port: u16) -> Result<String> {
    let start = Instant::now();
    let mut stream = loop {
        if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            break stream;
        }
        if let Some(ended) = gateway.try_wait()? {
            bail!("the program ended with {ended} instead of serving");
        }
        ensure!(start.elapsed() < START, "port {port} is closed {START:?} after the start");
        std::thread::sleep(Duration::from_millis(50));
    };
    stream.set_read_timeout(Some(START))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

const RESOURCES: &str = "\
routes:
  - id: served
    uri: /*
    plugins:
      fault-injection: {abort: {http_status: 200, body: \"served\\n\"}}
#END
";

fn config(traffic: u16, control: u16) -> String {
    format!(
        "\
apisix:
  node_listen: [{{ip: 127.0.0.1, port: {traffic}}}]
  control: {{ip: 127.0.0.1, port: {control}}}
  ssl: {{enable: false}}
  enable_admin: false
nginx_config:
  http: {{access_log: \"off\"}}
deployment:
  role: traditional
  role_traditional: {{config_provider: yaml}}
plugin_attr:
  prometheus: {{enable_export_server: false}}
"
    )
}
