use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::*;

fn event(rates: &[(&str, f64)]) -> Value {
    let rows = rates.iter().map(|(id, rate)| {
        json!({"id": id, "rate": rate, "error_rate": if *id == "bad" { 2.0 } else { 0.0 }, "p50": 1.0, "p90": 2.0,
               "p99": null, "classes": [0, 3, 0, 0, 1], "received": 10, "sent": 20})
    });
    json!({
        "gateway": {"requests": 13, "errors": 1, "p50": 1.0, "p90": 2.0, "p99": 3.0},
        "workers": [{"cpu": 0.25, "requests": 13, "errors": 1}],
        "connections": {"open": 3, "idle": 1},
        "routes": rows.collect::<Vec<_>>(),
        "nodes": [{"id": "10.0.0.1:80", "rate": 1.0, "error_rate": 0.0}],
    })
}

fn screen(app: &mut App) -> String {
    let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
    terminal.draw(|frame| app.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..120).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..30).map(line).collect::<Vec<_>>().join("\n")
}

fn press(app: &mut App, code: KeyCode) -> bool {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

/// The ids of the lines, from the top.
fn ids(app: &mut App) -> Vec<String> {
    app.sorted().into_iter().map(|row| row.id).collect()
}

#[test]
fn lists_are_sorted_by_any_column_both_ways() {
    let mut app = App::new("127.0.0.1:9090".to_owned());
    app.take(event(&[("a", 1.0), ("bad", 5.0), ("c", 9.0)]));
    let shown = screen(&mut app);
    for part in
        ["requests       13/s", "errors      1/s", "Routes 3", "RATE\u{2193}", "9.0", "workers 0: 25 %"]
    {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert_eq!(ids(&mut app), ["c", "bad", "a"]);
    press(&mut app, KeyCode::Char('s'));
    assert_eq!(ids(&mut app), ["bad", "a", "c"]);
    press(&mut app, KeyCode::Char('r'));
    assert_eq!(ids(&mut app), ["c", "a", "bad"]);
    assert!(screen(&mut app).contains("ERRORS\u{2191}"));
}

#[test]
fn a_line_is_opened_and_left() {
    let mut app = App::new("a".to_owned());
    for second in 1..=5 {
        app.take(event(&[("a", f64::from(second)), ("bad", 9.0)]));
    }
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    let shown = screen(&mut app);
    assert!(
        shown.contains("Route a") && shown.contains("2xx 3") && shown.contains("rate, last minute"),
        "{shown}"
    );
    assert!(shown.contains("(at most 5)"), "{shown}");
    press(&mut app, KeyCode::Esc);
    assert!(screen(&mut app).contains("LAST MINUTE"));
    press(&mut app, KeyCode::Tab);
    assert!(screen(&mut app).contains("10.0.0.1:80"));
    press(&mut app, KeyCode::BackTab);
    press(&mut app, KeyCode::BackTab);
    assert!(screen(&mut app).contains("WORKER"));
    assert!(!press(&mut app, KeyCode::Char('q')));
}

#[test]
fn a_pause_keeps_the_numbers_and_a_failure_is_shown() {
    let mut app = App::new("a".to_owned());
    app.take(event(&[("a", 1.0)]));
    press(&mut app, KeyCode::Char('p'));
    app.take(event(&[("a", 1.0), ("b", 2.0)]));
    assert!(screen(&mut app).contains("paused"));
    assert_eq!(ids(&mut app), ["a"]);
    app.failed = Some("connection refused".to_owned());
    assert!(screen(&mut app).contains("waiting for the gateway: connection refused"));
    press(&mut app, KeyCode::Char('?'));
    assert!(screen(&mut app).contains("reverse the order"));
}

#[test]
fn the_past_is_bounded_and_hostile_names_are_text() {
    let mut app = App::new("a".to_owned());
    for second in 0..200 {
        let name = format!("\u{1b}[2J\u{202e}{second}");
        app.take(event(&[(&name, 1.0)]));
    }
    assert!(app.past.len() <= POINTS + 2, "{}", app.past.len());
    assert!(app.past.values().all(|past| past.rates.len() <= POINTS));
    let shown = screen(&mut app);
    assert!(shown.contains("?[2J?199"), "{shown}");
    for size in [(1, 1), (20, 5), (300, 80)] {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal.draw(|frame| app.draw(frame)).unwrap();
    }
}
