//! The function `control_api` of plugins in files: endpoints on the control API.
//!
//! They run on the machine of the control side, which no traffic reaches: what they share with the workers is in
//! shared dictionaries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use mlua::{Function, Result};
use sdk::endpoint::{Called, ControlReply, ControlRequest};
use sdk::{Exchange, Reply};

use super::access::Place;
use super::flow::Flow;
use super::host::{Host, Level};
use super::machine::Machine;
use super::session::{self, Session};
use super::{control, machine, text};

/// The function of a plugin that lists its endpoints.
pub(super) const NAME: &str = "control_api";

/// Requests that wait for the machine or are on it: it also checks the scripts of a new configuration.
const MOST: usize = 8;

static TURNS: Turns = Turns(AtomicUsize::new(0));

struct Turns(AtomicUsize);

/// One of the [`MOST`] requests.
struct Turn<'a>(&'a Turns);

impl Turns {
    fn take(&self) -> Option<Turn<'_>> {
        let one_more = |taken| (taken < MOST).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls the handler at this place in the list of a plugin, by the function that `load` makes.
pub(super) fn answer(
    host: &Arc<Host>,
    plugin: &'static str,
    load: impl FnOnce(&Machine) -> Result<Function> + Send + 'static,
    at: usize,
    request: ControlRequest,
) -> ControlReply {
    let Some(_turn) = TURNS.take() else { return error(503) };
    let done = control::run(host, move |machine| {
        let served = load(machine)
            .and_then(|call| request.exchange(|x| served(x, call, at)).unwrap_or_else(|| Ok(error(400))));
        served.map_err(|error| text::message(&error))
    });
    let failed = match done {
        Ok(Ok(reply)) => return reply,
        Ok(Err(error)) => error,
        Err(invalid) => invalid.to_string(),
    };
    host.log.line(Level::Error, format!("lua script failed plugin={plugin} control_api error={failed:?}"));
    error(500)
}

fn error(status: u16) -> ControlReply {
    ControlReply { status, ..ControlReply::default() }
}

fn served(x: &mut Exchange<'_>, call: Function, at: usize) -> Result<ControlReply> {
    let machine = machine::current().ok_or_else(|| mlua::Error::runtime("no machine"))?;
    x.set_note(Called(at));
    let mut flow = Flow::new(&machine, Place::Control, call, None, None)?;
    match flow.poll(Some(x), &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done.map(drop)?,
        Poll::Pending => return Err(mlua::Error::runtime("a handler of the control API cannot wait")),
    }
    let reply = session::reply(x).unwrap_or_else(|| Reply::status(200));
    let set = x.note_mut::<Session>().map(|session| std::mem::take(&mut session.headers)).unwrap_or_default();
    let text = |name: Vec<u8>| String::from_utf8_lossy(&name).into_owned();
    let mut headers: Vec<(String, Vec<u8>)> =
        set.into_iter().map(|(name, value)| (text(name), value)).collect();
    if headers.iter().all(|(name, _)| name != "content-type") {
        headers.extend(reply.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    }
    Ok(ControlReply { status: reply.status, headers, body: Bytes::clone(&reply.body) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_are_few() {
        let turns = Turns(AtomicUsize::new(0));
        let mut taken: Vec<_> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(taken.len(), MOST);
        taken.pop();
        assert!(turns.take().is_some());
        drop(taken);
        assert_eq!(turns.0.load(Ordering::Relaxed), 0);
    }
}
