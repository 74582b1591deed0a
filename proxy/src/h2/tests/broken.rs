//! Peers that break rules: on one stream, of which the others see nothing, or without an end.

use super::*;

/// The acknowledgement of [`ping`].
fn pong() -> (u8, u32) {
    (kind::PING, 0)
}

#[test]
fn data_of_a_stream_that_is_over_is_passed_over() {
    for length in [0, 1, 8, 9, 10, 5000] {
        let mut conn = Conn::new(Role::Server, limits());
        conn.feed(&head(1, END, GET));
        conn.streams[0].send_response(200, &Fields::new(), true).unwrap();
        conn.streams.clear();
        conn.sent();
        conn.feed(&[data(1, 0, &vec![b'x'; length]), ping()].concat());
        assert_eq!(kinds(&conn.sent()), [(kind::RST_STREAM, 1), pong()], "{length}");
        assert_eq!((conn.over(), conn.mux.borrow().stream_errors), (None, 1), "{length}");
    }
}

#[test]
fn a_message_that_was_dropped_is_not_whole() {
    let whole = || [head(1, 0, POST), data(1, END, b"abc")].concat();
    let part = || [head(1, 0, POST), data(1, 0, b"abc")].concat();
    for (about, frames) in [
        ("malformed trailers", [part(), head(1, END, "x-a: b\nconnection: close")].concat()),
        ("a pseudo-field in trailers", [part(), head(1, END, ":path: /")].concat()),
        ("DATA behind the end", [whole(), data(1, END, b"d")].concat()),
        ("HEADERS behind the end", [whole(), head(1, END, "x-a: b")].concat()),
        ("RST_STREAM behind the end", [whole(), number(kind::RST_STREAM, 1, Code::CANCEL.0)].concat()),
        ("a window that is too large", [whole(), number(kind::WINDOW_UPDATE, 1, (1 << 31) - 1)].concat()),
    ] {
        let mut conn = Conn::new(Role::Server, limits());
        conn.feed(&frames);
        let (_, end) = read(&conn.streams[0]);
        assert!(matches!(end, Some(Err(_))), "{about}: {end:?}");
        assert_eq!(conn.over(), None, "{about}");
        assert!(!conn.streams[0].is_received(), "{about}");
    }
}

#[test]
fn a_response_that_was_dropped_is_not_whole() {
    let whole = || [head(1, 0, ":status: 200"), data(1, END, b"abc")].concat();
    let part = || [head(1, 0, ":status: 200"), data(1, 0, b"abc")].concat();
    for (about, frames, expected) in [
        ("malformed trailers", [part(), head(1, END, "x-a: b\nconnection: close")].concat(), None),
        ("DATA behind the end", [whole(), data(1, END, b"d")].concat(), None),
        ("GOAWAY without it", [whole(), frame(kind::GOAWAY, 0, 0, &[0; 8])].concat(), None),
        // Received bytes still go on.
        ("RST_STREAM", [whole(), number(kind::RST_STREAM, 1, Code::CANCEL.0)].concat(), Some(BodyPart::End)),
        (
            "RST_STREAM",
            [whole(), number(kind::RST_STREAM, 1, Code::NO_ERROR.0)].concat(),
            Some(BodyPart::End),
        ),
    ] {
        let mut conn = Conn::new(Role::Client, limits());
        conn.ask(false);
        conn.feed(&frames);
        let (body, end) = read(&conn.streams[0]);
        match expected {
            Some(came) => assert_eq!((body, end), (b"abc".to_vec(), Some(Ok(came))), "{about}"),
            None => assert!(matches!(end, Some(Err(_))), "{about}: {end:?}"),
        }
        assert!(matches!(send(&conn.streams[0], b"more", false), Some(Err(_))), "{about}");
        assert_eq!(conn.over(), None, "{about}");
    }
}

