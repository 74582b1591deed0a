//! `sluice top` in a terminal: tables of routes, nodes, streams and workers, each with the page of one of them.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use serde_json::Value;

use super::{Source, ms, number, text};

/// Seconds of the small charts.
const POINTS: usize = 60;

/// Time between two looks at the keyboard and the stream.
const TURN: Duration = Duration::from_millis(100);

/// Time until a stream that failed is opened again.
const AGAIN: Duration = Duration::from_secs(1);

/// The lists, in the order of their tabs: title, and name in the event.
const LISTS: [(&str, &str); 4] =
    [("Routes", "routes"), ("Nodes", "nodes"), ("Streams", "streams"), ("Workers", "workers")];

/// The columns of numbers: title, and name in a row.
const COLUMNS: [(&str, &str); 5] =
    [("RATE", "rate"), ("ERRORS", "error_rate"), ("P50", "p50"), ("P90", "p90"), ("P99", "p99")];

const KEYS: &str =
    " q quit  Tab list  \u{2191}\u{2193} choose  Enter open  Esc back  s sort  r reverse  p pause  ? help ";

const HELP: &str = "\
Tab, Left, Right   the next list, the one before
Up, Down, k, j     choose a line; Home and End the first and last
Enter              open the line: its last minute and its numbers
Esc, Backspace     back to the list
s                  sort by the next column; S by the one before
r                  reverse the order
p                  pause; the numbers stay
q, Ctrl-C          quit
?                  this help";

/// Runs until the user quits.
///
/// # Errors
/// The gateway refuses the stream at first, or the terminal fails.
pub fn run(source: Source) -> anyhow::Result<()> {
    let (send, events) = channel();
    let address = source.address().to_owned();
    std::thread::spawn(move || {
        loop {
            let read = source.events("live", |_, event| Ok(send.send(Ok(event.clone())).is_ok()));
            // The receiver is gone once the user has quit.
            let failed = match read {
                Ok(()) => return,
                Err(error) => format!("{error:#}"),
            };
            if send.send(Err(failed)).is_err() {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    });
    let first = events.recv()?.map_err(|failed| anyhow::anyhow!(failed))?;
    let mut app = App::new(address);
    app.take(first);
    let mut terminal = ratatui::try_init()?;
    let ended = serve(&mut terminal, &mut app, &events);
    ratatui::try_restore()?;
    ended
}

fn serve(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    events: &Receiver<Result<Value, String>>,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| app.draw(frame))?;
        let until = Instant::now() + TURN;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && !app.press(key)
            {
                return Ok(());
            }
        }
        loop {
            match events.try_recv() {
                Ok(Ok(event)) => app.take(event),
                Ok(Err(failed)) => app.failed = Some(super::clean(&failed)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the stream has ended"),
            }
        }
    }
}

/// The rates of a line in the last minute, and when it was seen last.
#[derive(Debug, Default)]
struct Past {
    rates: VecDeque<u64>,
    tails: VecDeque<u64>,
    seen: u64,
}

/// The state of the screen.
#[derive(Debug)]
struct App {
    address: String,
    event: Value,
    /// The gateway's own past, and that of lines, by list and id.
    whole: Past,
    past: HashMap<(usize, String), Past>,
    ticks: u64,
    list: usize,
    sort: usize,
    rises: bool,
    chosen: TableState,
    /// The id of the line that is open.
    open: Option<String>,
    pauses: bool,
    helps: bool,
    failed: Option<String>,
}

impl App {
    fn new(address: String) -> App {
        App {
            address,
            event: Value::Null,
            whole: Past::default(),
            past: HashMap::new(),
            ticks: 0,
            list: 0,
            sort: 0,
            rises: false,
            chosen: TableState::default().with_selected(0),
            open: None,
            pauses: false,
            helps: false,
            failed: None,
        }
    }

