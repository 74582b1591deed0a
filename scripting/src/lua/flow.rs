//! Runs Lua code that may wait: a coroutine, and the light threads it starts.
//!
//! A function that waits begins a future and yields a mark. The flow polls the future and resumes the coroutine with
//! its results. Coroutines of the script itself pass the marks on (`environment.lua`).
//!
//! Coroutines are used again: one whose function has returned waits for the next function (`coroutines.rs`).

use std::rc::Rc;
use std::task::{Context, Poll};

use mlua::{Error, Function, IntoLuaMulti, LightUserData, MultiValue, Result, Table, Thread, Value};
use sdk::Exchange;

use super::access::{self, Place};
use super::machine::{Machine, Waiting};
use super::sockets::Sockets;

/// The marks that code yields.
pub(super) struct Marks;

static MARKS: [u8; 4] = [0; 4];

impl Marks {
    /// A wait has begun.
    pub(super) const WAIT: usize = 0;
    /// The exchange is answered, or the phase is over.
    pub(super) const EXIT: usize = 1;
    /// The request's body is needed.
    pub(super) const BODY: usize = 2;
    /// The function of a coroutine has returned, and the coroutine takes another.
    pub(super) const DONE: usize = 3;

    pub(super) fn value(mark: usize) -> Value {
        let address: *const u8 = &raw const MARKS[mark];
        Value::LightUserData(LightUserData(address.cast_mut().cast()))
    }

    fn of(value: &Value) -> Option<usize> {
        let Value::LightUserData(data) = value else { return None };
        (0..MARKS.len()).find(|mark| std::ptr::eq(data.0.cast::<u8>(), &raw const MARKS[*mark]))
    }
}

/// How code has ended, or why it stopped for now.
#[derive(Debug)]
pub(super) enum End {
    Returned,
    Exited,
    /// The request's body is to be buffered; the flow is polled again afterwards.
    NeedsBody,
}

/// Whether the code that runs may have sockets, and those that it has.
#[derive(Default)]
pub(super) enum Owner {
    #[default]
    None,
    Code(Option<Rc<Sockets>>),
}

impl Owner {
    /// The sockets of the code that runs, made at first use; `None` where it may have none.
    pub(super) fn sockets(&mut self) -> Option<Rc<Sockets>> {
        match self {
            Owner::None => None,
            Owner::Code(sockets) => Some(sockets.get_or_insert_default().clone()),
        }
    }
}

/// Code that has begun.
pub(super) struct Flow {
    pub machine: Rc<Machine>,
    place: Place,
    main: Task,
    /// Whether the main coroutine has ended; light threads may still run.
    returned: bool,
    light: Vec<Task>,
    /// Coroutines among those that the machine counts as waiting.
    counted: usize,
    /// The sockets that the code has made, if it has.
    pub sockets: Option<Rc<Sockets>>,
}

struct Task {
    thread: Thread,
    state: State,
}

enum State {
    /// To be called in a coroutine that takes functions.
    New(Function, Option<Table>),
    /// To be resumed with these values.
    Ready(MultiValue),
    Waiting(Waiting),
    Ended,
}

/// Light threads of one flow.
const MOST_LIGHT: usize = 100;

/// Coroutines of a machine that wait. Each takes one of about 8,000 references (`kept.rs`); timers, of which there may be
/// 1,024, and the code that runs have the others.
pub(super) const MOST_STOPPED: usize = 6000;

/// More coroutines of a machine wait than there may be.
#[derive(Debug)]
pub(super) struct TooMany;

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {MOST_STOPPED} functions and light threads of this worker wait")
    }
}

impl std::error::Error for TooMany {}

/// Rounds over the coroutines of a flow before other tasks of the worker run: coroutines that only yield never wait.
const ROUNDS: usize = 64;

/// The result of resuming one coroutine.
enum Turn {
    Pending,
    Ended,
    Exited,
    NeedsBody,
}

impl Flow {
    /// Calls a function with the context of an exchange, if it has one already.
    pub(super) fn new(
        machine: &Rc<Machine>,
        place: Place,
        function: Function,
        ctx: Option<Table>,
        sockets: Option<Rc<Sockets>>,
    ) -> Result<Flow> {
        let main = Task { thread: machine.coroutines.take(&machine.lua)?, state: State::New(function, ctx) };
        Ok(Flow {
            machine: machine.clone(),
            place,
            main,
            returned: false,
            light: Vec::new(),
            counted: 0,
            sockets,
        })
    }

    /// Calls a function with any arguments, without an exchange.
    pub(super) fn of_timer(
        machine: &Rc<Machine>,
        function: Function,
        args: impl IntoLuaMulti,
    ) -> Result<Flow> {
        let thread = machine.lua.create_thread(function)?;
        let main = Task { thread, state: State::Ready(args.into_lua_multi(&machine.lua)?) };
        let (place, light) = (Place::Timer, Vec::new());
        Ok(Flow { machine: machine.clone(), place, main, returned: false, light, counted: 0, sockets: None })
    }

