//! The task of one connection to a server.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Link, State, Target};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::h2::{self, Budgets, EndReason, Limits, Mux, Read, Role, Transport};
use crate::up::connect::connect;
use crate::up::pool::Peer;
use crate::up::tls;
use crate::worker::Worker;

/// A connection's task's hold on it; with the task, however that ends, the connection is over.
pub(super) struct Driven {
    pub(super) worker: Rc<Worker>,
    pub(super) peer: Peer,
    pub(super) link: Rc<Link>,
}

impl Drop for Driven {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.shard.panicked();
        }
        self.link.closing.set(true);
        if !matches!(*self.link.state.borrow(), State::Over(_)) {
            self.link.set(State::Over(Fault::upstream(FaultKind::ClosedEarly)));
        }
        self.worker.links.remove(self.peer, &self.link);
    }
}

/// The task of one connection: connects, and serves until it is over.
pub(super) async fn drive(driven: Driven, target: Target) {
    let Driven { worker, link, .. } = &driven;
    let waiter = worker.clock.waiter();
    let io =
        match connect(worker, &waiter, target.place, target.secured.as_ref(), target.connect_timeout).await {
            // The streams are counted, not the connection.
            Ok((conn, _)) => conn.io,
            Err(fault) => return link.set(State::Over(fault)),
        };
    let mut transport = Transport::new(worker, io, None);
    let limits = Limits::of_client(&worker.settings, link.windows.stream());
    let budgets = Budgets { received: worker.upstream_windows.clone(), unsent: worker.send_windows.clone() };
    let mux = Mux::new(Role::Client, limits, budgets, worker.clock.clone());
    let mux = h2::SharedMux::new(RefCell::new(mux));
    let deadline = worker.clock.after(target.connect_timeout);
    match waiter.until(deadline, |cx| transport.poll_write(cx, &mux)).await {
        Ok(Ok(())) => link.set(State::Ready(mux.clone())),
        Ok(Err(_)) => return link.set(State::Over(Fault::upstream(FaultKind::ClosedEarly))),
        Err(_) => return link.set(State::Over(Fault::upstream(FaultKind::ConnectTimeout))),
    }
    poll_fn(|cx| poll(&driven, &mux, &mut transport, &waiter, &target, cx)).await;
    link.refused.set(tls::refusal(&transport.io));
    mux.borrow_mut().end(EndReason::Closed(None));
}

/// Ready when the connection is over.
fn poll(
    driven: &Driven,
    mux: &h2::SharedMux,
    transport: &mut Transport,
    waiter: &Waiter,
    target: &Target,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Driven { worker, link, .. } = driven;
    let clock = &worker.clock;
    {
        let mut driver = link.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
    }
    mux.borrow_mut().begin_turn();
    // A client that reads slowly must not keep the others from their answers.
    link.windows.fit(link.open.get());
    let window = link.windows.whole();
    if link.window.replace(window) != window {
        mux.borrow_mut().set_target(window);
    }
    // Servers send no requests.
    let read = transport.poll_read(cx, mux, |_| {});
    mux.borrow_mut().note_driver(cx);
    let written = transport.poll_write(cx, mux);
    let (over, is_going, is_settled) = {
        let mux = mux.borrow();
        (mux.over(), mux.goaway().is_some() || mux.is_used_up(), mux.is_settled())
    };
    if is_going {
        link.closing.set(true);
    }
    if is_settled && !link.settled.replace(true) {
        for waker in link.waiting.take() {
            waker.wake();
        }
    }
    if matches!(read, Poll::Ready(Ok(Read::End) | Err(_))) || matches!(written, Poll::Ready(Err(_))) {
        return Poll::Ready(());
    }
    // GOAWAY was written, or never will be.
    if over.is_some() && (written.is_ready() || transport.blocked_until(Duration::ZERO).is_some()) {
        return Poll::Ready(());
    }
    let idle = match (link.open.get(), target.keepalive.idle_timeout) {
        // No request waits on it.
        (0, _) if link.closing.get() => return Poll::Ready(()),
        // Zero is no limit, as in APISIX.
        (0, timeout) if timeout.as_millis() > 0 => {
            Some(clock.after(timeout) - (clock.coarse_ms() - link.idle_since.get()))
        }
        _ => None,
    };
    let blocked = transport.blocked_until(target.send_timeout);
    let silent =
        mux.borrow().probing().map(|since| clock.after(target.connect_timeout) - (clock.coarse_ms() - since));
    let release = mux.borrow_mut().release().filter(|until| !clock.is_over(*until));
    let next = [idle, blocked, silent, release].into_iter().flatten().min().unwrap_or(u64::MAX);
    if clock.is_over(next) {
        return Poll::Ready(());
    }
    link.looks_at.set(next);
    // It is not over, as was just looked at.
    let _ = waiter.poll_elapsed::<()>(next, cx);
    Poll::Pending
}
