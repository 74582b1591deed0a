//! Work of a module beside exchanges: timers, queues, and calls that no exchange waits for.

use std::future::poll_fn;
use std::rc::{Rc, Weak as Owner};
use std::task::Poll;
use std::time::Duration;

use sdk::World;

use super::call::Call;
use super::machine::Machine;
use super::vm::Begun;

/// The shortest period of a timer in milliseconds.
const SHORTEST: u32 = 10;

/// A machine and its worker, held so that both can end.
struct Held {
    machine: Owner<Machine>,
    world: Owner<dyn World>,
    generation: u64,
}

impl Machine {
    /// Begins the work that code of this machine has asked for.
    pub(super) fn begin(self: &Rc<Machine>, begun: Vec<Begun>) {
        for one in begun {
            let (world, is_call) = (self.world(), matches!(one, Begun::Call { .. }));
            let Some(world) = world else { continue };
            let held = Held {
                machine: Rc::downgrade(self),
                world: Rc::downgrade(&world),
                generation: self.generation(),
            };
            // Beyond the worker's limit of tasks there are no timers, and calls have no response.
            let running = match one {
                Begun::Delete(context) => {
                    self.delete(context);
                    Ok(())
                }
                Begun::Tick(context) => world.run(Box::pin(tick(held, context))),
                Begun::Queue { context, queue } => world.run(Box::pin(watch(held, context, queue))),
                Begun::Call { context, id, call } => world.run(Box::pin(finish(held, context, id, call))),
            };
            if running.is_err() && is_call {
                self.with(self.generation(), |vm, _| vm.calls -= 1);
            }
        }
    }
}

/// The period of a context's timer, and its number.
fn timer(machine: &Machine, generation: u64, context: u32) -> Option<(u32, u64)> {
    let found = machine.with(generation, |vm, _| vm.plugins.get(&context).map(|it| (it.tick, it.ticks)));
    found.flatten().filter(|(period, _)| *period > 0)
}

/// Calls `proxy_on_tick` until the period changes or the context is gone.
async fn tick(held: Held, context: u32) {
    let Held { machine, world, generation } = held;
    let begun = machine.upgrade().and_then(|machine| timer(&machine, generation, context));
    let Some(begun) = begun else { return };
    let period = Duration::from_millis(u64::from(begun.0.max(SHORTEST)));
    loop {
        let Some(sleep) = world.upgrade().map(|world| world.sleep(period)) else { return };
        sleep.await;
        let Some(machine) = machine.upgrade() else { return };
        if timer(&machine, generation, context) != Some(begun) || !machine.is_used(context) {
            return;
        }
        let called = machine.call(generation, None, context, "proxy_on_tick", |store, callbacks| {
            callbacks.tick.as_ref().map_or(Ok(()), |tick| tick.call(store, context))
        });
        if called.is_err() {
            return;
        }
    }
}

/// Calls `proxy_on_queue_ready` whenever items were added, until the context is gone.
async fn watch(held: Held, context: u32, queue: u32) {
    let Held { machine, generation, .. } = held;
    let mut seen = 0;
    loop {
        seen = poll_fn(|cx| match machine.upgrade() {
            Some(machine) => machine.module.host.queues.poll_added(queue, seen, cx).map(Some),
            None => Poll::Ready(None),
        })
        .await
        .unwrap_or(u64::MAX);
        let Some(machine) = machine.upgrade() else { return };
        let is_there = machine.with(generation, |vm, _| vm.plugins.contains_key(&context));
        if is_there != Some(true) || !machine.is_used(context) {
            return;
        }
        let called = machine.call(generation, None, context, "proxy_on_queue_ready", |store, callbacks| {
            callbacks.queue_ready.as_ref().map_or(Ok(()), |ready| ready.call(store, (context, queue)))
        });
        if called.is_err() {
            return;
        }
    }
}

/// Waits for a call that no exchange waits for.
async fn finish(held: Held, context: u32, id: u32, mut call: Call) {
    let Held { machine, world, generation } = held;
    let answer = poll_fn(|cx| match world.upgrade() {
        Some(world) => call.poll(&*world, cx).map(Some),
        None => Poll::Ready(None),
    });
    if let (Some(answer), Some(machine)) = (answer.await, machine.upgrade()) {
        // A failure has no effect but a new instance.
        let _ = machine.answer(generation, None, context, id, answer);
    }
}
