//! Tables of the scenarios that measure more than load.

use super::markdown::{line, with_range};
use crate::run::{ArmResult, Outcome};
use crate::scale;
use crate::stats::Spread;

/// Memory per idle connection.
pub fn idle(outcome: &Outcome) -> String {
    let mut table = "| gateway | at rest, MiB | of it its own (PSS), MiB | with 10,000 connections (PSS), MiB | KiB per connection |\n|---|---|---|---|---|\n".to_owned();
    for result in &outcome.arms {
        let number = |number: fn(&crate::idle::Sample) -> f64, digits: usize| {
            let spread = result.spread(|sample| sample.idle.as_ref().map(number));
            spread.map_or("-".to_owned(), |spread| with_range(&spread, digits))
        };
        line(
            &mut table,
            format!(
                "| {} | {} | {} | {} | {} |",
                result.arm.label,
                number(|idle| idle.rest_rss_kib as f64 / 1024.0, 1),
                number(|idle| idle.rest_pss_kib as f64 / 1024.0, 1),
                number(|idle| idle.held_pss_kib as f64 / 1024.0, 1),
                number(|idle| idle.kib_per_connection, 2),
            ),
        );
    }
    table
}

/// Results of changes under load.
pub fn churn(outcome: &Outcome) -> String {
    let mut table = "\n| | changes | refused or lost | live after the answer, ms | slowest, ms | Admin API's answer, ms | control CPU a change, ms |\n|---|---|---|---|---|---|---|\n".to_owned();
    for result in &outcome.arms {
        let samples: Vec<_> =
            result.samples.iter().flatten().filter_map(|sample| sample.churn.as_ref()).collect();
        if samples.is_empty() {
            continue;
        }
        let live = Spread::of(samples.iter().filter_map(|sample| Some(sample.live_us?.median)));
        let slowest = Spread::of(samples.iter().filter_map(|sample| Some(sample.live_us?.max)));
        let answer = Spread::of(samples.iter().filter_map(|sample| Some(sample.answer_us?.median)));
        let control = Spread::of(samples.iter().filter_map(|sample| sample.control_us));
        let milliseconds =
            |spread: Option<f64>| spread.map_or("-".to_owned(), |us| format!("{:.2}", us / 1e3));
        line(
            &mut table,
            format!(
                "| {} | {} | 0 | {} | {} | {} | {} |",
                result.arm.label,
                samples.iter().map(|sample| sample.changes).sum::<u64>(),
                milliseconds(live.map(|spread| spread.median)),
                milliseconds(slowest.map(|spread| spread.max)),
                milliseconds(answer.map(|spread| spread.median)),
                milliseconds(control.map(|spread| spread.median)),
            ),
        );
    }
    table
}

/// Large configurations.
pub fn scale(outcome: &Outcome) -> String {
    let mut table = "| gateway | loaded, ms | its CPU time, ms | memory with all (PSS), MiB | KiB each | a change answered, ms | live on all workers after that, ms | slowest, ms | CPU a change, ms | metadata of all routes live, ms | CPU of that, ms | CPU of a handshake, µs | with one certificate, µs |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for result in &outcome.arms {
        let number = |number: &dyn Fn(&scale::Sample) -> Option<f64>, digits: usize| {
            spread(result, number).map_or("-".to_owned(), |spread| with_range(&spread, digits))
        };
        line(
            &mut table,
            format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                result.arm.label,
                number(&|scale| Some(scale.load_ms), 0),
                number(&|scale| Some(scale.load_cpu_ms), 0),
                number(&|scale| Some(scale.loaded_kib as f64 / 1024.0), 1),
                number(&|scale| Some(scale.kib_each), 2),
                number(&|scale| Some(scale.answer_ms?.median), 2),
                number(&|scale| Some(scale.live_ms?.median), 2),
                number(&|scale| Some(scale.live_ms?.max), 2),
                number(&|scale| scale.cpu_ms_per_change, 2),
                number(&|scale| Some(scale.metadata_ms?.median), 1),
                number(&|scale| scale.metadata_cpu_ms, 1),
                number(&|scale| scale.handshake_us, 0),
                number(&|scale| scale.handshake_alone_us, 0),
            ),
        );
    }
    table
}

fn spread(result: &ArmResult, number: &dyn Fn(&scale::Sample) -> Option<f64>) -> Option<Spread> {
    result.spread(|sample| number(sample.scale.as_ref()?))
}
