//! Bar charts in SVG: a panel per number, a bar per gateway, sluice in colour.

use std::fmt::Write;

use crate::run::{ArmResult, Outcome, Sample};
use crate::scenario::Kind;
use crate::stats::Spread;

const WIDTH: f64 = 760.0;
/// The left end of bars; labels are left of it.
const LEFT: f64 = 190.0;
/// Room to the right of the longest bar for its number.
const RIGHT: f64 = 130.0;
const BAR: f64 = 18.0;
const STEP: f64 = 25.0;

/// The colours of the first part (user time, or the only one) and the second part (system time) of
/// a bar.
const OURS: [&str; 2] = ["#0b6e4f", "#5fb49c"];
const THEIRS: [&str; 2] = ["#5c6b7a", "#a9b4bf"];

/// A number with its unit, for all gateways.
struct Panel {
    title: &'static str,
    digits: usize,
    rows: Vec<Row>,
}

struct Row {
    label: String,
    ours: bool,
    /// Stacked left to right.
    parts: Vec<f64>,
    /// Smallest and largest round.
    range: Option<(f64, f64)>,
}

/// The chart of a scenario.
pub fn of(outcome: &Outcome) -> String {
    let panels = match outcome.scenario.kind {
        Kind::Idle => vec![
            panel(outcome, "Resident memory at rest, MiB", 1, |s| {
                Some(s.idle.as_ref()?.rest_rss_kib as f64 / 1024.0)
            }),
            panel(outcome, "Memory per idle connection, KiB", 2, |s| {
                Some(s.idle.as_ref()?.kib_per_connection)
            }),
        ],
        Kind::Scale => vec![
            panel(outcome, "Until the whole configuration is served, ms", 0, |s| {
                Some(s.scale.as_ref()?.load_ms)
            }),
            panel(outcome, "Memory per object, KiB", 2, |s| Some(s.scale.as_ref()?.kib_each)),
            panel(outcome, "A change, from its answer until it is live everywhere, ms", 2, |s| {
                Some(s.scale.as_ref()?.live_ms?.median)
            }),
            panel(outcome, "CPU time of a change, ms", 2, |s| s.scale.as_ref()?.cpu_ms_per_change),
        ],
        Kind::Load | Kind::Churn { .. } => vec![
            cpu_panel(outcome),
            panel(outcome, "Each second", 0, |s| (s.load.seconds > 0.0).then(|| s.load.per_second())),
            panel(outcome, "Latency: 99 % were faster, ms", 2, |s| Some(s.load.p99_us? / 1e3)),
        ],
    };
    draw(
        outcome.scenario.title,
        &panels.into_iter().filter(|panel| !panel.rows.is_empty()).collect::<Vec<_>>(),
    )
}

fn cpu_panel(outcome: &Outcome) -> Panel {
    let row = |result: &ArmResult| {
        let (user, system) = (result.spread(|s| s.user_us)?, result.spread(|s| s.system_us)?);
        let total = result.spread(Sample::cpu_us)?;
        // Medians of parts need not add up to the median of the sum: the sum takes precedence.
        let scale = total.median / (user.median + system.median).max(f64::MIN_POSITIVE);
        Some((vec![user.median * scale, system.median * scale], total))
    };
    Panel {
        title: "CPU time per request, handshake or message, µs (dark: user, light: system)",
        digits: 1,
        rows: rows(outcome, row),
    }
}

fn panel(outcome: &Outcome, title: &'static str, digits: usize, number: fn(&Sample) -> Option<f64>) -> Panel {
    let row = |result: &ArmResult| {
        let spread = result.spread(number)?;
        Some((vec![spread.median], spread))
    };
    Panel { title, digits, rows: rows(outcome, row) }
}

fn rows(outcome: &Outcome, row: impl Fn(&ArmResult) -> Option<(Vec<f64>, Spread)>) -> Vec<Row> {
    outcome
        .arms
        .iter()
        .filter(|result| result.failure.is_none())
        .filter_map(|result| {
            let (parts, spread) = row(result)?;
            let range = (spread.min < spread.max).then_some((spread.min, spread.max));
            let label = result.arm.label.clone();
            Some(Row { ours: label.starts_with("sluice"), label, parts, range })
        })
        .collect()
}

fn draw(title: &str, panels: &[Panel]) -> String {
    let height = 52.0 + panels.iter().map(|panel| 46.0 + panel.rows.len() as f64 * STEP).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1c2733\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"16\" font-weight=\"600\">{}</text>\n",
        escape(title)
    );
    let mut top = 44.0;
    for panel in panels {
        draw_panel(&mut svg, panel, top);
        top += 46.0 + panel.rows.len() as f64 * STEP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_panel(svg: &mut String, panel: &Panel, top: f64) {
    // Writing to a String cannot fail, so the results are ignored.
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{}\" font-weight=\"600\">{}</text>",
        top + 18.0,
        escape(panel.title)
    );
    let total = |row: &Row| row.parts.iter().sum::<f64>();
    let largest = panel.rows.iter().map(|row| row.range.map_or(total(row), |(_, max)| max.max(total(row))));
    let scale = (WIDTH - LEFT - RIGHT) / largest.fold(f64::MIN_POSITIVE, f64::max);
    for (index, row) in panel.rows.iter().enumerate() {
        let y = top + 30.0 + index as f64 * STEP;
        let middle = y + BAR / 2.0;
        let weight = if row.ours { " font-weight=\"600\"" } else { "" };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\"{weight}>{}</text>",
            LEFT - 10.0,
            middle + 4.5,
            escape(&row.label)
        );
        let mut x = LEFT;
        for (part, colour) in row.parts.iter().zip(if row.ours { OURS } else { THEIRS }) {
            let width = (part * scale).max(0.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
            );
            x += width;
        }
        let mut end = x;
        if let Some((min, max)) = row.range {
            let (from, to) = (LEFT + min.max(0.0) * scale, LEFT + max * scale);
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6\" stroke=\"#1c2733\" fill=\"none\"/>",
                middle - 3.0,
                middle - 3.0
            );
            end = end.max(to);
        }
        let digits = panel.digits;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\"{weight}>{:.digits$}</text>",
            end + 8.0,
            middle + 4.5,
            total(row)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stay_inside_and_names_are_escaped() {
        let row = |label: &str, value: f64| Row {
            label: label.to_owned(),
            ours: false,
            parts: vec![value],
            range: Some((value, value * 2.0)),
        };
        let panel = Panel { title: "a < b", digits: 1, rows: vec![row("x & y", 1.0), row("z", 50.0)] };
        let svg = draw("t", &[panel]);
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y"));
        let widths = svg.lines().filter_map(|line| line.strip_prefix("<rect x=")?.split("width=\"").nth(1));
        for width in widths {
            let width: f64 = width.split('"').next().unwrap().parse().unwrap();
            assert!(LEFT + width <= WIDTH - RIGHT, "{width}");
        }
    }
}
