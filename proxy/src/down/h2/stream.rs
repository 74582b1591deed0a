//! One stream of a client's connection: an exchange, from its head to its end.

use std::cell::RefCell;
use std::rc::Rc;

use wire::h1::Refusal;
use wire::h2::frame::Code;
use wire::{Framing, Name, Version};

use super::Shared;
use super::crew::Exchange;
use super::request::{Input, RequestBody};
use super::response::{Output, Response};
use crate::clock::Waiter;
use crate::down::head::Ask;
use crate::down::streams::{Open, Streams};
use crate::down::{Arrival, Downstream, field_section, refusal};
use crate::exchange::Scratch;
use crate::exchange::answer;
use crate::exchange::drive;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::exchange::outcome::Outcome;
use crate::h2::{self, Event, Priority};
use crate::tunnel::{self, Ends, Sink, Source};
use crate::worker::Worker;

/// A stream and the request on it.
pub(crate) struct Stream {
    /// For waits on the request's side of an exchange, and on the response's: both may be pending at once.
    waiters: [Waiter; 2],
    input: Input,
    output: RefCell<Output>,
    stream: h2::Stream,
    shared: Rc<Shared>,
    pub(in crate::down) arrival: Arrival,
}

/// The body of a stream, counted for as long as the exchange runs.
struct Body(Rc<Shared>);

impl Drop for Body {
    fn drop(&mut self) {
        self.0.windows.end();
    }
}

impl Stream {
    /// Builds the request from its fields. Returns the exchange on the stream.
    pub(super) fn begin(shared: &Rc<Shared>, event: Event) -> Exchange {
        let Event::Request { index, ends, refused } = event;
        let worker = &shared.worker;
        let stream = h2::Stream::accept(&shared.mux, index);
        let mut scratch = worker.take_scratch();
        let mux = shared.mux.borrow();
        let fields = mux.list.iter().filter(|(name, ..)| !name.starts_with(b":"));
        let head_bytes = fields.map(|(name, value, _)| (name.len() + value.len() + 4) as u64).sum();
        let request = &mut scratch.messages.request;
        let made = match refused {
            Some(refusal) => Err(refusal),
            None => {
                let mut text = shared.text.borrow_mut();
                let limits = &worker.settings.request;
                field_section::make(&mux.list, ends, Version::Http2, request, &mut text, limits)
            }
        };
        drop(mux);
        let has_body = made.is_ok() && !ends;
        if has_body {
            let length = match request.framing {
                Framing::Length(length) if made == Ok(Ask::Answer) => Some(length),
                _ => None,
            };
            stream.note_length(length);
            if let Some(window) = shared.windows.begin() {
                shared.mux.borrow_mut().set_target(window);
            }
        }
        if let Some(value) = request.fields.get(Name::Priority) {
            stream.note_priority(Priority::from_field(value));
        }
        let body = has_body.then(|| Body(shared.clone()));
        let open = Open::new(shared, |shared| &shared.streams);
        let arrival = Arrival { head_bytes, head_took_ms: 0, requests: shared.streams.begun() };
        let shared = shared.clone();
        // In its place on the heap: `Box::pin` would copy it there, and it is large.
        let exchange = Box::write(Box::new_uninit(), async move {
            let _open = open;
            let _body = body;
            let stream = Stream {
                waiters: [shared.worker.clock.waiter(), shared.worker.clock.waiter()],
                input: Input::new(ends, shared.clone()),
                output: RefCell::new(Output::new(shared.worker.take_head())),
                stream,
                shared,
                arrival,
            };
            serve(stream, made, scratch).await;
        });
        Box::into_pin(exchange)
    }

    pub(in crate::down) fn split<'a>(&'a mut self, worker: &'a Worker) -> (RequestBody<'a>, Response<'a>) {
        let [reading, writing] = &self.waiters;
        let stream = &self.stream;
        let body = RequestBody {
            worker,
            max: MaxBody::client(worker.settings.limits.body),
            waiter: reading,
            input: &mut self.input,
            stream,
        };
        let alt_svc = worker.alt_svc(&self.shared.client);
        let response = Response { worker, waiter: writing, stream, output: &self.output, alt_svc };
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

async fn serve(mut stream: Stream, made: Result<Ask, Refusal>, mut scratch: Box<Scratch>) {
    let worker = stream.shared.worker.clone();
    let outcome = match made {
        // The client has already reset it.
        Ok(_) if stream.stream.is_gone() => Outcome::Gone,
        Ok(ask) => {
            stream.output.get_mut().continue_due = scratch.messages.request.expect_continue;
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
        Outcome::Broken => stream.stream.reset(Code::INTERNAL_ERROR),
        Outcome::Tunnel(tunnel) => {
            let [reading, writing] = &stream.waiters;
            let ends = Ends {
                from: Source::H2 { input: &mut stream.input, stream: &stream.stream },
                to: Sink::H2(&stream.stream),
            };
            tunnel::run(&worker, [reading, writing], ends, *tunnel).await;
        }
    }
    stream.input.recycle(&stream.stream);
    worker.give_head(stream.output.into_inner().into_head());
}

/// Ends a stream whose head is no request: one that means different things to different servers is reset,
/// one that is only too large gets an error response.
#[cold]
async fn refuse(worker: &Rc<Worker>, stream: &mut Stream, why: Refusal, scratch: &mut Scratch) -> Outcome {
    let shared = stream.shared.clone();
    let kind = FaultKind::BadRequest(why);
    refusal::report(worker, &shared.client, kind, stream.arrival.head_bytes, &mut scratch.messages);
    if kind.status() == 400 {
        stream.stream.refuse();
        return Outcome::Gone;
    }
    shared.mux.borrow().credit().refused();
    let (_, mut response) = stream.split(worker);
    match response.reply(&answer::of_fault(Fault::client(kind))).await {
        Ok(()) => Outcome::Answered,
        Err(_) => Outcome::Gone,
    }
}
