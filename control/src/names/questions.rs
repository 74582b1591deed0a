//! Names that workers meet at run time, in requests.
//!
//! Workers send questions over a bounded channel and await the answers. One task on the control runtime looks each
//! name up once for all workers and remembers the answer for its time, also if no address was found.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sdk::resolve::{Answer, Resolve, Resolved};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{AT_ONCE, Answering, LONGEST, LookUp, ResolvedName, SHORTEST};
use crate::tasks;

/// Addresses of a name that are used.
const ADDRESSES: usize = 64;
/// How long a name without addresses is not looked up again.
const NEGATIVE: Duration = Duration::from_secs(5);

/// The workers' end of the channel.
#[derive(Debug, Clone)]
pub struct Questions(mpsc::Sender<Question>);

#[derive(Debug)]
struct Question {
    host: String,
    answer: oneshot::Sender<Resolved>,
}

impl Questions {
    /// Starts to answer on the caller's runtime. At most `most` names are remembered, and as many questions wait.
    /// `valid` replaces the records' own time to live.
    pub fn start(source: Arc<dyn LookUp>, valid: Option<Duration>, most: usize) -> Questions {
        let (sender, questions) = mpsc::channel(most.max(1));
        let names = HashMap::new();
        let under_way = FuturesUnordered::new();
        tasks::spawn(Names { source, valid, most: most.max(AT_ONCE + 1), names, under_way }.run(questions));
        Questions(sender)
    }
}

impl Resolve for Questions {
    fn resolve(&self, host: &str) -> Answer {
        let (answer, answered) = oneshot::channel();
        match self.0.try_send(Question { host: host.to_owned(), answer }) {
            Ok(()) => Box::pin(async { answered.await.ok() }),
            Err(_) => Box::pin(async { None }),
        }
    }
}

struct Names {
    source: Arc<dyn LookUp>,
    valid: Option<Duration>,
    most: usize,
    names: HashMap<String, Name>,
    under_way: FuturesUnordered<Answering>,
}

enum Name {
    /// The workers that wait for it.
    Asked(Vec<oneshot::Sender<Resolved>>),
    Known {
        addresses: Result<Arc<[IpAddr]>, Arc<str>>,
        until: Instant,
    },
}

impl Names {
    async fn run(mut self, mut questions: mpsc::Receiver<Question>) {
        loop {
            tokio::select! {
                Some((host, result)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.answer(&host, result);
                }
                question = questions.recv(), if self.under_way.len() < AT_ONCE => match question {
                    Some(question) => self.ask(question),
                    None => return,
                },
            }
        }
    }

    fn ask(&mut self, Question { host, answer }: Question) {
        let now = Instant::now();
        match self.names.get_mut(&host) {
            Some(Name::Asked(waiting)) => return waiting.push(answer),
            Some(Name::Known { addresses, until }) if *until > now => {
                // The worker may have given up.
                let _ = answer.send(Resolved { addresses: addresses.clone(), ttl: *until - now });
                return;
            }
            _ => self.make_room(now),
        }
        let looking = self.source.look_up(&host);
        self.names.insert(host.clone(), Name::Asked(vec![answer]));
        self.under_way.push(Box::pin(async move { (host, looking.await) }));
    }

    /// Forgets answers that are out of date, else the one that is so next. Fewer names are asked for than remembered.
    fn make_room(&mut self, now: Instant) {
        if self.names.len() < self.most {
            return;
        }
        self.names.retain(|_, name| !matches!(name, Name::Known { until, .. } if *until <= now));
        if self.names.len() < self.most {
            return;
        }
        let known = self.names.iter().filter_map(|(host, name)| match name {
            Name::Known { until, .. } => Some((*until, host)),
            Name::Asked(_) => None,
        });
        if let Some(host) = known.min().map(|(_, host)| host.clone()) {
            self.names.remove(&host);
        }
    }

