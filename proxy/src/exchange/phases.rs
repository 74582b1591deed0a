//! hot path
//!
//! Running stages, phase by phase.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use sdk::exchange::Chunk;
use sdk::{Chain, Exchange, Phase, Reply, Step};

use super::fault::{Fault, FaultKind};
use super::upload;
use crate::down::Downstream;
use crate::worker::Worker;

/// What follows after a phase.
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
        [self.global, self.plan].into_iter().flatten().filter(move |chain| chain.phases().has(phase))
    }

    #[inline]
    pub(crate) fn are_none(self) -> bool {
        self.global.is_none() && self.plan.is_none()
    }

    #[inline]
    pub(crate) fn has(self, phase: Phase) -> bool {
        self.each(phase).next().is_some()
    }

    /// A panic in a stage is counted, and the response goes on without that phase.
    #[inline]
    pub(crate) fn header_filter(self, worker: &Worker, x: &mut Exchange<'_>) {
        x.forget_coder();
        for chain in self.each(Phase::HeaderFilter) {
            if catch_unwind(AssertUnwindSafe(|| chain.header_filter(x))).is_err() {
                worker.shard.panicked();
            }
        }
        if x.codes_body() && catch_unwind(AssertUnwindSafe(|| x.begin_coding())).is_err() {
            worker.shard.panicked();
        }
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
    pub(crate) fn hold_body(self, x: &Exchange<'_>) -> bool {
        self.each(Phase::BodyFilter).any(|chain| chain.holds_body(x))
    }

    /// An error if a stage panicked, as what it would have made of the body is unknown, or if it
    /// would have to hold more than it may.
    #[inline]
    pub(crate) fn body_filter(
        self,
        worker: &Worker,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
    ) -> Result<(), Fault> {
        chunk.refused = false;
        for chain in self.each(Phase::BodyFilter) {
            if catch_unwind(AssertUnwindSafe(|| chain.body_filter(x, chunk))).is_err() {
                worker.shard.panicked();
                return Err(Fault::gateway(FaultKind::Panic));
            }
        }
        if catch_unwind(AssertUnwindSafe(|| x.code(chunk))).is_err() {
            worker.shard.panicked();
            return Err(Fault::gateway(FaultKind::Panic));
        }
        if chunk.refused { Err(Fault::gateway(FaultKind::HeldTooMuch)) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn log(self, worker: &Worker, x: &mut Exchange<'_>) {
        for chain in self.each(Phase::Log) {
            if catch_unwind(AssertUnwindSafe(|| chain.log(x))).is_err() {
                worker.shard.panicked();
            }
        }
    }
}

/// Runs one chain through `Rewrite`, `Access` or `BeforeProxy`.
#[inline]
pub(crate) async fn run(
    worker: &Worker,
    down: &mut Downstream<'_>,
    chain: Option<&Chain>,
    phase: Phase,
    x: &mut Exchange<'_>,
) -> Flow {
    let Some(chain) = chain.filter(|chain| chain.phases().has(phase)) else {
        return Flow::Go;
    };
    let mut cursor = 0;
    match guarded(worker, || chain.run(phase, &mut cursor, x)) {
        Ok(Step::Next) => Flow::Go,
        Ok(Step::Reply(reply)) => Flow::Reply(reply),
        Ok(step) => go_on(worker, down, chain, phase, x, step, cursor).await,
        Err(fault) => Flow::Fault(fault),
    }
}

/// The rest of a phase once a stage wants to wait or to see the body. Boxed: it is rare,
/// and its size would weigh on every connection.
fn go_on<'a>(
    worker: &'a Worker,
    down: &'a mut Downstream<'_>,
    chain: &'a Chain,
    phase: Phase,
    x: &'a mut Exchange<'_>,
    mut step: Step,
    mut cursor: usize,
) -> sdk::chain::LocalFuture<'a, Flow> {
    Box::pin(async move {
        loop {
            step = match step {
                Step::Next => return Flow::Go,
                Step::Reply(reply) => return Flow::Reply(reply),
                Step::Refuse(why) => return Flow::Fault(Fault::client(FaultKind::Unjudged(why))),
                Step::Wait => match wait(worker, down, chain, phase, cursor, x).await {
                    Ok(Step::Next) => {
                        cursor += 1;
                        match guarded(worker, || chain.run(phase, &mut cursor, x)) {
                            Ok(step) => step,
                            Err(fault) => return Flow::Fault(fault),
                        }
                    }
                    Ok(step) => step,
                    Err(fault) => return Flow::Fault(fault),
                },
                Step::Body(limit) => {
                    if let Err(fault) = upload::buffer(worker, down, x, limit).await {
                        return Flow::Fault(fault);
                    }
                    match guarded(worker, || chain.run(phase, &mut cursor, x)) {
                        // A later stage may want more of a longer body. Who asks for what was tried
                        // already is broken.
                        Ok(Step::Body(limit)) if !x.lacks_body(limit) => {
                            return Flow::Fault(Fault::gateway(FaultKind::BrokenStage));
                        }
                        Ok(step) => step,
                        Err(fault) => return Flow::Fault(fault),
                    }
                }
            };
        }
    })
}

/// Waits for a stage, but no longer than the client does.
async fn wait(
    worker: &Worker,
    down: &mut Downstream<'_>,
    chain: &Chain,
    phase: Phase,
    cursor: usize,
    x: &mut Exchange<'_>,
) -> Result<Step, Fault> {
    let mut waiting = chain.wait(phase, cursor, x);
    let mut gone = pin!(down.gone(worker));
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| waiting.as_mut().poll(cx))) {
        Ok(Poll::Ready(step)) => Poll::Ready(Ok(step)),
        Ok(Poll::Pending) => gone.as_mut().poll(cx).map(|()| Err(Fault::client(FaultKind::ClientGone))),
        Err(_) => {
            worker.shard.panicked();
            Poll::Ready(Err(Fault::gateway(FaultKind::Panic)))
        }
    })
    .await
}

/// A panic in a stage or a condition costs this exchange a 500 and nothing else.
#[inline]
pub(crate) fn guarded<T>(worker: &Worker, stage: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(stage)).map_err(|_| {
        worker.shard.panicked();
        Fault::gateway(FaultKind::Panic)
    })
}
