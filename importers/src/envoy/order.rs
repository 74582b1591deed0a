//! The order of routes: Envoy takes the first that matches, the router the most specific path.

use super::matching::Pattern;

/// A route within its virtual host.
pub(super) struct Entry {
    /// Where it matches by itself.
    pub(super) patterns: Vec<Pattern>,
    /// Every request with such a path matches.
    pub(super) unconditional: bool,
}

/// The place of a route in the router.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) patterns: Vec<Pattern>,
    pub(super) priority: usize,
    /// An earlier route takes all of its requests.
    pub(super) hidden_by: Option<usize>,
}

/// Gives each route the paths and the priority by which the router finds it if, and only if, it is the first of
/// the list that matches.
///
/// The router tries the most specific path first. So a route is also stored under each more specific path of a later
/// one that it covers, with a higher priority: whichever path a request is looked up by first, all routes that
/// could match and stand earlier are there as well.
pub(super) fn place(entries: &[Entry]) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        let hides = |earlier: &Entry| {
            earlier.unconditional
                && entry
                    .patterns
                    .iter()
                    .all(|pattern| earlier.patterns.iter().any(|wide| wide.covers(pattern)))
        };
        let hidden_by = entries[..at].iter().position(hides);
        placed.push(Placed { patterns: entry.patterns.clone(), priority: entries.len() - at, hidden_by });
    }
    // From the end, so that the paths of the later ones are complete.
    for at in (0..entries.len()).rev() {
        if placed[at].hidden_by.is_some() {
            continue;
        }
        let (before, later) = placed.split_at_mut(at + 1);
        let own = &mut before[at].patterns;
        for pattern in
            later.iter().filter(|later| later.hidden_by.is_none()).flat_map(|later| &later.patterns)
        {
            let covered = entries[at].patterns.iter().any(|wide| wide.covers(pattern));
            if covered && !own.contains(pattern) {
                own.push(pattern.clone());
            }
        }
    }
    let mut shared = false;
    for (at, one) in placed.iter().enumerate().filter(|(_, one)| one.hidden_by.is_none()) {
        let others = placed[at + 1..].iter().filter(|other| other.hidden_by.is_none());
        shared |= others.flat_map(|other| &other.patterns).any(|pattern| one.patterns.contains(pattern));
    }
    if !shared {
        placed.iter_mut().for_each(|placed| placed.priority = 0);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uris(entries: &[(&[&str], bool)]) -> Vec<(Vec<String>, usize, Option<usize>)> {
        let pattern = |uri: &&str| match uri.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.to_owned()),
            None => Pattern::Exact((*uri).to_owned()),
        };
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(uris, unconditional)| Entry {
                patterns: uris.iter().map(pattern).collect(),
                unconditional: *unconditional,
            })
            .collect();
        let shown = |placed: Placed| {
            (placed.patterns.iter().map(Pattern::uri).collect(), placed.priority, placed.hidden_by)
        };
        place(&entries).into_iter().map(shown).collect()
    }

    #[test]
    fn specific_paths_first_need_no_priority() {
        let placed = uris(&[(&["/a/b*"], true), (&["/a*"], true), (&["/*"], true)]);
        assert!(
            placed
                .iter()
                .all(|(uris, priority, hidden)| uris.len() == 1 && *priority == 0 && hidden.is_none())
        );
    }

    #[test]
    fn a_wide_path_before_a_specific_one_is_stored_under_both() {
        let placed = uris(&[(&["/*"], false), (&["/a*"], true), (&["/a"], true), (&["/b"], false)]);
        assert_eq!(placed[0], (vec!["/*".into(), "/a*".into(), "/b".into()], 4, None));
        assert_eq!(placed[2].2, Some(1));
        assert_eq!(placed[3], (vec!["/b".into()], 1, None));
    }
}
