//! Counts the frames a peer sends, so that one that sends many and asks for little is noticed.
//!
//! PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM, CONTINUATION, empty DATA and what is unknown cost
//! credit ([`Credit`]).

use std::cell::Cell;

use super::unread::Unread;
use crate::credit::{Credit, RESET};

/// Bytes of a frame's head (RFC 9113 section 4.1).
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

#[derive(Debug)]
pub(super) struct Meter {
    /// The head of a frame, as far as it came.
    head: Cell<[u8; HEAD]>,
    have: Cell<usize>,
    /// Bytes to pass over: what is left of a frame's payload.
    skip: Cell<usize>,
    /// The payload being passed is a GOAWAY's, whose first four bytes matter.
    going: Cell<bool>,
    /// The payload being passed is that of SETTINGS.
    settling: Cell<bool>,
    settled: Cell<bool>,
    last: Cell<[u8; 4]>,
    last_have: Cell<usize>,
    /// The least that a GOAWAY named.
    gone: Cell<Option<u32>>,
    credit: Credit,
    /// Bytes of frames that came before this one.
    passed: Cell<u64>,
    /// The newest stream that the peer has begun.
    newest: Cell<u32>,
    /// The stream of whose trailers a part came last; none is zero.
    trailing: Cell<u32>,
    /// Of a client.
    unread: Option<Unread>,
}

impl Meter {
    /// Passes over `preface` bytes first. `most` is the credit to begin with and the most there can be.
    pub(super) fn new(preface: usize, most: u32, now: u64, unread: Option<Unread>) -> Meter {
        Meter {
            head: Cell::default(),
            have: Cell::new(0),
            skip: Cell::new(preface),
            going: Cell::new(false),
            settling: Cell::new(false),
            settled: Cell::new(false),
            last: Cell::default(),
            last_have: Cell::new(0),
            gone: Cell::new(None),
            credit: Credit::new(most, now),
            passed: Cell::new(0),
            newest: Cell::new(0),
            trailing: Cell::new(0),
            unread,
        }
    }

    /// Looks at bytes that came.
    pub(super) fn note(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skip = self.skip.get();
            if skip > 0 {
                let n = skip.min(bytes.len());
                if self.going.get() {
                    self.note_going(&bytes[..n]);
                }
                self.skip.set(skip - n);
                bytes = &bytes[n..];
                if n == skip && self.settling.get() {
                    self.settled.set(true);
                }
                continue;
            }
            let (mut head, have) = (self.head.get(), self.have.get());
            let n = (HEAD - have).min(bytes.len());
            head[have..have + n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            self.head.set(head);
            self.have.set(have + n);
            if have + n == HEAD {
                self.have.set(0);
                let [a, b, c, kind, flags, stream @ ..] = head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                self.skip.set(length);
                self.going.set(kind == GOAWAY);
                self.settling.set(kind == SETTINGS && flags & ACK == 0);
                if length == 0 && self.settling.get() {
                    self.settled.set(true);
                }
                self.last_have.set(0);
                self.credit.spend(cost(kind, flags, length));
                if let Some(unread) = &self.unread {
                    self.note_unread(unread, kind, u32::from_be_bytes(stream) & !(1 << 31), length);
                    self.passed.set(self.passed.get() + (HEAD + length) as u64);
                }
            }
        }
    }

    fn note_unread(&self, unread: &Unread, kind: u8, stream: u32, length: usize) {
        match kind {
            HEADERS if stream > self.newest.get() => {
                self.newest.set(stream);
                self.trailing.set(0);
            }
            HEADERS => {
                self.trailing.set(stream);
                unread.trailers(stream, length);
            }
            CONTINUATION if stream == self.trailing.get() => unread.trailers(stream, length),
            DATA => unread.piece(stream, length, self.passed.get()),
            RST_STREAM => unread.end(stream),
            _ => {}
        }
    }