#[test]
fn a_malformed_response_leaves_the_others() {
    let window = vec![b'x'; 16 << 10];
    let too_much = |stream| (0..5).flat_map(|_| data(stream, 0, &window)).collect::<Vec<u8>>();
    let hints = |count| (0..count).flat_map(|_| head(1, 0, ":status: 103\nlink: a")).collect::<Vec<u8>>();
    let long = || head(1, 0, &format!(":status: 103\nlink: {}", "a".repeat(1200)));
    for (about, frames) in [
        ("no status", head(1, END, "x-a: b")),
        ("a status of two digits", head(1, END, ":status: 20")),
        ("two of them", head(1, END, ":status: 200\n:status: 200")),
        ("a name in capitals", frame(kind::HEADERS, END | flag::END_HEADERS, 1, b"\x88\x40\x01A\x01b")),
        ("a field of the connection", head(1, END, ":status: 200\nconnection: close")),
        ("too many fields", head(1, END, &format!(":status: 200{}", "\nx-a: b".repeat(21)))),
        ("an interim response at the end", head(1, END, ":status: 103")),
        ("DATA before the head", data(1, 0, b"x")),
        ("two heads", [head(1, 0, ":status: 200"), head(1, 0, ":status: 200")].concat()),
        ("too short", [head(1, 0, ":status: 200\ncontent-length: 5"), data(1, END, b"four")].concat()),
        ("too long", [head(1, 0, ":status: 200\ncontent-length: 3"), data(1, 0, b"four")].concat()),
        ("no body where one was announced", head(1, END, ":status: 200\ncontent-length: 3")),
        ("more than the window", [head(1, 0, ":status: 200"), too_much(1)].concat()),
        ("a window of nothing more", number(kind::WINDOW_UPDATE, 1, 0)),
        ("too many interim responses", hints(18)),
        ("interim responses that are long together", [long(), long(), long()].concat()),
        ("it depends on itself", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])),
    ] {
        let mut conn = Conn::new(Role::Client, Limits { stream_window: 64 << 10, ..limits() });
        conn.mux.borrow_mut().set_target(1 << 20);
        conn.ask(true);
        conn.ask(true);
        conn.sent();
        conn.feed(&[frames, head(3, 0, ":status: 200"), data(3, END, b"ok"), ping()].concat());
        assert!(conn.streams[0].is_gone(), "{about}");
        assert_eq!(read(&conn.streams[1]), (b"ok".to_vec(), Some(Ok(BodyPart::End))), "{about}");
        let sent = kinds(&conn.sent());
        assert!(sent.contains(&(kind::RST_STREAM, 1)) && sent.contains(&pong()), "{about}: {sent:?}");
        assert_eq!(conn.over(), None, "{about}");
        conn.streams.clear();
        assert_eq!(conn.mux.borrow().unread, 0, "{about}");
    }
}

#[test]
fn what_concerns_all_streams_ends_the_connection() {
    let broken = |code| Some(EndReason::RuleBroken(code));
    let push = [&[0, 0, 0, 2][..], &block(GET)].concat();
    for (about, frames, over) in [
        ("PUSH_PROMISE", frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &push), Code::PROTOCOL_ERROR),
        ("DATA of no stream", data(0, 0, b"x"), Code::PROTOCOL_ERROR),
        ("DATA of an idle stream", data(3, 0, b"x"), Code::PROTOCOL_ERROR),
        ("HEADERS of a stream of theirs", head(2, END, ":status: 200"), Code::PROTOCOL_ERROR),
        ("padding without an end", frame(kind::DATA, flag::PADDED, 1, &[3, 0, 0]), Code::PROTOCOL_ERROR),
        ("a malformed block", frame(kind::HEADERS, flag::END_HEADERS, 1, b"\xff"), Code::COMPRESSION_ERROR),
        (
            "another frame in a block",
            [frame(kind::HEADERS, 0, 1, b""), ping()].concat(),
            Code::PROTOCOL_ERROR,
        ),
        ("a long frame", frame(99, 0, 0, &[0; (16 << 10) + 1]), Code::FRAME_SIZE_ERROR),
        ("windows that overflow", number(kind::WINDOW_UPDATE, 0, (1 << 31) - 1), Code::FLOW_CONTROL_ERROR),
        (
            "the same of all streams",
            settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]),
            Code::FLOW_CONTROL_ERROR,
        ),
        ("RST_STREAM of an idle stream", number(kind::RST_STREAM, 3, 0), Code::PROTOCOL_ERROR),
    ] {
        let mut conn = Conn::new(Role::Client, limits());
        conn.ask(true);
        conn.sent();
        conn.feed(&[frames, ping()].concat());
        assert_eq!(conn.over(), broken(over), "{about}");
        assert_eq!(kinds(&conn.sent()), [(kind::GOAWAY, 0)], "{about}");
        assert!(conn.streams[0].is_gone(), "{about}");
    }
    // Frames of unknown types mean nothing.
    let mut conn = Conn::new(Role::Client, limits());
    conn.feed(&[frame(99, 0xff, 77, b"anything"), ping()].concat());
    assert_eq!((conn.over(), kinds(&conn.sent())), (None, vec![pong()]));
}

