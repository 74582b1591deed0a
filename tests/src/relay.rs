//! A relay of TCP connections that can be cut: bytes then stay where they are, as if packets were dropped.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How soon a cut or an end is noticed.
const LOOK: Duration = Duration::from_millis(20);

pub struct Relay {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    cut: AtomicBool,
    over: AtomicBool,
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

    pub fn cut(&self, cut: bool) {
        self.state.cut.store(cut, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn connect(client: TcpStream, to: u16, state: &Arc<State>) {
    wait(state);
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    for (from, into) in [(&client, &server), (&server, &client)] {
        let (Ok(from), Ok(into), state) = (from.try_clone(), into.try_clone(), state.clone()) else { return };
        thread::spawn(move || copy(from, into, &state));
    }
}

fn copy(mut from: TcpStream, mut into: TcpStream, state: &State) {
    let mut buffer = [0; 16 << 10];
    // A cut is noticed although nothing comes.
    let _ = from.set_read_timeout(Some(LOOK));
    loop {
        wait(state);
        if state.over.load(Ordering::SeqCst) {
            break;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                wait(state);
                if into.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    wait(state);
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}

/// As long as it is cut.
fn wait(state: &State) {
    while state.cut.load(Ordering::SeqCst) && !state.over.load(Ordering::SeqCst) {
        thread::sleep(LOOK);
    }
}
