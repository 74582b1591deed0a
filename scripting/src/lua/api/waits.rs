//! Waits: sleeping, timers, light threads and semaphores. Each begins a future; the code yields right afterwards.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::{Either, select};
use mlua::{Function, LuaString, Result, Thread, Value};

use super::super::access::{self, Place};
use super::super::flow::{Flow, pause};
use super::super::machine::{self, Out, Waiting};
use super::super::native::Natives;
use super::super::text;

/// Longer times are cut, in seconds.
const LONGEST: f64 = 86_400.0 * 365.0;

/// Timers of one machine.
const MOST_TIMERS: usize = 1024;

/// Begins a wait. The caller yields afterwards.
///
/// # Errors
/// Code may not wait where it runs.
pub(super) fn begin(waiting: Waiting) -> Result<()> {
    check()?;
    if let Some(machine) = machine::current() {
        *machine.waiting.borrow_mut() = Some(waiting);
    }
    Ok(())
}

/// Refuses code that may not wait where it runs.
fn check() -> Result<()> {
    let place = access::place();
    match place.may_wait() {
        true => Ok(()),
        false => {
            Err(mlua::Error::runtime(format!("API disabled in the context of {}", access::context(place))))
        }
    }
}

pub(super) fn seconds(time: f64) -> Result<Duration> {
    if time.is_nan() || time < 0.0 {
        return Err(mlua::Error::runtime(format!("invalid time: {time}")));
    }
    Ok(Duration::from_secs_f64(time.min(LONGEST)))
}

pub(super) fn add(natives: &Natives<'_>) -> Result<()> {
    natives.add("sleep", |_, time: f64| {
        let time = seconds(time)?;
        let sleep = access::world(|world| world.sleep(time))?;
        begin(Box::pin(async {
            sleep.await;
            Ok(Vec::new())
        }))
    })?;
    natives.add("timer", timer)?;
    natives.add("check_wait", |_, ()| check())?;
    natives.add("adopt", |_, thread: Thread| {
        let Some(machine) = machine::current() else { return Ok(()) };
        // A thread that yields without a wait is resumed soon.
        let waiting = machine.waiting.take().unwrap_or_else(pause);
        machine.started.borrow_mut().push((thread, waiting));
        Ok(())
    })?;
    natives.add("kill", |_, thread: Thread| {
        if let Some(machine) = machine::current() {
            machine.started.borrow_mut().retain(|(started, _)| *started != thread);
            machine.killed.borrow_mut().push(thread);
        }
        Ok(())
    })?;
    signals(natives)
}

/// Runs a function after a time, without an exchange.
fn timer(_: &mlua::Lua, (delay, every, function): (f64, bool, Function)) -> Result<(bool, Option<String>)> {
    thread_local! {
        static TIMERS: Cell<usize> = const { Cell::new(0) };
    }
    struct Timer;
    impl Drop for Timer {
        fn drop(&mut self) {
            TIMERS.set(TIMERS.get() - 1);
        }
    }
    let (time, machine) = (seconds(delay)?, machine::current());
    let Some(machine) = machine else { return Ok((false, Some("no machine".to_owned()))) };
    // Plugins start timers in `init`, which also runs where they are checked, without a worker: there they never fire.
    if access::place() == Place::Init && access::world(|_| ()).is_err() {
        return Ok((true, None));
    }
    if every && time.is_zero() {
        return Err(mlua::Error::runtime("delay must be greater than 0"));
    }
    if TIMERS.get() >= MOST_TIMERS {
        return Ok((false, Some("too many pending timers".to_owned())));
    }
    // Without a worker that can be kept, the first sleep is begun here and there is no other.
    let first = access::world(|world| world.sleep(time))?;
    TIMERS.set(TIMERS.get() + 1);
    let counted = Timer;
    let task = async move {
        let _counted = counted;
        let mut sleep = first;
        loop {
            sleep.await;
            // The first argument says whether the worker ends.
            let flow = Flow::of_timer(&machine, function.clone(), false);
            let ended = match flow {
                Ok(mut flow) => poll_fn(|cx| flow.poll(None, cx)).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                let line = format!("lua timer failed error={:?}", text::message(&error));
                machine.host.log.line(super::super::host::Level::Error, line);
            }
            let next = machine::worker().filter(|_| every);
            let Some(worker) = next else { return };
            sleep = worker.sleep(time);
        }
    };
    Ok(match access::world(|world| world.run(Box::pin(task)))? {
        Ok(()) => (true, None),
        Err(error) => (false, Some(error.to_string())),
    })
}

