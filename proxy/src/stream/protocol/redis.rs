//! hot path
//!
//! Redis: commands and the replies to them, which come in order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use snapshot::streams::{CommandFaults, Faults};
use wire::redis::{Kind, Part, Replies, Reply, Requests};

use super::{CallLog, MOST_CALLS};
use crate::exchange::fault::Fault;
use crate::relay::{Passed, Side, Stop, Tap};

/// Bytes of a command's name, which is longer than any of Redis and its modules.
const NAME: usize = 32;

/// The label of commands that the server does not know, or that no server could know.
const UNKNOWN: &str = "unknown";

/// Bytes of an argument in a command line, as in APISIX.
const ARGUMENT: u64 = 128;

/// Bytes of a command line.
const LINE: usize = 4 << 10;

/// Bytes of the command lines of all calls of a stream that are under way.
const LINES: usize = 64 << 10;

/// The name of a command, in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    bytes: [u8; NAME],
    len: u8,
    /// It is longer.
    cut: bool,
}

impl Name {
    const NONE: Name = Name { bytes: [0; NAME], len: 0, cut: false };

    fn push(&mut self, more: &[u8]) {
        let room = &mut self.bytes[usize::from(self.len)..];
        let here = room.len().min(more.len());
        self.cut |= more.len() > here;
        for (to, from) in room.iter_mut().zip(more) {
            *to = from.to_ascii_lowercase();
        }
        self.len += here as u8;
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// As a label: letters, digits and what stands between them.
    fn label(&self) -> &str {
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-|".contains(byte);
        match std::str::from_utf8(self.bytes()) {
            Ok(name) if !self.cut && !name.is_empty() && name.bytes().all(|byte| plain(&byte)) => name,
            _ => UNKNOWN,
        }
    }
}

/// A command whose reply is still to come.
#[derive(Debug, Clone, Copy)]
struct Call {
    began_us: u64,
    name: Name,
    /// Bytes of its line among those of all.
    line: u16,
    /// A subscription to several channels has a reply for each.
    replies: u64,
}

/// The calls of a stream.
pub(super) struct Calls<'c, 's> {
    log: CallLog<'c, 's>,
    /// Calls are logged or counted; otherwise none is kept, and replies are not looked at.
    watches: bool,
    waiting: VecDeque<Call>,
    /// Their lines, one after the other.
    lines: VecDeque<u8>,
    /// Commands behind those in `waiting` that are not logged, as there were too many.
    beyond: u64,
    /// The client has subscribed to something, so that messages come between replies.
    subscribed: bool,
}

impl<'c, 's> Calls<'c, 's> {
    pub(super) fn new(log: CallLog<'c, 's>) -> Calls<'c, 's> {
        let watches = log.is_needed();
        Calls { log, watches, waiting: VecDeque::new(), lines: VecDeque::new(), beyond: 0, subscribed: false }
    }

    /// A command is whole.
    fn begin(&mut self, began_us: u64, name: Name, arguments: u64, line: &[u8]) {
        if self.beyond > 0 || self.waiting.len() >= MOST_CALLS {
            self.beyond += 1;
            self.log.worker.shard.call_unwatched();
            return;
        }
        let line = &line[..line.len().min(LINES - self.lines.len())];
        self.lines.extend(line);
        let replies = match is_subscription(name.bytes()) {
            true => arguments.saturating_sub(1).max(1),
            false => 1,
        };
        self.waiting.push_back(Call { began_us, name, line: line.len() as u16, replies });
    }

    /// Takes a complete reply, or a message that is no reply.
    fn reply(&mut self, now_us: u64, reply: &Reply) {
        let text = reply.text.as_bytes();
        let first = self.waiting.front_mut();
        let subscribes = first.as_ref().is_some_and(|call| is_subscription(call.name.bytes()));
        let is_event = match reply.kind {
            Kind::Push => true,
            Kind::Aggregate => self.subscribed || subscribes,
            Kind::Plain | Kind::Error => false,
        };
        if is_event && is_subscription(text) {
            if reply.kind == Kind::Aggregate {
                self.subscribed = reply.number != Some(0);
            }
            // Of another command, or of none, it is news.
            let Some(call) = first.filter(|call| call.name.bytes() == text) else { return };
            call.replies -= 1;
            if call.replies == 0 {
                self.end(now_us, false);
            }
        } else if reply.kind != Kind::Push && !(is_event && is_message(text)) {
            self.end(now_us, reply.kind == Kind::Error && says_nothing_of_it(text));
        }
    }

