//! P4: streams of TCP and UDP: much, byte for byte, both ways, while the configuration changes.

use super::idle::allow_descriptors;
use super::site::{Site, settled};
use super::{Row, Trial};
use crate::ports;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PART: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);
/// The gateway may grow by this for what passes through it.
const GROWTH_KIB: u64 = 16 << 10;
/// Silence that ends a session of UDP, in seconds.
const SESSION: u64 = 10;
/// Sessions that are begun at once: the kernel's queue of datagrams is not long.
const AT_ONCE: usize = 100;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let flows: usize = trial.pick(500, 10_000);
    allow_descriptors(flows as u64 * 2 + 500)?;
    let [tcp, udp, other] = [ports::free()?, ports::free()?, ports::free()?];
    let mut site = Site::start(
        trial.program,
        json!({
            "apisix": {
                "proxy_mode": "http&stream",
                "stream_proxy": {"tcp": [format!("127.0.0.1:{tcp}")], "udp": [format!("127.0.0.1:{udp}")]},
            },
            "nginx_config": {"stream": {"udp_timeout": SESSION}},
        }),
        "",
    )?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let echo = listener.local_addr()?.port();
    let (counter, wrong) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let count = (counter.clone(), wrong.clone());
    std::thread::spawn(move || serve(&listener, &count));
    let reflector = UdpSocket::bind("127.0.0.1:0")?;
    let reflects = reflector.local_addr()?.port();
    std::thread::spawn(move || reflect(&reflector));
    let to = |port: u16| json!({"nodes": {format!("127.0.0.1:{port}"): 1}});
    site.put("stream_routes/tcp", &json!({"server_port": tcp, "upstream": to(echo)}))?;
    site.put("stream_routes/udp", &json!({"server_port": udp, "upstream": to(reflects)}))?;

    let mut rows = Vec::new();
    let descriptors = site.descriptors()?;
    let size: u64 = trial.pick(32 << 20, 1 << 30);
    // Memory in use after some streams stays in use.
    both_ways(tcp, 1 << 20, false)?;
    let memory = site.rss_kib()?;
    let stop = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    let (first, second, short, refused) = std::thread::scope(|scope| -> Result<_> {
        // Every route is written again and again, its own and others, with other plugins and other upstreams.
        let changing = scope.spawn(|| change(&site, &stop, &changes, tcp, other, &to(echo)));
        let one = scope.spawn(|| both_ways(tcp, size, false));
        let two = scope.spawn(|| both_ways(tcp, size, true));
        let many = scope.spawn(|| briefly(tcp, &stop));
        let ended = [one.join(), two.join()]
            .map(|ended| ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked"))));
        // Enough changes to have met many of the short ones.
        let until = Instant::now() + PATIENCE;
        while changes.load(Ordering::Relaxed) < 50 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        let (short, refused) = many.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
        changing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let [one, two] = ended;
        Ok((one, two, short, refused))
    })?;
    let changed = changes.load(Ordering::Relaxed);
    let mebibytes = size >> 20;
    for (what, ended) in [("the client's side ends first", first), ("the server's", second)] {
        let said = ended.as_ref().map_or_else(|error| format!("{error:#}"), |()| "whole".to_owned());
        let what = format!("{mebibytes} MiB up and down at once, {what}, {changed} changes meanwhile");
        rows.push(Row::new("P4", &what, "whole", said, ended.is_ok()));
    }
    rows.push(Row::new(
        "P4",
        &format!("of {short} short streams meanwhile, failed"),
        "0",
        format!("{}{}", refused.len(), refused.first().map(|one| format!(": {one}")).unwrap_or_default()),
        refused.is_empty() && short > 0 && changed >= 50,
    ));
    // Where the server ends first, its client is gone before the server has judged.
    let streams = 3 + short;
    settled(0, || Ok(streams.saturating_sub(counter.load(Ordering::Relaxed))))?;
    let (seen, wrong) = (counter.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed));
    rows.push(Row::new(
        "P4",
        "streams that their server saw whole",
        &streams.to_string(),
        seen - wrong,
        seen - wrong == streams,
    ));
    let grown = settled(memory + GROWTH_KIB, || site.rss_kib())?.saturating_sub(memory);
    rows.push(Row::new(
        "P4",
        "memory",
        "+16 MiB",
        format!("+{:.1} MiB", grown as f64 / 1024.0),
        grown <= GROWTH_KIB,
    ));

    let (answered, held) = sessions(&site, udp, flows)?;
    rows.push(Row::new(
        "P4",
        &format!("of {flows} flows of UDP, answered"),
        "all",
        answered,
        answered == flows,
    ));
    // On a busy machine the first are over before the last begin.
    rows.push(Row::figure(
        "P4",
        "sockets that they have while they last",
        &format!("{flows}"),
        held.saturating_sub(descriptors),
        held >= descriptors + flows,
    ));
    std::thread::sleep(Duration::from_secs(SESSION));
    let left = settled(descriptors + 5, || site.descriptors())?.saturating_sub(descriptors);
    rows.push(Row::new(
        "P4",
        &format!("and {SESSION} s of silence later"),
        "0, and 5 spare",
        left,
        left <= 5,
    ));
    ensure!(site.lives(), "the gateway is gone:\n{}", site.log());
    Ok(rows)
}

