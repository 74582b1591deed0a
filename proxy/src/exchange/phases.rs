//! hot path
//!
//! Running stages, phase by phase.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use sdk::chain::LocalFuture;
use sdk::exchange::Chunk;
use sdk::{Chain, Exchange, Phase, Reply, Step};

use super::fault::{Fault, FaultKind};
use super::upload;
use crate::down::Downstream;
use crate::worker::Worker;

/// How an exchange continues after a phase.
#[derive(Debug)]
pub(crate) enum Flow {
    Go,
    Reply(Reply),
    Fault(Fault),
}

/// The two chains of an exchange: that of the global rules and that of the plan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chains<'a> {
    pub(crate) global: Option<&'a Chain>,
    pub(crate) plan: Option<&'a Chain>,
}

impl<'a> Chains<'a> {
    /// The chains that have work in this phase, in order.
    #[inline]
    fn each(self, phase: Phase) -> impl Iterator<Item = &'a Chain> {
        self.global.into_iter().chain(self.plan).filter(move |chain| chain.phases().has(phase))
    }

    #[inline]
    pub(crate) fn are_none(self) -> bool {
        self.global.is_none() && self.plan.is_none()
    }

    #[inline]
    pub(crate) fn has(self, phase: Phase) -> bool {
        self.each(phase).next().is_some()
    }

    /// Runs `Rewrite`, `Access` or `BeforeProxy` of both chains, up to an instance that wants more than to change the
    /// exchange. Nothing here waits: a phase that needs no more costs no future.
    #[inline]
    pub(crate) fn run(self, worker: &Worker, phase: Phase, x: &mut Exchange<'_>) -> Option<Halt<'a>> {
        if let Some(halt) = self.global.and_then(|chain| run(worker, chain, phase, x)) {
            return Some(Halt { next: self.plan, ..halt });
        }
        run(worker, self.plan?, phase, x)
    }

    /// Runs the header filters. A panic in one is counted, and the response goes on without the rest of
    /// its chain.
    #[inline]
    pub(crate) async fn header_filter(self, worker: &Worker, x: &mut Exchange<'_>) -> Flow {
        x.engine_mut().coder = None;
        for chain in self.each(Phase::HeaderFilter) {
            let mut cursor = 0;
            match guarded(worker, || chain.header_filter(&mut cursor, x)) {
                Ok(Step::Next) | Err(_) => {}
                Ok(step) => match filter_on(worker, chain, x, None, step, cursor).await {
                    Flow::Go => {}
                    flow => return flow,
                },
            }
        }
        if x.codes_body() {
            // Counted; what the coder did not begin is not coded.
            let _ = guarded(worker, || sdk::engine::begin_coding(x));
        }
        Flow::Go
    }

    /// Whether a stage looks at the body of the response whose head went through the header filters.
    #[inline]
    pub(crate) fn filter_body(self, x: &Exchange<'_>) -> bool {
        // A stage that fails here gets the body, and what it makes of that is looked at there.
        self.each(Phase::BodyFilter)
            .any(|chain| catch_unwind(AssertUnwindSafe(|| chain.filters_body(x))).unwrap_or(true))
            || x.codes_body()
    }

    /// Whether a stage gives nothing of the body on before it has seen all of it.
    #[inline]
    pub(crate) fn hold_body(self, worker: &Worker, x: &Exchange<'_>) -> Result<bool, Fault> {
        guarded(worker, || self.each(Phase::BodyFilter).any(|chain| chain.holds_body(x)))
    }

    /// Runs the body filters on a piece. A panic is a fault, as what would have become of the body is
    /// unknown; so is a body of which more would have to be held than may be.
    #[inline]
    pub(crate) async fn body_filter(self, worker: &Worker, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Flow {
        chunk.refused = false;
        for chain in self.each(Phase::BodyFilter) {
            let mut cursor = 0;
            match guarded(worker, || chain.body_filter(&mut cursor, x, chunk)) {
                Ok(Step::Next) => {}
                Ok(step) => match filter_on(worker, chain, x, Some(chunk), step, cursor).await {
                    Flow::Go => {}
                    flow => return flow,
                },
                Err(fault) => return Flow::Fault(fault),
            }
        }
        if x.codes_body() {
            match guarded(worker, || x.engine_mut().code(chunk)) {
                Ok(Step::Wait) => match code_on(worker, x, chunk).await {
                    Ok(()) => {}
                    Err(fault) => return Flow::Fault(fault),
                },
                Ok(_) => {}
                Err(fault) => return Flow::Fault(fault),
            }
        }
        if chunk.refused { Flow::Fault(Fault::gateway(FaultKind::HeldTooMuch)) } else { Flow::Go }
    }

    /// Whether the exchange has a log phase: an instance logs every exchange, or asked to log this one.
    #[inline]
    pub(crate) fn will_log(self, x: &Exchange<'_>) -> bool {
        x.timing().log_asked_us.is_some() || self.has(Phase::Log)
    }

    #[inline]
    pub(crate) fn log(self, worker: &Worker, x: &mut Exchange<'_>) {
        if !self.will_log(x) {
            return;
        }
        for chain in self.global.into_iter().chain(self.plan) {
            if catch_unwind(AssertUnwindSafe(|| chain.log(x))).is_err() {
                worker.shard.panicked();
            }
        }
    }
}

/// Where a phase before the upstream stopped: an instance wants more than to change the exchange, or failed.
pub(crate) struct Halt<'a> {
    phase: Phase,
    chain: &'a Chain,
    /// The chain that runs after this one.
    next: Option<&'a Chain>,
    cursor: usize,
    step: Result<Step, Fault>,
}

