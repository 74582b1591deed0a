//! Changes of the path by filters in a row, as one list of patterns and replacements.
//!
//! proxy-rewrite tries pairs in order and applies the first that matches, to the path of the client.
//! Filters run one after another, so that their changes are combined here.

use super::path::Pattern;
use super::regexes;

/// A change of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Removes the first segments.
    Strip(usize),
    /// Prepends a text with `{variables}`.
    Prefix(String),
    /// Another path, with `{variables}`.
    Set(String),
    /// Java's `replaceAll`.
    Replace { regex: String, replacement: String },
}

/// Pairs of pattern and replacement; empty if the path stays.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Pairs {
    pub pairs: Vec<(String, String)>,
    /// Groups of the patterns are the variables of the path pattern, if there is one.
    pub has_variables: bool,
}

/// Why changes cannot be combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A replacement that names a group that is not there.
    Replacement(String),
    /// A variable that no path pattern has.
    Variable(String),
    /// Two changes of which the second depends on the result of the first.
    Combination,
}

/// The state after some changes.
enum State {
    Same,
    Strip(usize),
    Prefix(String),
    /// The whole path by alternatives.
    Pairs(Pairs),
}

/// Combines changes.
///
/// # Errors
/// See [`Fault`].
pub fn combine(changes: &[Change], patterns: &[Pattern]) -> Result<Pairs, Fault> {
    let mut state = State::Same;
    let mut prefixed = false;
    for change in changes {
        state = match change {
            Change::Strip(0) => state,
            Change::Strip(count) => strip(state, *count)?,
            // The filter runs once for a request.
            Change::Prefix(_) if prefixed => state,
            Change::Prefix(text) => {
                prefixed = true;
                prefix(state, text, patterns)?
            }
            Change::Set(text) => State::Pairs(set(text, patterns)?),
            Change::Replace { regex, replacement } => replace(state, regex, replacement)?,
        };
    }
    Ok(match state {
        State::Same => Pairs::default(),
        State::Strip(count) => Pairs::of(vec![stripped(count)]),
        State::Prefix(text) => {
            Pairs::of(vec![("^(.*)$".to_owned(), format!("{}${{1}}", regexes::literally(&text)))])
        }
        State::Pairs(pairs) => pairs,
    })
}

/// The changes that later ones would need to see the result of, left out.
pub fn without_later(changes: &[Change], patterns: &[Pattern]) -> Pairs {
    let fit = (0..=changes.len()).rev().find_map(|count| combine(&changes[..count], patterns).ok());
    fit.unwrap_or_default()
}

/// The beginning of the path that changes remove, if that is all they do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    Segments(usize),
    Literal(String),
}

/// See [`Removed`].
pub fn removed(changes: &[Change]) -> Option<Removed> {
    match changes {
        [Change::Strip(count)] if *count > 0 => Some(Removed::Segments(*count)),
        [Change::Replace { regex, replacement }] => {
            let (pattern, names) = regexes::numbered(regex);
            let replacement = regexes::replacement(replacement, &names, 0)?;
            let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
            let rests: &[&str] = match replacement.as_str() {
                "/${1}" => &["/?(.*)", "/(.*)", "(?:/(.*))?"],
                "${1}" => &["(/.*)?", "(/.*)", "(/?.*)", "(.*)"],
                _ => return None,
            };
            let literal = rests.iter().find_map(|rest| pattern.strip_suffix(rest))?;
            let fits = literal.len() > 1 && !literal.ends_with('/') && regexes::escape(literal) == literal;
            fits.then(|| Removed::Literal(literal.to_owned()))
        }
        _ => None,
    }
}

/// Whether Java's `replaceAll` may find a second match of an expression in a path.
pub fn may_repeat(regex: &str) -> bool {
    let end = regex.trim_end_matches(['$', ')', '?']);
    !(regex.starts_with('^') || regex.ends_with('$') || end.ends_with(".*") || end.ends_with(".+"))
}

impl Pairs {
    fn of(pairs: Vec<(String, String)>) -> Pairs {
        Pairs { pairs, has_variables: false }
    }
}

/// Less than `count` segments leave `/`.
fn stripped(count: usize) -> (String, String) {
    (format!("^(?:/[^/]+){{0,{count}}}(?:/(.*))?$"), "/${1}".to_owned())
}

