//! Chooses the connection to close when the limit is reached and another client connects.
//!
//! A connection without a request under way uses its permit for nothing: it may be idle, or send its head a byte
//! at a time to keep other clients out. Such connections wait in a line, and the one that has waited longest is
//! closed. A connection that is being answered is not in the line and never closed for another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The connections that wait for a request, longest first.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, Arc<Notify>>,
}

/// A connection's place in a [`Line`], which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    line: Arc<Line>,
    place: Mutex<Place>,
    leave: Arc<Notify>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Waits(u64),
    IsAnswered,
}

impl Line {
    /// Adds a new connection, which waits for its first request.
    pub fn join(self: &Arc<Line>) -> Arc<Turn> {
        let leave = Arc::new(Notify::new());
        let place = Mutex::new(Place::Waits(self.enter(&leave)));
        Arc::new(Turn { line: self.clone(), place, leave })
    }

    /// Closes the connection that has waited longest. `false` if none waits.
    pub fn make_room(&self) -> bool {
        match self.lock().by_age.pop_first() {
            Some((_, leave)) => {
                leave.notify_one();
                true
            }
            None => false,
        }
    }

    fn enter(&self, leave: &Arc<Notify>) -> u64 {
        let mut waiting = self.lock();
        waiting.next += 1;
        let at = waiting.next;
        waiting.by_age.insert(at, leave.clone());
        at
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while holding the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Takes the connection out of the line for a request, until the returned guard is dropped.
    pub fn answering(self: &Arc<Turn>) -> Answering {
        let mut place = self.place();
        if let Place::Waits(at) = *place {
            self.line.lock().by_age.remove(&at);
        }
        *place = Place::IsAnswered;
        Answering(self.clone())
    }

    /// Puts the connection at the end of the line, to wait for the next request.
    pub fn wait(&self) {
        let mut place = self.place();
        if let Place::Waits(at) = *place {
            self.line.lock().by_age.remove(&at);
        }
        *place = Place::Waits(self.line.enter(&self.leave));
    }

    /// Waits until this connection must make room for another one, which never happens during a request.
    pub async fn ended(&self) {
        loop {
            self.leave.notified().await;
            // A request may have arrived in between; it is answered first.
            if matches!(*self.place(), Place::Waits(_)) {
                return;
            }
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Place::Waits(at) = *self.place() {
            self.line.lock().by_age.remove(&at);
        }
    }
}

/// Marks a request under way; on drop its connection waits for the next one, last in line.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Turn>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_gone(turn: &Turn) -> bool {
        tokio::time::timeout(Duration::ZERO, turn.ended()).await.is_ok()
    }

    #[tokio::test]
    async fn the_longest_waiting_is_closed_and_answered_ones_stay() {
        let line = Arc::new(Line::default());
        let [first, second, third] = [line.join(), line.join(), line.join()];
        let answering = first.answering();
        assert!(line.make_room());
        assert!(!is_gone(&first).await && is_gone(&second).await && !is_gone(&third).await);
        drop(answering);
        assert!(line.make_room() && is_gone(&third).await && !is_gone(&first).await);
        first.wait();
        assert!(line.make_room() && is_gone(&first).await);
        assert!(!line.make_room());
    }

    #[tokio::test]
    async fn a_request_that_races_with_the_close_is_answered() {
        let line = Arc::new(Line::default());
        let turn = line.join();
        assert!(line.make_room());
        let answering = turn.answering();
        assert!(!is_gone(&turn).await);
        drop(answering);
        assert!(line.make_room() && is_gone(&turn).await);
    }

    #[test]
    fn dropped_connections_leave_the_line() {
        let line = Arc::new(Line::default());
        drop(line.join());
        assert!(!line.make_room());
    }
}
