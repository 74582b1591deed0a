//! A relay of TCP connections that does to them what networks do: nothing goes through any more, or only one way, or
//! late, or in crumbs, or the connections break.

use anyhow::Result;
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How soon another way, a break or an end is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// The delay of each piece, if there are delays.
const LATE: Duration = Duration::from_millis(40);

/// Bytes of a crumb, and how many of them go on their own: one by one, a large answer would take minutes.
const CRUMB: usize = 3;
const CRUMBS: usize = 40;

/// How bytes are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    /// At once.
    Open,
    /// They stay where they are, as if packets were dropped.
    Cut,
    /// Those of the server do; it still gets what is sent to it.
    HalfCut,
    Late,
    /// The beginning of each piece goes three bytes at a time.
    Crumbs,
}

impl Way {
    const ALL: [Way; 5] = [Way::Open, Way::Cut, Way::HalfCut, Way::Late, Way::Crumbs];

    pub fn from_name(name: &str) -> Option<Way> {
        Some(match name {
            "heal" => Way::Open,
            "cut" => Way::Cut,
            "half-cut" => Way::HalfCut,
            "late" => Way::Late,
            "crumbs" => Way::Crumbs,
            _ => return None,
        })
    }
}

pub struct Relay {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    way: AtomicU8,
    over: AtomicBool,
    /// How often all connections were broken.
    breaks: AtomicU64,
    /// Both ends of each connection.
    open: Mutex<Vec<[TcpStream; 2]>>,
}

/// From whom the bytes come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Server,
}

impl Relay {
    /// Relays to a port on loopback.
    pub fn start(to: u16) -> Result<Relay> {
        let listener = TcpListener::bind(("127.0.0.1", crate::ports::free()?))?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = shared.clone();
                thread::spawn(move || connect(stream, to, &shared));
            }
        });
        Ok(Relay { port, state })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, way: Way) {
        self.state.way.store(way as u8, Ordering::SeqCst);
    }

    /// Breaks all connections off: both ends see a reset.
    pub fn reset(&self) {
        self.state.breaks.fetch_add(1, Ordering::SeqCst);
        let mut open = self.state.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for stream in open.drain(..).flatten() {
            // The thread that copies closes the last descriptor.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl State {
    fn way(&self) -> Way {
        Way::ALL[usize::from(self.way.load(Ordering::SeqCst))]
    }

    /// Whether what comes from there stays where it is.
    fn holds(&self, from: From) -> bool {
        match self.way() {
            Way::Cut => true,
            Way::HalfCut => from == From::Server,
            Way::Open | Way::Late | Way::Crumbs => false,
        }
    }

    /// Waits for as long as nothing goes through. False if the connection was broken meanwhile, or everything is over.
    fn wait(&self, from: From, breaks: u64) -> bool {
        loop {
            if self.over.load(Ordering::SeqCst) || self.breaks.load(Ordering::SeqCst) != breaks {
                return false;
            }
            if !self.holds(from) {
                return true;
            }
            thread::sleep(LOOK);
        }
    }
}

fn connect(client: TcpStream, to: u16, state: &Arc<State>) {
    let breaks = state.breaks.load(Ordering::SeqCst);
    if !state.wait(From::Client, breaks) {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    if let (Ok(client), Ok(server)) = (client.try_clone(), server.try_clone()) {
        let mut open = state.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Closed connections need not be broken.
        open.retain(|[client, _]| client.peer_addr().is_ok());
        open.push([client, server]);
    }
    for (of, from, into) in [(From::Client, &client, &server), (From::Server, &server, &client)] {
        let (Ok(from), Ok(into), state) = (from.try_clone(), into.try_clone(), state.clone()) else { return };
        thread::spawn(move || copy(of, from, into, &state, breaks));
    }
}

fn copy(of: From, mut from: TcpStream, mut into: TcpStream, state: &State, breaks: u64) {
    let mut buffer = [0; 16 << 10];
    // Another way is noticed although nothing comes.
    let _ = from.set_read_timeout(Some(LOOK));
    let _ = into.set_nodelay(true);
    while state.wait(of, breaks) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                if !state.wait(of, breaks) || pass(&buffer[..count], &mut into, state.way()).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    if state.breaks.load(Ordering::SeqCst) != breaks {
        // Closed with what was read and not passed on: the kernel resets both.
        let _ = SockRef::from(&from).set_linger(Some(Duration::ZERO));
        let _ = SockRef::from(&into).set_linger(Some(Duration::ZERO));
        return;
    }
    // An end goes no further than bytes do.
    if state.wait(of, breaks) {
        let _ = from.shutdown(Shutdown::Both);
        let _ = into.shutdown(Shutdown::Both);
    }
}

fn pass(mut bytes: &[u8], into: &mut TcpStream, way: Way) -> std::io::Result<()> {
    match way {
        Way::Late => thread::sleep(LATE),
        Way::Crumbs => {
            for _ in 0..CRUMBS {
                let (crumb, rest) = bytes.split_at(CRUMB.min(bytes.len()));
                into.write_all(crumb)?;
                bytes = rest;
                if bytes.is_empty() {
                    break;
                }
                thread::yield_now();
            }
        }
        Way::Open | Way::Cut | Way::HalfCut => {}
    }
    into.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, behind a relay, and a client of it.
    fn echo() -> (Relay, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay::start(listener.local_addr().unwrap().port()).unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut bytes = [0; 100];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        if stream.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let client = TcpStream::connect(("127.0.0.1", relay.port())).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        (relay, client)
    }

    fn asked(client: &mut TcpStream, text: &str) -> bool {
        client.write_all(text.as_bytes()).unwrap();
        answered(client, text)
    }

    fn answered(client: &mut TcpStream, text: &str) -> bool {
        let mut bytes = vec![0; text.len()];
        client.read_exact(&mut bytes).is_ok_and(|()| bytes == text.as_bytes())
    }

    #[test]
    fn bytes_go_on_whole_or_stay_where_they_are() {
        let (relay, mut client) = echo();
        for way in [Way::Open, Way::Late, Way::Crumbs] {
            relay.set(way);
            assert!(asked(&mut client, "0123456789"), "{way:?}");
        }
        for way in [Way::Cut, Way::HalfCut] {
            relay.set(way);
            thread::sleep(LOOK * 3);
            assert!(!asked(&mut client, "late"), "{way:?}");
            relay.set(Way::Open);
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert!(answered(&mut client, "late"), "{way:?}");
            client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        }
    }

    #[test]
    fn a_broken_connection_is_reset_and_a_new_one_goes_through() {
        let (relay, mut client) = echo();
        assert!(asked(&mut client, "a"));
        relay.reset();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut client = TcpStream::connect(("127.0.0.1", relay.port())).unwrap();
        assert!(asked(&mut client, "b"));
    }
}
