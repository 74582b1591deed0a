//! A plugin instance of a chain: the callbacks of a request, in the phases of the gateway.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use sdk::chain::LocalFuture;
use sdk::exchange::{Body, Chunk};
use sdk::state::WorkerState;
use sdk::{Exchange, Instance, Phase, Phases, Reply, Step};

use super::context::{BodyOf, HttpContext, REQUEST, RESPONSE};
use super::machine::{Failure, Machine};
use super::module::Module;
use super::properties::{PROCESS_REQUEST_BODY, PROCESS_RESPONSE_BODY};

/// News of calls that are reported before others have their turn.
pub(super) const MOST_NEWS: u32 = 32;

/// The value that `proxy_on_request_headers` and its like return to stop for now.
pub(super) const PAUSE: u32 = 1;

/// The machine of a module on one worker.
pub(super) type Place = Option<Rc<Machine>>;

pub(super) struct Filter {
    pub(super) module: Arc<Module>,
    /// The phase of the request's callbacks.
    phase: Phase,
    /// Whether the module sees bodies without a word of its own.
    sees_bodies: bool,
    config: Arc<[u8]>,
    machines: WorkerState<Place>,
    /// Differs between all instances.
    number: u64,
    /// Machines delete the context of an instance that is gone.
    alive: Arc<()>,
    /// Whether its contexts are of streams.
    is_of_streams: bool,
}

/// The contexts of one exchange, a note of it.
struct Requests(Vec<Request>);

/// The context of one plugin in an exchange.
pub(super) struct Request {
    /// The number of its [`Filter`].
    filter: u64,
    pub machine: Rc<Machine>,
    pub generation: u64,
    /// 0 once the context has ended.
    pub id: u32,
    pub request: Stage,
    response: Stage,
    /// Whether the module sees the response's body.
    sees_response_body: bool,
    /// Whether the response's head waits until the module has seen the whole body.
    holds: bool,
}

/// The last callback of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    New,
    Headers,
    Body,
    Trailers,
    Over,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.machine.finish(self.generation, self.id, None);
    }
}

/// How a direction goes on.
pub(super) enum Settled {
    Go,
    Reply(Reply),
}

impl Filter {
    pub(super) fn new(
        module: &Arc<Module>,
        phase: Phase,
        sees_bodies: bool,
        config: Arc<[u8]>,
        machines: WorkerState<Place>,
    ) -> Filter {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (module, alive) = (module.clone(), Arc::new(()));
        let is_of_streams = phase == Phase::Preread;
        Filter { module, phase, sees_bodies, config, machines, number, alive, is_of_streams }
    }

    pub(super) fn known<'a>(&self, x: &'a Exchange<'_>) -> Option<&'a Request> {
        x.note::<Requests>()?.0.iter().find(|request| request.filter == self.number)
    }

    pub(super) fn known_mut<'a>(&self, x: &'a mut Exchange<'_>) -> Option<&'a mut Request> {
        x.note_mut::<Requests>()?.0.iter_mut().find(|request| request.filter == self.number)
    }

    /// The machine of this exchange's context, its generation and its number. The context is made at first use.
    pub(super) fn context(&self, x: &mut Exchange<'_>) -> Result<(Rc<Machine>, u64, u32), Failure> {
        if let Some(request) = self.known(x) {
            return Ok((request.machine.clone(), request.generation, request.id));
        }
        let world = x.world();
        let machine = self
            .machines
            .with(world, |place| place.get_or_insert_with(|| Machine::new(&self.module)).clone());
        let plugin = machine.plugin(x, self.number, &self.alive, &self.config)?;
        let id = machine.create(x, plugin, self.is_of_streams)?;
        let request = Request {
            filter: self.number,
            generation: machine.generation(),
            machine: machine.clone(),
            id,
            request: Stage::New,
            response: Stage::New,
            sees_response_body: false,
            holds: false,
        };
        let generation = request.generation;
        match x.note_mut::<Requests>() {
            Some(Requests(all)) => all.push(request),
            None => x.set_note(Requests(vec![request])),
        }
        Ok((machine, generation, id))
    }

    /// The answer to a request whose plugin has failed.
    #[cold]
    pub(super) fn failed(failure: Failure) -> Reply {
        let status = if failure == Failure::Failed || failure == Failure::Lost { 500 } else { 503 };
        Reply::status(status).because("a WebAssembly plugin failed")
    }

