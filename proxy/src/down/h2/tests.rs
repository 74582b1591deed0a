use std::time::Duration;

use super::*;
use crate::rt::memory::{self, End, Schedule};
use crate::testing::{beside_worker, within};
use crate::{Settings, rt};

/// A step of a client whose connection is over.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Seconds.
    Wait(u64),
    /// It sends this many bytes.
    Say(usize),
    /// It takes this many bytes.
    Take(usize),
    ToEnd,
}
use Step::*;

async fn play(end: &End, steps: &[Step]) {
    for step in steps {
        match *step {
            Wait(seconds) => rt::sleep(Duration::from_secs(seconds)).await,
            Say(count) => end.write_all(&vec![0; count]).await.unwrap(),
            Take(count) => assert_eq!(end.read(&mut vec![0; count]).await.unwrap(), count),
            ToEnd => while end.read(&mut [0; 100]).await.unwrap() > 0 {},
        }
    }
}

/// Returns for how many seconds a client that does these steps is waited for, with `unread` bytes to take;
/// `None` beyond a minute. It keeps its connection open afterwards, unless it takes all `ToEnd`.
async fn waited(worker: &Rc<Worker>, ending: Ending, unread: usize, client: &[Step]) -> Option<u64> {
    let (end, io) = memory::pair(Schedule::default(), Schedule::default());
    let mut io = Io::Memory(io);
    let left = vec![0; unread];
    let written = poll_fn(|cx| io.split().1.poll_write(cx, &left)).await;
    assert_eq!(written.unwrap(), unread);
    let waiter = worker.clock.waiter();
    let before = worker.clock.coarse_ms();
    let client = client.to_vec();
    rt::spawn(async move {
        play(&end, &client).await;
        // After `ToEnd` it leaves, as it has seen the end.
        if !matches!(client.last(), Some(ToEnd)) {
            rt::sleep(Duration::from_secs(100)).await;
        }
    });
    within(Duration::from_secs(60), rest(worker, &mut io, &waiter, ending)).await?;
    Some((worker.clock.coarse_ms() - before) / 1000)
}

#[test]
fn a_client_whose_connection_is_over_is_waited_for_as_long_as_it_may_lose_something() {
    let settings = Settings::with(|settings| {
        settings.timeouts.linger = Duration::from_secs(2);
        settings.timeouts.send = Duration::from_secs(6);
        settings.limits.linger_bytes = 3000;
    });
    beside_worker(settings, async |worker, _| {
        let steps: &[(&str, Ending, usize, &[Step], u64)] = &[
            ("it sees the end, and goes", Ending::Linger, 3, &[ToEnd], 0),
            ("it says nothing and takes nothing", Ending::Linger, 3, &[], 2),
            ("it goes on sending as much as is read of it", Ending::Linger, 3, &[Say(3000)], 2),
            ("it goes on sending more", Ending::Linger, 3, &[Say(3001)], 0),
            ("it has all, and may have a word to say", Ending::Deliver, 0, &[], 2),
            ("it goes when it has all", Ending::Deliver, 3, &[Wait(3), ToEnd], 3),
            ("it sends more than is read", Ending::Deliver, 3, &[Wait(3), Say(3001)], 3),
            // Its progress is checked every two seconds. Bytes that it took before the first check do not count.
            ("it takes nothing", Ending::Deliver, 3, &[], 2 + 6),
            ("it takes all, late", Ending::Deliver, 3, &[Wait(3), Take(3)], 4 + 2),
            ("it takes a part, and no more", Ending::Deliver, 3, &[Wait(5), Take(1)], 6 + 6),
            ("it takes all, bit by bit", Ending::Deliver, 2, &[Wait(5), Take(1), Wait(6), Take(1)], 12 + 2),
        ];
        for (about, ending, unread, client, seconds) in steps {
            let waited = waited(&worker, *ending, *unread, client).await;
            assert_eq!(waited, Some(*seconds), "{about}");
        }
    });
}

#[test]
fn a_broken_rule_is_reported_with_its_error() {
    for (reason, name) in [
        (Code::PROTOCOL_ERROR, "(PROTOCOL_ERROR)"),
        (Code::FLOW_CONTROL_ERROR, "(FLOW_CONTROL_ERROR)"),
        (Code::STREAM_CLOSED, "(STREAM_CLOSED)"),
        (Code::FRAME_SIZE_ERROR, "(FRAME_SIZE_ERROR)"),
        (Code::COMPRESSION_ERROR, "(COMPRESSION_ERROR)"),
        (Code::SETTINGS_TIMEOUT, "HTTP/2"),
    ] {
        let FaultKind::BrokenRule(words) = broken_rule(reason) else { panic!("{reason:?}") };
        assert!(words.ends_with(name), "{words}");
    }
}