/// A counter for which code waits.
#[derive(Default)]
struct Signal {
    count: Cell<i64>,
    waiting: RefCell<VecDeque<Waker>>,
}

impl Signal {
    fn post(&self, count: i64) {
        self.count.set(self.count.get().saturating_add(count));
        // All look again: one that has given up must not keep the signal from the others.
        for waker in self.waiting.take() {
            waker.wake();
        }
    }
}

impl mlua::UserData for Handle {}

/// A signal in the hands of Lua.
#[derive(Clone)]
struct Handle(Rc<Signal>);

impl mlua::FromLua for Handle {
    fn from_lua(value: Value, _: &mlua::Lua) -> Result<Handle> {
        match value {
            Value::UserData(data) => Ok(data.borrow::<Handle>()?.clone()),
            other => Err(mlua::Error::runtime(format!("semaphore expected, got {}", other.type_name()))),
        }
    }
}

fn signals(natives: &Natives<'_>) -> Result<()> {
    natives.add("signal", |lua, count: i64| {
        let signal = Signal::default();
        signal.count.set(count);
        lua.create_userdata(Handle(Rc::new(signal)))
    })?;
    natives.add("post", |_, (Handle(signal), count): (Handle, i64)| {
        signal.post(count);
        Ok(())
    })?;
    natives.add("count", |_, Handle(signal): Handle| Ok(signal.count.get()))?;
    // Takes one without waiting.
    natives.add("take", |_, Handle(signal): Handle| {
        let has = signal.count.get() > 0;
        signal.count.set(signal.count.get() - i64::from(has));
        Ok(has)
    })?;
    // Waits for one; the result is whether there was one in time.
    natives.add("await", |_, (Handle(signal), time): (Handle, Option<f64>)| {
        let limit = match time {
            Some(time) => {
                let time = seconds(time)?;
                Some(access::world(|world| world.sleep(time))?)
            }
            None => None,
        };
        let taken = poll_fn(move |cx| {
            if signal.count.get() > 0 {
                signal.count.set(signal.count.get() - 1);
                return Poll::Ready(());
            }
            let mut waiting = signal.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push_back(cx.waker().clone());
            }
            Poll::Pending
        });
        begin(Box::pin(async move {
            let Some(limit) = limit else {
                taken.await;
                return Ok(vec![Out::Bool(true)]);
            };
            match select(std::pin::pin!(taken), limit).await {
                Either::Left(_) => Ok(vec![Out::Bool(true)]),
                Either::Right(_) => Ok(vec![Out::Bool(false)]),
            }
        }))
    })?;
    natives.add("worker_id", |_, ()| Ok(machine::current().map_or(0, |machine| machine.number)))?;
    natives.add("process_id", |_, ()| Ok(std::process::id()))?;
    natives.add("resolve", |_, (host, time): (LuaString, f64)| {
        let host = host.to_string_lossy();
        let time = seconds(time)?;
        let found = access::world(|world| world.resolve(&host, time))?;
        begin(Box::pin(async {
            Ok(match found.await {
                Ok(addresses) => match addresses.first() {
                    Some(address) => vec![Out::Text(address.to_string().into_bytes())],
                    None => vec![Out::Nil, Out::Text(b"no address".to_vec())],
                },
                Err(error) => vec![Out::Nil, Out::Text(error.to_string().into_bytes())],
            })
        }))
    })
}
