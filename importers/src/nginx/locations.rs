//! Locations of a server, and the order in which nginx tries them.
//!
//! nginx: an exact location wins; then the longest prefix is found, and within it nested locations;
//! unless that prefix has `^~`, regular expressions are tried in their order, those of the innermost
//! block first; the prefix wins if none matches. The router of the gateway tries exact paths, then the
//! longest prefix, and within one prefix candidates by priority. So each regular expression stands
//! under every prefix where nginx would try it, before the prefix's own route.

use super::directive::{Block, Directive};
use super::scope::Scope;

/// A location.
pub(super) struct Location<'a> {
    pub kind: LocationKind,
    /// The path, the regular expression, or the name with its `@`.
    pub path: String,
    /// `None` for the requests of a server that no location takes.
    pub directive: Option<&'a Directive>,
    pub scope: Scope<'a>,
    /// Nested ones.
    pub children: Vec<Location<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocationKind {
    /// `=`
    Exact,
    Prefix,
    /// `^~`
    FinalPrefix,
    /// `~`, `~*`
    Regex {
        ignore_case: bool,
    },
    /// `@name`
    Named,
}

/// A location with the paths of its routes.
pub(super) struct Reach<'t, 'a> {
    pub location: &'t Location<'a>,
    /// As in the `uris` of a route.
    pub uris: Vec<String>,
    /// The regular expression that the path must match, as an operator of `vars` and a pattern.
    pub pattern: Option<(&'static str, String)>,
}

impl<'a> Location<'a> {
    /// The locations in a block.
    pub(super) fn read(block: &'a Block, scope: &Scope<'a>) -> Vec<Location<'a>> {
        let locations = block.directives.iter().filter(|directive| directive.name == "location");
        locations.filter_map(|directive| Location::of(directive, scope)).collect()
    }

    fn of(directive: &'a Directive, scope: &Scope<'a>) -> Option<Location<'a>> {
        let block = directive.block.as_ref()?;
        let (kind, path) = match (directive.arg(0), directive.args.len()) {
            ("=", 2) => (LocationKind::Exact, directive.arg(1)),
            ("^~", 2) => (LocationKind::FinalPrefix, directive.arg(1)),
            ("~", 2) => (LocationKind::Regex { ignore_case: false }, directive.arg(1)),
            ("~*", 2) => (LocationKind::Regex { ignore_case: true }, directive.arg(1)),
            // Without a space, as nginx accepts it, too.
            (word, 1) if word.starts_with('=') => (LocationKind::Exact, &word[1..]),
            (word, 1) if word.starts_with("^~") => (LocationKind::FinalPrefix, &word[2..]),
            (word, 1) if word.starts_with("~*") => (LocationKind::Regex { ignore_case: true }, &word[2..]),
            (word, 1) if word.starts_with('~') => (LocationKind::Regex { ignore_case: false }, &word[1..]),
            (word, 1) if word.starts_with('@') => (LocationKind::Named, word),
            (word, 1) => (LocationKind::Prefix, word),
            _ => return None,
        };
        directive.mark_used();
        let scope = scope.within(block);
        let children = Location::read(block, &scope);
        Some(Location { kind, path: path.to_owned(), directive: Some(directive), scope, children })
    }

    pub(super) fn is_prefix(&self) -> bool {
        matches!(self.kind, LocationKind::Prefix | LocationKind::FinalPrefix)
    }
}

/// The prefixes of a block and of those within it that requests reach.
fn reached<'t>(locations: &'t [Location<'_>], others: &[&str], plain_only: bool, found: &mut Vec<&'t str>) {
    for location in locations.iter().filter(|location| location.is_prefix()) {
        if plain_only && location.kind != LocationKind::Prefix {
            continue;
        }
        if !others.iter().any(|other| location.path.starts_with(other)) {
            found.push(&location.path);
        }
        reached(&location.children, &taken(locations, location, others), false, found);
    }
}

