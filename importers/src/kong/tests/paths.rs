//! The path for the service, against Kong's own function.

use proptest::prelude::*;
use sdk::pattern::{Pattern, Replacement, Searches};

use super::super::paths::PathRule;
use super::super::rewrite::rewrite;

/// `get_upstream_uri_v0` of Kong's router, and the branch for `v1`.
fn kong(path: &str, prefix: &str, strip: bool, base: &str, v1: bool) -> String {
    let base = if base.is_empty() { "/" } else { base };
    let postfix = match &path[prefix.len()..] {
        "." | ".." => "",
        rest => rest.strip_prefix("./").or(rest.strip_prefix("../")).unwrap_or(rest),
    };
    let bare = &base[..base.len() - 1];
    if v1 {
        return match strip {
            true if base.ends_with('/') && postfix.starts_with('/') => format!("{bare}{postfix}"),
            true => format!("{base}{postfix}"),
            false => format!("{base}{}", &path[1..]),
        };
    }
    match (base.ends_with('/'), strip) {
        (true, true) if postfix.is_empty() && (base == "/" || path.ends_with('/')) => base.to_owned(),
        (true, true) if postfix.is_empty() => bare.to_owned(),
        (true, true) if postfix.starts_with('/') => format!("{bare}{postfix}"),
        (true, true) => format!("{base}{postfix}"),
        (true, false) => format!("{base}{}", &path[1..]),
        (false, true) if postfix.is_empty() && path.len() > 1 && path.ends_with('/') => format!("{base}/"),
        (false, true) if postfix.is_empty() => base.to_owned(),
        (false, true) if postfix.starts_with('/') => format!("{base}{postfix}"),
        (false, true) => format!("{base}/{postfix}"),
        (false, false) if path == "/" => base.to_owned(),
        (false, false) => format!("{base}{path}"),
    }
}

/// The path that the pairs make of this one.
fn rewritten(paths: &[PathRule], strip: bool, base: &str, v1: bool, path: &str) -> String {
    let Some(rewrite) = rewrite(paths, strip, base, v1) else { return path.to_owned() };
    for pair in rewrite.pairs.chunks(2) {
        let pattern = Pattern::new(&pair[0], false).unwrap_or_else(|error| panic!("{}: {error}", pair[0]));
        if let Some(found) = pattern.captures(path.as_bytes(), &Searches::default()).unwrap() {
            let mut out = Vec::new();
            found.replace(&Replacement::parse(&pair[1]).unwrap(), &mut out);
            return String::from_utf8(out).unwrap();
        }
    }
    panic!("no pattern of {:?} matches {path}", rewrite.pairs)
}

proptest! {
    #[test]
    fn services_get_the_path_that_kong_sends(
        prefixes in prop::sample::subsequence(vec!["/", "/a", "/a/", "/a/b", "/b.c", "/a/b/"], 0..4),
        base in prop::sample::select(vec!["", "/", "/x", "/x/", "/x/y"]),
        strip in any::<bool>(),
        v1 in any::<bool>(),
        rest in prop::sample::select(vec!["", "/", "1", "/1", "/1/2/", "-..", "/x.y"]),
    ) {
        let paths: Vec<PathRule> = prefixes.iter().map(|prefix| PathRule::Prefix((*prefix).to_owned())).collect();
        for prefix in if prefixes.is_empty() { vec!["/"] } else { prefixes.clone() } {
            if prefix.ends_with('/') && rest.starts_with('/') {
                continue;
            }
            let path = format!("{prefix}{rest}");
            // The longest prefix is the one of the route that matches.
            let longest = prefixes.iter().copied().filter(|other| path.starts_with(other)).max_by_key(|other| other.len());
            let expected = kong(&path, longest.unwrap_or("/"), strip, base, v1);
            prop_assert_eq!(rewritten(&paths, strip, base, v1, &path), expected, "{}", path);
        }
    }
}

#[test]
fn expressions_are_removed_as_far_as_they_match() {
    let regex = |text: &str| PathRule::Regex(text.to_owned());
    for (paths, base, path, expected) in [
        (vec![regex("/a/\\d+")], "/", "/a/12/x", "/x"),
        (vec![regex("/a/\\d+")], "/v1", "/a/12", "/v1"),
        (vec![regex("/a/\\d+")], "/v1", "/a/12/x", "/v1/x"),
        (vec![regex("/(a|b)/(?<id>[^/]+)")], "/v1/", "/b/7/x", "/v1/x"),
        (vec![regex("/(a|b)/(?<id>[^/]+)")], "/v1/", "/b/7", "/v1"),
        (vec![regex("/a|/b")], "", "/b/x", "/x"),
        (vec![PathRule::Prefix("/a.b".to_owned())], "/", "/a.b/c", "/c"),
        (vec![PathRule::Prefix("/a".to_owned())], "/base", "/a../secret", "/base/secret"),
    ] {
        assert_eq!(rewritten(&paths, true, base, false, path), expected, "{paths:?} {path}");
    }
}
