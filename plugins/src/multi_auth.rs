//! multi-auth: accepts a request if one of several auth plugins does.
//!
//! Settings, order and messages as in APISIX 3.18: plugins are asked in the order written, and the
//! first that accepts the request ends the search. A 401 carries the `WWW-Authenticate` of the last. As
//! in APISIX, `_meta` within `auth_plugins` is ignored: a disabled plugin must not count as accepting.

use std::sync::Arc;

use indexmap::IndexMap;
use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Chain, Exchange, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The configured plugin.
pub struct MultiAuth {
    plugins: Vec<Arc<Chain>>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    auth_plugins: Vec<Value>,
}

/// Index of the plugin that answered [`Step::Wait`].
struct Waiting(usize);

impl Plugin for MultiAuth {
    const NAME: &'static str = "multi-auth";
    const PRIORITY: i32 = 2600;
    const PHASES: Phases = Phases::REWRITE;
    const AUTH: bool = true;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "title": "work with route or service object",
            "properties": {"auth_plugins": {"type": "array", "minItems": 2}},
            "required": ["auth_plugins"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<MultiAuth, Invalid> {
        let mut plugins = Vec::new();
        for (at, entry) in config.auth_plugins.into_iter().enumerate() {
            let place = format!("/auth_plugins/{at}");
            let entry: IndexMap<String, Value> = serde_json::from_value(entry).map_err(|_| {
                Invalid::new("wrong type of an entry of auth_plugins")
                    .at(place.clone())
                    .expected("an object: the name of an auth plugin, and its settings")
            })?;
            for (name, config) in entry {
                let plugin = plugin(&name, config, &place, cx);
                plugins.push(plugin.map_err(|invalid| invalid.within(&name).under(&place))?);
            }
        }
        if plugins.is_empty() {
            return Err(Invalid::new("auth_plugins names no plugin").at("/auth_plugins"));
        }
        Ok(MultiAuth { plugins })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match self.ask(0, None, x) {
            Ok(at) => {
                x.set_note(Waiting(at));
                Step::Wait
            }
            Err(step) => step,
        }
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(Waiting(mut at)) = x.take_note() else { return Step::Next };
        loop {
            let Some(plugin) = self.plugins.get(at) else { return Step::Next };
            match plugin.wait(phase, 0, x).await {
                Step::Reply(refusal) => match self.ask(at + 1, Some(refusal), x) {
                    Ok(next) => at = next,
                    Err(step) => return step,
                },
                step => return step,
            }
        }
    }
}

impl MultiAuth {
    /// Asks the plugins from `from` on until one accepts the request. Returns the index of a plugin that
    /// wants to wait, or the final action. `refusal` is the last answer of those asked before.
    fn ask(&self, from: usize, mut refusal: Option<Reply>, x: &mut Exchange<'_>) -> Result<usize, Step> {
        for (at, plugin) in self.plugins.iter().enumerate().skip(from) {
            match plugin.run(Phase::Rewrite, &mut 0, x) {
                Step::Reply(reply) => refusal = Some(reply),
                Step::Wait => return Ok(at),
                step => return Err(step),
            }
        }
        let mut reply = Reply::json(401, &json!({"message": "Authorization Failed"}))
            .because("no plugin accepts the credentials");
        let challenges = refusal.into_iter().flat_map(|refusal| refusal.headers);
        reply.headers.extend(challenges.filter(|(name, _)| *name == "WWW-Authenticate"));
        Err(Step::Reply(reply))
    }
}

fn plugin(name: &str, mut config: Value, part: &str, cx: &Build<'_>) -> Result<Arc<Chain>, Invalid> {
    match cx.is_auth(name) {
        None => return Err(Invalid::new(format!("{name} plugin did not found")).got(name)),
        Some(false) => {
            let said = format!("{name} plugin is not supported");
            return Err(Invalid::new(said).got(name).expected("an auth plugin"));
        }
        Some(true) => {}
    }
    if let Some(config) = config.as_object_mut() {
        config.shift_remove("_meta");
    }
    cx.plugin(name, &config, part)
        .map_err(|invalid| invalid.said(&format!("plugin {name} check schema failed: ")))
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use sdk::Catalog as _;
    use sdk::build::{Owner, Services};
    use sdk::catalog::{Configured, SchemaType, Scope};
    use sdk::exchange::Body;
    use sdk::testing::{FixedNames, Probe};

    use super::*;
    use crate::Catalog;
    use crate::basic_auth::BasicAuth;
    use crate::key_auth::KeyAuth;

    fn catalog() -> Catalog {
        Catalog::new(Services::for_tests(), IndexMap::new())
    }

    fn chain(config: &Value) -> Arc<Chain> {
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let scope = Scope::of_names(&names);
        catalog().chain(&[Configured { name: "multi-auth", config, owner: &owner }], &scope).unwrap()
    }

    fn both() -> Value {
        json!({"auth_plugins": [{"basic-auth": {}}, {"key-auth": {"hide_credentials": true}}]})
    }

    fn ask(config: &Value, headers: &[(&str, &str)], then: impl FnOnce(Step, &mut Exchange<'_>)) {
        let mut probe = Probe::request("GET", "/", headers)
            .consumer::<BasicAuth>("foo", json!({"username": "foo", "password": "bar"}))
            .consumer::<KeyAuth>("jack", json!({"key": "auth-one"}));
        let chain = chain(config);
        let mut x = probe.exchange();
        let step = chain.run(Phase::Rewrite, &mut 0, &mut x);
        then(step, &mut x);
    }

    #[test]
    fn one_that_agrees_is_enough_and_the_first_counts() {
        let (basic, key) = (("Authorization", "Basic Zm9vOmJhcg=="), ("apikey", "auth-one"));
        for (headers, consumer, hidden) in
            [(&[basic][..], "foo", true), (&[key], "jack", true), (&[key, basic], "foo", false)]
        {
            ask(&both(), headers, |step, x| {
                assert!(matches!(step, Step::Next), "{step:?}");
                assert_eq!(x.consumer().unwrap().name, consumer);
                assert_eq!(x.header("apikey").is_none(), hidden, "the second was asked only if it had to");
            });
        }
    }

    #[test]
    fn none_that_agrees_is_a_refusal_of_its_own() {
        for headers in [&[][..], &[("Authorization", "Basic Zm9vOmZvbw==")], &[("apikey", "no")]] {
            ask(&both(), headers, |step, x| {
                let Step::Reply(reply) = step else { panic!("{step:?}") };
                assert_eq!(
                    (reply.status, &reply.body[..]),
                    (401, &b"{\"message\":\"Authorization Failed\"}\n"[..])
                );
                let challenge = ("WWW-Authenticate", b"apikey realm=\"key\"".to_vec());
                let challenges = reply.headers.iter().filter(|(name, _)| *name == "WWW-Authenticate");
                assert_eq!(challenges.collect::<Vec<_>>(), [&challenge]);
                assert!(x.consumer().is_none());
            });
        }
    }

    #[test]
    fn a_plugin_that_is_switched_off_does_not_agree() {
        for meta in [json!({"disable": true}), json!({"filter": [["arg_a", "==", "1"]]})] {
            let off = json!({"auth_plugins": [{"key-auth": {"_meta": meta}}, {"basic-auth": {}}]});
            ask(&off, &[], |step, _| assert!(matches!(step, Step::Reply(reply) if reply.status == 401)));
        }
    }

    #[test]
    fn a_body_that_one_wants_is_asked_for() {
        let signed =
            json!({"validate_request_body": true, "clock_skew": 4_000_000_000u64, "signed_headers": []});
        let config = json!({"auth_plugins": [{"key-auth": {}}, {"hmac-auth": signed}]});
        let header = "Signature keyId=\"k\",algorithm=\"hmac-sha256\",headers=\"digest\",signature=\"0pQMvQPWJU7XjWkdo63ypVl4VO2r6y83tLTjLNp7iFY=\"";
        let date = "Tue, 14 Nov 2023 22:13:20 GMT";
        let headers = [("Authorization", header), ("Date", date), ("Digest", "x")];
        let mut probe = Probe::request("POST", "/", &headers)
            .consumer::<crate::hmac_auth::HmacAuth>("jack", json!({"key_id": "k", "secret_key": "s"}));
        let chain = chain(&config);
        let mut x = probe.exchange();
        x.engine_mut().body_state = Body::Streaming;
        let step = chain.run(Phase::Rewrite, &mut 0, &mut x);
        assert!(matches!(step, Step::Body(67_108_864)), "{step:?}");
        sdk::testing::with_body(&mut x, b"body");
        assert!(matches!(chain.run(Phase::Rewrite, &mut 0, &mut x), Step::Reply(_)), "its digest is wrong");
    }

    /// An auth plugin that looks elsewhere before it refuses.
    struct Slow;

    impl Plugin for Slow {
        const NAME: &'static str = "slow-auth";
        const PRIORITY: i32 = 1;
        const PHASES: Phases = Phases::REWRITE;
        const AUTH: bool = true;

        type Config = Value;

        fn schema() -> Value {
            json!({"type": "object"})
        }

        fn build(_config: Value, _cx: &mut Build<'_>) -> Result<Slow, Invalid> {
            Ok(Slow)
        }

        fn rewrite(&self, _x: &mut Exchange<'_>) -> Step {
            Step::Wait
        }

        async fn wait(&self, _phase: Phase, _x: &mut Exchange<'_>) -> Step {
            Step::Reply(Reply::status(403))
        }
    }

    #[test]
    fn after_one_that_waited_the_next_is_asked() {
        let catalog = catalog();
        catalog.register(Box::new(sdk::instance::Linked::<Slow>::NEW)).unwrap();
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let scope = Scope::of_names(&names);
        let config = &json!({"auth_plugins": [{"slow-auth": {}}, {"key-auth": {}}, {"slow-auth": {}}]});
        let chain =
            catalog.chain(&[Configured { name: "multi-auth", config, owner: &owner }], &scope).unwrap();
        for (key, passes) in [("auth-one", true), ("no", false)] {
            let mut probe = Probe::request("GET", "/", &[("apikey", key)])
                .consumer::<KeyAuth>("jack", json!({"key": "auth-one"}));
            let mut x = probe.exchange();
            assert!(matches!(chain.run(Phase::Rewrite, &mut 0, &mut x), Step::Wait));
            let step = sdk::testing::now(chain.wait(Phase::Rewrite, 0, &mut x));
            assert_eq!(matches!(step, Step::Next), passes, "{step:?}");
            assert_eq!(x.consumer().is_some(), passes);
        }
    }

    #[test]
    fn mistakes_are_named_as_apisix_names_them() {
        let reason = |plugins: Value| {
            let config = json!({ "auth_plugins": plugins });
            let invalid = catalog().check("multi-auth", &config, SchemaType::Route).unwrap_err();
            (
                invalid.reason.replace("failed to check the configuration of plugin multi-auth err: ", ""),
                invalid.pointer,
            )
        };
        for (plugins, said, pointer) in [
            (
                json!([{"basic-auth": {"hide_credentials": "false"}}, {"key-auth": {}}]),
                "plugin basic-auth check schema failed: property \"hide_credentials\" validation failed: \
                 wrong type: expected boolean, got string",
                "/auth_plugins/0/basic-auth/hide_credentials",
            ),
            (
                json!([{"key-auth": {}}, {"basic-auth": "blah"}]),
                "plugin basic-auth check schema failed: wrong type: expected object, got string",
                "/auth_plugins/1/basic-auth",
            ),
            (json!([{"key-auth": {}}, {"x": {}}]), "x plugin did not found", "/auth_plugins/1/x"),
            (json!([{"cors": {}}, {"key-auth": {}}]), "cors plugin is not supported", "/auth_plugins/0/cors"),
            (json!([{"key-auth": {}}, "x"]), "wrong type of an entry of auth_plugins", "/auth_plugins/1"),
            (json!([{}, {}]), "auth_plugins names no plugin", "/auth_plugins"),
            (
                json!([{"key-auth": {}}]),
                "property \"auth_plugins\" validation failed: expect array to have at least 2 items",
                "/auth_plugins",
            ),
        ] {
            assert_eq!(reason(plugins), (said.to_owned(), pointer.to_owned()));
        }
    }
}
