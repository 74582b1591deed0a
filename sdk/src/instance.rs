//! hot path
//!
//! A configured plugin, as the chain asks it, and what plugins are made by.
//!
//! A native plugin implements [`Plugin`]; everything here follows from it. A hosted one (a script, a
//! module loaded while running) implements [`Instance`] and [`Factory`] itself.

use std::any::Any;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use model::Invalid;
use serde_json::Value;
use wire::target::Doubtful;

use crate::build::Build;
use crate::chain::{Fitting, LocalFuture, Stage};
use crate::consumers::Credential;
use crate::endpoint::Endpoint;
use crate::exchange::{Chunk, Exchange};
use crate::phase::{Phase, Phases};
use crate::plugin::Plugin;
use crate::step::Step;

/// One configured plugin. The functions mean what those of [`Plugin`] mean.
pub trait Instance: Any + Send + Sync {
    fn phases(&self) -> Phases;

    fn refused_in_path(&self) -> Option<Doubtful> {
        None
    }

    /// See [`Plugin::is_pure`].
    fn is_pure(&self) -> bool {
        false
    }

    /// Asks it in one of the phases before the upstream.
    fn ask(&self, _phase: Phase, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    /// See [`Plugin::header_action`].
    fn header_filter(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    fn filters_body(&self, _x: &Exchange<'_>) -> bool {
        true
    }

    fn holds_body(&self, _x: &Exchange<'_>) -> bool {
        false
    }

    /// See [`Plugin::body_action`].
    fn body_filter(&self, _x: &mut Exchange<'_>, _chunk: &mut Chunk) -> Step {
        Step::Next
    }

    fn serve(&self, _x: &mut Exchange<'_>) -> Step {
        Step::Next
    }

    fn log(&self, _x: &mut Exchange<'_>) {}

    /// Only after it answered [`Step::Wait`] in that phase, which is not the body filter's.
    fn wait<'a>(&'a self, _phase: Phase, _x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }

    /// Only after it answered [`Step::Wait`] to that piece of the body.
    fn wait_body<'a>(&'a self, _x: &'a mut Exchange<'_>, _chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }
}

impl<P: Plugin> Instance for P {
    fn phases(&self) -> Phases {
        Plugin::phases(self)
    }

    fn refused_in_path(&self) -> Option<Doubtful> {
        Plugin::refused_in_path(self)
    }

    fn is_pure(&self) -> bool {
        Plugin::is_pure(self)
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match phase {
            Phase::Rewrite => self.rewrite(x),
            Phase::Access => self.access(x),
            Phase::BeforeProxy => self.before_proxy(x),
            Phase::Preread => self.preread(x),
            Phase::HeaderFilter | Phase::BodyFilter | Phase::Log => Step::Next,
        }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        self.header_action(x)
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        Plugin::filters_body(self, x)
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        Plugin::holds_body(self, x)
    }

    fn body_filter(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        self.body_action(x, chunk)
    }

    fn serve(&self, x: &mut Exchange<'_>) -> Step {
        Plugin::serve(self, x)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        Plugin::log(self, x);
    }

    fn wait<'a>(&'a self, phase: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(Plugin::wait(self, phase, x))
    }

    fn wait_body<'a>(&'a self, x: &'a mut Exchange<'_>, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(Plugin::wait_body(self, x, chunk))
    }
}

/// A plugin before it is configured: what the catalog knows of it, and how instances are made.
pub trait Factory: Send + Sync {
    fn name(&self) -> &'static str;

    fn priority(&self) -> i32;

    fn version(&self) -> &'static str {
        "0.1"
    }

    /// It identifies consumers.
    fn is_auth(&self) -> bool {
        false
    }

    /// All phases in which an instance may have work.
    fn phases(&self) -> Phases;

    /// JSON schemas: of its settings, of what consumers carry, of its metadata.
    fn schema(&self) -> Value;

    fn consumer_schema(&self) -> Option<Value> {
        None
    }

    fn metadata_schema(&self) -> Option<Value> {
        None
    }

    /// See [`Plugin::endpoint`].
    fn endpoint(&self, _attr: Option<&Value>) -> Option<Endpoint> {
        None
    }

    /// Makes an instance of settings that have passed the schema, and fits it into a chain.
    ///
    /// # Errors
    /// What is wrong with the settings, its pointer beginning there.
    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid>;

    /// See [`Plugin::credential`].
    ///
    /// # Errors
    /// What the schema cannot tell.
    fn credential(&self, _consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        Ok(None)
    }
}

/// A [`Plugin`] that is linked into the program.
#[derive(Debug)]
pub struct Linked<P>(PhantomData<fn() -> P>);

impl<P: Plugin> Linked<P> {
    pub const NEW: Linked<P> = Linked(PhantomData);
}

impl<P: Plugin> Factory for Linked<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn priority(&self) -> i32 {
        P::PRIORITY
    }

    fn version(&self) -> &'static str {
        P::VERSION
    }

    fn is_auth(&self) -> bool {
        P::AUTH
    }

    fn phases(&self) -> Phases {
        P::PHASES
    }

    fn schema(&self) -> Value {
        P::schema()
    }

    fn consumer_schema(&self) -> Option<Value> {
        P::consumer_schema()
    }

    fn metadata_schema(&self) -> Option<Value> {
        P::metadata_schema()
    }

    fn endpoint(&self, attr: Option<&Value>) -> Option<Endpoint> {
        P::endpoint(attr)
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        // The schema was checked before, so this fails only where a type is narrower than it.
        let config: P::Config =
            serde_json::from_value(config).map_err(|error| Invalid::new(error.to_string()))?;
        Ok(fitting.stage(P::build(config, cx)?))
    }

    fn credential(&self, consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        P::credential(consumer_config)
    }
}

/// The most names of hosted plugins, and the longest.
const MOST_NAMES: usize = 1024;
const LONGEST_NAME: usize = 100;

/// A hosted plugin's name, kept for as long as the program runs: native and hosted names are then of
/// one kind, and no exchange copies any. The same name is kept once, however often it comes and goes.
///
/// # Errors
/// A name that is none, or one too many.
pub fn intern(name: &str) -> Result<&'static str, Invalid> {
    #[expect(clippy::disallowed_types, reason = "hosted plugins are registered on the control side")]
    static NAMES: std::sync::Mutex<Option<HashSet<&'static str>>> = std::sync::Mutex::new(None);
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(valid) {
        return Err(Invalid::new("this cannot be the name of a plugin")
            .got(name.chars().take(LONGEST_NAME).collect::<String>())
            .expected(format!("at most {LONGEST_NAME} letters, digits, `-`, `_` or `.`")));
    }
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return Ok(known);
    }
    if names.len() == MOST_NAMES {
        return Err(Invalid::new("too many names of plugins since the start")
            .expected(format!("at most {MOST_NAMES}"))
            .hint("restart, or use names again"));
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::intern;

    #[test]
    fn names_are_kept_once() {
        let one = intern("a-plugin").unwrap();
        let two = intern(&String::from("a-plugin")).unwrap();
        assert!(std::ptr::eq(one, two));
        for bad in ["", "a b", "ä", &"x".repeat(101)] {
            assert!(intern(bad).is_err(), "{bad}");
        }
    }
}
