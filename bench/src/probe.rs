//! Single requests that verify a gateway before and after it is measured.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustls::{ClientConnection, StreamOwned};

use crate::certificate;
use crate::load::response::{Response, ResponseReader};
use crate::load::{self, Call, Front, Target, echo, http2, http3};
use crate::process::Process;

/// A connection to a gateway that is kept open, in any protocol.
pub enum Session {
    Http1(Client),
    Http2(http2::Client),
    Http3(http3::Client),
    WebSocket(echo::Client),
}

impl Session {
    pub fn connect(target: &Target) -> Result<Self> {
        Ok(match (target.call, target.front) {
            (Call::WebSocket, _) => Self::WebSocket(load::wait(echo::Client::connect(target))?),
            (_, Front::Http | Front::Https) => Self::Http1(Client::connect(target)?),
            (_, Front::H2c | Front::H2) => Self::Http2(load::wait(http2::Client::connect(target))?),
            (_, Front::Http3) => Self::Http3(load::wait(http3::Client::connect(target))?),
        })
    }

    /// Requests path number `index`; an echoed message counts as 200 with the right length.
    pub fn ask(&mut self, target: &Target, index: usize) -> Result<Response> {
        match self {
            Self::Http1(client) => client.ask(&target.request(index)),
            Self::Http2(client) => load::wait(client.ask(index)),
            Self::Http3(client) => load::wait(client.ask(index)),
            Self::WebSocket(client) => {
                load::wait(client.ask())?;
                Ok(Response { status: 200, body: target.body })
            }
        }
    }
}

/// One keep-alive connection to a gateway, HTTP/1.1.
pub struct Client {
    stream: Stream,
    reader: ResponseReader,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Client {
    pub fn connect(target: &Target) -> Result<Self> {
        let socket = TcpStream::connect_timeout(&target.address, Duration::from_secs(2))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let stream = if target.front == Front::Https {
            let connection = ClientConnection::new(certificate::probe(false)?, certificate::server_name()?)?;
            Stream::Tls(Box::new(StreamOwned::new(connection, socket)))
        } else {
            Stream::Plain(socket)
        };
        Ok(Self { stream, reader: ResponseReader::default() })
    }

    /// Sets a longer timeout than the default of five seconds.
    pub fn be_patient(&self, patience: Duration) -> Result<()> {
        let socket = match &self.stream {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        };
        Ok(socket.set_read_timeout(Some(patience))?)
    }

    /// Sends one request and reads its response.
    pub fn ask(&mut self, request: &[u8]) -> Result<Response> {
        self.exchange(request, |_| ())
    }

    /// As [`Client::ask`], returning head and body unchanged; a chunked body includes its chunk
    /// sizes.
    pub fn ask_whole(&mut self, request: &[u8]) -> Result<(u16, String, String)> {
        let mut whole = Vec::new();
        let response = self.exchange(request, |bytes| whole.extend_from_slice(bytes))?;
        let whole = String::from_utf8_lossy(&whole);
        let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
        Ok((response.status, head.to_owned(), body.to_owned()))
    }

    fn exchange(&mut self, request: &[u8], mut seen: impl FnMut(&[u8])) -> Result<Response> {
        match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(request)?,
            Stream::Tls(stream) => stream.write_all(request)?,
        }
        let mut bytes = [0; 16 * 1024];
        loop {
            let count = match &mut self.stream {
                Stream::Plain(stream) => stream.read(&mut bytes)?,
                Stream::Tls(stream) => stream.read(&mut bytes)?,
            };
            if count == 0 {
                bail!("the connection was closed before the end of the response");
            }
            seen(&bytes[..count]);
            if let Some(response) = self.reader.feed(&bytes[..count])? {
                return Ok(response);
            }
        }
    }
}

/// Sends `count` requests over one connection; all must get 200 with the right length.
pub fn verify(target: &Target, count: usize) -> Result<()> {
    let mut session = Session::connect(target)?;
    for index in 0..count {
        // Spread over the whole routing table.
        let path = index * (target.paths / count.min(target.paths)).max(1);
        let response = session.ask(target, path).with_context(|| target.path(path))?;
        if response.status != 200 || response.body != target.body {
            bail!(
                "{} was answered {} with {} bytes, expected 200 with {}",
                target.path(path),
                response.status,
                response.body,
                target.body
            );
        }
    }
    Ok(())
}

/// Waits until `process` responds correctly.
///
/// # Errors
/// It ends, or does not respond correctly within `patience`; the error has its response and its
/// log.
pub fn wait_ready(process: &mut Process, target: &Target, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        process.must_run()?;
        match verify(target, 1) {
            Ok(()) => return Ok(()),
            Err(problem) if Instant::now() > deadline => {
                return Err(problem).context(format!(
                    "not ready after {} s; its log ends with:\n{}",
                    patience.as_secs(),
                    process.log_tail()
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
