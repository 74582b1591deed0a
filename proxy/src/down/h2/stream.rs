//! One stream of a client's connection: an exchange, from its head to its end.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::Request;
use wire::h1::Refusal;

use super::Shared;
use super::head;
use super::request::{Input, RequestBody};
use super::response::{Output, Response};
use crate::clock::Waiter;
use crate::down::head::Ask;
use crate::down::streams::{self, Streams};
use crate::down::{Arrival, Downstream, refusal};
use crate::exchange::Scratch;
use crate::exchange::answer;
use crate::exchange::drive;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::exchange::outcome::Outcome;
use crate::h2::fields;
use crate::tunnel::{self, Ends, Sink, Source};
use crate::worker::Worker;

/// A stream and the request on it.
pub(crate) struct Stream {
    /// For waits on the request's side of an exchange, and on the response's: both may be pending at once.
    waiters: [Waiter; 2],
    input: Input,
    output: RefCell<Output>,
    shared: Rc<Shared>,
    pub(in crate::down) arrival: Arrival,
}

/// The body of a stream, counted for as long as the stream's task runs.
struct Body {
    shared: Rc<Shared>,
    /// The stream's.
    number: u32,
}

impl Body {
    fn begin(shared: &Rc<Shared>, number: u32) -> Body {
        if let Some(unread) = shared.line.unread() {
            unread.begin(number);
        }
        Body { shared: shared.clone(), number }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.shared.windows.end();
        if let Some(unread) = self.shared.line.unread() {
            unread.end(self.number);
        }
    }
}

impl Stream {
    /// Gives a stream its task.
    pub(super) fn begin(shared: &Rc<Shared>, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        shared.line.request();
        let has_body = !request.body().is_end_stream();
        let body = has_body.then(|| Body::begin(shared, respond.stream_id().as_u32()));
        streams::begin(
            shared,
            |shared| &shared.streams,
            |requests| {
                let shared = shared.clone();
                Box::pin(async move {
                    let _body = body;
                    serve(shared, request, respond, requests).await;
                })
            },
        );
    }

    pub(in crate::down) fn split<'a>(&'a mut self, worker: &'a Worker) -> (RequestBody<'a>, Response<'a>) {
        let [reading, writing] = &self.waiters;
        let body = RequestBody {
            worker,
            max: MaxBody::client(worker.settings.limits.body),
            waiter: reading,
            input: &mut self.input,
            output: &self.output,
        };
        let shared = &self.shared;
        let alt_svc = worker.alt_svc(&shared.client);
        let response =
            Response { worker, waiter: writing, output: &self.output, line: &shared.line, alt_svc };
        (body, response)
    }

    pub(in crate::down) fn body_received(&self) -> u64 {
        self.input.received()
    }

    /// The streams of its connection.
    pub(in crate::down) fn streams(&self) -> &Streams {
        &self.shared.streams
    }
}

async fn serve(
    shared: Rc<Shared>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    requests: u64,
) {
    let worker = shared.worker.clone();
    let mut scratch = worker.take_scratch();
    let (parts, body) = request.into_parts();
    let ends = body.is_end_stream();
    let arrival = Arrival { head_bytes: fields::size(&parts.headers) as u64, head_took_ms: 0, requests };
    let mut stream = Stream {
        waiters: [worker.clock.waiter(), worker.clock.waiter()],
        input: Input::new(body, ends, shared.clone()),
        output: RefCell::new(Output::new(respond)),
        shared,
        arrival,
    };
    let made = {
        let mut text = stream.shared.text.borrow_mut();
        head::make(&parts, ends, &mut scratch.messages.request, &mut text, &worker.settings.request)
    };
    drop(parts);
    let outcome = match made {
        Ok(ask) => {
            let output = stream.output.get_mut();
            output.continue_due = scratch.messages.request.expect_continue;
            if ask == Ask::Tunnel {
                // DATA on the stream belongs to the tunnel.
                stream.input.keep_for_tunnel();
            }
            let shared = stream.shared.clone();
            drive::drive(&worker, &mut Downstream::H2(&mut stream), &shared.client, &mut scratch).await
        }
        Err(refusal) => refuse(&worker, &mut stream, refusal, &mut scratch).await,
    };
    worker.give_scratch(scratch);
    match outcome {
        Outcome::Answered | Outcome::Gone => {}
        Outcome::Broken => stream.output.borrow_mut().reset(Reason::INTERNAL_ERROR),
        Outcome::Tunnel(tunnel) => {
            let [reading, writing] = &stream.waiters;
            let ends = Ends {
                from: Source::H2(&mut stream.input),
                to: Sink::H2 { output: &stream.output, line: &stream.shared.line },
            };
            tunnel::run(&worker, [reading, writing], ends, *tunnel).await;
        }
    }
}

/// Ends a stream whose head is no request: one that means different things to different servers is reset,
/// one that is only too large gets an error response.
#[cold]
async fn refuse(worker: &Rc<Worker>, stream: &mut Stream, why: Refusal, scratch: &mut Scratch) -> Outcome {
    let shared = stream.shared.clone();
    shared.line.refused();
    let kind = FaultKind::BadRequest(why);
    refusal::report(worker, &shared.client, kind, stream.arrival.head_bytes, &mut scratch.messages);
    if kind.status() == 400 {
        stream.output.borrow_mut().reset(Reason::PROTOCOL_ERROR);
        return Outcome::Gone;
    }
    let (_, mut response) = stream.split(worker);
    match response.reply(&answer::of_fault(Fault::client(kind))).await {
        Ok(()) => Outcome::Answered,
        Err(_) => Outcome::Gone,
    }
}