    /// Takes an event of the stream.
    fn take(&mut self, event: Value) {
        self.failed = None;
        if self.pauses {
            return;
        }
        self.ticks += 1;
        let now = self.ticks;
        self.whole.push(number(&event["gateway"]["requests"]), number(&event["gateway"]["p99"]), now);
        for (list, (_, name)) in LISTS.iter().enumerate() {
            for row in rows(&event, name) {
                let past = self.past.entry((list, row.id)).or_default();
                past.push(row.numbers[0].unwrap_or_default(), row.numbers[4].unwrap_or_default(), now);
            }
        }
        // Lines that have not been among the busiest for a minute are forgotten.
        self.past.retain(|_, past| {
            if past.seen < now {
                past.push(0.0, 0.0, past.seen);
            }
            now - past.seen < POINTS as u64
        });
        self.event = event;
    }

    /// Takes a key; false if the user quits.
    fn press(&mut self, key: KeyEvent) -> bool {
        if std::mem::take(&mut self.helps) {
            return true;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc | KeyCode::Backspace => self.open = None,
            KeyCode::Char('?' | 'h') => self.helps = true,
            KeyCode::Char('p') => self.pauses = !self.pauses,
            KeyCode::Char('s') => self.sort = (self.sort + 1) % COLUMNS.len(),
            KeyCode::Char('S') => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            KeyCode::Char('r') => self.rises = !self.rises,
            KeyCode::Tab | KeyCode::Right => self.show((self.list + 1) % LISTS.len()),
            KeyCode::BackTab | KeyCode::Left => self.show((self.list + LISTS.len() - 1) % LISTS.len()),
            KeyCode::Down | KeyCode::Char('j') => self.chosen.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.chosen.select_previous(),
            KeyCode::Home => self.chosen.select_first(),
            KeyCode::End => self.chosen.select_last(),
            KeyCode::Enter => {
                let at = self.chosen.selected().unwrap_or_default();
                self.open = self.sorted().into_iter().nth(at).map(|row| row.id);
            }
            _ => {}
        }
        true
    }

    fn show(&mut self, list: usize) {
        (self.list, self.open) = (list, None);
        self.chosen.select(Some(0));
    }

