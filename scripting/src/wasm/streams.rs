//! A plugin instance of a stream route: a context of the ABI for each TCP stream, which sees its bytes both ways.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sdk::chain::LocalFuture;
use sdk::exchange::Chunk;
use sdk::state::WorkerState;
use sdk::stream::Side;
use sdk::{Exchange, Instance, Phase, Phases, Reply, Step};

use super::context::{BodyOf, DOWNSTREAM, UPSTREAM};
use super::filter::{Filter, PAUSE, Place, Settled, Stage, set_body};
use super::machine::Failure;
use super::module::Module;

/// The side that has closed a connection.
const LOCAL: u32 = 1;
const REMOTE: u32 = 2;

pub(super) struct StreamFilter(Filter);

/// A direction, an index of contexts.
fn index(from: Side) -> usize {
    match from {
        Side::Client => DOWNSTREAM,
        Side::Upstream => UPSTREAM,
    }
}

/// The end of a stream whose plugin has failed.
fn failed(failure: Failure) -> Step {
    Step::Reply(Filter::failed(failure))
}

impl StreamFilter {
    pub(super) fn new(module: &Arc<Module>, config: Arc<[u8]>, machines: WorkerState<Place>) -> StreamFilter {
        StreamFilter(Filter::new(module, Phase::Preread, false, config, machines))
    }

