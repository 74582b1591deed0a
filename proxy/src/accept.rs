//! Accepts connections: as many as there is room, time and descriptors for. `worker/shed.rs` closes idle ones
//! to make room.

use std::net::SocketAddr;
use std::rc::Rc;

use sdk::Client;

use crate::clock::TICK;
use crate::failed::is_shortage;
use crate::listener::{BACKLOG, Front};
use crate::queue::Queue;
use crate::rt;
use crate::stage::Stage;
use crate::worker::Worker;

/// Cost of the connections that a listener may take or refuse before everything else that is ready gets
/// its turn: eight taken, or 64 refused.
const TURN: u32 = 64;
const TO_TAKE: u32 = 8;
const TO_REFUSE: u32 = 1;

/// Takes connections until the worker is to stop.
pub(crate) async fn accept(
    worker: Rc<Worker>,
    listener: Rc<rt::Listener>,
    local: SocketAddr,
    front: Front,
    proxy_protocol: bool,
    mut signal: rt::Signal,
) {
    let mut queue = Queue::new(worker.settings.timeouts.queue);
    let mut done_this_turn = 0;
    while worker.stage() == Stage::Run {
        #[cfg(test)]
        crate::worker::tests::hold_up(&worker.settings, "accept");
        let taken = match listener.accept_now() {
            Some(taken) => taken,
            None => {
                queue.emptied();
                let accepted = std::pin::pin!(listener.accept());
                let stopped = std::pin::pin!(rt::changed(&mut signal));
                match rt::either(accepted, stopped).await {
                    Ok(taken) => taken,
                    Err(_) => break,
                }
            }
        };
        let (stream, peer) = match taken {
            Ok(taken) => taken,
            Err(error) if is_shortage(&error) => {
                queue.emptied();
                // The kernel says so whether or not a connection waits.
                if listener.has_waiting() && worker.free_descriptors() {
                    rt::turn().await;
                } else {
                    rt::sleep(TICK).await;
                }
                continue;
            }
            // One client's own failure.
            Err(_) => continue,
        };
        // It is taken first: only then it is known that there is a connection to make room for.
        while worker.is_full() && worker.stage() == Stage::Run {
            if worker.close_idle_clients() {
                rt::turn().await;
            } else {
                // It waits for others to end, not for the worker's time.
                queue.emptied();
                rt::sleep(TICK).await;
            }
        }
        if queue.refuses(|| stream.waited_ms(), worker.clock.coarse_ms()) {
            worker.turn_away(stream, Client::new(peer, local, front.is_tls()), front);
            done_this_turn += TO_REFUSE;
        } else {
            worker.begin(stream, peer, local, front, proxy_protocol);
            done_this_turn += TO_TAKE;
        }
        // A few a turn: an overloaded worker must first finish the requests that it has begun. Further
        // connections wait with the kernel, which refuses them when its queue is full. If all were taken
        // at once, every request would wait several times behind all others, and few would end before
        // their clients give up.
        if done_this_turn >= TURN {
            done_this_turn = 0;
            rt::turn().await;
        }
    }
    // Connections that the kernel has queued on this socket would be reset with it. No more than the queue
    // holds: where another process has the socket as well, connections come for ever, and it takes them.
    for _ in 0..BACKLOG {
        let Some(Ok((stream, peer))) = listener.accept_now() else { break };
        worker.begin(stream, peer, local, front, proxy_protocol);
    }
}
