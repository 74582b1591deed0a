//! One stream of a client's connection: an exchange, from its head to its end.

use std::cell::RefCell;
use std::rc::Rc;

use quinn::{RecvStream, SendStream};
use wire::field_list::Bad;
use wire::h1::Refusal;
use wire::h3::{code, qpack};
use wire::{Framing, Version};

use super::Shared;
use super::frames::Broken;
use super::request::{Input, Read, RequestBody};
use super::response::{self, Output, Response};
use crate::clock::Waiter;
use crate::down::field_section::{self, PSEUDO};
use crate::down::head::Ask;
use crate::down::streams::{self, Streams};
use crate::down::{Arrival, Downstream, refusal};
use crate::exchange::Scratch;
use crate::exchange::answer;
use crate::exchange::drive;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::exchange::outcome::Outcome;
use crate::tunnel::{self, Ends, Sink, Source};
use crate::worker::Worker;

/// A stream and the request on it.
pub(crate) struct Stream {
    /// For waits on the request's side of an exchange, and on the response's: both may be pending at once.
    waiters: [Waiter; 2],
    input: Input,
    output: RefCell<Output>,
    shared: Rc<Shared>,
    client: Rc<sdk::Client>,
    pub(in crate::down) arrival: Arrival,
}

impl Stream {
    /// Gives a stream its task.
    pub(super) fn begin(shared: &Rc<Shared>, send: SendStream, recv: RecvStream) {
        shared.credit.request();
        streams::begin(
            shared,
            |shared| &shared.streams,
            |requests| Box::pin(serve(shared.clone(), send, recv, requests)),
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
        let alt_svc = worker.alt_svc(&self.client);
        let shared = &*self.shared;
        let response = Response { worker, waiter: writing, output: &self.output, shared, alt_svc };
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

async fn serve(shared: Rc<Shared>, send: SendStream, recv: RecvStream, requests: u64) {
    let worker = shared.worker.clone();
    let mut stream = Stream {
        waiters: [worker.clock.waiter(), worker.clock.waiter()],
        input: Input::new(recv, shared.clone()),
        output: RefCell::new(Output::new(send)),
        client: shared.client(),
        shared,
        arrival: Arrival { head_bytes: 0, head_took_ms: 0, requests },
    };
    let deadline = worker.clock.after(worker.settings.timeouts.header);
    let read = {
        let Stream { waiters: [waiter, _], input, .. } = &mut stream;
        waiter.until(deadline, |cx| input.poll_request(cx)).await
    };
    let mut scratch = worker.take_scratch();
    let made = match read {
        Ok(Ok(Read::Whole(ends))) => make(&worker, &mut stream, ends, &mut scratch),
        Ok(Ok(Read::TooLarge)) => Err(Bars::Refused(FaultKind::BadRequest(Refusal::HeadTooLarge))),
        Ok(Err(broken)) => Err(Bars::Broken(broken)),
        Err(_) => Err(Bars::Refused(FaultKind::HeadTimeout)),
    };
    let outcome = match made {
        Ok(()) => {
            let client = stream.client.clone();
            drive::drive(&worker, &mut Downstream::H3(&mut stream), &client, &mut scratch).await
        }
        Err(Bars::Refused(kind)) => refuse(&worker, &mut stream, kind, &mut scratch).await,
        Err(Bars::Broken(broken)) => {
            stream.input.broken = Some(broken);
            if let Broken::Connection(code) = broken {
                stream.shared.fail(code);
            }
            Outcome::Gone
        }
    };
    worker.give_scratch(scratch);
    if let Outcome::Tunnel(tunnel) = outcome {
        let [reading, writing] = &stream.waiters;
        let ends = Ends {
            from: Source::H3(&mut stream.input),
            to: Sink::H3 { output: &stream.output, shared: &stream.shared },
        };
        tunnel::run(&worker, [reading, writing], ends, *tunnel).await;
    }
    stream.input.note_reset();
    // Of a response that is whole, nothing is left to be broken off.
    stream.output.borrow_mut().reset(stream.input.code());
    let Stream { waiters: [waiter, _], input, output, shared, .. } = stream;
    drop(input);
    response::deliver(output.into_inner(), &shared, &waiter).await;
}

/// Why there is no request.
enum Bars {
    /// It is refused, for this reason.
    Refused(FaultKind),
    Broken(Broken),
}

/// Makes the request's head of what was read.
fn make(worker: &Worker, stream: &mut Stream, ends: bool, scratch: &mut Scratch) -> Result<(), Bars> {
    let limits = &worker.settings.request;
    let coded = std::mem::take(&mut stream.input.coded);
    stream.arrival.head_bytes = coded.len() as u64;
    let refused = |why| Bars::Refused(FaultKind::BadRequest(why));
    let mut list = stream.shared.list.borrow_mut();
    qpack::decode(&coded, &mut list, limits.head, limits.fields + PSEUDO).map_err(|bad| match bad {
        Bad::Coding => Bars::Broken(Broken::Connection(code::QPACK_DECOMPRESSION_FAILED)),
        Bad::TooLarge => refused(Refusal::HeadTooLarge),
        Bad::TooMany => refused(Refusal::TooManyFields),
    })?;
    let request = &mut scratch.messages.request;
    let mut text = stream.shared.text.borrow_mut();
    let ask =
        field_section::make(&list, ends, Version::Http3, request, &mut text, limits).map_err(refused)?;
    let expected = match request.framing {
        Framing::Length(length) => Some(length),
        _ => None,
    };
    stream.input.begin_body(ends, expected);
    stream.output.get_mut().continue_due = request.expect_continue;
    if ask == Ask::Tunnel {
        // DATA on the stream belongs to the tunnel.
        stream.input.keep_for_tunnel();
    }
    Ok(())
}

/// Ends a stream whose head is no request: one that means different things to different servers is reset,
/// one that is only too large or too late gets an error response.
#[cold]
async fn refuse(worker: &Rc<Worker>, stream: &mut Stream, kind: FaultKind, scratch: &mut Scratch) -> Outcome {
    stream.shared.credit.refused();
    refusal::report(worker, &stream.client, kind, stream.arrival.head_bytes, &mut scratch.messages);
    if kind.status() == 400 {
        stream.input.broken = Some(Broken::Stream(code::MESSAGE_ERROR));
        stream.shared.streams.wake();
        return Outcome::Gone;
    }
    let reply = answer::of_fault(Fault::client(kind));
    let (_, mut response) = stream.split(worker);
    match response.reply(&reply).await {
        Ok(()) => Outcome::Answered,
        Err(_) => Outcome::Gone,
    }
}
