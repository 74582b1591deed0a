//! R1: steady traffic. No request fails, memory and descriptors stay where they were.

use super::load::{Load, RATE, Tally};
use super::site::{Site, growth};
use super::{Row, Trial, ms, quantile};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let seconds = trial.pick(4, 600);
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/load", &site.route("/load/*", json!({})))?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE);

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
    let grown = growth(rss, site.rss_kib()?);
    let descriptors_after = site.descriptors()?;
    all.add(load.stop());
    Ok(vec![
        Row::new(
            "R1",
            &format!("failed requests in {seconds} s at {RATE}/s"),
            "0",
            all.verdict(),
            all.failed == 0 && all.requests >= seconds * u64::from(RATE) * 9 / 10,
        ),
        // A short run is not over its first growth.
        Row::new(
            "R1",
            "memory against after warm-up",
            "+5 %",
            format!("{grown:+.1} %"),
            grown <= trial.pick(20.0, 5.0),
        ),
        Row::new(
            "R1",
            "open descriptors",
            &format!("{descriptors}"),
            descriptors_after,
            descriptors_after <= descriptors + trial.pick(16, 2),
        ),
        latency(&mut all),
    ])
}

fn latency(all: &mut Tally) -> Row {
    let (half, most) = (quantile(&mut all.times, 0.5), quantile(&mut all.times, 0.999));
    Row::new("R1", "time of a request", "-", format!("{} in the median, 99.9 % {}", ms(half), ms(most)), true)
}
