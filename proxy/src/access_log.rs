//! hot path
//!
//! The worker's part of the access log: a line at the end of every request, formatted here and
//! written elsewhere.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sdk::engine::Messages;
use sdk::log_format::LogFormat;
use sdk::sink::Outlet;
use sdk::vars::Stamp;
use sdk::{Client, Exchange};

use crate::settings;
use crate::worker::Worker;

pub(crate) struct AccessLog {
    format: Arc<LogFormat>,
    outlet: RefCell<Outlet>,
    stamp: RefCell<Stamp>,
    /// Its lines tell which server was chosen, by the name its operator gave it.
    pub(crate) names_server: bool,
}

/// A refused request, which has no valid head.
pub(crate) struct Refused<'a> {
    /// The bytes in the place of its first line.
    pub(crate) line: &'a [u8],
    pub(crate) status: u16,
    /// Why it was refused.
    pub(crate) reason: &'static str,
    /// Bytes received and sent, and how many of those were a body.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) body_sent: u64,
    /// Milliseconds since its first byte.
    pub(crate) took_ms: u64,
}

impl AccessLog {
    pub(crate) fn new(settings: &settings::AccessLog) -> AccessLog {
        AccessLog {
            format: settings.format.clone(),
            outlet: RefCell::new(settings.sink.outlet(settings.bounds)),
            stamp: RefCell::default(),
            names_server: settings.format.vars().any(sdk::vars::Var::names_server),
        }
    }

    /// Adds the line of an exchange that ended at this Unix time.
    #[inline]
    pub(crate) fn add(&self, x: &Exchange<'_>, unix_ms: u64) {
        let mut stamp = self.stamp.borrow_mut();
        stamp.set(unix_ms);
        stamp.set_server(x.upstream_addr());
        self.outlet.borrow_mut().line(|out| self.format.write(x, &stamp, out));
    }

    /// Adds the line of a refused request. `messages` holds none.
    #[cold]
    pub(crate) fn add_refused(
        &self,
        worker: &Rc<Worker>,
        client: &Client,
        messages: &mut Messages,
        refused: &Refused<'_>,
    ) {
        let lease = worker.lease();
        let mut x = Exchange::new(messages, client, &lease.consumers, &**worker);
        let engine = x.engine_mut();
        engine.refused = Some(refused.line);
        engine.messages.response.status = refused.status;
        engine.reason = refused.reason;
        engine.timing.received = refused.received;
        engine.timing.sent = refused.sent;
        engine.timing.body_sent = refused.body_sent;
        engine.timing.total_us = refused.took_ms * 1000;
        self.add(&x, worker.clock.unix_ms(worker.clock.micros()));
    }

    /// Hands over what was gathered.
    pub(crate) fn flush(&self) {
        self.outlet.borrow_mut().flush();
    }
}
