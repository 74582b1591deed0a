//! R6: requests that go wrong in every way, on each protocol, and nothing of them stays.
//!
//! Upstream and clients are `tests/clients/faults.py`: real clients of HTTP/2, HTTP/3 and TLS.

use super::site::{Site, settled};
use super::{Row, Trial};
use crate::client::{Call, Client};
use crate::ports;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

const PROTOCOLS: usize = 9;
/// Allowed growth under load: spare buffers, pages of the allocator.
const GROWTH_KIB: u64 = 24 << 10;
/// Sessions of UDP are over after this time.
const SESSIONS: Duration = Duration::from_secs(5);
/// Why requests failed, as the error log says it.
const REASONS: [&str; 8] = [
    "the upstream refused the connection",
    "the upstream closed the connection before it responded",
    "the upstream's response was truncated",
    "the upstream did not respond in time",
    "the upstream's response is not valid HTTP: Content-Length and Transfer-Encoding together",
    "the upstream's response head is too large",
    "the upstream switched protocols without being asked",
    "refused: what the client sent is not TLS",
];

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let count = trial.pick(150, 100_000);
    let [tcp, udp, upstream, closed] = [ports::free()?, ports::free()?, two_ports()?, ports::free()?];
    let times = json!({
        "keepalive_timeout": "5s",
        // The floods have a case of their own; these clients leave often, and from one address.
        "http2_control_frames": 1_000_000,
    });
    let mut site = Site::with_tls(trial.program, |tls| {
        json!({
            "apisix": {
                "ssl": {"listen": [{"ip": "127.0.0.1", "port": tls, "enable_http3": true}]},
                "proxy_mode": "http&stream",
                "stream_proxy": {"tcp": [format!("127.0.0.1:{tcp}")], "udp": [format!("127.0.0.1:{udp}")]},
            },
            "nginx_config": {"http": times, "stream": {"proxy_timeout": "3s", "udp_timeout": "3s"}},
        })
    })?;
    let to = |port: u16| json!({"nodes": {format!("127.0.0.1:{port}"): 1}, "retries": 0});
    let with = |uri: &str, port| {
        let seconds = if uri.contains("stall") { 0.3 } else { 60.0 };
        let timeout = json!({"connect": 60, "send": seconds, "read": seconds});
        json!({"uri": uri, "enable_websocket": uri.starts_with("/ws"), "timeout": timeout, "upstream": to(port)})
    };
    let read = |name: &str| std::fs::read_to_string(crate::root().join("tests/certs").join(name));
    let pair =
        json!({"snis": ["server.test"], "cert": read("server-ec.crt")?, "key": read("server-ec.key")?});
    let datagrams = json!({"scheme": "udp", "nodes": {format!("127.0.0.1:{}", upstream + 1): 1}});
    site.put("ssls/1", &pair)?;
    site.put("stream_routes/tcp", &json!({"server_port": tcp, "upstream": to(upstream + 1)}))?;
    site.put("stream_routes/udp", &json!({"server_port": udp, "upstream": datagrams}))?;
    site.put("routes/refused", &with("/refused", closed))?;
    site.put("routes/ws", &with("/ws/*", upstream))?;
    site.put("routes/ws-stall", &with("/ws/stall", upstream))?;
    site.put("routes/stall", &with("/stall*", upstream))?;
    site.put("routes/all", &with("/*", upstream))?;
    let addresses = [site.proxy.clone(), site.tls(), format!("127.0.0.1:{tcp}"), format!("127.0.0.1:{udp}")];

    let each = faults(0, upstream, &addresses)?;
    let log = site.log();
    let missing: Vec<_> = REASONS.iter().filter(|reason| !log.contains(**reason)).collect();
    // Memory in use after some requests stays in use.
    faults(trial.pick(150, 3000), upstream, &addresses)?;
    settled(0, || active(&site))?;
    // Sessions of UDP end by themselves.
    std::thread::sleep(SESSIONS);
    let descriptors = site.descriptors()?;
    let memory = site.rss_kib()?;
    let lines = faults(count, upstream, &addresses)?;
    let wrong: Vec<&String> = each.iter().chain(&lines).filter(|line| !line.contains(" 0 wrong")).collect();
    let left = settled(0, || active(&site))?;
    let after = settled(descriptors, || site.descriptors())?;
    let grown = settled(memory + GROWTH_KIB, || site.rss_kib())?.saturating_sub(memory);
    ensure!(site.lives(), "the gateway is gone:\n{}", site.log());
    Ok(vec![
        Row::new(
            "R6",
            &format!(
                "of {count} requests on each of {PROTOCOLS} protocols, most of them spoiled, ended wrongly"
            ),
            "0",
            if wrong.is_empty() { "0".to_owned() } else { format!("{wrong:?}") },
            wrong.is_empty() && lines.len() == PROTOCOLS,
        ),
        Row::new("R6", "reasons that the error log owes", "0", format!("{missing:?}"), missing.is_empty()),
        Row::new("R6", "connections of clients left over", "0", left, left == 0),
        Row::new("R6", "descriptors left over", "0", after.saturating_sub(descriptors), after <= descriptors),
        Row::new(
            "R6",
            "memory left over",
            &format!("{} MiB", GROWTH_KIB >> 10),
            format!("{:.1} MiB", grown as f64 / 1024.0),
            grown <= GROWTH_KIB,
        ),
    ])
}

/// A port that is free, and so is the next one.
fn two_ports() -> Result<u16> {
    let mut port = ports::free()?;
    for _ in 0..100 {
        // Both are reserved, so that the second is not given out again.
        let next = ports::free()?;
        if next == port + 1 {
            return Ok(port);
        }
        port = next;
    }
    anyhow::bail!("no two free ports in a row")
}

/// Runs the script; gives its lines, one for each protocol.
fn faults(count: u32, upstream: u16, addresses: &[String]) -> Result<Vec<String>> {
    let root = crate::root();
    let mut command = Command::new(root.join("target/python/bin/python"));
    command.arg(root.join("tests/clients/faults.py")).args([count.to_string(), upstream.to_string()]);
    let output = command.args(addresses).output().context("target/python, which `cargo x test` installs")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "faults.py failed:\n{out}\n{err}");
    Ok(out.lines().map(str::to_owned).collect())
}

/// Connections of clients that are open.
fn active(site: &Site) -> Result<u64> {
    let address = format!("127.0.0.1:{}", site.metrics_port());
    let answer = Client::default().call(&address, &Call::new("GET", "/apisix/prometheus/metrics"))?;
    let page = String::from_utf8_lossy(&answer.message.body).into_owned();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("apisix_nginx_http_current_connections{state=\"active\"} "));
    let count = line.context("no metric of connections")?;
    Ok(count.trim().parse::<f64>()? as u64)
}
