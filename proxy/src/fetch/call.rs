//! Calls that plugins open: requests whose body is sent while the response comes.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sdk::call::Pipe;
use sdk::world::{Fetch, FetchError};
use wire::ResponseHead;

use super::{Way, error_of};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::io::Failed;
use crate::up::h1::Wish;
use crate::up::h2::Stream;
use crate::up::links;
use crate::up::{Receiver, Sender, Size, Upstream};
use crate::worker::Worker;

/// A call ends after this time. Plugins wait much shorter for each message.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Drives a call to the first of the target's addresses that can be connected to.
pub(crate) async fn run(worker: Rc<Worker>, request: Fetch, pipe: Rc<Pipe>) -> Result<(), FetchError> {
    let waiters = [worker.clock.waiter(), worker.clock.waiter()];
    let mut last = FetchError::Unresolved;
    for &addr in request.target.addresses.iter() {
        let Way { peer, secured, keepalive } = Way::to(&worker, &request, addr);
        let target = links::Target {
            peer: peer.with_h2(),
            place: addr.into(),
            secured,
            connect_timeout: request.timeouts.connect,
            send_timeout: request.timeouts.send,
            keepalive,
        };
        match worker.links.place(&worker, &waiters[0], target, false).await {
            Ok(place) => {
                let stream = Upstream::H2(Box::new(Stream::new(place, true)));
                return exchange(&worker, &waiters, stream, &request, &pipe).await;
            }
            Err(fault) => last = error_of(fault),
        }
    }
    Err(last)
}

async fn exchange(
    worker: &Worker,
    [sending, receiving]: &[Waiter; 2],
    mut stream: Upstream,
    request: &Fetch,
    pipe: &Pipe,
) -> Result<(), FetchError> {
    let mut out = Vec::new();
    let (mut to, from) = stream.begin(worker, [sending, receiving], &mut out, request.timeouts.send);
    to.head(request, Size::Open, Wish::Keep).map_err(|_| FetchError::Broken)?;
    let (mut send, mut receive) =
        (pin!(send(to, pipe)), pin!(receive(from, request, pipe, worker.clock.after(LONGEST))));
    let mut is_sent = false;
    poll_fn(|cx| {
        let sent = match is_sent {
            true => Poll::Pending,
            false => send.as_mut().poll(cx),
        };
        is_sent |= sent.is_ready();
        // The response says more about a call that the server has ended.
        match (receive.as_mut().poll(cx), sent) {
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (received, _) => received,
        }
    })
    .await
}

async fn send(mut to: Sender<'_>, pipe: &Pipe) -> Result<(), FetchError> {
    let failed = |failed| match failed {
        Failed::Timeout => error_of(Fault::upstream(FaultKind::SendTimeout)),
        Failed::Closed | Failed::Broken => FetchError::Broken,
    };
    while let Some(piece) = poll_fn(|_| pipe.poll_piece()).await {
        to.write(&piece, false, None).await.map_err(failed)?;
    }
    to.write(&[], true, None).await.map_err(failed)
}

async fn receive(
    mut from: Receiver<'_>,
    request: &Fetch,
    pipe: &Pipe,
    mut end: u64,
) -> Result<(), FetchError> {
    let mut head = ResponseHead::default();
    let late = || Err(Fault::upstream(FaultKind::ReadTimeout));
    while head.status < 200 {
        from.head(&mut head, request.method, &mut end, late).await.map_err(error_of)?;
        if head.status == 101 {
            return Err(FetchError::Broken);
        }
    }
    pipe.set_head(head.status, std::mem::take(&mut head.fields));
    loop {
        poll_fn(|_| pipe.poll_room()).await;
        if !from.take(false).map_err(error_of)? {
            from.read(end).await.map_err(error_of)?;
            continue;
        }
        pipe.put(from.piece());
        from.used();
        if from.is_complete() {
            pipe.set_trailers(from.trailers().cloned().unwrap_or_default());
            return Ok(());
        }
    }
}