    /// The lines of the list, sorted.
    fn sorted(&self) -> Vec<Entry> {
        let mut all = rows(&self.event, LISTS[self.list].1);
        let by = |row: &Entry| row.numbers[self.sort].unwrap_or(-1.0);
        all.sort_by(|one, other| by(other).total_cmp(&by(one)).then_with(|| one.id.cmp(&other.id)));
        if self.rises {
            all.reverse();
        }
        all
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, tabs, body, foot] = Layout::vertical([
            Constraint::Length(5),
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_tabs(frame, tabs);
        match self.open.clone() {
            Some(id) => self.draw_open(frame, body, &id),
            None => self.draw_list(frame, body),
        }
        let foot_text = match &self.failed {
            Some(failed) => {
                Line::styled(format!(" waiting for the gateway: {failed}"), Style::new().fg(Color::Red))
            }
            None if self.pauses => Line::styled(" paused; p continues", Style::new().fg(Color::Yellow)),
            None => Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM)),
        };
        frame.render_widget(foot_text, foot);
        if self.helps {
            let area = middle(frame.area(), 76, 12);
            frame.render_widget(Clear, area);
            frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" Keys ")), area);
        }
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let [facts, chart] =
            Layout::horizontal([Constraint::Min(60), Constraint::Percentage(40)]).areas(area);
        let (gateway, connections) = (&self.event["gateway"], &self.event["connections"]);
        let errors = number(&gateway["errors"]);
        let workers = self.event["workers"].as_array().into_iter().flatten().enumerate();
        let cpu: Vec<String> =
            workers.map(|(at, worker)| format!("{at}: {:.0} %", 100.0 * number(&worker["cpu"]))).collect();
        let lines = vec![
            Line::from(format!("sluice top  {}", self.address)).style(Modifier::BOLD),
            Line::from(vec![
                Span::raw(format!("requests {:>8.0}/s   ", number(&gateway["requests"]))),
                Span::styled(format!("errors {errors:>6.0}/s"), alarm(errors > 0.0)),
            ]),
            Line::from(format!(
                "p50 {:>8}   p90 {:>8}   p99 {:>8}",
                ms(&gateway["p50"]),
                ms(&gateway["p90"]),
                ms(&gateway["p99"])
            )),
            Line::from(format!(
                "connections {} open, {} idle   in flight {}   memory {:.0} MiB",
                number(&connections["open"]),
                number(&connections["idle"]),
                number(&self.event["requests_in_flight"]),
                number(&self.event["memory"]) / 1_048_576.0
            )),
            Line::from(format!("workers {}", cpu.join("   "))),
        ];
        frame.render_widget(Paragraph::new(lines), facts);
        let block = Block::bordered().title(" requests, last minute ");
        let data: Vec<u64> = self.whole.rates.iter().copied().collect();
        frame.render_widget(Sparkline::default().block(block).data(data).style(Color::Cyan), chart);
    }

    fn draw_tabs(&self, frame: &mut Frame<'_>, area: Rect) {
        let tabs = LISTS.iter().enumerate().flat_map(|(at, (title, name))| {
            let count = rows(&self.event, name).len();
            let style = match at == self.list {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            [Span::styled(format!(" {title} {count} "), style), Span::raw(" ")]
        });
        frame.render_widget(Line::from_iter(tabs), area);
    }

    fn draw_list(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let sorted = self.sorted();
        let arrow = if self.rises { "\u{2191}" } else { "\u{2193}" };
        let titles = COLUMNS.iter().enumerate().map(|(at, (title, _))| {
            let mark = if at == self.sort { arrow } else { "" };
            Cell::from(Line::from(format!("{title}{mark}")).right_aligned())
        });
        let singular = LISTS[self.list].0.trim_end_matches('s').to_uppercase();
        let header =
            Row::new([Cell::from(singular)].into_iter().chain(titles).chain([Cell::from("LAST MINUTE")]))
                .style(Modifier::BOLD);
        let lines = sorted.iter().map(|row| {
            let past = self.past.get(&(self.list, row.id.clone()));
            let numbers = row.shown().into_iter().enumerate().map(|(at, text)| {
                let style = alarm(at == 1 && row.numbers[1].unwrap_or_default() > 0.0);
                Cell::from(Line::from(text).right_aligned()).style(style)
            });
            let bars = past.map(|past| bars(&past.rates, 24)).unwrap_or_default();
            let name = Cell::from(row.name().to_owned());
            Row::new([name].into_iter().chain(numbers).chain([Cell::from(bars).style(Color::Cyan)]))
        });
        let widths = [Constraint::Min(20)]
            .into_iter()
            .chain(COLUMNS.iter().map(|_| Constraint::Length(10)))
            .chain([Constraint::Length(24)]);
        if sorted.is_empty() {
            frame.render_widget(Paragraph::new("\n  nothing in the last seconds"), area);
            return;
        }
        let table = Table::new(lines, widths)
            .header(header)
            .row_highlight_style(Modifier::REVERSED)
            .column_spacing(1);
        frame.render_stateful_widget(table, area, &mut self.chosen);
    }

    /// The page of one line.
    fn draw_open(&self, frame: &mut Frame<'_>, area: Rect, id: &str) {
        let none = Past::default();
        let past = self.past.get(&(self.list, id.to_owned())).unwrap_or(&none);
        let row = rows(&self.event, LISTS[self.list].1).into_iter().find(|row| row.id == id);
        let title = row.as_ref().map_or(id, Entry::name);
        let block =
            Block::bordered().title(format!(" {} {title} ", LISTS[self.list].0.trim_end_matches('s')));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let [facts, rates, tails] =
            Layout::vertical([Constraint::Length(4), Constraint::Fill(1), Constraint::Fill(1)]).areas(inner);
        let lines = match &row {
            None => vec![Line::from("nothing in the last seconds")],
            Some(row) => {
                let shown = row.shown();
                let pairs = COLUMNS.iter().zip(&shown).map(|((title, _), text)| format!("{title} {text}"));
                let classes: Vec<String> = ["other", "2xx", "3xx", "4xx", "5xx"]
                    .iter()
                    .enumerate()
                    .map(|(at, class)| format!("{class} {}", number(&row.event["classes"][at])))
                    .collect();
                vec![
                    Line::from(pairs.collect::<Vec<_>>().join("   ")),
                    Line::from(format!("last second: {}", classes.join("   "))),
                    Line::from(format!(
                        "bytes in {}   out {}",
                        number(&row.event["received"]),
                        number(&row.event["sent"])
                    )),
                ]
            }
        };
        frame.render_widget(Paragraph::new(lines), facts);
        for (area, title, unit, data, color) in [
            (rates, "rate", 10, &past.rates, Color::Cyan),
            (tails, "p99 in ms", 1000, &past.tails, Color::Yellow),
        ] {
            let data: Vec<u64> = data.iter().copied().collect();
            let most = data.iter().max().copied().unwrap_or_default() / unit;
            let block = Block::bordered().title(format!(" {title}, last minute (at most {most}) "));
            frame.render_widget(Sparkline::default().block(block).data(data).style(color), area);
        }
    }
}

