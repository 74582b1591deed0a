//! `filter_func` of routes: a function that decides whether a request is the route's.
//!
//! It runs while a worker searches for the route, before there is one. It reads variables of the request, and all else
//! of the exchange is out of its reach.

use std::cell::Cell;
use std::sync::Arc;

use mlua::{Function, Value};
use model::Invalid;
use sdk::condition::Condition;
use sdk::verdict::ReadError;
use sdk::{Exchange, Phase, Verdict};

use super::code::Code;
use super::functions::Loaded;
use super::host::{Host, Level};
use super::machine::{self, Machine};
use super::{access, control, text};

struct Filter {
    host: Arc<Host>,
    route: Box<str>,
    number: u64,
    /// Machines drop the code of a condition that is gone.
    alive: Arc<()>,
    code: Code,
    needs_body: bool,
}

/// Parts of the names of variables that are in the request's body.
const IN_BODY: [&str; 3] = ["post_arg", "graphql_", "request_body"];

/// Compiles the `filter_func` of a route.
///
/// # Errors
/// The code does not load, or is no function.
pub(super) fn condition(host: &Arc<Host>, route: &str, source: &str) -> Result<Arc<dyn Condition>, Invalid> {
    let text = format!("return {source}");
    let code = control::run(host, move |machine| {
        let failed = |error: mlua::Error| {
            Invalid::new(format!("failed to load 'filter_func' string: {}", text::message(&error)))
        };
        let code = Code::compile(&machine.lua, "=filter_func", &text).map_err(failed)?;
        let globals = machine.environment(None).map_err(failed)?;
        let made =
            code.load(&machine.lua, &globals).and_then(|chunk| machine.run(|| chunk.call::<Value>(())));
        match made.map_err(failed)? {
            Value::Function(_) => Ok(code),
            _ => Err(Invalid::new("'filter_func' should be a function")),
        }
    })??;
    let needs_body = IN_BODY.iter().any(|name| source.contains(name));
    let (route, number) = (route.into(), machine::number());
    Ok(Arc::new(Filter { host: host.clone(), route, number, alive: Arc::new(()), code, needs_body }))
}

/// A variable that could not be read in the judgement that runs.
#[derive(Clone, Copy)]
enum Doubt {
    None,
    /// Unreadable variables count as absent.
    Ignored,
    Some(ReadError),
}

thread_local! {
    static DOUBT: Cell<Doubt> = const { Cell::new(Doubt::None) };
}

/// Notes a variable that cannot be read. Returns false if it counts as absent.
pub(super) fn doubt(unread: ReadError) -> bool {
    match DOUBT.get() {
        Doubt::Ignored => false,
        Doubt::Some(_) => true,
        Doubt::None => {
            DOUBT.set(Doubt::Some(unread));
            true
        }
    }
}

impl Filter {
    fn load(&self, machine: &Machine) -> mlua::Result<Loaded> {
        let globals = machine.environment(None)?;
        let chunk = self.code.load(&machine.lua, &globals)?;
        let function: Function = machine.run(|| chunk.call(()))?;
        let source = machine.lua.load(include_str!("condition.lua")).set_name("=condition");
        Ok(Loaded::One(source.call((&machine.natives, function))?))
    }

    fn holds(&self, x: &Exchange<'_>) -> mlua::Result<bool> {
        let machine = machine::of_thread(&self.host)?;
        machine.make_room();
        let functions = machine.loaded(self.number, &self.alive, |machine| self.load(machine))?;
        let Some(call) = functions.get(&machine.kept, Phase::Rewrite)? else { return Ok(false) };
        access::matching(x, || machine.run(|| call.call(())))
    }
}

impl Condition for Filter {
    fn judge(&self, x: &Exchange<'_>, lenient: bool) -> Verdict {
        DOUBT.set(if lenient { Doubt::Ignored } else { Doubt::None });
        let held = self.holds(x);
        if let Doubt::Some(unread) = DOUBT.replace(Doubt::None) {
            return unread.into();
        }
        match held {
            Ok(true) => Verdict::Holds,
            Ok(false) => Verdict::Fails,
            Err(error) => {
                let (route, error) = (&self.route, text::message(&error));
                self.host.log.line(Level::Error, format!("filter_func failed route={route} error={error:?}"));
                Verdict::Fails
            }
        }
    }

    fn needs_body(&self) -> bool {
        self.needs_body
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter").field("route", &self.route).finish_non_exhaustive()
    }
}
