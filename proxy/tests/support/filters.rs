//! A plugin that passes bodies through filters, which the query selects.

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use sdk::build::Build;
use sdk::chain::{Fitting, LocalFuture, Stage};
use sdk::{Chunk, Exchange, Factory, Instance, Phase, Phases, Reply, RequestFilter, Step};
use serde_json::{Value, json};

pub struct Filters;

impl Factory for Filters {
    fn name(&self) -> &'static str {
        "filters"
    }

    fn priority(&self) -> i32 {
        10
    }

    fn phases(&self) -> Phases {
        Phases::ACCESS | Phases::BODY_FILTER
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        Ok(fitting.stage(Filters))
    }
}

impl Instance for Filters {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn ask(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        if x.query() == b"insist" {
            return Step::Body(1);
        }
        if matches!(x.query(), b"look" | b"look-and-filter" | b"beginning")
            && let Some(step) = x.ask_for_optional_body(10)
        {
            return step;
        }
        let filter: Box<dyn RequestFilter> = match x.query() {
            b"swallow" => Box::new(Swallow),
            b"grow" => Box::new(Grow),
            // The body is forwarded unchanged.
            b"look" | b"beginning" => return Step::Next,
            _ => Box::new(Shout),
        };
        x.filter_request_body(filter);
        Step::Next
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        matches!(x.query(), b"down" | b"short" | b"instead" | b"fill") || pause(x).is_some()
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        if pause(x).is_some() && !chunk.data.is_empty() {
            return Step::Wait;
        }
        chunk.data.make_ascii_uppercase();
        match x.query() {
            b"short" => _ = chunk.data.pop(),
            b"fill" if chunk.last => chunk.data.extend_from_slice(b"hi"),
            b"instead" if chunk.data.contains(&b'!') => {
                return Step::Reply(Reply::text(418, "no!".to_owned()));
            }
            _ => {}
        }
        Step::Next
    }

    fn wait_body<'a>(&'a self, x: &'a mut Exchange<'_>, _: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async {
            x.world().sleep(pause(x).unwrap_or_default()).await;
            Step::Next
        })
    }
}

/// Returns how long to delay each piece of a response.
fn pause(x: &Exchange<'_>) -> Option<Duration> {
    match x.query() {
        b"pause" => Some(Duration::from_millis(1500)),
        b"long-pause" => Some(Duration::from_secs(60)),
        _ => None,
    }
}

/// Turns the body to upper case.
struct Shout;

impl RequestFilter for Shout {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        chunk.data.make_ascii_uppercase();
        Step::Next
    }
}

/// Removes all bytes.
struct Swallow;

impl RequestFilter for Swallow {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        chunk.data.clear();
        Step::Next
    }
}

/// Grows each piece to one MiB.
struct Grow;

impl RequestFilter for Grow {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        chunk.data.resize(1 << 20, b'g');
        Step::Next
    }
}