    /// The first of the commands has its reply.
    fn end(&mut self, now_us: u64, unknown: bool) {
        let Some(call) = self.waiting.pop_front() else {
            self.beyond = self.beyond.saturating_sub(1);
            return;
        };
        let took_us = now_us.saturating_sub(call.began_us);
        let lines = &mut self.lines;
        if self.log.protocol.counts {
            // Names that clients make up would be series without end.
            let name = if unknown { UNKNOWN } else { call.name.label() };
            let route = self.log.x.route().map_or("", |route| &route.id);
            self.log.worker.shard.redis_command(route, name, took_us);
        }
        self.log.log(took_us, Some(|out: &mut Vec<u8>| out.extend(lines.iter().take(call.line.into()))));
        lines.drain(..usize::from(call.line));
        if self.waiting.is_empty() {
            // The memory of a burst is not kept.
            self.waiting.shrink_to(16);
            lines.shrink_to(LINE);
        }
    }

    /// Ends the calls of a stream that is over. Those without a reply are logged as well, as in APISIX, but counted
    /// as [`UNKNOWN`]: no server has said that there is such a command.
    pub(super) fn close(mut self) -> Option<Fault> {
        let now_us = if self.waiting.is_empty() { 0 } else { self.log.worker.clock.micros() };
        while !self.waiting.is_empty() {
            self.end(now_us, true);
        }
        self.log.close()
    }
}

/// Whether an error says nothing of the command: servers send it to any command, and to input that is no command.
fn says_nothing_of_it(error: &[u8]) -> bool {
    let general: [&[u8]; 4] =
        [b"ERR unknown command", b"ERR max number of clients", b"ERR Protocol error", b"DENIED "];
    general.iter().any(|beginning| error.starts_with(beginning))
}

fn is_subscription(name: &[u8]) -> bool {
    matches!(
        name,
        b"subscribe" | b"unsubscribe" | b"psubscribe" | b"punsubscribe" | b"ssubscribe" | b"sunsubscribe"
    )
}

fn is_message(name: &[u8]) -> bool {
    matches!(name, b"message" | b"pmessage" | b"smessage")
}

/// Returns the taps on the client's commands and on the server's replies.
pub(super) fn taps<'r, 'c, 's>(
    calls: &'r RefCell<Calls<'c, 's>>,
    faults: &'r Faults,
) -> (Commands<'r, 'c, 's>, Answers<'r, 'c, 's>) {
    let watches = calls.borrow().watches;
    let lines = calls.borrow().log.has_loggers();
    let commands = Commands {
        calls,
        faults,
        watches,
        lines,
        requests: Requests::default(),
        name: Name::NONE,
        arguments: 0,
        at: 0,
        len: 0,
        seen: 0,
        fault: None,
        key: Vec::new(),
        reads_key: false,
        hold: None,
        line: Vec::new(),
        looked: 0,
    };
    (commands, Answers { calls, watches, replies: Replies::default() })
}

/// Looks at commands.
pub(super) struct Commands<'r, 'c, 's> {
    calls: &'r RefCell<Calls<'c, 's>>,
    faults: &'r Faults,
    watches: bool,
    /// Loggers want the command lines.
    lines: bool,
    requests: Requests,
    // the command that is being read
    name: Name,
    arguments: u64,
    at: u64,
    /// Of the argument, and how much of it was there.
    len: u64,
    seen: u64,
    /// The faults of this command, which may hold it back.
    fault: Option<&'r CommandFaults>,
    /// The argument, where it may be a key of that.
    key: Vec<u8>,
    reads_key: bool,
    /// The delay of the fault that a key has matched.
    hold: Option<Duration>,
    line: Vec<u8>,
    /// Bytes that were looked at before and held back.
    looked: usize,
}

