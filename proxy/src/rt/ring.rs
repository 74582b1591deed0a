//! The engine on io_uring: one ring a worker, entered once a turn.
//!
//! A turn polls all tasks that are ready, then hands what they asked for to the kernel and waits
//! for something to happen. Bytes arrive without a system call of their own.

mod kernel;
mod reactor;
mod remote;
mod stream;
mod tasks;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;

use kernel::Kernel;
use reactor::Reactor;
pub(crate) use stream::{Listener, Stream, connect, sleep};
use tasks::Tasks;

thread_local! {
    static HERE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// What a worker runs on.
struct Engine {
    tasks: Tasks,
    reactor: Rc<Reactor>,
}

/// Whether the kernel gives this process a ring. Asked once, at the start: a ring keeps its memory.
pub(crate) fn try_out() -> io::Result<()> {
    Kernel::new().map(drop)
}

/// Whether this thread runs on a ring.
#[inline]
pub(crate) fn is_here() -> bool {
    HERE.with_borrow(Option::is_some)
}

/// Runs a future to its end, with the tasks it starts. A panic of the future itself comes
/// through; those of other tasks end them.
pub(crate) fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> io::Result<T> {
    let engine = Rc::new(Engine { tasks: Tasks::new()?, reactor: Rc::new(Reactor::new(Kernel::new()?)) });
    HERE.set(Some(engine.clone()));
    let _leave = Leave;
    let output = Rc::new(RefCell::new(None));
    let finished = output.clone();
    engine.tasks.spawn(async move {
        let value = future.await;
        *finished.borrow_mut() = Some(value);
    });
    engine.reactor.watch(engine.tasks.event());
    let result = loop {
        let mut panicked: Option<Box<dyn Any + Send>> = None;
        engine.tasks.run(|task, panic| {
            if task == MAIN {
                panicked = Some(panic);
            }
        });
        if let Some(panic) = panicked {
            std::panic::resume_unwind(panic);
        }
        if let Some(value) = output.borrow_mut().take() {
            break Ok(value);
        }
        if let Err(error) = engine.turn() {
            break Err(error);
        }
    };
    engine.tasks.clear();
    // The sockets of the tasks are closed by the kernel.
    engine.reactor.turn(false, |_| {}).and(result)
}

/// The thread is nobody's again, also after a panic.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

/// The future [`run`] was called with.
const MAIN: u32 = 0;

/// Starts a task on this thread.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    HERE.with_borrow(|here| {
        if let Some(engine) = here {
            engine.tasks.spawn(future);
        }
    });
}

/// Takes in what the kernel has to say now.
fn collect() -> io::Result<()> {
    HERE.with_borrow(|here| match here {
        Some(engine) => engine.enter(false),
        None => Ok(()),
    })
}

fn reactor() -> io::Result<Rc<Reactor>> {
    HERE.with_borrow(|here| here.as_ref().map(|engine| engine.reactor.clone()))
        .ok_or_else(|| io::ErrorKind::NotConnected.into())
}

impl Engine {
    fn turn(&self) -> io::Result<()> {
        self.reactor.sweep();
        self.enter(self.tasks.are_idle())
    }

    fn enter(&self, wait: bool) -> io::Result<()> {
        let mut raised = false;
        let mut watched = true;
        self.reactor.turn(wait, |more| {
            raised = true;
            watched = more;
        })?;
        if raised {
            self.tasks.collect_remote();
        }
        if !watched {
            self.reactor.watch(self.tasks.event());
        }
        Ok(())
    }
}
