//! An HTTP/2 client with one stream at a time. Responses are recorded as text: heads as lines, bodies unchanged, and
//! the end of each stream.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use proxy::testing::{self, End};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Do, Got};

/// Adapts an end of a connection to the h2 crate.
pub struct Line(pub End);

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut part = [0; 4096];
        let room = part.len().min(buf.remaining());
        self.0.poll_read(cx, &mut part[..room]).map_ok(|n| buf.put_slice(&part[..n]))
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shut_down();
        Poll::Ready(Ok(()))
    }
}

/// The current stream.
struct Stream {
    send: SendStream<Bytes>,
    /// Set until the head of the response has arrived.
    answer: Option<ResponseFuture>,
    body: Option<RecvStream>,
}

/// Runs a script, as [`super::play`] does.
pub async fn play(
    who: &str,
    script: &[Do],
    line: impl AsyncRead + AsyncWrite + Unpin + 'static,
    got: &RefCell<Got>,
) {
    let mut mine = got.take();
    let (mut client, connection) = Builder::new().handshake::<_, Bytes>(line).await.unwrap();
    testing::spawn(async move {
        let _ = connection.await;
    });
    let mut stream: Option<Stream> = None;
    for step in script {
        match (step, &mut stream) {
            (Do::Ask(head) | Do::AskAll(head), stream) => {
                let ends = matches!(step, Do::AskAll(_));
                *stream = ask(&mut client, head, ends, &mut mine).await;
            }
            (Do::Wait(ms), _) => testing::sleep(Duration::from_millis(*ms)).await,
            (Do::Close, _) => break,
            (Do::Send(text), Some(stream)) => {
                let _ = send(stream, text.as_bytes()).await;
            }
            (Do::Many(byte, count), Some(stream)) => {
                let _ = send(stream, &vec![*byte; *count]).await;
            }
            (Do::ShutDown, Some(stream)) => _ = stream.send.send_data(Bytes::new(), true),
            (Do::Trailers(text), Some(stream)) => _ = stream.send.send_trailers(fields(text.lines())),
            (Do::Reset, Some(stream)) => stream.send.send_reset(Reason::CANCEL),
            (Do::Until(text), Some(stream)) => loop {
                if let Some(at) = mine.find(text.as_bytes()) {
                    mine.at = at;
                    break;
                }
                assert!(stream.more(&mut mine).await, "{who} waits for {text:?}, but has {:?}", mine.text());
            },
            (Do::ToEnd, Some(stream)) => while stream.more(&mut mine).await {},
            (_, None) if mine.text().ends_with("refused\n") => {}
            (step, _) => panic!("{who} cannot do {step:?}"),
        }
    }
    drop((stream, client));
    got.replace(mine);
}

/// Opens a stream with this head: method and path, and fields, in lines.
async fn ask(client: &mut SendRequest<Bytes>, head: &str, ends: bool, got: &mut Got) -> Option<Stream> {
    let mut lines = head.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(format!("http://a{path}")).body(()).unwrap();
    if method == "CONNECT" {
        request.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    }
    *request.headers_mut() = fields(lines);
    let ready = poll_fn(|cx| client.poll_ready(cx)).await;
    match ready.and_then(|()| client.send_request(request, ends)) {
        Ok((answer, send)) => Some(Stream { send, answer: Some(answer), body: None }),
        Err(_) => {
            got.put("refused\n");
            None
        }
    }
}

fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> HeaderMap {
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
    };
    lines.map(field).collect()
}

/// Sends all bytes, as the windows allow; without bytes, an empty DATA frame.
async fn send(stream: &mut Stream, mut bytes: &[u8]) -> Result<(), h2::Error> {
    if bytes.is_empty() {
        return stream.send.send_data(Bytes::new(), false);
    }
    while !bytes.is_empty() {
        stream.send.reserve_capacity(bytes.len());
        let Some(room) = poll_fn(|cx| stream.send.poll_capacity(cx)).await else { break };
        let n = room?.min(bytes.len());
        stream.send.send_data(Bytes::copy_from_slice(&bytes[..n]), false)?;
        bytes = &bytes[n..];
    }
    Ok(())
}

impl Stream {
    /// Waits for what comes next, and puts it down. False when nothing more comes.
    async fn more(&mut self, got: &mut Got) -> bool {
        if let Some(answer) = &mut self.answer {
            let came = poll_fn(|cx| match answer.poll_informational(cx) {
                Poll::Ready(Some(Ok(interim))) => Poll::Ready(Ok(interim.map(|()| None))),
                _ => Pin::new(&mut *answer).poll(cx).map_ok(|head| head.map(Some)),
            });
            let head = match came.await {
                Ok(head) => head,
                Err(error) => return got.ends(&error),
            };
            got.put(&format!("{}\n", head.status().as_u16()));
            got.put_fields(head.headers());
            got.put("\n");
            if let Some(body) = head.into_body() {
                (self.answer, self.body) = (None, Some(body));
            }
            return true;
        }
        more_of(&mut self.body, got).await
    }
}

/// Waits for what comes next of a body, and puts it down: a piece, or the end and what stands behind it. False when
/// nothing more comes.
pub async fn more_of(rest: &mut Option<RecvStream>, got: &mut Got) -> bool {
    let Some(body) = rest else { return false };
    match body.data().await {
        Some(Ok(data)) => {
            got.bytes.extend_from_slice(&data);
            let _ = body.flow_control().release_capacity(data.len());
            true
        }
        Some(Err(error)) => got.ends(&error),
        None => {
            let trailers = body.trailers().await;
            *rest = None;
            match trailers {
                Ok(trailers) => {
                    got.put("\nend\n");
                    got.put_fields(&trailers.unwrap_or_default());
                }
                Err(error) => return got.ends(&error),
            }
            true
        }
    }
}

impl Got {
    pub fn put(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub fn put_fields(&mut self, fields: &HeaderMap) {
        for (name, value) in fields {
            self.put(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
        }
    }

    /// The stream was broken off, for this reason.
    fn ends(&mut self, error: &h2::Error) -> bool {
        match error.reason() {
            Some(reason) => self.put(&format!("\nreset {reason:?}\n")),
            None => self.put("\ngone\n"),
        }
        false
    }
}
