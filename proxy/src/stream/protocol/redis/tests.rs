//! Commands and replies, without connections.

use std::sync::Arc;

use sdk::engine::Messages;
use sdk::meters::Meters;
use sdk::stream::Stream;
use sdk::{Client, Exchange};
use serde_json::{Value, json};
use snapshot::Publisher;
use snapshot::streams::{CallLogger, Protocol, Spoken};

use super::*;
use crate::rt;
use crate::watch::Watch;
use crate::worker::Worker;

/// A test's view: the taps, and the call that was logged last.
struct Seen<'r, 'c, 's> {
    calls: &'r RefCell<Calls<'c, 's>>,
    commands: Commands<'r, 'c, 's>,
    answers: Answers<'r, 'c, 's>,
}

impl Seen<'_, '_, '_> {
    /// Shows the client's bytes; says how many go on, and how many milliseconds the rest waits.
    fn sent(&mut self, bytes: &[u8]) -> (usize, u128) {
        let Ok(passed) = self.commands.look(bytes) else { panic!("{:?}", self.calls.borrow().log.fault) };
        (passed.now, passed.hold.map_or(0, |hold| hold.as_millis()))
    }

    fn got(&mut self, bytes: &str) {
        assert!(self.answers.look(bytes.as_bytes()).is_ok_and(|passed| passed.now == bytes.len()));
    }

    /// The line of the call that ended last.
    fn line(&self) -> String {
        let calls = self.calls.borrow();
        let stream = calls.log.x.stream().unwrap();
        let line = stream.call.as_ref().and_then(|call| call.redis_line.clone());
        String::from_utf8(line.unwrap_or_default()).unwrap()
    }

    fn waiting(&self) -> (usize, u64) {
        let calls = self.calls.borrow();
        (calls.waiting.len(), calls.beyond)
    }
}

