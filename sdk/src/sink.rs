//! hot path
//!
//! Lines on their way out of a worker: a bounded queue that never makes it wait.
//!
//! A worker gathers lines in a buffer of its own, its [`Outlet`]. A buffer that is full, or has
//! waited long enough, goes to whoever writes it on a thread that may wait, the [`Intake`], and
//! comes back to be filled again: once the buffers are warm, nothing is allocated. When the other
//! side does not keep up, a worker's lines wait up to [`Bounds::waiting`] bytes; those beyond are
//! dropped and counted. Batches of one worker arrive in order and end with a whole line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Batches of one outlet that are under way; what comes meanwhile gathers in its buffer.
const UNDER_WAY: usize = 32;

/// Batches of all outlets that are under way.
const QUEUED: usize = 1024;

/// Empty buffers an outlet keeps.
const SPARE: usize = 4;

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes a worker gathers before it hands them over.
    pub buffer: usize,
    /// Bytes of one worker that wait to be written; past it lines are dropped.
    pub waiting: usize,
}

/// The way in, from which every worker makes its [`Outlet`].
#[derive(Debug, Clone)]
pub struct Sink {
    to: SyncSender<Parcel>,
    bounds: Bounds,
    shared: Arc<Shared>,
}

/// The other end, for the thread that writes.
#[derive(Debug)]
pub struct Intake {
    from: Receiver<Parcel>,
    shared: Arc<Shared>,
}

/// What comes out.
#[derive(Debug)]
pub enum Delivery {
    Batch(Batch),
    /// Somebody called ([`Sink::call`]).
    Called,
}

/// Lines of one worker. Dropping it gives its buffer back.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    lines: u64,
    back: SyncSender<Vec<u8>>,
}

/// A worker's own part. It belongs to the worker's thread.
#[derive(Debug)]
pub struct Outlet {
    sink: Sink,
    current: Vec<u8>,
    lines: u64,
    /// Bytes handed over that have not come back, and in how many batches.
    waiting: usize,
    under_way: usize,
    spare: Vec<Vec<u8>>,
    back: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

#[derive(Debug)]
enum Parcel {
    Batch(Batch),
    /// Look at what is shared.
    Wake,
}

#[derive(Debug, Default)]
struct Shared {
    dropped: AtomicU64,
    called: AtomicBool,
    ended: AtomicBool,
}

/// Makes both ends.
pub fn new(bounds: Bounds) -> (Sink, Intake) {
    let (to, from) = sync_channel(QUEUED);
    let shared = Arc::new(Shared::default());
    (Sink { to, bounds, shared: shared.clone() }, Intake { from, shared })
}

impl Sink {
    /// A worker's part of it.
    pub fn outlet(&self) -> Outlet {
        let (back, returned) = sync_channel(UNDER_WAY);
        Outlet {
            sink: self.clone(),
            current: Vec::new(),
            lines: 0,
            waiting: 0,
            under_way: 0,
            spare: Vec::with_capacity(SPARE),
            back,
            returned,
        }
    }

    /// Lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Makes the other side see [`Delivery::Called`] soon.
    pub fn call(&self) {
        self.shared.called.store(true, Ordering::Release);
        // Where the queue is full the other side wakes anyway.
        let _ = self.to.try_send(Parcel::Wake);
    }

    /// No more will come: the other side takes what is here and ends.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        let _ = self.to.try_send(Parcel::Wake);
    }
}

impl Intake {
    /// Waits for what comes next; `None` at the end.
    pub fn next(&self) -> Option<Delivery> {
        loop {
            if self.shared.called.swap(false, Ordering::Acquire) {
                return Some(Delivery::Called);
            }
            let parcel = if self.shared.ended.load(Ordering::Acquire) {
                match self.from.try_recv() {
                    Ok(parcel) => parcel,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
                }
            } else {
                self.from.recv().ok()?
            };
            if let Parcel::Batch(batch) = parcel {
                return Some(Delivery::Batch(batch));
            }
        }
    }

    /// Counts lines that were taken and could not be written.
    pub fn lost(&self, lines: u64) {
        self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
    }
}

impl Batch {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // There is room for all that are under way; the worker may have ended.
        let _ = self.back.try_send(std::mem::take(&mut self.bytes));
    }
}

