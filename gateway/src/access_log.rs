//! The access log's other half: the thread that writes what workers hand over.
//!
//! A slow file, a full disk or a FIFO without a reader holds up this thread alone. Workers drop and count the lines
//! that they cannot hand over meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use adapters::sinks::LogDestination;
use adapters::sinks::file::File;
use anyhow::Context;
use model::boot::{self, Boot, LogEscape, Role};
use model::{Invalid, Position, Severity};
use sdk::log_format::{Escape, LogFormat};
use sdk::sink::{self, Batching, Bounds, Destination, Sink, Spec};

use crate::sinks::thread;

/// How long an end waits for lines that are still to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Time between two looks at what was dropped.
const PAUSE: Duration = Duration::from_secs(10);

/// A running access log.
#[derive(Debug)]
pub struct AccessLog {
    place: LogDestination,
    format: Arc<LogFormat>,
    sink: Sink,
    bounds: Bounds,
    flush: Duration,
    /// Closed by the thread when it has written all.
    written: Receiver<()>,
}

impl AccessLog {
    /// Opens the log and starts its thread, if the log is enabled. If the default file cannot be written to, a
    /// warning is logged and the gateway serves without.
    ///
    /// # Errors
    /// A configured file that cannot be written to.
    pub fn start(boot: &Boot, data: &Path) -> anyhow::Result<Option<AccessLog>> {
        AccessLog::open(boot, boot.http.access_log.as_ref(), "nginx_config.http", data)
    }

    /// The same for streams.
    ///
    /// # Errors
    /// As there.
    pub fn start_for_streams(boot: &Boot, data: &Path) -> anyhow::Result<Option<AccessLog>> {
        let settings = boot.streams.access_log.as_ref().filter(|_| boot.proxy_mode.serves_streams());
        AccessLog::open(boot, settings, "nginx_config.stream", data)
    }

    fn open(
        boot: &Boot,
        settings: Option<&boot::AccessLog>,
        section: &str,
        data: &Path,
    ) -> anyhow::Result<Option<AccessLog>> {
        let Some(settings) = settings.filter(|_| boot.role != Role::ControlPlane) else {
            return Ok(None);
        };
        let place = LogDestination::new(&settings.path, data);
        // A FIFO is opened by the thread, which may wait for a reader.
        let opened = if place.is_fifo() { Ok(None) } else { place.open().map(Some) };
        let file = match opened {
            Ok(file) => file,
            Err(error) if settings.is_default => {
                tracing::warn!(
                    "no access log is written: {place}: {error}; set {section}.access_log to another file, or to `off`"
                );
                return Ok(None);
            }
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot open {place} ({section}.access_log in config.yaml)"));
            }
        };
        // It was compiled when the file was read.
        let format = LogFormat::parse(&settings.format, escape(settings.escape))
            .map_err(|invalid| anyhow::anyhow!("{section}.access_log_format: {}", invalid.reason))?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let bounds = Bounds { buffer: size(settings.buffer), waiting: size(settings.queue) };
        // Its bounds are those of the workers' buffers.
        let (sink, intake) = sink::of_buffers(Spec {
            plugin: "access log",
            owner: None,
            target: Destination::file(&settings.path),
            batching: Batching::at_once("access log"),
            max_entries: usize::MAX,
            max_bytes: usize::MAX,
        });
        let (done, written) = channel::<()>();
        let writer = File::new("the access log", place.clone(), file);
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || {
                thread::run(&intake, &writer);
                drop(done);
            })
            .context("cannot start the thread of the access log")?;
        Ok(Some(AccessLog { place, format: Arc::new(format), sink, bounds, flush: settings.flush, written }))
    }

    /// The part workers need.
    pub fn for_workers(&self) -> proxy::AccessLog {
        proxy::AccessLog {
            format: self.format.clone(),
            sink: self.sink.clone(),
            bounds: self.bounds,
            flush: self.flush,
        }
    }

    pub fn sink(&self) -> Sink {
        self.sink.clone()
    }

    pub fn place(&self) -> &LogDestination {
        &self.place
    }

    /// Writes what workers, which have ended, left behind. Blocks for a moment.
    pub fn finish(self) {
        self.sink.end();
        // An error means that the thread has ended.
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = self.written.recv_timeout(LAST_LINES) {
            tracing::warn!("{} did not accept the last lines of the access log; they are lost", self.place);
        }
    }
}

/// Logs the number of dropped lines, at most every 10 seconds.
pub async fn log_dropped(sink: Sink, place: LogDestination) {
    let mut before = 0;
    loop {
        tokio::time::sleep(PAUSE).await;
        let now = sink.dropped();
        if now > before {
            tracing::warn!(
                "{} access log lines were dropped because {place} could not be written in time",
                now - before
            );
        }
        before = now;
    }
}