    fn note_going(&self, bytes: &[u8]) {
        let (mut last, have) = (self.last.get(), self.last_have.get());
        let n = (last.len() - have).min(bytes.len());
        last[have..have + n].copy_from_slice(&bytes[..n]);
        self.last.set(last);
        self.last_have.set(have + n);
        if have + n == last.len() {
            let stream = u32::from_be_bytes(last) & !(1 << 31);
            self.gone.set(Some(self.gone.get().map_or(stream, |least| least.min(stream))));
        }
    }

    /// The last stream that the peer says it may have looked at, once it has said so. It may send more of the
    /// streams up to that one, and name an earlier one later (RFC 9113 section 6.8).
    pub(super) fn last_stream(&self) -> Option<u32> {
        self.gone.get()
    }

    /// The peer's settings have come.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.get()
    }

    pub(super) fn unread(&self) -> Option<&Unread> {
        self.unread.as_ref()
    }

    pub(super) fn credit(&self) -> &Credit {
        &self.credit
    }
}

fn cost(kind: u8, flags: u8, length: usize) -> i64 {
    match kind {
        DATA if length == 0 && flags & END_STREAM == 0 => 1,
        DATA | HEADERS => 0,
        RST_STREAM => RESET,
        // A long one is more work.
        _ => 1 + (length >> 8) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for frame in [frame(4, 0, &[]), frame(6, 0, &[6; 8]), frame(0, 0, &[1; 300]), frame(0, 0, &[])] {
            bytes.extend(frame);
        }
        bytes.extend(frame(GOAWAY, 0, &[0x80, 0, 1, 2, 0, 0, 0, 0]));
        for size in [1, 2, 3, 7, 9, 1000] {
            let meter = Meter::new(24, 10, 0, None);
            bytes.chunks(size).for_each(|part| meter.note(part));
            assert_eq!(
                meter.credit.left(),
                6,
                "SETTINGS, PING, an empty DATA and GOAWAY, in parts of {size}"
            );
            assert_eq!(meter.last_stream(), Some(0x102));
            assert!(meter.is_settled());
        }
    }

    #[test]
    fn what_a_goaway_said_holds_whatever_follows_it() {
        let goaway = |last: u32| frame(GOAWAY, 0, &[&last.to_be_bytes()[..], &[0; 4]].concat());
        let bytes = [goaway((1 << 31) - 1), goaway(5), frame(HEADERS, 4, &[0; 20]), frame(DATA, 1, &[1; 30])];
        for size in [1, 2, 3, 7, 9, 1000] {
            let meter = Meter::new(0, 10, 0, None);
            bytes.concat().chunks(size).for_each(|part| meter.note(part));
            assert_eq!(meter.last_stream(), Some(5), "in parts of {size}");
            meter.note(&goaway(7));
            assert_eq!(meter.last_stream(), Some(5), "a peer does not take back what it said");
        }
    }

    #[test]
    fn each_kind_of_flood_ends_and_work_is_free() {
        for flood in [
            frame(2, 0, &[0; 5]),
            frame(3, 0, &[0; 4]),
            frame(4, 0, &[]),
            frame(4, 1, &[]),
            frame(6, 0, &[0; 8]),
            frame(8, 0, &[0, 0, 0, 1]),
            frame(9, 0, &[]),
            frame(0, 0, &[]),
            frame(200, 0, &[]),
            frame(200, 0, &[0; 1024]),
        ] {
            let meter = Meter::new(0, 1000, 0, None);
            let before = (0..2000).take_while(|_| {
                meter.note(&flood);
                !meter.credit.is_flood(0)
            });
            assert!(before.count() <= 1000, "{flood:?}");
        }
        let meter = Meter::new(0, 10, 0, None);
        for _ in 0..10_000 {
            meter.note(&frame(1, 4, &[0; 20]));
            meter.credit.request();
            meter.note(&frame(0, 0, &[0; 20]));
            meter.note(&frame(8, 0, &[0, 0, 0, 1]));
            meter.note(&frame(8, 0, &[0, 0, 0, 1]));
            assert!(!meter.credit.is_flood(0));
        }
    }

    #[test]
    fn requests_that_are_all_reset_are_a_flood_and_a_few_are_not() {
        let reset = |every: u32| {
            let meter = Meter::new(0, 1000, 0, None);
            (1..=10_000u32).all(|number| {
                meter.note(&frame(1, 4, &[0; 20]));
                meter.credit.request();
                if number.is_multiple_of(every) {
                    meter.note(&frame(3, 0, &[0; 4]));
                }
                !meter.credit.is_flood(0)
            })
        };
        assert!(!reset(1) && reset(2) && reset(10));
    }

    #[test]
    fn a_peer_has_settled_when_all_of_its_settings_are_there() {
        let others =
            [frame(6, 0, &[0; 8]), frame(SETTINGS, ACK, &[]), frame(200, 0, &[]), frame(DATA, 0, &[1])];
        for settings in [frame(SETTINGS, 0, &[]), frame(SETTINGS, 0, &[0; 12])] {
            let meter = Meter::new(0, 1000, 0, None);
            for other in &others {
                meter.note(other);
                assert!(!meter.is_settled(), "{other:?}");
            }
            let (last, begin) = settings.split_last().unwrap();
            for byte in begin {
                meter.note(&[*byte]);
                assert!(!meter.is_settled());
            }
            meter.note(&[*last]);
            assert!(meter.is_settled());
            others.iter().for_each(|other| meter.note(other));
            assert!(meter.is_settled());
        }
    }

    #[test]
    fn trailers_and_small_data_count_until_the_stream_is_over() {
        let of = |kind, flags, stream: u32, length: usize| {
            let mut frame = frame(kind, flags, &vec![0x82; length]);
            // The bit before the number means nothing (RFC 9113 section 4.1).
            frame[5..9].copy_from_slice(&(stream | u32::from(kind == DATA) << 31).to_be_bytes());
            frame
        };
        let budget = sdk::budget::Budget::new(1 << 20);
        let meter = Meter::new(0, 1000, 0, Some(Unread::all(1 << 20, 34_000, &budget)));
        for (frame, taken) in [
            (of(HEADERS, 0, 1, 30), 0),
            (of(CONTINUATION, 4, 1, 30), 0),
            (of(HEADERS, 4, 3, 30), 0),
            (of(DATA, 0, 1, 16 << 10), 0),
            (of(HEADERS, 1, 1, 3), 300),
            (of(CONTINUATION, 4, 1, 2), 500),
            (of(HEADERS, 5, 3, 1), 600),
            (of(DATA, 0, 1, 30), 600 + 512 + (16 << 10)),
            (of(RST_STREAM, 0, 1, 4), 100),
        ] {
            meter.note(&frame);
            assert_eq!(budget.taken(), taken);
        }
    }

    #[test]
    fn a_frame_lies_where_those_before_it_end() {
        let budget = sdk::budget::Budget::new(1 << 30);
        let meter = Meter::new(0, 1000, 0, Some(Unread::all(1 << 30, 3400, &budget)));
        let data = frame(DATA, 0, &[1; 16]);
        let taken = |frames: usize, blocks: usize| frames * 512 + blocks * (16 << 10);
        // All of these fit into 8 KiB, which are read at a time.
        (0..300).for_each(|_| meter.note(&data));
        assert_eq!(budget.taken(), taken(300, 1));
        meter.note(&frame(200, 0, &[0; 9000]));
        meter.note(&data);
        assert_eq!(budget.taken(), taken(301, 2));
    }

    #[test]
    fn time_brings_credit() {
        let meter = Meter::new(0, 10, 0, None);
        for second in 1..100 {
            (0..50).for_each(|_| meter.note(&frame(6, 0, &[0; 8])));
            assert!(!meter.credit.is_flood(second * 1000), "{second}");
        }
        (0..200).for_each(|_| meter.note(&frame(6, 0, &[0; 8])));
        assert!(meter.credit.is_flood(100_000));
    }
}
