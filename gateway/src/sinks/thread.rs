//! Entries of one sink that blocks, such as a file: delivered by a thread of its own, so that a slow file, a full disk
//! or a FIFO without a reader holds up no other work.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sdk::sink::{Batch, Deliver, Intake, Next, Outcome, Taken};

/// Time between two lines about the same trouble.
const PAUSE: Duration = Duration::from_secs(10);

/// The most bytes of entries that are delivered together.
const TOGETHER: usize = 64 << 10;

/// Delivers until the end.
pub fn run(intake: &Intake, sink: &dyn Deliver) {
    let mut logged = None;
    let mut next = intake.next();
    loop {
        match next {
            Next::Entries(first) => {
                // Entries that wait already go into the same write.
                let mut size = first.size();
                let mut taken = vec![first];
                let then = loop {
                    match intake.take() {
                        Some(Next::Entries(more)) if size + more.size() <= TOGETHER => {
                            size += more.size();
                            taken.push(more);
                        }
                        then => break then,
                    }
                };
                deliver(intake, sink, &taken, &mut logged);
                drop(taken);
                next = then.unwrap_or_else(|| intake.next());
            }
            Next::Reopen => {
                sink.reopen();
                next = intake.next();
            }
            Next::End => return,
        }
    }
}

fn deliver(intake: &Intake, sink: &dyn Deliver, records: &[Taken], logged: &mut Option<Instant>) {
    let mut delivery = sink.deliver(Batch { records, server: 0, addresses: &[] });
    let reason = match delivery.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Outcome::Delivered) => return,
        Poll::Ready(
            Outcome::Retry { reason, .. } | Outcome::Partial { reason, .. } | Outcome::Rejected(reason),
        ) => reason,
        // A sink that blocks does not wait in another way.
        Poll::Pending => "the sink is not one that blocks".to_owned(),
    };
    intake.lost(records.iter().map(Taken::entries).sum());
    if logged.is_none_or(|logged| logged.elapsed() > PAUSE) {
        *logged = Some(Instant::now());
        tracing::error!("{reason}");
    }
}
