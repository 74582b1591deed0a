//! The servers of a registry, each asked by a task of its own.
//!
//! Each has its own pace and time-outs, so that one that hangs delays no other. The last answer of a server
//! stays in use while it cannot be asked. The services of all are merged in the order of the configuration.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use model::Node;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the first answers wait for those of the other servers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The nodes of each service that a server knows.
pub type Services = BTreeMap<String, Vec<Node>>;
/// The future of one question.
pub type Polling = Pin<Box<dyn Future<Output = Result<Services, String>> + Send>>;

#[derive(Debug)]
pub struct Polls(Mutex<State>);

#[derive(Debug)]
struct State {
    tasks: JoinSet<(usize, Result<Services, String>)>,
    servers: Vec<Polled>,
    /// Until when answers wait for those of servers that were silent so far.
    patience: Option<Instant>,
    /// When the first answer or failure came that was not returned.
    fresh: Option<Instant>,
}

#[derive(Debug, Default)]
struct Polled {
    under_way: bool,
    /// When it answered or failed last.
    at: Option<Instant>,
    services: Option<Services>,
    /// Why it cannot be asked.
    error: Option<String>,
}

/// The state of all servers.
#[derive(Debug)]
pub struct Picture {
    /// Where several servers know a service, the last one's nodes.
    pub services: Services,
    /// Each server has answered or failed.
    pub heard: bool,
    /// Each server has answered, now or before.
    pub answered: bool,
    /// Why some of them cannot be asked.
    pub failed: Option<String>,
}

impl Polls {
    /// With this number of servers.
    pub fn new(count: usize) -> Polls {
        let servers = (0..count).map(|_| Polled::default()).collect();
        Polls(Mutex::new(State { tasks: JoinSet::new(), servers, patience: None, fresh: None }))
    }

    /// Waits for the next answer or failure of a server; with `at_once` not if something is known. May be dropped and
    /// called again: questions go on meanwhile.
    ///
    /// `ask` gets the number of a server, and when to ask it: `pace` after its last answer or failure.
    ///
    /// # Errors
    /// No server can be asked, in words.
    pub async fn next(
        &self,
        at_once: bool,
        pace: Duration,
        ask: impl Fn(usize, Option<Instant>) -> Polling,
    ) -> Result<Picture, String> {
        let mut state = self.0.lock().await;
        if state.servers.is_empty() {
            return Err("there is no server".to_owned());
        }
        state.begin(pace, ask);
        let patience = *state.patience.get_or_insert_with(|| Instant::now() + PATIENCE);
        loop {
            let some = state.servers.iter().any(Polled::is_up);
            // While no server is up, one that is back may be slower than those that still fail.
            let until = state.fresh.map(|since| if some { patience } else { since + PATIENCE });
            let is_complete = if some { state.is_heard() } else { state.tasks.is_empty() };
            if until.map_or(some && at_once, |until| is_complete || Instant::now() >= until) {
                state.fresh = None;
                return state.picture();
            }
            tokio::select! {
                // Nothing aborts a task, and a panic is an answer.
                Some(Ok((server, answer))) = state.tasks.join_next() => state.take(server, answer),
                () = tokio::time::sleep_until(until.unwrap_or(patience)), if until.is_some() => {}
            }
        }
    }
}

impl State {
    /// Begins what is not under way.
    fn begin(&mut self, pace: Duration, ask: impl Fn(usize, Option<Instant>) -> Polling) {
        // While all are gone, the registry as a whole is asked ever more slowly.
        let some = self.servers.iter().any(Polled::is_up);
        for (at, server) in self.servers.iter_mut().enumerate().filter(|(_, server)| !server.under_way) {
            server.under_way = true;
            let asking = ask(at, server.at.filter(|_| some).map(|at| at + pace));
            let answer = AssertUnwindSafe(asking).catch_unwind();
            self.tasks.spawn(Box::pin(async move {
                let panicked = |_| Err("reading its answer failed unexpectedly (a panic)".to_owned());
                (at, answer.await.unwrap_or_else(panicked))
            }) as Pin<Box<dyn Future<Output = _> + Send>>);
        }
    }

    fn take(&mut self, server: usize, answer: Result<Services, String>) {
        self.fresh.get_or_insert_with(Instant::now);
        let Some(server) = self.servers.get_mut(server) else { return };
        server.under_way = false;
        server.at = Some(Instant::now());
        match answer {
            Ok(services) => (server.services, server.error) = (Some(services), None),
            Err(error) => server.error = Some(error),
        }
    }

    fn is_heard(&self) -> bool {
        self.servers.iter().all(|server| server.at.is_some())
    }

    fn picture(&self) -> Result<Picture, String> {
        let errors: Vec<&str> = self.servers.iter().filter_map(|server| server.error.as_deref()).collect();
        let failed = (!errors.is_empty()).then(|| errors.join("; "));
        match failed {
            Some(failed) if !self.servers.iter().any(Polled::is_up) => Err(failed),
            failed => {
                let mut services = Services::new();
                for known in self.servers.iter().filter_map(|server| server.services.as_ref()) {
                    services.extend(known.iter().map(|(name, nodes)| (name.clone(), nodes.clone())));
                }
                let answered = self.servers.iter().all(|server| server.services.is_some());
                Ok(Picture { services, heard: self.is_heard(), answered, failed })
            }
        }
    }
}

