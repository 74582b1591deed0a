//! R12: who asks for much and reads nothing takes no more memory than its bounds say.

use super::site::{Site, settled};
use super::{Row, Trial};
use crate::gateway::KEY;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::origin::BULK;

/// Memory that a worker may use for bodies that plugins buffer (`held_bodies`).
const HELD_MIB: u64 = 32;
/// The gateway may grow by this beside what is accounted for.
const GROWTH_KIB: u64 = 16 << 10;
/// Time for the kernel and the allocator to settle.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    Ok(vec![whole_bodies(trial)?, pieces(trial)?, scrapers(trial)?, strangers(trial)?])
}

/// Downloads through a filter that needs the whole body: memory stays within the workers' budgets.
fn whole_bodies(trial: &Trial) -> Result<Row> {
    let filter =
        json!({"response-rewrite": {"filters": [{"regex": "nothing", "scope": "global", "replace": ""}]}});
    let config =
        json!({"nginx_config": {"worker_processes": 1, "http": {"held_bodies": format!("{HELD_MIB}m")}}});
    // A body grows by doubling: what it outgrew may stay with the allocator for a while.
    let clients = downloads(trial, config, filter, (2 * HELD_MIB) << 10)?;
    Ok(row(&format!("{} downloads through a filter of whole bodies", clients.count), &clients))
}

/// Downloads through a filter that works piece by piece.
fn pieces(trial: &Trial) -> Result<Row> {
    let filter = json!({"gzip": {"types": "*", "comp_level": 1}});
    let clients = downloads(trial, json!({"nginx_config": {"worker_processes": 1}}), filter, 0)?;
    Ok(row(&format!("{} downloads through gzip", clients.count), &clients))
}

/// The cost of many clients.
struct Crowd {
    count: usize,
    grown: u64,
    allowed: u64,
}

fn row(what: &str, crowd: &Crowd) -> Row {
    let mib = |kib: u64| format!("+{:.1} MiB", kib as f64 / 1024.0);
    let what = format!("{what}, unread: memory");
    Row::new("R12", &what, &mib(crowd.allowed), mib(crowd.grown), crowd.grown <= crowd.allowed)
}

/// Clients that ask for a large body and read nothing of it. Others are served meanwhile.
fn downloads(trial: &Trial, config: Value, plugins: Value, held: u64) -> Result<Crowd> {
    let (count, size) = (60, trial.pick(4 << 20, 40 << 20));
    let mut site = Site::start(trial.program, config, "")?;
    site.put("routes/bulk", &site.route(&format!("{BULK}*"), json!({"plugins": plugins})))?;
    site.put("routes/plain", &site.route("/plain", json!({})))?;
    ensure!(site.get("/plain", "a")?.message.status() == 200, "the gateway does not serve");
    let request =
        format!("GET {BULK}{size} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
    crowd(&mut site, trial, count, held + GROWTH_KIB, |site| {
        let mut stream = TcpStream::connect(&site.proxy)?;
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    })
}

/// Scrapers that read nothing of a long page share it.
fn scrapers(trial: &Trial) -> Result<Row> {
    let routes = trial.pick(100, 1000);
    let mut site = Site::start(trial.program, json!({"nginx_config": {"worker_processes": 1}}), "")?;
    for number in 0..routes {
        let route = site.route(&format!("/{number}"), json!({"plugins": {"prometheus": {}}}));
        site.writer().put(&format!("routes/{number}"), &route)?;
        trial.progress(f64::from(number) / f64::from(routes), "routes");
    }
    site.put("routes/plain", &site.route("/plain", json!({})))?;
    for number in 0..routes {
        ensure!(
            site.get(&format!("/{number}"), "a")?.message.status() == 200,
            "route {number} is not served"
        );
    }
    let metrics = format!("127.0.0.1:{}", site.metrics_port());
    let scrape = b"GET /apisix/prometheus/metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut page = Vec::new();
    let mut once = TcpStream::connect(&metrics)?;
    once.write_all(scrape)?;
    once.read_to_end(&mut page)?;
    ensure!(page.len() > 256 << 10, "the page of metrics has only {} bytes", page.len());
    // The page itself may be there twice: the one that is served, and the one that comes after it.
    let allowed = ((2 * page.len() as u64) >> 10) + GROWTH_KIB / 2;
    let crowd = crowd(&mut site, trial, 20, allowed, |_| {
        let mut stream = TcpStream::connect(&metrics)?;
        stream.write_all(scrape)?;
        Ok(stream)
    })?;
    Ok(row(&format!("20 scrapers of a page of {} KiB", page.len() >> 10), &crowd))
}

/// Clients without access to the Admin API send it large bodies: it rejects them without storing
/// anything.
fn strangers(trial: &Trial) -> Result<Row> {
    let (count, size): (usize, usize) = (200, trial.pick(512 << 10, 1 << 20));
    let config = json!({
        "apisix": {"enable_admin_on_node_listen": true},
        "nginx_config": {"worker_processes": 1},
    });
    let mut site = Site::start(trial.program, config, "")?;
    site.put("routes/plain", &site.route("/plain", json!({})))?;
    ensure!(KEY != "wrong", "the key of the trial");
    let head = format!(
        "PUT /apisix/admin/routes/1 HTTP/1.1\r\nHost: a\r\nX-API-KEY: wrong\r\nContent-Length: {}\r\n\r\n",
        size + 1
    );
    let part = vec![b' '; size];
    let crowd = crowd(&mut site, trial, count, GROWTH_KIB, |site| {
        let mut stream = TcpStream::connect(&site.proxy)?;
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        stream.write_all(head.as_bytes())?;
        // It need not be taken, and mostly is not.
        let _ = stream.write_all(&part);
        Ok(stream)
    })?;
    Ok(row(&format!("{count} strangers at the Admin API, {} KiB each", size >> 10), &crowd))
}

/// Lets clients in one after the other, and keeps them. Gives the most the gateway grew.
fn crowd(
    site: &mut Site,
    trial: &Trial,
    count: usize,
    allowed: u64,
    enter: impl Fn(&Site) -> Result<TcpStream>,
) -> Result<Crowd> {
    std::thread::sleep(PAUSE);
    let before = site.rss_kib()?;
    let mut inside = Vec::new();
    let mut most = before;
    for number in 0..count {
        inside.push(enter(site)?);
        most = most.max(site.rss_kib()?);
        trial.progress(number as f64 / count as f64, "clients");
    }
    for look in 0..trial.pick(4, 20) {
        std::thread::sleep(PAUSE);
        most = most.max(site.rss_kib()?);
        ensure!(
            site.get("/plain", &format!("look {look}"))?.message.status() == 200,
            "others are not served"
        );
    }
    drop(inside);
    // Their memory is available to others again.
    let after = settled(before + allowed, || site.rss_kib())?;
    ensure!(site.lives(), "the gateway is gone:\n{}", site.log());
    Ok(Crowd { count, grown: most.max(after).saturating_sub(before), allowed })
}