/// Bytes that say where they stand, different for each stream.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, part: &mut [u8]) {
        for eight in part.chunks_mut(8) {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            eight.copy_from_slice(&self.0.to_le_bytes()[..eight.len()]);
        }
    }

    fn send(mut self, mut to: &TcpStream, size: u64) -> Result<()> {
        let mut part = vec![0; PART];
        for _ in 0..size / PART as u64 {
            self.fill(&mut part);
            to.write_all(&part)?;
        }
        Ok(())
    }

    fn expect(mut self, mut from: &TcpStream, size: u64) -> Result<()> {
        let (mut came, mut wanted) = (vec![0; PART], vec![0; PART]);
        for at in 0..size / PART as u64 {
            from.read_exact(&mut came)
                .with_context(|| format!("after {at} of {} parts", size / PART as u64))?;
            self.fill(&mut wanted);
            ensure!(came == wanted, "other bytes in part {at}");
        }
        Ok(())
    }
}

/// A client that sends its size and who ends first, then as much as it gets.
fn both_ways(port: u16, size: u64, server_first: bool) -> Result<()> {
    let stream = connect(port)?;
    (&stream).write_all(&size.to_le_bytes())?;
    (&stream).write_all(&[u8::from(server_first)])?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| Pattern(size).send(&stream, size));
        Pattern(!size).expect(&stream, size).context("down")?;
        if server_first {
            // Its end is seen while our own side is open, and what we say after that arrives.
            ensure!((&stream).read(&mut [0])? == 0, "more than was sent");
        }
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?.context("up")?;
        (&stream).write_all(b"last")?;
        stream.shutdown(Shutdown::Write)?;
        if !server_first {
            // And the other way round: it tells what it got when we have ended.
            let mut verdict = String::new();
            (&stream).read_to_string(&mut verdict)?;
            ensure!(verdict == "whole", "the server says {verdict:?}");
        }
        Ok(())
    })
}

fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// The other side of `both_ways`, and of `briefly`, which says a size of nothing.
fn serve(listener: &TcpListener, (all, wrong): &(Arc<AtomicU64>, Arc<AtomicU64>)) {
    for stream in listener.incoming().flatten() {
        let (all, wrong) = (all.clone(), wrong.clone());
        std::thread::spawn(move || {
            let whole = answer(&stream).is_ok_and(|whole| whole);
            wrong.fetch_add(u64::from(!whole), Ordering::Relaxed);
            all.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// Whether all of the client came.
fn answer(stream: &TcpStream) -> Result<bool> {
    let mut head = [0; 9];
    let mut from = stream;
    from.read_exact(&mut head)?;
    let size = u64::from_le_bytes(head[..8].try_into()?);
    let server_first = head[8] == 1;
    let whole = std::thread::scope(|scope| -> Result<bool> {
        let sending = scope.spawn(|| -> Result<()> {
            Pattern(!size).send(stream, size)?;
            if server_first {
                stream.shutdown(Shutdown::Write)?;
            }
            Ok(())
        });
        let came = Pattern(size).expect(stream, size);
        let mut last = Vec::new();
        (&*stream).read_to_end(&mut last)?;
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(came.is_ok() && last == b"last")
    })?;
    if !server_first {
        (&*stream).write_all(if whole { b"whole" } else { b"not whole" })?;
    }
    Ok(whole)
}

/// Opens streams of a few bytes until `stop`; returns their number, and the errors of failed ones.
fn briefly(port: u16, stop: &AtomicBool) -> (u64, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        if let Err(error) = both_ways(port, 0, count % 2 == 0) {
            wrong.push(format!("{error:#}"));
        }
    }
    (count, wrong)
}

/// Writes routes until `stop`, and counts them.
fn change(
    site: &Site,
    stop: &AtomicBool,
    count: &AtomicU64,
    tcp: u16,
    other: u16,
    upstream: &Value,
) -> Result<()> {
    let mut writer = site.writer();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let plugins =
            json!({"ip-restriction": {"whitelist": ["127.0.0.0/8", format!("10.0.0.{}", number % 250)]}});
        writer.put(
            "stream_routes/tcp",
            &json!({"server_port": tcp, "upstream": upstream, "plugins": plugins}),
        )?;
        let others = json!({"server_port": other, "upstream": {"nodes": {format!("127.0.0.1:{}", 1 + number % 9): 1}}});
        writer.put(&format!("stream_routes/other-{}", number % 20), &others)?;
        writer.put("routes/1", &json!({"uri": format!("/{number}"), "plugins": {}}))?;
        count.fetch_add(3, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn reflect(socket: &UdpSocket) {
    let mut data = [0; 100];
    while let Ok((length, peer)) = socket.recv_from(&mut data) {
        data[..length].reverse();
        // It comes again if it is lost.
        let _ = socket.send_to(&data[..length], peer);
    }
}

/// Flows that are all there at the same time: how many were answered, and the descriptors meanwhile.
fn sessions(site: &Site, port: u16, flows: usize) -> Result<(usize, usize)> {
    let mut clients = Vec::with_capacity(flows);
    let (mut answered, mut held) = (0, 0);
    for begin in (0..flows).step_by(AT_ONCE) {
        for number in begin..flows.min(begin + AT_ONCE) {
            let client = UdpSocket::bind("127.0.0.1:0")?;
            client.connect(("127.0.0.1", port))?;
            client.set_read_timeout(Some(Duration::from_secs(1)))?;
            client.send(&number.to_be_bytes())?;
            clients.push(client);
        }
        for (number, client) in clients.iter().enumerate().skip(begin) {
            answered += usize::from(has_answer(client, number)?);
        }
        held = held.max(site.descriptors()?);
    }
    Ok((answered, held))
}

fn has_answer(client: &UdpSocket, number: usize) -> Result<bool> {
    let (asked, mut data) = (number.to_be_bytes(), [0; 100]);
    for _ in 0..10 {
        match client.recv(&mut data) {
            Ok(length) => return Ok(data[..length].iter().rev().eq(&asked)),
            // Datagrams may be lost.
            Err(_) => client.send(&asked)?,
        };
    }
    Ok(false)
}
