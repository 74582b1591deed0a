//! A plugin that records a line for each request, and collectors for faults and access logs.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use model::Invalid;
use proxy::{AccessLog, FaultRecord, Settings};
use sdk::build::Build;
use sdk::chain::{Fitting, Stage};
use sdk::log_format::{Escape, LogFormat};
use sdk::sink::{self, Batching, Bounds, Destination, Intake, Next, Spec};
use sdk::stream::Stream;
use sdk::vars::Var;
use sdk::{Exchange, Factory, Instance, Phases};
use serde_json::{Value, json};

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    /// The server of the last stream.
    static LAST: Cell<Option<SocketAddr>> = const { Cell::new(None) };
}

struct Line {
    text: String,
    received: u64,
    sent: u64,
}

/// Records a line when a request, a stream or a call in it has ended.
///
/// - Request: method, status, bytes of the response body, statuses of the servers, and the time of the request and
///   of its upstream in tenths of seconds.
/// - Request with the query `server`: status, and the server's name.
/// - Stream: status, bytes to and from the server, statuses of the servers, and ` again` if it went to the same
///   server as the stream before it.
/// - Call in a stream: tenths of seconds, and the command.
pub struct Recorder;

impl Factory for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
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
        Ok(fitting.stage(Recorder))
    }
}

impl Instance for Recorder {
    fn phases(&self) -> Phases {
        Factory::phases(self)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let timing = x.timing();
        let method = x.method().as_str();
        let mut statuses = Vec::new();
        x.upstream_statuses(&mut statuses);
        let statuses = String::from_utf8_lossy(&statuses);
        let text = match x.stream() {
            Some(stream) => of_stream(stream, x, &statuses),
            None if x.query() == b"server" => {
                let mut name = Vec::new();
                Var::parse("upstream_unresolved_host").write(x, &mut name);
                format!("{} by {}", x.status(), String::from_utf8_lossy(&name))
            }
            None => format!(
                "{method} {} body {} from [{statuses}] in {}, {}",
                x.status(),
                timing.body_sent,
                timing.total_us / 100_000,
                timing.upstream_us / 100_000,
            ),
        };
        let line = Line { text, received: timing.received, sent: timing.sent };
        LINES.with_borrow_mut(|lines| lines.push(line));
    }
}

fn of_stream(stream: &Stream, x: &Exchange<'_>, statuses: &str) -> String {
    if let Some(call) = &stream.call {
        let line = call.redis_line.as_ref().map(|line| String::from_utf8_lossy(line));
        return format!("call in {}: {}", call.took_us / 100_000, line.unwrap_or_default());
    }
    let before = LAST.replace(x.upstream_addr());
    let again = if before.is_some() && before == x.upstream_addr() { " again" } else { "" };
    let (up, down) = (stream.upstream_sent, stream.upstream_received);
    let nowhere = if stream.listener.is_some() { "" } else { " without a listener" };
    format!("stream {} up {up} down {down}{nowhere} from [{statuses}]{again}", x.status())
}

/// Returns a change of the settings that reports faults to the returned receiver.
pub fn faults() -> (impl FnOnce(&mut Settings), Receiver<FaultRecord>) {
    let (sender, faults) = channel();
    (
        move |settings: &mut Settings| settings.on_fault = Arc::new(move |fault| sender.send(fault).unwrap()),
        faults,
    )
}

/// Adds an access log of this format and returns the intake of its lines.
pub fn access_log(format: &str, settings: &mut Settings) -> Intake {
    let (sink, intake) = sink::of_buffers(Spec {
        plugin: "access log",
        owner: None,
        target: Destination::file(""),
        batching: Batching::at_once("access log"),
        max_entries: usize::MAX,
        max_bytes: usize::MAX,
    });
    settings.access_log = Some(AccessLog {
        format: Arc::new(LogFormat::parse(format, Escape::Default).unwrap()),
        sink,
        bounds: Bounds { buffer: 4 << 10, waiting: 1 << 20 },
        flush: Duration::from_secs(1),
    });
    intake
}

/// Returns the lines of an access log of times, each cut to one decimal.
pub fn tenths(log: &Intake) -> Vec<String> {
    let mut text = Vec::new();
    while let Some(Next::Entries(batch)) = log.take() {
        text.extend_from_slice(batch.bytes());
    }
    let text = String::from_utf8(text).unwrap();
    let cut = |time: &str| time[..time.find('.').unwrap() + 2].to_owned();
    text.lines().map(|line| line.split(", ").map(cut).collect::<Vec<_>>().join(", ")).collect()
}

/// Takes the lines recorded since the last call, with the bytes from and to the client.
pub fn lines() -> Vec<String> {
    LAST.take();
    let text = |line: Line| {
        let text = line.text.trim_end_matches(" again");
        format!("{text}, {} and {}", line.received, line.sent)
    };
    LINES.take().into_iter().map(text).collect()
}

/// Checks the lines recorded since the last call, unless `wanted` is empty. If no request failed, their bytes must
/// add up to `received` and `sent`.
pub fn check(wanted: &[&str], received: usize, sent: usize, broken: bool, about: &str) {
    let lines = LINES.take();
    LAST.take();
    if wanted.is_empty() {
        return;
    }
    let texts: Vec<&str> = lines.iter().map(|line| &line.text[..]).collect();
    assert_eq!(texts, wanted, "{about}");
    let is_whole = |text: &&str| {
        !text.contains(" 499 ") && (!text.starts_with("stream ") || text.starts_with("stream 200"))
    };
    if !broken && texts.iter().all(is_whole) {
        let sums = lines.iter().fold((0, 0), |sum, line| (sum.0 + line.received, sum.1 + line.sent));
        assert_eq!(sums, (received as u64, sent as u64), "{about}: bytes received and sent");
    }
}
