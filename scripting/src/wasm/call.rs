//! A call to another server that is under way.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sdk::chain::LocalFuture;
use sdk::resolve::ResolveError;
use sdk::world::{Fetch, FetchError, Fetched};
use sdk::{Fields, World};

/// A response to a call: no headers if it failed.
pub(super) struct Answer {
    pub status: u16,
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub trailers: Vec<(Vec<u8>, Vec<u8>)>,
    pub body: Vec<u8>,
}

/// A call that is made.
pub(super) struct Call {
    stage: Stage,
    late: LocalFuture<'static, ()>,
}

enum Stage {
    Resolving(LocalFuture<'static, Result<Arc<[IpAddr]>, ResolveError>>, u16, Option<Box<Fetch>>),
    Fetching(LocalFuture<'static, Result<Fetched, FetchError>>),
}

impl Call {
    /// Begins a call of at most this time.
    pub(super) fn begin(
        world: &dyn World,
        mut fetch: Fetch,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Call {
        let late = world.sleep(timeout);
        let stage = match host.parse::<IpAddr>() {
            Ok(ip) => {
                fetch.target.addresses = Arc::new([SocketAddr::new(ip, port)]);
                Stage::Fetching(world.fetch(fetch))
            }
            Err(_) => Stage::Resolving(world.resolve(host, timeout), port, Some(Box::new(fetch))),
        };
        Call { stage, late }
    }

    /// Continues the call; its end is an answer, or none if it failed.
    pub(super) fn poll(&mut self, world: &dyn World, cx: &mut Context<'_>) -> Poll<Answer> {
        loop {
            match &mut self.stage {
                Stage::Resolving(resolving, port, fetch) => match resolving.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(found) => {
                        let (Ok(found), Some(mut fetch)) = (found, fetch.take()) else {
                            return Poll::Ready(Answer::failed());
                        };
                        fetch.target.addresses = found.iter().map(|ip| SocketAddr::new(*ip, *port)).collect();
                        self.stage = Stage::Fetching(world.fetch(*fetch));
                    }
                },
                Stage::Fetching(fetching) => match fetching.as_mut().poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(fetched)) => return Poll::Ready(Answer::of(fetched)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Answer::failed()),
                },
            }
        }
        self.late.as_mut().poll(cx).map(|()| Answer::failed())
    }
}

impl Answer {
    pub(super) fn failed() -> Answer {
        Answer { status: 0, headers: Vec::new(), trailers: Vec::new(), body: Vec::new() }
    }

    fn of(fetched: Fetched) -> Answer {
        let list = |fields: &Fields| -> Vec<(Vec<u8>, Vec<u8>)> {
            fields.iter().map(|(name, value, _)| (name.to_ascii_lowercase(), value.to_vec())).collect()
        };
        let mut headers = vec![(b":status".to_vec(), fetched.status.to_string().into_bytes())];
        headers.extend(list(&fetched.fields));
        Answer { status: fetched.status, headers, trailers: list(&fetched.trailers), body: fetched.body }
    }
}
