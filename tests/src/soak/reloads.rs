//! R7 and R9: the process reloads its files, and exits, under load.
//!
//! Half of the load checks whether its connection is still open before it sends, as most clients
//! do; the other half sends without checking, and may meet a connection that is just being closed.

use super::load::{Load, RATE, Style};
use super::site::Site;
use super::{Row, Trial, ms};
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

/// Of each half of the load. Each sends more often than the grace for idle connections is long.
const CLIENTS: u32 = 8;
/// Between two signals.
const PAUSE: Duration = Duration::from_millis(150);
/// In-flight requests are short here, so the end must be too.
const END: Duration = Duration::from_secs(3);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let mut site = Site::start(trial.program, json!(null), "")?;
    let route = site.route("/load/*", json!({}));
    site.put("routes/load", &route)?;
    let reloads: u32 = trial.pick(5, 20);
    let style = |looks| Style { rate: Some(RATE / 2), clients: CLIENTS, looks };
    let load = Load::with(&site.proxy, &["/load".to_owned()], style(true));
    let blind = Load::with(&site.proxy, &["/load".to_owned()], style(false));
    std::thread::sleep(PAUSE);
    for turn in 0..reloads {
        trial.progress(f64::from(turn) / f64::from(reloads), "reloads");
        site.signal("HUP")?;
        std::thread::sleep(PAUSE);
    }
    let mut reloaded = load.take();
    reloaded.add(blind.take());

    // A second instance on the same port takes over while the first one ends.
    let ends: u32 = trial.pick(1, 5);
    let mut exits = Vec::new();
    let mut longest = Duration::ZERO;
    for turn in 0..ends {
        trial.progress(f64::from(turn) / f64::from(ends), "ends");
        let next = site.beside(trial.program, "/load/*")?;
        std::thread::sleep(PAUSE);
        site.signal("TERM")?;
        let began = Instant::now();
        exits.push(site.wait()?);
        longest = longest.max(began.elapsed());
        site = next;
    }
    std::thread::sleep(PAUSE);
    let (ended, unlooked) = (load.stop(), blind.stop());
    let busy = reloaded.requests > u64::from(reloads) && ended.requests > 0 && unlooked.requests > 0;
    Ok(vec![
        Row::new(
            "R7",
            &format!("failed requests in {reloads} reloads"),
            "0",
            reloaded.verdict(),
            reloaded.failed == 0 && busy,
        ),
        Row::new(
            "R9",
            &format!("failed requests in {ends} ends by SIGTERM, another instance beside"),
            "0",
            ended.verdict(),
            ended.failed == 0,
        ),
        Row::new(
            "R9",
            "and of clients that send without looking",
            "0",
            unlooked.verdict(),
            unlooked.failed == 0 && busy,
        ),
        Row::new("R9", "exit codes", "0", format!("{exits:?}"), exits.iter().all(|code| *code == 0)),
        Row::figure("R9", "the longest end", &ms(END), ms(longest), longest < END),
    ])
}
