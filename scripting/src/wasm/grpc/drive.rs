//! The callbacks of gRPC calls, and who drives a call: its request while it waits for the filter, else a task.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use sdk::{Exchange, World};

use super::open::Event;
use crate::wasm::filter::MOST_NEWS;
use crate::wasm::machine::{Failure, Machine};
use crate::wasm::tasks::Held;
use crate::wasm::vm::Vm;

/// News of a call: its plugin context, its number, and the event.
type News = (u32, u32, Event);

impl Vm {
    /// The next news of the calls of a request, which waits for its filter.
    pub(in crate::wasm) fn poll_rpcs(
        &mut self,
        world: &dyn World,
        context: u32,
        cx: &mut Context<'_>,
    ) -> Option<News> {
        for &(number, _) in &self.https.get(&context)?.rpcs {
            if let Some(open) = self.rpcs.get_mut(&number)
                && let Poll::Ready(event) = open.poll(world, cx)
            {
                return Some(self.news(number, event));
            }
        }
        None
    }

    /// Leaves the calls of a request, which does not wait any more, to their tasks.
    pub(in crate::wasm) fn hand_over(&mut self, context: u32) {
        for (number, _) in self.https.get(&context).into_iter().flat_map(|http| &http.rpcs) {
            if let Some(open) = self.rpcs.get_mut(number) {
                open.wake();
            }
        }
    }

    /// As [`Vm::poll_rpcs`], for the task of a call; no news if the call has ended.
    fn poll_rpc(&mut self, world: &dyn World, number: u32, cx: &mut Context<'_>) -> Poll<Option<News>> {
        let Some(open) = self.rpcs.get_mut(&number) else { return Poll::Ready(None) };
        open.waker = Some(cx.waker().clone());
        // The callback of a request that waits may change it.
        if self.https.get(&open.context).is_some_and(|http| http.waits) {
            return Poll::Pending;
        }
        open.poll(world, cx).map(|event| Some(self.news(number, event)))
    }

    fn news(&mut self, number: u32, event: Event) -> News {
        let plugin = self.rpcs.get(&number).map_or(0, |open| open.plugin);
        if self.rpcs.get(&number).is_some_and(|open| open.ends_with(&event)) {
            self.end_rpc(number);
        }
        (plugin, number, event)
    }
}

impl Machine {
    /// Passes news of a call on to its plugin context.
    pub(in crate::wasm) fn report_news(
        self: &Rc<Machine>,
        generation: u64,
        x: Option<&mut Exchange<'_>>,
        context: u32,
        (plugin, number, event): News,
    ) -> Result<(), Failure> {
        let callback = match event {
            Event::Head(_) => "proxy_on_grpc_receive_initial_metadata",
            Event::Message(_) => "proxy_on_grpc_receive",
            Event::Trailers(_) => "proxy_on_grpc_receive_trailing_metadata",
            Event::Close(..) => "proxy_on_grpc_close",
        };
        self.call(generation, x, context, callback, |store, callbacks| {
            let (function, argument) = match &event {
                Event::Head(list) => (&callbacks.grpc_initial_metadata, list.len() as u32),
                Event::Message(message) => (&callbacks.grpc_receive, message.len() as u32),
                Event::Trailers(list) => (&callbacks.grpc_trailing_metadata, list.len() as u32),
                Event::Close(code, _) => (&callbacks.grpc_close, *code),
            };
            let vm = store.data_mut();
            // SDKs choose the context of the request themselves.
            vm.effective = plugin;
            vm.event = Some(event);
            if let Some(function) = function {
                function.call(&mut *store, (plugin, number, argument))?;
            }
            store.data_mut().event = None;
            Ok(())
        })
    }
}

/// Drives a call while no request does, until it ends. A server that sends small messages leaves the worker to others.
pub(in crate::wasm) async fn drive(held: Held, number: u32) {
    let Held { machine, world, generation, .. } = held;
    let mut left = MOST_NEWS;
    loop {
        let news = poll_fn(|cx| match (machine.upgrade(), world.upgrade()) {
            _ if left == 0 => {
                left = MOST_NEWS;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            (Some(machine), Some(world)) => {
                let polled = machine.with(generation, |vm, _| vm.poll_rpc(&*world, number, cx));
                polled.unwrap_or(Poll::Ready(None))
            }
            _ => Poll::Ready(None),
        });
        let (Some(news), Some(machine)) = (news.await, machine.upgrade()) else { return };
        left -= 1;
        let plugin = news.0;
        // A failure has no effect but a new instance.
        if machine.report_news(generation, None, plugin, news).is_err() {
            return;
        }
    }
}
