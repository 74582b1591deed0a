//! Steps of a script, and the side of a connection that runs them.

use std::cell::RefCell;
use std::time::Duration;

use base64::Engine;
use proxy::testing::{self, End, Gateway};
use sha1::{Digest, Sha1};

use super::http2_server;

/// One step of a script.
#[derive(Debug, Clone)]
pub enum Do {
    Send(&'static str),
    Bytes(&'static [u8]),
    /// Sends one byte this many times.
    Many(u8, usize),
    /// Reads until this text has arrived, after the last one waited for.
    Until(&'static str),
    /// Reads until one byte has arrived this many times, after the last text waited for.
    Count(u8, usize),
    /// Reads to the end of the connection.
    ToEnd,
    /// Waits for milliseconds of the virtual clock.
    Wait(u64),
    ShutDown,
    Close,
    Reset,
    /// A server's whole script: it refuses the connection.
    Refuse,
    /// A server's whole script: it accepts the connection and closes it before a request.
    Gone,
    /// A server's whole script: connecting fails with this `errno`.
    Fail(i32),
    Drain,
    EndTunnels,
    /// HTTP/2 server ([`http2_server`]): reads until a frame of this kind has arrived on this stream.
    UntilOn(u32, u8),
    /// Server: accepts a WebSocket, with these fields and bytes at the end of its response.
    Agree(&'static str),
    /// HTTP/2 client: begins a request with a body: method, path and fields, in lines.
    Ask(&'static str),
    /// HTTP/2 client: sends a request without a body.
    AskAll(&'static str),
    /// HTTP/2 client: sends these trailers, in lines.
    Trailers(&'static str),
    /// Checks the number of open client connections, which includes those of the gateway to itself.
    Served(usize),
}

/// The bytes that one side has read.
#[derive(Debug, Default)]
pub struct Got {
    pub bytes: Vec<u8>,
    /// The offset at which the next `Until` begins.
    pub(super) at: usize,
    /// Whether the connection ended with a reset.
    pub reset: bool,
    pub ended: bool,
    /// The number of bytes sent.
    pub(super) sent: usize,
}

impl Got {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    async fn more(&mut self, end: &End) -> bool {
        let mut part = [0; 4096];
        match end.read(&mut part).await {
            Ok(0) => self.ended = true,
            Ok(n) => self.bytes.extend_from_slice(&part[..n]),
            Err(_) => (self.ended, self.reset) = (true, true),
        }
        !self.ended
    }

    pub(super) fn find(&self, what: &[u8]) -> Option<usize> {
        self.bytes[self.at..]
            .windows(what.len())
            .position(|here| here == what)
            .map(|at| self.at + at + what.len())
    }
}

/// Runs a script. Panics with the received bytes if an expected text does not arrive.
pub async fn play(who: &str, script: &[Do], end: End, got: &RefCell<Got>, gateway: &Gateway) {
    // Nothing else reads it while the script runs.
    let mut mine = got.take();
    for step in script {
        match step {
            Do::Send(text) => {
                mine.sent += text.len();
                // The other side may have closed; later steps of the script check whether that is right.
                let _ = end.write_all(text.as_bytes()).await;
            }
            Do::Bytes(bytes) => {
                mine.sent += bytes.len();
                let _ = end.write_all(bytes).await;
            }
            Do::Many(byte, count) => {
                mine.sent += count;
                let _ = end.write_all(&vec![*byte; *count]).await;
            }
            Do::Until(text) => loop {
                if let Some(at) = mine.find(text.as_bytes()) {
                    mine.at = at;
                    break;
                }
                assert!(mine.more(&end).await, "{who} waits for {text:?}, but has {:?}", mine.text());
            },
            Do::UntilOn(stream, kind) => loop {
                let Some((came, on, length)) = http2_server::first(&mine.bytes[mine.at..]) else {
                    assert!(mine.more(&end).await, "{who} waits for {step:?}, but has {:?}", mine.text());
                    continue;
                };
                mine.at += length;
                if (on, came) == (*stream, *kind) {
                    break;
                }
            },
            Do::Count(byte, count) => {
                let mut left = *count;
                loop {
                    let here = mine.bytes[mine.at..].iter().filter(|&here| here == byte).count();
                    mine.at = mine.bytes.len();
                    left = left.saturating_sub(here);
                    if left == 0 {
                        break;
                    }
                    assert!(mine.more(&end).await, "{who} lacks {left} of {count} bytes");
                }
            }
            Do::ToEnd => while mine.more(&end).await {},
            Do::Wait(ms) => testing::sleep(Duration::from_millis(*ms)).await,
            Do::ShutDown => end.shut_down(),
            Do::Drain => gateway.drain(),
            Do::EndTunnels => gateway.end_tunnels(),
            Do::Served(count) => assert_eq!(gateway.connections(), *count, "{who}"),
            Do::Agree(rest) => {
                let asked = mine.text();
                let key = asked.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
                let agree = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Accept: {}\r\n{rest}",
                    accept(key)
                );
                let _ = end.write_all(agree.as_bytes()).await;
            }
            Do::Ask(_) | Do::AskAll(_) | Do::Trailers(_) => panic!("{who} speaks no HTTP/2"),
            Do::Close | Do::Refuse | Do::Gone | Do::Fail(_) => break,
            Do::Reset => {
                end.abort();
                break;
            }
        }
    }
    drop(end);
    got.replace(mine);
}

/// Returns `Sec-WebSocket-Accept` for a client's key (RFC 6455 section 4.2.2).
fn accept(key: &str) -> String {
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    base64::engine::general_purpose::STANDARD.encode(digest)
}
