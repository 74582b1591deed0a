//! Preflight requests that Spring answers itself.

use model::{Key, Kind};
use serde_json::{Value, json};

use super::cors::Cors;
use super::ids::Ids;
use super::path::Anchor;
use super::report::Report;
use super::routes::Draft;
use super::upstream;

/// The conditions of a preflight request.
fn conditions() -> Value {
    json!([
        ["request_method", "==", "OPTIONS"],
        ["http_origin", "~~", "."],
        ["http_access_control_request_method", "~~", "."],
    ])
}

/// Refuses preflight requests for routes without CORS, as Spring Cloud Gateway does: by a rule for all requests where no
/// route has CORS, and otherwise in each route. Returns the rule.
pub fn refuse(drafts: &mut [Draft], cors: &Cors) -> Option<Value> {
    let abort = json!({"abort": {"http_status": 403, "vars": [conditions()]}});
    let has_cors =
        |draft: &Draft| draft.body.get("plugins").is_some_and(|plugins| plugins.get("cors").is_some());
    if cors.is_empty() && !drafts.iter().any(has_cors) {
        return Some(json!({"plugins": {"fault-injection": abort}}));
    }
    for draft in drafts.iter_mut().filter(|draft| !has_cors(draft)) {
        let plugins = draft.body.entry("plugins").or_insert_with(|| json!({}));
        if plugins.get("fault-injection").is_none() {
            plugins["fault-injection"] = abort.clone();
        }
    }
    None
}

/// The route that refuses preflight requests for paths without a route, behind all others.
pub fn last(ids: &mut Ids, report: &Report) -> Draft {
    let body = json!({"vars": conditions(), "plugins": {"fault-injection": {"abort": {"http_status": 403}}}});
    Draft {
        key: Key::new(Kind::Route, ids.take("preflight")),
        place: report.place(),
        order: i64::MAX,
        anchors: vec![Anchor::Prefix("/".to_owned())],
        body: body.as_object().cloned().unwrap_or_default(),
        upstream: upstream::no_nodes(),
        weight: None,
    }
}
