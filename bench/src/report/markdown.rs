//! The readable report.

use std::fmt::Write;

use super::{Report, tables};
use crate::published::{FIGURES, SOURCES};
use crate::run::{ArmResult, Outcome, Sample};
use crate::scenario::Kind;
use crate::stats::Spread;

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut page = format!("# Benchmark: {}\n\n", report.name);
    let machine = &report.machine;
    line(
        &mut page,
        format!(
            "{}; {} cores, {} MiB, Linux {}; load average {:.2} when the run began. Ended {} (UTC), took {:.0} s.",
            machine.cpu,
            machine.cores.0.len(),
            machine.memory_mib,
            machine.kernel,
            machine.load_average,
            date(report.ended),
            report.took_seconds
        ),
    );
    line(
        &mut page,
        format!(
            "Up to {} rounds of {} s in a random order per round; the gateway alone on its core, upstream and load on the others. \
        Numbers are medians over the rounds with the smallest and largest round in brackets; ratios are taken round by round. \
        [How to read this](../../README.md).",
            report.plan.rounds,
            report.plan.duration.as_secs()
        ),
    );
    page.push_str("\n## Goals\n\n");
    page.push_str(&goals(report));
    page.push_str("\n## Gateways\n\n| gateway | version |\n|---|---|\n");
    for found in &report.gateways {
        let version = match (&found.version, &found.missing) {
            (Some(version), _) => version.clone(),
            (None, reason) => format!("not measured: {}", first_line(reason.as_deref().unwrap_or("unknown"))),
        };
        line(&mut page, format!("| {} | {version} |", found.gateway));
    }
    for outcome in &report.outcomes {
        page.push_str(&scenario(outcome));
    }
    if !report.skipped.is_empty() {
        page.push_str("\n## Not run\n\n");
        for (id, reason) in &report.skipped {
            line(&mut page, format!("- {id}: {reason}"));
        }
    }
    page.push_str("\n## Sources of the published figures\n\n");
    for (number, source) in SOURCES {
        line(&mut page, format!("- {number}: {source}"));
    }
    page
}

/// The table of goals.
pub fn goals(report: &Report) -> String {
    let mut table = "| goal | at most | measured | |\n|---|---|---|---|\n".to_owned();
    for verdict in &report.goals {
        let measured = verdict.measured.as_ref().map_or("-".to_owned(), |spread| with_range(spread, 3));
        let word = match verdict.word() {
            "missed" => "**missed**",
            word => word,
        };
        line(&mut table, format!("| {} | {:.2} | {measured} | {word} |", verdict.text, verdict.limit));
    }
    table
}

/// A scenario in one line, for the terminal during a run.
pub fn one_line(outcome: &Outcome) -> String {
    let mut text = format!("{}:", outcome.scenario.id);
    for result in &outcome.arms {
        let number = match (&result.failure, result.spread(Sample::cpu_us)) {
            (Some(_), _) => "FAILED".to_owned(),
            (None, Some(cpu)) => format!("{:.1} us", cpu.median),
            (None, None) => match result.spread(|sample| Some(sample.idle.as_ref()?.kib_per_connection)) {
                Some(kib) => format!("{:.2} KiB", kib.median),
                None => match result.spread(|sample| Some(sample.scale.as_ref()?.load_ms)) {
                    Some(load) => format!("loaded in {:.0} ms", load.median),
                    None => format!("{:.0}/s", rate(result).map_or(0.0, |rate| rate.median)),
                },
            },
        };
        let _ = write!(text, " {} {number},", result.arm.label);
    }
    text.pop();
    text
}

fn scenario(outcome: &Outcome) -> String {
    let scenario = &outcome.scenario;
    let mut text = format!("\n## {}\n\n", scenario.id);
    let names = if scenario.also.is_empty() {
        String::new()
    } else {
        format!(" (also {})", scenario.also.join(", "))
    };
    let shared = if outcome.layout.shared() {
        " Gateway, upstream and load share these cores, so rates and latencies also depend on the load driver."
    } else {
        ""
    };
    line(
        &mut text,
        format!(
            "{}{names}. {}; gateway on core {}, upstream and load on core {}.{shared}",
            scenario.title,
            match scenario.kind {
                Kind::Idle | Kind::Scale => "No load".to_owned(),
                _ => scenario.driver.text(),
            },
            outcome.layout.gateway.list(),
            outcome.layout.load.list()
        ),
    );
    line(&mut text, format!("\n![{0}]({0}.svg)\n", scenario.id));
    text.push_str(&match scenario.kind {
        Kind::Idle => tables::idle(outcome),
        Kind::Scale => tables::scale(outcome),
        Kind::Load | Kind::Churn { .. } => load_table(outcome),
    });
    if matches!(scenario.kind, Kind::Churn { .. }) {
        text.push_str(&tables::churn(outcome));
    }
    for result in &outcome.arms {
        if let Some(failure) = &result.failure {
            line(&mut text, format!("\n{} failed: {}", result.arm.label, quote(failure)));
        }
    }
    if !outcome.absent.is_empty() {
        let absent: Vec<String> =
            outcome.absent.iter().map(|(who, reason)| format!("{who} ({})", first_line(reason))).collect();
        line(&mut text, format!("\nNot measured here: {}.", absent.join("; ")));
    }
    text.push_str(&published(outcome));
    text
}

