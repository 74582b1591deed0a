//! Plugins within plugins, and plugins that a host adds and removes.

use sdk::Factory;
use sdk::build::PluginBuilder as _;

use super::*;
use crate::catalog::nested::{MOST_NESTED, Within};

#[test]
fn plugins_ask_other_plugins_and_get_their_answer() {
    let catalog = catalog();
    let owner = Owner { collection: "routes", id: "1".into() };
    let (names, services) = (FixedNames::default(), Services::for_tests());
    let scope = Scope { enabled: Some(&|name| name != "cors"), ..Scope::of_names(&names) };
    let others = Within { catalog: &catalog, scope: &scope, depth: 0 };
    let cx = Build::new(&owner, &services, &names).with_plugin_builder(&others);
    let chain = cx.plugin("key-auth", &json!({}), "0").unwrap();
    let mut probe = Probe::default();
    let step = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange());
    assert!(matches!(step, Step::Reply(reply) if reply.status == 401));
    assert_eq!(
        (cx.is_auth("key-auth"), cx.is_auth("cors"), cx.is_auth("x")),
        (Some(true), Some(false), None)
    );

    let off = json!({"_meta": {"disable": true}});
    assert_eq!(cx.plugin("key-auth", &off, "0").unwrap().phases(), Phases::NONE);
    let wrong = cx.plugin("key-auth", &json!({"header": 1}), "0").unwrap_err();
    assert_eq!(wrong.pointer, "/header");
    assert!(cx.plugin("cors", &json!({}), "0").is_err(), "it is not in the list");
    assert!(cx.plugin("no-such", &json!({}), "0").is_err());
    // A plugin with a path of its own is there for others if it is in the list.
    let paths = |listed: bool| {
        let listed = move |_: &str| listed;
        let scope = Scope { enabled: Some(&listed), ..Scope::of_names(&names) };
        let others = Within { catalog: &catalog, scope: &scope, depth: 0 };
        others.endpoints(&owner).into_iter().map(|served| served.endpoint.path).collect::<Vec<_>>()
    };
    assert!(paths(true).contains(&"/apisix/batch-requests".to_owned()));
    assert_eq!(paths(false), [""; 0]);

    let deep = Within { depth: MOST_NESTED, ..others };
    let cx = Build::new(&owner, &services, &names).with_plugin_builder(&deep);
    assert_eq!(cx.plugin("key-auth", &json!({}), "0").unwrap_err().reason, "plugins are nested too deeply");
}

/// Puts the plugins of its settings into itself, and lets everything pass.
struct Nest(&'static str);

impl Factory for Nest {
    fn name(&self) -> &'static str {
        self.0
    }

    fn priority(&self) -> i32 {
        7
    }

    fn phases(&self) -> Phases {
        Phases::ACCESS
    }

    fn schema(&self) -> Value {
        json!({"type": "object", "properties": {"inner": {"type": "object"}}})
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        if let Some(inner) = config.get("inner") {
            cx.plugin(self.0, inner, "inner")?;
        }
        Ok(fitting.stage(Passes))
    }
}

struct Passes;

impl sdk::Instance for Passes {
    fn phases(&self) -> Phases {
        Phases::ACCESS
    }
}

#[test]
fn hosted_plugins_come_and_go() {
    let catalog = catalog();
    let known = |name| catalog.check(name, &json!({}), SchemaType::Route).is_ok();
    let about = |name| catalog.about().iter().filter(|about| about.name == name).count();
    assert!(!known("nest"));
    let before = catalog.generation();
    catalog.register(Box::new(Nest("nest"))).unwrap();
    let there = catalog.generation();
    assert_ne!(there, before, "what names it is compiled again");
    assert!(known("nest"));
    assert_eq!((about("nest"), known("key-auth")), (1, true));
    assert_eq!(catalog.facts(Subsystem::Http, "nest").unwrap().version, json!(0.1));
    catalog.remove("nest");
    assert_ne!(catalog.generation(), there);
    assert!(!known("nest"));
    assert_eq!(about("nest"), 0);
    assert!(catalog.register(Box::new(Nest("key-auth"))).is_err(), "the name is taken");
}

#[test]
fn plugins_in_plugins_have_an_end() {
    let catalog = catalog();
    catalog.register(Box::new(Nest("nest"))).unwrap();
    let deep = |levels: usize| {
        let config = (0..levels).fold(json!({}), |inner, _| json!({ "inner": inner }));
        catalog.check("nest", &config, SchemaType::Route)
    };
    assert_eq!((deep(0), deep(MOST_NESTED)), (Ok(()), Ok(())));
    let reason = deep(MOST_NESTED + 1).unwrap_err().reason;
    assert!(reason.ends_with("plugins are nested too deeply"), "{reason}");
}
