//! R4 with a large store: how long from exec to the first right answer.

use super::site::Site;
use super::{Row, Trial, ms, quantile};
use anyhow::{Result, ensure};
use serde_json::json;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Writes under way at once, so that they share commits.
const WRITERS: u32 = 32;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let routes = trial.pick(1000, 100_000);
    let mut site = Site::start(trial.program, json!(null), "")?;
    fill(&site, trial, routes)?;
    let mut times = Vec::new();
    for turn in 0..trial.pick(2, 7) {
        site.strike()?;
        site.kill()?;
        let began = Instant::now();
        site.resume()?;
        let last = routes - 1 - turn;
        let answer = site.get(&format!("/r/{last}"), "one")?.message;
        ensure!(answer.status() == 200, "the first answer is {}", answer.line);
        times.push(began.elapsed());
    }
    let rss = site.rss_kib()?;
    let half = quantile(&mut times, 0.5);
    // A debug build, which the cases use, is several times slower.
    let most = Duration::from_millis(trial.pick(3000, 1500));
    let measured = format!("half in {}, all in {}", ms(half), ms(quantile(&mut times, 1.0)));
    let memory = format!("{} MiB, {:.1} KiB a route", rss / 1024, rss as f64 / f64::from(routes));
    Ok(vec![
        Row::figure(
            "R4",
            &format!("exec to the first answer with {routes} routes"),
            &ms(most),
            measured,
            half <= most,
        ),
        Row::new("R4", &format!("memory after that start with {routes} routes"), "-", memory, true),
    ])
}

/// Writes `routes` routes, each with its own upstream and plugin.
fn fill(site: &Site, trial: &Trial, routes: u32) -> Result<()> {
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut writer = site.writer();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= routes {
                            return Ok(());
                        }
                        let set = json!({"response-rewrite": {"headers": {"set": {"X-Route": number.to_string()}}}});
                        let route = site.route(&format!("/r/{number}"), json!({ "plugins": set }));
                        writer.put(&format!("routes/r{number}"), &route)?;
                        if number.is_multiple_of(500) {
                            trial.progress(f64::from(number) / f64::from(routes), &format!("{number} routes written"));
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(done) => done,
            Err(_) => anyhow::bail!("a writer panicked"),
        })
    })
}