fn load_table(outcome: &Outcome) -> String {
    let unit = outcome.scenario.driver.unit();
    let mut table = format!(
        "| gateway | CPU us/{unit} | user + system | sluice / it | syscalls/{unit} | {unit}s/s | p50 ms | p90 ms | p99 ms | p99.9 ms | RSS MiB |\n\
        |---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    let ours = outcome.arm("sluice").map(|result| result.each(Sample::cpu_us));
    for result in &outcome.arms {
        if result.failure.is_some() {
            line(&mut table, format!("| {} | **failed** | | | | | | | | | |", result.arm.label));
            continue;
        }
        let ratio = ours.as_ref().and_then(|ours| Spread::of_ratio(ours, &result.each(Sample::cpu_us)));
        let halves = match (result.spread(|s| s.user_us), result.spread(|s| s.system_us)) {
            (Some(user), Some(system)) => format!("{:.1} + {:.1}", user.median, system.median),
            _ => "-".to_owned(),
        };
        let memory = result.spread(|s| (s.memory.rss_kib > 0).then_some(s.memory.rss_kib as f64 / 1024.0));
        let milliseconds = |number: fn(&Sample) -> Option<f64>| {
            result.spread(number).map_or("-".to_owned(), |spread| format!("{:.2}", spread.median / 1e3))
        };
        line(
            &mut table,
            format!(
                "| {} | {} | {halves} | {} | {} | {} | {} | {} | {} | {} | {} |",
                result.arm.label,
                result.spread(Sample::cpu_us).map_or("-".to_owned(), |cpu| with_range(&cpu, 1)),
                ratio.map_or("-".to_owned(), |ratio| with_range(&ratio, 2)),
                result.syscalls_per_request.map_or("-".to_owned(), |calls| format!("{calls:.2}")),
                rate(result).map_or("-".to_owned(), |rate| with_range(&rate, 0)),
                milliseconds(|s| s.load.p50_us),
                milliseconds(|s| s.load.p90_us),
                milliseconds(|s| s.load.p99_us),
                milliseconds(|s| s.load.p999_us),
                memory.map_or("-".to_owned(), |memory| format!("{:.1}", memory.median)),
            ),
        );
    }
    table
}

/// The published lines of a scenario, each as a ratio to the first, like ours.
fn published(outcome: &Outcome) -> String {
    let figures: Vec<_> = FIGURES.iter().filter(|figure| figure.scenario == outcome.scenario.id).collect();
    if figures.is_empty() {
        return String::new();
    }
    let mut table = "\nPublished, on other machines:\n\n| | who | requests/s | mean ms | remark |\n|---|---|---|---|---|\n".to_owned();
    for figure in figures {
        let mean = figure.mean_ms.map_or("-".to_owned(), |mean| format!("{mean}"));
        line(
            &mut table,
            format!(
                "| {} | {} | {} | {mean} | {} |",
                figure.number,
                figure.who,
                thousands(figure.per_second),
                figure.remark
            ),
        );
    }
    let ours: Vec<String> = outcome
        .arms
        .iter()
        .filter(|result| result.failure.is_none())
        .filter_map(|result| Some(format!("{} {}/s", result.arm.label, thousands(rate(result)?.median))))
        .collect();
    line(&mut table, format!("\nMeasured here: {}.", ours.join(", ")));
    table
}

fn rate(result: &ArmResult) -> Option<Spread> {
    result.spread(|sample| (sample.load.seconds > 0.0).then(|| sample.load.per_second()))
}

/// `0.71 (0.69..0.74)`
pub(super) fn with_range(spread: &Spread, digits: usize) -> String {
    if digits == 0 {
        return format!(
            "{} ({}..{})",
            thousands(spread.median),
            thousands(spread.min),
            thousands(spread.max)
        );
    }
    format!("{:.digits$} ({:.digits$}..{:.digits$})", spread.median, spread.min, spread.max)
}

/// `18,608`
fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `2026-11-21 12:00`, from seconds since 1970 (civil-from-days, proleptic Gregorian).
fn date(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", seconds / 3_600 % 24, seconds / 60 % 60)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

/// A message with its log, as a quotation.
fn quote(text: &str) -> String {
    format!("\n\n```\n{}\n```", text.replace("```", "'''"))
}

pub(super) fn line(text: &mut String, line: String) {
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_dates_read_well() {
        assert_eq!(thousands(18_608.4), "18,608");
        assert_eq!(thousands(999.0), "999");
        assert_eq!(thousands(1_000_000.0), "1,000,000");
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(1_709_210_096), "2024-02-29 12:34");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59");
        assert_eq!(
            with_range(&Spread { median: 0.714, min: 0.7, max: 0.752, mad: 0.0 }, 2),
            "0.71 (0.70..0.75)"
        );
    }
}
