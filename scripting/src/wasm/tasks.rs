//! Work of a module beside exchanges: timers, queues, and calls that no exchange waits for.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::{Rc, Weak as Owner};
use std::task::Poll;
use std::time::Duration;

use sdk::World;

use super::call::Call;
use super::grpc::drive::drive;
use super::life::{Life, during};
use super::machine::Machine;
use super::vm::Begun;

/// The shortest period of a timer in milliseconds.
const SHORTEST: u32 = 10;

/// A machine and its worker, held so that both can end, and the life of the context that has the work.
pub(super) struct Held {
    pub machine: Owner<Machine>,
    pub world: Owner<dyn World>,
    pub generation: u64,
    life: Owner<Life>,
}

/// Ends the beginning of work, even by a panic.
struct Began<'m>(&'m Cell<bool>);

impl Drop for Began<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Machine {
    /// Begins the work that code of this machine has asked for. Work that this work asks for follows it: contexts that
    /// release each other do not grow the stack.
    pub(super) fn begin(self: &Rc<Machine>) {
        if self.begins.replace(true) {
            return;
        }
        let _began = Began(&self.begins);
        loop {
            let Some(one) = self.begun.borrow_mut().pop_front() else { break };
            if let Begun::Delete(context) = one {
                self.end(context);
                continue;
            }
            let Some(world) = self.world() else { continue };
            let (is_call, rpc) = match one {
                Begun::Rpc { number, .. } => (false, Some(number)),
                _ => (matches!(one, Begun::Call { .. }), None),
            };
            let held = |life: Owner<Life>| Held {
                machine: Rc::downgrade(self),
                world: Rc::downgrade(&world),
                generation: self.generation(),
                life,
            };
            // Beyond the worker's limit of tasks there are no timers, and calls have no response.
            let running = match one {
                Begun::Delete(_) => Ok(()),
                Begun::Tick(context) => match self.timer(context) {
                    Some((period, life)) => world.run(Box::pin(tick(held(life), context, period))),
                    None => Ok(()),
                },
                Begun::Queue { context, queue } => {
                    world.run(Box::pin(watch(held(self.life(context)), context, queue)))
                }
                Begun::Call { plugin, id, call } => {
                    world.run(Box::pin(finish(held(self.life(plugin)), plugin, id, call)))
                }
                Begun::Rpc { plugin, number } => world.run(Box::pin(drive(held(self.life(plugin)), number))),
            };
            if running.is_err() {
                self.with(self.generation(), |vm, _| {
                    vm.calls = vm.calls.saturating_sub(usize::from(is_call));
                    // A request drives its calls while it waits for them.
                    let is_lost = |number: &u32| vm.rpcs.get(number).is_some_and(|open| open.context == 0);
                    rpc.filter(is_lost).and_then(|number| vm.end_rpc(number));
                });
            }
        }
    }

    /// The period of a timer that begins, and its life.
    fn timer(&self, context: u32) -> Option<(u32, Owner<Life>)> {
        let timer = self.with(self.generation(), |vm, _| {
            let plugin = vm.plugins.get_mut(&context)?;
            plugin.begins_timer = false;
            (plugin.tick > 0).then(|| (plugin.tick, Rc::downgrade(&plugin.timer)))
        });
        timer.flatten()
    }

    /// The life of a plugin's context, or one that has ended.
    fn life(&self, context: u32) -> Owner<Life> {
        let life = self.with(self.generation(), |vm, _| Some(Rc::downgrade(&vm.plugins.get(&context)?.life)));
        life.flatten().unwrap_or_default()
    }
}

/// Calls `proxy_on_tick` until the period changes or the context is gone.
async fn tick(held: Held, context: u32, period: u32) {
    let Held { machine, world, generation, life } = held;
    let period = Duration::from_millis(u64::from(period.max(SHORTEST)));
    loop {
        let Some(sleep) = world.upgrade().map(|world| world.sleep(period)) else { return };
        let has_slept = during(&life, sleep).await;
        let (Some(()), Some(machine)) = (has_slept, machine.upgrade()) else { return };
        if !machine.is_used(context) {
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
    let Held { machine, generation, life, .. } = held;
    let mut seen = 0;
    loop {
        let added = poll_fn(|cx| match machine.upgrade() {
            Some(machine) => machine.module.host.queues.poll_added(queue, seen, cx).map(Some),
            None => Poll::Ready(None),
        });
        let added = during(&life, added).await.flatten();
        let (Some(added), Some(machine)) = (added, machine.upgrade()) else { return };
        seen = added;
        if !machine.is_used(context) {
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

/// Waits for a call that no exchange waits for. It ends by itself, before or after its context.
async fn finish(held: Held, plugin: u32, id: u32, mut call: Call) {
    let Held { machine, world, generation, life } = held;
    let answer = poll_fn(|cx| match world.upgrade() {
        Some(world) => call.poll(&*world, cx).map(Some),
        None => Poll::Ready(None),
    });
    let (Some(answer), Some(machine)) = (answer.await, machine.upgrade()) else { return };
    if life.strong_count() == 0 {
        // Another context may have its number by now.
        machine.with(generation, |vm, _| vm.calls = vm.calls.saturating_sub(1));
        return;
    }
    // A failure has no effect but a new instance.
    let _ = machine.answer(generation, None, plugin, id, answer);
}
