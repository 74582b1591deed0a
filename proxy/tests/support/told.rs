//! A plugin that tells of each request what a log would.

use std::cell::RefCell;
use std::sync::Arc;

use model::Invalid;
use sdk::build::Build;
use sdk::chain::{Fitting, Stage};
use sdk::{Exchange, Factory, Instance, Phases};
use serde_json::{Value, json};

thread_local! {
    static TOLD: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

struct Line {
    text: String,
    received: u64,
    sent: u64,
}

/// Tells method, status, bytes of the body that were sent, statuses of servers, and tenths of seconds that the
/// request, and its server, took.
pub struct Told;

impl Factory for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn priority(&self) -> i32 {
        5
    }

    fn phases(&self) -> Phases {
        Phases::LOG
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        Ok(fitting.stage(Told))
    }
}

impl Instance for Told {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let timing = x.timing();
        let method = x.method().as_str();
        let mut statuses = Vec::new();
        x.upstream_statuses(&mut statuses);
        let statuses = String::from_utf8_lossy(&statuses);
        let text = format!(
            "{method} {} body {} from [{statuses}] in {}, {}",
            x.status(),
            timing.body_sent,
            timing.total_us / 100_000,
            timing.upstream_us / 100_000,
        );
        let line = Line { text, received: timing.received, sent: timing.sent };
        TOLD.with_borrow_mut(|told| told.push(line));
    }
}

/// What was told since the last time is what was wanted, if anything was. Of a connection that went well, all of
/// the bytes were told of.
pub fn check(wanted: &[&str], received: usize, sent: usize, broken: bool, about: &str) {
    let told = TOLD.take();
    if wanted.is_empty() {
        return;
    }
    let texts: Vec<&str> = told.iter().map(|line| &line.text[..]).collect();
    assert_eq!(texts, wanted, "{about}");
    if !broken && !texts.iter().any(|text| text.contains(" 499 ")) {
        let sums = told.iter().fold((0, 0), |sum, line| (sum.0 + line.received, sum.1 + line.sent));
        assert_eq!(sums, (received as u64, sent as u64), "{about}: bytes received and sent");
    }
}
