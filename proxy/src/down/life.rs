//! hot path
//!
//! How long a connection that carries many requests lives: it is closed gently when it has been idle for too
//! long, when it is old, when its place is wanted or when the worker drains.

use std::task::Context;
use std::time::Duration;

use crate::clock::Waiter;
use crate::worker::Worker;

/// The greatest age is shortened by up to one part in this many, so that connections that came together do
/// not go together.
const JITTER: u64 = 10;

pub(super) struct Life<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    /// When it is closed for its age.
    until: u64,
    /// Since when nothing is on it, and until when that may be so.
    idle: Option<u64>,
    /// Until when a connection that is closing may take to end.
    patience: Option<u64>,
}

/// How a connection is.
pub(super) struct State {
    /// Streams are being served, or what was answered on them still has to go out.
    pub(super) busy: bool,
    /// Streams there have been.
    pub(super) begun: u64,
    /// It takes no more streams.
    pub(super) closing: bool,
    /// Nothing more comes of those there are either.
    pub(super) at_once: bool,
    /// When its task is to be woken for a reason of its own.
    pub(super) wake: Option<u64>,
}

/// The next step of the connection's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Wait,
    /// No more streams are to begin. The task looks again at once.
    CloseGently,
    Over,
}

impl<'a> Life<'a> {
    pub(super) fn new(worker: &'a Worker, waiter: &'a Waiter) -> Life<'a> {
        let until = match worker.settings.http2.max_age.as_millis() as u64 {
            0 => u64::MAX,
            most => worker.clock.after(Duration::from_millis(most - fastrand::u64(0..=most / JITTER))),
        };
        Life { worker, waiter, until, idle: None, patience: None }
    }

    /// Whether the connection's time is over, in one way or another.
    pub(super) fn poll(&mut self, state: &State, cx: &mut Context<'_>) -> Turn {
        let (worker, settings) = (self.worker, &self.worker.settings);
        let clock = &worker.clock;
        if state.busy {
            self.end_rest();
        } else if self.idle.is_none() {
            let time = match state.begun {
                0 => settings.timeouts.header,
                _ => settings.timeouts.keepalive,
            };
            self.idle = Some(clock.after(time));
            worker.shard.waiting(1);
            self.waiter.rest();
        }
        let unwanted = self.idle.is_some() && self.waiter.is_unwanted();
        let idle_over = self.idle.is_some_and(|until| clock.is_over(until));
        if !state.closing && (worker.is_draining() || idle_over || unwanted || clock.is_over(self.until)) {
            // GOAWAY is still to go out.
            cx.waker().wake_by_ref();
            return Turn::CloseGently;
        }
        if state.closing && (!state.busy || state.at_once) {
            // The client need not answer.
            let until = *self.patience.get_or_insert_with(|| clock.after(settings.timeouts.linger));
            if clock.is_over(until) {
                return Turn::Over;
            }
        } else {
            self.patience = None;
        }
        let next = [Some(self.until).filter(|_| !state.closing), self.idle, state.wake, self.patience];
        let next =
            next.into_iter().flatten().filter(|until| !clock.is_over(*until)).min().unwrap_or(u64::MAX);
        // It is not over, as what is was taken out.
        let _ = self.waiter.poll_elapsed::<()>(next, cx);
        Turn::Wait
    }

    /// Something is on it, or it is over.
    pub(super) fn end_rest(&mut self) {
        if self.idle.take().is_some() {
            self.worker.shard.waiting(-1);
            self.waiter.end_rest();
        }
    }
}

