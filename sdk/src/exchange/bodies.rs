//! hot path
//!
//! The request's body, and the trailers of both sides.

use std::rc::Rc;

use wire::{BadField, Fields, Framing};

use super::{Body, Exchange};
use crate::Step;
use crate::upload::RequestFilter;

/// Why [`Exchange::set_body`] did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSet {
    /// The client's own body has not been read into memory.
    Unread,
    /// The worker holds as many bytes of bodies as it may: the request is to be answered with 503.
    Spent,
}

impl Exchange<'_> {
    /// How far the request's body has been read into memory.
    #[inline]
    pub fn body_state(&self) -> Body {
        self.engine.body_state
    }

    /// The most bytes of the body that anybody asked for so far.
    #[inline]
    pub fn body_asked(&self) -> usize {
        self.engine.body_asked
    }

    /// The request's body; empty unless [`Body::Whole`].
    pub fn body(&self) -> &[u8] {
        if self.engine.body_state == Body::Whole { &self.engine.messages.body } else { &[] }
    }

    /// Puts another body in the place of the request's. The upstream gets it with its own length,
    /// as do plugins that look at the body later, and it counts against [`World::budget`]. A request
    /// without a body gets one, too.
    ///
    /// # Errors
    /// [`NotSet::Unread`] where the client's own body is not in memory: ask for it first
    /// ([`crate::Step::Body`]). [`NotSet::Spent`] where the worker holds as much as it may. The body
    /// stays as it was.
    pub fn set_body(&mut self, body: Vec<u8>) -> Result<(), NotSet> {
        if matches!(self.engine.body_state, Body::Streaming | Body::TooLarge) {
            return Err(NotSet::Unread);
        }
        let messages = &mut *self.engine.messages;
        messages.body_held.resize(self.engine.world.budget(), body.capacity()).map_err(|_| NotSet::Spent)?;
        // The length goes out anew, so what is left of the old one is there for plugins alone.
        let length = body.len() as u64;
        let fields = &mut messages.request.fields;
        fields.remove_id(wire::Name::TransferEncoding);
        let mut digits = Vec::with_capacity(20);
        wire::h1::encode::decimal(length, &mut digits);
        // Digits can always stand in a head.
        let _ = fields.set_id(wire::Name::ContentLength, &digits);
        messages.request.framing = Framing::Length(length);
        messages.request_trailers.clear(1 << 10);
        messages.body = Rc::new(body);
        self.engine.body_state = Body::Whole;
        Ok(())
    }

    /// The request's trailers: those that came behind a body that is held, and those that were set.
    pub fn request_trailers(&self) -> &Fields {
        &self.engine.messages.request_trailers
    }

    /// Sets a trailer of the request. It goes to the upstream behind the body, if there is one, beside
    /// the trailers that come; of a name that comes as well, this one goes.
    ///
    /// # Errors
    /// A name or value that cannot stand in a field, or a field that has no place behind a body.
    pub fn set_request_trailer(&mut self, name: &str, value: &[u8]) -> Result<(), BadField> {
        set_trailer(&mut self.engine.messages.request_trailers, name, value)
    }

    /// Removes a trailer of a request whose body is held.
    pub fn remove_request_trailer(&mut self, name: &str) {
        self.engine.messages.request_trailers.remove(name.as_bytes());
    }

    /// The response's trailers: those that were set, and, when the last piece of the body is filtered,
    /// those that came.
    pub fn response_trailers(&self) -> &Fields {
        &self.engine.messages.response_trailers
    }

    /// Sets a trailer of the response. Set before the body begins, or while it is filtered, it reaches
    /// clients whose protocol has trailers.
    ///
    /// # Errors
    /// A name or value that cannot stand in a field, or a field that has no place behind a body.
    pub fn set_response_trailer(&mut self, name: &str, value: &[u8]) -> Result<(), BadField> {
        set_trailer(&mut self.engine.messages.response_trailers, name, value)
    }

    /// Removes a trailer of the response, when the last piece of its body is filtered.
    pub fn remove_response_trailer(&mut self, name: &str) {
        self.engine.messages.response_trailers.remove(name.as_bytes());
    }

    /// Lets the beginning of a body that turns out too long be read as well, for
    /// [`Exchange::body_so_far`].
    #[inline]
    pub fn want_beginning_of_body(&mut self) {
        self.engine.body_beginning = true;
    }

    /// Asks for the body as [`Step::Body`] does, for a stage that can do without it: where the worker holds as
    /// much as it may, the request goes on, and the body counts as too large. None where there is nothing to ask
    /// for.
    pub fn ask_for_copy(&mut self, limit: usize) -> Option<Step> {
        if self.engine.body_unheld || !self.lacks_body(limit) {
            return None;
        }
        self.engine.body_spared = true;
        Some(Step::Body(limit))
    }

    /// Whether asking for so many bytes of the body would bring more of it into memory.
    #[inline]
    pub fn lacks_body(&self, limit: usize) -> bool {
        match self.engine.body_state {
            Body::None | Body::Whole => false,
            Body::Streaming => true,
            Body::TooLarge => {
                let beginning = self.engine.body_beginning || self.engine.body_unheld;
                self.engine.body_asked < limit || beginning && self.engine.messages.body.len() <= limit
            }
        }
    }

    /// The beginning of the request's body, as far as it was read.
    pub fn body_so_far(&self) -> &[u8] {
        match self.engine.body_state {
            Body::Whole | Body::TooLarge => &self.engine.messages.body,
            Body::None | Body::Streaming => &[],
        }
    }

    /// Removes all trailers of the response.
    pub fn clear_response_trailers(&mut self) {
        self.engine.messages.response_trailers.clear(1 << 10);
    }

    /// Lets the request's body go through a filter, behind those that were given before. To be given
    /// before the request goes out: in `rewrite`, `access` or `before_proxy`. A request without a body
    /// goes through none.
    pub fn filter_request_body(&mut self, filter: Box<dyn RequestFilter>) {
        self.engine.request_filters.push(filter);
    }
}

fn set_trailer(trailers: &mut Fields, name: &str, value: &[u8]) -> Result<(), BadField> {
    if !wire::h1::chunked::may_be_trailer(name.as_bytes()) {
        return Err(BadField::Name);
    }
    trailers.set(name.as_bytes(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_set_has_its_own_length_and_is_paid_for() {
        use crate::testing::{Probe, with_body};
        let headers = [("Host", "a"), ("Transfer-Encoding", "chunked")];
        let mut probe = Probe::request("POST", "/", &headers);
        probe.world.budget = crate::budget::Budget::new(100);
        let budget = probe.world.budget.clone();
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        assert_eq!(x.set_body(b"new".to_vec()), Err(NotSet::Unread));
        with_body(&mut x, b"a=1");
        x.engine_mut().messages.request.framing = Framing::Chunked;
        let _ = x.engine_mut().messages.request_trailers.append(b"X-T", b"1");
        assert_eq!(x.set_body(vec![b'x'; 101]), Err(NotSet::Spent));
        assert_eq!(x.body(), b"a=1");
        assert_eq!(x.set_body(b"a=22".to_vec()), Ok(()));
        assert_eq!((x.body(), budget.taken()), (&b"a=22"[..], 4));
        assert_eq!(x.request().framing, Framing::Length(4));
        assert_eq!((x.header("Content-Length"), x.header("Transfer-Encoding")), (Some(&b"4"[..]), None));
        assert!(x.request_trailers().is_empty());
        assert_eq!(x.set_body(Vec::new()), Ok(()));
        assert_eq!((x.body_state(), budget.taken()), (Body::Whole, 0));
    }
}