impl Outlet {
    /// Adds a line, which `write` appends with its end to the bytes it is given.
    #[inline]
    pub fn line(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.current.len() + self.waiting >= self.sink.bounds.waiting && !self.made_room() {
            self.sink.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.current.capacity() == 0 {
            self.current = self.fresh();
        }
        write(&mut self.current);
        self.lines += 1;
        if self.current.len() >= self.sink.bounds.buffer {
            self.flush();
        }
    }

    /// Hands over what was gathered, if the other side has room for it.
    pub fn flush(&mut self) {
        self.collect();
        if self.lines == 0 {
            self.spare.clear();
            return;
        }
        if self.under_way == UNDER_WAY {
            return;
        }
        let bytes = std::mem::take(&mut self.current);
        let size = bytes.len();
        let batch = Batch { bytes, lines: self.lines, back: self.back.clone() };
        match self.sink.to.try_send(Parcel::Batch(batch)) {
            Ok(()) => {
                self.lines = 0;
                self.waiting += size;
                self.under_way += 1;
                self.current = self.spare.pop().unwrap_or_default();
            }
            Err(refused) => {
                use std::sync::mpsc::TrySendError::{Disconnected, Full};
                let (Full(parcel) | Disconnected(parcel)) = refused;
                if let Parcel::Batch(mut batch) = parcel {
                    // Its drop sends nothing but an empty buffer, which `collect` would count.
                    self.current = std::mem::take(&mut batch.bytes);
                    self.under_way += 1;
                }
            }
        }
    }

    /// Takes back what was written.
    fn collect(&mut self) {
        while let Ok(mut buffer) = self.returned.try_recv() {
            self.under_way -= 1;
            self.waiting -= buffer.len();
            buffer.clear();
            if self.spare.len() < SPARE && (1..=2 * self.sink.bounds.buffer).contains(&buffer.capacity()) {
                self.spare.push(buffer);
            }
        }
    }

    #[cold]
    fn made_room(&mut self) -> bool {
        self.flush();
        self.current.len() + self.waiting < self.sink.bounds.waiting
    }

    #[cold]
    fn fresh(&self) -> Vec<u8> {
        // Room for the line that fills it.
        Vec::with_capacity(self.sink.bounds.buffer + self.sink.bounds.buffer / 4)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.flush();
        if self.lines > 0 {
            self.sink.shared.dropped.fetch_add(self.lines, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { buffer: 100, waiting: 1000 };

    fn add(outlet: &mut Outlet, text: &str) {
        outlet.line(|out| out.extend_from_slice(text.as_bytes()));
    }

    fn batches(intake: &Intake) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(Delivery::Batch(batch)) = intake.next() {
            all.push(String::from_utf8(batch.bytes().to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn lines_come_in_order_and_whole() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        let lines: Vec<String> = (0..50).map(|n| format!("line {n}\n")).collect();
        for line in &lines {
            add(&mut outlet, line);
        }
        outlet.flush();
        sink.end();
        let batches = batches(&intake);
        assert!(batches.len() > 3, "{batches:?}");
        assert!(batches.iter().all(|batch| batch.ends_with('\n')), "{batches:?}");
        assert_eq!(batches.concat(), lines.concat());
        assert_eq!(sink.dropped(), 0);
    }

    #[test]
    fn past_the_bound_lines_are_dropped_and_counted_until_there_is_room() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        for _ in 0..500 {
            add(&mut outlet, "0123456789\n");
        }
        let kept = 500 - sink.dropped();
        assert!((900..=1100).contains(&(kept * 11)), "{kept} lines kept");
        for _ in 0..5 {
            drop(intake.next());
        }
        add(&mut outlet, "late\n");
        drop(outlet);
        sink.end();
        assert!(batches(&intake).concat().ends_with("late\n"));
        assert_eq!(500 - sink.dropped(), kept);
    }

    #[test]
    fn small_batches_do_not_fill_the_queue() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        for _ in 0..UNDER_WAY + 20 {
            add(&mut outlet, "x\n");
            outlet.flush();
        }
        assert_eq!(sink.dropped(), 0, "they wait in the buffer");
        drop(intake.next());
        drop(outlet);
        sink.end();
        assert_eq!(batches(&intake).concat().len(), 2 * (UNDER_WAY + 19));
    }

    #[test]
    fn buffers_come_back() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            add(&mut outlet, "0123456789\n");
            outlet.flush();
            let Some(Delivery::Batch(batch)) = intake.next() else { panic!("no batch") };
            seen.insert(batch.bytes().as_ptr());
        }
        assert!(seen.len() <= 3, "{} buffers", seen.len());
        // One huge line does not stay in memory.
        add(&mut outlet, &"x".repeat(5000));
        drop(intake.next());
        outlet.flush();
        assert!(outlet.current.capacity() + outlet.spare.iter().map(Vec::capacity).sum::<usize>() < 1000);
    }

    #[test]
    fn a_call_is_seen_between_batches_and_the_end_after_them() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        add(&mut outlet, "a\n");
        outlet.flush();
        sink.call();
        assert!(matches!(intake.next(), Some(Delivery::Called)));
        sink.end();
        assert!(matches!(intake.next(), Some(Delivery::Batch(_))));
        assert!(intake.next().is_none());
    }

    #[test]
    fn what_cannot_be_delivered_is_counted() {
        let (sink, intake) = new(BOUNDS);
        let mut outlet = sink.outlet();
        drop(intake);
        add(&mut outlet, "a\n");
        drop(outlet);
        assert_eq!(sink.dropped(), 1);
    }
}