fn strip(state: State, count: usize) -> Result<State, Fault> {
    Ok(match state {
        State::Same => State::Strip(count),
        State::Strip(before) => State::Strip(before + count),
        State::Prefix(text) => {
            let segments: Vec<&str> = text.split('/').filter(|segment| !segment.is_empty()).collect();
            match segments.get(count..) {
                Some([]) => State::Same,
                Some(rest) => State::Prefix(format!("/{}", rest.join("/"))),
                None => State::Strip(count - segments.len()),
            }
        }
        State::Pairs(_) => return Err(Fault::Combination),
    })
}

fn prefix(state: State, text: &str, patterns: &[Pattern]) -> Result<State, Fault> {
    if text.contains('{') {
        let State::Same = state else { return Err(Fault::Combination) };
        let mut pairs = set(text, patterns)?;
        // The path follows: the match as a whole.
        for (_, replacement) in &mut pairs.pairs {
            replacement.push_str("${0}");
        }
        return Ok(State::Pairs(pairs));
    }
    let literal = regexes::literally(text);
    Ok(match state {
        State::Same => State::Prefix(text.to_owned()),
        State::Prefix(before) => State::Prefix(format!("{text}{before}")),
        State::Strip(count) => {
            let (pattern, replacement) = stripped(count);
            State::Pairs(Pairs::of(vec![(pattern, format!("{literal}{replacement}"))]))
        }
        State::Pairs(mut pairs) => {
            if pairs.pairs.iter().any(|(pattern, _)| !is_whole(pattern)) {
                return Err(Fault::Combination);
            }
            for (_, replacement) in &mut pairs.pairs {
                replacement.insert_str(0, &literal);
            }
            // Paths that no pair changed.
            pairs.pairs.push(("^(.*)$".to_owned(), format!("{literal}${{1}}")));
            State::Pairs(pairs)
        }
    })
}

/// Whether a pattern matches the whole path, if it matches.
fn is_whole(pattern: &str) -> bool {
    let end = pattern.trim_end_matches([')', '?']);
    pattern.starts_with('^') && (pattern.ends_with('$') || end.ends_with(".*"))
}

fn set(text: &str, patterns: &[Pattern]) -> Result<Pairs, Fault> {
    if !text.contains('{') {
        return Ok(Pairs::of(vec![("^.*$".to_owned(), regexes::literally(text))]));
    }
    let mut pairs = Vec::new();
    for pattern in patterns {
        pairs.push((pattern.regex.clone(), expanded(text, &pattern.variables, regexes::literally)?));
    }
    if pairs.is_empty() {
        return Err(Fault::Variable(text.to_owned()));
    }
    Ok(Pairs { pairs, has_variables: true })
}

/// A text with `{name}` as groups, `${1}`.
pub fn expanded(text: &str, variables: &[String], literally: fn(&str) -> String) -> Result<String, Fault> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, inner)) = rest.split_once('{') {
        let Some((name, after)) = inner.split_once('}') else { break };
        let at = variables.iter().position(|known| known == name);
        let at = at.ok_or_else(|| Fault::Variable(name.to_owned()))?;
        out.push_str(&literally(before));
        out.push_str(&format!("${{{}}}", at + 1));
        rest = after;
    }
    out.push_str(&literally(rest));
    Ok(out)
}

