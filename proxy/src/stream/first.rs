//! The first bytes of a client, where they decide what becomes of its stream.

use std::task::Poll;

use wire::client_hello::{self, Hello};

use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::io::{self, Failed};
use crate::rt::Io;
use crate::worker::Worker;

/// Bytes of a client that were read ahead: at most one buffer, which goes back to the worker on drop.
pub(super) struct First<'a> {
    worker: &'a Worker,
    pub(super) buffer: Option<Buffer>,
    /// All first bytes must be there by then; 0 until any are asked for.
    deadline: u64,
    /// The client has ended its side.
    ended: bool,
}

impl<'a> First<'a> {
    pub(super) fn new(worker: &'a Worker) -> First<'a> {
        First { worker, buffer: None, deadline: 0, ended: false }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::data)
    }

    /// Reads what comes next. False if nothing more comes, or nothing more fits.
    ///
    /// # Errors
    /// The client took too long, or is gone.
    pub(super) async fn more(&mut self, io: &mut Io, waiter: &Waiter) -> Result<bool, Fault> {
        let worker = self.worker;
        if self.ended {
            return Ok(false);
        }
        if self.deadline == 0 {
            self.deadline = worker.clock.after(worker.settings.streams.preread_timeout);
        }
        if self.buffer.is_none() {
            // A client that has sent nothing yet gives way where room is needed.
            waiter.rest();
        }
        let (mut from, _) = io.split();
        let readable = waiter.until(self.deadline, |cx| {
            if waiter.is_unwanted() { Poll::Ready(Err(())) } else { from.poll_readable(cx).map_err(|_| ()) }
        });
        let waited = readable.await;
        waiter.end_rest();
        match waited {
            Ok(Ok(())) => {}
            Ok(Err(())) => return Err(Fault::client(FaultKind::ClientGone)),
            Err(_) => return Err(Fault::client(FaultKind::PrereadTimeout)),
        }
        let buffer = self.buffer.get_or_insert_with(|| worker.buffers.take());
        if buffer.space().is_empty() {
            return Ok(false);
        }
        match io::read_until(waiter, &mut from, buffer, self.deadline).await {
            Ok(n) => {
                self.ended = n == 0;
                Ok(n > 0)
            }
            Err(Failed::Timeout) => Err(Fault::client(FaultKind::PrereadTimeout)),
            Err(_) => Err(Fault::client(FaultKind::ClientGone)),
        }
    }

    /// Returns the server name that a TLS client asks for; `None` for other protocols.
    ///
    /// # Errors
    /// A handshake that begins with what is no ClientHello, or does not come.
    pub(super) async fn server_name(
        &mut self,
        io: &mut Io,
        waiter: &Waiter,
    ) -> Result<Option<Box<str>>, Fault> {
        loop {
            match client_hello::parse(self.bytes()) {
                Ok(Some(Hello::Server(name))) => return Ok(name),
                Ok(Some(Hello::NotTls)) => return Ok(None),
                Err(refusal) => return Err(Fault::client(FaultKind::BadClientHello(refusal))),
                Ok(None) if !self.more(io, waiter).await? => return Ok(None),
                Ok(None) => {}
            }
        }
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.worker.buffers.give(buffer);
        }
    }
}
