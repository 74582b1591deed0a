//! Permits of the requests that plugins send without waiting for the answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;

use crate::notice::{Notice, count};
use crate::settings::Settings;

/// The most targets whose dropped requests are logged by name in one second.
const MOST_NAMED: usize = 8;

/// The requests in flight that no exchange waits for: bounded in all, and for each target, so that one
/// that hangs cannot take the place, or the descriptors, of everything else.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    in_flight: Cell<usize>,
    targets: RefCell<HashMap<Rc<str>, Rc<InFlight>, foldhash::fast::RandomState>>,
    /// Dropped past the bound of all.
    dropped: Cell<u64>,
}

/// Requests in flight to one target. It is forgotten with the last of them.
#[derive(Debug)]
pub(super) struct InFlight {
    target: Rc<str>,
    count: Cell<usize>,
    dropped: Cell<u64>,
}

impl Fetches {
    /// Hands out how many requests were dropped since the last time.
    pub(crate) fn report_dropped(&self, settings: &Settings, report: impl Fn(Notice)) {
        let mut others = self.dropped.take();
        let mut named = 0;
        for target in self.targets.borrow().values() {
            match target.dropped.take() {
                0 => {}
                dropped if named < MOST_NAMED => {
                    named += 1;
                    let limit = settings.limits.fetches_per_target;
                    report(Notice::FetchesDropped { target: target.target.to_string(), dropped, limit });
                }
                dropped => others += dropped,
            }
        }
        self.targets.borrow_mut().retain(|_, target| target.count.get() > 0);
        if others > 0 {
            let target = String::new();
            report(Notice::FetchesDropped { target, dropped: others, limit: settings.limits.fetches });
        }
    }

    /// Counts one more request to a target. If too many are in flight, it is counted as dropped.
    pub(super) fn begin(&self, settings: &Settings, authority: &str) -> Option<Rc<InFlight>> {
        if self.in_flight.get() >= settings.limits.fetches {
            count(&self.dropped, 1);
            return None;
        }
        let mut targets = self.targets.borrow_mut();
        let target = match targets.get(authority) {
            Some(target) => target.clone(),
            None => {
                let name = Rc::<str>::from(authority);
                let target =
                    Rc::new(InFlight { target: name.clone(), count: Cell::new(0), dropped: Cell::new(0) });
                targets.insert(name, target.clone());
                target
            }
        };
        if target.count.get() >= settings.limits.fetches_per_target {
            count(&target.dropped, 1);
            return None;
        }
        self.in_flight.set(self.in_flight.get() + 1);
        target.count.set(target.count.get() + 1);
        Some(target)
    }

    /// A request to this target is over.
    pub(super) fn end(&self, target: &InFlight) {
        self.in_flight.set(self.in_flight.get() - 1);
        target.count.set(target.count.get() - 1);
        if target.count.get() == 0 && target.dropped.get() == 0 {
            self.targets.borrow_mut().remove(&target.target);
        }
    }

    #[cfg(test)]
    pub(super) fn targets(&self) -> usize {
        self.targets.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_whose_requests_were_dropped_are_reported_by_name_as_far_as_they_are_few() {
        let settings = Settings::with(|settings| {
            settings.limits.fetches = 90;
            settings.limits.fetches_per_target = 7;
        });
        let fetches = Fetches::default();
        let notices = || {
            let all = RefCell::new(Vec::new());
            fetches.report_dropped(&settings, |notice| all.borrow_mut().push(notice));
            let mut notices: Vec<_> = all
                .into_inner()
                .into_iter()
                .map(|notice| match notice {
                    Notice::FetchesDropped { target, dropped, limit } => (target, dropped, limit),
                    other => panic!("{other:?}"),
                })
                .collect();
            notices.sort();
            notices
        };
        let add = |name: String, in_flight, dropped| {
            let target: Rc<str> = name.into();
            let counts =
                InFlight { target: target.clone(), count: Cell::new(in_flight), dropped: Cell::new(dropped) };
            fetches.targets.borrow_mut().insert(target, Rc::new(counts));
        };
        assert_eq!(notices(), []);
        add("idle".to_owned(), 0, 2);
        add("busy".to_owned(), 1, 3);
        add("well".to_owned(), 1, 0);
        assert_eq!(notices(), [("busy".to_owned(), 3, 7), ("idle".to_owned(), 2, 7)]);
        assert_eq!(fetches.targets.borrow().len(), 2, "one without requests is forgotten");
        assert_eq!(notices(), [], "all were logged before");
        count(&fetches.dropped, 5);
        assert_eq!(notices(), [(String::new(), 5, 90)], "past the bound of all");
        (0..MOST_NAMED + 2).for_each(|at| add(format!("target {at}"), 1, 4));
        count(&fetches.dropped, 1);
        let notices = notices();
        assert_eq!(notices[0], (String::new(), 9, 90), "two of ten, and one past the bound of all");
        assert_eq!(notices.len(), 1 + MOST_NAMED);
        assert!(
            notices[1..].iter().all(|(name, dropped, _)| !name.is_empty() && *dropped == 4),
            "{notices:?}"
        );
    }
}