/// Runs one chain through `Rewrite`, `Access` or `BeforeProxy`.
#[inline]
fn run<'a>(worker: &Worker, chain: &'a Chain, phase: Phase, x: &mut Exchange<'_>) -> Option<Halt<'a>> {
    if !chain.phases().has(phase) {
        return None;
    }
    let mut cursor = 0;
    match guarded(worker, || chain.run(phase, &mut cursor, x)) {
        Ok(Step::Next) => None,
        step => Some(Halt { phase, chain, next: None, cursor, step }),
    }
}

impl Halt<'_> {
    /// Returns the end of the exchange that follows from it, or `None` if the phase ran to its end after all.
    pub(crate) async fn resolve(
        self,
        worker: &Worker,
        down: &mut Downstream<'_>,
        x: &mut Exchange<'_>,
    ) -> Option<Flow> {
        match self.step {
            Ok(Step::Reply(reply)) => Some(reply_of(self.chain, self.phase, self.cursor, x, reply)),
            Err(fault) => Some(Flow::Fault(fault)),
            Ok(_) => go_on(worker, down, x, self).await,
        }
    }
}

#[inline]
fn reply_of(chain: &Chain, phase: Phase, cursor: usize, x: &mut Exchange<'_>, reply: Reply) -> Flow {
    x.engine_mut().answered_by = chain.name_at(phase, cursor).unwrap_or_default();
    Flow::Reply(reply)
}

/// The rest of a phase once a stage wants to wait or to see the body. Boxed: it is rare,
/// and its size would weigh on every connection.
fn go_on<'a>(
    worker: &'a Worker,
    down: &'a mut Downstream<'_>,
    x: &'a mut Exchange<'_>,
    halt: Halt<'a>,
) -> LocalFuture<'a, Option<Flow>> {
    Box::pin(async move {
        let Halt { phase, mut chain, mut next, mut cursor, mut step } = halt;
        loop {
            step = match step {
                Ok(Step::Next) => match next.take().and_then(|chain| run(worker, chain, phase, x)) {
                    Some(halt) => {
                        (chain, cursor) = (halt.chain, halt.cursor);
                        halt.step
                    }
                    None => return None,
                },
                Ok(Step::Reply(reply)) => return Some(reply_of(chain, phase, cursor, x, reply)),
                Ok(Step::Refuse(why)) => Err(Fault::client(FaultKind::Undecidable(why))),
                Ok(Step::Wait) => {
                    let waited = wait(worker, down, chain, phase, cursor, x).await;
                    x.set_steady_ms(None);
                    match waited {
                        Ok(Step::Next) => {
                            cursor += 1;
                            guarded(worker, || chain.run(phase, &mut cursor, x))
                        }
                        step => step,
                    }
                }
                Ok(Step::Body(limit)) => {
                    let buffered = upload::buffer(worker, down, x, limit).await;
                    x.set_steady_ms(None);
                    match buffered.and_then(|()| guarded(worker, || chain.run(phase, &mut cursor, x))) {
                        // A later plugin may want more of a longer body. One that asks for a length
                        // which was tried already is broken.
                        Ok(Step::Body(limit)) if !x.lacks_body(limit) => {
                            Err(Fault::gateway(FaultKind::BrokenStage))
                        }
                        step => step,
                    }
                }
                Err(fault) => return Some(Flow::Fault(fault)),
            };
        }
    })
}

