//! hot path
//!
//! Factories, which build the instances that a chain calls.
//!
//! A native plugin implements [`Plugin`]; everything here is derived from it. A hosted one (a
//! script, a module loaded at run time) implements [`Instance`] and [`Factory`] itself.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use model::Invalid;
use serde_json::Value;
use wire::target::Doubtful;

use crate::build::Build;
use crate::chain::{Fitting, Instance, LocalFuture, Stage};
use crate::consumers::Credential;
use crate::endpoint::{ControlReply, ControlRequest, Endpoint};
use crate::exchange::{Chunk, Exchange};
use crate::phase::{Phase, Phases};
use crate::plugin::Plugin;
use crate::step::{Step, SureAnswer};

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

    fn sure_answer(&self, x: &Exchange<'_>) -> Option<SureAnswer> {
        Plugin::sure_answer(self, x)
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match phase {
            Phase::Rewrite => self.rewrite(x),
            Phase::Access => self.access(x),
            Phase::BeforeProxy => self.before_proxy(x),
            Phase::Preread => self.preread(x),
            Phase::HeaderFilter | Phase::BodyFilter | Phase::Log | Phase::StreamData => Step::Next,
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

    fn logs_on_demand(&self) -> bool {
        Plugin::logs_on_demand(self)
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

/// A plugin before it is configured: its properties for the catalog, and the constructor of its
/// instances.
pub trait Factory: Send + Sync {
    fn name(&self) -> &'static str;

    fn priority(&self) -> i32;

    fn version(&self) -> &str {
        "0.1"
    }

    /// Whether it identifies consumers.
    fn is_auth(&self) -> bool {
        false
    }

    /// All phases in which an instance may run.
    fn phases(&self) -> Phases;

    /// JSON schemas: of its settings, of its credentials on consumers, of its metadata.
    fn schema(&self) -> Value;

    fn consumer_schema(&self) -> Option<Value> {
        None
    }

    fn metadata_schema(&self) -> Option<Value> {
        None
    }

    /// See [`Plugin::check_metadata`].
    ///
    /// # Errors
    /// Errors beyond the schema.
    fn check_metadata(&self, _metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        Ok(())
    }

    /// See [`Plugin::endpoints`].
    fn endpoints(&self, _attr: Option<&Value>) -> Vec<Endpoint> {
        Vec::new()
    }

    /// Answers a request to the control API; `None` if the plugin has no such endpoint. It may take as long as its own
    /// limits allow, so it is called where threads may block.
    fn control(&self, _request: &ControlRequest) -> Option<ControlReply> {
        None
    }

    /// The instance that serves the endpoints; without one it is built from empty settings.
    fn server(&self) -> Option<Arc<Stage>> {
        None
    }

    /// Builds an instance from settings that have passed the schema, as a stage of a chain.
    ///
    /// # Errors
    /// Errors in the settings, with pointers relative to them.
    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid>;

    /// See [`Plugin::credential`].
    ///
    /// # Errors
    /// Errors beyond the schema.
    fn credential(&self, _consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        Ok(None)
    }
}

/// The factory of a [`Plugin`] that is linked into the program.
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

    fn check_metadata(&self, metadata: &Value, cx: &Build<'_>) -> Result<(), Invalid> {
        P::check_metadata(metadata, cx)
    }

    fn endpoints(&self, attr: Option<&Value>) -> Vec<Endpoint> {
        P::endpoints(attr)
    }

    fn control(&self, request: &ControlRequest) -> Option<ControlReply> {
        P::control(request)
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        // The schema was checked before, so this fails only if the type is narrower than the
        // schema.
        let config: P::Config =
            serde_json::from_value(config).map_err(|error| Invalid::new(error.to_string()))?;
        Ok(fitting.stage(P::build(config, cx)?))
    }

    fn credential(&self, consumer_config: &Value) -> Result<Option<Credential>, Invalid> {
        P::credential(consumer_config)
    }
}

/// The maximum number of names of hosted plugins, and the maximum length of a name.
const MOST_NAMES: usize = 1024;
const LONGEST_NAME: usize = 100;

/// Returns a hosted plugin's name with static lifetime: native and hosted names then have the same
/// type, and exchanges never copy names. Each name is stored once, even if its plugin is loaded
/// repeatedly.
///
/// # Errors
/// An invalid name, or too many names.
pub fn intern(name: &str) -> Result<&'static str, Invalid> {
    #[expect(clippy::disallowed_types, reason = "hosted plugins are registered on the control side")]
    static NAMES: std::sync::Mutex<Option<HashSet<&'static str>>> = std::sync::Mutex::new(None);
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(valid) {
        return Err(Invalid::new("invalid plugin name")
            .got(name.chars().take(LONGEST_NAME).collect::<String>())
            .expected(format!("at most {LONGEST_NAME} letters, digits, `-`, `_` or `.`")));
    }
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return Ok(known);
    }
    if names.len() == MOST_NAMES {
        return Err(Invalid::new("too many plugin names since the start")
            .expected(format!("at most {MOST_NAMES}"))
            .hint("restart, or reuse names"));
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Reply;
    use crate::build::{Owner, Services};
    use crate::testing::{FixedNames, Probe, chunk, now};

    /// Implements only what every plugin must.
    struct Bare;

    impl Plugin for Bare {
        const NAME: &'static str = "bare";
        const PRIORITY: i32 = 7;
        const PHASES: Phases = Phases::ACCESS;
        type Config = Value;

        fn schema() -> Value {
            json!({"type": "object"})
        }

        fn build(_: Value, _: &mut Build<'_>) -> Result<Bare, Invalid> {
            Ok(Bare)
        }
    }

    /// Implements every function with a distinct result.
    struct Full(u16);

    fn reply(status: u16) -> Step {
        Step::Reply(Reply::status(status))
    }

    impl Plugin for Full {
        const NAME: &'static str = "full";
        const PRIORITY: i32 = -7;
        const PHASES: Phases = Phases::REWRITE.with(Phases::LOG);
        const VERSION: &'static str = "0.9";
        const AUTH: bool = true;
        type Config = u16;

        fn schema() -> Value {
            json!("of routes")
        }

        fn consumer_schema() -> Option<Value> {
            Some(json!("of consumers"))
        }

        fn metadata_schema() -> Option<Value> {
            Some(json!("of metadata"))
        }

        fn endpoints(attr: Option<&Value>) -> Vec<Endpoint> {
            let path = attr.and_then(Value::as_str).unwrap_or_default().to_owned();
            vec![Endpoint { method: wire::Method::Get, path }]
        }

        fn build(config: u16, _: &mut Build<'_>) -> Result<Full, Invalid> {
            Ok(Full(config))
        }

        fn credential(config: &Value) -> Result<Option<Credential>, Invalid> {
            Ok(Some(Credential { key: config.to_string().into(), secret: None }))
        }

        fn phases(&self) -> Phases {
            Phases::REWRITE
        }

        fn logs_on_demand(&self) -> bool {
            true
        }

        fn refused_in_path(&self) -> Option<Doubtful> {
            Some(Doubtful::SEMICOLON)
        }

        fn is_pure(&self) -> bool {
            true
        }

        fn rewrite(&self, _: &mut Exchange<'_>) -> Step {
            reply(self.0)
        }

        fn access(&self, _: &mut Exchange<'_>) -> Step {
            reply(202)
        }

        fn before_proxy(&self, _: &mut Exchange<'_>) -> Step {
            reply(203)
        }

        fn preread(&self, _: &mut Exchange<'_>) -> Step {
            reply(204)
        }

        fn header_action(&self, _: &mut Exchange<'_>) -> Step {
            reply(205)
        }

        fn body_action(&self, _: &mut Exchange<'_>, _: &mut Chunk) -> Step {
            reply(206)
        }

        fn filters_body(&self, _: &Exchange<'_>) -> bool {
            false
        }

        fn holds_body(&self, _: &Exchange<'_>) -> bool {
            true
        }

        fn serve(&self, _: &mut Exchange<'_>) -> Step {
            reply(207)
        }

        fn log(&self, x: &mut Exchange<'_>) {
            x.set_note("logged");
        }

        async fn wait(&self, phase: Phase, _: &mut Exchange<'_>) -> Step {
            reply(300 + phase as u16)
        }

        async fn wait_body(&self, _: &mut Exchange<'_>, _: &mut Chunk) -> Step {
            reply(208)
        }
    }

    /// The status of a reply, 0 for [`Step::Next`].
    fn status(step: Step) -> u16 {
        match step {
            Step::Next => 0,
            Step::Reply(reply) => reply.status,
            step => panic!("{step:?}"),
        }
    }

    const ASKED: [Phase; 4] = [Phase::Rewrite, Phase::Access, Phase::BeforeProxy, Phase::Preread];

    /// The results of all functions of an instance: before the upstream, in filters, at its
    /// endpoint, and after a wait.
    fn answers(instance: &dyn Instance, x: &mut Exchange<'_>) -> ([u16; 4], [u16; 3], [u16; 2]) {
        let asked = ASKED.map(|phase| status(instance.ask(phase, x)));
        let piece = &mut chunk(b"a", true);
        let filters = [
            status(instance.header_filter(x)),
            status(instance.body_filter(x, piece)),
            status(instance.serve(x)),
        ];
        instance.log(x);
        (
            asked,
            filters,
            [status(now(instance.wait(Phase::Access, x))), status(now(instance.wait_body(x, piece)))],
        )
    }

    #[test]
    fn a_plugin_s_functions_are_called_and_default_to_next() {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        let nothing = ([0; 4], [0; 3], [0; 2]);
        assert_eq!(answers(&Bare, &mut x), nothing);
        let bare: &dyn Instance = &Bare;
        assert_eq!((bare.phases(), bare.refused_in_path(), bare.is_pure()), (Phases::ACCESS, None, false));
        assert_eq!((bare.filters_body(&x), bare.holds_body(&x)), (true, false));
        assert_eq!(x.note::<&str>(), None);
        assert_eq!(answers(&Full(201), &mut x), ([201, 202, 203, 204], [205, 206, 207], [301, 208]));
        let full: &dyn Instance = &Full(201);
        assert_eq!((full.phases(), full.is_pure()), (Phases::REWRITE, true));
        assert_eq!((bare.logs_on_demand(), full.logs_on_demand()), (false, true));
        assert_eq!(full.refused_in_path(), Some(Doubtful::SEMICOLON));
        assert_eq!((full.filters_body(&x), full.holds_body(&x)), (false, true));
        assert_eq!(x.note::<&str>(), Some(&"logged"));
    }

    /// A hosted plugin that implements only what every one must.
    struct Hosted;

    impl Instance for Hosted {
        fn phases(&self) -> Phases {
            Phases::LOG
        }
    }

    impl Factory for Hosted {
        fn name(&self) -> &'static str {
            "hosted"
        }

        fn priority(&self) -> i32 {
            1
        }

        fn phases(&self) -> Phases {
            Phases::LOG
        }

        fn schema(&self) -> Value {
            json!({})
        }

        fn build(&self, _: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
            Ok(fitting.stage(Hosted))
        }
    }

    #[test]
    fn functions_of_a_hosted_plugin_default_to_next() {
        let mut probe = Probe::default();
        let mut x = probe.exchange();
        assert_eq!(answers(&Hosted, &mut x), ([0; 4], [0; 3], [0; 2]));
        let hosted: &dyn Instance = &Hosted;
        assert_eq!((hosted.refused_in_path(), hosted.is_pure()), (None, false));
        assert_eq!((hosted.filters_body(&x), hosted.holds_body(&x)), (true, false));
        let factory: &dyn Factory = &Hosted;
        assert_eq!((factory.version(), factory.is_auth()), ("0.1", false));
        assert!(factory.consumer_schema().is_none() && factory.metadata_schema().is_none());
        assert!(factory.endpoints(Some(&json!("/a"))).is_empty());
        assert!(factory.credential(&json!({})).is_ok_and(|credential| credential.is_none()));
    }

    #[test]
    fn a_linked_plugin_s_factory_returns_the_plugin_s_properties() {
        let (bare, full): (&'static dyn Factory, &'static dyn Factory) =
            (&Linked::<Bare>::NEW, &Linked::<Full>::NEW);
        let properties = |row: &'static dyn Factory| {
            (row.name(), row.priority(), row.version(), row.is_auth(), row.phases())
        };
        assert_eq!(properties(bare), ("bare", 7, "0.1", false, Phases::ACCESS));
        assert_eq!(properties(full), ("full", -7, "0.9", true, Phases::REWRITE | Phases::LOG));
        assert_eq!((bare.schema(), full.schema()), (json!({"type": "object"}), json!("of routes")));
        assert_eq!((bare.consumer_schema(), bare.metadata_schema()), (None, None));
        assert_eq!(full.consumer_schema(), Some(json!("of consumers")));
        assert_eq!(full.metadata_schema(), Some(json!("of metadata")));
        let path = |row: &dyn Factory| row.endpoints(Some(&json!("/a"))).pop().map(|endpoint| endpoint.path);
        assert_eq!((path(bare), path(full).as_deref()), (None, Some("/a")));
        let key = |row: &dyn Factory| row.credential(&json!(1)).unwrap().map(|credential| credential.key);
        assert_eq!((key(bare), key(full)), (None, Some(b"1".to_vec())));

        let owner = Owner { collection: "routes", id: "1".into() };
        let (services, names) = (Services::for_tests(), FixedNames::default());
        let mut cx = Build::new(&owner, &services, &names);
        let fitting = || Fitting { name: "full", priority: 3, meta: None };
        let stage = full.build(json!(418), &mut cx, fitting()).unwrap();
        assert_eq!((stage.name(), stage.priority()), ("full", 3));
        let mut probe = Probe::default();
        assert_eq!(status(stage.instance().ask(Phase::Rewrite, &mut probe.exchange())), 418);
        // A type that is narrower than the schema rejects values that the schema accepts.
        assert!(full.build(json!(70_000), &mut cx, fitting()).is_err());
    }

    #[test]
    fn names_are_stored_once() {
        let one = intern("a-plugin").unwrap();
        let two = intern(&String::from("a-plugin")).unwrap();
        assert!(std::ptr::eq(one, two));
        assert!(intern("A-z_0.9").is_ok() && intern(&"x".repeat(100)).is_ok());
        for bad in ["", "a b", "ä", &"x".repeat(101)] {
            assert!(intern(bad).is_err(), "{bad}");
        }
    }
}
