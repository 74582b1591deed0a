//! The runner's own HTTP/1 client: sends bytes exactly as given, well-formed or not.

use crate::http::{Message, Reader};
use crate::talk::PATIENCE;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Connections kept by name over the steps of a case.
#[derive(Default)]
pub struct Client {
    kept: HashMap<String, Connection>,
}

type Connection = Reader<TcpStream>;

/// One request, ready to be sent.
#[derive(Clone, Default)]
pub struct Call {
    pub method: String,
    pub target: String,
    /// `1.1` or `1.0`.
    pub version: String,
    pub headers: Vec<(String, String)>,
    pub no_host: bool,
    pub body: Option<Vec<u8>>,
    pub chunks: Option<Vec<Vec<u8>>>,
    pub trailers: Vec<(String, String)>,
    pub expect_continue: bool,
    /// Name of the connection to use and keep.
    pub connection: Option<String>,
    /// Look after the answer whether the server closes: waits for it, or for
    /// a moment without it.
    pub watch_close: Option<bool>,
}

/// A response.
#[derive(Clone, Default, Debug)]
pub struct Answer {
    pub message: Message,
    pub elapsed: Duration,
    /// Looked at only when asked for.
    pub closed: Option<bool>,
}

impl Call {
    pub fn new(method: &str, target: &str) -> Call {
        Call { method: method.into(), target: target.into(), version: "1.1".into(), ..Call::default() }
    }

    pub fn header(mut self, name: &str, value: &str) -> Call {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: Vec<u8>) -> Call {
        self.body = Some(body);
        self
    }

    fn head(&self, address: &str) -> String {
        let mut head = format!("{} {} HTTP/{}\r\n", self.method, self.target, self.version);
        let has = |name: &str| self.headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        if !self.no_host && !has("host") {
            head.push_str(&format!("Host: {address}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.expect_continue {
            head.push_str("Expect: 100-continue\r\n");
        }
        if self.chunks.is_some() {
            head.push_str("Transfer-Encoding: chunked\r\n");
        } else if let Some(body) =
            self.body.as_ref().filter(|_| !has("content-length") && !has("transfer-encoding"))
        {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head
    }

    fn payload(&self) -> Vec<u8> {
        let Some(chunks) = &self.chunks else { return self.body.clone().unwrap_or_default() };
        let mut out = Vec::new();
        for chunk in chunks {
            out.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            out.extend(chunk);
            out.extend(b"\r\n");
        }
        out.extend(b"0\r\n");
        for (name, value) in &self.trailers {
            out.extend(format!("{name}: {value}\r\n").into_bytes());
        }
        out.extend(b"\r\n");
        out
    }
}

impl Client {
    /// Sends one request and reads its answer.
    pub fn call(&mut self, address: &str, call: &Call) -> Result<Answer> {
        let start = Instant::now();
        let kept = call.connection.as_ref().and_then(|name| self.kept.remove(name));
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(address)?,
        };
        let message = exchange(&mut connection, address, call)?;
        let elapsed = start.elapsed();
        let closed = call.watch_close.map(|expected| closes(&mut connection, expected)).transpose()?;
        if let Some(name) = &call.connection {
            self.kept.insert(name.clone(), connection);
        }
        Ok(Answer { message, elapsed, closed })
    }

    /// Sends bytes on a new connection and reads a number of responses.
    pub fn raw(
        &mut self,
        address: &str,
        bytes: &[u8],
        answers: usize,
        watch_close: Option<bool>,
    ) -> Result<(Vec<Message>, Option<bool>)> {
        let mut connection = connect(address)?;
        // The server may answer and close before it has read everything.
        let _ = connection.inner().write_all(bytes);
        let method = if bytes.starts_with(b"HEAD ") { "HEAD" } else { "GET" };
        let mut messages = Vec::new();
        for number in 1..=answers {
            messages
                .push(connection.response(method).with_context(|| format!("answer {number} of {answers}"))?);
        }
        let closed = watch_close.map(|expected| closes(&mut connection, expected)).transpose()?;
        Ok((messages, closed))
    }

    pub fn forget(&mut self) {
        self.kept.clear();
    }
}

pub fn connect(address: &str) -> Result<Connection> {
    let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Reader::new(stream))
}

fn exchange(connection: &mut Connection, address: &str, call: &Call) -> Result<Message> {
    let mut bytes = call.head(address).into_bytes();
    if call.expect_continue {
        connection.inner().write_all(&bytes)?;
        let first = connection.head()?.context("closed instead of an answer to Expect")?;
        if first.status() != 100 {
            return finish(connection, first, &call.method);
        }
        let _ = connection.inner().write_all(&call.payload());
        let mut message = connection.response(&call.method)?;
        message.interim.insert(0, 100);
        return Ok(message);
    }
    bytes.extend(call.payload());
    // An early answer may come with the connection closed: then this write
    // fails, and what counts is what was answered.
    let written = connection.inner().write_all(&bytes);
    match connection.response(&call.method) {
        Ok(message) => Ok(message),
        Err(error) => match written {
            Ok(()) => Err(error),
            Err(write) => Err(error.context(format!("sending failed too: {write}"))),
        },
    }
}

/// Reads the body of a head already taken.
fn finish(connection: &mut Connection, head: Message, method: &str) -> Result<Message> {
    let mut text = format!("{}\r\n", head.line).into_bytes();
    for (name, value) in &head.headers {
        text.extend(format!("{name}: {value}\r\n").into_bytes());
    }
    text.extend(b"\r\n");
    connection.put_back(text);
    connection.response(method)
}

/// Whether the server closes the connection; unexpected bytes are an error.
fn closes(connection: &mut Connection, expected: bool) -> Result<bool> {
    let patience = if expected { PATIENCE } else { Duration::from_millis(150) };
    connection.inner().set_read_timeout(Some(patience))?;
    let more = connection.more();
    connection.inner().set_read_timeout(Some(PATIENCE))?;
    if !connection.rest().is_empty() {
        anyhow::bail!("bytes after the last answer: {:?}", String::from_utf8_lossy(connection.rest()));
    }
    Ok(matches!(more, Ok(false)))
}
