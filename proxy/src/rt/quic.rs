//! QUIC on tokio's runtime: an endpoint for each worker and port.
//!
//! Congestion control, loss, keys and flow control are the `quinn` crate's, whose tasks run on the worker
//! that has the endpoint. Its locks are shared by tasks of one thread and so are never waited for.

mod handover;
#[cfg(feature = "testing")]
pub(crate) mod memory;
mod steer;
mod unproved;

use std::future::Future;
use std::io;
use std::net::UdpSocket as StdSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, TokioRuntime};

use super::Sleep;

pub(crate) use handover::{Elder, Heir};
pub(crate) use steer::{Post, posts};
pub(crate) use unproved::{Address, Unproved};

/// The one version there is (RFC 9000 section 15).
const VERSION: u32 = 1;

/// A socket of the system's.
pub(crate) fn socket(socket: StdSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    TokioRuntime.wrap_udp_socket(socket)
}

/// Serves a socket. `post` is this worker's place among those that share the port; `heir` says when the
/// socket is another process's; `unproved` counts what addresses get that are not proved.
pub(crate) fn endpoint(
    socket: Arc<dyn AsyncUdpSocket>,
    post: Post,
    heir: Arc<Heir>,
    unproved: Arc<Unproved>,
    server: ServerConfig,
) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![VERSION]);
    config.cid_generator(post.ids());
    let socket = Arc::new(unproved::Limited::new(post.receive(socket, heir)?, unproved));
    Endpoint::new_with_abstract_socket(config, Some(server), socket, Arc::new(Timed))
}

/// Tokio's runtime with the timers of the worker.
#[derive(Debug)]
struct Timed;

impl Runtime for Timed {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Sleep::until(deadline))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: StdSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        super::now()
    }
}

impl AsyncTimer for Sleep {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        Sleep::reset(&mut self, deadline);
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context) -> Poll<()> {
        Future::poll(self, cx)
    }
}
