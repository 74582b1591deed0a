//! public-api: lets a route lead to what a plugin answers itself, such as `/apisix/batch-requests`.
//!
//! Settings and order as in APISIX 3.18. The plugins of the route protect the endpoint.

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::endpoint::{Called, Served};
use sdk::{Build, Exchange, Plugin, Reply, Step, SureAnswer};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage.
pub struct PublicApi {
    /// Instead of the request's own path.
    path: Option<String>,
    all: Vec<Served>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    uri: Option<String>,
}

impl Plugin for PublicApi {
    const NAME: &'static str = "public-api";
    const PRIORITY: i32 = 501;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"uri": {"type": "string"}}})
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<PublicApi, Invalid> {
        Ok(PublicApi { path: config.uri, all: cx.endpoints() })
    }

    fn sure_answer(&self, x: &Exchange<'_>) -> Option<SureAnswer> {
        Some(self.served(x).map_or(SureAnswer::Status(404), |_| SureAnswer::Unknown))
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let Some(served) = self.served(x) else { return Step::Reply(Reply::status(404)) };
        x.set_note(Called(served.at));
        match served.chain.stages().next().map(|stage| stage.instance().serve(x)) {
            // A plugin that serves an endpoint always answers.
            None | Some(Step::Next) => Step::Reply(Reply::status(404)),
            Some(step) => step,
        }
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        match self.served(x).and_then(|served| served.chain.stages().next()) {
            // Requests for endpoints never reach the upstream of the route.
            Some(stage) => match stage.instance().wait(phase, x).await {
                Step::Next => Step::Reply(Reply::status(404)),
                step => step,
            },
            None => Step::Reply(Reply::status(404)),
        }
    }
}

impl PublicApi {
    fn served(&self, x: &Exchange<'_>) -> Option<&Served> {
        let path = self.path.as_ref().map_or(x.path(), String::as_bytes);
        self.all.iter().find(|served| served.endpoint.takes(x.method(), path))
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use sdk::Catalog as _;
    use sdk::build::{Owner, Services};
    use sdk::catalog::{Configured, SchemaType, Scope};
    use sdk::testing::{FixedNames, Probe, now};

    use super::*;
    use crate::Catalog;

    fn catalog() -> Catalog {
        Catalog::new(Services::for_tests(), IndexMap::new())
    }

    /// Whether a plugin answers the request, in this phase's two forms.
    fn answers(config: &Value, method: &str, path: &str) -> [bool; 2] {
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let scope = Scope::of_names(&names);
        let chain =
            catalog().chain(&[Configured { name: "public-api", config, owner: &owner }], &scope).unwrap();
        let mut probe = Probe::request(method, path, &[]);
        let mut x = probe.exchange();
        let sure = chain.stages().next().unwrap().instance().sure_answer(&x);
        let found = |step| !matches!(step, Step::Reply(reply) if reply.status == 404);
        let at_once = found(chain.run(Phase::Access, &mut 0, &mut x));
        let stage = chain.stages().next().unwrap();
        assert_eq!(sure, Some(if at_once { SureAnswer::Unknown } else { SureAnswer::Status(404) }));
        [at_once, found(now(stage.instance().wait(Phase::Access, &mut x)))]
    }

    #[test]
    fn method_and_path_lead_to_a_plugin() {
        let named = json!({"uri": "/apisix/batch-requests"});
        for (config, method, path, expected) in [
            (&json!({}), "POST", "/apisix/batch-requests", true),
            (&json!({}), "GET", "/apisix/batch-requests", false),
            (&json!({}), "POST", "/apisix/batch-requests/", false),
            (&json!({}), "POST", "/", false),
            (&named, "POST", "/", true),
            (&named, "GET", "/", false),
            (&json!({"uri": "/"}), "POST", "/apisix/batch-requests", false),
        ] {
            assert_eq!(answers(config, method, path), [expected; 2], "{config} {method} {path}");
        }
        assert_eq!(
            catalog().check("public-api", &json!({"uri": 1}), SchemaType::Route).unwrap_err().pointer,
            "/uri"
        );
    }
}