    /// Runs all code that can run. It is one run: waits that are over at once do not lengthen its time.
    pub(super) fn poll(&mut self, x: Option<&mut Exchange<'_>>, cx: &mut Context<'_>) -> Poll<Result<End>> {
        let machine = self.machine.clone();
        machine.owner.replace(Owner::Code(self.sockets.take()));
        let advanced = machine.run(|| self.advance(&machine, x, cx));
        if let Owner::Code(sockets) = machine.owner.take() {
            self.sockets = sockets;
        }
        if matches!(advanced, Poll::Pending | Poll::Ready(Ok(End::NeedsBody))) && !self.count() {
            return Poll::Ready(Err(Error::external(TooMany)));
        }
        advanced
    }

    /// Counts the coroutines of this flow, which waits. Returns false if there are too many.
    fn count(&mut self) -> bool {
        let stopped = &self.machine.stopped;
        let own = 1 + self.light.len();
        stopped.set(stopped.get() - self.counted + own);
        self.counted = own;
        stopped.get() <= MOST_STOPPED
    }

    /// At most [`ROUNDS`] rounds.
    fn advance(
        &mut self,
        machine: &Machine,
        mut x: Option<&mut Exchange<'_>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<End>> {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for at in 0..=self.light.len() {
                let task = match at {
                    0 => &mut self.main,
                    at => &mut self.light[at - 1],
                };
                if let State::Waiting(waiting) = &mut task.state {
                    match waiting.as_mut().poll(cx) {
                        Poll::Pending => continue,
                        Poll::Ready(outcome) => task.state = State::Ready(machine.results(outcome)?),
                    }
                }
                let (State::New(..) | State::Ready(_)) = task.state else { continue };
                moved = true;
                let turn = task.turn(machine, self.place, x.as_deref_mut());
                match turn {
                    Ok(Turn::Pending) => {}
                    Ok(Turn::Exited) => return Poll::Ready(Ok(End::Exited)),
                    Ok(Turn::NeedsBody) => return Poll::Ready(Ok(End::NeedsBody)),
                    Ok(Turn::Ended) if at == 0 => self.returned = true,
                    // The results of a light thread are in Lua (`thread.lua`).
                    Ok(Turn::Ended) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            self.collect()?;
            if self.returned && self.light.is_empty() {
                return Poll::Ready(Ok(End::Returned));
            }
            if !moved {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes over the light threads that were started, and drops those that have ended.
    fn collect(&mut self) -> Result<()> {
        let started = self.machine.started.take();
        let killed = self.machine.killed.take();
        if started.is_empty() && self.light.is_empty() {
            return Ok(());
        }
        self.light.extend(
            started.into_iter().map(|(thread, waiting)| Task { thread, state: State::Waiting(waiting) }),
        );
        self.light.retain(|task| !matches!(task.state, State::Ended) && !killed.contains(&task.thread));
        if self.light.len() > MOST_LIGHT {
            return Err(Error::runtime(format!("more than {MOST_LIGHT} light threads")));
        }
        Ok(())
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.machine.stopped.set(self.machine.stopped.get() - self.counted);
        // Threads that were started in a turn that failed belong to no flow.
        self.machine.started.take();
        self.machine.waiting.take();
    }
}

impl Task {
    fn turn(&mut self, machine: &Machine, place: Place, x: Option<&mut Exchange<'_>>) -> Result<Turn> {
        let thread = &self.thread;
        let mark = match std::mem::replace(&mut self.state, State::Ended) {
            State::New(function, ctx) => {
                access::run(place, x, || thread.resume::<Value>((&function, ctx.as_ref())))?
            }
            State::Ready(args) => access::run(place, x, || thread.resume::<Value>(args))?,
            State::Waiting(_) | State::Ended => return Ok(Turn::Pending),
        };
        match Marks::of(&mark) {
            Some(Marks::DONE) => {
                machine.coroutines.give_back(thread);
                Ok(Turn::Ended)
            }
            Some(Marks::EXIT) => Ok(Turn::Exited),
            Some(Marks::BODY) => {
                self.state = State::Ready(MultiValue::new());
                Ok(Turn::NeedsBody)
            }
            Some(Marks::WAIT) => {
                let waiting = machine.waiting.take();
                let waiting = waiting.ok_or_else(|| Error::runtime("a wait that has not begun"))?;
                self.state = State::Waiting(waiting);
                Ok(Turn::Pending)
            }
            _ if !thread.is_resumable() => Ok(Turn::Ended),
            // `coroutine.yield` outside of a coroutine of the script lets others run.
            _ => {
                self.state = State::Waiting(pause());
                Ok(Turn::Pending)
            }
        }
    }
}

/// Is ready when it is polled for the second time.
pub(super) fn pause() -> Waiting {
    let mut yielded = false;
    Box::pin(std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(Ok(Vec::new()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }))
}
