//! The turns in which streams send.

use super::*;

/// A server's connection with these streams, all of which have sent their heads. Its peer gives each a large window.
fn serving(streams: usize, limits: Limits) -> Conn {
    let mut conn = Conn::new(Role::Server, Limits { streams: 64, ..limits });
    conn.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]));
    for at in 0..streams {
        conn.feed(&head(2 * at as u32 + 1, END, GET));
        conn.streams[at].send_response(200, &Fields::new(), false).unwrap();
    }
    conn.sent();
    conn
}

/// Lets all streams that have something send, as their tasks would, each as long as it may.
fn poll_all(conn: &Conn, left: &mut [usize]) {
    let piece = vec![b'x'; 1 << 20];
    for (stream, left) in conn.streams.iter().zip(left) {
        while *left > 0 {
            let Some(sent) = send(stream, &piece[..(*left).min(piece.len())], false) else { break };
            *left -= sent.unwrap();
        }
    }
}

#[test]
fn each_small_stream_has_its_turn_within_one_round() {
    let mut conn = serving(11, limits());
    conn.feed(&number(kind::WINDOW_UPDATE, 0, 1 << 30));
    let mut left = [usize::MAX / 2, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10];
    poll_all(&conn, &mut left[..1]);
    // As many rounds as streams at the most, each of which is what the peer takes at once.
    for round in 0.. {
        poll_all(&conn, &mut left);
        conn.sent();
        if left[1..].iter().all(|&left| left == 0) {
            break;
        }
        assert!(round < 11, "{left:?}");
    }
}

#[test]
fn a_small_window_of_the_connection_goes_round() {
    // Only tasks that are woken look again.
    let mut conn = serving(3, limits());
    let tasks: Vec<_> = conn.streams.iter().map(|_| crate::clock::tests::count()).collect();
    let (mut seen, mut sent) = ([usize::MAX; 3], [0; 3]);
    let piece = vec![b'x'; 1 << 20];
    for round in 0..60 {
        if round > 0 {
            conn.feed(&number(kind::WINDOW_UPDATE, 0, [100, 16 << 10, 20 << 10][round % 3]));
        }
        for _ in 0..4 {
            for (at, (count, waker)) in tasks.iter().enumerate() {
                if std::mem::replace(&mut seen[at], count.so_far()) == count.so_far() {
                    continue;
                }
                let mut cx = Context::from_waker(waker);
                while let Poll::Ready(n) = conn.streams[at].poll_send(&mut cx, &piece, false) {
                    sent[at] += n.unwrap();
                }
            }
        }
        conn.sent();
    }
    let (least, most) = (*sent.iter().min().unwrap(), *sent.iter().max().unwrap());
    assert!(least > 100 << 10 && most < 3 * least, "{sent:?}");
}

#[test]
fn a_stream_that_gives_up_keeps_no_turn() {
    let mut conn = serving(8, limits());
    let mut left = [1 << 20; 8];
    poll_all(&conn, &mut left);
    conn.sent();
    assert!(conn.mux.borrow().granted > 0);
    conn.streams.iter().take(7).for_each(Stream::give_up_turn);
    conn.feed(&number(kind::WINDOW_UPDATE, 0, 1 << 20));
    let piece = [0; 10];
    assert!(matches!(send(&conn.streams[7], &piece, false), Some(Ok(10))));
    assert_eq!(conn.mux.borrow().queue.len(), 0);
}

#[test]
fn streams_that_wait_when_a_connection_ends_get_no_turn() {
    let mut conn = serving(3, limits());
    conn.feed(&number(kind::WINDOW_UPDATE, 0, 1 << 20));
    poll_all(&conn, &mut [1 << 20; 3]);
    assert!(!conn.mux.borrow().queue.is_empty());
    conn.mux.borrow_mut().end(EndReason::RuleBroken(Code::PROTOCOL_ERROR));
    conn.streams.clear();
    assert!(conn.mux.borrow().queue.is_empty());
    // The rest is still written.
    assert_eq!(kinds(&conn.sent()).last(), Some(&(kind::GOAWAY, 0)));
}

#[test]
fn urgent_streams_go_first() {
    let mut conn = serving(4, limits());
    for (at, value) in ["u=7, i", "u=3, i", "u=0, i", "u=3"].into_iter().enumerate() {
        conn.streams[at].note_priority(Priority::from_field(value.as_bytes()));
    }
    // The window is used up, and all wait.
    let mut first = [1 << 20, 0, 0, 0];
    for _ in 0..3 {
        poll_all(&conn, &mut first);
        conn.sent();
    }
    poll_all(&conn, &mut [100; 4]);
    conn.sent();
    let mut order = Vec::new();
    for _ in 0..4 {
        conn.feed(&number(kind::WINDOW_UPDATE, 0, 100));
        // Tasks run in the order in which they are woken.
        let queue = conn.mux.borrow().queue.clone();
        order.extend(queue.into_iter().filter(|&at| send(&conn.streams[at], &[0; 100], false).is_some()));
        conn.sent();
    }
    assert_eq!(order, [2, 3, 1, 0]);
}

#[test]
fn what_was_written_does_not_stay() {
    // A peer takes a part of what there is again and again, never all of it.
    let mut conn = serving(1, limits());
    for _ in 0..2000 {
        conn.feed(&ping());
        let piece = [0; 1000];
        if let Some(sent) = send(&conn.streams[0], &piece, false) {
            sent.unwrap();
        }
        let mut mux = conn.mux.borrow_mut();
        let unsent = mux.unsent().len();
        mux.wrote(unsent.saturating_sub(1));
        assert!(mux.out.len() <= 128 << 10, "{}", mux.out.len());
        mux.send_window = 1 << 20;
    }
}

#[test]
fn windows_below_zero_are_waited_for() {
    let mut conn = serving(2, limits());
    let mut left = [1 << 20, 0];
    conn.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 20_000)]));
    poll_all(&conn, &mut left);
    assert_eq!(left[0], (1 << 20) - 20_000);
    conn.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]));
    conn.feed(&number(kind::WINDOW_UPDATE, 1, 20_000));
    conn.sent();
    poll_all(&conn, &mut left);
    assert_eq!(left[0], (1 << 20) - 20_000, "what was sent counts still");
    // The other one is not held up.
    conn.feed(&number(kind::WINDOW_UPDATE, 3, 5));
    assert!(matches!(send(&conn.streams[1], b"hello", true), Some(Ok(5))));
    conn.feed(&number(kind::WINDOW_UPDATE, 1, 7));
    poll_all(&conn, &mut left);
    assert_eq!(left[0], (1 << 20) - 20_007);
}

#[test]
fn the_rest_of_a_short_request_that_was_answered_is_taken_without_a_reset() {
    for (length, is_reset) in [(Some(11), false), (Some(1 << 20), true), (None, true)] {
        let mut conn = Conn::new(Role::Server, limits());
        conn.feed(&head(1, 0, POST));
        let stream = conn.streams.pop().unwrap();
        stream.note_length(length);
        stream.send_response(413, &Fields::new(), true).unwrap();
        drop(stream);
        conn.feed(&data(1, END, b"twelve bytes"));
        conn.feed(&head(3, END, GET));
        let resets = conn.sent().iter().any(|(kind, ..)| *kind == wire::h2::frame::kind::RST_STREAM);
        assert_eq!((resets, conn.over(), conn.streams.len()), (is_reset, None, 1), "{length:?}");
    }
}
