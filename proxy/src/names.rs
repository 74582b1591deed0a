//! Names that plugins meet at run time.
//!
//! The control plane looks them up ([`sdk::resolve`]). A worker asks once for all that wait for a name and keeps the
//! answer for its time. While a name cannot be resolved, its last addresses stay in use, as an upstream's do.

use std::cell::RefCell;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use sdk::resolve::{Resolve, ResolveError, Resolved};

use crate::clock::Clock;
use crate::rt;
use crate::settings::Settings;

/// The longest name (RFC 1035 section 3.1).
const LONGEST: usize = 253;
/// For an answer of the control plane.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon it is asked again when it had no time.
const REFUSED: u64 = 1000;

/// The answers that a worker keeps.
pub(crate) struct Names {
    resolver: Option<Arc<dyn Resolve>>,
    /// The maximum number of known names.
    most: usize,
    clock: Rc<Clock>,
    /// By name in lower case.
    known: RefCell<HashMap<Rc<str>, Entry, foldhash::fast::RandomState>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The last ones that were found.
    addresses: Option<Arc<[IpAddr]>>,
    /// Why the last question brought none.
    error: Option<ResolveError>,
    /// Until when that holds, in the clock's coarse milliseconds.
    until: u64,
    /// Wakes those that wait for an answer, while there is a question.
    question: Option<Rc<rt::Notify>>,
}

impl Entry {
    fn answer(&self) -> Result<Arc<[IpAddr]>, ResolveError> {
        match (&self.addresses, &self.error) {
            (Some(addresses), _) => Ok(addresses.clone()),
            (None, error) => Err(error.clone().unwrap_or(ResolveError::Timeout)),
        }
    }
}

enum Look {
    Known(Result<Arc<[IpAddr]>, ResolveError>),
    Asked(Rc<rt::Notify>),
    Unknown,
}

impl Names {
    pub(crate) fn new(settings: &Settings, clock: Rc<Clock>) -> Rc<Names> {
        let (resolver, most) = (settings.resolver.clone(), settings.limits.resolved_names);
        Rc::new(Names { resolver, most, clock, known: RefCell::default() })
    }

