//! hot path
//!
//! Streams whose protocol is inspected: calls are followed as they pass, held back where a fault is to be
//! injected, and logged and counted when they have ended.
//!
//! Bytes go on as they come, regardless of their lengths. The memory of a stream is bounded: it holds a few bytes
//! for each of at most [`MOST_CALLS`] calls that are under way; further calls pass unlogged.

mod dubbo;
mod redis;

use std::cell::RefCell;

use sdk::Exchange;
use sdk::stream::Call;
use snapshot::streams::{Protocol, Spoken};

use super::first::First;
use super::tcp::{self, Carried, Way};
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::phases::guarded;
use crate::relay::{Side, Stop};
use crate::rt::Io;
use crate::worker::Worker;

/// The most calls of a stream that are under way and will be logged.
const MOST_CALLS: usize = 1024;

/// Bytes both ways, looked at. The fault is what ended it, if a side does not speak the protocol.
pub(super) async fn run(
    way: Way<'_>,
    io: &mut Io,
    up: &mut Io,
    first: First<'_>,
    x: &mut Exchange<'_>,
    protocol: &Protocol,
) -> (Carried, Option<Fault>) {
    let log = CallLog { worker: way.worker, x, protocol, fault: None };
    match &protocol.spoken {
        Spoken::Redis(faults) => {
            let calls = RefCell::new(redis::Calls::new(log));
            let carried = tcp::run(way, io, up, first, redis::taps(&calls, faults)).await;
            (carried, calls.into_inner().close())
        }
        Spoken::Dubbo => {
            let calls = RefCell::new(dubbo::Calls::new(log));
            let carried = tcp::run(way, io, up, first, dubbo::taps(&calls)).await;
            (carried, calls.into_inner().close())
        }
    }
}

/// Logs and counts calls that have ended.
struct CallLog<'c, 's> {
    worker: &'c Worker,
    x: &'c mut Exchange<'s>,
    protocol: &'c Protocol,
    /// Why the stream is over.
    fault: Option<Fault>,
}

impl CallLog<'_, '_> {
    /// Whether calls are logged or counted.
    fn is_needed(&self) -> bool {
        self.has_loggers() || self.protocol.counts
    }

    fn has_loggers(&self) -> bool {
        !self.protocol.loggers.is_empty()
    }

    /// Notes that a side does not speak the protocol.
    #[cold]
    fn refuse(&mut self, side: Side, why: &'static str) -> Stop {
        self.fault = Some(match side {
            Side::Client => Fault::client(FaultKind::BadProtocol(why)),
            Side::Upstream => Fault::upstream(FaultKind::BadServerProtocol(why)),
        });
        Stop
    }

    /// Logs a call that has ended. `line` writes the command, where the protocol has some.
    fn log(&mut self, took_us: u64, line: Option<impl FnOnce(&mut Vec<u8>)>) {
        if !self.has_loggers() {
            return;
        }
        let Some(stream) = &mut self.x.engine_mut().stream else { return };
        // The memory of the last call serves for this one.
        let call = stream.call.get_or_insert_default();
        call.took_us = took_us;
        match line {
            Some(write) => {
                let text = call.redis_line.get_or_insert_default();
                text.clear();
                write(text);
            }
            None => call.redis_line = None,
        }
        let CallLog { worker, x, protocol, .. } = self;
        for logger in &protocol.loggers {
            if logger.filter.as_ref().is_none_or(|filter| filter.matches(x)) {
                // A logger that fails costs its entry, and is counted.
                let _ = guarded(worker, || logger.chain.log(x));
            }
        }
    }

    /// Removes the last call, so that the stream's own loggers do not see it.
    fn close(self) -> Option<Fault> {
        if let Some(stream) = &mut self.x.engine_mut().stream {
            stream.call = None::<Call>;
        }
        self.fault
    }
}
