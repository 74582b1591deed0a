//! A plugin's raw connection, as the client libraries of engines want it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sdk::connection::{AsyncRead as _, AsyncWrite as _, Connection};
use send_wrapper::SendWrapper;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection of a worker, with tokio's traits. Libraries may require it to be `Send`; it stays on its worker all
/// the same, whose futures never leave it, and panics elsewhere.
#[derive(Debug)]
pub struct Stream(SendWrapper<Connection>);

impl Stream {
    pub fn new(connection: Connection) -> Stream {
        Stream(SendWrapper::new(connection))
    }

    /// As [`Connection::is_reused`].
    pub fn is_reused(&self) -> bool {
        self.0.is_reused()
    }

    /// As [`Connection::keep`].
    pub fn keep(self, idle: Duration) {
        self.0.take().keep(idle);
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut *self.0).poll_read(cx, buf.initialize_unfilled()))?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_close(cx)
    }
}

#[cfg(test)]
mod echo;

#[cfg(test)]
mod tests {
    use sdk::connection::{Addresses, Server};
    use sdk::connection::{AsyncReadExt as _, AsyncWriteExt as _};
    use sdk::testing::{FakeWorld, pipe};
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

    use super::*;

    #[test]
    fn a_library_reads_and_writes_with_the_traits_of_tokio() {
        fn library(
            stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        ) -> impl AsyncRead + AsyncWrite {
            stream
        }
        let (connection, mut server) = pipe();
        FakeWorld::default().until(async move {
            let mut stream = BufReader::new(library(Stream::new(connection)));
            stream.write_all(b"PING\r\n").await.unwrap();
            stream.flush().await.unwrap();
            let mut question = [0; 6];
            server.read_exact(&mut question).await.unwrap();
            assert_eq!(&question, b"PING\r\n");
            server.write_all(b"+PONG\r\nrest").await.unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            assert_eq!(line, "+PONG\r\n");
            stream.shutdown().await.unwrap();
            assert_eq!(server.read(&mut question).await.unwrap(), 0);
            drop(server);
            line.clear();
            stream.read_to_string(&mut line).await.unwrap();
            assert_eq!(line, "rest");
        });
    }

    #[test]
    fn the_client_of_the_documentation_asks_and_is_answered() {
        let page = include_str!("../../docs/add-an-engine.md");
        assert!(page.contains(include_str!("stream/echo.rs")), "docs/add-an-engine.md quotes stream/echo.rs");
        let at = Addresses::Host { name: "echo.test".into(), port: 7 };
        let server = Server::Tcp { at, tls: None };
        let echo = echo::Echo { server, timeout: Duration::from_secs(1), max_answer: 100 };
        for (answer, expected) in [
            ("hello\n", Ok("hello\n")),
            ("hel", Err(io::ErrorKind::UnexpectedEof)),
            (&*"a".repeat(101), Err(io::ErrorKind::UnexpectedEof)),
        ] {
            let world = FakeWorld::default();
            world.sleeps_last.set(true);
            let mut server = world.serve();
            let answer = answer.to_owned();
            let serve = async move {
                let mut line = [0; 6];
                server.read_exact(&mut line).await.unwrap();
                assert_eq!(&line, b"hello\n");
                server.write_all(answer.as_bytes()).await.unwrap();
                server.close().await.unwrap();
                let _ = server.read(&mut line).await;
                assert_eq!(server.kept().is_some(), expected.is_ok());
            };
            sdk::World::run(&world, Box::pin(serve)).unwrap();
            let asked = world.until(echo.ask(&world, "hello"));
            assert_eq!(asked.as_deref().map_err(io::Error::kind), expected);
            world.until(async {});
            assert!(world.tasks.borrow().is_empty(), "the server has seen the end");
        }
        let world = FakeWorld::default();
        let _silent = world.serve();
        let late = world.until(echo.ask(&world, "hello")).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn it_can_be_given_back() {
        let (connection, server) = pipe();
        let stream = Stream::new(connection);
        assert!(!stream.is_reused());
        stream.keep(Duration::from_secs(3));
        assert_eq!(server.kept(), Some(Duration::from_secs(3)));
    }
}
