//! hot path
//!
//! The worker's part of the access log: a line at the end of every request, formatted here and
//! written elsewhere.

use std::cell::RefCell;
use std::sync::Arc;

use sdk::Exchange;
use sdk::log_format::LogFormat;
use sdk::sink::Outlet;
use sdk::vars::Stamp;

use crate::settings;

pub(crate) struct AccessLog {
    format: Arc<LogFormat>,
    outlet: RefCell<Outlet>,
    stamp: RefCell<Stamp>,
    /// Its lines tell which server was chosen, by the name its operator gave it.
    pub(crate) names_server: bool,
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

    /// Hands over what was gathered.
    pub(crate) fn flush(&self) {
        self.outlet.borrow_mut().flush();
    }
}
