//! A raw connection in memory, for tests of plugins and of engines' clients.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::connection::{AsyncRead, AsyncWrite, Connection, Socket};

/// The bytes in one direction.
#[derive(Debug, Default)]
struct Way {
    bytes: VecDeque<u8>,
    closed: bool,
    reader: Option<Waker>,
}

/// One end of a connection in memory; reads and writes as a [`Connection`] does. Dropping it closes it.
#[derive(Debug)]
pub struct Pipe {
    from: Rc<RefCell<Way>>,
    to: Rc<RefCell<Way>>,
    reused: bool,
    /// How long the other end was to be kept, once it is.
    kept: Rc<Cell<Option<Duration>>>,
}

/// A connection, and the server's end of it.
pub fn pipe() -> (Connection, Pipe) {
    pipe_that(false)
}

/// As [`pipe`]; the connection was in use before.
pub fn reused_pipe() -> (Connection, Pipe) {
    pipe_that(true)
}

fn pipe_that(reused: bool) -> (Connection, Pipe) {
    let (one, other) = (Rc::<RefCell<Way>>::default(), Rc::<RefCell<Way>>::default());
    let kept = Rc::<Cell<Option<Duration>>>::default();
    let ours = Pipe { from: one.clone(), to: other.clone(), reused, kept: kept.clone() };
    (Connection::new(ours), Pipe { from: other, to: one, reused, kept })
}

impl Pipe {
    /// How long the connection was given back for; `None` if it was not.
    pub fn kept(&self) -> Option<Duration> {
        self.kept.get()
    }
}

impl Socket for Pipe {
    fn is_reused(&self) -> bool {
        self.reused
    }

    fn keep(self: Box<Self>, idle: Duration) {
        self.kept.set(Some(idle));
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut way = self.from.borrow_mut();
        if way.bytes.is_empty() && !way.closed {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(io::Read::read(&mut way.bytes, buf))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut way = self.to.borrow_mut();
        // Only a pipe whose other end is gone has one holder.
        if way.closed || Rc::strong_count(&self.to) == 1 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        way.bytes.extend(bytes);
        way.wake();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.to.borrow_mut().close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.to.borrow_mut().close();
    }
}

impl Way {
    fn close(&mut self) {
        self.closed = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use crate::connection::{Addresses, AsyncReadExt, AsyncWriteExt, Connect, ConnectError, Server};
    use crate::testing::FakeWorld;

    fn to(pool: &str) -> Connect {
        let at = Addresses::Host { name: "redis.test".into(), port: 6379 };
        Connect { server: Server::Tcp { at, tls: None }, pool: pool.into(), timeout: Duration::from_secs(1) }
    }

    #[test]
    fn a_client_talks_to_a_server_that_the_test_is() {
        let world = FakeWorld::default();
        let mut server = world.serve();
        let answer = world.until(async {
            world.run(Box::pin(async move {
                let mut line = [0; 4];
                server.read_exact(&mut line).await.unwrap();
                server.write_all(&line).await.unwrap();
                assert_eq!(
                    server.read(&mut line).await.unwrap(),
                    0,
                    "the end of a connection that is given back"
                );
                assert_eq!(server.kept(), Some(Duration::from_secs(9)));
            }))?;
            let mut connection = world.connect(to("a")).await?;
            assert!(!connection.is_reused());
            connection.write_all(b"ping").await?;
            let mut answer = [0; 4];
            connection.read_exact(&mut answer).await?;
            connection.keep(Duration::from_secs(9));
            Ok::<_, Box<dyn std::error::Error>>(answer)
        });
        assert_eq!(&answer.unwrap(), b"ping");
        world.until(async {});
        assert_eq!(world.tasks.borrow().len(), 0, "the server has ended");
        assert_eq!(&*world.opened.borrow()[0].pool, "a");
        assert_eq!(
            world.until(world.connect(to("a"))).unwrap_err(),
            ConnectError::Refused,
            "no other is there"
        );
    }

    #[test]
    fn an_end_that_is_dropped_is_seen_at_the_other() {
        let world = FakeWorld::default();
        let (mut connection, server) = reused_pipe();
        assert!(connection.is_reused());
        drop(server);
        let mut byte = [0];
        assert_eq!(world.until(connection.read(&mut byte)).unwrap(), 0);
        let error = world.until(connection.write(b"a")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
