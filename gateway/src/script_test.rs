//! `sluice script test`: runs a plugin in Lua against a described request, in a gateway of its own on loopback.
//!
//! The gateway is this program, started on a folder that is removed afterwards, so the plugin does all that it does in
//! production. A server of this process stands in for the upstream.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use model::yaml::{self, Variables};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};

use crate::{files, say};

/// Waits for the gateway to start, and for its response.
const START: Duration = Duration::from_secs(20);
const RESPONSE: Duration = Duration::from_secs(60);

/// The log is complete once it is unchanged for `QUIET`, or after `LOG`.
const QUIET: Duration = Duration::from_millis(300);
const LOG: Duration = Duration::from_secs(5);

/// Bytes of a message that are read.
const LONGEST: u64 = 4 << 20;

/// Fields of a description.
const FIELDS: [&str; 8] =
    ["conf", "plugins", "consumers", "metadata", "attr", "request", "response", "expect"];

/// Log texts of plugins that do not load, of rejected resources, and of scripts that fail.
const BROKEN: [&str; 5] = [
    "plugin not loaded",
    "resource is not served as written",
    "lua script failed",
    "failed to run lua code",
    "pre_function execution",
];

/// Runs the test of a plugin file and prints its requests, response and log lines. Returns whether the expectations
/// of the description hold.
///
/// # Errors
/// An unreadable file or description, the name of a built-in plugin, or a gateway that does not start.
pub fn test(file: &Path, description: Option<&Path>) -> anyhow::Result<bool> {
    let file = fs::canonicalize(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.file_stem().and_then(|name| name.to_str()).context("the file's name is not UTF-8")?;
    if files::built_plugins().contains(&name) {
        bail!("plugin name is built in name={name}; rename the file");
    }
    let described = described(&file, description)?;
    let folder = Folder::new()?;
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let nodes = upstream.local_addr()?.port();
    write_files(&folder.0, &file, name, &described, [port, nodes])?;
    let (seen, requests) = channel();
    let response = response_of(&described);
    // It ends with the process.
    std::thread::spawn(move || {
        for mut stream in upstream.incoming().flatten() {
            if let Ok(request) = read_request(&mut stream) {
                // First, so that the request is in the channel once the client has the response.
                let _ = seen.send(request);
                let _ = stream.write_all(&response);
            }
        }
    });
    let mut gateway = Gateway::start(&folder.0)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let answered = gateway.ask(address, &request_of(&described));
    if answered.is_ok() {
        folder.wait_for_log();
    }
    drop(gateway);
    let log = folder.log();
    let answered = answered.map_err(|error| anyhow::anyhow!("{error:#}; log of the gateway:\n{log}"))?;
    Ok(report(&described, &answered, &requests, &log))
}

/// The description of a test: the file given, or the one beside the plugin.
fn described(file: &Path, description: Option<&Path>) -> anyhow::Result<Value> {
    let beside = ["yaml", "yml", "json"].into_iter().map(|extension| file.with_extension(extension));
    let path = match description {
        Some(path) => path.to_owned(),
        None => match beside.into_iter().find(|path| path.is_file()) {
            Some(path) => path,
            None => return Ok(json!({})),
        },
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let document = yaml::parse(&text, Variables::Keep)
        .map_err(|error| anyhow::anyhow!("invalid YAML file={} error={error:?}", path.display()))?;
    let Some(fields) = document.value.as_object() else {
        bail!("{} must be an object with some of: {}", path.display(), FIELDS.join(", "))
    };
    if let Some(unknown) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        bail!("unknown field {unknown} in {}; known are: {}", path.display(), FIELDS.join(", "));
    }
    Ok(document.value)
}

/// A new folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        use std::os::unix::fs::DirBuilderExt;
        let unique = format!("sluice-script-{}-{:x}", std::process::id(), crate::now());
        let path = std::env::temp_dir().join(unique);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }

    /// Waits for the lines of the log phase: a thread of the gateway writes them, and its end does not flush them.
    fn wait_for_log(&self) {
        let length = || fs::metadata(self.0.join("log")).map_or(0, |log| log.len());
        let end = Instant::now() + LOG;
        let (mut known, mut since) = (length(), Instant::now());
        while since.elapsed() < QUIET && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            let now = length();
            if now != known {
                (known, since) = (now, Instant::now());
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system removes old files there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes the configuration of the gateway.
fn write_files(
    folder: &Path,
    file: &Path,
    name: &str,
    described: &Value,
    [port, nodes]: [u16; 2],
) -> anyhow::Result<()> {
    let modules = folder.join("lua/apisix/plugins");
    fs::create_dir_all(&modules)?;
    fs::copy(file, modules.join(file.file_name().unwrap_or_default()))?;
    let mut paths = format!("{}/lua/?.lua", folder.display());
    // Modules beside the plugin, or of the tree that it stands in.
    let beside = file.parent().unwrap_or(Path::new("/"));
    let root = beside.ancestors().nth(2).filter(|_| beside.ends_with("apisix/plugins")).unwrap_or(beside);
    let _ = write!(paths, ";{}/?.lua", root.display());
    let mut plugins = described["plugins"].as_object().cloned().unwrap_or_default();
    let names: Vec<&str> = plugins.keys().map(String::as_str).chain([name]).collect();
    let consumers = described["consumers"].as_array().cloned().unwrap_or_default();
    let of_consumers = consumers.iter().filter_map(|one| one["plugins"].as_object());
    let names: Vec<&str> = of_consumers.flat_map(Map::keys).map(String::as_str).chain(names).collect();
    let mut config = json!({
        "apisix": {
            "node_listen": [{"ip": "127.0.0.1", "port": port}],
            "extra_lua_path": paths,
            "ssl": {"enable": false},
            "enable_admin": false,
            "enable_control": false,
        },
        "plugins": names.iter().collect::<std::collections::BTreeSet<_>>(),
        "plugin_attr": {name: or_empty(&described["attr"])},
        "nginx_config": {"worker_processes": 1, "error_log_level": "info", "http": {"enable_access_log": false}},
        "deployment": {"role": "data_plane", "role_data_plane": {"config_provider": "yaml"}},
    });
    // A gateway that runs on this machine may have the port.
    config["plugin_attr"]["prometheus"] = json!({"enable_export_server": false});
    plugins.insert(name.to_owned(), or_empty(&described["conf"]));
    let mut resources = json!({
        "routes": [{
            "id": "test",
            "uri": "/*",
            "plugins": plugins,
            "upstream": {"type": "roundrobin", "nodes": {format!("127.0.0.1:{nodes}"): 1}},
        }],
        "consumers": consumers,
    });
    if let Some(metadata) = described["metadata"].as_object() {
        let mut metadata = metadata.clone();
        metadata.insert("id".to_owned(), name.into());
        resources["plugin_metadata"] = json!([metadata]);
    }
    fs::write(folder.join("config.yaml"), config.to_string())?;
    fs::write(folder.join("apisix.yaml"), format!("{resources}\n#END\n"))?;
    Ok(())
}

fn or_empty(value: &Value) -> Value {
    if value.is_null() { json!({}) } else { value.clone() }
}

/// The text of a field that is text, or JSON of another value.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The lines of headers, each value of a list in a line of its own.
fn header_lines(headers: &Value) -> String {
    let mut lines = String::new();
    for (name, value) in headers.as_object().into_iter().flatten() {
        for one in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
            let _ = write!(lines, "{name}: {}\r\n", text_of(one));
        }
    }
    lines
}

fn request_of(described: &Value) -> Vec<u8> {
    let request = &described["request"];
    let (method, uri) = (request["method"].as_str().unwrap_or("GET"), request["uri"].as_str().unwrap_or("/"));
    let (headers, body) = (header_lines(&request["headers"]), text_of(&request["body"]));
    let has_host = headers.lines().any(|line| line.to_ascii_lowercase().starts_with("host:"));
    let host = if has_host { "" } else { "Host: test\r\n" };
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{method} {uri} HTTP/1.1\r\n{host}{headers}{length}Connection: close\r\n\r\n{body}").into_bytes()
}

/// The response of the upstream.
fn response_of(described: &Value) -> Vec<u8> {
    let response = &described["response"];
    let status = response["status"].as_u64().unwrap_or(200);
    let (headers, body) = (header_lines(&response["headers"]), text_of(&response["body"]));
    let length = body.len();
    format!("HTTP/1.1 {status} Test\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Reads one request of the gateway.
fn read_request(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(RESPONSE))?;
    let mut request = Vec::new();
    let mut piece = [0; 8192];
    while !is_whole(&request) && (request.len() as u64) < LONGEST {
        match stream.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    Ok(request)
}

/// Whether a request has its whole body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    if head.contains("\r\ntransfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    // Counted in bytes: invalid UTF-8 is longer as text.
    let before = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    request.len() - before >= length.unwrap_or(0)
}

/// A gateway that runs, ended with this value.
struct Gateway(Child);

impl Gateway {
    fn start(folder: &Path) -> anyhow::Result<Gateway> {
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").arg(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Gateway(command.spawn().context("cannot start the gateway")?))
    }

    /// Sends a request once the gateway listens, and returns the whole response.
    fn ask(&mut self, address: SocketAddr, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut stream = self.connect(address)?;
        stream.set_read_timeout(Some(RESPONSE))?;
        stream.write_all(request).context("cannot send the request")?;
        let mut response = Vec::new();
        stream.take(LONGEST).read_to_end(&mut response).context("no response")?;
        Ok(response)
    }

    /// Connects once the gateway listens.
    fn connect(&mut self, address: SocketAddr) -> anyhow::Result<TcpStream> {
        let end = Instant::now() + START;
        loop {
            if let Some(status) = self.0.try_wait()? {
                bail!("gateway ended at its start status={status}");
            }
            match TcpStream::connect_timeout(&address, START) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() > end => return Err(error).context("gateway does not listen"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process ID of an ended gateway may be that of another process.
        let is_running = matches!(self.0.try_wait(), Ok(None));
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| is_running) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Prints the run; returns whether it is as expected.
fn report(described: &Value, answered: &[u8], requests: &Receiver<Vec<u8>>, log: &str) -> bool {
    let forwarded = requests.try_recv().ok().map(|request| String::from_utf8_lossy(&request).into_owned());
    let answered = String::from_utf8_lossy(answered);
    match &forwarded {
        Some(request) => say::out(format_args!("request to the upstream:\n{}", indented(request))),
        None => say::out("no request to the upstream"),
    }
    say::out(format_args!("response:\n{}", indented(&answered)));
    let is_shown =
        |line: &&str| line.contains("[lua]") || line.contains(" ERROR ") || line.contains(" WARN ");
    let lines: Vec<&str> = log.lines().filter(is_shown).collect();
    if !lines.is_empty() {
        say::out(format_args!("log:\n{}", indented(&lines.join("\n"))));
    }
    let failures = failures(&described["expect"], &answered, forwarded.as_deref().unwrap_or_default());
    for failure in &failures {
        say::out(format_args!("not as expected: {failure}"));
    }
    let is_broken = BROKEN.iter().any(|words| log.contains(words));
    failures.is_empty() && !is_broken
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("  {line}\n")).collect::<String>().trim_end().to_owned()
}

/// The differences between `expect` and the run.
fn failures(expect: &Value, answered: &str, forwarded: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let (head, body) = answered.split_once("\r\n\r\n").unwrap_or((answered, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    if let Some(expected) = expect["status"].as_u64()
        && expected.to_string() != status
    {
        failures.push(format!("status {status} instead of {expected}"));
    }
    // A streamed body has the lines of its chunks around it.
    if let Some(expected) = expect["body"].as_str()
        && !body.contains(expected)
    {
        failures.push(format!("the body lacks {expected:?}"));
    }
    for (field, head) in [("headers", head), ("upstream_headers", forwarded)] {
        for (name, expected) in expect[field].as_object().into_iter().flatten() {
            let found = header(head, name);
            let expected = (!expected.is_null()).then(|| text_of(expected));
            if found != expected {
                let [found, expected] = [found, expected].map(|value| value.unwrap_or("absent".to_owned()));
                failures.push(format!("{field}: {name} is {found} instead of {expected}"));
            }
        }
    }
    failures
}

/// The value of a header in a message.
fn header(message: &str, name: &str) -> Option<String> {
    let lines = message.lines().skip(1).take_while(|line| !line.is_empty());
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs
        .into_iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_listed() {
        let answered = "HTTP/1.1 403 Forbidden\r\nX-A: 1\r\n\r\nno entry";
        let forwarded = "GET / HTTP/1.1\r\nX-Team: ops\r\n\r\n";
        let holds = json!({"status": 403, "body": "entry", "headers": {"x-a": "1", "X-B": null}, "upstream_headers": {"X-Team": "ops"}});
        assert_eq!(failures(&holds, answered, forwarded), Vec::<String>::new());
        let wrong = json!({"status": 200, "body": "yes", "headers": {"X-B": "1"}, "upstream_headers": {"X-Team": null}});
        assert_eq!(failures(&wrong, answered, forwarded).len(), 4);
    }

    #[test]
    fn requests_end_with_their_bodies() {
        assert!(is_whole(b"GET / HTTP/1.1\r\n\r\n") && !is_whole(b"GET / HTTP/1.1\r\n"));
        assert!(!is_whole(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"));
        assert!(is_whole(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"));
        assert!(is_whole(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"));
    }
}
