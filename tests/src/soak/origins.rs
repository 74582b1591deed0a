//! R5: the origin dies and comes back.

use super::load::{Load, RATE, Tally};
use super::site::Site;
use super::{Row, Trial};
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

/// How long the origin is away each time.
const AWAY: Duration = Duration::from_millis(400);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let deaths: u32 = trial.pick(1, 3);
    let mut site = Site::start(trial.program, json!(null), "")?;
    let healthy = super::origin::Origin::start()?;
    site.put("routes/one", &site.route("/one/*", json!({})))?;
    let both = json!({
        "type": "roundrobin",
        "nodes": {format!("127.0.0.1:{}", site.origin.port): 1, format!("127.0.0.1:{}", healthy.port): 1},
    });
    site.put("routes/two", &json!({"uri": "/two/*", "upstream": both}))?;
    let alone = Load::start(&site.proxy, &["/one".to_owned()], RATE / 2);
    let backed = Load::start(&site.proxy, &["/two".to_owned()], RATE / 2);
    let mut one = Tally::default();
    let mut away = Vec::new();
    for turn in 0..deaths {
        trial.progress(f64::from(turn) / f64::from(deaths), "deaths of the origin");
        std::thread::sleep(trial.pick(AWAY, AWAY * 5));
        away.push(site.origin.die_for(AWAY)?);
        one.add(alone.take());
    }
    std::thread::sleep(AWAY * 2);
    one.add(alone.stop());
    let mut two = backed.stop();
    // A request that the origin could not serve fails only if there is no other origin.
    let within = one.excuse(|broken| away.iter().any(|death| broken.overlaps(&death.away)));
    // A POST that may have reached the origin must not be retried: its result is unknown.
    let died = two.excuse(|broken| broken.post && away.iter().any(|death| broken.overlaps(&death.dying)));
    let what = format!("failed requests, the origin away {deaths} x {} ms", AWAY.as_millis());
    Ok(vec![
        Row::new("R5", &format!("{what}, before and after"), "0", one.verdict(), one.failed == 0),
        Row::new(
            "R5",
            "and while it is away",
            "some",
            format!("{within} of {}", one.requests),
            within > 0 && one.requests > within,
        ),
        Row::new(
            "R5",
            &format!("{what}, with a second origin"),
            "0, but POST that died with it",
            format!("{}; {died} POST died", two.verdict()),
            two.failed == 0,
        ),
    ])
}