    /// Waits for calls of the context to end and for a paused direction to continue. With `goes_on`, a pause means that
    /// the module wants to see what comes next.
    pub(super) fn settle(
        &self,
        x: &mut Exchange<'_>,
        cx: &mut Context<'_>,
        direction: usize,
        goes_on: bool,
    ) -> Poll<Result<Settled, Failure>> {
        let (machine, generation, id) = self.context(x)?;
        self.drive(x, cx, &machine, (generation, id))?;
        let settled = machine.with(generation, |vm, _| {
            let http = vm.https.get_mut(&id)?;
            let settled = if let Some(reply) = http.reply.take() {
                Poll::Ready(Settled::Reply(reply.reply()))
            } else if !http.waits_for_calls() && (goes_on || !http.paused[direction]) {
                Poll::Ready(Settled::Go)
            } else {
                http.waker = Some(cx.waker().clone());
                Poll::Pending
            };
            http.waits = settled.is_pending();
            if settled.is_ready() && !http.rpcs.is_empty() {
                vm.hand_over(id);
            }
            Some(settled)
        });
        settled.flatten().ok_or(Failure::Lost)?.map(Ok)
    }

    /// Drives the calls of a context to other servers, as far as they get. One that always has news, or that its callback
    /// makes again each time, does not hold the worker.
    pub(super) fn drive(
        &self,
        x: &mut Exchange<'_>,
        cx: &mut Context<'_>,
        machine: &Rc<Machine>,
        (generation, id): (u64, u32),
    ) -> Result<(), Failure> {
        for _ in 0..MOST_NEWS {
            let world = x.world();
            let polled = machine.with(generation, |vm, _| {
                let http = vm.https.get_mut(&id)?;
                let ready = http.calls.iter_mut().enumerate().find_map(|(at, (_, call))| {
                    match call.poll(world, cx) {
                        Poll::Ready(answer) => Some((at, answer)),
                        Poll::Pending => None,
                    }
                });
                Some(ready.map(|(at, answer)| (http.calls.swap_remove(at).0, answer)))
            });
            if let Some((call, answer)) = polled.flatten().ok_or(Failure::Lost)? {
                machine.answer(generation, Some(x), id, call, answer)?;
                continue;
            }
            match machine.with(generation, |vm, _| vm.poll_rpcs(world, id, cx)).flatten() {
                Some(news) => machine.report_news(generation, Some(x), id, news)?,
                None => return Ok(()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Whether the module sees the body of the request.
    fn sees_request_body(&self, x: &Exchange<'_>) -> bool {
        let Some(Request { machine, generation, id, .. }) = self.known(x) else { return false };
        let asked = machine.with(*generation, |vm, callbacks| {
            callbacks.request_body.as_ref()?;
            let property = vm.https.get(id)?.property(PROCESS_REQUEST_BODY);
            Some(property.is_some_and(|value| !value.is_empty()))
        });
        match asked.flatten() {
            None => false,
            // As in APISIX: also a body that is not there.
            Some(true) => true,
            Some(false) => self.sees_bodies && x.body_state() != Body::None,
        }
    }

    /// Runs the callbacks of the request.
    fn request(&self, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Step> {
        match self.request_callbacks(x, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(step)) => Poll::Ready(step),
            Poll::Ready(Err(failure)) => Poll::Ready(Step::Reply(Filter::failed(failure))),
        }
    }

    fn request_callbacks(&self, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Result<Step, Failure>> {
        let (machine, generation, id) = self.context(x)?;
        loop {
            let stage = self.known(x).map_or(Stage::Over, |request| request.request);
            let sees_body = stage == Stage::Headers && self.sees_request_body(x);
            if stage != Stage::New && stage != Stage::Over {
                match self.settle(x, cx, REQUEST, sees_body) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(settled) => {
                        if let Settled::Reply(reply) = settled? {
                            return Poll::Ready(Ok(Step::Reply(reply)));
                        }
                    }
                }
            }
            let limit = self.module.host.settings.max_body();
            let (next, action) = match stage {
                Stage::New => {
                    let count = x.request().fields.len() as u32 + 4;
                    let is_end = x.body_state() == Body::None;
                    let action = machine.call(
                        generation,
                        Some(x),
                        id,
                        "proxy_on_request_headers",
                        |store, callbacks| callbacks.request_headers.call(store, id, count, is_end),
                    )?;
                    (Stage::Headers, action)
                }
                Stage::Headers if sees_body => {
                    if x.lacks_body(limit) {
                        return Poll::Ready(Ok(Step::Body(limit)));
                    }
                    if x.body_state() == Body::TooLarge {
                        return Poll::Ready(Ok(Step::Reply(
                            Reply::status(413).because("the body is too large"),
                        )));
                    }
                    let size = x.body().len() as u32;
                    let action = machine.call(
                        generation,
                        Some(x),
                        id,
                        "proxy_on_request_body",
                        |store, callbacks| {
                            set_body(store.data_mut(), id, Some(BodyOf::Request));
                            callbacks
                                .request_body
                                .as_ref()
                                .map_or(Ok(0), |body| body.call(store, (id, size, 1)))
                        },
                    )?;
                    (Stage::Body, action)
                }
                Stage::Body if !x.request_trailers().is_empty() => {
                    let count = x.request_trailers().len() as u32;
                    let action = machine.call(
                        generation,
                        Some(x),
                        id,
                        "proxy_on_request_trailers",
                        |store, callbacks| {
                            let trailers = callbacks.request_trailers.as_ref();
                            trailers.map_or(Ok(0), |trailers| trailers.call(store, (id, count)))
                        },
                    )?;
                    (Stage::Trailers, action)
                }
                _ => (Stage::Over, 0),
            };
            if let Some(request) = self.known_mut(x) {
                request.request = next;
            }
            if next == Stage::Over {
                machine.with(generation, |vm, _| set_body(vm, id, None));
                return Poll::Ready(Ok(Step::Next));
            }
            machine.with(generation, |vm, _| {
                if let Some(http) = vm.https.get_mut(&id) {
                    // Its own result counts more than a call that continued it meanwhile.
                    http.paused[REQUEST] = action == PAUSE;
                }
            });
        }
    }

    /// Runs the callback of the response's head.
    fn response(&self, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Result<Step, Failure>> {
        let (machine, generation, id) = self.context(x)?;
        let stage = self.known(x).map_or(Stage::Over, |request| request.response);
        if stage == Stage::New {
            let count = x.response().fields.len() as u32 + 1;
            // Other bodies may have a length of zero: the module sees an empty chunk.
            let is_end = x.method() == sdk::Method::Head || matches!(x.status(), 204 | 304);
            let action =
                machine.call(generation, Some(x), id, "proxy_on_response_headers", |store, callbacks| {
                    callbacks.response_headers.call(store, id, count, is_end)
                })?;
            let sees_body = machine.with(generation, |vm, callbacks| {
                let http = vm.https.get_mut(&id)?;
                http.paused[RESPONSE] = action == PAUSE;
                let asked = http.property(PROCESS_RESPONSE_BODY).is_some_and(|value| !value.is_empty());
                Some(callbacks.response_body.is_some() && (asked || self.sees_bodies))
            });
            let sees_body = sees_body.flatten().unwrap_or_default();
            if let Some(request) = self.known_mut(x) {
                (request.response, request.sees_response_body) = (Stage::Headers, sees_body);
            }
        } else if stage != Stage::Headers {
            // A reply of this instance, or one in the place of a response that it has seen: nothing of that is left.
            if let Some(request) = self.known_mut(x) {
                (request.response, request.sees_response_body, request.holds) = (Stage::Over, false, false);
            }
            machine.with(generation, |vm, _| vm.https.get_mut(&id).map(HttpContext::drop_chunks));
            return Poll::Ready(Ok(Step::Next));
        }
        let sees_body = self.known(x).is_some_and(|request| request.sees_response_body);
        let settled = match self.settle(x, cx, RESPONSE, sees_body) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(settled) => settled?,
        };
        let is_paused =
            machine.with(generation, |vm, _| vm.https.get(&id).is_some_and(|http| http.paused[RESPONSE]));
        if let Some(request) = self.known_mut(x) {
            request.response = Stage::Body;
            request.holds = sees_body && is_paused == Some(true);
        }
        match settled {
            Settled::Go => {
                if sees_body {
                    // Its length may change.
                    x.remove_response_header("Content-Length");
                }
                Poll::Ready(Ok(Step::Next))
            }
            Settled::Reply(reply) => {
                if let Some(request) = self.known_mut(x) {
                    (request.response, request.sees_response_body, request.holds) =
                        (Stage::Over, false, false);
                }
                Poll::Ready(Ok(Step::Reply(reply)))
            }
        }
    }

    fn response_step(&self, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Step> {
        self.response(x, cx).map(|result| match result {
            Ok(step) => step,
            Err(failure) => {
                if let Some(request) = self.known_mut(x) {
                    (request.response, request.sees_response_body) = (Stage::Over, false);
                }
                Step::Reply(Filter::failed(failure))
            }
        })
    }

    /// Runs the callback of a chunk of the response's body.
    fn chunk(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Result<Step, Failure> {
        let (machine, generation, id) = self.context(x)?;
        let (data, last) = (std::mem::take(&mut chunk.data), chunk.last);
        let most = self.module.host.settings.max_body();
        let world = x.world();
        let size = machine.with(generation, |vm, _| {
            let http = vm.https.get_mut(&id)?;
            let all = http.passed.len() + http.chunks.len() + data.len();
            if all > most || http.held.resize(world.budget(), all).is_err() {
                return Some(None);
            }
            match http.chunks.is_empty() {
                true => http.chunks = data,
                false => http.chunks.extend_from_slice(&data),
            }
            Some(Some(http.chunks.len() as u32))
        });
        let Some(size) = size.flatten().ok_or(Failure::Lost)? else {
            chunk.refused = true;
            return Ok(Step::Next);
        };
        let action =
            machine.call(generation, Some(x), id, "proxy_on_response_body", |store, callbacks| {
                set_body(store.data_mut(), id, Some(BodyOf::Response));
                let body = callbacks.response_body.as_ref();
                body.map_or(Ok(0), |body| body.call(store, (id, size, u32::from(last))))
            })?;
        machine.with(generation, |vm, _| {
            if let Some(http) = vm.https.get_mut(&id) {
                http.paused[RESPONSE] = action == PAUSE;
            }
        });
        self.pass_on(x, chunk, &mut Context::from_waker(Waker::noop())).map_or(Ok(Step::Wait), |step| step)
    }

    /// Passes on the bytes that are held back, unless the module waits; `None` if it does.
    fn pass_on(
        &self,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Option<Result<Step, Failure>> {
        let holds = self.known(x).is_some_and(|request| request.holds);
        // Chunks with which the module waits are seen again, together with the next ones.
        match self.settle(x, cx, RESPONSE, !chunk.last) {
            Poll::Pending => return None,
            Poll::Ready(Err(failure)) => return Some(Err(failure)),
            Poll::Ready(Ok(Settled::Reply(reply))) => return Some(Ok(Step::Reply(reply))),
            Poll::Ready(Ok(Settled::Go)) => {}
        }
        Some(self.context(x).and_then(|(machine, generation, id)| {
            if chunk.last && !x.response_trailers().is_empty() {
                let count = x.response_trailers().len() as u32;
                machine.call(generation, Some(x), id, "proxy_on_response_trailers", |store, callbacks| {
                    let trailers = callbacks.response_trailers.as_ref();
                    trailers.map_or(Ok(0), |trailers| trailers.call(store, (id, count)))
                })?;
            }
            machine.with(generation, |vm, _| {
                let Some(http) = vm.https.get_mut(&id) else { return };
                if !chunk.last && http.paused[RESPONSE] {
                    return;
                }
                match http.passed.is_empty() {
                    true => http.passed = std::mem::take(&mut http.chunks),
                    false => http.passed.append(&mut http.chunks),
                }
                if chunk.last || !holds {
                    chunk.data = std::mem::take(&mut http.passed);
                    http.drop_chunks();
                }
            });
            Ok(Step::Next)
        }))
    }
}

pub(super) fn set_body(vm: &mut super::vm::Vm, id: u32, body: Option<BodyOf>) {
    if let Some(http) = vm.https.get_mut(&id) {
        http.body = body;
    }
}

impl Instance for Filter {
    fn phases(&self) -> Phases {
        self.module.phases | Phases::of(self.phase)
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        if phase != self.phase {
            return Step::Next;
        }
        match self.request(x, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => step,
            Poll::Pending => Step::Wait,
        }
    }

    fn wait<'a>(&'a self, phase: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(poll_fn(move |cx| match phase {
            Phase::HeaderFilter => self.response_step(x, cx),
            _ => self.request(x, cx),
        }))
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        // It is called once for each head: a head that the module still works on has been replaced.
        if let Some(request) = self.known_mut(x).filter(|request| request.response == Stage::Headers) {
            request.response = Stage::Body;
        }
        match self.response_step(x, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => step,
            Poll::Pending => Step::Wait,
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.known(x).is_some_and(|request| request.sees_response_body)
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.known(x).is_some_and(|request| request.holds)
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        if !self.filters_body(x) {
            return Step::Next;
        }
        self.chunk(x, chunk).unwrap_or_else(|failure| Step::Reply(Filter::failed(failure)))
    }

    fn wait_body<'a>(&'a self, x: &'a mut Exchange<'_>, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(poll_fn(move |cx| match self.pass_on(x, chunk, cx) {
            None => Poll::Pending,
            Some(Ok(step)) => Poll::Ready(step),
            Some(Err(failure)) => Poll::Ready(Step::Reply(Filter::failed(failure))),
        }))
    }

    fn log(&self, x: &mut Exchange<'_>) {
        // The number may be that of another request before the note is dropped.
        let known = self
            .known_mut(x)
            .map(|request| (request.machine.clone(), request.generation, std::mem::take(&mut request.id)));
        if let Some((machine, generation, id)) = known {
            machine.finish(generation, id, Some(x));
        }
    }
}
