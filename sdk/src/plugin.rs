//! The plugin trait.

use std::future::Future;

use model::Invalid;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::build::Build;
use crate::consumers::Credential;
use crate::endpoint::{ControlReply, ControlRequest, Endpoint};
use crate::exchange::{Chunk, Exchange};
use crate::phase::{Phase, Phases};
use crate::step::{Step, SureAnswer};
use wire::target::Doubtful;

/// A native plugin, and at the same time one configured instance of it.
///
/// `build` runs on the control thread when the configuration changes; the instance is read-only
/// from then on. The phase functions run on a worker: they must not block, lock, read files or make
/// system calls, and should not allocate on their common path. Work of more than about a
/// millisecond runs on the background threads, in a wait ([`crate::offload`]).
pub trait Plugin: Sized + Send + Sync + 'static {
    /// The plugin's name, as in APISIX.
    const NAME: &'static str;
    /// The default priority, as in APISIX: higher runs earlier within a phase.
    const PRIORITY: i32;
    /// The phases in which it may run; no others are called.
    const PHASES: Phases;
    /// The version shown by the Admin API.
    const VERSION: &'static str = "0.1";
    /// Whether it identifies consumers (`type: auth` in APISIX); see [`Plugin::credential`].
    const AUTH: bool = false;

    /// Its configuration on a route, service, plugin config or global rule, after the schema check
    /// and with defaults filled in.
    type Config: DeserializeOwned;

    /// JSON schema of the configuration, as the Admin API shows it.
    fn schema() -> Value;

    /// JSON schema of its configuration on a consumer or credential; for auth plugins.
    fn consumer_schema() -> Option<Value> {
        None
    }

    /// JSON schema of its plugin metadata.
    fn metadata_schema() -> Option<Value> {
        None
    }

    /// Checks its plugin metadata beyond [`Plugin::metadata_schema`], which it has passed.
    ///
    /// # Errors
    /// Errors beyond the schema, with a JSON pointer to the field.
    fn check_metadata(_metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// The endpoints it serves ([`Plugin::serve`]), given its `plugin_attr`.
    /// [`Called`](crate::endpoint::Called) has the place in this list of the one that is called.
    fn endpoints(_attr: Option<&Value>) -> Vec<Endpoint> {
        Vec::new()
    }

    /// Answers a request to the control API; `None` if the plugin has no such endpoint. It runs beside the data plane.
    fn control(_request: &ControlRequest) -> Option<ControlReply> {
        None
    }

    /// Builds an instance. Errors have a JSON pointer into the configuration.
    fn build(config: Self::Config, cx: &mut Build<'_>) -> Result<Self, Invalid>;

    /// Reads an auth plugin's credential from a consumer's configuration, once, when that changes.
    /// The configuration has passed [`Plugin::consumer_schema`] and has its defaults.
    ///
    /// # Errors
    /// Errors beyond the schema, with a JSON pointer to the field; never repeats a secret.
    fn credential(_consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        Ok(None)
    }

    /// The phases in which this instance runs, given its configuration; a subset of `PHASES`.
    fn phases(&self) -> Phases {
        Self::PHASES
    }

    /// The characters that this instance rejects in a path. Called when a route was found, before
    /// any phase, and only for a path with such characters.
    fn refused_in_path(&self) -> Option<Doubtful> {
        None
    }

    /// Whether the instance's result before the upstream depends only on its settings, the request,
    /// the consumers and the time, and calling it changes only the exchange: no counter, no cache,
    /// no request of its own and no randomness. Only pure instances are called to explain a
    /// decision. A pure instance must be built only from its settings, its `plugin_attr` and its
    /// metadata and protos; unless it reads these, resources with the same settings share it.
    fn is_pure(&self) -> bool {
        false
    }

    /// For an instance that is not pure: whether it certainly responds to this request before the
    /// upstream, and the status if it is known already. Called in a phase of the instance to
    /// explain a decision; must not change anything.
    fn sure_answer(&self, _x: &Exchange<'_>) -> Option<SureAnswer> {
        None
    }

    fn rewrite(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    fn access(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    fn before_proxy(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// Called for a stream with its route; see [`crate::stream`]. [`Step::Body`] requests that many
    /// of the client's first bytes, which are then in `x.body()`, or all bytes if there are fewer;
    /// they are forwarded to the upstream as well. [`Step::Reply`] closes the stream, with the
    /// reply's status as the session's.
    fn preread(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// Called with the response head in `x.response`, from the upstream or from a reply.
    fn header_filter(&self, _x: &mut Exchange<'_>) {}

    /// Filters one chunk of the response's body; may change, grow or empty it. A plugin that
    /// changes the length removes Content-Length in its header filter.
    fn body_filter(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) {}

    /// As [`Plugin::header_filter`], for a plugin that may have to wait there ([`Step::Wait`]) or
    /// that replaces the response ([`Step::Reply`]). The reply runs through all header filters like
    /// any response, this one included, and cannot be replaced again.
    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        self.header_filter(x);
        Step::Next
    }

    /// As [`Plugin::body_filter`], for a plugin that may have to wait with the chunk
    /// ([`Plugin::wait_body`]). It can reply only before anything was sent, so if it [holds the
    /// body](Plugin::holds_body); a later reply aborts the exchange.
    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        self.body_filter(x, chunk);
        Step::Next
    }

    /// Called only after this instance returned [`Step::Wait`] for that chunk.
    fn wait_body(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) -> impl Future<Output = Step> {
        async { Step::Next }
    }

    /// Whether this instance uses [`Plugin::body_filter`] on this exchange; called after the header
    /// filter. A body without filters is passed on without a copy.
    fn filters_body(&self, _x: &Exchange<'_>) -> bool {
        true
    }

    /// Whether this instance buffers the body completely before passing any of it on; called after
    /// the header filter. The head is delayed, too, so that the instance can still reject the
    /// response ([`Chunk::refused`]). The buffer must count against [`crate::World::budget`].
    fn holds_body(&self, _x: &Exchange<'_>) -> bool {
        false
    }

    /// Handles a request to one of its endpoints. It may request the body, or wait, as in the phases before
    /// the upstream.
    fn serve(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// Whether this instance needs the log phase only on exchanges on which it called
    /// [`Exchange::expect_log`]. An exchange on which no instance needs it has no log phase, and is
    /// not timed for plugins.
    fn logs_on_demand(&self) -> bool {
        false
    }

    /// Called after the exchange has ended, also if it failed. An instance that logs on demand is
    /// also called where another instance needs the log phase.
    fn log(&self, _x: &mut Exchange<'_>) {}

    /// Called only after this instance returned [`Step::Wait`] in that phase. The future is dropped
    /// when the client disconnects, and at the latest after `plugin_wait_timeout`.
    fn wait(&self, _phase: Phase, _x: &mut Exchange<'_>) -> impl Future<Output = Step> {
        async { Step::Next }
    }
}