/// Checks the formats of the logs: errors for invalid formats, and warnings for variables that have no value here,
/// with the variable in `got`.
pub fn check_formats(boot: &Boot) -> Vec<(Severity, Invalid)> {
    let logs =
        [("/nginx_config/http", &boot.http.access_log), ("/nginx_config/stream", &boot.streams.access_log)];
    let check = |(section, log): (&str, &Option<boot::AccessLog>)| {
        let pointer = format!("{section}/access_log_format");
        log.as_ref().map(|log| check_format(log, &pointer)).unwrap_or_default()
    };
    logs.into_iter().flat_map(check).collect()
}

fn check_format(settings: &boot::AccessLog, pointer: &str) -> Vec<(Severity, Invalid)> {
    let format = match LogFormat::parse(&settings.format, escape(settings.escape)) {
        Ok(format) => format,
        Err(invalid) => return vec![(Severity::Error, invalid.at(pointer))],
    };
    let absent = match settings.escape {
        LogEscape::Default => "`-`",
        LogEscape::Json | LogEscape::None => "nothing",
    };
    let unknown = format.vars().filter(|var| !var.is_known()).map(|var| {
        let name = var.name();
        let invalid =
            Invalid::new(format!("the variable `${name}` is not supported: {absent} is written instead"))
                .got(format!("${name}"));
        let invalid = match sdk::vars::nearest(name) {
            Some(near) => invalid.hint(format!("did you mean `${near}`?")),
            None => invalid,
        };
        (Severity::Warning, invalid.at(pointer))
    });
    unknown.collect()
}

/// Where a variable, written as `$name`, stands in the text whose value begins at a position; that position if it
/// is not written there, as where the environment brought it.
pub fn place_of(variable: &str, text: &str, begin: Position) -> Position {
    let name = variable.trim_start_matches('$');
    let braced = format!("${{{name}}}");
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = (begin.line as usize).max(1);
    for (line, written) in (first..).zip(text.lines().skip(first - 1)) {
        let before = if line == first { (begin.column as usize).saturating_sub(1) } else { 0 };
        let skipped = written.char_indices().nth(before).map_or(written.len(), |(at, _)| at);
        let plain = written[skipped..]
            .match_indices(variable)
            .find(|(at, _)| !written[skipped + at + variable.len()..].starts_with(is_of_name));
        let found = plain.map(|(at, _)| at).or_else(|| written[skipped..].find(&braced));
        if let Some(at) = found {
            let column = before + written[skipped..skipped + at].chars().count() + 1;
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            return Position { line: number(line), column: number(column) };
        }
    }
    begin
}

fn escape(written: LogEscape) -> Escape {
    match written {
        LogEscape::Default => Escape::Default,
        LogEscape::Json => Escape::Json,
        LogEscape::None => Escape::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formats_of_both_logs_are_looked_at() {
        let found = |stream: &str| {
            let text = format!(
                "nginx_config:\n  http: {{access_log_format: '$status $a_b'}}\n  stream: {{enable_access_log: true, \
                 access_log_format: '{stream}'}}\n"
            );
            let (boot, _) = Boot::parse("config.yaml", &text, &[], &|_| None).unwrap();
            check_formats(&boot)
                .into_iter()
                .map(|(severity, invalid)| (severity, invalid.pointer, invalid.got))
                .collect::<Vec<_>>()
        };
        let unknown = |section: &str, got: &str| {
            let pointer = format!("/nginx_config/{section}/access_log_format");
            (Severity::Warning, pointer, Some(Box::<str>::from(got)))
        };
        assert_eq!(found("$protocol $c_d"), [unknown("http", "$a_b"), unknown("stream", "$c_d")]);
        let wrong = &found("${c")[1];
        assert_eq!((wrong.0, &*wrong.1), (Severity::Error, "/nginx_config/stream/access_log_format"));
    }

    #[test]
    fn a_variable_is_found_where_it_is_written() {
        let at = |line, column| Position { line, column };
        for (text, begin, place) in [
            ("f: \"$a é $b $bc\"\n", at(1, 4), at(1, 10)),
            ("# $b\nf: \"$bc ${b}\"\n", at(2, 4), at(2, 9)),
            ("f: >\n  $a\n  x $b\n", at(1, 4), at(3, 5)),
            ("$b: \"${{FORMAT}}\"\n", at(1, 5), at(1, 5)),
            ("", at(0, 0), at(0, 0)),
        ] {
            assert_eq!(place_of("$b", text, begin), place, "{text}");
        }
    }
}
