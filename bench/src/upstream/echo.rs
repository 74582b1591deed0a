//! A WebSocket server that sends each message back.

use std::net::SocketAddr;

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::origin::Origin;
use crate::load::echo::{ACCEPT, KEY};
use crate::machine::Cores;

/// Maximum length of a request head, in bytes.
const LONGEST_HEAD: usize = 16 * 1024;

/// # Errors
/// The address is not available.
pub fn start(address: SocketAddr, cores: &Cores) -> Result<Origin> {
    // The gateway reports failed connections.
    Origin::start_tasks(address, cores, |socket| {
        tokio::spawn(serve(socket));
    })
}

async fn serve(mut socket: TcpStream) -> Result<()> {
    let mut bytes = Vec::new();
    let head = loop {
        ensure!(socket.read_buf(&mut bytes).await? > 0 && bytes.len() < LONGEST_HEAD, "no request");
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let request = String::from_utf8_lossy(&bytes[..head]).into_owned();
    if !request.contains(KEY) {
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await?;
        bail!("no WebSocket");
    }
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    );
    socket.write_all(response.as_bytes()).await?;
    bytes.drain(..head);
    let mut out = Vec::new();
    loop {
        while let Some(taken) = echo(&bytes, &mut out)? {
            bytes.drain(..taken);
        }
        if !out.is_empty() {
            socket.write_all(&out).await?;
            out.clear();
        }
        if socket.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// Appends the echo of the first frame of `bytes`, if it is complete, and returns the frame's
/// length.
fn echo(bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>> {
    let [first, second, ..] = bytes else { return Ok(None) };
    let length = usize::from(second & 0x7f);
    ensure!(second & 0x80 != 0 && length < 126, "only short masked frames are supported");
    let Some(frame) = bytes.get(2..6 + length) else { return Ok(None) };
    let (mask, payload) = frame.split_at(4);
    out.extend([*first, length as u8]);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    Ok(Some(6 + length))
}
