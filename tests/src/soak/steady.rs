//! R1: steady traffic at half of the highest rate. No request fails, memory and descriptors stay
//! where they were.
//!
//! The highest rate is that of gateway, origin and clients on the same machine, each answer
//! compared: what all of them together can do.

use super::load::{Load, RATE, Style, Tally};
use super::site::{Site, growth, settled};
use super::{Row, Trial, ms, quantile};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

/// Each sends its next request when it has its answer, so few are enough to keep two cores busy.
const CLIENTS: u32 = 16;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let seconds = trial.pick(4, 600);
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/load", &site.route("/load/*", json!({})))?;
    let mut rows = Vec::new();
    let mut rate = RATE;
    if trial.long {
        let (highest, row) = highest(trial, &site)?;
        rows.push(row);
        rate = highest / 2;
    }
    let style = Style { rate: Some(rate), clients: CLIENTS, looks: false };
    let load = Load::with(&site.proxy, &["/load".to_owned()], style);

    std::thread::sleep(Duration::from_secs(trial.pick(1, 30)));
    let mut all = load.take();
    all.times.clear();
    let (rss, descriptors) = (site.rss_kib()?, site.descriptors()?);

    let began = Instant::now();
    let length = Duration::from_secs(seconds);
    while began.elapsed() < length {
        std::thread::sleep(Duration::from_secs(1));
        all.add(load.take());
        let done = began.elapsed().as_secs_f64() / length.as_secs_f64();
        trial.progress(done, &format!("failed {}", all.verdict()));
    }
    let most = trial.pick(20.0, 5.0);
    let grown = settled(most, || Ok(growth(rss, site.rss_kib()?)))?;
    let allowed = descriptors + trial.pick(16, 2);
    let descriptors_after = settled(allowed, || site.descriptors())?;
    let made = all.requests as f64 / (seconds * u64::from(rate)) as f64 * 100.0;
    all.add(load.stop());
    rows.extend([
        Row::new(
            "R1",
            &format!("failed requests in {seconds} s at {rate}/s"),
            "0",
            all.verdict(),
            all.failed == 0 && all.requests > 0,
        ),
        Row::figure("R1", "requests made of those due", "90 %", format!("{made:.0} %"), made >= 90.0),
        // A short run is not over its first growth.
        Row::new("R1", "memory against after warm-up", "+5 %", format!("{grown:+.1} %"), grown <= most),
        Row::new(
            "R1",
            "open descriptors",
            &format!("{descriptors}"),
            descriptors_after,
            descriptors_after <= allowed,
        ),
        latency(&mut all),
    ]);
    Ok(rows)
}

/// The highest rate without waiting, and the processor time it costs.
fn highest(trial: &Trial, site: &Site) -> Result<(u32, Row)> {
    trial.progress(0.0, "looking for the highest rate");
    let style = Style { rate: None, clients: CLIENTS, looks: false };
    let load = Load::with(&site.proxy, &["/load".to_owned()], style);
    std::thread::sleep(Duration::from_secs(3));
    load.take();
    let (began, processor) = (Instant::now(), site.processor_time()?);
    std::thread::sleep(Duration::from_secs(10));
    let tally = load.take();
    let took = began.elapsed().as_secs_f64();
    let cores = (site.processor_time()? - processor).as_secs_f64() / took;
    let failed = tally.failed + load.stop().failed;
    let rate = tally.requests as f64 / took;
    let measured = format!("{rate:.0}/s, the gateway on {cores:.2} cores; {failed} failed");
    let row = Row::new("R1", &format!("highest rate, {CLIENTS} clients"), "-", measured, failed == 0);
    Ok((rate as u32, row))
}

fn latency(all: &mut Tally) -> Row {
    let (half, most) = (quantile(&mut all.times, 0.5), quantile(&mut all.times, 0.999));
    Row::new("R1", "time of a request", "-", format!("{} in the median, 99.9 % {}", ms(half), ms(most)), true)
}
