//! Lines of the error log for the plugin that sends them on. Lines about its own deliveries are not among them: each
//! would cause another one.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use sdk::error_log::{ErrorLog, Severity};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The plugin whose deliveries are not logged to itself.
pub const PLUGIN: &str = "error-log-logger";

static LOG: LazyLock<Arc<ErrorLog>> = LazyLock::new(Arc::default);

thread_local! {
    /// Set while a delivery of the plugin runs on this thread.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The error log of this process.
pub fn log() -> Arc<ErrorLog> {
    LOG.clone()
}

/// Writes lines to the error log's listener.
pub struct Lines;

/// A line about to be written.
pub struct Line(Option<Severity>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(None)
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        // A connection of a delivery may be driven by a task of its own.
        let is_own = IS_QUIET.get() || meta.target().starts_with("hyper");
        Line(severity(*meta.level()).filter(|severity| !is_own && LOG.wants(*severity)))
    }
}

fn severity(level: Level) -> Option<Severity> {
    Some(match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        _ => return None,
    })
}

impl io::Write for Line {
    /// Takes a whole line, as the subscriber writes it at once.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(severity) = self.0 {
            LOG.add(severity, &without_colours(bytes.strip_suffix(b"\n").unwrap_or(bytes)));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text without the codes for a terminal.
fn without_colours(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.iter().position(|byte| *byte == 0x1b) {
        out.extend_from_slice(&rest[..at]);
        let end = rest[at..].iter().position(|byte| *byte == b'm').map_or(rest.len(), |end| at + end + 1);
        rest = &rest[end..];
    }
    out.extend_from_slice(rest);
    out
}

/// A delivery of the plugin: what it logs is not sent.
pub struct Quiet<F>(pub Pin<Box<F>>);

impl<F: Future> Future for Quiet<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = IS_QUIET.replace(true);
        let polled = self.0.as_mut().poll(cx);
        IS_QUIET.set(before);
        polled
    }
}

/// Whether a delivery of the plugin runs on this thread; the tasks that it starts belong to it.
pub fn is_quiet() -> bool {
    IS_QUIET.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_for_a_terminal_are_left_out() {
        for (line, expected) in [
            ("plain", "plain"),
            ("\x1b[33m WARN\x1b[0m a \x1b[2mb\x1b[0m", " WARN a b"),
            ("cut \x1b[33", "cut "),
        ] {
            assert_eq!(without_colours(line.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn a_delivery_is_quiet_only_while_it_is_polled() {
        let mut quiet = Box::pin(Quiet(Box::pin(async { is_quiet() })));
        assert_eq!(
            quiet.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())),
            Poll::Ready(true)
        );
        assert!(!is_quiet());
    }
}