fn replace(state: State, regex: &str, replacement: &str) -> Result<State, Fault> {
    let (pattern, names) = regexes::numbered(regex);
    let fault = || Fault::Replacement(replacement.to_owned());
    let anchored = pattern.strip_prefix('^');
    match state {
        State::Same => {
            let replacement = regexes::replacement(replacement, &names, 0).ok_or_else(fault)?;
            Ok(State::Pairs(Pairs::of(vec![(pattern, replacement)])))
        }
        State::Strip(count) => {
            let removed = format!("^(?:/[^/]+){{{count}}}");
            let pair = match anchored {
                Some(inner) => {
                    let replacement = regexes::replacement(replacement, &names, 0).ok_or_else(fault)?;
                    (format!("{removed}{inner}"), replacement)
                }
                None => {
                    let replacement = regexes::replacement(replacement, &names, 1).ok_or_else(fault)?;
                    (format!("{removed}((?:/.*?)??){pattern}"), format!("${{1}}{replacement}"))
                }
            };
            Ok(State::Pairs(Pairs::of(vec![pair, stripped(count)])))
        }
        State::Prefix(text) => {
            // An expression that begins with the prefix matches the path as it came without it.
            let inner = anchored.unwrap_or(&pattern).strip_prefix(&regexes::escape(&text));
            let inner = inner.filter(|rest| rest.is_empty() || rest.starts_with(['/', '(']));
            let inner = inner.filter(|_| anchored.is_some() || !may_repeat(&pattern));
            let inner = inner.ok_or(Fault::Combination)?;
            let replacement = regexes::replacement(replacement, &names, 0).ok_or_else(fault)?;
            let rest = ("^(.*)$".to_owned(), format!("{}${{1}}", regexes::literally(&text)));
            Ok(State::Pairs(Pairs::of(vec![(format!("^{inner}"), replacement), rest])))
        }
        State::Pairs(_) => Err(Fault::Combination),
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::{self, Rules};
    use super::*;

    fn combined(changes: &[Change], pattern: &str) -> Result<Vec<(String, String)>, Fault> {
        let patterns: Vec<_> =
            path::compile(pattern, Rules { trailing_slash: true, ant: false }).into_iter().collect();
        combine(changes, &patterns).map(|pairs| pairs.pairs)
    }

    fn replace(regex: &str, replacement: &str) -> Change {
        Change::Replace { regex: regex.to_owned(), replacement: replacement.to_owned() }
    }

    fn pairs(pairs: &[(&str, &str)]) -> Result<Vec<(String, String)>, Fault> {
        Ok(pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
    }

    #[test]
    fn changes_are_combined() {
        let strip = "^(?:/[^/]+){0,1}(?:/(.*))?$";
        let prefix = |text: &str| Change::Prefix(text.to_owned());
        assert_eq!(combined(&[], "/**"), pairs(&[]));
        assert_eq!(combined(&[Change::Strip(1)], "/**"), pairs(&[(strip, "/${1}")]));
        assert_eq!(combined(&[Change::Strip(1), prefix("/v2")], "/**"), pairs(&[(strip, "/v2/${1}")]));
        assert_eq!(combined(&[prefix("/a/b"), Change::Strip(1)], "/**"), pairs(&[("^(.*)$", "/b${1}")]));
        assert_eq!(combined(&[prefix("/a"), Change::Strip(1)], "/**"), pairs(&[]));
        assert_eq!(combined(&[prefix("/a"), prefix("/b")], "/**"), pairs(&[("^(.*)$", "/a${1}")]));
        assert_eq!(
            combined(&[replace("/red/?(?<s>.*)", "/${s}")], "/red/**"),
            pairs(&[("/red/?(.*)", "/${1}")])
        );
        assert_eq!(
            combined(&[Change::Strip(1), replace("/red/(?<s>.*)", "/x/${s}")], "/**"),
            pairs(&[("^(?:/[^/]+){1}((?:/.*?)??)/red/(.*)", "${1}/x/${2}"), (strip, "/${1}")])
        );
        assert_eq!(
            combined(&[prefix("/api"), replace("^/api/(.*)", "/v1/$1")], "/**"),
            pairs(&[("^/(.*)", "/v1/${1}"), ("^(.*)$", "/api${1}")])
        );
        assert_eq!(
            combined(&[Change::Set("/x/{id}".to_owned())], "/a/{id}"),
            pairs(&[("^/a/([^/]+)/?$", "/x/${1}")])
        );
        assert_eq!(
            combined(&[Change::Set("/{no}".to_owned())], "/a/{id}"),
            Err(Fault::Variable("no".to_owned()))
        );
        assert_eq!(combined(&[replace("/a", "/b"), Change::Strip(1)], "/**"), Err(Fault::Combination));
    }

    #[test]
    fn prefixes_that_are_removed_are_known() {
        let literal = |text: &str| Some(Removed::Literal(text.to_owned()));
        for (regex, replacement, expected) in [
            ("/red/?(?<s>.*)", "/${s}", literal("/red")),
            ("^/api/red(?<s>/.*)?", "${s}", literal("/api/red")),
            ("/red/(.*)", "/blue/$1", None),
            ("/[a-z]+/(.*)", "/$1", None),
            ("/(.*)", "/$1", None),
        ] {
            assert_eq!(removed(&[replace(regex, replacement)]), expected, "{regex}");
        }
        assert_eq!(removed(&[Change::Strip(2)]), Some(Removed::Segments(2)));
        assert_eq!(removed(&[Change::Strip(2), Change::Strip(1)]), None);
    }

    #[test]
    fn expressions_that_match_once_are_known() {
        for (regex, expected) in [
            ("/a/(?<s>.*)", false),
            ("/a(?<s>/.*)?", false),
            ("^/a", false),
            ("/a$", false),
            ("/a", true),
            ("/a/([^/]+)", true),
        ] {
            assert_eq!(may_repeat(regex), expected, "{regex}");
        }
    }
}
