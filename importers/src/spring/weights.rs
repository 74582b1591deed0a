//! Routes that share the requests of a group by weight, as one route with traffic-split.

use serde_json::{Value, json};

use super::report::Report;
use super::routes::Draft;
use crate::finding::Severity;

/// Merges the routes of each group.
pub fn merge(drafts: &mut Vec<Draft>, report: &mut Report) {
    let mut at = 0;
    while at < drafts.len() {
        let Some(weight) = drafts[at].weight.clone() else {
            at += 1;
            continue;
        };
        let same = |other: &Draft| other.weight.as_ref().is_some_and(|other| other.group == weight.group);
        let first = &drafts[at];
        let fits = |other: &Draft| {
            other.anchors == first.anchors && other.body == first.body && other.order == first.order
        };
        let group: Vec<usize> = (at..drafts.len()).filter(|other| same(&drafts[*other])).collect();
        if !group.iter().all(|other| fits(&drafts[*other])) {
            let effect = format!(
                "the routes of the group `{}` differ, so their weights are not carried over",
                weight.group
            );
            for other in &group {
                let draft = &mut drafts[*other];
                draft.weight = None;
                report.route = Some(draft.key.clone());
                report.find(Severity::Behaviour, draft.place.clone(), "Weight", effect.clone());
            }
            report.route = None;
            continue;
        }
        let split = |draft: &Draft| {
            let weight = draft.weight.as_ref().map_or(1, |weight| weight.weight);
            json!({"upstream": draft.upstream, "weight": weight})
        };
        let upstreams: Vec<Value> = group.iter().map(|other| split(&drafts[*other])).collect();
        if upstreams.len() > 1 {
            let settings = json!({"rules": [{"weighted_upstreams": upstreams}]});
            let plugins = drafts[at].body.entry("plugins").or_insert_with(|| json!({}));
            plugins["traffic-split"] = settings;
        }
        drafts[at].weight = None;
        for other in group.into_iter().skip(1).rev() {
            drafts.remove(other);
        }
        at += 1;
    }
}
