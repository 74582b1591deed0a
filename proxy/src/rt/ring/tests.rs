//! The engine on sockets of its own, on both ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;

/// As [`super::run`]. Where the kernel refuses a ring there is nothing to test.
fn run(future: impl Future<Output = ()> + 'static) {
    match super::run(future) {
        Err(error) if try_out().is_err() => eprintln!("no io_uring here: {error}"),
        result => result.unwrap(),
    }
}

fn listener() -> (StdListener, SocketAddr) {
    let listener = crate::rt::listen("127.0.0.1:0".parse().unwrap(), 16, false).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

async fn read(stream: &Stream, buf: &mut [u8]) -> io::Result<usize> {
    std::future::poll_fn(|cx| stream.poll_read(cx, buf)).await
}

async fn write_all(stream: &Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = std::future::poll_fn(|cx| stream.poll_write(cx, bytes)).await.unwrap();
        bytes = &bytes[n..];
    }
}

/// Lets the kernel speak until it has said what is waited for.
async fn until(mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !seen() {
        assert!(Instant::now() < deadline, "it never came");
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_server_and_its_client_on_one_ring() {
    run(async {
        let (socket, addr) = listener();
        let listener = Listener::new(socket).unwrap();
        spawn(async move {
            let (stream, peer) = listener.accept().await.unwrap();
            assert!(peer.ip().is_loopback());
            let mut buf = [0; 1000];
            loop {
                match read(&stream, &mut buf).await.unwrap() {
                    0 => break,
                    n => write_all(&stream, &buf[..n]).await,
                }
            }
        });
        let stream = connect(addr).await.unwrap();
        let sent: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let (mut got, mut buf) = (Vec::new(), [0; 777]);
        for piece in sent.chunks(5000) {
            write_all(&stream, piece).await;
            let wanted = got.len() + piece.len();
            while got.len() < wanted {
                let n = read(&stream, &mut buf).await.unwrap();
                got.extend_from_slice(&buf[..n]);
            }
        }
        stream.shutdown().unwrap();
        assert_eq!(read(&stream, &mut buf).await.unwrap(), 0, "the end came back");
        assert_eq!(stream.peek().unwrap(), 0);
        assert!(got == sent);
    });
}

#[test]
fn what_nobody_takes_is_held_to_a_bound_and_nothing_is_lost() {
    const ALL: usize = 8 << 20;
    run(async {
        let (socket, addr) = listener();
        let writer = std::thread::spawn(move || {
            socket.set_nonblocking(false).unwrap();
            let (mut stream, _) = socket.accept().unwrap();
            let bytes: Vec<u8> = (0..ALL).map(|i| (i / 251) as u8).collect();
            stream.write_all(&bytes).unwrap();
        });
        let stream = connect(addr).await.unwrap();
        let mut first = [0; 1];
        assert_eq!(read(&stream, &mut first).await.unwrap(), 1);
        // Long enough for all to come, were there no bound.
        for _ in 0..100 {
            sleep(Duration::from_millis(2)).await;
            let held = stream.untaken();
            assert!(held < 512 << 10, "{held} bytes are held");
        }
        assert!(!writer.is_finished(), "the writer was held up");
        let (mut got, mut buf) = (1, vec![0; 100_000]);
        loop {
            let n = read(&stream, &mut buf).await.unwrap();
            if n == 0 {
                break;
            }
            assert!(buf[..n].iter().enumerate().all(|(i, byte)| *byte == ((got + i) / 251) as u8));
            got += n;
        }
        assert_eq!(got, ALL);
        writer.join().unwrap();
    });
}

#[test]
fn an_idle_connection_tells_that_it_died() {
    run(async {
        let (socket, addr) = listener();
        let stream = connect(addr).await.unwrap();
        socket.set_nonblocking(false).unwrap();
        let (mut peer, _) = socket.accept().unwrap();
        assert!(stream.has_news(), "the kernel was not asked yet");
        assert!(stream.is_quiet());
        peer.write_all(b"answer").unwrap();
        let mut buf = [0; 64];
        assert_eq!(read(&stream, &mut buf).await.unwrap(), 6);
        assert!(!stream.has_news() && stream.is_quiet());
        drop(peer);
        assert!(!stream.is_quiet(), "the end is noticed without waiting a turn");
        until(|| stream.has_news()).await;
        drop(stream);

        // The same number, another connection: nothing of the old one is left.
        let again = connect(addr).await.unwrap();
        let (mut peer, _) = socket.accept().unwrap();
        peer.write_all(b"new").unwrap();
        assert_eq!(read(&again, &mut buf).await.unwrap(), 3);
        assert_eq!(&buf[..3], b"new");
        again.abort();
        drop(again);
        sleep(Duration::from_millis(5)).await;
        let reset = peer.read(&mut buf).unwrap_err();
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn more_sockets_than_buffers() {
    const COUNT: usize = 300;
    run(async {
        let (socket, addr) = listener();
        socket.set_nonblocking(false).unwrap();
        let mut pairs = Vec::new();
        for _ in 0..COUNT {
            let peer = TcpStream::connect(addr).unwrap();
            let stream = crate::rt::ring::Stream::accepted(socket.accept().unwrap().0).unwrap();
            pairs.push((stream, peer));
        }
        for (index, (_, peer)) in pairs.iter_mut().enumerate() {
            peer.write_all(&vec![index as u8; 20_000]).unwrap();
        }
        let mut reading = Vec::new();
        for (index, (stream, peer)) in pairs.into_iter().enumerate() {
            let done = Rc::new(std::cell::Cell::new(0));
            reading.push(done.clone());
            spawn(async move {
                let mut buf = [0; 3000];
                while done.get() < 20_000 {
                    let n = read(&stream, &mut buf).await.unwrap();
                    assert!(n > 0 && buf[..n].iter().all(|byte| *byte == index as u8));
                    done.set(done.get() + n);
                }
                drop(peer);
            });
        }
        until(|| reading.iter().all(|done| done.get() == 20_000)).await;
    });
}

#[test]
fn a_connection_nobody_takes_fails_or_is_given_up() {
    run(async {
        let (socket, addr) = listener();
        drop(socket);
        assert_eq!(connect(addr).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // Given up in the middle: the place is free for others.
        let mut given_up = Box::pin(connect("192.0.2.1:9".parse().unwrap()));
        std::future::poll_fn(|cx| {
            let _ = given_up.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        drop(given_up);
        sleep(Duration::from_millis(5)).await;
    });
}

#[test]
fn a_panic_of_the_first_future_comes_through() {
    let caught = std::panic::catch_unwind(|| run(async { panic!("as expected") }));
    assert!(caught.is_err() || try_out().is_err());
    assert!(!is_here());
    run(async { assert!(is_here()) });
}
