//! Frames that are cut, and frames at random: valid ones, and ones with some bytes changed.

use fastrand::Rng;
use wire::ResponseHead;

use super::*;

/// Both sides of a few exchanges.
fn exchanges(role: Role) -> Vec<u8> {
    let padded = |stream, flags, bytes: &[u8]| {
        let payload = [&[3][..], bytes, &[0; 3]].concat();
        frame(kind::DATA, flag::PADDED | flags, stream, &payload)
    };
    let long = block(&format!("x-long: {}", "a".repeat(300)));
    let split = |stream, first: &[u8]| {
        [
            frame(kind::HEADERS, flag::PADDED, stream, &[&[2][..], first, &[0; 2]].concat()),
            frame(kind::CONTINUATION, 0, stream, &long[..100]),
            frame(kind::CONTINUATION, flag::END_HEADERS, stream, &long[100..]),
        ]
        .concat()
    };
    let begins = match role {
        Role::Server => vec![head(1, 0, POST), split(3, &block(POST)), head(5, END, GET)],
        Role::Client => vec![
            [head(1, 0, ":status: 103\nlink: a"), head(1, 0, ":status: 200")].concat(),
            split(3, &block(":status: 404")),
            head(5, END, ":status: 204"),
        ],
    };
    [
        begins.concat(),
        data(1, 0, b"some"),
        padded(3, 0, b"of three"),
        data(1, 0, &[b'x'; 3000]),
        ping(),
        padded(1, 0, b""),
        settings(&[(setting::INITIAL_WINDOW_SIZE, 5), (setting::HEADER_TABLE_SIZE, 0)]),
        number(kind::WINDOW_UPDATE, 3, 100),
        frame(99, 1, 3, b"unknown"),
        head(3, END, "x-sum: 5"),
        data(1, 0, b"and more"),
        number(kind::RST_STREAM, 1, Code::CANCEL.0),
        number(kind::WINDOW_UPDATE, 0, 100),
    ]
    .concat()
}

/// Passes these pieces to a connection; returns everything that can be seen of it.
fn seen(role: Role, pieces: &[&[u8]]) -> String {
    let mut conn = Conn::new(role, limits());
    if role == Role::Client {
        (0..3).for_each(|_| conn.ask(false));
        conn.sent();
    }
    pieces.iter().for_each(|piece| conn.feed(piece));
    let mut cx = Context::from_waker(Waker::noop());
    let mut seen = format!("{:?} {:?}\n", conn.over(), conn.sent());
    for stream in &conn.streams {
        let mut trailers = Fields::new();
        stream.take_trailers(&mut trailers);
        let heads: Vec<_> = (0..3)
            .map(|_| {
                let mut head = ResponseHead::default();
                format!("{:?} {head:?}", stream.poll_head(&mut cx, &mut head))
            })
            .collect();
        let trailers: Vec<_> =
            trailers.iter().map(|(name, value, _)| (name.to_vec(), value.to_vec())).collect();
        seen += &format!("{heads:?} {:?} {trailers:?}\n", read(stream));
    }
    seen + &format!("{:?}", conn.sent())
}

#[test]
fn frames_mean_the_same_wherever_they_are_cut() {
    for role in [Role::Server, Role::Client] {
        let bytes = exchanges(role);
        let whole = seen(role, &[&bytes]);
        assert!(whole.starts_with("None ") && whole.contains("120, 45, 115, 117, 109"), "{whole}");
        for at in 0..bytes.len() {
            let (before, behind) = bytes.split_at(at);
            assert_eq!(seen(role, &[before, behind]), whole, "cut at {at}");
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(seen(role, &single), whole);
    }
}

/// A frame that may be valid.
fn any_frame(rng: &mut Rng, role: Role, next: &mut u32) -> Vec<u8> {
    let old = |rng: &mut Rng, next: u32| 1 + 2 * rng.u32(0..(next / 2).max(1));
    // Few frames end the connection.
    let rare = rng.u8(..20) == 0;
    let ends = if rng.bool() { END } else { 0 };
    let zeros = vec![0; [0, 1, 10, 1000, 16 << 10][rng.usize(..5)]];
    match rng.u8(..20) {
        0..6 if role == Role::Server => {
            *next += 2;
            let lines = [GET, "x-a: b", ":method: POST\n:path: /\ncontent-length: 10"][rng.usize(..3)];
            head(*next - 2, ends, lines)
        }
        0..6 => {
            let lines = [
                ":status: 200",
                ":status: 103",
                ":status: 204",
                ":status: 200\ncontent-length: 1000",
                ":status: 2000",
                "x-a: b",
            ];
            head(old(rng, *next), ends, lines[rng.usize(..6)])
        }
        6..11 => data(old(rng, *next), ends, &zeros),
        11 if rare || role == Role::Client => head(old(rng, *next), END, "x-sum: 5\nx-other: 6"),
        12 => number(kind::RST_STREAM, old(rng, *next), rng.u32(..14)),
        13 => number(kind::WINDOW_UPDATE, old(rng, *next), [0, 1, 1000, 1 << 20, u32::MAX][rng.usize(..5)]),
        14 => number(kind::WINDOW_UPDATE, 0, rng.u32(1..1 << 16)),
        15 if rare => settings(&[(rng.u16(1..10), 7)]),
        15 => settings(&[([1, 3, 4][rng.usize(..3)], [0, 1, 100, 1 << 14, 1 << 20][rng.usize(..5)])]),
        16 => frame(kind::SETTINGS, flag::ACK, 0, &[]),
        17 => frame(kind::PRIORITY, 0, old(rng, *next), &[0, 0, 0, rng.u8(..9), 0]),
        18 if rare => frame(kind::CONTINUATION, flag::END_HEADERS, old(rng, *next), &block("x-b: c")),
        _ => [ping(), frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 9, 0, 0, 0, 0])][rng.usize(..2)].clone(),
    }
}

