//! Answers of the gateway itself: `return`, redirects, `echo`.

use serde_json::{Map, json};

use super::cases::{Groups, Rewrite, State};
use super::directive::Directive;
use super::draft::Draft;
use super::parser::is_types;
use super::report::Report;
use super::scope::Scope;
use super::text::{Piece, Text, group_names};
use crate::Severity;

/// Facts about the server that answers.
pub(super) struct Site<'s> {
    /// The beginning of a `Location`, before the path: `$scheme://$host`.
    pub origin: &'s str,
    /// The path of the location, if it is a whole one.
    pub path: Option<&'s str>,
}

/// Fills in a `return`.
pub(super) fn give(
    at: &Directive,
    state: &State<'_>,
    site: &Site<'_>,
    lookup: &dyn Fn(&str) -> Option<Text>,
    draft: &mut Draft,
    report: &mut Report,
) {
    let (status, text) = match (at.arg(0).parse::<u16>(), at.args.len()) {
        (Ok(status), _) => (status, at.args.get(1)),
        (Err(_), 1) => (302, at.args.first()),
        (Err(_), _) => {
            report.add(at, Severity::Behaviour, "not carried over: its status is no number");
            return draft.answer(500, None, "");
        }
    };
    let text = text.map(|text| {
        let names = match &state.groups {
            Groups::Path(pattern) => group_names(pattern),
            _ => Vec::new(),
        };
        Text::parse(text).with_groups(&names).fill(lookup)
    });
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    match text {
        Some(text) if is_redirect => {
            let pattern = match &state.groups {
                Groups::Path(pattern) => pattern.as_str(),
                _ => "",
            };
            redirect(at, status, &text, pattern, false, site, draft, report);
        }
        Some(text) => {
            let content_type = content_type(&state.scope, site.path);
            let body = template(at, text, report);
            draft.answer(status, Some(&content_type), &body);
        }
        None if status == 444 => {
            report.add(at, Severity::Behaviour, "the client gets status 444 before its connection is closed");
            draft.answer(444, None, "");
        }
        None => page(status, draft),
    }
    if !(200..=599).contains(&status) {
        report.add(at, Severity::Behaviour, "the status is not one that the gateway sends; it sends 500");
        page(500, draft);
    }
}

/// Fills in a `rewrite` that redirects.
pub(super) fn redirect_by(
    at: &Directive,
    rewrite: &Rewrite,
    status: u16,
    site: &Site<'_>,
    draft: &mut Draft,
    report: &mut Report,
) {
    let mut text = rewrite.replacement.clone();
    // A `?` at the end leaves the query out.
    let keeps_query = match text.0.last_mut() {
        Some(Piece::Literal(last)) if last.ends_with('?') => {
            last.pop();
            false
        }
        _ => true,
    };
    redirect(at, status, &text, &rewrite.pattern, keeps_query, site, draft, report);
}

#[expect(clippy::too_many_arguments, reason = "the parts of one answer")]
fn redirect(
    at: &Directive,
    status: u16,
    text: &Text,
    pattern: &str,
    keeps_query: bool,
    site: &Site<'_>,
    draft: &mut Draft,
    report: &mut Report,
) {
    let mut text = text.clone();
    if matches!(text.0.first(), Some(Piece::Literal(first)) if first.starts_with('/')) {
        let mut absolute = Text::parse(site.origin);
        for piece in text.0 {
            match piece {
                Piece::Literal(literal) => absolute.push(&literal),
                piece => absolute.0.push(piece),
            }
        }
        text = absolute;
    }
    if text.has_groups() {
        text = whole_path(&text, pattern);
    }
    if text.has_groups() {
        let others = text.variables().any(|name| !super::text::is_group(name));
        if others {
            // The groups of a pattern and variables do not go together; a relative address means the same.
            let relative = Text::parse(&text.source().replacen(&Text::parse(site.origin).source(), "", 1));
            if relative.variables().any(|name| !super::text::is_group(name)) {
                report.add(
                    at,
                    Severity::Behaviour,
                    "the variables beside groups are left out of the address",
                );
            }
            text = Text(
                relative
                    .0
                    .into_iter()
                    .filter(|piece| match piece {
                        Piece::Variable(name) => super::text::is_group(name),
                        Piece::Literal(_) => true,
                    })
                    .collect(),
            );
        }
        let replacement = match text.template() {
            Ok(replacement) => replacement,
            Err(_) => return page(status, draft),
        };
        let settings = json!({
            "regex_uri": [pattern, replacement],
            "ret_code": status,
            "append_query_string": keeps_query,
            "encode_uri": true,
        });
        draft.plugins.insert("redirect".to_owned(), settings);
        return;
    }
    let location = template(at, text, report);
    if keeps_query {
        let settings = json!({
            "uri": location,
            "ret_code": status,
            "append_query_string": true,
            "encode_uri": true,
        });
        draft.plugins.insert("redirect".to_owned(), settings);
        return;
    }
    let mut headers = Map::new();
    headers.insert("Location".to_owned(), json!(location));
    headers.insert("Content-Type".to_owned(), json!("text/html"));
    draft.abort(status, headers, &html(status));
}

