//! Answers of the gateway itself: `direct_response` and `redirect`.

use serde_json::{Map, json};

use super::context::Context;
use super::draft::Draft;
use super::format;
use super::matching::Path;
use super::value::{boolean, enumerated, escaped, number, regex_text, replacement, text};
use crate::base64;
use crate::node::Node;

/// A `DirectResponseAction`.
pub(super) fn direct(context: &Context<'_>, action: &Node<'_>, draft: &mut Draft) {
    let status = number(action, "status").and_then(|status| u16::try_from(status).ok());
    let status = status.filter(|status| (200..=599).contains(status)).unwrap_or(200);
    let mut body = String::new();
    if let Some(source) = action.some("body") {
        match context.data(&source) {
            Ok(text) => body = text,
            Err(problem) => draft.report.behaviour(
                &source,
                "direct_response.body",
                format!("the answer has no body: {problem}"),
            ),
        }
    }
    if let Some(formatted) = action.some("body_format") {
        let plain = formatted.some("text_format_source").map(|source| context.data(&source));
        let plain = plain.or_else(|| text(&formatted, "text_format").map(|text| Ok(text.to_owned())));
        match plain {
            Some(Ok(text)) if !text.contains('%') => body = text,
            _ => draft.report.behaviour(
                &formatted,
                "direct_response.body_format",
                "the answer has a body without values of the request",
            ),
        }
        formatted.whole();
    }
    let mut literal = String::new();
    let is_plain = format::literal(&body, &mut literal).is_ok();
    draft.plugins.mock(status, if is_plain { &body } else { "" }, Map::new());
    if !is_plain {
        // It must not be read as a template.
        draft.plugins.set_member("response-rewrite", "body", json!(base64::encode(body.as_bytes())));
        draft.plugins.set_member("response-rewrite", "body_base64", json!(true));
    }
}

/// A `RedirectAction`. With `raw_targets` the address has the path as the client sent it.
pub(super) fn redirect(action: &Node<'_>, raw_targets: bool, draft: &mut Draft) {
    let status = match enumerated(action, "response_code").as_deref() {
        Some("FOUND") => 302,
        Some("SEE_OTHER") => 303,
        Some("TEMPORARY_REDIRECT") => 307,
        Some("PERMANENT_REDIRECT") => 308,
        _ => 301,
    };
    let scheme = match (boolean(action, "https_redirect"), text(action, "scheme_redirect")) {
        (Some(true), _) => Some("https"),
        (_, scheme) => scheme.filter(|scheme| !scheme.is_empty()),
    };
    let host = text(action, "host_redirect").filter(|host| !host.is_empty());
    let port = number(action, "port_redirect").filter(|port| *port > 0);
    let keeps_query = boolean(action, "strip_query") != Some(true);
    let authority = match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, Some(port)) => format!("$host:{port}"),
        (None, None) => "$http_host".to_owned(),
    };
    let origin = format!("{}://{authority}", scheme.unwrap_or("$scheme"));
    let mut settings = json!({"ret_code": status});
    let pair = if let Some(prefix) = text(action, "prefix_rewrite") {
        Some(prefix_pair(&draft.matcher.path, draft.matcher.ignore_case, prefix))
    } else if let Some(rewrite) = action.some("regex_rewrite") {
        let pattern = rewrite.some("pattern").and_then(|pattern| regex_text(&pattern)).unwrap_or_default();
        Some((pattern, replacement(text(&rewrite, "substitution").unwrap_or_default())))
    } else {
        None
    };
    match (pair, text(action, "path_redirect")) {
        (Some((pattern, path)), _) => {
            // A replacement has no variables, so without a host the address is relative.
            let begins = pattern.starts_with("(?s") || pattern.starts_with('^');
            let before = match (scheme, host.is_some() && begins) {
                (Some(scheme), true) => format!("{scheme}://{authority}"),
                (None, true) => format!("//{authority}"),
                _ => String::new(),
            };
            if (host.is_none() || !begins) && (scheme.is_some() || port.is_some()) {
                draft.report.behaviour(
                    action,
                    "redirect",
                    "with a rewritten path the address keeps scheme, host and port of the request",
                );
            }
            if keeps_query {
                note_query(action, &path, draft);
            }
            settings["regex_uri"] = json!([pattern, format!("{before}{path}")]);
            settings["append_query_string"] = json!(keeps_query);
            settings["encode_uri"] = json!(true);
        }
        (None, Some(path)) => {
            let mut uri = format!("{origin}{}", if path.starts_with('/') { "" } else { "/" });
            if format::literal(path, &mut uri).is_err() {
                draft.report.behaviour(action, "path_redirect", "`$` in the address begins a variable");
                uri.push_str(path);
            }
            settings["uri"] = json!(uri);
            // A path with a query of its own replaces that of the request.
            if keeps_query && !path.contains('?') {
                settings["append_query_string"] = json!(true);
            }
        }
        (None, None) if keeps_query && raw_targets => {
            settings["uri"] = json!(format!("{origin}$real_request_uri"));
        }
        (None, None) => {
            settings["uri"] = json!(format!("{origin}$uri"));
            settings["encode_uri"] = json!(true);
            settings["append_query_string"] = json!(keeps_query);
        }
    }
    draft.plugins.set("redirect", settings);
}

/// Reports a `?` in the text that replaces a path.
pub(super) fn note_query(place: &Node<'_>, replacement: &str, draft: &mut Draft) {
    if replacement.contains('?') {
        draft.report.behaviour(
            place,
            "`?` in a new path",
            "the query of the request is joined to that of the new path by `&`; Envoy adds a second `?`",
        );
    }
}

/// Pattern and replacement that replace the matched part of a path.
pub(super) fn prefix_pair(path: &Path, ignore_case: bool, prefix: &str) -> (String, String) {
    let flags = if ignore_case { "(?si)" } else { "(?s)" };
    let prefix = prefix.replace('$', "$$");
    match path {
        Path::Prefix(matched) | Path::Separated(matched) => {
            (format!("{flags}^{}(.*)", escaped(matched)), format!("{prefix}${{1}}"))
        }
        // The whole path has been matched.
        Path::Exact(_) | Path::Regex(_) => ("(?s)^.*".to_owned(), prefix),
    }
}

/// Whether rewriting a prefix changes nothing.
pub(super) fn is_same(path: &Path, prefix: &str) -> bool {
    matches!(path, Path::Prefix(matched) | Path::Separated(matched) | Path::Exact(matched) if matched == prefix)
}
