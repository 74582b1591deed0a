//! Stored scripts, loaded by a host that counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use model::script::Role;
use sdk::instance::intern;
use sdk::scripts::Library;
use sdk::{Factory, Instance};

use super::*;

/// A host whose plugins need the module `words` if their text says so.
struct Host(Arc<AtomicUsize>);

struct Named(&'static str);

impl Factory for Named {
    fn name(&self) -> &'static str {
        self.0
    }

    fn priority(&self) -> i32 {
        1
    }

    fn phases(&self) -> Phases {
        Phases::NONE
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn build(&self, _: Value, _: &mut Build<'_>, _: Fitting) -> Result<Arc<Stage>, Invalid> {
        Err(Invalid::new("not built here"))
    }
}

impl Scripts for Host {
    fn condition(&self, _: &str, _: &str) -> Result<Arc<dyn Condition>, Invalid> {
        Err(scripts::none("filter_func"))
    }

    fn pre_function(
        &self,
        _: &'static str,
        _: &str,
        _: Value,
        _: Phases,
    ) -> Result<Box<dyn Instance>, Invalid> {
        Err(scripts::none("pre_function"))
    }

    fn script(&self, _: &Owner, _: &str) -> Result<Arc<Stage>, Invalid> {
        Err(scripts::none("script"))
    }

    fn library(&self, modules: &[(&str, &str)]) -> Result<Library, Invalid> {
        Ok(Arc::new(modules.iter().map(|(name, text)| format!("{name}={text}")).collect::<Vec<_>>()))
    }

    fn stored(
        &self,
        id: &str,
        script: &Script,
        library: &Library,
    ) -> Result<Option<Box<dyn Factory>>, Invalid> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let modules = library.downcast_ref::<Vec<String>>().unwrap();
        let needs = script.content.strip_prefix("needs ");
        if script.content == "broken"
            || needs.is_some_and(|needs| !modules.iter().any(|module| module == needs))
        {
            return Err(Invalid::new("it does not load"));
        }
        Ok(match script.role {
            Role::Module => None,
            _ => Some(Box::new(Named(intern(id)?))),
        })
    }
}

fn script(role: Role, content: &str) -> Script {
    Script { meta: Default::default(), role, content: content.to_owned() }
}

#[test]
fn changed_scripts_are_loaded_and_the_others_stay() {
    let (catalog, loads) = (catalog(), Arc::new(AtomicUsize::new(0)));
    catalog.set_scripts(Box::new(Host(loads.clone())));
    let load = |scripts: &[(&str, &Script)]| {
        let generation = catalog.generation();
        let unloaded = catalog.load_scripts(scripts);
        let unloaded: Vec<_> = unloaded.into_iter().map(|one| (one.id, one.keeps_last)).collect();
        (unloaded, loads.swap(0, Ordering::Relaxed), catalog.generation() - generation)
    };
    let plugin = |content: &str| script(Role::Plugin, content);
    let words = |content: &str| script(Role::Module, content);
    let (a, b, one) = (plugin("needs words=1"), plugin("b"), words("1"));
    assert_eq!(load(&[("a", &a), ("b", &b), ("words", &one)]), (vec![], 3, 1));
    assert!(catalog.has("a") && catalog.has("b") && !catalog.has("words"));
    assert_eq!(load(&[("a", &a), ("b", &b), ("words", &one)]), (vec![], 0, 0), "nothing has changed");
    assert_eq!(load(&[("a", &a), ("b", &plugin("c")), ("words", &one)]), (vec![], 1, 1));
    // A broken module keeps its last valid version, and those that require it stay as they are.
    let last = vec![("words".to_owned(), true)];
    assert_eq!(load(&[("a", &a), ("b", &b), ("words", &words("broken"))]), (last, 2, 1));
    // A plugin that does not load with a module's new version keeps its last valid version.
    assert_eq!(load(&[("a", &a), ("words", &words("2"))]), (vec![("a".to_owned(), true)], 2, 1));
    assert!(catalog.has("a") && !catalog.has("b"));
    assert_eq!(load(&[("c", &plugin("broken"))]), (vec![("c".to_owned(), false)], 1, 1));
    assert!(!catalog.has("a") && !catalog.has("c"));
}

#[test]
fn names_of_linked_plugins_and_too_many_scripts_are_refused() {
    let catalog = catalog();
    catalog.set_scripts(Box::new(Host(Arc::default())));
    let refused = catalog.check_script("cors", &script(Role::Plugin, "x")).unwrap_err();
    assert_eq!(refused.reason, "there already is a plugin named cors");
    assert!(catalog.check_script("cors", &script(Role::Module, "x")).is_ok());
    let one = script(Role::Module, "x");
    let ids: Vec<String> = (0..501).map(|id| format!("m{id:03}")).collect();
    let all: Vec<_> = ids.iter().map(|id| (&**id, &one)).collect();
    let unloaded = catalog.load_scripts(&all);
    assert_eq!(unloaded.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["m500"]);
    assert!(catalog.load_scripts(&all[..500]).is_empty());
    assert_eq!(catalog.check_script("more", &one).unwrap_err().reason, "too many scripts");
    assert!(
        catalog.check_script("m000", &script(Role::Module, "y")).is_ok(),
        "it takes the place of another"
    );
    let long = script(Role::Module, &"x".repeat(1 << 20));
    let ids: Vec<_> = all[..17].iter().map(|(id, _)| (*id, &long)).collect();
    assert_eq!(catalog.load_scripts(&ids).len(), 1);
}

#[test]
fn stored_plugins_need_no_list_and_take_the_place_of_registered_ones() {
    let catalog = catalog();
    catalog.set_scripts(Box::new(Host(Arc::default())));
    catalog.register(Box::new(Named("ours"))).unwrap();
    let is_stored = |catalog: &dyn sdk::Catalog| {
        catalog.about().iter().find(|about| about.name == "ours").map(|about| about.is_stored)
    };
    assert_eq!(is_stored(&catalog), Some(false));
    let ours = script(Role::Plugin, "x");
    let trial = catalog.with_scripts(&[("ours", &ours)]).unwrap();
    assert_eq!((is_stored(&*trial), is_stored(&catalog)), (Some(true), Some(false)));
    assert!(catalog.load_scripts(&[("ours", &ours)]).is_empty());
    assert_eq!(is_stored(&catalog), Some(true));
    assert!(catalog.load_scripts(&[]).is_empty());
    assert_eq!(is_stored(&catalog), Some(false), "the registered one is back");
}
