//! The gateway's error log, for a plugin that sends it on.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::sink::{Record, Sink};

/// How severe a line is; the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warn,
    Info,
    Debug,
}

/// The lines of the error log, as they are written. One plugin instance may listen, the last one that began to.
#[derive(Default)]
pub struct ErrorLog(ArcSwapOption<Listener>);

struct Listener {
    /// The least severe line that is sent.
    least: Severity,
    sink: Sink,
    make: Box<MakeRecord>,
}

/// Makes the record of a line.
type MakeRecord = dyn Fn(&[u8]) -> Record + Send + Sync;

/// Ends with its drop.
pub struct Listening {
    log: Arc<ErrorLog>,
    listener: Arc<Listener>,
}

impl ErrorLog {
    /// Sends all lines that are at least so severe to this sink, as long as the result lives.
    pub fn listen(
        self: &Arc<ErrorLog>,
        least: Severity,
        sink: Sink,
        make: impl Fn(&[u8]) -> Record + Send + Sync + 'static,
    ) -> Listening {
        let listener = Arc::new(Listener { least, sink, make: Box::new(make) });
        self.0.store(Some(listener.clone()));
        Listening { log: self.clone(), listener }
    }

    /// Whether a line of this severity is sent.
    pub fn wants(&self, severity: Severity) -> bool {
        self.0.load().as_ref().is_some_and(|listener| severity <= listener.least)
    }

    /// Sends a line, without its end. It never waits, and logs nothing itself.
    pub fn add(&self, severity: Severity, line: &[u8]) {
        if let Some(listener) = self.0.load().as_ref().filter(|listener| severity <= listener.least) {
            listener.sink.push_own((listener.make)(line));
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Another instance may have taken its place.
        let is_current = self.log.0.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, &self.listener));
        if is_current {
            self.log.0.store(None);
        }
    }
}

impl fmt::Debug for ErrorLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorLog").field("listens", &self.0.load().is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::sink::{Batching, Destination, Next, Sinks, Spec};

    #[test]
    fn the_last_listener_gets_lines_that_are_severe_enough() {
        let (start, started) = channel();
        let sinks = Sinks::new(1 << 20, move |intake| start.send(intake).unwrap());
        let spec = |path: &str| Spec {
            plugin: "test",
            owner: None,
            target: Destination::file(path),
            batching: Batching::at_once("test"),
            max_entries: 10,
            max_bytes: 1 << 10,
        };
        let log = Arc::new(ErrorLog::default());
        log.add(Severity::Error, b"before");
        let make = |line: &[u8]| Record::from([line, b"!"].concat());
        let first = log.listen(Severity::Error, sinks.open(spec("a"), Arc::default()), make);
        let second = log.listen(Severity::Warn, sinks.open(spec("b"), Arc::default()), make);
        drop(first);
        assert!(log.wants(Severity::Warn) && !log.wants(Severity::Info));
        for (severity, line) in [(Severity::Error, "one"), (Severity::Warn, "two"), (Severity::Info, "three")]
        {
            log.add(severity, line.as_bytes());
        }
        let intake = started.try_recv().unwrap();
        assert!(intake.spec().target == Destination::file("b"));
        let lines: Vec<_> = std::iter::from_fn(|| match intake.take()? {
            Next::Entries(taken) => Some(taken.bytes().to_vec()),
            other => panic!("{other:?}"),
        })
        .collect();
        assert_eq!(lines, [b"one!", b"two!"]);
        drop(second);
        assert!(!log.wants(Severity::Error));
    }
}
