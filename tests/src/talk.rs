//! Conversations in bytes, on either side of the gateway.

use crate::case::{Move, parse_duration};
use crate::http::{Reader, bytes, find};
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// A read that takes longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until an upstream of that name has seen a request.
pub type Watch<'a> = &'a dyn Fn(&str) -> Result<()>;

/// Plays all moves on a connection; gives back everything read on the way.
pub fn play(stream: &TcpStream, moves: &[Move], watch: Watch) -> Result<Vec<u8>> {
    stream.set_nodelay(true)?;
    let mut reader = Reader::new(stream);
    let mut heard = Vec::new();
    for (number, step) in (1..).zip(moves) {
        one(&mut reader, step, &mut heard, watch).with_context(|| {
            format!("move {number} ({step:?}), heard before it: {:?}", String::from_utf8_lossy(&heard))
        })?;
    }
    heard.extend(reader.take_rest());
    Ok(heard)
}

fn one(reader: &mut Reader<&TcpStream>, step: &Move, heard: &mut Vec<u8>, watch: Watch) -> Result<()> {
    let mut stream = *reader.inner();
    stream.set_read_timeout(Some(PATIENCE))?;
    match step {
        Move::Send(text) => stream.write_all(&bytes(text)?)?,
        Move::Read(text) => read_until(reader, &bytes(text)?, heard)?,
        Move::ReadHead => read_until(reader, b"\r\n\r\n", heard)?,
        Move::Sleep(text) => std::thread::sleep(parse_duration(text)?),
        Move::Seen(upstream) => watch(upstream)?,
        Move::Quiet(text) => {
            stream.set_read_timeout(Some(parse_duration(text)?))?;
            let came = reader.more();
            match came {
                Ok(true) => bail!("expected silence, got {:?}", String::from_utf8_lossy(reader.rest())),
                Ok(false) => bail!("expected silence, the peer closed"),
                Err(_) if reader.rest().is_empty() => {}
                Err(_) => bail!("expected silence, got {:?}", String::from_utf8_lossy(reader.rest())),
            }
        }
        Move::ReadEnd => {
            while reader.more()? {}
            heard.extend(reader.take_rest());
        }
        Move::HalfClose => stream.shutdown(Shutdown::Write)?,
        Move::Close => stream.shutdown(Shutdown::Both)?,
        Move::Reset => reset(stream)?,
    }
    Ok(())
}

/// Ends a connection by a reset once it is dropped.
pub fn reset(stream: &TcpStream) -> Result<()> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    Ok(())
}

fn read_until(reader: &mut Reader<&TcpStream>, wanted: &[u8], heard: &mut Vec<u8>) -> Result<()> {
    loop {
        if let Some(at) = find(reader.rest(), wanted) {
            let end = at + wanted.len();
            let mut rest = reader.take_rest();
            let after = rest.split_off(end);
            heard.extend(rest);
            reader.put_back(after);
            return Ok(());
        }
        let more = reader
            .more()
            .with_context(|| format!("got so far {:?}", String::from_utf8_lossy(reader.rest())))?;
        if !more {
            bail!("the peer closed after {:?}", String::from_utf8_lossy(reader.rest()));
        }
    }
}
