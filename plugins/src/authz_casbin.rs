//! authz-casbin: accepts or refuses requests by a model and a policy of Casbin.
//!
//! Settings and answers as in APISIX 3.18: the subject is a header, the object the path, the action the method. Model and
//! policy are compiled when the configuration changes; those in files are read with the first request. Several headers of
//! the subject are refused, since servers differ in which of them counts. A request is refused as well if a search of a
//! regular expression takes too many steps. Patterns that would be read differently than by Casbin are refused with the
//! configuration: `**`, `[` and `\` of globMatch, and regular expressions within those of keyMatch2 and keyMatch3; so are
//! patterns that are values of the request.
//!
//! Model and policy are compiled here and not by the crate `casbin`, which interprets a script for each line of the
//! policy and needs a runtime of its own.

mod functions;
mod matcher;
mod model;
mod parse;

use std::sync::Arc;
use std::time::Duration;

use ::model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::pattern::StepLimit;
use sdk::state::WorkerState;
use sdk::verdict::Undecidable;
use sdk::{Build, Exchange, HeaderName, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remote::cache::{Cache, obtain};
use model::Enforcer;

/// The plugin instance.
pub struct AuthzCasbin {
    username: HeaderName,
    rules: Rules,
}

enum Rules {
    Compiled(Arc<Enforcer>),
    Files {
        model: String,
        policy: String,
        cache: WorkerState<Cache<Arc<Enforcer>>>,
    },
    /// Neither the settings nor the metadata have them.
    Missing,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    model_path: Option<String>,
    policy_path: Option<String>,
    model: Option<String>,
    policy: Option<String>,
    username: String,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    model: String,
    policy: String,
}

/// The longest file, in bytes.
const FILE: u64 = 16 << 20;

/// How long the files may take, and for how long a request waits for another one that reads them.
const FILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Lines of a policy, and links between its roles, that a worker looks at itself.
const ON_WORKER: usize = 500;

const ANONYMOUS: &[u8] = b"anonymous";

impl Plugin for AuthzCasbin {
    const NAME: &'static str = "authz-casbin";
    const PRIORITY: i32 = 2560;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        let mut schema = crate::apisix_schema(Self::NAME);
        // The metadata may have the model and the policy.
        if let Some(alternatives) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
            let others =
                ["model_path", "policy_path", "model", "policy"].map(|name| json!({"required": [name]}));
            alternatives.push(json!({"required": ["username"], "not": {"anyOf": others}}));
        }
        schema
    }

    fn metadata_schema() -> Option<Value> {
        crate::apisix_metadata_schema(Self::NAME)
    }

    fn check_metadata(metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        compile_metadata(metadata).map(drop)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<AuthzCasbin, Invalid> {
        let username = HeaderName::new(&config.username).map_err(|_| {
            Invalid::new("the name of a header is invalid").at("/username").got(config.username.as_str())
        })?;
        let rules = match (config.model_path, config.policy_path, config.model, config.policy) {
            (Some(model), Some(policy), ..) => {
                Rules::Files { model, policy, cache: cx.worker_state("files") }
            }
            (_, _, Some(model), Some(policy)) => {
                Rules::Compiled(Arc::new(Enforcer::compile(&model, &policy)?))
            }
            _ => match cx.metadata() {
                Some(metadata) => Rules::Compiled(Arc::new(compile_metadata(metadata)?)),
                None => Rules::Missing,
            },
        };
        Ok(AuthzCasbin { username, rules })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        match &self.rules {
            Rules::Compiled(enforcer) if enforcer.work() <= ON_WORKER => self.judge(x, enforcer),
            Rules::Compiled(_) | Rules::Files { .. } => Step::Wait,
            Rules::Missing => missing(x),
        }
    }

    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let enforcer = match &self.rules {
            Rules::Compiled(enforcer) => enforcer.clone(),
            Rules::Files { model, policy, cache } => {
                let times = (u64::MAX / 2, FILE_TIMEOUT.as_millis() as u64);
                let ask = async || read(x, model, policy).await;
                match obtain(cache, x.world(), times, |_| true, ask).await {
                    Some(enforcer) => Arc::clone(&enforcer),
                    None => {
                        return Step::Reply(Reply::status(503).because("model and policy cannot be read"));
                    }
                }
            }
            Rules::Missing => return missing(x),
        };
        if enforcer.work() <= ON_WORKER {
            return self.judge(x, &enforcer);
        }
        let Some(subject) = self.subject(x) else { return verdict(Ok(false)) };
        let request = [subject, x.path(), x.request().method_bytes()].map(<[u8]>::to_vec);
        let searches = x.searches().take();
        let job = x.world().offload(Reservation::default(), move |_| {
            let [subject, object, action] = &request;
            (enforcer.accepts([subject, object, action], &searches), searches)
        });
        let (accepted, rest) = job.await.0;
        x.searches().put_back(&rest);
        verdict(accepted)
    }
}

