//! Where Lua code runs now, and the exchange for which it runs.

use std::cell::Cell;

use scoped_tls_hkt::scoped_thread_local;
use sdk::{Exchange, World};

use crate::lent;
pub(super) use crate::lent::with;

/// An exchange of any lifetime that is only read.
trait Seen {
    fn show(&self, to: &mut dyn FnMut(&Exchange<'_>));
}

impl Seen for Exchange<'_> {
    fn show(&self, to: &mut dyn FnMut(&Exchange<'_>)) {
        to(self);
    }
}

scoped_thread_local!(static SEEN: for<'a> &'a (dyn Seen + 'a));

/// Where code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// While a script is loaded or checked.
    Init,
    Rewrite,
    Access,
    BeforeProxy,
    HeaderFilter,
    BodyFilter,
    Log,
    Preread,
    Timer,
    /// With a response that the gateway makes, before its head.
    Answer,
    /// While the route of a request is searched for.
    Match,
    /// With a request to the control API.
    Control,
}

impl Place {
    /// The name that `ngx.get_phase` returns.
    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Init => "init",
            Place::Rewrite | Place::Access | Place::BeforeProxy | Place::Answer => "access",
            Place::HeaderFilter => "header_filter",
            Place::BodyFilter => "body_filter",
            Place::Log => "log",
            Place::Preread => "preread",
            Place::Timer => "timer",
            Place::Match => "filter_func",
            Place::Control => "content",
        }
    }

    /// Whether code may wait here.
    pub(super) fn may_wait(self) -> bool {
        matches!(self, Place::Rewrite | Place::Access | Place::BeforeProxy | Place::Preread | Place::Timer)
    }

    /// Whether the request is not forwarded yet.
    pub(super) fn is_before_upstream(self) -> bool {
        matches!(self, Place::Rewrite | Place::Access | Place::BeforeProxy | Place::Preread | Place::Control)
    }

    pub(super) fn of(phase: sdk::Phase) -> Place {
        match phase {
            sdk::Phase::Rewrite => Place::Rewrite,
            sdk::Phase::Access => Place::Access,
            sdk::Phase::BeforeProxy => Place::BeforeProxy,
            sdk::Phase::HeaderFilter => Place::HeaderFilter,
            sdk::Phase::BodyFilter | sdk::Phase::StreamData => Place::BodyFilter,
            sdk::Phase::Log => Place::Log,
            sdk::Phase::Preread => Place::Preread,
        }
    }
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Init) };
}

/// Where the running code is.
pub(super) fn place() -> Place {
    PLACE.get()
}

/// Runs code at a place, with an exchange or without one.
pub(super) fn run<T>(place: Place, x: Option<&mut Exchange<'_>>, code: impl FnOnce() -> T) -> T {
    struct Back(Place);
    impl Drop for Back {
        fn drop(&mut self) {
            PLACE.set(self.0);
        }
    }
    let _back = Back(PLACE.replace(place));
    match x {
        Some(x) => lent::lend(x, code),
        None => code(),
    }
}

/// Runs code that may read an exchange, and nothing else of it.
pub(super) fn matching<T>(x: &Exchange<'_>, code: impl FnOnce() -> T) -> T {
    run(Place::Match, None, || SEEN.set(x, code))
}

/// Reads the exchange of [`matching`]; `None` elsewhere.
pub(super) fn seen<T>(f: impl FnOnce(&Exchange<'_>) -> T) -> Option<T> {
    if !SEEN.is_set() {
        return None;
    }
    let (mut f, mut result) = (Some(f), None);
    SEEN.with(|x| x.show(&mut |x| result = f.take().map(|f| f(x))));
    result
}

/// As [`with`]; an error where there is no exchange.
pub(super) fn exchange<T>(f: impl FnOnce(&mut Exchange<'_>) -> T) -> mlua::Result<T> {
    with(f)
        .ok_or_else(|| mlua::Error::runtime(format!("API disabled in the context of {}", context(place()))))
}

/// The words of OpenResty for a place.
pub(super) fn context(place: Place) -> &'static str {
    match place {
        Place::Init => "init_by_lua*",
        Place::Rewrite | Place::Access | Place::BeforeProxy | Place::Answer => "access_by_lua*",
        Place::HeaderFilter => "header_filter_by_lua*",
        Place::BodyFilter => "body_filter_by_lua*",
        Place::Log => "log_by_lua*",
        Place::Preread => "preread_by_lua*",
        Place::Timer => "ngx.timer",
        Place::Match => "filter_func",
        Place::Control => "content_by_lua*",
    }
}

/// Borrows the worker of the exchange, or else that of the machine.
pub(super) fn world<T>(f: impl FnOnce(&dyn World) -> T) -> mlua::Result<T> {
    if place() == Place::Match {
        return Err(mlua::Error::runtime(format!("API disabled in the context of {}", context(place()))));
    }
    let mut f = Some(f);
    if let Some(Some(done)) = with(|x| f.take().map(|f| f(x.world()))) {
        return Ok(done);
    }
    let worker = super::machine::worker();
    match (worker, f) {
        (Some(worker), Some(f)) => Ok(f(&*worker)),
        _ => Err(mlua::Error::runtime("API disabled in the context of init_by_lua*")),
    }
}
