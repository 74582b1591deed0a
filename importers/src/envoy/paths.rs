//! How paths are compared: the normal form of each connection manager as a setting of all.

use serde_json::json;

use super::context::Context;
use crate::finding::{Finding, Place, Severity};
use crate::output::Setting;

/// The form of a connection manager's paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathForm {
    pub(super) place: Place,
    /// `normalize_path`
    pub(super) normalized: bool,
    /// `merge_slashes`
    pub(super) merged: bool,
}

/// Adds the settings of all listeners, and findings about connection managers that differ.
pub(super) fn carry(context: &mut Context<'_>, forms: &[PathForm]) {
    let Some(first) = forms.first() else { return };
    let same = forms.iter().all(|form| (form.normalized, form.merged) == (first.normalized, first.merged));
    if same {
        let settings = [
            ("resolve_dots", first.normalized),
            ("decode_unreserved", first.normalized),
            ("merge_slashes", first.merged),
        ];
        for (name, value) in settings.into_iter().filter(|(_, value)| !value) {
            let path = format!("sluice.path.{name}");
            context.import.settings.push(Setting { path, value: json!(value), place: first.place.clone() });
        }
    }
    for form in forms.iter().filter(|form| !(form.normalized && form.merged)) {
        let names = [("normalize_path", form.normalized), ("merge_slashes", form.merged)];
        let absent: Vec<&str> = names.iter().filter(|(_, is_set)| !is_set).map(|(name, _)| *name).collect();
        let (severity, effect, hint) = match same {
            true => (
                Severity::Cosmetic,
                "routes are chosen by the path as the client wrote it, as in Envoy: `/public/../admin` is below `/public/`",
                "set `normalize_path: true` and `merge_slashes: true` where routes protect paths",
            ),
            false => (
                Severity::Behaviour,
                "connection managers differ in it, so routes of all are chosen by paths in their normal form: dot segments \
                 and repeated slashes are resolved, and escapes decoded",
                "give all connection managers the same `normalize_path` and `merge_slashes`",
            ),
        };
        context.report.findings.push(Finding {
            place: form.place.clone(),
            severity,
            construct: absent.join(", "),
            effect: effect.to_owned(),
            hint: Some(hint.to_owned()),
            resources: Vec::new(),
        });
    }
}
