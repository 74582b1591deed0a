//! hot path
//!
//! The response of a plugin whose body is produced while it is sent.

use sdk::Exchange;
use sdk::exchange::Chunk;
use sdk::response_body::{SizedSource, SourceError};
use wire::Method;

use super::answer;
use super::fault::{Fault, FaultKind};
use super::fault_log::report;
use super::outcome::Outcome;
use super::phases::{Chains, Flow, in_time};
use crate::down::{Downstream, Response};
use crate::io::Failed;
use crate::rt;
use crate::up::Size;
use crate::worker::Worker;

/// Why a response ends early.
enum Stop {
    Client(Failed),
    Fault(Fault),
}

/// Sends the response whose head is in `x`, after its header filters.
pub(super) async fn send(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    source: SizedSource,
) -> Outcome {
    let (_, mut response) = down.split(worker);
    let is_head = x.method() == Method::Head;
    let filtered = chains.filter_body(x);
    let size = match (filtered, is_head) {
        (true, true) => Size::None,
        (false, false) if !x.response_trailers().is_empty() => Size::Open,
        (false, _) => Size::Exactly(source.length),
        (true, false) => Size::Open,
    };
    let head_len = response.start(x, size);
    x.engine_mut().timing.sent = head_len;
    let sent = match is_head {
        true => response.end().await.map_err(Stop::Client),
        false => pieces(worker, &mut response, x, chains, source, filtered).await,
    };
    match sent {
        Ok(()) => Outcome::Answered,
        Err(Stop::Client(failed)) => {
            if failed == Failed::Timeout {
                down.end_if_last();
            }
            Outcome::Gone
        }
        Err(Stop::Fault(fault)) if response.has_begun() => {
            report(worker, x, fault);
            Outcome::Broken
        }
        Err(Stop::Fault(fault)) => {
            let body = answer::refused(worker, x, fault);
            let head_len = response.start(x, Size::Exactly(body.len() as u64));
            let timing = &mut x.engine_mut().timing;
            (timing.body_sent, timing.sent) = (body.len() as u64, head_len + body.len() as u64);
            match response.write(&body, true, None).await {
                Ok(()) => Outcome::Answered,
                Err(_) => Outcome::Gone,
            }
        }
    }
}

/// Sends the pieces of the body, each once the client has taken the one before.
async fn pieces(
    worker: &Worker,
    response: &mut Response<'_>,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    source: SizedSource,
    filtered: bool,
) -> Result<(), Stop> {
    let SizedSource { length: mut left, mut source } = source;
    let mut chunk = Chunk::default();
    let mut turn = rt::TURN;
    loop {
        let world = x.world();
        let piece = match in_time(worker, source.next(world)).await {
            Ok(Ok(piece)) => piece,
            Ok(Err(SourceError(why))) => return Err(unfinished(why)),
            Err(fault) => return Err(Stop::Fault(fault)),
        };
        left = match left.checked_sub(piece.len() as u64) {
            Some(left) if !piece.is_empty() => left,
            _ => return Err(unfinished("a plugin made a body of another length")),
        };
        let last = left == 0;
        let data = if filtered {
            chunk.data.clear();
            chunk.data.extend_from_slice(&piece);
            chunk.last = last;
            match chains.body_filter(worker, x, &mut chunk).await {
                Flow::Go => {}
                Flow::Fault(fault) => return Err(Stop::Fault(fault)),
                // The head describes the body that began.
                Flow::Reply(_) => return Err(Stop::Fault(Fault::gateway(FaultKind::BrokenStage))),
            }
            &chunk.data[..]
        } else {
            &piece[..]
        };
        let timing = &mut x.engine_mut().timing;
        timing.body_sent += data.len() as u64;
        timing.sent += data.len() as u64;
        if last || !data.is_empty() {
            response.write(data, last, Some(x.response_trailers())).await.map_err(Stop::Client)?;
        }
        if last {
            return Ok(());
        }
        turn = turn.saturating_sub(piece.len() as u64);
        if turn == 0 {
            turn = rt::TURN;
            rt::events().await;
        }
    }
}

fn unfinished(why: &'static str) -> Stop {
    Stop::Fault(Fault::gateway(FaultKind::Unfinished(why)))
}