/// Does something with a stream.
fn act(rng: &mut Rng, conn: &mut Conn) {
    if conn.streams.is_empty() {
        return;
    }
    let at = rng.usize(..conn.streams.len());
    let (stream, ends) = (&conn.streams[at], rng.u8(..4) == 0);
    let mut cx = Context::from_waker(Waker::noop());
    match rng.u8(..10) {
        0..3 => drop(read(stream)),
        3 => drop(stream.send_response(200, &Fields::new(), ends)),
        4 | 5 => drop(send(stream, &vec![0; rng.usize(..100_000)], ends)),
        6 => drop(stream.poll_head(&mut cx, &mut ResponseHead::default())),
        7 => stream.give_up_turn(),
        8 => stream.reset(Code::CANCEL),
        _ => drop(conn.streams.swap_remove(at)),
    }
}

/// Checks relations that always hold.
fn check(conn: &Conn, about: &str) {
    let mux = conn.mux.borrow();
    let unread: u32 = mux.slots.iter().map(|slot| slot.unread).sum();
    assert_eq!(mux.unread, unread, "{about}");
    let queued = mux.slots.iter().filter(|slot| slot.queued).count();
    assert!(mux.queue.len() == queued && mux.granted <= queued, "{about}");
    assert!(mux.queue.iter().all(|&index| mux.slots[index].queued), "{about}");
    let trailers: usize = mux.slots.iter().map(|slot| slot.trailers_size).sum();
    assert_eq!(mux.trailers_reserved.bytes(), trailers, "{about}");
    assert!(mux.recent_resets.len() <= 64 && mux.skipped.len() <= 8, "{about}");
    if mux.over().is_none() {
        assert!(mux.window >= 0 && mux.window + i64::from(mux.unread) <= i64::from(mux.target), "{about}");
        let stuck = mux.granted == 0 && queued > 0 && mux.send_window > 0 && mux.unsent().is_empty();
        assert!(!stuck, "{about}: no stream has its turn");
    }
}

fn random(role: Role, seed: u64, changed: bool) -> bool {
    let about = format!("{role:?} {seed} {changed}");
    let mut rng = Rng::with_seed(seed);
    let mut conn = Conn::new(role, Limits { stream_errors: 1000, control_frames: 100_000, ..limits() });
    let mut next = 1;
    for _ in 0..rng.usize(1..80) {
        if role == Role::Client && rng.u8(..4) == 0 && conn.streams.len() < 8 {
            let stream = Stream::begin(&conn.mux);
            if stream.send_request(GET_PARTS, |_| (), rng.bool(), rng.u8(..8) == 0).is_ok() {
                next += 2;
            }
            conn.streams.push(stream);
        }
        let mut bytes = any_frame(&mut rng, role, &mut next);
        if changed && rng.u8(..8) == 0 {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        let (before, behind) = bytes.split_at(rng.usize(..=bytes.len()));
        conn.feed(before);
        act(&mut rng, &mut conn);
        conn.feed(behind);
        act(&mut rng, &mut conn);
        if rng.bool() {
            conn.sent();
        }
        check(&conn, &about);
    }
    let alive = conn.over().is_none();
    conn.streams.clear();
    conn.sent();
    check(&conn, &about);
    let mux = conn.mux.borrow();
    assert_eq!((mux.unread, mux.slots.len(), conn.received.taken()), (0, 0, 0), "{about}");
    if alive && mux.partial.is_none() {
        let target = i64::from(mux.target);
        assert!(mux.window > target - target.min(64 << 10) / 2 - 1, "{about}: {} of {target}", mux.window);
    }
    alive
}

#[test]
fn random_frames_leave_nothing_behind() {
    let mut alive = 0;
    for seed in 0..1500 {
        for role in [Role::Server, Role::Client] {
            alive += usize::from(random(role, seed, seed % 2 == 1));
        }
    }
    // Most of the time, rules of single streams are broken.
    assert!(alive > 500, "{alive}");
}
