//! The plugins of a stream, before its upstream is chosen.

use std::rc::Rc;

use sdk::exchange::Body;
use sdk::{Chain, Exchange, Phase, Step};

use super::Outcome;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::phases::{guarded, in_time};
use crate::worker::Worker;

/// Runs plugins from `*cursor` on, waiting for those that want it, up to one that wants to see the
/// client's first bytes: as many as this. None when all have run.
pub(super) async fn wanted(
    worker: &Worker,
    chain: &Chain,
    cursor: &mut usize,
    x: &mut Exchange<'_>,
) -> Result<Option<usize>, Outcome> {
    loop {
        let step = guarded(worker, || chain.run(Phase::Preread, cursor, x)).map_err(Outcome::Failed)?;
        let step = match step {
            // A client that breaks off meanwhile is seen with the first byte that is to be sent to it.
            Step::Wait => match in_time(worker, chain.wait(Phase::Preread, *cursor, x)).await {
                Ok(Step::Next) => {
                    *cursor += 1;
                    continue;
                }
                waited => waited.map_err(Outcome::Failed)?,
            },
            step => step,
        };
        return match step {
            Step::Next => Ok(None),
            Step::Reply(reply) => {
                x.engine_mut().reason = reply.reason;
                Err(Outcome::Refused(reply.status))
            }
            Step::Body(wanted) if wanted > x.body_asked() => Ok(Some(wanted)),
            // It has what it asked for, or asks for what cannot be.
            Step::Body(_) | Step::Refuse(_) | Step::Wait => {
                Err(Outcome::Failed(Fault::gateway(FaultKind::BrokenStage)))
            }
        };
    }
}

/// Shows plugins what there is of the bytes that one of them wanted: where it is less than that, there is
/// no more.
pub(super) fn show(x: &mut Exchange<'_>, bytes: &[u8], wanted: usize) {
    let held = Rc::make_mut(&mut x.engine_mut().messages.body);
    held.clear();
    held.extend_from_slice(bytes);
    x.engine_mut().body_state = Body::Whole;
    x.engine_mut().body_asked = wanted;
}
