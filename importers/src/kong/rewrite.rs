//! The path that Kong sends to a service, as pairs of pattern and replacement.

use super::paths::{PathRule, anchored, escape, groups};

/// How the path of a request to the upstream is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathRewrite {
    /// Pattern, replacement, and so on; the first pattern that matches counts.
    pub pairs: Vec<String>,
    /// The first group of all patterns is the prefix that was removed.
    pub captures_prefix: bool,
}

/// The rewriting of paths for a route; none if the path stays as it is.
pub(super) fn rewrite(paths: &[PathRule], strip: bool, service_path: &str, v1: bool) -> Option<PathRewrite> {
    let base = if service_path.is_empty() { "/" } else { service_path };
    let slash = base.ends_with('/');
    let bare = base.trim_end_matches('/');
    let mut pairs = Vec::new();
    let mut pair = |pattern: String, replacement: String| pairs.extend([pattern, replacement]);
    let base = base.replace('$', "$$");
    if !strip {
        match (base.as_str(), slash || v1) {
            ("/", _) => return None,
            (_, true) => pair("^/(.*)$".to_owned(), format!("{base}$1")),
            (_, false) => {
                pair("^/$".to_owned(), base.clone());
                pair("^/(.*)$".to_owned(), format!("{base}/$1"));
            }
        }
        return Some(PathRewrite { pairs, captures_prefix: false });
    }
    let mut prefixes: Vec<&str> = paths
        .iter()
        .filter_map(|path| match path {
            PathRule::Prefix(prefix) => Some(prefix.as_str()),
            PathRule::Regex(_) => None,
        })
        .collect();
    if paths.is_empty() {
        prefixes.push("/");
    }
    if prefixes == ["/"] && paths.len() < 2 && base == "/" {
        return None;
    }
    // The longest one first, as in the router.
    prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
    let join = |prefixes: &[&str]| prefixes.iter().map(|prefix| escape(prefix)).collect::<Vec<_>>().join("|");
    // Below the path of a service, what is left of a segment may not become `.` or `..`.
    let rest = if base == "/" { "/?(.*)$" } else { r"(?:\.\.?(?:/|$)|/)?(.*)$" };
    for prefixes in prefixes.chunk_by(|one, other| one.ends_with('/') == other.ends_with('/')) {
        let all = join(prefixes);
        if prefixes[0].ends_with('/') {
            if prefixes.contains(&"/") && !slash && !v1 {
                pair("^(/)$".to_owned(), base.clone());
            }
            let between = if slash || v1 { "" } else { "/" };
            pair(format!("^({all})(.*)$"), format!("{base}{between}$2"));
        } else if v1 && !slash {
            pair(format!("^({all})(.*)$"), format!("{base}$2"));
        } else {
            if !v1 && (!bare.is_empty() || !slash) {
                let alone = if slash { bare.replace('$', "$$") } else { base.clone() };
                pair(format!("^({all})$"), alone);
            }
            let between = if slash { "" } else { "/" };
            pair(format!("^({all}){rest}"), format!("{base}{between}$2"));
        }
    }
    for path in paths {
        let PathRule::Regex(_) = path else { continue };
        let pattern = path.pattern();
        // Two more groups: the prefix, and what follows it.
        let last = groups(&pattern) + 2;
        let begin = anchored(&format!("({pattern})"));
        if slash && !bare.is_empty() {
            pair(format!("{begin}$"), bare.replace('$', "$$"));
        } else if !slash {
            pair(format!("{begin}$"), base.clone());
        }
        let between = if slash || v1 { "" } else { "/" };
        pair(format!("{begin}{}", if v1 { "(.*)$" } else { rest }), format!("{base}{between}${{{last}}}"));
    }
    let captures_prefix = prefixes != ["/"];
    Some(PathRewrite { pairs, captures_prefix })
}
