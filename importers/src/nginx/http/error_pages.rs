//! `error_page`: files in the place of errors.

use serde_json::{Value, json};

use super::files::{Lookup, serves_files};
use super::{Current, Http};
use crate::Severity;
use crate::nginx::cases::State;
use crate::nginx::directive::Directive;
use crate::nginx::draft::Draft;
use crate::nginx::locations::{self, Location};

impl<'a> Http<'_, 'a> {
    /// Fills in the files that stand in the place of errors.
    pub(super) fn error_pages(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        state: &State<'a>,
        lookup: Lookup<'_>,
        draft: &mut Draft,
    ) {
        let pages = state.scope.all("error_page");
        let of_upstream = state.scope.flag("proxy_intercept_errors") == Some(true);
        let mut files = Vec::new();
        for page in pages {
            match self.error_page(current, location, page, lookup, draft) {
                Ok(Some(mut file)) => {
                    if of_upstream {
                        file["of_upstream"] = json!(true);
                    }
                    files.push(file);
                }
                Ok(None) => {}
                Err(effect) => self.report.add(page, Severity::Behaviour, effect),
            }
        }
        let Some(root) = files.first().map(|file| file["root"].clone()) else { return };
        let entry = draft
            .plugins
            .entry("static-files")
            .or_insert_with(|| json!({"root": root, "try_files": ["@upstream"]}));
        let root = entry["root"].clone();
        for file in files.iter_mut().filter(|file| file["root"] == root) {
            file.as_object_mut().map(|file| file.remove("root"));
        }
        entry["error_files"] = json!(files);
    }

    /// One `error_page`: an entry, or nothing where another part carries it over.
    fn error_page(
        &mut self,
        current: &Current<'_, 'a>,
        location: &Location<'a>,
        page: &'a Directive,
        lookup: Lookup<'_>,
        draft: &mut Draft,
    ) -> Result<Option<Value>, String> {
        let unknown = || "pages for errors are the gateway's own".to_owned();
        let (uri, codes) = page.args.split_last().ok_or_else(unknown)?;
        let (answer, codes) = match codes.split_last() {
            Some((answer, codes)) if answer.starts_with('=') => (Some(&answer[1..]), codes),
            _ => (None, codes),
        };
        let statuses: Vec<u16> = codes.iter().filter_map(|code| code.parse().ok()).collect();
        if statuses.len() != codes.len() || !statuses.iter().all(|status| (300..600).contains(status)) {
            return Err(unknown());
        }
        if uri.starts_with('@') && statuses == [404] && answer == Some("") {
            // As the last entry of `try_files`.
            let is_files =
                draft.plugins.get("static-files").is_some_and(|plugin| plugin.get("try_files").is_none());
            let state = State::of(&location.scope, Default::default());
            if is_files && self.named(current, page, uri, &state, draft).as_deref() == Some("@upstream") {
                draft.plugins["static-files"]["try_files"] = json!(["$uri", "$uri/", "@upstream"]);
                return Ok(None);
            }
            return Err(unknown());
        }
        if !uri.starts_with('/') || uri.contains(['$', '?']) {
            return Err(unknown());
        }
        let target = locations::target(current.locations, uri, true).ok_or_else(unknown)?;
        if !serves_files(&target.scope) {
            return Err(format!("the location `{}` does not answer in the place of errors", target.path));
        }
        let at = target.scope.own("alias").or(target.scope.get("root"));
        let Some(at) = at else { return Err("the file of the page has no `root`".to_owned()) };
        let spot = self.spot(at, target, lookup).filter(|spot| spot.rewrite.is_none()).ok_or_else(unknown)?;
        self.add_root(&spot.root, at);
        let below = spot.strip.as_deref().and_then(|strip| uri.strip_prefix(strip)).unwrap_or(uri);
        let below = spot.only.as_deref().unwrap_or(below);
        let file = format!("/{}", below.trim_start_matches('/'));
        let mut entry = json!({"status": statuses, "root": spot.root, "file": file});
        match answer {
            None => {}
            Some("") => entry["answer"] = json!(200),
            Some(code) => match code.parse::<u16>() {
                Ok(code) if (200..600).contains(&code) => entry["answer"] = json!(code),
                _ => return Err(unknown()),
            },
        }
        Ok(Some(entry))
    }
}