impl Past {
    /// Adds a second: tenths of requests, and microseconds.
    fn push(&mut self, rate: f64, tail_ms: f64, seen: u64) {
        for (list, number) in [(&mut self.rates, rate * 10.0), (&mut self.tails, tail_ms * 1000.0)] {
            if list.len() == POINTS {
                list.pop_front();
            }
            list.push_back(number as u64);
        }
        self.seen = seen;
    }
}

/// A line of a list.
#[derive(Debug)]
struct Entry {
    id: String,
    /// By column; absent without a measurement.
    numbers: [Option<f64>; 5],
    event: Value,
}

impl Entry {
    fn name(&self) -> &str {
        if self.id.is_empty() { "(none)" } else { &self.id }
    }

    fn shown(&self) -> [String; 5] {
        std::array::from_fn(|at| match self.numbers[at] {
            Some(number) if at < 2 => format!("{number:.1}"),
            Some(number) => format!("{number:.1}ms"),
            None => "-".to_owned(),
        })
    }
}

/// The lines of a list in an event. Workers have no names or averages of their own.
fn rows(event: &Value, name: &str) -> Vec<Entry> {
    let all = event[name].as_array().into_iter().flatten().enumerate();
    all.map(|(at, row)| {
        let field = |name: &str| match (name, row.get(name)) {
            (_, Some(found)) => found.as_f64(),
            ("rate", None) => row["requests"].as_f64(),
            ("error_rate", None) => row["errors"].as_f64(),
            _ => None,
        };
        let id = row.get("id").map_or_else(|| at.to_string(), text);
        Entry { id, numbers: COLUMNS.map(|(_, name)| field(name)), event: row.clone() }
    })
    .collect()
}

/// The last numbers as small bars.
fn bars(numbers: &VecDeque<u64>, width: usize) -> String {
    const BARS: [char; 8] =
        ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
    let shown = numbers.iter().skip(numbers.len().saturating_sub(width));
    let most = shown.clone().max().copied().unwrap_or_default().max(1);
    shown.map(|number| if *number == 0 { ' ' } else { BARS[(number * 7 / most) as usize] }).collect()
}

fn alarm(is_bad: bool) -> Style {
    if is_bad { Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new() }
}

/// A box of this size in the middle.
fn middle(of: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(of.width), height.min(of.height));
    Rect::new(of.x + (of.width - width) / 2, of.y + (of.height - height) / 2, width, height)
}

#[cfg(test)]
mod tests;
