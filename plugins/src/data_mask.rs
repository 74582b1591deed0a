//! data-mask: masks parts of the query, the headers and the body of a request for the logs.
//!
//! Settings as in APISIX 3.18. The masks apply when the request has ended, before entries of loggers and lines of the
//! access log are written; the upstream gets the request as it was. Where a mask cannot be applied, APISIX logs the
//! plain text. Here it is left out: a body that is too long, is not what its rules expect, or was buffered in part; and
//! a value in which the search of a regular expression is not decided. The query of a rewritten URI is masked, too.
//!
//! Bodies are buffered, and masked, only where another plugin has them buffered, such as a logger.
//!
//! Plugins that come earlier in the log phase see the plain text: `zipkin`, `skywalking` and `opentelemetry`, whose spans
//! have the URI, and for a mask of a route or service all loggers of global rules. A mask of a global rule comes before the
//! loggers of both.

mod body;
mod rules;

use std::sync::Arc;

use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::Body;
use sdk::pattern::Searches;
use sdk::{Build, Exchange, HeaderName, Phase, Plugin, Step};
use serde::Deserialize;
use serde_json::Value;

use crate::{query, tree};
use body::BodyRules;
use rules::{Action, Arguments, Masked};

/// The plugin instance.
pub struct DataMask {
    query: Arguments,
    headers: Vec<(HeaderName, Action)>,
    /// Shared with the masking of a long body, on a background thread.
    body: Option<Arc<BodyRules>>,
    max_body: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(default)]
    request: Vec<Rule>,
    max_body_size: usize,
    max_req_post_args: usize,
}

#[derive(Debug, Deserialize)]
struct Rule {
    r#type: Place,
    body_format: Option<BodyFormat>,
    name: String,
    action: Kind,
    regex: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Query,
    Header,
    Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BodyFormat {
    Json,
    Urlencoded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Regex,
    Replace,
    Remove,
}

/// The masked body, made before the request went to the upstream.
struct Made {
    /// `None` withholds it.
    text: Option<Vec<u8>>,
    held: Reservation,
    /// The plugin instances whose masks it has, as of a global rule and a route.
    by: Vec<usize>,
}

/// Bytes of a body that a worker masks itself.
const ON_WORKER: usize = 32 << 10;

impl Plugin for DataMask {
    const NAME: &'static str = "data-mask";
    const PRIORITY: i32 = 1500;
    const PHASES: Phases = Phases::BEFORE_PROXY.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<DataMask, Invalid> {
        let mut query = Arguments::new(0);
        let mut headers = Vec::new();
        let mut body = BodyRules::new(config.max_req_post_args);
        for (at, rule) in config.request.iter().enumerate() {
            let pointer = |field: &str| format!("/request/{at}/{field}");
            let action = Action::new(rule).map_err(|invalid| invalid.under(&format!("/request/{at}")))?;
            match (rule.r#type, rule.body_format) {
                (Place::Query, _) => query.add(&rule.name, action),
                (Place::Header, _) => {
                    let name = HeaderName::new(&rule.name);
                    let name = name
                        .map_err(|_| Invalid::new("the name of a header is invalid").at(pointer("name")))?;
                    headers.push((name, action));
                }
                (Place::Body, Some(BodyFormat::Json)) => {
                    body.add_path(&rule.name, action).map_err(|why| {
                        Invalid::new(format!("invalid JSONPath: {why}"))
                            .at(pointer("name"))
                            .got(rule.name.as_str())
                    })?;
                }
                (Place::Body, Some(BodyFormat::Urlencoded)) => body.form.add(&rule.name, action),
                (Place::Body, None) => {
                    return Err(
                        Invalid::new("property \"body_format\" is required").at(pointer("body_format"))
                    );
                }
            }
        }
        let max_body = config.max_body_size;
        Ok(DataMask { query, headers, body: (!body.is_empty()).then(|| Arc::new(body)), max_body })
    }

    fn phases(&self) -> Phases {
        if self.body.is_some() { Self::PHASES } else { Phases::LOG }
    }

    /// Has the whole body buffered where another plugin wants some of it: a part of it cannot be masked.
    fn before_proxy(&self, x: &mut Exchange<'_>) -> Step {
        if x.body_asked() == 0 {
            return Step::Next;
        }
        match x.ask_for_optional_body(self.max_body) {
            Some(step) => step,
            None if x.body().len() > ON_WORKER && x.body().len() <= self.max_body => Step::Wait,
            None => Step::Next,
        }
    }

