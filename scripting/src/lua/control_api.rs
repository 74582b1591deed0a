//! The function `control_api` of plugins in files: endpoints on the control API.
//!
//! They run on the machine of the control side, which no traffic reaches: what they share with the workers is in
//! shared dictionaries.

use std::sync::Arc;
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

/// Calls the handler at this place in the list of a plugin, by the function that `load` makes.
pub(super) fn answer(
    host: &Arc<Host>,
    plugin: &'static str,
    load: impl FnOnce(&Machine) -> Result<Function> + Send + 'static,
    at: usize,
    request: ControlRequest,
) -> ControlReply {
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
    Session::ensure(&machine, x)?;
    let session = x.note::<Session>();
    let ctx = session.map(|session| session.ctx.clone());
    let sockets = session.map(|session| session.sockets.clone()).unwrap_or_default();
    let mut flow = Flow::new(&machine, Place::Control, call, (NAME, ctx), sockets)?;
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
