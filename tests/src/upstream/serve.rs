//! One connection of a fake upstream.

use super::{Reply, Shared};
use crate::http::{Message, Reader, bytes};
use crate::talk;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A forgotten connection ends after this.
const IDLE: Duration = Duration::from_secs(60);
/// How long a closing connection waits for the peer's last bytes.
const LINGER: Duration = Duration::from_millis(300);

pub fn connection(shared: &Shared, stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    if let Some(moves) = &shared.spec.talk {
        talk::play(stream, moves, &|_| anyhow::bail!("an upstream sees itself alone"))?;
        return Ok(());
    }
    let mut reader = Reader::new(stream);
    while let Some(mut request) = reader.head()? {
        let reply = next_reply(shared);
        if !reply.early {
            if request.first("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
                (&mut &*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            reader.request_body(&mut request)?;
        }
        note(shared, &request);
        if !answer(shared, stream, &mut reader, &request, &reply)? {
            if !reply.reset {
                linger(stream);
            }
            return Ok(());
        }
        if reply.early {
            reader.request_body(&mut request)?;
        }
        if request.first("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            return Ok(());
        }
    }
    Ok(())
}

/// Ends the sending side and takes what still comes, so that closing with
/// unread bytes does not reset the connection under the answer.
fn linger(mut stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.set_read_timeout(Some(LINGER));
    let mut part = [0; 16 * 1024];
    while stream.read(&mut part).is_ok_and(|read| read > 0) {}
}

fn note(shared: &Shared, request: &Message) {
    shared.seen.lock().expect("no holder panics").push(request.clone());
}

/// The reply whose turn it is; the last one stays for ever.
fn next_reply(shared: &Shared) -> Reply {
    let turn = shared.turns.fetch_add(1, Ordering::SeqCst);
    let replies = &shared.spec.replies;
    replies[turn.min(replies.len() - 1)].clone()
}

/// Sends one answer; false when the connection is over.
fn answer(
    shared: &Shared,
    stream: &TcpStream,
    reader: &mut Reader<&TcpStream>,
    request: &Message,
    reply: &Reply,
) -> Result<bool> {
    let mut stream = stream;
    if let Some(delay) = reply.delay {
        std::thread::sleep(delay);
    }
    if reply.hold {
        while reader.more().unwrap_or(false) {}
        return Ok(false);
    }
    if reply.drop || reply.reset {
        if reply.reset {
            talk::reset(stream)?;
        }
        return Ok(false);
    }
    if let Some(raw) = &reply.raw {
        stream.write_all(&bytes(raw)?)?;
        return Ok(!reply.close);
    }
    for status in &reply.interim {
        write!(stream, "HTTP/1.1 {status} Interim\r\n\r\n")?;
    }
    if reply.upgrade {
        return tunnel(stream, reader, request).map(|()| false);
    }
    let body = body(shared.port, request, reply);
    let mut head = head(request, reply, body.len()).into_bytes();
    if request.method() == "HEAD" || matches!(reply.status, Some(204 | 304)) {
        stream.write_all(&head)?;
        return Ok(!reply.close);
    }
    if let Some(chunks) = &reply.chunks {
        stream.write_all(&head)?;
        chunked(stream, reply, chunks)?;
        return Ok(!reply.close && reply.cut.is_none());
    }
    let sent = &body[..reply.cut.unwrap_or(body.len()).min(body.len())];
    match reply.pace {
        Some(pace) => {
            stream.write_all(&head)?;
            std::thread::sleep(pace);
            stream.write_all(sent)?;
        }
        None => {
            head.extend_from_slice(sent);
            stream.write_all(&head)?;
        }
    }
    Ok(!reply.close && !reply.until_close && reply.cut.is_none())
}

fn head(request: &Message, reply: &Reply, length: usize) -> String {
    let status = reply.status.unwrap_or(200);
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reply.reason.as_deref().unwrap_or("OK"));
    for (name, value) in reply.headers.iter().flat_map(|headers| headers.pairs()) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let framed = reply.until_close || matches!(status, 204 | 304);
    if reply.chunks.is_some() {
        head.push_str("Transfer-Encoding: chunked\r\n");
    } else if !framed || (request.method() == "HEAD" && length > 0) {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    head.push_str("\r\n");
    head
}

fn body(port: u16, request: &Message, reply: &Reply) -> Vec<u8> {
    if reply.echo {
        return echo(port, request).to_string().into_bytes();
    }
    match (&reply.body, &reply.json, &reply.many) {
        (Some(text), _, _) => text.clone().into_bytes(),
        (_, Some(value), _) => value.to_string().into_bytes(),
        (_, _, Some(many)) => many.bytes(),
        _ => Vec::new(),
    }
}

/// The received request, names in lower case, repeated fields joined by `, `.
fn echo(port: u16, request: &Message) -> Value {
    let mut headers = Map::new();
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        let joined = match headers.get(&name).and_then(Value::as_str) {
            Some(before) => format!("{before}, {value}"),
            None => value.clone(),
        };
        headers.insert(name, joined.into());
    }
    json!({
        "method": request.method(),
        "target": request.target(),
        "port": port,
        "headers": headers,
        "body": String::from_utf8_lossy(&request.body),
    })
}

fn chunked(mut stream: &TcpStream, reply: &Reply, chunks: &[String]) -> Result<()> {
    for (number, chunk) in chunks.iter().enumerate() {
        if reply.cut == Some(number) {
            return Ok(());
        }
        write!(stream, "{:x}\r\n{chunk}\r\n", chunk.len())?;
        if let Some(pace) = reply.pace {
            std::thread::sleep(pace);
        }
    }
    if reply.cut.is_some() {
        return Ok(());
    }
    stream.write_all(b"0\r\n")?;
    for (name, value) in reply.trailers.iter().flat_map(|headers| headers.pairs()) {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    Ok(())
}

/// Takes the upgrade and sends every byte back until the client is done.
fn tunnel(mut stream: &TcpStream, reader: &mut Reader<&TcpStream>, request: &Message) -> Result<()> {
    let protocol = request.first("upgrade").unwrap_or("websocket");
    write!(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n")?;
    stream.write_all(&reader.take_rest())?;
    let mut part = [0; 16 * 1024];
    loop {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        stream.write_all(&part[..read])?;
    }
}
