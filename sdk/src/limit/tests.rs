use std::time::Duration;

use serde_json::json;

use super::*;
use crate::build::Owner;
use crate::testing::{FixedNames, Probe, now};

const RULES: Value = Value::Null;

fn limit(probe: &Probe, policy: &str, owner: (&'static str, &str), rules: &Value) -> Result<Limit, Invalid> {
    let owner = Owner { collection: owner.0, id: owner.1.to_owned() };
    let names = FixedNames::default();
    let cx = Build::new(&owner, &probe.services, &names);
    let settings = Map::new();
    let kind = Kind::Windows;
    cx.limit(&Wanted { plugin: "p", kind, rules, group: None, policy, settings: &settings })
}

#[test]
fn the_local_limiter_behaves_as_all_do() {
    let probe = Probe::default();
    let Ok(Limit::Local(local)) = limit(&probe, "local", ("routes", "1"), &RULES) else { panic!("no limit") };
    let pass = |ms| probe.world.sleep(Duration::from_millis(ms));
    now(suite::run(&local, &probe.world, &pass)).unwrap();
}

/// Notes the scopes of the limiters that are made.
#[derive(Default)]
struct Scopes(std::sync::Mutex<Vec<Scope>>);

impl Policy for Scopes {
    fn limiter(&self, scope: &Scope, _: &Wanted<'_>, _: &Build<'_>) -> Result<Arc<dyn Limiter>, Invalid> {
        self.0.lock().unwrap().push(scope.clone());
        Err(Invalid::new("only the scope matters"))
    }
}

#[test]
fn keys_of_shared_limits_begin_the_same_on_every_node() {
    let (mut probe, scopes) = (Probe::default(), Arc::new(Scopes::default()));
    let limits = Limits::default().with("other", scopes.clone()).under("/root");
    probe.services.extensions = crate::build::Extensions::default().with(Arc::new(limits));
    for (id, rules) in [("1", json!({"count": 1})), ("1", json!({"count": 2})), ("2", json!({"count": 1}))] {
        assert!(limit(&probe, "other", ("routes", id), &rules).is_err());
    }
    let expected = ["/root/routes/1:863375806:", "/root/routes/1:408633981:", "/root/routes/2:863375806:"]
        .map(|before| Scope { before: before.to_owned(), after: String::new() });
    assert_eq!(*scopes.0.lock().unwrap(), expected);
}

#[test]
fn a_policy_of_another_build_is_rejected() {
    let invalid = limit(&Probe::default(), "redis", ("routes", "1"), &RULES).err().unwrap();
    assert_eq!(
        (&*invalid.pointer, &*invalid.reason),
        ("/policy", "policy redis is not available in this build")
    );
}
