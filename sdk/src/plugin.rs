//! The contract of a plugin.

use std::future::Future;

use model::Invalid;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::build::Build;
use crate::consumers::Credential;
use crate::endpoint::Endpoint;
use crate::exchange::{Chunk, Exchange};
use crate::phase::{Phase, Phases};
use crate::step::{Step, SureAnswer};
use wire::target::Doubtful;

/// A native plugin, and at the same time one configured instance of it.
///
/// `build` runs when the configuration changes, on the control thread; what it
/// prepares is then only read. The phase functions run on a worker: they must
/// not block, lock, read files or make system calls, and should not allocate
/// on their common path. What takes longer than about a millisecond runs on the
/// background threads, in a wait ([`crate::offload`]).
pub trait Plugin: Sized + Send + Sync + 'static {
    /// APISIX's name of it.
    const NAME: &'static str;
    /// APISIX's default priority: higher runs earlier within a phase.
    const PRIORITY: i32;
    /// The phases in which it may have work; only these are ever called.
    const PHASES: Phases;
    /// The version shown by the Admin API.
    const VERSION: &'static str = "0.1";
    /// It identifies consumers (`type: auth` in APISIX); see [`Plugin::credential`].
    const AUTH: bool = false;

    /// Its configuration on a route, service, plugin config or global rule,
    /// after the schema was checked and defaults were filled in.
    type Config: DeserializeOwned;

    /// JSON schema of the configuration, as the Admin API shows it.
    fn schema() -> Value;

    /// JSON schema of what a consumer or credential carries; for auth plugins.
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
    /// What the schema cannot tell; names the field by JSON pointer.
    fn check_metadata(_metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// The path at which it answers by itself ([`Plugin::serve`]), given its `plugin_attr`.
    fn endpoint(_attr: Option<&Value>) -> Option<Endpoint> {
        None
    }

    /// Makes a stage. Errors name the field by JSON pointer within the configuration.
    fn build(config: Self::Config, cx: &mut Build<'_>) -> Result<Self, Invalid>;

    /// What an auth plugin reads from a consumer's configuration, once, when that changes. The
    /// configuration has passed [`Plugin::consumer_schema`] and has its defaults.
    ///
    /// # Errors
    /// What the schema cannot tell; names the field by JSON pointer, and never repeats a secret.
    fn credential(_consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        Ok(None)
    }

    /// The phases this very stage takes part in, given its configuration; a subset of `PHASES`.
    fn phases(&self) -> Phases {
        Self::PHASES
    }

    /// What a path may not hold where this stage stands. Asked when a route was found, before any
    /// phase, and only for a path that holds something of the kind.
    fn refused_in_path(&self) -> Option<Doubtful> {
        None
    }

    /// Whether what this instance answers before the upstream follows from its settings, the request, the
    /// consumers and the time alone, and asking it changes nothing but the exchange: no counter, no cache,
    /// no request of its own, no chance. Such an instance is asked by whoever explains a decision. It is built
    /// from its settings, its `plugin_attr` and its metadata alone, and where it has not asked for metadata,
    /// resources with the same settings share it.
    fn is_pure(&self) -> bool {
        false
    }

    /// Whether an instance that is not pure is certain to answer this request before the upstream, and the status if
    /// that is known already. Explanations ask this in a phase of the instance; it may change nothing.
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

    /// A stream has its route; see [`crate::stream`]. [`Step::Body`] asks for that many of the client's first
    /// bytes, which are then in `x.body()`, or all there are if they are fewer; they go to the upstream as
    /// well. [`Step::Reply`] cuts the stream off, and its status is the session's.
    fn preread(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// The response head is in `x.response`, from the upstream or from a reply.
    fn header_filter(&self, _x: &mut Exchange<'_>) {}

    /// One piece of the response's body; may change, grow or empty it. A stage that
    /// changes the length removes Content-Length in its header filter.
    fn body_filter(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) {}

    /// As [`Plugin::header_filter`], for a plugin that may have to wait there ([`Step::Wait`]) or that
    /// puts an answer of its own in the place of the response ([`Step::Reply`]). Such an answer goes
    /// through all header filters like any other, this one included, and takes no second one.
    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        self.header_filter(x);
        Step::Next
    }

    /// As [`Plugin::body_filter`], for a plugin that may have to wait with the piece in hand
    /// ([`Plugin::wait_body`]). An answer of its own is possible while nothing has gone out, so for a
    /// plugin that [holds the body](Plugin::holds_body); after that it breaks the exchange off.
    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        self.body_filter(x, chunk);
        Step::Next
    }

    /// Called only after this instance answered [`Step::Wait`] to that piece.
    fn wait_body(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) -> impl Future<Output = Step> {
        async { Step::Next }
    }

    /// Whether this stage has work in [`Plugin::body_filter`] on this very exchange; asked
    /// after the header filter. A body no stage looks at is passed on without a copy.
    fn filters_body(&self, _x: &Exchange<'_>) -> bool {
        true
    }

    /// Whether this stage gives nothing of the body on before it has seen all of it; asked after the
    /// header filter. The head waits for it, so that the stage can still refuse ([`Chunk::refused`]).
    /// What it holds must count against [`crate::World::budget`].
    fn holds_body(&self, _x: &Exchange<'_>) -> bool {
        false
    }

    /// Answers a request to its endpoint. It may ask for the body, or to wait, as in the phases before the
    /// upstream.
    fn serve(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// The exchange is over, also when it failed.
    fn log(&self, _x: &mut Exchange<'_>) {}

    /// Called only after this instance answered [`Step::Wait`] in that phase. What is waited for ends
    /// when the client goes away, and after `plugin_wait_timeout` at the latest.
    fn wait(&self, _phase: Phase, _x: &mut Exchange<'_>) -> impl Future<Output = Step> {
        async { Step::Next }
    }
}