/// Runs a test with faults; gives what was counted, by command.
fn with_faults(rules: Value, test: impl FnOnce(&mut Seen<'_, '_, '_>) + 'static) -> Vec<(String, u64)> {
    let meters = Arc::new(Meters::default());
    let shard = meters.shard(0);
    let (_publisher, mut readers) = Publisher::new(crate::worker::tests::empty(), 1);
    let reader = readers.pop().unwrap();
    rt::run(async move {
        let worker = Worker::new(0, Arc::default(), reader, shard, Arc::default(), Watch::new(1));
        let client = Client::new("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap(), false);
        let mut messages = Messages::default();
        let mut x = Exchange::new(&mut messages, &client, &worker.nobody, &*worker);
        x.engine_mut().stream = Some(Box::new(Stream::default()));
        let rules: Vec<model::xrpc::Fault> = serde_json::from_value(rules).unwrap();
        let faults = Faults::new(&rules);
        let loggers = vec![CallLogger { filter: None, chain: Arc::default() }];
        let protocol = Protocol { spoken: Spoken::Redis(faults.clone()), loggers, counts: true };
        let log = CallLog { worker: &worker, x: &mut x, protocol: &protocol, fault: None };
        let calls = RefCell::new(Calls::new(log));
        let (commands, answers) = taps(&calls, &faults);
        test(&mut Seen { calls: &calls, commands, answers });
        calls.into_inner().close();
    })
    .unwrap();
    meters.read(1, |reading| {
        let named = |text: &str| text.split('"').nth(3).unwrap().to_owned();
        reading.redis_commands().map(|(text, it)| (named(text), it.counts.iter().sum())).collect()
    })
}

fn command(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

#[test]
fn a_command_that_is_held_back_lacks_its_last_byte() {
    let rules = json!([
        {"commands": ["GET", "mget"], "key": "slow", "delay": 0.5},
        {"commands": ["ping"], "delay": 0.1},
    ]);
    with_faults(rules, |seen| {
        let (set, get) = (command("set slow 1"), command("GET slow"));
        let both = [set.as_slice(), &get, &set].concat();
        let end = set.len() + get.len();
        assert_eq!(seen.sent(&both), (end - 1, 500));
        assert_eq!(seen.sent(&both[end - 1..]), (set.len() + 1, 0));
        // In pieces it is the same.
        let (last, rest) = get.split_last().unwrap();
        for byte in rest {
            assert_eq!(seen.sent(&[*byte]), (1, 0));
        }
        assert_eq!(seen.sent(&[*last]), (0, 500));
        assert_eq!(seen.sent(&[*last]), (1, 0));
        for (line, ms) in [
            ("MGET a b slow c", 500),
            ("mget a b", 0),
            ("get slower", 0),
            ("get slo", 0),
            ("get other slow", 0),
            ("Ping", 100),
            ("ping slow", 100),
            ("pings", 0),
        ] {
            let bytes = command(line);
            let held = usize::from(ms > 0);
            assert_eq!(seen.sent(&bytes), (bytes.len() - held, ms), "{line}");
            assert_eq!(seen.sent(&bytes[bytes.len() - held..]), (held, 0), "{line}");
        }
    });
}

#[test]
fn lines_are_lower_case_and_cut() {
    let counts = with_faults(json!([]), |seen| {
        let long = "x".repeat(200);
        let many = vec!["y"; 5000].join(" ");
        for (line, expected) in [
            ("GET Key".to_owned(), "get Key".to_owned()),
            (format!("set k {long}"), format!("set k {}...(200 bytes)", &long[..128])),
            (format!("del {many}"), format!("del {many}")[..LINE].to_owned()),
            (format!("{long} a"), format!("{} a", &long[..NAME])),
        ] {
            seen.sent(&command(&line));
            seen.got("+OK\r\n");
            assert_eq!(seen.line(), expected);
        }
        // A command that comes in pieces is cut at the same place.
        for piece in command(&format!("set k {long}")).chunks(120) {
            seen.sent(piece);
        }
        seen.got("+OK\r\n");
        assert_eq!(seen.line(), format!("set k {}...(200 bytes)", &long[..128]));
        let fits = format!("set k {}", &long[..128]);
        seen.sent(&command(&fits));
        seen.got("+OK\r\n");
        assert_eq!(seen.line(), fits);
        seen.sent(&command("json.get2 k"));
        seen.got("+OK\r\n");
        seen.sent(&command("nonsense"));
        seen.got("-ERR unknown command 'nonsense', with args beginning with: \r\n");
        seen.sent(&command("without-an-answer"));
    });
    let expected = [("del", 1), ("get", 1), ("json.get2", 1), ("set", 3), ("unknown", 3)];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn what_is_beyond_the_bound_is_passed_on() {
    let counts = with_faults(json!([]), |seen| {
        let bytes = command(&format!("get {}", "k".repeat(100)));
        for _ in 0..2000 {
            assert_eq!(seen.sent(&bytes), (bytes.len(), 0));
        }
        assert_eq!(seen.waiting(), (MOST_CALLS, 976));
        assert_eq!(seen.calls.borrow().lines.len(), LINES);
        seen.got(&"$1\r\na\r\n".repeat(1999));
        assert_eq!(seen.waiting(), (0, 1));
        assert!(seen.calls.borrow().lines.is_empty());
        // It comes behind a command that is not logged, so it is not logged either.
        seen.sent(&command("ping"));
        seen.got("$1\r\na\r\n+PONG\r\n");
        assert_eq!(seen.waiting(), (0, 0));
        seen.sent(&command("ping"));
        seen.got("+PONG\r\n");
    });
    assert_eq!(counts, [("get".to_owned(), 1024), ("ping".to_owned(), 1)]);
}

#[test]
fn messages_are_no_replies() {
    let counts = with_faults(json!([]), |seen| {
        seen.sent(&command("lrange a 0 2"));
        seen.sent(&command("SUBSCRIBE dog cat"));
        // Until there is a subscription, this is what a list holds.
        seen.got("*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(seen.line(), "lrange a 0 2");
        seen.got(
            "*3\r\n$9\r\nsubscribe\r\n$3\r\ndog\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$3\r\ndog\r\n$2\r\nhi\r\n",
        );
        assert_eq!(seen.waiting(), (1, 0));
        seen.got("*3\r\n$9\r\nsubscribe\r\n$3\r\ncat\r\n:2\r\n");
        assert_eq!((seen.line().as_str(), seen.waiting()), ("subscribe dog cat", (0, 0)));
        seen.sent(&command("ping"));
        seen.got("*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$3\r\ndog\r\n$2\r\nhi\r\n");
        assert_eq!(seen.waiting(), (1, 0));
        seen.got("*2\r\n$4\r\npong\r\n$0\r\n\r\n");
        assert_eq!(seen.line(), "ping");
        seen.sent(&command("unsubscribe"));
        seen.got(
            "*3\r\n$11\r\nunsubscribe\r\n$3\r\ndog\r\n:1\r\n*3\r\n$11\r\nunsubscribe\r\n$3\r\ncat\r\n:0\r\n",
        );
        assert_eq!((seen.line().as_str(), seen.waiting()), ("unsubscribe", (0, 0)));
        // In RESP3 messages come as pushes, and everything else is a reply.
        seen.sent(&command("subscribe dog"));
        seen.sent(&command("get a"));
        seen.got(">3\r\n$9\r\nsubscribe\r\n$3\r\ndog\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$3\r\ndog\r\n$2\r\nhi\r\n$1\r\na\r\n");
        assert_eq!((seen.line().as_str(), seen.waiting()), ("get a", (0, 0)));
        // One that is refused has one answer, for however many channels.
        seen.sent(&command("subscribe a b c"));
        seen.got("-NOPERM no\r\n");
        assert_eq!(seen.waiting(), (0, 0));
    });
    let expected = [("get", 1), ("lrange", 1), ("ping", 1), ("subscribe", 3), ("unsubscribe", 1)];
    assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn what_is_not_the_protocol_is_refused_with_its_side() {
    with_faults(json!([]), |seen| {
        assert!(seen.commands.look(b"PING\r\n").is_err());
        let fault = seen.calls.borrow_mut().log.fault.take().unwrap();
        assert_eq!(fault.blame, crate::exchange::fault::Blame::Client);
        assert!(seen.answers.look(b"HTTP/1.1 200\r\n").is_err());
        let fault = seen.calls.borrow_mut().log.fault.take().unwrap();
        assert_eq!(fault.blame, crate::exchange::fault::Blame::Upstream);
    });
}