impl Tap for Commands<'_, '_, '_> {
    fn look(&mut self, bytes: &[u8]) -> Result<Passed, Stop> {
        let mut at = std::mem::take(&mut self.looked);
        let now_us = if self.watches { self.calls.borrow().log.worker.clock.micros() } else { 0 };
        while at < bytes.len() {
            let (used, part) = self
                .requests
                .next(&bytes[at..])
                .map_err(|refusal| self.calls.borrow_mut().log.refuse(Side::Client, refusal.as_str()))?;
            at += used;
            match part {
                None => {}
                Some(Part::Command(arguments)) => self.command(arguments),
                Some(Part::Argument(len)) => self.argument(len),
                Some(Part::Bytes(piece)) => self.piece(piece),
                Some(Part::ArgumentEnd { last }) => {
                    self.argument_end();
                    if last && let Some(time) = self.command_end(now_us) {
                        // Without its last byte the server does nothing of it.
                        self.looked = 1;
                        return Ok(Passed { now: at - 1, hold: Some(time) });
                    }
                }
            }
        }
        Ok(Passed { now: bytes.len(), hold: None })
    }
}

impl Commands<'_, '_, '_> {
    fn command(&mut self, arguments: u64) {
        self.name = Name::NONE;
        self.arguments = arguments;
        self.at = 0;
        self.fault = None;
        self.hold = None;
        self.line.clear();
    }

    fn argument(&mut self, len: u64) {
        self.len = len;
        self.seen = 0;
        self.key.clear();
        self.reads_key = self.hold.is_none()
            && self
                .fault
                .is_some_and(|fault| fault.keys.has(self.at, self.arguments) && len <= fault.longest as u64);
        if self.at > 0 {
            self.write(b" ");
        }
    }

    fn piece(&mut self, piece: &[u8]) {
        if self.at == 0 {
            self.name.push(piece);
        } else if self.reads_key {
            self.key.extend_from_slice(piece);
        }
        if self.at > 0 && self.seen < ARGUMENT {
            let shown = piece.len().min((ARGUMENT - self.seen) as usize);
            self.write(&piece[..shown]);
        }
        self.seen += piece.len() as u64;
    }

    fn argument_end(&mut self) {
        if self.at == 0 {
            // A name that was cut is no command's.
            self.fault = if self.name.cut { None } else { self.faults.of(self.name.bytes()) };
            let name = self.name;
            self.write(name.bytes());
        } else if let Some(fault) = self.fault.filter(|_| self.reads_key) {
            self.hold = fault.with_key(&self.key);
        }
        if self.lines && self.at > 0 && self.len > ARGUMENT && self.line.len() < LINE {
            use std::io::Write;
            // Writing to memory does not fail, and it is little.
            let _ = write!(self.line, "...({} bytes)", self.len);
        }
        self.at += 1;
    }

    /// How long the command is to wait.
    fn command_end(&mut self, now_us: u64) -> Option<Duration> {
        if self.watches {
            let mut calls = self.calls.borrow_mut();
            calls.begin(now_us, self.name, self.arguments, &self.line[..self.line.len().min(LINE)]);
        }
        self.hold.or(self.fault?.otherwise).filter(|time| !time.is_zero())
    }

    /// Writes to the command line, as far as there is room.
    fn write(&mut self, text: &[u8]) {
        if self.lines {
            let room = LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
        }
    }
}

/// Looks at replies.
pub(super) struct Answers<'r, 'c, 's> {
    calls: &'r RefCell<Calls<'c, 's>>,
    watches: bool,
    replies: Replies,
}

impl Tap for Answers<'_, '_, '_> {
    fn look(&mut self, bytes: &[u8]) -> Result<Passed, Stop> {
        if self.watches {
            let mut calls = self.calls.borrow_mut();
            let now_us = calls.log.worker.clock.micros();
            let mut at = 0;
            while at < bytes.len() {
                let (used, reply) = (self.replies.next(&bytes[at..]))
                    .map_err(|refusal| calls.log.refuse(Side::Upstream, refusal.as_str()))?;
                at += used;
                if let Some(reply) = reply {
                    calls.reply(now_us, &reply);
                }
            }
        }
        Ok(Passed { now: bytes.len(), hold: None })
    }
}

#[cfg(test)]
mod tests;
