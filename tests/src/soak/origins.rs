//! R5: the origin dies and comes back.

use super::load::{Load, RATE, Tally};
use super::site::Site;
use super::{Row, Trial};
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

/// How long the origin is away each time.
const AWAY: Duration = Duration::from_millis(400);
/// After it is back, this much later nobody may notice any more.
const SETTLE: Duration = Duration::from_millis(100);

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
    let mut taken = 0;
    let (mut outside, mut within, mut second) = (Tally::default(), Tally::default(), Tally::default());
    for turn in 0..deaths {
        trial.progress(f64::from(turn) / f64::from(deaths), "deaths of the origin");
        std::thread::sleep(trial.pick(AWAY, AWAY * 5));
        outside.add(alone.take());
        taken += site.origin.die_for(AWAY, "POST /two")?;
        std::thread::sleep(SETTLE);
        within.add(alone.take());
    }
    std::thread::sleep(AWAY * 2);
    outside.add(alone.stop());
    second.add(backed.stop());
    let what = format!("failed requests, the origin away {deaths} x {} ms", AWAY.as_millis());
    Ok(vec![
        Row::new("R5", &format!("{what}, before and after"), "0", outside.verdict(), outside.failed == 0),
        Row::new(
            "R5",
            "and while it is away",
            "some",
            format!("{} of {}", within.failed, within.requests),
            within.failed > 0 && within.requests > within.failed,
        ),
        // Nobody may send a POST again that the origin had taken: what became of it is not known.
        Row::new(
            "R5",
            &format!("{what}, with a second origin"),
            "0, but POST that died with it",
            format!("{}; {taken} POST died", second.verdict()),
            second.failed <= taken,
        ),
    ])
}