    fn answer(&mut self, host: &str, result: Result<ResolvedName, String>) {
        let (addresses, ttl) = match result {
            Ok(ResolvedName { mut addresses, ttl }) => {
                addresses.sort_unstable();
                addresses.dedup();
                addresses.truncate(ADDRESSES);
                (Ok(addresses.into()), self.valid.unwrap_or(ttl).clamp(SHORTEST, LONGEST))
            }
            Err(why) => (Err(why.into()), NEGATIVE),
        };
        let known = Name::Known { addresses: addresses.clone(), until: Instant::now() + ttl };
        if let Some(Name::Asked(waiting)) = self.names.insert(host.to_owned(), known) {
            for worker in waiting {
                let _ = worker.send(Resolved { addresses: addresses.clone(), ttl });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;
    use crate::names::Looking;

    /// Answers from a function of the host, and counts.
    struct Script(fn(&str) -> Result<ResolvedName, String>, AtomicUsize);

    impl std::fmt::Debug for Script {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Script")
        }
    }

    impl LookUp for Script {
        fn look_up(&self, host: &str) -> Looking {
            let asked = self.1.fetch_add(1, Ordering::Relaxed);
            let answer = self.0(host);
            Box::pin(async move {
                // The first is answered last.
                tokio::time::sleep(Duration::from_millis(1000 - asked.min(900) as u64)).await;
                answer
            })
        }
    }

    fn found(host: &str) -> Result<ResolvedName, String> {
        if host == "none" {
            return Err("there is no such name".to_owned());
        }
        let addresses = (0..100).rev().map(|last| [10, 0, 0, last].into()).collect();
        Ok(ResolvedName { addresses, ttl: Duration::from_secs(10) })
    }

    fn start(most: usize) -> (Questions, Arc<Script>) {
        let script = Arc::new(Script(found, AtomicUsize::new(0)));
        (Questions::start(script.clone(), None, most), script)
    }

    async fn wait(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_for_all_and_again_when_its_time_is_over() {
        let (questions, script) = start(1000);
        let asked = || script.1.load(Ordering::Relaxed);
        let answers = join_all((0..20).map(|_| questions.resolve("a"))).await;
        let first = answers[0].clone().unwrap();
        assert_eq!(first.addresses.as_ref().unwrap().len(), ADDRESSES);
        assert_eq!(
            first.addresses.as_ref().unwrap()[0],
            IpAddr::from([10, 0, 0, 0]),
            "the order is the same"
        );
        assert_eq!(first.ttl, Duration::from_secs(10));
        assert!(answers.iter().all(|answer| answer.as_ref() == Some(&first)));
        wait(4).await;
        assert_eq!(questions.resolve("a").await.unwrap().ttl, Duration::from_secs(6), "what is left of it");
        assert_eq!(asked(), 1);
        wait(7).await;
        assert!(questions.resolve("a").await.is_some() && asked() == 2);
        let none = questions.resolve("none").await.unwrap();
        assert_eq!((none.addresses.unwrap_err().as_ref(), none.ttl), ("there is no such name", NEGATIVE));
        assert!(questions.resolve("none").await.is_some() && asked() == 3);
        wait(6).await;
        assert!(questions.resolve("none").await.is_some() && asked() == 4);
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_names_and_waiting_questions_are_bounded() {
        let (questions, script) = start(AT_ONCE + 1);
        let names =
            |count: usize| (0..count).map(|at| questions.resolve(&at.to_string())).collect::<Vec<_>>();
        // Some are taken from the channel before the rest is sent.
        let first = names(AT_ONCE);
        tokio::task::yield_now().await;
        let second: Vec<_> = (0..AT_ONCE + 2).map(|at| questions.resolve(&format!("b{at}"))).collect();
        wait(0).await;
        assert_eq!(script.1.load(Ordering::Relaxed), AT_ONCE);
        assert!(join_all(first).await.iter().all(Option::is_some));
        let refused = join_all(second).await.iter().filter(|answer| answer.is_none()).count();
        assert_eq!(refused, 1, "as many wait as are remembered");
        let before = script.1.load(Ordering::Relaxed);
        assert!(questions.resolve(&format!("b{AT_ONCE}")).await.is_some(), "it is remembered");
        assert_eq!(script.1.load(Ordering::Relaxed), before);
        assert!(questions.resolve("0").await.is_some(), "it was forgotten");
        assert_eq!(script.1.load(Ordering::Relaxed), before + 1);
    }
}
