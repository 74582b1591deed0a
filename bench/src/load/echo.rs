//! WebSocket messages that are echoed: one in flight on each connection, closed loop.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{Load, Tally, Target};

/// Bytes of a message.
pub const MESSAGE: usize = 100;

/// The example keys of RFC 6455: the client's key and the server's response to it.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Maximum length of a response head, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// A WebSocket after its handshake.
pub struct Client {
    socket: TcpStream,
    /// A complete message, masked as required of clients.
    frame: Vec<u8>,
}

impl Client {
    /// # Errors
    /// The response is not 101 with the right key.
    pub async fn connect(target: &Target) -> Result<Self> {
        let mut socket = TcpStream::connect(target.address).await?;
        socket.set_nodelay(true)?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n",
            target.path(0),
            target.address
        );
        socket.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < LONGEST_HEAD, "a head of more than {LONGEST_HEAD} bytes");
            head.push(socket.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head);
        if !head.starts_with("HTTP/1.1 101 ") || !head.contains(ACCEPT) {
            bail!("the handshake was answered {head:?}");
        }
        Ok(Self { socket, frame: masked() })
    }

    /// Sends a message and waits for its echo.
    ///
    /// # Errors
    /// The response is not the same message.
    pub async fn ask(&mut self) -> Result<()> {
        self.socket.write_all(&self.frame).await?;
        let mut answer = [0; MESSAGE + 2];
        self.socket.read_exact(&mut answer).await?;
        ensure!(answer[..2] == [0x82, MESSAGE as u8], "a frame that begins with {:?}", &answer[..2]);
        ensure!(answer[2..] == [b'm'; MESSAGE], "another message came back");
        Ok(())
    }
}

/// A final binary frame of `MESSAGE` times `m`.
fn masked() -> Vec<u8> {
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![0x82, 0x80 | MESSAGE as u8];
    frame.extend(mask);
    frame.extend((0..MESSAGE).map(|index| b'm' ^ mask[index % 4]));
    frame
}

/// The load of `Driver::Echo`.
pub async fn load(connections: usize, target: Target, duration: Duration) -> Result<Load> {
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Client::connect(&target).await?);
    }
    let started = Instant::now();
    let deadline = started + duration;
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            let mut tally = Tally::new()?;
            while Instant::now() < deadline {
                let sent = Instant::now();
                match client.ask().await {
                    Ok(()) => tally.count(sent.elapsed()),
                    Err(problem) => {
                        tally.fail(&problem);
                        break;
                    }
                }
            }
            anyhow::Ok(tally)
        });
    }
    let mut tally = Tally::new()?;
    while let Some(part) = tasks.join_next().await {
        tally.add(part??)?;
    }
    Ok(tally.load(started.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::wait;
    use crate::machine::Cores;
    use crate::upstream::echo;

    #[test]
    fn messages_come_back() {
        let origin = echo::start(([127, 0, 0, 1], 0).into(), &Cores(vec![0])).unwrap();
        let target = Target::plain(origin.address(), 0);
        wait(async {
            let mut client = Client::connect(&target).await?;
            client.ask().await?;
            client.ask().await
        })
        .unwrap();
    }
}