#[test]
fn every_flood_ends() {
    let client = |frames: fn(u32) -> Vec<u8>| (Role::Server, frames);
    for (about, (role, frames)) in [
        ("PING", client(|_| ping())),
        ("SETTINGS", client(|_| settings(&[]))),
        ("unknown frames", client(|_| frame(99, 0, 0, &[]))),
        ("empty DATA", client(|_| data(1, 0, b""))),
        ("PRIORITY", client(|_| frame(kind::PRIORITY, 0, 1, &[0; 5]))),
        ("windows", client(|_| number(kind::WINDOW_UPDATE, 0, 1))),
        (
            "resets",
            client(|at| [head(3 + 2 * at, END, GET), number(kind::RST_STREAM, 3 + 2 * at, 8)].concat()),
        ),
        ("refused requests", client(|at| head(3 + 2 * at, 0, GET))),
        (
            "malformed trailers",
            client(|at| [head(3 + 2 * at, 0, GET), head(3 + 2 * at, END, ":a: b")].concat()),
        ),
        (
            "DATA of streams that are over",
            client(|at| [head(3 + 2 * at, END, GET), data(3 + 2 * at, 0, b"x")].concat()),
        ),
        (
            "CONTINUATION",
            client(|at| frame(if at == 0 { kind::HEADERS } else { kind::CONTINUATION }, 0, 3, b"")),
        ),
        ("PING of a server", (Role::Client, |_| ping())),
        ("HEADERS of a server for a stream that is over", (Role::Client, |_| head(1, 0, ":status: 200"))),
    ] {
        let mut conn = Conn::new(role, limits());
        match role {
            Role::Server => conn.feed(&head(1, 0, POST)),
            Role::Client => {
                conn.ask(true);
                conn.streams.clear();
                for _ in 0..100 {
                    conn.ask(true);
                    conn.streams.pop();
                }
            }
        }
        let mut count = 0;
        while conn.over().is_none() && count < 5000 {
            conn.feed(&frames(count));
            // Exchanges that end at once.
            conn.streams.retain(|stream| !stream.is_gone());
            conn.sent();
            count += 1;
        }
        assert!(matches!(conn.over(), Some(EndReason::Flood(_))), "{about}: {:?} after {count}", conn.over());
    }
}

#[test]
fn resets_by_a_server_are_no_flood() {
    let mut conn = Conn::new(Role::Client, limits());
    for at in 0..2000 {
        conn.ask(false);
        let id = 2 * at + 1;
        conn.feed(&[head(id, END, ":status: 200"), number(kind::RST_STREAM, id, 0)].concat());
        assert_eq!(conn.over(), None, "after {at}");
        conn.streams.clear();
        conn.sent();
    }
}

#[test]
fn streams_that_were_reset_together_are_remembered() {
    let mut conn = Conn::new(Role::Client, Limits { streams: 100, ..limits() });
    (0..200).for_each(|_| conn.ask(true));
    conn.streams.clear();
    conn.sent();
    for at in 0..200 {
        conn.feed(&[head(2 * at + 1, 0, ":status: 200"), data(2 * at + 1, END, b"late")].concat());
    }
    assert_eq!((conn.over(), conn.sent()), (None, vec![]));
}

#[test]
fn no_stream_begins_on_a_connection_that_is_over() {
    let mut cx = Context::from_waker(Waker::noop());
    let gone = |conn: &Conn, cx: &mut Context<'_>| Stream::begin(&conn.mux).poll_room(cx);
    let conn = Conn::new(Role::Client, limits());
    assert!(matches!(gone(&conn, &mut cx), Poll::Ready(Ok(()))));
    conn.mux.borrow_mut().end(EndReason::Closed(None));
    assert!(matches!(gone(&conn, &mut cx), Poll::Ready(Err(_))));
    // GOAWAY, also one that takes all streams that have begun.
    let mut conn = Conn::new(Role::Client, limits());
    conn.feed(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 0)]));
    let (count, waker) = crate::clock::tests::count();
    assert!(conn.mux.borrow_mut().poll_streams(&mut Context::from_waker(&waker)).is_pending());
    conn.feed(&frame(kind::GOAWAY, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert_eq!(count.so_far(), 1, "one that waits is to go to another connection");
    assert!(conn.mux.borrow_mut().poll_streams(&mut cx).is_ready());
    assert!(matches!(gone(&conn, &mut cx), Poll::Ready(Err(_))));
}

#[test]
fn windows_are_those_of_the_settings_once_they_are_acknowledged() {
    for window in [1 << 10, 1 << 20, 1 << 30] {
        let mut conn = Conn::fresh(Role::Server, Limits { stream_window: window, ..limits() });
        conn.feed(&[settings(&[]), head(1, 0, POST), data(1, 0, b"abc")].concat());
        read(&conn.streams[0]);
        conn.feed(&frame(kind::SETTINGS, flag::ACK, 0, &[]));
        let mux = conn.mux.borrow();
        let all = mux.slots.iter().map(|slot| slot.window).max();
        assert!(all.is_some_and(|all| all <= i64::from(window)), "{all:?} of {window}");
    }
}