/// Replaces the group of a pattern that takes the whole path by the variable `$uri`.
fn whole_path(text: &Text, pattern: &str) -> Text {
    let pattern = pattern.replace("\\/", "/");
    let whole = ["^(.*)$", "^(.*)", "(.*)", "^(/.*)$", "^(/.*)"].contains(&pattern.as_str());
    let after_slash = ["^/(.*)$", "^/(.*)"].contains(&pattern.as_str());
    if !whole && !after_slash {
        return text.clone();
    }
    let mut found = Text::default();
    for piece in &text.0 {
        match (piece, found.0.last_mut()) {
            (Piece::Variable(name), _) if name == "1" && whole => {
                found.0.push(Piece::Variable("uri".to_owned()))
            }
            (Piece::Variable(name), Some(Piece::Literal(before))) if name == "1" && before.ends_with('/') => {
                before.pop();
                found.0.push(Piece::Variable("uri".to_owned()));
            }
            (Piece::Literal(literal), _) => found.push(literal),
            (piece, _) => found.0.push(piece.clone()),
        }
    }
    found.0.retain(|piece| *piece != Piece::Literal(String::new()));
    found
}

/// A text as a template; variables that the gateway does not have are left out.
pub(super) fn template(at: &Directive, text: Text, report: &mut Report) -> String {
    let mut text = text;
    loop {
        match text.template() {
            Ok(template) if !text.has_groups() => return template,
            Ok(_) => {
                report.add(at, Severity::Behaviour, "groups of a regular expression have no value here");
                text.0.retain(|piece| !matches!(piece, Piece::Variable(name) if super::text::is_group(name)));
            }
            Err(name) => {
                report.add(
                    at,
                    Severity::Behaviour,
                    format!("the gateway has no variable `${name}`: it is empty"),
                );
                text.0.retain(|piece| !matches!(piece, Piece::Variable(known) if *known == name));
            }
        }
    }
}

/// An answer with a short page, as nginx has one for each status.
pub(super) fn page(status: u16, draft: &mut Draft) {
    if status < 300 || status == 304 {
        draft.answer(status, None, "");
    } else {
        draft.answer(status, Some("text/html"), &html(status));
    }
}

fn html(status: u16) -> String {
    let reason = match status {
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Authorization Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Not Allowed",
        410 => "Gone",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Temporarily Unavailable",
        504 => "Gateway Time-out",
        _ => "",
    };
    let title = format!("{status} {reason}");
    let title = title.trim_end();
    format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n</body>\r\n</html>\r\n"
    )
}

/// The media type of an answer: by the ending of the path, else the default type.
fn content_type(scope: &Scope<'_>, path: Option<&str>) -> String {
    let has_types =
        scope.levels().iter().any(|level| level.named("include").any(|directive| is_types(directive.arg(0))));
    let ending = path.and_then(|path| path.rsplit('/').next()?.rsplit_once('.')).map(|(_, ending)| ending);
    let by_ending = match ending {
        Some("html" | "htm") => Some("text/html"),
        Some("gif") => Some("image/gif"),
        Some("jpg" | "jpeg") => Some("image/jpeg"),
        Some("json") if has_types => Some("application/json"),
        Some("txt") if has_types => Some("text/plain"),
        Some("xml") if has_types => Some("text/xml"),
        Some("js") if has_types => Some("application/javascript"),
        Some("css") if has_types => Some("text/css"),
        Some("svg") if has_types => Some("image/svg+xml"),
        Some("ico") if has_types => Some("image/x-icon"),
        _ => None,
    };
    let default = scope.get("default_type").map(|directive| directive.arg(0));
    by_ending.or(default).unwrap_or("text/plain").to_owned()
}

/// The directives of the echo module that make an answer, in a location's block.
pub(super) fn echo(directives: &[&Directive], scope: &Scope<'_>, draft: &mut Draft, report: &mut Report) {
    let mut body = String::new();
    for directive in directives {
        directive.mark_used();
        if directive.name == "echo_duplicate" {
            let times = directive.arg(0).parse::<usize>().unwrap_or(0);
            let length = times.saturating_mul(directive.arg(1).len());
            if length.saturating_add(body.len()) > 1 << 20 {
                report.add(directive, Severity::Behaviour, "a text longer than 1 MiB is left out");
            } else {
                body.push_str(&directive.arg(1).repeat(times));
            }
        } else {
            let words: Vec<String> = directive.args.iter().filter(|arg| *arg != "-n").cloned().collect();
            let text = template(directive, Text::parse(&words.join(" ")), report);
            body.push_str(&text);
            if directive.arg(0) != "-n" {
                body.push('\n');
            }
        }
    }
    let content_type = content_type(scope, None);
    draft.answer(200, Some(&content_type), &body);
}