/// The prefixes that take requests away from what is nested in a location.
fn taken<'t>(locations: &'t [Location<'_>], location: &Location<'_>, others: &[&'t str]) -> Vec<&'t str> {
    let longer = locations.iter().filter(|other| {
        other.is_prefix() && other.path.len() > location.path.len() && other.path.starts_with(&location.path)
    });
    others.iter().copied().chain(longer.map(|other| &*other.path)).collect()
}

/// The locations in the order in which their routes are tried, those that no request reaches apart.
pub(super) struct Reachable<'t, 'a> {
    pub routes: Vec<Reach<'t, 'a>>,
    pub unreachable: Vec<&'t Location<'a>>,
}

/// Orders the locations of a server, which include one with the prefix `/`.
pub(super) fn order<'t, 'a>(locations: &'t [Location<'a>]) -> Reachable<'t, 'a> {
    let mut reachable = Reachable { routes: Vec::new(), unreachable: Vec::new() };
    level(locations, None, &[], &mut reachable);
    // Under one prefix, regular expressions of outer blocks go before prefixes of inner ones.
    reachable.routes.sort_by_key(|reach| reach.pattern.is_none());
    reachable
}

/// Orders the locations of one block; `outer` is the location around it, and `others` are prefixes of
/// outer blocks that take requests away from it.
fn level<'t, 'a>(
    locations: &'t [Location<'a>],
    outer: Option<&'t Location<'a>>,
    others: &[&str],
    reachable: &mut Reachable<'t, 'a>,
) {
    let prefixes: Vec<&Location<'a>> = locations.iter().filter(|location| location.is_prefix()).collect();
    // Inner blocks go first.
    for prefix in &prefixes {
        level(&prefix.children, Some(prefix), &taken(locations, prefix, others), reachable);
    }
    let is_taken = |path: &str| others.iter().any(|other| path.starts_with(other));
    let mut under: Vec<&str> = Vec::new();
    // A nested `^~` of the same path takes all of its requests.
    let is_final = |path: &str| {
        prefixes.iter().any(|prefix| prefix.kind == LocationKind::FinalPrefix && prefix.path == path)
    };
    under.extend(outer.map(|outer| &*outer.path).filter(|path| !is_final(path)));
    reached(locations, others, true, &mut under);
    under.retain(|path| !is_taken(path) && path.starts_with('/') && !path.contains('*'));
    let mut uris: Vec<String> = under.iter().map(|path| format!("{path}*")).collect();
    uris.sort();
    uris.dedup();
    for location in locations {
        match location.kind {
            LocationKind::Regex { ignore_case } if !uris.is_empty() => {
                let operator = if ignore_case { "~*" } else { "~~" };
                let pattern = Some((operator, location.path.clone()));
                reachable.routes.push(Reach { location, uris: uris.clone(), pattern });
            }
            LocationKind::Regex { .. } => reachable.unreachable.push(location),
            _ => {}
        }
    }
    for location in locations {
        let uri = match location.kind {
            LocationKind::Exact => location.path.clone(),
            LocationKind::Prefix | LocationKind::FinalPrefix => format!("{}*", location.path),
            LocationKind::Regex { .. } | LocationKind::Named => continue,
        };
        let is_plain = location.path.starts_with('/') && !location.path.contains('*');
        if !is_plain || is_taken(&location.path) {
            reachable.unreachable.push(location);
        } else {
            reachable.routes.push(Reach { location, uris: vec![uri], pattern: None });
        }
    }
}

/// The paths that nginx answers with a redirect to the same path with a slash: those of proxied
/// prefixes that end with one.
pub(super) fn without_slash<'t, 'a>(
    routes: &[Reach<'t, 'a>],
    is_proxied: impl Fn(&Location<'a>) -> bool,
) -> Vec<&'t Location<'a>> {
    let has = |path: &str| {
        routes.iter().any(|reach| {
            reach.location.path == path && !matches!(reach.location.kind, LocationKind::Regex { .. })
        })
    };
    let ends = |location: &&Location<'a>| {
        location.is_prefix()
            && location.path.len() > 1
            && location.path.strip_suffix('/').is_some_and(|short| !has(short))
    };
    let found = routes.iter().map(|reach| reach.location).filter(ends);
    found.filter(|location| is_proxied(location)).collect()
}

/// The location that serves a path of which only the beginning is known: `/new/` of `/new/$1`.
/// `None` if it depends on the rest.
pub(super) fn target<'t, 'a>(
    locations: &'t [Location<'a>],
    path: &str,
    is_whole: bool,
) -> Option<&'t Location<'a>> {
    if is_whole {
        if let Some(exact) =
            locations.iter().find(|location| location.kind == LocationKind::Exact && location.path == path)
        {
            return Some(exact);
        }
        let best = longest(locations, path);
        if best.is_none_or(|best| best.kind != LocationKind::FinalPrefix) {
            for location in locations {
                let LocationKind::Regex { ignore_case } = location.kind else { continue };
                let regex = super::condition::compile(&location.path, ignore_case)?;
                if regex.is_match(path) {
                    return Some(location);
                }
            }
        }
        return best.map(|best| inner(best, path, is_whole));
    }
    let open = |location: &Location<'a>| {
        matches!(location.kind, LocationKind::Exact | LocationKind::Prefix | LocationKind::FinalPrefix)
            && location.path.len() > path.len()
            && location.path.starts_with(path)
    };
    if locations.iter().any(open) {
        return None;
    }
    longest(locations, path).map(|best| inner(best, path, is_whole))
}

/// The regular expressions that may match a path with this beginning, if they are tried for it.
pub(super) fn rivals<'t, 'a>(locations: &'t [Location<'a>], start: &str) -> Vec<&'t Location<'a>> {
    if longest(locations, start).is_some_and(|best| best.kind == LocationKind::FinalPrefix) {
        return Vec::new();
    }
    let may_match = |location: &&Location<'a>| {
        let LocationKind::Regex { ignore_case } = location.kind else { return false };
        let Some(rest) = location.path.strip_prefix('^') else { return true };
        let literal: String = rest
            .replace("\\/", "/")
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "/_-".contains(*c))
            .collect();
        // The last character may be optional.
        let literal = literal.get(..literal.len().saturating_sub(1)).unwrap_or_default();
        let (literal, start) = match ignore_case {
            true => (literal.to_ascii_lowercase(), start.to_ascii_lowercase()),
            false => (literal.to_owned(), start.to_owned()),
        };
        literal.starts_with(&start) || start.starts_with(&literal)
    };
    locations.iter().filter(may_match).collect()
}

fn inner<'t, 'a>(location: &'t Location<'a>, path: &str, is_whole: bool) -> &'t Location<'a> {
    target(&location.children, path, is_whole).unwrap_or(location)
}

fn longest<'t, 'a>(locations: &'t [Location<'a>], path: &str) -> Option<&'t Location<'a>> {
    let prefixes =
        locations.iter().filter(|location| location.is_prefix() && path.starts_with(&location.path));
    prefixes.max_by_key(|location| location.path.len())
}
