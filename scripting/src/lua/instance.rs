//! A plugin instance whose functions are Lua.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sdk::chain::LocalFuture;
use sdk::endpoint::Called;
use sdk::exchange::Chunk;
use sdk::{Exchange, Instance, Phase, Phases, Reply, Step};

use super::access::{self, Place};
use super::api::body_limit;
use super::flow::{End, Flow, TooMany};
use super::functions::{Functions, Loaded};
use super::host::{Host, Level};
use super::libs;
use super::machine::{self, Machine};
use super::session::{self, Kind, Piece, Session};
use super::text;

/// Loads the code of an instance into a machine.
pub(super) type Load = Box<dyn Fn(&Machine) -> mlua::Result<Loaded> + Send + Sync>;

pub(super) struct Script {
    name: &'static str,
    host: Arc<Host>,
    phases: Phases,
    /// Differs between all instances.
    number: u64,
    /// Machines drop the code of an instance that is gone.
    alive: Arc<()>,
    load: Load,
}

impl Script {
    pub(super) fn new(name: &'static str, host: Arc<Host>, phases: Phases, load: Load) -> Script {
        // A filter may change the length of a body, so its head must not have one.
        let phases = if phases.has(Phase::BodyFilter) { phases | Phases::HEADER_FILTER } else { phases };
        let number = machine::number();
        Script { name, host, phases, number, alive: Arc::new(()), load }
    }

    /// The machine with this instance's code.
    fn begin(&self, x: &Exchange<'_>) -> mlua::Result<(Rc<Machine>, Functions)> {
        let machine = machine::of_thread(&self.host)?;
        machine.serve(x);
        machine.make_room();
        let functions = machine.loaded(self.number, &self.alive, &self.load)?;
        Ok((machine, functions))
    }

    /// Begins or continues the functions of a phase before the upstream.
    fn go(&self, phase: Phase, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<Step> {
        match self.polled(phase, x, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(End::NeedsBody)) => Poll::Ready(Step::Body(body_limit())),
            // As in APISIX, plugins after one that has written run as well, and may write more.
            Poll::Ready(Ok(End::Returned)) if x.note::<Called>().is_none() && session::has_written(x) => {
                x.reply_at_end(self.name, session::reply);
                Poll::Ready(Step::Next)
            }
            Poll::Ready(Ok(End::Exited | End::Returned)) => {
                let is_endpoint = x.note::<Called>().is_some();
                let silent = if is_endpoint { Step::Reply(Reply::status(200)) } else { Step::Next };
                Poll::Ready(session::reply(x).map_or(silent, Step::Reply))
            }
            Poll::Ready(Err(error)) => Poll::Ready(self.failed(&error, x)),
        }
    }

    fn polled(&self, phase: Phase, x: &mut Exchange<'_>, cx: &mut Context<'_>) -> Poll<mlua::Result<End>> {
        let waiting = x.note_mut::<Session>().and_then(|session| session.flow.take());
        let mut flow = match waiting {
            Some(flow) => flow,
            None => {
                let (machine, functions) = self.begin(x)?;
                let Some(call) = functions.get(&machine.kept, phase)? else {
                    return Poll::Ready(Ok(End::Returned));
                };
                let ctx = session::table_of(x, &machine, Kind::Ctx)?;
                let sockets = x.note::<Session>().and_then(|session| session.sockets.clone());
                Flow::new(&machine, Place::of(phase), call, ctx, sockets)?
            }
        };
        flow.machine.plugin.set(Some(self.name));
        let polled = flow.poll(Some(x), cx);
        flow.machine.plugin.set(None);
        if flow.sockets.is_some() {
            Session::of(x).sockets.clone_from(&flow.sockets);
        }
        if matches!(polled, Poll::Pending | Poll::Ready(Ok(End::NeedsBody))) {
            Session::of(x).flow = Some(flow);
        }
        polled
    }

    /// Calls the functions of a phase that cannot wait.
    fn call(&self, phase: Phase, x: &mut Exchange<'_>) -> mlua::Result<()> {
        let (machine, functions) = self.begin(x)?;
        let Some(call) = functions.get(&machine.kept, phase)? else { return Ok(()) };
        let ctx = session::table_of(x, &machine, Kind::Ctx)?;
        machine.plugin.set(Some(self.name));
        let called = access::run(Place::of(phase), Some(x), || machine.run(|| call.call::<()>(ctx)));
        machine.plugin.set(None);
        called
    }

    /// Logs an error; the exchange is answered with 500, or 503 for want of room.
    #[cold]
    fn failed(&self, error: &mlua::Error, x: &mut Exchange<'_>) -> Step {
        let route = x.route().map_or("", |route| &*route.id);
        let reply = match error.downcast_ref::<TooMany>() {
            Some(_) => Reply::status(503).because("too many scripts wait"),
            None => Reply::status(500).because("a script failed"),
        };
        let mut error = text::message(error);
        let near = machine::current().and_then(|machine| libs::similar(&machine.lua, &error));
        if let Some(near) = near {
            error.push_str(&format!("; similar names: {near}"));
        }
        self.host.log.line(
            Level::Error,
            format!("lua script failed plugin={} route={route} error={error:?}", self.name),
        );
        if let Some(session) = x.note_mut::<Session>() {
            (session.wrote, session.exit) = (false, None);
            session.output.clear();
        }
        Step::Reply(Reply { is_final: true, ..reply })
    }
}

impl Instance for Script {
    fn phases(&self) -> Phases {
        self.phases
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match self.go(phase, x, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(step) => step,
            Poll::Pending => Step::Wait,
        }
    }

    fn wait<'a>(&'a self, phase: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(poll_fn(move |cx| self.go(phase, x, cx)))
    }

    /// Calls the handler of an endpoint; the wait of public-api is one of its access phase.
    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        match self.go(Phase::Access, x, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Step::Next) => Step::Reply(Reply::status(200)),
            Poll::Ready(step) => step,
            Poll::Pending => Step::Wait,
        }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        if self.phases.has(Phase::BodyFilter) {
            x.remove_response_header("Content-Length");
        }
        match self.call(Phase::HeaderFilter, x) {
            Ok(()) => Step::Next,
            Err(error) => self.failed(&error, x),
        }
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        if let Err(error) = self.begin(x) {
            return self.failed(&error, x);
        }
        Session::of(x).piece = Some(Piece { data: std::mem::take(&mut chunk.data), last: chunk.last });
        let called = self.call(Phase::BodyFilter, x);
        if let Some(piece) = x.note_mut::<Session>().and_then(|session| session.piece.take()) {
            chunk.data = piece.data;
        }
        match called {
            Ok(()) => Step::Next,
            Err(error) => self.failed(&error, x),
        }
    }

    fn log(&self, x: &mut Exchange<'_>) {
        if let Err(error) = self.call(Phase::Log, x) {
            self.failed(&error, x);
        }
    }
}