    /// Runs the callback of a new connection, and waits until the module continues it.
    fn connected(&self, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Result<Step, Failure>> {
        let (machine, generation, id) = self.0.context(x)?;
        if self.0.known(x).is_some_and(|known| known.request == Stage::New) {
            let name = "proxy_on_new_connection";
            let action = machine.call(generation, Some(x), id, name, |store, callbacks| {
                callbacks.new_connection.as_ref().map_or(Ok(0), |new| new.call(store, id))
            })?;
            machine.with(generation, |vm, _| {
                vm.https.get_mut(&id).map(|http| http.paused[DOWNSTREAM] = action == PAUSE)
            });
            if let Some(known) = self.0.known_mut(x) {
                known.request = Stage::Headers;
            }
        }
        self.0.settle(x, cx, DOWNSTREAM, false).map(|settled| {
            Ok(match settled? {
                Settled::Reply(reply) => Step::Reply(reply),
                Settled::Go => {
                    // From now on the stream drives its calls.
                    machine.with(generation, |vm, _| vm.https.get_mut(&id).map(|http| http.waits = true));
                    Step::Next
                }
            })
        })
    }

    /// Shows bytes of a side to the module.
    fn shown(&self, x: &mut Exchange<'_>, from: Side, chunk: &mut Chunk) -> Result<Step, Failure> {
        let (machine, generation, id) = self.0.context(x)?;
        let (side, most) = (index(from), self.0.module.host.settings.max_body());
        let world = x.world();
        let size = machine.with(generation, |vm, callbacks| {
            let is_seen = match from {
                Side::Client => callbacks.downstream_data.is_some(),
                Side::Upstream => callbacks.upstream_data.is_some(),
            };
            let stream = vm.https.get_mut(&id)?.stream.as_mut()?;
            stream.has_ended[side] |= chunk.last;
            if !is_seen {
                return Some(None);
            }
            let size = stream.data[side].len() + chunk.data.len();
            if size > most || stream.held[side].resize(world.budget(), size).is_err() {
                return Some(Some(Err(())));
            }
            match stream.data[side].is_empty() {
                true => stream.data[side] = std::mem::take(&mut chunk.data),
                false => stream.data[side].append(&mut chunk.data),
            }
            stream.holds_end[side] = std::mem::take(&mut chunk.last);
            Some(Some(Ok(size as u32)))
        });
        let size = match size.flatten().ok_or(Failure::Lost)? {
            None => return Ok(Step::Next),
            Some(Err(())) => {
                let why = "the gateway's memory for bytes of a stream is used up";
                return Ok(Step::Reply(Reply::status(503).because(why)));
            }
            Some(Ok(size)) => size,
        };
        let (name, of) = match from {
            Side::Client => ("proxy_on_downstream_data", BodyOf::Downstream),
            Side::Upstream => ("proxy_on_upstream_data", BodyOf::Upstream),
        };
        let action = machine.call(generation, Some(x), id, name, |store, callbacks| {
            set_body(store.data_mut(), id, Some(of));
            let http = store.data().https.get(&id);
            let is_end = http.and_then(|http| http.stream.as_ref()).is_some_and(|it| it.holds_end[side]);
            let data = match from {
                Side::Client => callbacks.downstream_data.as_ref(),
                Side::Upstream => callbacks.upstream_data.as_ref(),
            };
            let action = data.map_or(Ok(0), |data| data.call(&mut *store, (id, size, u32::from(is_end))))?;
            set_body(store.data_mut(), id, None);
            Ok(action)
        })?;
        let waits = machine.with(generation, |vm, _| {
            let http = vm.https.get_mut(&id)?;
            http.paused[side] = action == PAUSE;
            let stream = http.stream.as_ref()?;
            Some(stream.holds_end[side] || stream.data[side].len() >= most / 2)
        });
        let waits = waits.flatten().ok_or(Failure::Lost)?;
        match self.passed(x, from, chunk, None)? {
            Poll::Ready(step) => Ok(step),
            Poll::Pending => Ok(if waits { Step::Wait } else { Step::Next }),
        }
    }

    /// Passes the bytes of a side on, unless the module waits with them; then it wakes the stream once they may go on.
    fn passed(
        &self,
        x: &mut Exchange<'_>,
        from: Side,
        chunk: &mut Chunk,
        waker: Option<&Waker>,
    ) -> Result<Poll<Step>, Failure> {
        let Some(known) = self.0.known(x) else { return Ok(Poll::Pending) };
        let (machine, generation, id) = (known.machine.clone(), known.generation, known.id);
        let (side, world) = (index(from), x.world());
        let passed = machine.with(generation, |vm, _| {
            let http = vm.https.get_mut(&id)?;
            if let Some(reply) = http.reply.take() {
                return Some(Poll::Ready(Step::Reply(reply.reply())));
            }
            if let Some(waker) = waker {
                http.waker = Some(waker.clone());
            }
            let stream = http.stream.as_mut()?;
            let holds = !stream.data[side].is_empty() || stream.holds_end[side];
            if http.paused[side] || !holds {
                // Bytes that were passed on are written by now.
                let _ = stream.held[side].resize(world.budget(), stream.data[side].len());
                return Some(Poll::Pending);
            }
            chunk.data = std::mem::take(&mut stream.data[side]);
            chunk.last = std::mem::take(&mut stream.holds_end[side]);
            Some(Poll::Ready(Step::Next))
        });
        passed.flatten().ok_or(Failure::Lost)
    }

    /// Calls the callbacks of connections that are closed.
    fn closed(&self, x: &mut Exchange<'_>) {
        let Some(known) = self.0.known(x).filter(|known| known.id != 0) else { return };
        let (machine, generation, id) = (known.machine.clone(), known.generation, known.id);
        let has_upstream = x.upstream_addr().is_some();
        let ended = machine.with(generation, |vm, _| {
            Some(
                vm.https.get(&id)?.stream.as_ref()?.has_ended.map(|ended| if ended { REMOTE } else { LOCAL }),
            )
        });
        let Some([client, upstream]) = ended.flatten() else { return };
        // A failure has no effect but a new instance.
        let _ = machine.call(
            generation,
            Some(x),
            id,
            "proxy_on_downstream_connection_close",
            |store, callbacks| {
                if let Some(close) = callbacks.upstream_close.as_ref().filter(|_| has_upstream) {
                    close.call(&mut *store, (id, upstream))?;
                }
                store.data_mut().effective = id;
                callbacks.downstream_close.as_ref().map_or(Ok(()), |close| close.call(store, (id, client)))
            },
        );
    }
}

impl Instance for StreamFilter {
    fn phases(&self) -> Phases {
        Phases::PREREAD | Phases::STREAM_DATA | Phases::LOG
    }

    fn ask(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        match self.connected(x, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => step.unwrap_or_else(failed),
            Poll::Pending => Step::Wait,
        }
    }

    fn wait<'a>(&'a self, _: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(poll_fn(move |cx| self.connected(x, cx).map(|step| step.unwrap_or_else(failed))))
    }

    fn stream_data(&self, x: &mut Exchange<'_>, from: Side, chunk: &mut Chunk) -> Step {
        self.shown(x, from, chunk).unwrap_or_else(failed)
    }

    fn poll_stream(
        &self,
        x: &mut Exchange<'_>,
        from: Side,
        chunk: &mut Chunk,
        cx: &mut Context<'_>,
    ) -> Poll<Step> {
        let Some(known) = self.0.known(x) else { return Poll::Pending };
        let (machine, at) = (known.machine.clone(), (known.generation, known.id));
        let driven = self.0.drive(x, cx, &machine, at);
        match driven.and_then(|()| self.passed(x, from, chunk, Some(cx.waker()))) {
            Ok(passed) => passed,
            Err(failure) => Poll::Ready(failed(failure)),
        }
    }

    fn log(&self, x: &mut Exchange<'_>) {
        self.closed(x);
        self.0.log(x);
    }
}