impl Drop for Life<'_> {
    fn drop(&mut self) {
        self.end_rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::testing::{beside_worker, within};
    use crate::{Stage, rt};
    use std::future::poll_fn;
    use std::task::Poll;

    const IDLE: State = State { busy: false, begun: 1, closing: false, at_once: false, wake: None };

    /// Returns the next step other than `Wait`, and after how many half-seconds; `None` beyond a minute.
    async fn next(worker: &Worker, life: &mut Life<'_>, state: &State) -> Option<(Turn, u64)> {
        let before = worker.clock.coarse_ms();
        let turn = poll_fn(|cx| match life.poll(state, cx) {
            Turn::Wait => Poll::Pending,
            turn => Poll::Ready(turn),
        });
        let turn = within(Duration::from_secs(60), turn).await?;
        Some((turn, (worker.clock.coarse_ms() - before) / 500))
    }

    fn settings() -> Settings {
        let mut settings = Settings::with(|settings| {
            settings.timeouts.header = Duration::from_secs(3);
            settings.timeouts.keepalive = Duration::from_secs(5);
            settings.timeouts.linger = Duration::from_secs(1);
        });
        settings.http2.max_age = Duration::ZERO;
        settings
    }

    #[test]
    fn a_connection_ends_when_nothing_is_on_it_for_long_and_waits_a_while_when_it_is_to_end() {
        beside_worker(settings(), async |worker, meters| {
            let waiting = || meters.read(1, |reading| reading.totals().waiting);
            for (about, state, expected) in [
                ("no request came yet", State { begun: 0, ..IDLE }, Some((Turn::CloseGently, 6))),
                ("between requests", IDLE, Some((Turn::CloseGently, 10))),
                ("one is served", State { busy: true, ..IDLE }, None),
                ("it closes, and nothing is on it", State { closing: true, ..IDLE }, Some((Turn::Over, 2))),
                ("it closes, and one is served", State { closing: true, busy: true, ..IDLE }, None),
                (
                    "it closes, and nothing more comes of those that are served",
                    State { closing: true, busy: true, at_once: true, ..IDLE },
                    Some((Turn::Over, 2)),
                ),
            ] {
                let waiter = worker.clock.waiter();
                let mut life = Life::new(&worker, &waiter);
                assert_eq!(next(&worker, &mut life, &state).await, expected, "{about}");
                assert_eq!(waiting(), u64::from(!state.busy), "{about}: clients that wait");
                drop(life);
                assert_eq!(waiting(), 0, "{about}");
            }
            // Its time starts again.
            let waiter = worker.clock.waiter();
            let mut life = Life::new(&worker, &waiter);
            let pause = rt::sleep(Duration::from_secs(4));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert_eq!(life.poll(&IDLE, &mut cx), Turn::Wait);
            pause.await;
            assert_eq!(life.poll(&State { busy: true, ..IDLE }, &mut cx), Turn::Wait);
            assert_eq!(next(&worker, &mut life, &IDLE).await, Some((Turn::CloseGently, 10)));
        });
    }

    #[test]
    fn a_connection_ends_when_its_place_is_wanted_and_when_the_worker_drains() {
        beside_worker(settings(), async |worker, _| {
            let waiter = worker.clock.waiter();
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let mut life = Life::new(&worker, &waiter);
            assert_eq!(life.poll(&IDLE, &mut cx), Turn::Wait);
            assert_eq!(worker.clock.end_longest_rests(1), 1);
            assert_eq!(life.poll(&IDLE, &mut cx), Turn::CloseGently);
            // A stream begins before GOAWAY is sent.
            assert_eq!(life.poll(&State { busy: true, ..IDLE }, &mut cx), Turn::Wait);
            worker.set_stage(Stage::Drain);
            for busy in [false, true] {
                assert_eq!(life.poll(&State { busy, ..IDLE }, &mut cx), Turn::CloseGently);
                assert_eq!(life.poll(&State { busy, closing: true, ..IDLE }, &mut cx), Turn::Wait);
            }
        });
    }

    #[test]
    fn an_old_connection_ends_whatever_is_on_it() {
        let mut settings = settings();
        settings.http2.max_age = Duration::from_secs(20);
        beside_worker(settings, async |worker, _| {
            let waiter = worker.clock.waiter();
            let mut life = Life::new(&worker, &waiter);
            let busy = State { busy: true, ..IDLE };
            let ended = next(&worker, &mut life, &busy).await;
            assert!(matches!(ended, Some((Turn::CloseGently, 36..=40))), "a tenth less at most: {ended:?}");
        });
    }
}
