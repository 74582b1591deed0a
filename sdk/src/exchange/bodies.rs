//! hot path
//!
//! The request's body, and the trailers of request and response.

use std::rc::Rc;

use wire::{BadField, Fields, Framing};

use super::{Body, Exchange};
use crate::Step;
use crate::upload::RequestFilter;

/// Why [`Exchange::set_body`] failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSet {
    /// The client's own body has not been read into memory.
    Unread,
    /// The worker's budget for bodies is used up: the request is to be answered with 503.
    Spent,
}

impl Exchange<'_> {
    /// How far the request's body has been buffered.
    #[inline]
    pub fn body_state(&self) -> Body {
        self.engine.body_state
    }

    /// The largest limit in bytes with which the body was requested so far.
    #[inline]
    pub fn body_asked(&self) -> usize {
        self.engine.body_asked
    }

    /// The request's body; empty unless [`Body::Whole`].
    pub fn body(&self) -> &[u8] {
        if self.engine.body_state == Body::Whole { &self.engine.messages.body } else { &[] }
    }

    /// Replaces the request's body. The upstream receives it with its own length, as do plugins
    /// that read the body later, and it counts against [`World::budget`]. A request without a body
    /// gets one, too.
    ///
    /// # Errors
    /// [`NotSet::Unread`] if the client's own body is not buffered: request it first
    /// ([`crate::Step::Body`]). [`NotSet::Spent`] if the worker's budget is used up. The body is
    /// unchanged then.
    pub fn set_body(&mut self, body: Vec<u8>) -> Result<(), NotSet> {
        if matches!(self.engine.body_state, Body::Streaming | Body::TooLarge) {
            return Err(NotSet::Unread);
        }
        let messages = &mut *self.engine.messages;
        messages.body_held.resize(self.engine.world.budget(), body.capacity()).map_err(|_| NotSet::Spent)?;
        // The length is forwarded separately, so an old value would be visible to plugins only.
        let length = body.len() as u64;
        let fields = &mut messages.request.fields;
        fields.remove_id(wire::Name::TransferEncoding);
        let mut digits = Vec::with_capacity(20);
        wire::h1::encode::decimal(length, &mut digits);
        // Digits are always valid in a head.
        let _ = fields.set_id(wire::Name::ContentLength, &digits);
        messages.request.framing = Framing::Length(length);
        messages.request_trailers.clear(1 << 10);
        messages.body = Rc::new(body);
        self.engine.body_state = Body::Whole;
        Ok(())
    }

    /// The request's trailers: those received after a buffered body, and those that were set.
    pub fn request_trailers(&self) -> &Fields {
        &self.engine.messages.request_trailers
    }

    /// Sets a trailer of the request. It is forwarded after the body, if there is one, together
    /// with the received trailers; it replaces a received one of the same name.
    ///
    /// # Errors
    /// The name or value is invalid, or the field is not allowed in trailers.
    pub fn set_request_trailer(&mut self, name: &str, value: &[u8]) -> Result<(), BadField> {
        set_trailer(&mut self.engine.messages.request_trailers, name, value)
    }

    /// Removes a trailer of a request whose body is buffered.
    pub fn remove_request_trailer(&mut self, name: &str) {
        self.engine.messages.request_trailers.remove(name.as_bytes());
    }

    /// The response's trailers: those that were set and, once the last chunk of the body is
    /// filtered, those received.
    pub fn response_trailers(&self) -> &Fields {
        &self.engine.messages.response_trailers
    }

    /// Sets a trailer of the response. If it is set before the body begins, or while it is
    /// filtered, it reaches clients whose protocol has trailers.
    ///
    /// # Errors
    /// The name or value is invalid, or the field is not allowed in trailers.
    pub fn set_response_trailer(&mut self, name: &str, value: &[u8]) -> Result<(), BadField> {
        set_trailer(&mut self.engine.messages.response_trailers, name, value)
    }

    /// Removes a trailer of the response, when the last chunk of its body is filtered.
    pub fn remove_response_trailer(&mut self, name: &str) {
        self.engine.messages.response_trailers.remove(name.as_bytes());
    }

    /// Keeps the prefix of a body that exceeds the limit, for [`Exchange::body_prefix`].
    #[inline]
    pub fn want_body_prefix(&mut self) {
        self.engine.body_prefix_wanted = true;
    }

    /// Requests the body as [`Step::Body`] does, for a plugin that works without it, too: if the
    /// worker's budget is used up, the request continues, and the body counts as too large. Returns
    /// `None` if nothing is left to request.
    pub fn ask_for_optional_body(&mut self, limit: usize) -> Option<Step> {
        if self.engine.body_over_budget || !self.lacks_body(limit) {
            return None;
        }
        self.engine.body_optional = true;
        Some(Step::Body(limit))
    }

    /// Whether requesting `limit` bytes of the body would buffer more of it.
    #[inline]
    pub fn lacks_body(&self, limit: usize) -> bool {
        match self.engine.body_state {
            Body::None | Body::Whole => false,
            Body::Streaming => true,
            Body::TooLarge => {
                let prefix = self.engine.body_prefix_wanted || self.engine.body_over_budget;
                self.engine.body_asked < limit || prefix && self.engine.messages.body.len() <= limit
            }
        }
    }

    /// The prefix of the request's body, as far as it was buffered.
    pub fn body_prefix(&self) -> &[u8] {
        match self.engine.body_state {
            Body::Whole | Body::TooLarge => &self.engine.messages.body,
            Body::None | Body::Streaming => &[],
        }
    }

    /// Removes all trailers of the response.
    pub fn clear_response_trailers(&mut self) {
        self.engine.messages.response_trailers.clear(1 << 10);
    }

    /// Limits the request's body to `bytes` instead of `client_max_body_size`; 0 is no limit. Call it in
    /// `rewrite` or `access`: afterwards the request is forwarded.
    pub fn set_max_body(&mut self, bytes: u64) {
        self.engine.max_body = Some(bytes);
    }

    /// The limit set by [`Exchange::set_max_body`].
    pub fn max_body(&self) -> Option<u64> {
        self.engine.max_body
    }

    /// Adds a filter of the request's body, after those that were added before. Call it before the
    /// request is forwarded: in `rewrite`, `access` or `before_proxy`. A request without a body
    /// calls no filters.
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
    fn a_replaced_body_has_its_own_length_and_counts_against_the_budget() {
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