    /// As [`sdk::World::resolve`], by `end` of the worker's clock.
    pub(crate) async fn resolve(
        self: &Rc<Names>,
        host: &str,
        end: u64,
    ) -> Result<Arc<[IpAddr]>, ResolveError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([address]));
        }
        if host.is_empty() || host.len() > LONGEST {
            return Err(ResolveError::Failed("it is no host name".into()));
        }
        let host: Rc<str> = host.to_ascii_lowercase().into();
        let waiter = self.clock.waiter();
        loop {
            let question = match self.look(&host, self.clock.coarse_ms()) {
                Look::Known(answer) => return answer,
                Look::Asked(question) => question,
                Look::Unknown => self.ask(&host)?,
            };
            let mut answered = pin!(question.notified());
            if waiter.until(end, |cx| answered.as_mut().poll(cx)).await.is_err() {
                let known = self.known.borrow();
                return known.get(&host).map_or(Err(ResolveError::Timeout), Entry::answer);
            }
        }
    }

    /// Sends a question to the control plane, for all that wait for its answer.
    fn ask(self: &Rc<Names>, host: &Rc<str>) -> Result<Rc<rt::Notify>, ResolveError> {
        let Some(resolver) = &self.resolver else {
            return Err(ResolveError::Failed("this gateway resolves no names at run time".into()));
        };
        let is_known = self.known.borrow().contains_key(host);
        if !is_known && !self.make_room(self.clock.coarse_ms()) {
            return Err(ResolveError::Limit);
        }
        let question = Rc::new(rt::Notify::new());
        self.known.borrow_mut().entry(host.clone()).or_default().question = Some(question.clone());
        let mut asked = resolver.resolve(host);
        let (names, host) = (self.clone(), host.clone());
        rt::spawn(async move {
            let (clock, waiter) = (&names.clock, names.clock.waiter());
            let answer = waiter.until(clock.after(PATIENCE), |cx| asked.as_mut().poll(cx)).await;
            names.answer(&host, answer.unwrap_or(None), clock.coarse_ms());
        });
        Ok(question)
    }

    fn look(&self, host: &str, now: u64) -> Look {
        match self.known.borrow().get(host) {
            Some(Entry { question: Some(question), .. }) => Look::Asked(question.clone()),
            Some(entry) if entry.until > now => Look::Known(entry.answer()),
            _ => Look::Unknown,
        }
    }

    /// Makes a place for one more name: those go that are out of date, else the one that is so next.
    fn make_room(&self, now: u64) -> bool {
        let mut all = self.known.borrow_mut();
        if all.len() >= self.most {
            all.retain(|_, entry| entry.question.is_some() || entry.until > now);
        }
        if all.len() >= self.most {
            let idle = all.iter().filter(|(_, entry)| entry.question.is_none());
            let Some(host) = idle.min_by_key(|(_, entry)| entry.until).map(|(host, _)| host.clone()) else {
                return false;
            };
            all.remove(&host);
        }
        all.len() < self.most
    }

    fn answer(&self, host: &str, answer: Option<Resolved>, now: u64) {
        let mut all = self.known.borrow_mut();
        let Some(entry) = all.get_mut(host) else { return };
        entry.until = now + answer.as_ref().map_or(REFUSED, |answer| answer.ttl.as_millis() as u64);
        match answer.map(|answer| answer.addresses) {
            Some(Ok(addresses)) => (entry.addresses, entry.error) = (Some(addresses), None),
            Some(Err(why)) => entry.error = Some(ResolveError::Failed(why)),
            None => entry.error = Some(ResolveError::Limit),
        }
        if let Some(question) = entry.question.take() {
            question.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Mutex;

    use sdk::World;
    use sdk::resolve::Answer;

    use super::*;
    use crate::testing::{beside_worker, sleep};
    use crate::worker::Worker;

    /// Answers from a list, the last first; without an entry it has no time, and an answer of `None` never comes.
    #[derive(Default)]
    struct Script {
        answers: Mutex<Vec<Option<Resolved>>>,
        asked: Mutex<Vec<String>>,
    }

    impl Resolve for Script {
        fn resolve(&self, host: &str) -> Answer {
            self.asked.lock().unwrap().push(host.to_owned());
            match self.answers.lock().unwrap().pop() {
                None => Box::pin(async { None }),
                Some(None) => Box::pin(std::future::pending()),
                Some(answer) => Box::pin(async move { answer }),
            }
        }
    }

    fn found(last: u8, ttl: u64) -> Option<Resolved> {
        let addresses = Ok(Arc::from([IpAddr::from([10, 0, 0, last])]));
        Some(Resolved { addresses, ttl: Duration::from_secs(ttl) })
    }

    fn failed(ttl: u64) -> Option<Resolved> {
        Some(Resolved { addresses: Err("no".into()), ttl: Duration::from_secs(ttl) })
    }

    fn beside(
        names: usize,
        answers: Vec<Option<Resolved>>,
        test: impl AsyncFnOnce(Rc<Worker>, Arc<Script>) + 'static,
    ) {
        let script = Arc::new(Script {
            answers: answers.into_iter().rev().collect::<Vec<_>>().into(),
            ..Script::default()
        });
        let resolver = script.clone();
        let settings = Settings::with(|settings| {
            settings.limits.resolved_names = names;
            settings.resolver = Some(resolver);
        });
        beside_worker(settings, async |worker, _| test(worker, script).await);
    }

    /// The last byte of the address, or the error.
    async fn ask(worker: &Rc<Worker>, host: &str) -> Result<u8, String> {
        let found = worker.resolve(host, Duration::from_secs(5)).await.map_err(|error| error.to_string())?;
        let IpAddr::V4(address) = found[0] else { return Err("of IPv6".to_owned()) };
        Ok(address.octets()[3])
    }

    fn asked(script: &Script) -> usize {
        script.asked.lock().unwrap().len()
    }

    #[test]
    fn an_answer_is_kept_for_its_time_and_the_last_addresses_while_there_is_no_better_one() {
        beside(9, vec![found(1, 10), failed(5), found(2, 10), None], async |worker, script| {
            assert_eq!(ask(&worker, "10.0.0.9").await, Ok(9));
            assert_eq!(asked(&script), 0, "an address is its own answer");
            assert_eq!(ask(&worker, "A.test").await, Ok(1));
            assert_eq!(ask(&worker, "a.TEST").await, Ok(1));
            assert_eq!(*script.asked.lock().unwrap(), ["a.test"]);
            sleep(Duration::from_secs(11)).await;
            assert_eq!(
                (ask(&worker, "a.test").await, asked(&script)),
                (Ok(1), 2),
                "it could not be resolved"
            );
            assert_eq!((ask(&worker, "a.test").await, asked(&script)), (Ok(1), 2), "as is known for a while");
            sleep(Duration::from_secs(6)).await;
            assert_eq!((ask(&worker, "a.test").await, asked(&script)), (Ok(2), 3));
            sleep(Duration::from_secs(11)).await;
            assert_eq!((ask(&worker, "a.test").await, asked(&script)), (Ok(2), 4), "nothing came in time");
        });
    }

    #[test]
    fn all_that_wait_for_a_name_have_one_question() {
        beside(9, vec![found(1, 10)], async |worker, script| {
            let done = Rc::new(Cell::new(0));
            for _ in 0..20 {
                let (worker, done) = (worker.clone(), done.clone());
                rt::spawn(async move {
                    assert_eq!(ask(&worker, "a.test").await, Ok(1));
                    done.set(done.get() + 1);
                });
            }
            sleep(Duration::from_secs(1)).await;
            assert_eq!((done.get(), asked(&script)), (20, 1));
        });
    }

    #[test]
    fn names_are_bounded_and_those_out_of_date_go_first() {
        let answers = vec![found(1, 10), found(2, 20), found(3, 30), found(4, 40), failed(9), None, None];
        beside(2, answers, async |worker, script| {
            for (host, address) in [("a", 1), ("b", 2), ("c", 3)] {
                assert_eq!(ask(&worker, host).await, Ok(address));
            }
            assert_eq!(
                (ask(&worker, "b").await, asked(&script)),
                (Ok(2), 3),
                "a was the next to be out of date"
            );
            sleep(Duration::from_secs(25)).await;
            assert_eq!(ask(&worker, "d").await, Ok(4));
            assert_eq!((ask(&worker, "c").await, asked(&script)), (Ok(3), 4));
            assert_eq!(ask(&worker, "e").await, Err("no".to_owned()));
            assert!(worker.names.known.borrow().len() <= 2);
            for _ in 0..2 {
                let worker = worker.clone();
                rt::spawn(async move {
                    let host = if worker.names.known.borrow().contains_key("f") { "g" } else { "f" };
                    assert_eq!(ask(&worker, host).await, Err(ResolveError::Timeout.to_string()));
                });
                rt::turn().await;
            }
            assert_eq!(
                ask(&worker, "h").await,
                Err(ResolveError::Limit.to_string()),
                "two are being resolved"
            );
            sleep(PATIENCE + Duration::from_secs(2)).await;
            assert_eq!(
                ask(&worker, "i").await,
                Err(ResolveError::Limit.to_string()),
                "the control side has no time"
            );
            let long = "a".repeat(LONGEST + 1);
            assert!(ask(&worker, &long).await.is_err() && asked(&script) == 8);
        });
    }
}
