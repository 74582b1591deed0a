//! Stands between the client of MySQL and its server.
//!
//! The client makes room for as many columns as an answer announces before it has seen one, which a server can choose so
//! that no memory suffices. Here what a server says is passed on packet by packet, and a connection ends where it
//! announces more columns than anybody asked for, or speaks without being asked.

use std::io::{Error, ErrorKind, Result};
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// More than any question here has.
const MOST_COLUMNS: u8 = 16;

/// A port of this machine for one connection; it ends with this.
pub(super) struct Gate {
    pub port: u16,
    task: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a server may say next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    LogIn,
    /// Nothing before the next question.
    Silent,
    Asked,
    /// Columns, rows and their end.
    Rows,
}

impl Gate {
    /// Connects to a server, and waits for its client.
    pub async fn open(host: &str, port: u16) -> Result<Gate> {
        let server = TcpStream::connect((host, port)).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let task = control::tasks::spawn(async move {
            if let Ok((client, _)) = listener.accept().await {
                // Both ends see that it is over; the client says why to people.
                let _ = pass(client, server).await;
            }
        });
        Ok(Gate { port, task })
    }
}

async fn pass(client: TcpStream, server: TcpStream) -> Result<()> {
    let state = Mutex::new(State::LogIn);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let questions = copy(from_client, to_server, |number, _| {
        // Each question begins to count anew, which nothing of a login does.
        if number == 0 {
            *state.lock().unwrap_or_else(PoisonError::into_inner) = State::Asked;
        }
        Ok(())
    });
    let answers = copy(from_server, to_client, |_, first| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = next(*state, first).ok_or(ErrorKind::InvalidData)?;
        Ok(())
    });
    tokio::try_join!(questions, answers).map(drop)
}

/// What a server may say after a packet with this first byte; `None` if it may not say that.
fn next(state: State, first: Option<u8>) -> Option<State> {
    match (state, first) {
        // OK and an error end what they answer.
        (State::LogIn | State::Asked, Some(0 | 0xff)) => Some(State::Silent),
        (State::LogIn, _) => Some(State::LogIn),
        (State::Asked, Some(1..=MOST_COLUMNS)) | (State::Rows, _) => Some(State::Rows),
        (State::Silent | State::Asked, _) => None,
    }
}

/// Passes bytes on; `each` sees every packet's number and first byte before that goes.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut each: impl FnMut(u8, Option<u8>) -> Result<()>,
) -> Result<()> {
    let mut packets = Packets::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Err(Error::from(ErrorKind::UnexpectedEof)),
            n => {
                packets.take(&buffer[..n], &mut each)?;
                to.write_all(&buffer[..n]).await?;
            }
        }
    }
}

/// Where packets begin in a stream of bytes: each has a head of a length in three bytes, and a number.
#[derive(Debug, Default)]
struct Packets {
    head: [u8; 4],
    /// Bytes of the head that there are.
    have: usize,
    /// Bytes that are still to come behind it.
    left: usize,
    fresh: bool,
}

impl Packets {
    fn take(&mut self, mut bytes: &[u8], each: &mut impl FnMut(u8, Option<u8>) -> Result<()>) -> Result<()> {
        while let Some(&byte) = bytes.first() {
            if self.have < self.head.len() {
                self.head[self.have] = byte;
                self.have += 1;
                bytes = &bytes[1..];
                if self.have == self.head.len() {
                    let [a, b, c, number] = self.head;
                    self.left = u32::from_le_bytes([a, b, c, 0]) as usize;
                    self.fresh = true;
                    if self.left == 0 {
                        self.have = 0;
                        each(number, None)?;
                    }
                }
                continue;
            }
            if std::mem::take(&mut self.fresh) {
                each(self.head[3], Some(byte))?;
            }
            let n = self.left.min(bytes.len());
            self.left -= n;
            bytes = &bytes[n..];
            if self.left == 0 {
                self.have = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_found_however_they_come() {
        let bytes = [&[2, 0, 0, 7, b'a', b'b'][..], &[0, 0, 0, 8], &[1, 0, 0, 9, b'c']].concat();
        for size in 1..=bytes.len() {
            let mut found = Vec::new();
            let mut packets = Packets::default();
            for part in bytes.chunks(size) {
                let mut each = |number, first| {
                    found.push((number, first));
                    Ok(())
                };
                packets.take(part, &mut each).unwrap();
            }
            assert_eq!(found, [(7, Some(b'a')), (8, None), (9, Some(b'c'))], "{size}");
        }
    }

    #[test]
    fn a_server_speaks_when_it_is_asked() {
        let says = |from, bytes: &[u8]| bytes.iter().try_fold(from, |state, byte| next(state, Some(*byte)));
        // A greeting, another way to log in, and that it worked.
        assert_eq!(says(State::LogIn, &[10, 0xfe, 1, 0]), Some(State::Silent));
        assert_eq!(says(State::Asked, &[3, 200, 0xfe, 0]), Some(State::Rows));
        assert_eq!(says(State::Asked, &[0]), Some(State::Silent));
        for early in [&[0, 3][..], &[0xff, 0], &[17], &[0xfc], &[0xfe], &[0xfb]] {
            assert_eq!(says(State::Asked, early), None, "{early:?}");
        }
        assert_eq!(next(State::Asked, None), None);
    }
}