    /// Masks a long body on a background thread.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let (Some(rules), world) = (self.body.clone(), x.world()) else { return Step::Next };
        let (kind, before) = (remember_kind(x), x.take_note::<Made>());
        let room = |text: &[u8]| tree::weight(text) + text.len();
        let size = match &before {
            Some(made) => made.text.as_deref().map_or(0, room),
            None => room(x.body()),
        };
        let mut held = Reservation::default();
        let has_room = held.resize(world.budget(), size).is_ok();
        let (text, mut by) = match before {
            Some(made) => (made.text.filter(|_| has_room), made.by),
            None => (has_room.then(|| x.body().to_vec()), Vec::new()),
        };
        by.push(self.identity());
        let made = match text {
            Some(text) => {
                let masking =
                    world.offload(held, move |_| match rules.mask(kind, &text, &Searches::default()) {
                        // Not copied again.
                        Masked::Same => Some(text),
                        Masked::Text(masked) => Some(masked),
                        Masked::Withheld => None,
                    });
                let (text, mut held) = masking.await;
                let size = text.as_ref().map_or(0, Vec::capacity);
                // It shrinks, which does not fail.
                let _ = held.resize(world.budget(), size);
                Made { text, held, by }
            }
            None => Made { text: None, held, by },
        };
        x.set_note(made);
        Step::Next
    }

    fn log(&self, x: &mut Exchange<'_>) {
        self.mask_query(x);
        if !self.headers.is_empty() || self.body.is_some() {
            // Masks of headers do not change the kind of the body.
            remember_kind(x);
        }
        for (name, action) in &self.headers {
            mask_header(x, name, action);
        }
        if let Some(rules) = &self.body {
            self.mask_body(rules, x);
        }
    }
}

impl DataMask {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn mask_query(&self, x: &mut Exchange<'_>) {
        if self.query.is_empty() {
            return;
        }
        // Another plugin may have changed the query, as to hide a key, but the request line has the client's.
        let target = x.request().target();
        let at = target.iter().position(|&byte| byte == b'?').map_or(target.len(), |at| at + 1);
        let (sent, now) = (&target[at..], x.query());
        let masked = [sent, now].map(|query| self.query.mask(query, x.searches()));
        if masked.iter().any(Option::is_some) {
            let [sent_masked, now_masked] = masked;
            let (sent, now) =
                (sent_masked.unwrap_or_else(|| sent.to_vec()), now_masked.unwrap_or_else(|| now.to_vec()));
            x.mask_query(&sent);
            x.set_query(&now);
        }
        let mask = |query: &[u8]| self.query.mask(query, x.searches());
        if let Some(uri) = x.rewritten_uri().and_then(|uri| query::changed_in_uri(uri, mask)) {
            x.set_upstream_uri(&uri);
        }
    }

    fn mask_body(&self, rules: &BodyRules, x: &mut Exchange<'_>) {
        let identity = self.identity();
        let made = x.note_mut::<Made>().filter(|made| made.by.contains(&identity));
        let made = made.map(|made| {
            (made.text.take(), std::mem::take(&mut made.held), made.by.first() == Some(&identity))
        });
        if x.body_prefix().is_empty() {
            return;
        }
        let kind = remember_kind(x);
        let masked = match made {
            // The first instance applies the masks of all.
            Some((_, _, false)) => return,
            Some((Some(masked), held, _)) => {
                drop(held);
                Masked::Text(masked)
            }
            None if x.body_state() == Body::Whole && x.body().len() <= ON_WORKER.min(self.max_body) => {
                let mut held = Reservation::default();
                match held.resize(x.world().budget(), tree::weight(x.body())) {
                    Ok(()) => rules.mask(kind, x.body(), x.searches()),
                    Err(_) => Masked::Withheld,
                }
            }
            _ => Masked::Withheld,
        };
        match masked {
            Masked::Same => {}
            Masked::Text(text) => x.mask_body(text),
            Masked::Withheld => {
                x.complain(Self::NAME, "the request's body cannot be masked, so it is not logged");
                x.mask_body(Vec::new());
            }
        }
    }
}

/// The kind of the body, as the headers had it before any mask.
fn remember_kind(x: &mut Exchange<'_>) -> body::Kind {
    if let Some(kind) = x.note::<body::Kind>() {
        return *kind;
    }
    let kind = body::Kind::of(x);
    x.set_note(kind);
    kind
}

/// Masks all values of a header.
fn mask_header(x: &mut Exchange<'_>, name: &HeaderName, action: &Action) {
    if x.header(name).is_none() {
        return;
    }
    let (mut values, mut is_masked) = (Vec::new(), false);
    for value in x.request().fields.all(name.as_str().as_bytes()) {
        match action.apply(value, x.searches()) {
            Masked::Same => values.push(value.to_vec()),
            Masked::Text(text) => (is_masked, _) = (true, values.push(text)),
            Masked::Withheld => is_masked = true,
        }
    }
    if !is_masked {
        return;
    }
    // A value that no header can have is left out.
    let mut is_empty = true;
    for value in values {
        let set = if is_empty { x.set_header(name, &value) } else { x.add_header(name, &value) };
        is_empty &= set.is_err();
    }
    if is_empty {
        x.remove_header(name);
    }
}

#[cfg(test)]
mod tests;
