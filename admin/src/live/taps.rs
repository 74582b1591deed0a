//! Taps: collects the events of workers and sends them to the clients of `GET /apisix/admin/tap`.
//!
//! One task runs while a tap is open. It never waits for a client: events that find its queue full
//! are lost and counted, and the count is sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sdk::tap::{Event, Filter, MOST, Taps};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::event_of;

/// How often the rings of the workers are emptied.
const EVERY: Duration = Duration::from_millis(100);

/// Rounds between two reports of lost events, which also show that the connection lives.
const REPORTED: u32 = 10;

/// Events that wait for one client.
const QUEUE: usize = 512;

/// The open taps. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TapStreams {
    taps: Option<Arc<Taps>>,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    outs: [Option<Out>; MOST],
    /// The task runs.
    runs: bool,
}

#[derive(Debug)]
struct Out {
    queue: mpsc::Sender<Bytes>,
    headers: bool,
    lost: u64,
}

impl TapStreams {
    pub fn new(taps: Option<Arc<Taps>>) -> TapStreams {
        TapStreams { taps, open: Arc::default() }
    }

    pub fn count(&self) -> usize {
        self.taps.as_ref().map_or(0, |taps| taps.count())
    }

    /// Opens a tap, which ends when the receiver is dropped. Must be called on a runtime.
    ///
    /// # Errors
    /// A message for people: taps are switched off, or all are in use.
    pub fn open(&self, filter: Filter) -> Result<mpsc::Receiver<Bytes>, &'static str> {
        let taps = self.taps.as_ref().ok_or("taps are switched off (sluice.tap)")?;
        let (queue, events) = mpsc::channel(QUEUE);
        let mut open = self.lock();
        // Places of clients that have left.
        self.close_left(taps, &mut open);
        let headers = filter.headers;
        let place = taps.open(filter).ok_or("8 taps are open, and there may be no more")?;
        open.outs[place] = Some(Out { queue, headers, lost: 0 });
        if !std::mem::replace(&mut open.runs, true) {
            let (streams, taps) = (self.clone(), taps.clone());
            control::tasks::spawn(async move { streams.run(&taps).await });
        }
        Ok(events)
    }

    async fn run(&self, taps: &Taps) {
        let mut rounds = 0u32;
        loop {
            tokio::time::sleep(EVERY).await;
            rounds = rounds.wrapping_add(1);
            let mut open = self.lock();
            self.close_left(taps, &mut open);
            if open.outs.iter().all(Option::is_none) {
                open.runs = false;
                return;
            }
            taps.collect(|event| send(&mut open.outs, &event));
            if rounds.is_multiple_of(REPORTED) {
                for (place, out) in open.outs.iter_mut().enumerate() {
                    if let Some(out) = out {
                        let dropped = taps.dropped(place) + out.lost;
                        // A client whose queue is full gets the next report.
                        let _ = out.queue.try_send(event_of("status", &json!({ "dropped": dropped })));
                    }
                }
            }
        }
    }

    fn close_left(&self, taps: &Taps, open: &mut Open) {
        for (place, out) in open.outs.iter_mut().enumerate() {
            if out.as_ref().is_some_and(|out| out.queue.is_closed()) {
                taps.close(place);
                *out = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send(outs: &mut [Option<Out>; MOST], event: &Event) {
    let made = |headers| event_of("request", &shown(event, headers));
    let (mut with, mut without) = (None, None);
    for (place, out) in outs.iter_mut().enumerate() {
        let Some(out) = out.as_mut().filter(|_| event.taken_by & (1 << place) != 0) else { continue };
        let text = match out.headers {
            true => with.get_or_insert_with(|| made(true)),
            false => without.get_or_insert_with(|| made(false)),
        };
        if out.queue.try_send(text.clone()).is_err() {
            out.lost += 1;
        }
    }
}

/// The JSON of an event. Times are in milliseconds.
fn shown(event: &Event, headers: bool) -> Value {
    let ms = |us: u64| us as f64 / 1000.0;
    let times = &event.times;
    let mut value = json!({
        "time": times.unix_ms,
        "client": event.client,
        "method": event.method,
        "host": event.host,
        "path": event.path,
        "route": event.route,
        "route_name": event.route_name,
        "consumer": event.consumer,
        "answered_by": event.answered_by,
        "node": event.node.map(|node| node.to_string()),
        "attempts": event.attempts,
        "status": event.status,
        "reason": event.reason,
        "received": event.received,
        "sent": event.sent,
        "total": ms(times.total_us),
        "before": ms(times.before_us),
        "wait": times.wait_us.map(ms),
        "upstream": times.upstream_us.map(ms),
    });
    if headers {
        value["headers"] = event.headers.iter().map(|(name, value)| json!([name, value])).collect();
    }
    value
}