/// Runs the rest of a chain's filters once one of them wants more than to change its input. Boxed, as
/// [`go_on`]. The caller watches the client.
#[cold]
fn filter_on<'a>(
    worker: &'a Worker,
    chain: &'a Chain,
    x: &'a mut Exchange<'_>,
    mut chunk: Option<&'a mut Chunk>,
    mut step: Step,
    mut cursor: usize,
) -> LocalFuture<'a, Flow> {
    Box::pin(async move {
        loop {
            match step {
                Step::Next => return Flow::Go,
                Step::Reply(reply) => {
                    let phase = if chunk.is_some() { Phase::BodyFilter } else { Phase::HeaderFilter };
                    x.engine_mut().answered_by = chain.name_at(phase, cursor).unwrap_or_default();
                    return Flow::Reply(reply);
                }
                Step::Refuse(why) => return Flow::Fault(Fault::client(FaultKind::Undecidable(why))),
                // The request is gone by now.
                Step::Body(_) => return Flow::Fault(Fault::gateway(FaultKind::BrokenStage)),
                Step::Wait => {
                    let waiting = match &mut chunk {
                        Some(chunk) => chain.wait_body(cursor, x, chunk),
                        None => chain.wait(Phase::HeaderFilter, cursor, x),
                    };
                    step = match in_time(worker, waiting).await {
                        Ok(step) => step,
                        Err(fault) => return Flow::Fault(fault),
                    };
                    // It has waited once: what it answers now is its answer.
                    if !matches!(step, Step::Next) {
                        continue;
                    }
                    cursor += 1;
                    let asked = match &mut chunk {
                        Some(chunk) => guarded(worker, || chain.body_filter(&mut cursor, x, chunk)),
                        None => guarded(worker, || chain.header_filter(&mut cursor, x)),
                    };
                    step = match asked {
                        Ok(step) => step,
                        Err(fault) => return Flow::Fault(fault),
                    };
                }
            }
        }
    })
}

/// Waits for the coder. Boxed, as [`go_on`].
#[cold]
fn code_on<'a>(
    worker: &'a Worker,
    x: &'a mut Exchange<'_>,
    chunk: &'a mut Chunk,
) -> LocalFuture<'a, Result<(), Fault>> {
    Box::pin(async move { in_time(worker, x.engine_mut().wait_code(chunk)).await })
}

/// Waits for an instance, but no longer than the client does.
async fn wait(
    worker: &Worker,
    down: &mut Downstream<'_>,
    chain: &Chain,
    phase: Phase,
    cursor: usize,
    x: &mut Exchange<'_>,
) -> Result<Step, Fault> {
    unless_gone(worker, down, in_time(worker, chain.wait(phase, cursor, x))).await?
}

/// Does something unless the client goes away meanwhile.
pub(crate) async fn unless_gone<T>(
    worker: &Worker,
    down: &mut Downstream<'_>,
    what: impl Future<Output = T>,
) -> Result<T, Fault> {
    let mut what = pin!(what);
    let mut gone = pin!(down.gone(worker));
    poll_fn(|cx| match what.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => gone.as_mut().poll(cx).map(|()| Err(Fault::client(FaultKind::ClientGone))),
    })
    .await
}

/// Waits for a plugin, which may take as long as the setting says. A panic costs the exchange a 500.
pub(crate) async fn in_time<T>(worker: &Worker, mut waiting: LocalFuture<'_, T>) -> Result<T, Fault> {
    let waiter = worker.clock.waiter();
    let deadline = worker.clock.after(worker.settings.timeouts.plugin_wait);
    let waited =
        waiter.until(deadline, |cx| match catch_unwind(AssertUnwindSafe(|| waiting.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => {
                worker.shard.panicked();
                Poll::Ready(Err(Fault::gateway(FaultKind::Panic)))
            }
        });
    waited.await.unwrap_or(Err(Fault::gateway(FaultKind::PluginTimeout)))
}

/// A panic in a stage or a condition costs this exchange a 500 and nothing else.
#[inline]
pub(crate) fn guarded<T>(worker: &Worker, stage: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(stage)).map_err(|_| {
        worker.shard.panicked();
        Fault::gateway(FaultKind::Panic)
    })
}
