//! hot path
//!
//! A worker's buffer in front of a sink, for entries of every request.
//!
//! Lines are gathered in the buffer. When it is full, or has waited long enough, it is sent to the
//! deliverer and comes back for reuse: once there are enough buffers, nothing is allocated. If the
//! deliverer is too slow, up to [`Bounds::waiting`] bytes of a worker wait; further lines are
//! dropped and counted. Batches of one worker arrive in order and end with a complete line.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::queue::{Packet, Sink};

/// Maximum batches of one outlet in flight; meanwhile lines are gathered in its buffer.
const UNDER_WAY: usize = 32;

/// Maximum empty buffers kept by an outlet.
const SPARE: usize = 4;

/// The limits of an outlet.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes that a worker gathers before it sends them.
    pub buffer: usize,
    /// Maximum bytes of one worker that wait to be written; further lines are dropped.
    pub waiting: usize,
}

/// A worker's outlet. It belongs to the worker's thread.
#[derive(Debug)]
pub struct Outlet {
    sink: Sink,
    bounds: Bounds,
    current: Vec<u8>,
    lines: usize,
    /// Bytes in flight, and the number of batches.
    waiting: usize,
    under_way: usize,
    spare: Vec<Vec<u8>>,
    back: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

impl Outlet {
    pub(super) fn new(sink: Sink, bounds: Bounds) -> Outlet {
        let (back, returned) = sync_channel(UNDER_WAY);
        Outlet {
            sink,
            bounds,
            current: Vec::new(),
            lines: 0,
            waiting: 0,
            under_way: 0,
            spare: Vec::with_capacity(SPARE),
            back,
            returned,
        }
    }

    /// Adds a line; `write` appends it, with its line end, to its argument.
    #[inline]
    pub fn line(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.current.len() + self.waiting >= self.bounds.waiting && !self.made_room() {
            self.sink.lost(1);
            return;
        }
        if self.current.capacity() == 0 {
            self.current = self.fresh();
        }
        write(&mut self.current);
        self.lines += 1;
        if self.current.len() >= self.bounds.buffer {
            self.flush();
        }
    }

    /// Sends the gathered lines, if the queue has room.
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
        let packet = Packet { record: bytes.into(), entries: self.lines, back: Some(self.back.clone()) };
        match self.sink.put(packet) {
            Ok(()) => {
                self.lines = 0;
                self.waiting += size;
                self.under_way += 1;
                self.current = self.spare.pop().unwrap_or_default();
            }
            Err(refused) => self.current = refused.record.bytes,
        }
    }

    /// Collects returned buffers.
    fn collect(&mut self) {
        while let Ok(mut buffer) = self.returned.try_recv() {
            self.under_way -= 1;
            self.waiting -= buffer.len();
            buffer.clear();
            if self.spare.len() < SPARE && (1..=2 * self.bounds.buffer).contains(&buffer.capacity()) {
                self.spare.push(buffer);
            }
        }
    }

    #[cold]
    fn made_room(&mut self) -> bool {
        self.flush();
        self.current.len() + self.waiting < self.bounds.waiting
    }

    #[cold]
    fn fresh(&self) -> Vec<u8> {
        // Room for the line that fills the buffer, too.
        Vec::with_capacity(self.bounds.buffer + self.bounds.buffer / 4)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.flush();
        if self.lines > 0 {
            self.sink.lost(self.lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Batching, Destination, Intake, Next, Spec, of_buffers};

    const BOUNDS: Bounds = Bounds { buffer: 100, waiting: 1000 };

    fn both() -> (Sink, Intake) {
        let spec = Spec {
            plugin: "test",
            owner: None,
            target: Destination::file(""),
            batching: Batching::at_once("test"),
            max_entries: usize::MAX,
            max_bytes: usize::MAX,
        };
        of_buffers(spec)
    }

    fn add(outlet: &mut Outlet, text: &str) {
        outlet.line(|out| out.extend_from_slice(text.as_bytes()));
    }

    fn batches(intake: &Intake) -> Vec<String> {
        let mut all = Vec::new();
        while let Next::Entries(batch) = intake.next() {
            all.push(String::from_utf8(batch.bytes().to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn lines_arrive_complete_and_in_order() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
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
    fn lines_are_sent_as_long_as_they_are_delivered() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
        for n in 0..100 {
            add(&mut outlet, &format!("line {n}\n"));
            outlet.flush();
            let Some(Next::Entries(batch)) = intake.take() else { panic!("line {n} was not sent") };
            assert_eq!(batch.bytes(), format!("line {n}\n").as_bytes());
        }
        assert_eq!(sink.dropped(), 0);
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_counted() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
        for _ in 0..500 {
            add(&mut outlet, "0123456789\n");
        }
        let kept = 500 - sink.dropped();
        assert!((900..=1100).contains(&(kept * 11)), "{kept} lines kept");
        // Now there is room for as many as were taken, and for no more.
        for _ in 0..5 {
            drop(intake.next());
        }
        for _ in 0..500 {
            add(&mut outlet, "0123456789\n");
        }
        let again = 1000 - sink.dropped() - kept;
        assert!((400..=600).contains(&(again * 11)), "{again} lines kept");
        drop(intake.next());
        add(&mut outlet, "late\n");
        drop(outlet);
        sink.end();
        assert!(batches(&intake).concat().ends_with("late\n"));
        assert_eq!(1000 - sink.dropped(), kept + again);
    }

    #[test]
    fn small_batches_do_not_fill_the_queue() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
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
    fn buffers_are_reused() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            add(&mut outlet, "0123456789\n");
            outlet.flush();
            let Next::Entries(batch) = intake.next() else { panic!("no batch") };
            seen.insert(batch.bytes().as_ptr());
        }
        assert!(seen.len() <= 3, "{} buffers", seen.len());
        // The buffer of one huge line is not kept.
        add(&mut outlet, &"x".repeat(5000));
        drop(intake.next());
        outlet.flush();
        assert!(outlet.current.capacity() + outlet.spare.iter().map(Vec::capacity).sum::<usize>() < 1000);
    }

    #[test]
    fn reopening_comes_between_batches_and_the_end_after_them() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
        add(&mut outlet, "a\n");
        outlet.flush();
        sink.reopen();
        add(&mut outlet, "b\n");
        add(&mut outlet, "c\n");
        outlet.flush();
        assert!(matches!(intake.next(), Next::Reopen));
        sink.end();
        let lines = || match intake.next() {
            Next::Entries(taken) => taken.entries(),
            other => panic!("{other:?}"),
        };
        assert_eq!((lines(), lines()), (1, 2));
        assert!(matches!(intake.next(), Next::End));
    }

    #[test]
    fn undeliverable_lines_are_counted() {
        let (sink, intake) = both();
        let mut outlet = sink.outlet(BOUNDS);
        drop(intake);
        add(&mut outlet, "a\n");
        drop(outlet);
        assert_eq!(sink.dropped(), 1);
    }
}
