//! Notices for operators. A worker counts events as they happen, and reports them once a second.

use std::cell::Cell;

/// Something worth a line in the log; sums since the last one of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// `worker_connections` were in use, so idle ones of clients were closed for new ones.
    ConnectionsFull { closed: u64, limit: usize },
    /// The process or the machine has no descriptor left: how often that was in the way, and what
    /// idle connections were closed.
    OutOfDescriptors { times: u64, upstreams: u64, clients: u64 },
    /// Requests of plugins (mirrors) that were not sent, as too many wait for the same server.
    FetchesDropped { target: String, dropped: u64, limit: usize },
    /// Connections that were closed for want of a PROXY protocol header that may be believed; why the last
    /// one was.
    ProxyHeadersRefused { times: u64, why: &'static str },
    /// Datagrams that were dropped: there were too many sessions, or their server does not keep up.
    DatagramsDropped { times: u64 },
    /// One of the worker's own tasks panicked and goes on.
    Panicked { task: &'static str, times: u64 },
}

/// A worker's counts.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    pub(crate) closed_for_room: Cell<u64>,
    pub(crate) shortages: Cell<u64>,
    pub(crate) upstreams_closed: Cell<u64>,
    pub(crate) clients_closed: Cell<u64>,
    pub(crate) datagrams: Cell<u64>,
    proxy_headers: Cell<(u64, &'static str)>,
    panics: Cell<[u64; OWN_TASKS.len()]>,
}

/// The worker's own tasks.
pub(crate) const OWN_TASKS: [&str; 3] = ["accept", "tick", "follow"];

impl Notices {
    pub(crate) fn panicked(&self, task: usize) {
        let mut panics = self.panics.get();
        panics[task] += 1;
        self.panics.set(panics);
    }

    #[cold]
    pub(crate) fn refused_proxy_header(&self, why: &'static str) {
        self.proxy_headers.set((self.proxy_headers.get().0 + 1, why));
    }

    /// Hands out what has been counted since the last time.
    pub(crate) fn report(&self, limit: usize, report: impl Fn(Notice)) {
        let closed = self.closed_for_room.take();
        if closed > 0 {
            report(Notice::ConnectionsFull { closed, limit });
        }
        let times = self.shortages.take();
        if times > 0 {
            let (upstreams, clients) = (self.upstreams_closed.take(), self.clients_closed.take());
            report(Notice::OutOfDescriptors { times, upstreams, clients });
        }
        let times = self.datagrams.take();
        if times > 0 {
            report(Notice::DatagramsDropped { times });
        }
        let (times, why) = self.proxy_headers.take();
        if times > 0 {
            report(Notice::ProxyHeadersRefused { times, why });
        }
        for (task, times) in OWN_TASKS.into_iter().zip(self.panics.take()) {
            if times > 0 {
                report(Notice::Panicked { task, times });
            }
        }
    }
}

/// Counts up.
pub(crate) fn count(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_happened_is_reported_once_and_nothing_else_is() {
        let notices = Notices::default();
        let reported = || {
            let all = RefCell::new(Vec::new());
            notices.report(7, |notice| all.borrow_mut().push(notice));
            all.into_inner()
        };
        assert_eq!(reported(), []);
        type Happens = fn(&Notices);
        let happens: [(Happens, Notice); 5] = [
            (
                |notices| {
                    count(&notices.closed_for_room, 3);
                    count(&notices.closed_for_room, 2);
                },
                Notice::ConnectionsFull { closed: 5, limit: 7 },
            ),
            (
                |notices| {
                    count(&notices.shortages, 1);
                    count(&notices.upstreams_closed, 2);
                    count(&notices.clients_closed, 3);
                },
                Notice::OutOfDescriptors { times: 1, upstreams: 2, clients: 3 },
            ),
            (|notices| count(&notices.datagrams, 4), Notice::DatagramsDropped { times: 4 }),
            (
                |notices| ["one", "other"].into_iter().for_each(|why| notices.refused_proxy_header(why)),
                Notice::ProxyHeadersRefused { times: 2, why: "other" },
            ),
            (|notices| notices.panicked(1), Notice::Panicked { task: "tick", times: 1 }),
        ];
        for (happen, notice) in happens {
            happen(&notices);
            assert_eq!(reported(), [notice]);
            assert_eq!(reported(), []);
        }
    }
}