impl AuthzCasbin {
    fn judge(&self, x: &Exchange<'_>, enforcer: &Enforcer) -> Step {
        let Some(subject) = self.subject(x) else { return verdict(Ok(false)) };
        verdict(enforcer.accepts([subject, x.path(), x.request().method_bytes()], x.searches()))
    }

    /// The subject of a request; `None` if it is ambiguous.
    fn subject<'x>(&'x self, x: &'x Exchange<'_>) -> Option<&'x [u8]> {
        let mut all = x.request().fields.all(self.username.as_str().as_bytes());
        match (all.next(), all.next()) {
            (None, _) => Some(ANONYMOUS),
            (Some(one), None) => Some(one),
            _ => None,
        }
    }
}

fn missing(x: &Exchange<'_>) -> Step {
    x.complain(AuthzCasbin::NAME, "not enough configuration to create enforcer");
    Step::Reply(Reply::status(503).because("there is no model and no policy"))
}

fn verdict(accepted: Result<bool, StepLimit>) -> Step {
    match accepted {
        Ok(true) => return Step::Next,
        Ok(false) => {}
        Err(StepLimit) => return Step::Refuse(Undecidable::Spent),
    }
    let reply = Reply::json(403, &json!({"message": "Access Denied"}));
    Step::Reply(reply.because("the policy does not accept the request"))
}

fn compile_metadata(metadata: &Value) -> Result<Enforcer, Invalid> {
    let Metadata { model, policy } =
        Metadata::deserialize(metadata).map_err(|error| Invalid::new(error.to_string()))?;
    Enforcer::compile(&model, &policy)
}

/// Reads and compiles the files, on the threads for files; the reason why that failed is logged.
async fn read(x: &Exchange<'_>, model: &str, policy: &str) -> Option<Arc<Enforcer>> {
    let (model, policy) = (model.to_owned(), policy.to_owned());
    let job = x.world().read_files(Reservation::default(), FILE_TIMEOUT, move |_| {
        let compiled = file(&model)
            .map_err(|_| "the file of the model cannot be read")
            .and_then(|model| {
                Ok((model, file(&policy).map_err(|_| "the file of the policy cannot be read")?))
            })
            .map(|(model, policy)| Enforcer::compile(&model, &policy));
        match compiled {
            Ok(Ok(enforcer)) => Ok(Arc::new(enforcer)),
            Ok(Err(_)) => Err("the files of the model and the policy are invalid"),
            Err(why) => Err(why),
        }
    });
    let read = job.await.map_or(Err("reading the model and the policy timed out"), |(read, _)| read);
    read.map_err(|why| x.complain(AuthzCasbin::NAME, why)).ok()
}

/// A small regular file of text, since a holder of the admin key names it.
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "called on the threads for files alone"
)]
fn file(path: &str) -> std::io::Result<String> {
    use std::io::Read;
    // Opening a FIFO would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE { Err(std::io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
