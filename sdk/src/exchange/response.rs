//! hot path
//!
//! The response: its head, which plugins may change before it is there, and the coding of its body.

use wire::{BadField, FieldLines, ResponseHead};

use super::{Exchange, Source};
use crate::engine::{Edit, EndReply, ReplyFilter};
use crate::header::{Digits, HeaderName, Named};
use crate::response_body::{BodySource, Coder, SizedSource};
use crate::step::Reply;

impl Exchange<'_> {
    #[inline]
    pub fn response(&self) -> &ResponseHead {
        &self.engine.messages.response
    }

    #[inline]
    pub fn status(&self) -> u16 {
        self.engine.messages.response.status
    }

    /// The response head is there (header filter and later).
    #[inline]
    pub fn has_response(&self) -> bool {
        self.engine.source != Source::None
    }

    /// Has a function change the replies that the gateway makes from here on: those of plugins, and those for
    /// requests that have no route or no upstream. The last function set counts.
    pub fn filter_replies(&mut self, filter: ReplyFilter) {
        self.engine.reply_filter = Some(filter);
    }

    /// Has a function make the response in the place of the upstream's, once all plugins before the upstream have run.
    /// `plugin` is the one that answers. The last call counts.
    pub fn reply_at_end(&mut self, plugin: &'static str, reply: EndReply) {
        self.engine.reply_at_end = Some((plugin, reply));
    }

    /// Makes that response. For the engine.
    pub fn take_reply_at_end(&mut self) -> Option<Reply> {
        let (plugin, reply) = self.engine.reply_at_end.take()?;
        let reply = reply(self)?;
        self.engine.answered_by = plugin;
        Some(reply)
    }

    pub fn response_header(&self, name: &(impl Named + ?Sized)) -> Option<&[u8]> {
        self.engine.messages.response.fields.get_checked(name.id(), name.text())
    }

    /// Sets a response header: now if the head is there, else as soon as it is.
    pub fn set_response_header(
        &mut self,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        self.engine.edit(Edit::Set, name, value)
    }

    /// As [`Exchange::set_response_header`], with lines that were made when the plugin was built.
    /// Plugin instances are few, so they are not checked against the limit of all texts.
    #[inline]
    pub fn set_response_lines(&mut self, lines: &FieldLines) {
        self.engine.set_lines(lines);
    }

    /// As [`Exchange::set_response_header`], with a number as the value. Without room for it the request is not
    /// forwarded.
    #[inline]
    pub fn set_response_number(&mut self, name: &HeaderName, number: Digits<'_>) {
        let _ = self.engine.edit_checked(Edit::Set, name, number.as_bytes());
    }

    /// Adds a response header, in addition to those of the same name.
    pub fn add_response_header(
        &mut self,
        name: &(impl Named + ?Sized),
        value: &[u8],
    ) -> Result<(), BadField> {
        self.engine.edit(Edit::Add, name, value)
    }

    pub fn remove_response_header(&mut self, name: &(impl Named + ?Sized)) {
        // No field of a head has an invalid name, and a request without room for the change is not forwarded.
        let _ = self.engine.edit(Edit::Remove, name, b"");
    }

    /// Changes the status of a response whose head is there.
    pub fn set_status(&mut self, status: u16) {
        self.engine.messages.response.status = status;
    }

    /// The origin of the response.
    #[inline]
    pub fn source(&self) -> Source {
        self.engine.source
    }

    /// Sets the coder of the body, which runs after all filters. Called by a plugin in its header
    /// filter; the last coder set is used.
    pub fn encode_with(&mut self, coder: Box<dyn Coder>) {
        self.engine.coder = Some(coder);
    }

    /// Sets the source of the body of a [`crate::Reply`] that is `streamed`, and its length in bytes. The plugin
    /// returns that reply at once.
    pub fn stream_body(&mut self, length: u64, source: Box<dyn BodySource>) {
        self.engine.body_source = Some(SizedSource { length, source });
    }

    /// Whether a coder is set.
    #[inline]
    pub fn codes_body(&self) -> bool {
        self.engine.coder.is_some()
    }
}