impl Polled {
    /// Whether its last word was an answer.
    fn is_up(&self) -> bool {
        self.services.is_some() && self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of one server with the delay of each in milliseconds; the last one repeats.
    type Script = Vec<(u64, Result<&'static str, &'static str>)>;

    struct Test {
        polls: Polls,
        scripts: Vec<Script>,
        asked: std::sync::Mutex<Vec<usize>>,
    }

    impl Test {
        fn new(scripts: Vec<Script>) -> Test {
            let asked = std::sync::Mutex::new(vec![0; scripts.len()]);
            Test { polls: Polls::new(scripts.len()), scripts, asked }
        }

        async fn next(&self, at_once: bool) -> Result<Picture, String> {
            self.polls.next(at_once, Duration::from_secs(3), |server, due| self.ask(server, due)).await
        }

        fn ask(&self, server: usize, due: Option<Instant>) -> Polling {
            let mut asked = self.asked.lock().unwrap();
            let script = &self.scripts[server];
            let (takes, answer) = script[asked[server].min(script.len() - 1)];
            asked[server] += 1;
            Box::pin(async move {
                if let Some(due) = due {
                    tokio::time::sleep_until(due).await;
                }
                tokio::time::sleep(Duration::from_millis(takes)).await;
                assert_ne!(answer, Err("panic"));
                let node = Node { host: "h".into(), port: 1, weight: 1, priority: 0, metadata: None };
                let names = answer.map_err(str::to_owned)?;
                Ok(names.split(' ').map(|name| (name.to_owned(), vec![node.clone()])).collect())
            })
        }
    }

    fn names(picture: &Picture) -> Vec<&str> {
        picture.services.keys().map(String::as_str).collect()
    }

    const HANGS: u64 = 1 << 40;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_holds_up_no_other() {
        let test = Test::new(vec![
            vec![(HANGS, Ok("x"))],
            vec![(20, Ok("a")), (20, Ok("a b"))],
            vec![(500, Ok("c"))],
            vec![(HANGS, Ok("x"))],
        ]);
        let began = Instant::now();
        let first = test.next(false).await.unwrap();
        assert_eq!((names(&first), began.elapsed()), (vec!["a", "c"], PATIENCE));
        assert_eq!((first.heard, first.answered, first.failed), (false, false, None));
        let second = test.next(false).await.unwrap();
        assert_eq!((names(&second), began.elapsed()), (vec!["a", "b", "c"], Duration::from_millis(3040)));
        // Services that are wanted since wait for nothing that is known already.
        assert_eq!(names(&test.next(true).await.unwrap()), ["a", "b", "c"]);
        assert_eq!(began.elapsed(), Duration::from_millis(3040));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_answer_of_a_server_stays_and_that_of_the_last_server_goes_first() {
        let test = Test::new(vec![
            vec![(10, Ok("a")), (10, Err("gone")), (10, Err("panic")), (10, Ok("b"))],
            vec![(20, Ok("c"))],
        ]);
        let mut seen = Vec::new();
        for _ in 0..8 {
            let picture = test.next(false).await.unwrap();
            assert!(picture.heard && picture.answered);
            let now = (names(&picture).join(" "), picture.failed.unwrap_or_default());
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        let panic = "reading its answer failed unexpectedly (a panic)";
        let expected = [("a c", ""), ("a c", "gone"), ("a c", panic), ("b c", "")];
        assert_eq!(seen, expected.map(|(names, failed)| (names.to_owned(), failed.to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn while_all_are_gone_the_first_one_that_is_back_counts() {
        let gone = (10, Err("gone"));
        let test = Test::new(vec![vec![gone], vec![gone, (400, Ok("a"))], vec![(900, Err("late"))]]);
        let began = Instant::now();
        assert_eq!(test.next(false).await.unwrap_err(), "gone; gone; late");
        let back = test.next(true).await.unwrap();
        assert_eq!((names(&back), back.failed.as_deref()), (vec!["a"], Some("gone; late")));
        assert_eq!((back.heard, back.answered), (true, false));
        assert_eq!(
            began.elapsed(),
            Duration::from_millis(1300),
            "a stopped server must not delay the others"
        );
        assert!(Test::new(vec![]).next(false).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_delays_neither_the_failure_nor_the_next_question_of_another() {
        let test =
            Test::new(vec![vec![(20, Ok("a")), (20, Err("gone")), (20, Ok("b"))], vec![(HANGS, Ok("x"))]]);
        let began = Instant::now();
        assert_eq!((names(&test.next(false).await.unwrap()), began.elapsed()), (vec!["a"], PATIENCE));
        assert_eq!(test.next(false).await.unwrap_err(), "gone");
        assert_eq!(began.elapsed(), Duration::from_millis(3040) + PATIENCE);
        assert_eq!(names(&test.next(false).await.unwrap()), ["b"]);
        assert_eq!(began.elapsed(), Duration::from_millis(3060) + PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_not_waited_for_is_there_later() {
        let test = Test::new(vec![vec![(100, Ok("a"))], vec![(HANGS, Ok("x"))]]);
        let early = tokio::time::timeout(Duration::from_millis(200), test.next(false)).await;
        assert!(early.is_err());
        assert_eq!(names(&test.next(false).await.unwrap()), ["a"]);
        assert_eq!(*test.asked.lock().unwrap(), [2, 1]);
    }
}
